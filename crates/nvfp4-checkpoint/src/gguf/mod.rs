//! The GGUF file format: its header and its types of tensors.
//!
//! Source: ggml's `docs/gguf.md`, `gguf.cpp` and `ggml-common.h`.

mod header;
mod types;

pub(crate) use header::{Header, Tensor, is_gguf, parse};
pub(crate) use types::{GgufType, NVFP4};
