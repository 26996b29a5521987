//! Reading and writing NVFP4 checkpoints.
#![deny(unsafe_code)]

mod error;
mod mapping;
pub mod source;
mod tensor_dtype;
pub mod write;

pub use error::Error;
pub use source::{Source, TensorView};
pub use tensor_dtype::TensorDType;
