//! What can be wrong with a checkpoint that is read.

use std::path::{Path, PathBuf};

/// A fault of a checkpoint. Every variant names the file or the tensor, what was found and what was expected.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be opened, mapped or read.
    #[error("`{}`: {reason}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// A container's header or index is not what its format says.
    #[error("`{}`: {fault}", path.display())]
    Container {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: String,
    },
    /// A configuration file is not what its ecosystem writes.
    #[error("`{}`: {fault}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: String,
    },
    /// A tensor has the wrong type, shape or values.
    #[error("`{}`: tensor `{tensor}`: {fault}", path.display())]
    Tensor {
        /// The file that holds it.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong, and what was expected.
        fault: String,
    },
    /// The values or sizes of a tensor are wrong.
    #[error("`{}`: tensor `{tensor}`: {source}", path.display())]
    Values {
        /// The file that holds it.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The fault.
        source: nvfp4_core::Error,
    },
    /// A tensor that a module needs is not there.
    #[error("module `{module}`: tensor `{tensor}` is missing; {why}")]
    MissingTensor {
        /// The module.
        module: String,
        /// The tensor.
        tensor: String,
        /// Why it is needed.
        why: String,
    },
    /// There is no such module.
    #[error("there is no linear module `{module}`{}", similar(near))]
    NoModule {
        /// The name asked for.
        module: String,
        /// Names like it that exist.
        near: Vec<String>,
    },
    /// The module is not NVFP4.
    #[error("module `{module}` is {found}, not NVFP4{hint}")]
    NotNvFp4 {
        /// The module.
        module: String,
        /// What it is.
        found: String,
        /// What to do, starting with a separator; may be empty.
        hint: String,
    },
    /// Parts of a fused module are quantized differently.
    #[error("parts of `{module}` are quantized differently: {parts}; a fused layer needs one scheme")]
    MixedParts {
        /// The fused module.
        module: String,
        /// Each part with its scheme.
        parts: String,
    },
    /// The configuration says one thing about a module, its tensors another.
    #[error("module `{module}`: the configuration says {config}, its tensors say {tensors}")]
    Contradiction {
        /// The module.
        module: String,
        /// What the configuration says.
        config: String,
        /// What the tensors say.
        tensors: String,
    },
    /// The module is NVFP4 in a form that cannot be loaded.
    #[error("module `{module}`: {reason}")]
    Unsupported {
        /// The module.
        module: String,
        /// Why.
        reason: String,
    },
    /// A layer cannot be divided among ranks as asked.
    #[error("module `{module}`: {reason}")]
    Shard {
        /// The module.
        module: String,
        /// Why.
        reason: String,
    },
}

fn similar(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; there are: {}", near.join(", ")) }
}

impl Error {
    pub(crate) fn io(path: &Path, error: impl std::fmt::Display) -> Self {
        Self::Io { path: path.into(), reason: error.to_string() }
    }
    pub(crate) fn container(path: &Path, fault: impl Into<String>) -> Self {
        Self::Container { path: path.into(), fault: fault.into() }
    }
    pub(crate) fn config(path: &Path, fault: impl Into<String>) -> Self {
        Self::Config { path: path.into(), fault: fault.into() }
    }
}
