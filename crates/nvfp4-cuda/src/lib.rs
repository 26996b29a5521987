//! What the CUDA backends of `nvfp4` share: the driver, devices, streams and graphs, device memory, kernel packs,
//! launches, and activation quantization on the GPU.
//!
//! The driver is loaded at run time; nothing is linked, and no toolkit is needed to build. Ask [`driver_version`] first:
//! it never panics, also where there is no driver.
//!
//! | host idea | here |
//! | --- | --- |
//! | a thread pool | [`StreamRef`], the caller's stream |
//! | a slice | [`DeviceMatrix`], [`DeviceVector`], [`DeviceBytesMut`]: an address with a lifetime |
//! | a `Vec<u8>` | [`DeviceBuffer`] |
//! | a shared library | a kernel [`pack`] |
//! | a recorded call list | [`Graph`] |

pub mod codec_check;
pub mod cute_dsl;
pub mod device;
pub mod epilogue;
pub mod error;
pub mod launch;
pub mod measure;
pub mod memory;
pub mod pack;
pub mod probe;
pub mod quantize;
pub mod self_test;
pub mod stream;
pub mod swizzled;
pub mod tensor_map;
pub mod tuner;

pub use device::Device;
pub use epilogue::Epilogue;
pub use error::CudaError;
pub use launch::{Kernel, LaunchConfig, Module};
pub use memory::{Cuda, DeviceBuffer, DeviceBytesMut, DeviceMatrix, DeviceMatrixMut, DeviceVector};
pub use probe::{device_count, driver_version};
pub use quantize::Quantizer;
pub use stream::{Event, Graph, Stream, StreamRef};
pub use swizzled::SwizzledWeights;
pub use tensor_map::{TensorMap, TensorMapSpec};
pub use tuner::{Tuned, Tuner, TuningKey};
