//! NVFP4 linear layers.
//!
//! An NVFP4 linear layer computes `y = x · Wᵀ + b` with 4-bit weights: e2m1 codes, one e4m3 scale for each 16 values
//! along the input dimension, and f32 global scales.

mod explain;
mod known_gpus;
mod linear;
mod options;
mod plans;
mod policy_env;
mod quantize_activation;
mod registry;
mod workspace;

pub use explain::Explanation;
pub use known_gpus::{KNOWN_GPUS, KnownGpus, UnknownGpu, gpu};
pub use linear::{Linear, LoadError};
pub use nvfp4_core::{
    // The layer and its tensors.
    ActivationScale,
    ActivationScheme,
    // Constants of the format.
    BLOCK_SIZE,
    // Who runs what.
    ComputeCapability,
    CpuFacts,
    CudaFacts,
    DType,
    Decision,
    DecodeScale,
    DeviceFacts,
    E2M1_MAX,
    E4M3_MAX,
    EncodeScale,
    // What can be wrong.
    Error,
    FloatSlice,
    FloatSliceMut,
    GlobalScale,
    GlobalScales,
    // The backends.
    Host,
    KernelId,
    KernelSupport,
    LinearPlan,
    LinearScales,
    MatrixMut,
    MatrixRef,
    Memory,
    NvFp4LinearKernel,
    NvFp4LinearLayer,
    NvFp4LinearLayerConfig,
    NvFp4Weights,
    Policy,
    PreparedWeights,
    QuantKey,
    QuantizedActivation,
    ScaleLayout,
    SwizzledScales,
    Unsupported,
    WeightScaleKind,
    as_quantized_activation,
    // The rest, by subject.
    block_scale,
    dequantize,
    e2m1,
    e4m3,
    kernel,
    pack,
    padding,
    preference,
    quantize,
    quantize_weight,
    requirements,
    select,
    shuffle,
    swizzle_blockscale,
    vllm,
    w4a16,
};
pub use options::LinearOptions;
pub use plans::row_bucket;
pub use policy_env::{BACKEND_VARIABLE, DISABLE_VARIABLE, PolicyError};
pub use registry::{Placement, Registry, explain};
pub use workspace::WorkspacePool;

#[cfg(feature = "checkpoint")]
pub use nvfp4_checkpoint as checkpoint;
#[cfg(feature = "cpu")]
pub use nvfp4_cpu as cpu;

/// The CPU of this machine.
pub fn host_device() -> DeviceFacts {
    DeviceFacts::Cpu(host_cpu())
}

/// The facts of [`host_device`].
#[cfg(feature = "cpu")]
pub fn host_cpu() -> CpuFacts {
    nvfp4_cpu::facts()
}

/// The facts of [`host_device`].
#[cfg(not(feature = "cpu"))]
pub fn host_cpu() -> CpuFacts {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    CpuFacts::new(std::env::consts::ARCH, Vec::new(), threads)
}
