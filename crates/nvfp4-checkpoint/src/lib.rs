//! Reading and writing NVFP4 checkpoints.
//!
//! [`Checkpoint`] opens one of any dialect (ModelOpt, compressed-tensors, torchao, GGUF) and gives its linear layers.
//! Whole models are worked on by [`quantize()`] (dense to ModelOpt or compressed-tensors), [`convert()`] (any dialect to
//! either), [`dequantize()`] (any dialect to dense) and [`verify()`] (every fault, by tensor, row and column). Their
//! output is a directory that is either complete or absent; tensors stream through, so that the size of the model does
//! not matter.
//!
//! ```
//! use nvfp4_checkpoint::{
//!     Checkpoint, CheckpointFormat, TensorDType, quantize,
//!     quantize::QuantizeOptions,
//!     write::{CheckpointWriter, TensorSpec, WriteOptions},
//! };
//! # let folder = tempfile::tempdir()?;
//! # let (dense, quantized) = (folder.path().join("dense"), folder.path().join("nvfp4"));
//! // A dense model of one layer.
//! let spec = TensorSpec::new("mlp.down_proj.weight", TensorDType::F32, [8, 32]);
//! let writer = CheckpointWriter::create(&dense, &[spec], &WriteOptions::default())?;
//! let weights: Vec<u8> = (0..256).flat_map(|i| (i as f32 - 128.0).to_le_bytes()).collect();
//! writer.write_tensor("mlp.down_proj.weight", &weights)?;
//! writer.finish()?;
//!
//! let report = quantize(&dense, &quantized, &QuantizeOptions::new(CheckpointFormat::ModelOpt), &())?;
//! assert!(report.layers[0].error.relative_error < 0.1);
//! let layer = Checkpoint::open(&quantized)?.linear("mlp.down_proj")?.weights.into_owned();
//! assert_eq!((layer.out_features(), layer.in_features()), (8, 32));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

pub mod checkpoint;
mod companion_files;
pub mod config;
pub mod convert;
mod dense_matrix;
pub mod dequantize;
mod emit;
mod error;
mod foreign_format;
mod fused_groups;
mod gguf;
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
pub use resolve::{Contradiction, Scheme};
pub use source::{Source, TensorView};
pub use tensor_dtype::TensorDType;
pub use verify::verify;
