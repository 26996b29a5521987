//! Why an operation on a whole model failed.

use crate::{quantize::DenseReason, write::WriteError};
use std::path::PathBuf;

/// Why a whole-model operation failed. Its output does not exist then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The input cannot be read.
    #[error(transparent)]
    Read(#[from] crate::Error),
    /// The output cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A tensor's values or sizes are at fault.
    #[error("tensor `{tensor}`: {source}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// The fault.
        source: nvfp4_core::Error,
    },
    /// The input is quantized already.
    #[error("`{path}` is quantized already ({what}); dequantize it first", path = path.display())]
    AlreadyQuantized {
        /// The input.
        path: PathBuf,
        /// What tells so.
        what: String,
    },
    /// The input holds nothing that could be quantized.
    #[error(
        "`{path}` holds no linear module to quantize: a two-dimensional `*.weight` in bf16, f16 or f32{hint}",
        path = path.display()
    )]
    NothingToQuantize {
        /// The input.
        path: PathBuf,
        /// What was left dense, and why.
        hint: String,
    },
    /// The input holds no NVFP4 module.
    #[error("`{path}` holds no NVFP4 module", path = path.display())]
    NotQuantized {
        /// The input.
        path: PathBuf,
    },
    /// The caller asked for a module to be quantized that cannot be.
    #[error("module `{module}` was asked to be quantized, which is impossible: {reason}")]
    Impossible {
        /// The module.
        module: String,
        /// Why.
        reason: DenseReason,
    },
    /// A module has no input scale in the calibration data.
    #[error(
        "{path}: no calibration for module `{module}`: expected a scalar `{module}.input_amax` or activations \
         `{module}.input`; {missing} of {modules} modules have none",
        path = path.display()
    )]
    NotCalibrated {
        /// The calibration file.
        path: PathBuf,
        /// The first module without.
        module: String,
        /// Modules without.
        missing: usize,
        /// Modules to be quantized.
        modules: usize,
    },
    /// The calibration data is at fault.
    #[error("{path}: tensor `{tensor}`: {fault}", path = path.display())]
    Calibration {
        /// The calibration file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The fault.
        fault: String,
    },
    /// The output format cannot express a module of the input.
    #[error("module `{module}` cannot be written: {reason}")]
    Inexpressible {
        /// The module.
        module: String,
        /// Why.
        reason: String,
    },
    /// A value is too large for the type that is written.
    #[error("tensor `{tensor}`: value at row {row}, column {column} is {found}, too large for {dtype}")]
    DoesNotFit {
        /// The tensor.
        tensor: String,
        /// Row.
        row: usize,
        /// Column.
        column: usize,
        /// The value.
        found: f32,
        /// The type.
        dtype: nvfp4_core::DType,
    },
    /// The output and the input are the same directory.
    #[error("the output `{path}` is the input; choose another", path = path.display())]
    InPlace {
        /// The directory.
        path: PathBuf,
    },
}

impl ModelError {
    /// For `map_err`: a fault in the values or sizes of `tensor`.
    pub(crate) fn in_tensor(tensor: &str) -> impl FnOnce(nvfp4_core::Error) -> Self + '_ {
        move |source| Self::Tensor { tensor: tensor.to_string(), source }
    }
}
