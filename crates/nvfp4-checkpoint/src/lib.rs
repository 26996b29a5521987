//! Reading and writing NVFP4 checkpoints.
#![forbid(unsafe_code)]

mod tensor_dtype;
pub mod write;

pub use tensor_dtype::TensorDType;
