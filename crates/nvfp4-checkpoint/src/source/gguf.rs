//! The header of a GGUF file (version 2 and 3, little-endian).
//!
//! Source: ggml's `docs/gguf.md` and `ggml-common.h`.

use super::{Entry, Span};
use crate::{Error, TensorDType};
use nvfp4_core::gguf::{BLOCK_BYTES, BLOCK_VALUES, TYPE_ID};
use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

const MAGIC: &[u8] = b"GGUF";
const DEFAULT_ALIGNMENT: usize = 32;
/// More than any real file has; keeps a lying header from asking for memory.
const MAX_DIMENSIONS: u32 = 4;
/// Arrays inside arrays.
const MAX_NESTING: usize = 4;

pub(super) fn is_gguf(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
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

    fn string(&mut self, what: &str) -> Result<String, Error> {
        let length = self.u64(what)?;
        let bytes = self.take(length, what)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| self.fault(format!("{what} is not UTF-8")))
    }

    /// A metadata value: strings and integers as text, the others skipped.
    fn value(&mut self, kind: u32, nesting: usize) -> Result<Option<String>, Error> {
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4 => return self.u32("a metadata value").map(|v| Some(v.to_string())),
            5 | 6 => 4,
            8 => return self.string("a metadata value").map(Some),
            9 => {
                let (kind, count) = (self.u32("an array's type")?, self.u64("an array's length")?);
                if nesting >= MAX_NESTING {
                    return Err(self.fault("arrays nested too deeply"));
                }
                // Each element takes at least a byte, so a lying count ends at the end of the file.
                for _ in 0..count {
                    self.value(kind, nesting + 1)?;
                }
                return Ok(None);
            }
            10 => return self.u64("a metadata value").map(|v| Some(v.to_string())),
            11 | 12 => 8,
            _ => return Err(self.fault(format!("unknown metadata type {kind}"))),
        };
        self.take(size, "a metadata value").map(|_| None)
    }
}

/// Bytes that `values` elements of a GGUF type take, and the element type to show; `None` for types not known here.
fn stored(kind: u32, values: usize) -> Option<(TensorDType, usize)> {
    let blocks = |size: usize, bytes: usize| {
        values.is_multiple_of(size).then(|| (values / size).checked_mul(bytes)).flatten()
    };
    let plain = |dtype: TensorDType| Some((dtype, values.checked_mul(dtype.bits() / 8)?));
    let quantized = |size, bytes| Some((TensorDType::U8, blocks(size, bytes)?));
    match kind {
        0 => plain(TensorDType::F32),
        1 => plain(TensorDType::F16),
        2 => quantized(32, 18),
        3 => quantized(32, 20),
        6 => quantized(32, 22),
        7 => quantized(32, 24),
        8 => quantized(32, 34),
        9 => quantized(32, 36),
        10 => quantized(256, 84),
        11 => quantized(256, 110),
        12 => quantized(256, 144),
        13 => quantized(256, 176),
        14 => quantized(256, 210),
        15 => quantized(256, 292),
        24 => plain(TensorDType::I8),
        25 => plain(TensorDType::I16),
        26 => plain(TensorDType::I32),
        27 => plain(TensorDType::I64),
        28 => plain(TensorDType::F64),
        30 => plain(TensorDType::Bf16),
        39 => quantized(32, 17),
        TYPE_ID => quantized(BLOCK_VALUES, BLOCK_BYTES),
        _ => None,
    }
}

type Parsed = (BTreeMap<String, Entry>, HashMap<String, String>);

/// Reads and checks the header.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Parsed, Error> {
    let mut cursor = Cursor { path, bytes, at: 0 };
    if cursor.take(4, "the magic number")? != MAGIC {
        return Err(Error::container(path, "not a GGUF file"));
    }
    let version = cursor.u32("the version")?;
    if !(2..=3).contains(&version) {
        return Err(cursor.fault(format!("GGUF version {version}, expected 2 or 3")));
    }
    let (tensors, values) = (cursor.u64("the tensor count")?, cursor.u64("the metadata count")?);
    let mut metadata = HashMap::new();
    for _ in 0..values {
        let key = cursor.string("a metadata key")?;
        let kind = cursor.u32("a metadata type")?;
        if let Some(value) = cursor.value(kind, 0)? {
            metadata.insert(key, value);
        }
    }
    let alignment = match metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(text) => {
            text.parse().ok().filter(|a: &usize| a.is_power_of_two() && *a <= 1 << 20).ok_or_else(|| {
                Error::container(path, format!("general.alignment is {text}, expected a power of two"))
            })?
        }
    };

    struct Raw {
        name: String,
        shape: Vec<usize>,
        kind: u32,
        offset: u64,
    }
    let mut raw = Vec::new();
    for _ in 0..tensors {
        let name = cursor.string("a tensor's name")?;
        let dimensions = cursor.u32("a tensor's dimensions")?;
        if dimensions > MAX_DIMENSIONS {
            return Err(cursor.fault(format!("tensor `{name}` has {dimensions} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let size = cursor.u64("a tensor's shape")?;
            shape.push(usize::try_from(size).map_err(|_| cursor.fault(format!("tensor `{name}`: size {size}")))?);
        }
        // GGUF writes the fastest dimension first.
        shape.reverse();
        let kind = cursor.u32("a tensor's type")?;
        raw.push(Raw { name, shape, kind, offset: cursor.u64("a tensor's offset")? });
    }
    let base = cursor.at.checked_next_multiple_of(alignment).ok_or_else(|| cursor.fault("header size"))?;

    let mut entries = BTreeMap::new();
    for Raw { name, mut shape, kind, offset } in raw {
        let fault = |fault: String| Error::Tensor { path: path.into(), tensor: name.clone(), fault };
        let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let elements = elements.ok_or_else(|| fault(format!("shape {shape:?} overflows")))?;
        let row = shape.last().copied().unwrap_or(1);
        let Some((dtype, _)) = stored(kind, row) else {
            let what = if kind == TYPE_ID {
                format!("NVFP4 rows must be multiples of {BLOCK_VALUES} values, found {row}")
            } else {
                format!("GGUF type {kind} with rows of {row} values is not known")
            };
            return Err(fault(what));
        };
        let size = stored(kind, elements).map(|(_, size)| size).ok_or_else(|| fault("size overflows".into()))?;
        let start = usize::try_from(offset).ok().and_then(|o| base.checked_add(o));
        let span = start.and_then(|start| Some((start, start.checked_add(size)?)));
        let Some((start, end)) = span.filter(|&(_, end)| end <= bytes.len()) else {
            return Err(fault(format!(
                "offset {offset} and {size} bytes reach past the end of the file ({} bytes): truncated",
                bytes.len()
            )));
        };
        if !start.is_multiple_of(alignment) {
            return Err(fault(format!("offset {offset} is not a multiple of the alignment {alignment}")));
        }
        if dtype == TensorDType::U8
            && let Some(last) = shape.last_mut()
        {
            *last = stored(kind, row).map_or(0, |(_, bytes)| bytes);
        }
        let entry =
            Entry { dtype, shape, nvfp4_row: (kind == TYPE_ID).then_some(row), span: Span { file: 0, start, end } };
        if entries.insert(name.clone(), entry).is_some() {
            return Err(fault("is in the header twice".into()));
        }
    }
    Ok((entries, metadata))
}
