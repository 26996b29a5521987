//! Which files a path stands for.

use super::{Faults, Mapped};
use crate::{Error, gguf};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Name of the index of a sharded checkpoint.
const INDEX: &str = "model.safetensors.index.json";

/// The files of a checkpoint, mapped.
pub(super) enum Files {
    Gguf(Mapped),
    Safetensors(Vec<Mapped>),
    /// Those that the index names, but for those that cannot be read.
    Shards {
        files: Vec<Mapped>,
        index: PathBuf,
        weight_map: BTreeMap<String, String>,
    },
}

impl Files {
    /// Maps the files of `path`. Shards that cannot be read are added to `faults`; the error is for everything else.
    pub(super) fn find(path: &Path, faults: &mut Faults) -> Result<Self, Error> {
        let meta = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
        if meta.is_dir() {
            return Self::in_directory(path, faults);
        }
        if path.to_string_lossy().ends_with(".index.json") {
            return Self::of_index(path, faults);
        }
        Self::one(path)
    }

    fn one(path: &Path) -> Result<Self, Error> {
        let file = Mapped::open(path)?;
        Ok(match gguf::is_gguf(file.bytes()) || path.extension().is_some_and(|e| e == "gguf") {
            true => Self::Gguf(file),
            false => Self::Safetensors(vec![file]),
        })
    }

    fn in_directory(directory: &Path, faults: &mut Faults) -> Result<Self, Error> {
        let index = directory.join(INDEX);
        if index.is_file() {
            return Self::of_index(&index, faults);
        }
        let mut found = Vec::new();
        for entry in std::fs::read_dir(directory).map_err(|e| Error::io(directory, e))? {
            let path = entry.map_err(|e| Error::io(directory, e))?.path();
            if path.extension().is_some_and(|e| e == "safetensors" || e == "gguf") && path.is_file() {
                found.push(path);
            }
        }
        found.sort();
        let model = directory.join("model.safetensors");
        match found.as_slice() {
            _ if found.contains(&model) => Self::one(&model),
            [only] => Self::one(only),
            [] => Err(Error::container(
                directory,
                format!("no checkpoint here: expected model.safetensors, {INDEX} or a .gguf file"),
            )),
            [first, ..] => Err(Error::container(
                directory,
                format!(
                    "{} weight files ({} …) and neither model.safetensors nor {INDEX}: open one of them by name",
                    found.len(),
                    first.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
                ),
            )),
        }
    }

    fn of_index(index: &Path, faults: &mut Faults) -> Result<Self, Error> {
        #[derive(serde::Deserialize)]
        struct Index {
            weight_map: BTreeMap<String, String>,
        }
        let text = std::fs::read(index).map_err(|e| Error::io(index, e))?;
        let Index { weight_map } = serde_json::from_slice(&text)
            .map_err(|e| Error::container(index, format!("not an index of shards: {e}")))?;
        let directory = index.parent().unwrap_or(Path::new("."));
        let mut shards: Vec<&String> = weight_map.values().collect();
        shards.sort();
        shards.dedup();
        let mut files = Vec::new();
        for shard in shards {
            let plain = !shard.is_empty() && Path::new(shard).file_name().is_some_and(|n| n == shard.as_str());
            if !plain {
                faults.push(Error::container(index, format!("shard `{shard}` is not a plain file name")));
                continue;
            }
            match Mapped::open(&directory.join(shard)) {
                Ok(file) => files.push(file),
                Err(Error::Io { path, reason }) => faults.push(Error::container(
                    index,
                    format!("names shard `{}`, which cannot be read: {reason}", path.display()),
                )),
                Err(other) => faults.push(other),
            }
        }
        Ok(Self::Shards { files, index: index.into(), weight_map })
    }
}
