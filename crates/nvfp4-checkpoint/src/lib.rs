//! Reading and writing NVFP4 checkpoints.
#![deny(unsafe_code)]

mod companion_files;
mod dense_matrix;
mod emit;
mod error;
mod fused_groups;
mod layer_error;
mod mapping;
mod model_error;
mod model_input;
mod progress;
pub mod quantize;
pub mod source;
mod tensor_dtype;
pub mod write;

pub use emit::CheckpointFormat;
pub use error::Error;
pub use layer_error::{ErrorMeasures, ErrorSums};
pub use model_error::ModelError;
pub use progress::{Progress, ProgressUpdate};
pub use quantize::quantize;
pub use source::{Source, TensorView};
pub use tensor_dtype::TensorDType;
