//! The header of a safetensors file: 8 bytes of length, JSON, then the tensors without gaps.

use super::{Entry, Faults, Span};
use crate::{Error, TensorDType};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    path::Path,
};

/// The format's own limit on the header (`safetensors` crate, `MAX_HEADER_SIZE`).
const MAX_HEADER: usize = 100_000_000;

pub(super) struct Header {
    pub(super) entries: BTreeMap<String, Entry>,
    pub(super) metadata: HashMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTensor {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

/// The header as written: repeated names are kept, so that they can be refused.
struct RawHeader {
    tensors: Vec<(String, RawTensor)>,
    metadata: HashMap<String, String>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = RawHeader;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut header = RawHeader { tensors: Vec::new(), metadata: HashMap::new() };
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        header.metadata = map.next_value::<Option<_>>()?.unwrap_or_default();
                    } else {
                        header.tensors.push((name, map.next_value()?));
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Names)
    }
}

/// Reads and checks the header of file number `file`: every tensor has a known type, lies inside the file, is as long as
/// its shape says, and the tensors cover the file without gaps or overlaps.
///
/// Faults that do not hide each other are all added to `faults`. `None` if the header cannot be read at all.
pub(super) fn parse(path: &Path, bytes: &[u8], file: usize, faults: &mut Faults) -> Option<Header> {
    let (raw, base) = match read(path, bytes) {
        Ok(raw) => raw,
        Err(fault) => {
            faults.push(fault);
            return None;
        }
    };
    let length = bytes.len() - base;
    let before = faults.count();
    let mut entries = BTreeMap::new();
    for (name, tensor) in raw.tensors {
        let fault = |fault: String| Error::Tensor { path: path.into(), tensor: name.clone(), fault };
        let (start, end) = tensor.data_offsets;
        match tensor.check(length) {
            Err(what) => faults.push(fault(what)),
            Ok(dtype) => {
                let span = Span { file, start: base + start, end: base + end };
                let entry = Entry { dtype, shape: tensor.shape, gguf: None, span };
                if entries.insert(name.clone(), entry).is_some() {
                    faults.push(fault("is in the header twice".into()));
                }
            }
        }
    }
    // Without the place of every tensor, gaps and overlaps mean nothing.
    if faults.count() == before {
        coverage(path, &entries, base, bytes.len(), faults);
    }
    Some(Header { entries, metadata: raw.metadata })
}

/// The header as written, and where the data starts.
fn read(path: &Path, bytes: &[u8]) -> Result<(RawHeader, usize), Error> {
    let container = |fault: String| Error::container(path, fault);
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(container(format!("{} bytes long, too short for a safetensors file", bytes.len())));
    };
    let length = u64::from_le_bytes(*length);
    let header = usize::try_from(length)
        .ok()
        .filter(|&n| n <= MAX_HEADER)
        .ok_or_else(|| container(format!("header of {length} bytes, the format allows {MAX_HEADER}")))?;
    let text = rest.get(..header).ok_or_else(|| {
        container(format!("header of {header} bytes in a file of {} bytes: truncated", bytes.len()))
    })?;
    let raw = serde_json::from_slice(text).map_err(|e| container(format!("not a safetensors header: {e}")))?;
    Ok((raw, 8 + header))
}

impl RawTensor {
    /// The type of a tensor whose description is true of `length` bytes of data; or what is wrong with it.
    fn check(&self, length: usize) -> Result<TensorDType, String> {
        let dtype =
            TensorDType::from_name(&self.dtype).ok_or_else(|| format!("unknown element type `{}`", self.dtype))?;
        let (start, end) = self.data_offsets;
        let bits = self.shape.iter().try_fold(dtype.bits(), |n, &d| n.checked_mul(d));
        let size = match bits {
            Some(bits) if bits % 8 == 0 => bits / 8,
            _ => return Err(format!("shape {:?} of {dtype} is no whole number of bytes", self.shape)),
        };
        if end.checked_sub(start) != Some(size) {
            return Err(format!(
                "offsets {start}..{end}, but shape {:?} of {dtype} takes {size} bytes",
                self.shape
            ));
        }
        if end > length {
            return Err(format!("ends at byte {end} of the data, the file has {length}: truncated"));
        }
        Ok(dtype)
    }
}

/// Adds a fault for each gap and overlap. `base`: where the data starts in a file of `length` bytes.
fn coverage(path: &Path, entries: &BTreeMap<String, Entry>, base: usize, length: usize, faults: &mut Faults) {
    let mut spans: Vec<_> = entries.iter().map(|(name, entry)| (entry.span.start, entry.span.end, name)).collect();
    spans.sort_unstable();
    let mut covered = base;
    for (start, end, name) in spans {
        if start != covered {
            let what = if start < covered { "overlaps the tensor before it" } else { "leaves a gap before it" };
            let fault = format!("starts at byte {} of the data, expected {}: {what}", start - base, covered - base);
            faults.push(Error::Tensor { path: path.into(), tensor: name.clone(), fault });
        }
        covered = covered.max(end);
    }
    if covered != length {
        let (data, described) = (length - base, covered - base);
        faults.push(Error::container(path, format!("{data} bytes of data, the header describes {described}")));
    }
}
