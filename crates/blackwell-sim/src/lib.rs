//! A software CUDA device for tests: it runs the PTX of kernels that are meant for NVIDIA Blackwell GPUs on the CPU, and says what is
//! wrong with them better than a GPU does.
//!
//! * [`number`]: every float format, rounding mode and conversion, bit for bit;
//! * [`matrix`]: the tensor core instructions, on values;
//! * [`tensor_map`]: the descriptors of bulk tensor copies.

pub mod matrix;
pub mod number;
pub mod tensor_fault;
pub mod tensor_map;
