//! Reading and writing NVFP4 checkpoints.
#![deny(unsafe_code)]

pub mod checkpoint;
mod companion_files;
pub mod config;
pub mod convert;
mod dense_matrix;
pub mod dequantize;
mod emit;
mod error;
mod fused_groups;
mod layer;
mod layer_error;
mod mapping;
mod model_error;
mod model_input;
mod nvfp4_modules;
mod progress;
pub mod quantize;
mod resolve;
pub mod shard;
pub mod source;
mod tensor_dtype;
pub mod verify;
pub mod vllm_scales;
pub mod write;

pub use checkpoint::{Checkpoint, Dialect, Module, NanScales, OpenOptions, StoredScales, Warning};
pub use config::QuantizationConfig;
pub use convert::convert;
pub use dequantize::dequantize;
pub use emit::CheckpointFormat;
pub use error::Error;
pub use layer_error::{ErrorMeasures, ErrorSums};
pub use model_error::ModelError;
pub use progress::{Progress, ProgressUpdate};
pub use quantize::quantize;
pub use resolve::Scheme;
pub use source::{Source, TensorView};
pub use tensor_dtype::TensorDType;
pub use verify::verify;
