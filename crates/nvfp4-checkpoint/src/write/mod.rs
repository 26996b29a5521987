//! Writing checkpoints: safetensors files, in a directory that is either complete or absent.

mod output_directory;
mod shards;
mod writer;

#[cfg(test)]
mod tests;

pub(crate) use output_directory::parent;
pub use writer::{CheckpointWriter, DEFAULT_SHARD_BYTES, TensorWriter, WriteOptions, WriteSummary};

use crate::TensorDType;
use std::{
    io,
    path::{Path, PathBuf},
};

/// A tensor to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorSpec {
    /// Full name, e.g. `model.layers.0.mlp.down_proj.weight`.
    pub name: String,
    /// Element type.
    pub dtype: TensorDType,
    /// Shape in elements; empty for a scalar.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// A tensor of this name, type and shape.
    pub fn new(name: impl Into<String>, dtype: TensorDType, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), dtype, shape: shape.into() }
    }

    /// Bytes of the tensor.
    pub fn bytes(&self) -> Result<u64, WriteError> {
        let bits = self
            .shape
            .iter()
            .try_fold(self.dtype.bits() as u64, |bits, &dim| bits.checked_mul(dim as u64))
            .ok_or_else(|| WriteError::TooLarge { tensor: self.name.clone() })?;
        Ok(bits.div_ceil(8))
    }
}

/// Why an output could not be written. Nothing of it is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The operating system refused.
    #[error("cannot {action} `{path}`: {source}", path = path.display())]
    Io {
        /// What was tried, e.g. `create`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Its answer.
        source: io::Error,
    },
    /// The operating system refused to take the bytes of a tensor, e.g. because the disk is full.
    #[error("cannot write tensor `{tensor}` to `{path}`: {source}", path = path.display())]
    Tensor {
        /// The tensor.
        tensor: String,
        /// The file.
        path: PathBuf,
        /// Its answer.
        source: io::Error,
    },
    /// The target exists and was not to be replaced.
    #[error("`{path}` exists; choose another output, remove it, or ask for it to be replaced", path = path.display())]
    Exists {
        /// The target.
        path: PathBuf,
    },
    /// The target was to be replaced, but it is not a checkpoint.
    #[error(
        "`{path}` exists and is not replaced, because it is not a directory that holds a safetensors or GGUF file",
        path = path.display()
    )]
    NotACheckpoint {
        /// The target.
        path: PathBuf,
    },
    /// The target has no name, e.g. `/` or `..`.
    #[error("`{path}` does not name a directory that can be created", path = path.display())]
    NoName {
        /// The target.
        path: PathBuf,
    },
    /// Two declared tensors have the same name.
    #[error("tensor `{tensor}` is declared twice")]
    Duplicate {
        /// The name.
        tensor: String,
    },
    /// A tensor is written that was not declared, or twice.
    #[error("tensor `{tensor}` {what}")]
    Undeclared {
        /// The name.
        tensor: String,
        /// The fault.
        what: &'static str,
    },
    /// A tensor's bytes do not fill its shape, or overflow it.
    #[error("tensor `{tensor}`: its shape asks for {expected} bytes, {found} were given")]
    WrongSize {
        /// The name.
        tensor: String,
        /// Bytes that type and shape ask for.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// A declared tensor was not written.
    #[error("tensor `{tensor}` was declared and not written")]
    Incomplete {
        /// The name.
        tensor: String,
    },
    /// A size does not fit 64 bits.
    #[error("tensor `{tensor}`: its size overflows")]
    TooLarge {
        /// The name.
        tensor: String,
    },
}

impl WriteError {
    /// For `map_err`: an error of the operating system when it was asked to do `action` with `path`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }
}
