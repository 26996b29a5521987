//! A software CUDA device for tests: it runs the PTX of kernels that are meant for NVIDIA Blackwell GPUs on the CPU, and says what is
//! wrong with them better than a GPU does.
//!
//! * [`number`]: every float format, rounding mode and conversion, bit for bit;
//! * [`matrix`]: the tensor core instructions, on values;
//! * [`tensor_map`]: the descriptors of bulk tensor copies;
//! * [`ptx`]: PTX text's syntax tree and parser;
//! * `driver` (Linux): the CUDA driver API over all this, which [`install`] puts into a folder as `libcuda.so.1`;
//! * [`image`]: the modules that programs load, and the PTX in them;
//! * [`profile`]: the devices that can be presented;
//! * [`memory`]: device memory;
//! * [`program`]: modules, made ready to run on a device;
//! * [`machine`]: loaded modules, and running their kernels;
//! * [`launch`]: how a kernel is launched;
//! * [`fault`]: what is wrong with a kernel, and where.

#[cfg(target_os = "linux")]
mod driver;
mod exec;
pub mod fault;
pub mod image;
mod install;
pub mod launch;
mod lower;
pub mod machine;
pub mod matrix;
pub mod memory;
pub mod number;
pub mod profile;
pub mod program;
pub mod ptx;
pub mod tensor_fault;
pub mod tensor_map;

pub use install::{LIBRARY, install};
