//! How tensors are spread over files, and the header of each file.
//!
//! Source of the layout: the safetensors format description and the `safetensors` crate, which sorts tensors by
//! falling alignment of their type and then by name, so that every tensor is aligned; and the Hugging Face names
//! `model-00001-of-00002.safetensors` with `model.safetensors.index.json`.

use super::{TensorSpec, WriteError};
use std::collections::{BTreeMap, HashSet};

/// Headers are padded with spaces to a multiple of this.
const HEADER_ALIGNMENT: usize = 8;

/// Where a tensor goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Index into the shards.
    pub(crate) shard: usize,
    /// Offset in the file, header included.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u64,
}

/// A file to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shard {
    /// File name.
    pub(crate) name: String,
    /// The length of the header, and the header.
    pub(crate) header: Vec<u8>,
}

/// The files of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ShardPlan {
    pub(crate) shards: Vec<Shard>,
    /// One for each tensor, in the order of the specs.
    pub(crate) places: Vec<Place>,
    /// The text of `model.safetensors.index.json`, if there is more than one file.
    pub(crate) index: Option<String>,
    /// Bytes of all tensors.
    pub(crate) total_bytes: u64,
}

/// Spreads the tensors over files of at most `max_bytes` of tensor data; a larger tensor gets a file of its own.
/// Tensors are taken in the order of their names, which keeps those of a module together.
pub(crate) fn plan(
    specs: &[TensorSpec],
    max_bytes: u64,
    metadata: &BTreeMap<String, String>,
) -> Result<ShardPlan, WriteError> {
    let mut seen = HashSet::new();
    let lens: Vec<u64> = specs.iter().map(TensorSpec::bytes).collect::<Result<_, _>>()?;
    if let Some(twice) = specs.iter().find(|s| !seen.insert(s.name.as_str())) {
        return Err(WriteError::Duplicate { tensor: twice.name.clone() });
    }
    let mut by_name: Vec<usize> = (0..specs.len()).collect();
    by_name.sort_by_key(|&i| &specs[i].name);

    let mut files: Vec<Vec<usize>> = vec![Vec::new()];
    let mut filled = 0u64;
    let mut total_bytes = 0u64;
    for i in by_name {
        total_bytes =
            total_bytes.checked_add(lens[i]).ok_or(WriteError::TooLarge { tensor: specs[i].name.clone() })?;
        if filled > 0 && filled.saturating_add(lens[i]) > max_bytes {
            files.push(Vec::new());
            filled = 0;
        }
        filled += lens[i];
        if let Some(file) = files.last_mut() {
            file.push(i);
        }
    }

    let count = files.len();
    let mut places = vec![Place { shard: 0, offset: 0, len: 0 }; specs.len()];
    let mut shards = Vec::with_capacity(count);
    for (shard, mut tensors) in files.into_iter().enumerate() {
        tensors.sort_by(|&a, &b| {
            (specs[b].dtype.cmp(&specs[a].dtype)).then_with(|| specs[a].name.cmp(&specs[b].name))
        });
        let header = header(tensors.iter().map(|&i| (&specs[i], lens[i])), metadata);
        let mut offset = header.len() as u64;
        for i in tensors {
            places[i] = Place { shard, offset, len: lens[i] };
            offset += lens[i];
        }
        let name = match count {
            1 => "model.safetensors".to_string(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", shard + 1),
        };
        shards.push(Shard { name, header });
    }

    let index = (count > 1).then(|| {
        let weight_map: BTreeMap<&str, &str> = specs
            .iter()
            .zip(&places)
            .map(|(spec, place)| (spec.name.as_str(), shards[place.shard].name.as_str()))
            .collect();
        let index = serde_json::json!({ "metadata": { "total_size": total_bytes }, "weight_map": weight_map });
        format!("{index:#}\n")
    });
    Ok(ShardPlan { shards, places, index, total_bytes })
}

/// The header of a file: its length as a little-endian u64, then JSON, padded with spaces.
fn header<'a>(
    tensors: impl Iterator<Item = (&'a TensorSpec, u64)>,
    metadata: &BTreeMap<String, String>,
) -> Vec<u8> {
    let mut entries = Vec::new();
    if !metadata.is_empty() {
        entries.push(format!("\"__metadata__\":{}", serde_json::json!(metadata)));
    }
    let mut begin = 0;
    for (spec, len) in tensors {
        let name = serde_json::Value::from(spec.name.as_str());
        let shape = serde_json::Value::from(spec.shape.clone());
        let end = begin + len;
        entries.push(format!(
            "{name}:{{\"dtype\":\"{}\",\"shape\":{shape},\"data_offsets\":[{begin},{end}]}}",
            spec.dtype.name()
        ));
        begin = end;
    }
    let mut json = format!("{{{}}}", entries.join(",")).into_bytes();
    json.resize(json.len().next_multiple_of(HEADER_ALIGNMENT), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    header
}
