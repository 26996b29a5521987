//! The header of a safetensors file: 8 bytes of length, JSON, then the tensors without gaps.

use super::{Entry, Span};
use crate::{Error, TensorDType};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use std::{collections::HashMap, fmt, path::Path};

/// The format's own limit on the header (`safetensors` crate, `MAX_HEADER_SIZE`).
const MAX_HEADER: usize = 100_000_000;

pub(super) struct Header {
    pub(super) entries: Vec<(String, Entry)>,
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
pub(super) fn parse(path: &Path, bytes: &[u8], file: usize) -> Result<Header, Error> {
    let container = |fault: String| Error::container(path, fault);
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(container(format!("{} bytes long, too short for a safetensors file", bytes.len())));
    };
    let length = u64::from_le_bytes(*length);
    let header = usize::try_from(length)
        .ok()
        .filter(|&n| n <= MAX_HEADER)
        .ok_or_else(|| container(format!("header of {length} bytes, the format allows {MAX_HEADER}")))?;
    let Some((text, data)) = rest.split_at_checked(header) else {
        return Err(container(format!("header of {header} bytes in a file of {} bytes: truncated", bytes.len())));
    };
    let raw: RawHeader =
        serde_json::from_slice(text).map_err(|e| container(format!("not a safetensors header: {e}")))?;

    let mut entries = Vec::with_capacity(raw.tensors.len());
    let mut spans = Vec::with_capacity(raw.tensors.len());
    for (name, tensor) in raw.tensors {
        let fault = |fault: String| Error::Tensor { path: path.into(), tensor: name.clone(), fault };
        let dtype = TensorDType::from_name(&tensor.dtype)
            .ok_or_else(|| fault(format!("unknown element type `{}`", tensor.dtype)))?;
        let (start, end) = tensor.data_offsets;
        let bits = tensor.shape.iter().try_fold(dtype.bits(), |n, &d| n.checked_mul(d));
        let size = match bits {
            Some(bits) if bits % 8 == 0 => bits / 8,
            _ => return Err(fault(format!("shape {:?} of {dtype} is no whole number of bytes", tensor.shape))),
        };
        if end.checked_sub(start) != Some(size) {
            return Err(fault(format!(
                "offsets {start}..{end}, but shape {:?} of {dtype} takes {size} bytes",
                tensor.shape
            )));
        }
        if end > data.len() {
            return Err(fault(format!("ends at byte {end} of the data, the file has {}: truncated", data.len())));
        }
        spans.push((start, end, name.clone()));
        let base = 8 + header;
        let span = Span { file, start: base + start, end: base + end };
        entries.push((name, Entry { dtype, shape: tensor.shape, nvfp4_row: None, span }));
    }

    let mut names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let fault = "is in the header twice".to_string();
        return Err(Error::Tensor { path: path.into(), tensor: pair[0].into(), fault });
    }
    spans.sort();
    let mut covered = 0;
    for (start, end, name) in spans {
        if start != covered {
            let what = if start < covered { "overlaps the tensor before it" } else { "leaves a gap before it" };
            let fault = format!("starts at byte {start} of the data, expected {covered}: {what}");
            return Err(Error::Tensor { path: path.into(), tensor: name, fault });
        }
        covered = end;
    }
    if covered != data.len() {
        return Err(container(format!("{} bytes of data, the header describes {covered}", data.len())));
    }
    Ok(Header { entries, metadata: raw.metadata })
}
