//! The header of a GGUF file (version 2 and 3, little-endian).

use super::types::GgufType;
use crate::{Error, source::Faults};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Range,
    path::Path,
};

const MAGIC: &[u8] = b"GGUF";
const DEFAULT_ALIGNMENT: usize = 32;
/// As many as ggml has (`GGML_MAX_DIMS`).
const MAX_DIMENSIONS: u32 = 4;
/// Arrays inside arrays.
const MAX_NESTING: usize = 4;

pub(crate) fn is_gguf(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// What a header says.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Header {
    /// Tensors, by name.
    pub(crate) tensors: BTreeMap<String, Tensor>,
    /// Metadata: strings and integers as text; values of other types are left out.
    pub(crate) metadata: HashMap<String, String>,
}

/// A tensor of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tensor {
    pub(crate) kind: GgufType,
    /// In values, the slowest dimension first.
    pub(crate) shape: Vec<usize>,
    /// Bytes of the file.
    pub(crate) bytes: Range<usize>,
}

/// A position in the header. Every read is checked.
struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn fault(&self, fault: impl Into<String>) -> Error {
        Error::container(self.path, format!("{} (at byte {})", fault.into(), self.at))
    }

    fn take(&mut self, n: u64, what: &str) -> Result<&'a [u8], Error> {
        let end = usize::try_from(n).ok().and_then(|n| self.at.checked_add(n));
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken =
            taken.ok_or_else(|| self.fault(format!("{what} of {n} bytes reaches past the end: truncated")))?;
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Error> {
        let bytes = self.take(N as u64, what)?;
        bytes.try_into().map_err(|_| self.fault(what))
    }

    fn u32(&mut self, what: &str) -> Result<u32, Error> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, Error> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn string(&mut self, what: &str) -> Result<&'a [u8], Error> {
        let length = self.u64(what)?;
        self.take(length, what)
    }

    /// A string that names something.
    fn name(&mut self, what: &str) -> Result<String, Error> {
        let bytes = self.string(what)?;
        std::str::from_utf8(bytes).map(String::from).map_err(|_| self.fault(format!("{what} is not UTF-8")))
    }

    /// A metadata value: strings and integers as text, the others skipped.
    fn value(&mut self) -> Result<Option<String>, Error> {
        let what = "a metadata value";
        match self.u32("a metadata type")? {
            4 => self.u32(what).map(|v| Some(v.to_string())),
            5 => self.u32(what).map(|v| Some(v.cast_signed().to_string())),
            10 => self.u64(what).map(|v| Some(v.to_string())),
            11 => self.u64(what).map(|v| Some(v.cast_signed().to_string())),
            8 => self.string(what).map(|v| Some(String::from_utf8_lossy(v).into_owned())),
            kind => self.skip(kind, 1, 0).map(|()| None),
        }
    }

    /// Skips values of one type. Nothing is allocated, and the work is bounded by the file, whatever the count says.
    fn skip(&mut self, kind: u32, count: u64, nesting: usize) -> Result<(), Error> {
        let what = "a metadata value";
        let size: u64 = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            8 => {
                for _ in 0..count {
                    self.string(what)?;
                }
                return Ok(());
            }
            9 if nesting >= MAX_NESTING => return Err(self.fault("arrays nested too deeply")),
            9 => {
                for _ in 0..count {
                    let (kind, count) = (self.u32("an array's type")?, self.u64("an array's length")?);
                    self.skip(kind, count, nesting + 1)?;
                }
                return Ok(());
            }
            _ => return Err(self.fault(format!("unknown metadata type {kind}"))),
        };
        let bytes = count.checked_mul(size).ok_or_else(|| self.fault(format!("an array of {count} values")))?;
        self.take(bytes, what).map(drop)
    }
}

/// Reads and checks a header. Faults that do not hide each other are all added to `faults`; the header is whole if none
/// is.
pub(crate) fn parse(path: &Path, bytes: &[u8], faults: &mut Faults) -> Option<Header> {
    let mut cursor = Cursor { path, bytes, at: 0 };
    let parts = metadata(&mut cursor, faults).and_then(|(count, metadata)| {
        let alignment = alignment(path, &metadata)?;
        let tensors = descriptions(&mut cursor, count)?;
        Ok((metadata, alignment, tensors))
    });
    let (metadata, alignment, descriptions) = match parts {
        Ok(parts) => parts,
        Err(fault) => {
            faults.push(fault);
            return None;
        }
    };
    let base = cursor.at.next_multiple_of(alignment);
    let mut tensors = BTreeMap::new();
    for description in descriptions {
        let name = description.name.clone();
        let fault = |fault: String| Error::Tensor { path: path.into(), tensor: name.clone(), fault };
        match description.locate(base, alignment, bytes.len()) {
            Err(what) => faults.push(fault(what)),
            Ok(tensor) => {
                if tensors.insert(name.clone(), tensor).is_some() {
                    faults.push(fault("is in the header twice".into()));
                }
            }
        }
    }
    overlaps(path, &tensors, faults);
    Some(Header { tensors, metadata })
}

