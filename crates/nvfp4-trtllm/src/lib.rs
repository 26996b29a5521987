//! The TensorRT-LLM-gen FP4 GEMMs as a backend of `nvfp4`: NVIDIA's precompiled kernels for SM100 and SM103, launched
//! from Rust.
//!
//! The kernels exist as machine code only, in the PyPI package `flashinfer-cubin`. `cargo xtask fetch --backend trtllm`
//! brings the 34 that multiply NVFP4 by NVFP4 and makes the pack. All that the vendor's host code does around them is here
//! as pure functions, and is compared with that code byte for byte:
//!
//! * [`tactic`]: the kernels, as data;
//! * [`choice`]: which of them run a problem, and in which order they are tried;
//! * [`launch`]: grid, tensor maps and parameter block of a launch;
//! * [`weights`]: the shuffled layout;
//! * [`plan`]: the layout of activations and workspace.
//!
//! [`TrtllmNvFp4LinearKernel`] puts the driver's calls on top.

pub mod choice;
pub mod kernel;
pub mod launch;
mod loaded;
pub mod plan;
pub mod tactic;
pub mod weights;

pub use kernel::TrtllmNvFp4LinearKernel;
pub use loaded::{BACKEND, REVISION, TARGET};
