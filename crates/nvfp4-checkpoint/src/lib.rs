//! Reading and writing NVFP4 checkpoints.
#![deny(unsafe_code)]

pub mod checkpoint;
mod companion_files;
pub mod config;
mod dense_matrix;
mod emit;
mod error;
mod fused_groups;
mod layer;
mod layer_error;
mod mapping;
mod model_error;
mod model_input;
mod progress;
pub mod quantize;
mod resolve;
pub mod shard;
pub mod source;
mod tensor_dtype;
pub mod vllm_scales;
pub mod write;

pub use checkpoint::{Checkpoint, Dialect, Module, NanScales, OpenOptions, StoredScales, Warning};
pub use config::QuantizationConfig;
pub use emit::CheckpointFormat;
pub use error::Error;
pub use layer_error::{ErrorMeasures, ErrorSums};
pub use model_error::ModelError;
pub use progress::{Progress, ProgressUpdate};
pub use quantize::quantize;
pub use resolve::Scheme;
pub use source::{Source, TensorView};
pub use tensor_dtype::TensorDType;