/// Everything before the tensors: their number, and the metadata.
fn metadata(cursor: &mut Cursor<'_>, faults: &mut Faults) -> Result<(u64, HashMap<String, String>), Error> {
    if cursor.take(4, "the magic number")? != MAGIC {
        return Err(Error::container(cursor.path, "not a GGUF file"));
    }
    let version = cursor.u32("the version")?;
    if !(2..=3).contains(&version) {
        let other_order = (2..=3).contains(&version.swap_bytes());
        let hint = if other_order { "; the file is big-endian, which is not read" } else { "" };
        return Err(cursor.fault(format!("GGUF version {version}, expected 2 or 3{hint}")));
    }
    let (tensors, values) = (cursor.u64("the tensor count")?, cursor.u64("the metadata count")?);
    let (mut keys, mut metadata) = (HashSet::new(), HashMap::new());
    for _ in 0..values {
        let key = cursor.name("a metadata key")?;
        if !keys.insert(key.clone()) {
            faults.push(cursor.fault(format!("metadata key `{key}` is there twice")));
        }
        if let Some(value) = cursor.value()? {
            metadata.insert(key, value);
        }
    }
    Ok((tensors, metadata))
}

fn alignment(path: &Path, metadata: &HashMap<String, String>) -> Result<usize, Error> {
    let Some(text) = metadata.get("general.alignment") else { return Ok(DEFAULT_ALIGNMENT) };
    text.parse().ok().filter(|a: &usize| a.is_power_of_two() && *a <= 1 << 20).ok_or_else(|| {
        Error::container(path, format!("general.alignment is {text}, expected a power of two up to 2^20"))
    })
}

/// A tensor as the header describes it.
struct Description {
    name: String,
    /// The fastest dimension first, as in the file.
    sizes: Vec<u64>,
    kind: u32,
    offset: u64,
}

fn descriptions(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Description>, Error> {
    let mut descriptions = Vec::new();
    for _ in 0..count {
        let name = cursor.name("a tensor's name")?;
        let dimensions = cursor.u32("a tensor's dimensions")?;
        if dimensions > MAX_DIMENSIONS {
            return Err(cursor.fault(format!("tensor `{name}` has {dimensions} dimensions")));
        }
        let sizes = (0..dimensions).map(|_| cursor.u64("a tensor's shape")).collect::<Result<_, _>>()?;
        let kind = cursor.u32("a tensor's type")?;
        descriptions.push(Description { name, sizes, kind, offset: cursor.u64("a tensor's offset")? });
    }
    Ok(descriptions)
}

impl Description {
    /// The tensor, in a file of `length` bytes whose data starts at `base`; or what is wrong with it.
    fn locate(self, base: usize, alignment: usize, length: usize) -> Result<Tensor, String> {
        let Self { sizes, kind, offset, .. } = self;
        let shape = sizes.iter().rev().map(|&n| usize::try_from(n)).collect::<Result<Vec<_>, _>>();
        let shape = shape.map_err(|_| format!("shape {sizes:?} is too large"))?;
        let row = shape.last().copied().unwrap_or(1);
        let kind = GgufType::from_id(kind).ok_or_else(|| format!("GGUF type {kind} is not known"))?;
        let row_bytes = kind.row_bytes(row).ok_or_else(|| {
            let values = kind.block_values();
            format!("{} rows must be multiples of {values} values, found {row}", kind.name)
        })?;
        let rows = shape.split_last().map_or(&[][..], |(_, outer)| outer);
        let size = rows.iter().try_fold(row_bytes, |n, &d| n.checked_mul(d));
        let size = size.ok_or_else(|| format!("shape {shape:?} overflows"))?;
        let start = usize::try_from(offset).ok().and_then(|o| base.checked_add(o));
        let span = start.and_then(|start| Some(start..start.checked_add(size)?));
        let bytes = span.filter(|span| span.end <= length).ok_or_else(|| {
            format!("offset {offset} and {size} bytes reach past the end of the file ({length} bytes): truncated")
        })?;
        if !bytes.start.is_multiple_of(alignment) {
            return Err(format!("offset {offset} is not a multiple of the alignment {alignment}"));
        }
        Ok(Tensor { kind, shape, bytes })
    }
}

/// Adds a fault for each tensor that shares bytes with one before it.
fn overlaps(path: &Path, tensors: &BTreeMap<String, Tensor>, faults: &mut Faults) {
    let mut spans: Vec<_> = tensors.iter().filter(|(_, t)| !t.bytes.is_empty()).collect();
    spans.sort_by_key(|(_, t)| (t.bytes.start, t.bytes.end));
    // The tensor that reaches farthest of those before.
    let mut farthest: Option<(&String, usize)> = None;
    for (name, tensor) in spans {
        if let Some((other, end)) = farthest
            && tensor.bytes.start < end
        {
            let Range { start, .. } = tensor.bytes;
            let fault = format!("starts at byte {start} of the file, inside `{other}`, which ends at {end}");
            faults.push(Error::Tensor { path: path.into(), tensor: name.clone(), fault });
        }
        if farthest.is_none_or(|(_, end)| tensor.bytes.end > end) {
            farthest = Some((name, tensor.bytes.end));
        }
    }
}
