//! The input of a whole-model operation: tensors, config.json, and the files beside them.

use crate::{
    Error, ModelError, Source, TensorView,
    companion_files::companion_files,
    progress::Counter,
    write::{CheckpointWriter, TensorSpec},
};
use serde_json::{Map, Value};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Bytes copied at a time.
const COPY_BYTES: usize = 4 << 20;

/// A model that is read.
#[derive(Debug)]
pub(crate) struct ModelInput {
    path: PathBuf,
    source: Source,
    config: Map<String, Value>,
}

impl ModelInput {
    /// Opens a directory or a file, with the config.json of its [`folder`].
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let source = Source::open(path)?;
        let config = match folder(path) {
            Some(folder) => read_config(&folder.join("config.json"))?,
            None => Map::new(),
        };
        Ok(Self { path: path.to_path_buf(), source, config })
    }

    /// Opens a model that is not quantized yet.
    pub(crate) fn open_dense(path: &Path) -> Result<Self, ModelError> {
        let input = Self::open(path)?;
        let already =
            |what: &str| ModelError::AlreadyQuantized { path: path.to_path_buf(), what: what.to_string() };
        for key in ["quantization_config", "compression_config"] {
            if input.config.get(key).is_some_and(|v| !v.is_null()) {
                return Err(already(&format!("config.json has `{key}`")));
            }
        }
        if folder(path).is_some_and(|f| f.join("hf_quant_config.json").exists()) {
            return Err(already("it has an hf_quant_config.json"));
        }
        if input.source.is_gguf() {
            return Err(already("GGUF; the dense safetensors model it was made from is needed"));
        }
        let suffixes = [".weight_packed", ".weight_scale", "._weight_qdata", ".qweight", ".weight_scale_inv"];
        let found = input.tensors().find(|t| suffixes.iter().any(|s| t.name.ends_with(s)));
        match found.map(|t| already(&format!("it has `{}`", t.name))) {
            Some(error) => Err(error),
            None => Ok(input),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// config.json, empty if there is none.
    pub(crate) fn config(&self) -> &Map<String, Value> {
        &self.config
    }

    /// All tensors, by name.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.source.tensors()
    }

    /// A tensor by name.
    pub(crate) fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.source.tensor(name)
    }

    /// Bytes of all tensors.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.tensors().map(|t| t.bytes.len() as u64).sum()
    }
}

/// An error if `target` is the input itself, whose files are mapped.
pub(crate) fn check_target(input: &Path, target: &Path) -> Result<(), ModelError> {
    let folder = folder(input).unwrap_or(input);
    match (folder.canonicalize(), target.canonicalize()) {
        (Ok(input), Ok(output)) if input == output || input.starts_with(&output) => {
            Err(ModelError::InPlace { path: target.to_path_buf() })
        }
        _ => Ok(()),
    }
}

/// Copies the files that belong to the model beside its weights, if the input is a directory.
pub(crate) fn copy_companion_files(input: &Path, writer: &CheckpointWriter) -> Result<(), ModelError> {
    if let Some(folder) = folder(input) {
        for file in companion_files(folder)? {
            writer.copy_file(&folder.join(&file), &file)?;
        }
    }
    Ok(())
}

/// The model's directory: `path` itself, that of an index of shards, or that of a tensor file if there is a configuration
/// beside it. A tensor file without one stands for itself.
pub(crate) fn folder(path: &Path) -> Option<&Path> {
    if path.is_dir() {
        return Some(path);
    }
    let folder = crate::write::parent(path);
    let model = path.to_string_lossy().ends_with(".index.json")
        || ["config.json", "hf_quant_config.json"].iter().any(|name| folder.join(name).is_file());
    model.then_some(folder)
}

/// Reads a config.json; an empty one if there is none.
pub(crate) fn read_config(path: &Path) -> Result<Map<String, Value>, Error> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Map::new()),
        Err(e) => return Err(Error::io(path, e)),
    };
    serde_json::from_slice(&text).map_err(|e| Error::config(path, format!("not a JSON object: {e}")))
}

/// The tensor, to be written as it is.
pub(crate) fn copied_spec(tensor: &TensorView<'_>) -> TensorSpec {
    TensorSpec::new(tensor.name, tensor.dtype, tensor.shape)
}

/// Copies a tensor byte for byte.
pub(crate) fn copy_tensor(
    tensor: &TensorView<'_>,
    writer: &CheckpointWriter,
    counter: &Counter<'_>,
) -> Result<(), ModelError> {
    let mut output = writer.tensor(tensor.name)?;
    for piece in tensor.bytes.chunks(COPY_BYTES) {
        output.write(piece)?;
        counter.add(tensor.name, piece.len() as u64);
    }
    Ok(output.finish()?)
}
