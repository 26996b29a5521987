//! NVFP4 linear layers for Rust: load a checkpoint, let the library choose a kernel and say why, and run it.
//!
//! An NVFP4 linear layer computes `y = x · Wᵀ + b`. Its weights are 4-bit e2m1 codes with one e4m3 scale for each 16
//! values along the input dimension and one f32 global scale (or one for each part of a fused layer). The activations
//! `x` are quantized to NVFP4 on the fly (W4A4) or kept as they are (W4A16).
//!
//! # Load and run
//!
//! ```
//! # #[cfg(all(feature = "cpu", feature = "checkpoint"))] {
//! use nvfp4::{DType, Linear, LinearOptions, MatrixMut, MatrixRef, checkpoint::Checkpoint};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../nvfp4-testkit/golden/ckpt_modelopt");
//! // ModelOpt, compressed-tensors, torchao or GGUF, memory-mapped.
//! let checkpoint = Checkpoint::open(path)?;
//! // Make the options once: layers that are loaded with them share scratch memory.
//! let options = LinearOptions::new().with_dtypes(DType::F32, DType::F32);
//! let linear = Linear::load(&checkpoint.linear("model.layers.0.mlp.down_proj")?, &options)?;
//! println!("{}", linear.decision()); // the kernel that was chosen, and why not the others
//!
//! let (m, k, n) = (3, linear.in_features(), linear.out_features());
//! let (x, mut y) = (vec![0.5f32; m * k], vec![0.0f32; m * n]);
//! linear.forward(MatrixRef::new(&x[..], m, k)?, MatrixMut::new(&mut y[..], m, n)?)?;
//! # assert!(y.iter().all(|v| v.is_finite()) && y.iter().any(|v| *v != 0.0));
//!
//! // Any leading dimensions:
//! linear.forward_nd((&x[..]).into(), &[1, 3, k], (&mut y[..]).into())?;
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Several layers with one input (q, k and v; gate and up) need not quantize it several times:
//!
//! ```
//! # #[cfg(all(feature = "cpu", feature = "checkpoint"))] {
//! # use nvfp4::{DType, Linear, LinearOptions, MatrixMut, MatrixRef, checkpoint::Checkpoint};
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../nvfp4-testkit/golden/ckpt_ct");
//! # let checkpoint = Checkpoint::open(path)?;
//! # let options = LinearOptions::new().with_dtypes(DType::F32, DType::F32);
//! let load = |name: &str| -> Result<Linear, Box<dyn std::error::Error>> {
//!     Ok(Linear::load(&checkpoint.linear(&format!("model.layers.0.self_attn.{name}"))?, &options)?)
//! };
//! let (q, k) = (load("q_proj")?, load("k_proj")?);
//! let x = vec![0.5f32; 2 * q.in_features()];
//! let (mut yq, mut yk) = (vec![0.0f32; 2 * q.out_features()], vec![0.0f32; 2 * k.out_features()]);
//!
//! let quantized = q.quantize(MatrixRef::new(&x[..], 2, q.in_features())?)?;
//! q.forward_quantized(&quantized, MatrixMut::new(&mut yq[..], 2, q.out_features())?)?;
//! k.forward_quantized(&quantized, MatrixMut::new(&mut yk[..], 2, k.out_features())?)?;
//! # assert!(yq.iter().chain(&yk).all(|v| v.is_finite()));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Ask what would run, and why
//!
//! Selection is a pure function of device, layer and policy. It can be asked about GPUs that are not here, and says of
//! every backend why it was taken or not:
//!
//! ```
//! use nvfp4::{NvFp4LinearLayerConfig, Policy};
//! let layer = NvFp4LinearLayerConfig::w4a4(4096, 14336);
//! println!("{}", nvfp4::explain(&nvfp4::gpu("DGX Spark")?, &layer, &Policy::default()));
//! # Ok::<(), nvfp4::UnknownGpu>(())
//! ```
//!
//! `NVFP4_BACKEND=name` forces a backend and `NVFP4_DISABLE=a,b` switches some off, without a change of code; a
//! [`Policy`] given to [`LinearOptions::with_policy`] does the same in code, and then the environment is not read. What is
//! forced is never replaced by something else, and a layer leaves the device that was asked for only where
//! [`LinearOptions::with_cpu_fallback`] allows it.
//!
//! # Bring your own engine
//!
//! [`Linear`] keeps plans and scratch memory for you. An engine that has its own ideas about both uses the backend
//! itself, in the four steps that [`kernel`] describes:
//!
//! ```
//! # #[cfg(feature = "cpu")] {
//! use nvfp4::{
//!     DType, GlobalScale, GlobalScales, LinearScales, MatrixMut, MatrixRef, NvFp4LinearLayerConfig, NvFp4Weights,
//!     Policy, Registry, host_device, kernel::LinearInput,
//! };
//!
//! let config = NvFp4LinearLayerConfig::w4a16(8, 32).with_dtypes(DType::F32, DType::F32);
//! let registry = Registry::installed();
//! let decision = registry.select(&host_device(), &config, &Policy::default())?;
//! let kernel = registry.kernel(decision.chosen).ok_or("chosen backends that run in host memory are here")?;
//!
//! // Checkpoint weights -> prepared, once.
//! let scales = LinearScales::new(8, 2, vec![0x38; 16])?;
//! let global = GlobalScales::per_tensor(8, GlobalScale::from_decode(0.5)?);
//! let weights = NvFp4Weights::new(8, 32, vec![0x22; 128], scales, global)?;
//! let prepared = kernel.process_weights_after_loading(&(), &decision.config, &weights)?;
//! // Prepared -> planned for up to 4 rows; the plan says how much scratch memory it needs.
//! let plan = kernel.plan(&decision.config, &prepared, None, 4)?;
//! let mut workspace = vec![0u64; plan.workspace_size().div_ceil(8)];
//! // Planned -> applied, as often as you like.
//! let (x, mut y) = ([1.0f32; 32], [0.0f32; 8]);
//! let x = LinearInput::Matrix(MatrixRef::new(&x[..], 1, 32)?);
//! plan.apply_weights((), x, None, MatrixMut::new(&mut y[..], 1, 8)?, &mut workspace)?;
//! assert_eq!(y, [16.0; 8]);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A backend of your own implements [`KernelSupport`] (who can run what) and [`NvFp4LinearKernel`] (run it), and is
//! added with [`Registry::with_kernel`]; it is then chosen, explained and run like any other.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! | --- | --- | --- |
//! | `cpu` | yes | the backend `cpu`: multi-threaded, any CPU, W4A4 and W4A16 |
//! | `checkpoint` | yes | `nvfp4::checkpoint`: reads and writes ModelOpt and compressed-tensors checkpoints, reads torchao and GGUF |
//!
//! | `cuda` | no | `nvfp4::cuda` and `CudaLinear`: devices, streams, device memory, kernel packs, layers on a GPU |
//! | `trtllm` | no | the backend `trtllm`: TensorRT-LLM-gen kernels for SM100 and SM103 (W4A4, bf16); implies `cuda` |
//!
//! Nothing of CUDA is linked or needed to build; the driver is loaded when a device is asked for. Kernels come in packs that are made
//! with `cargo xtask build-kernels` and found at run time. Without features there are the format, the layouts, the contract and
//! selection. The GPU backends `cutlass`, `cudnn`, `cutedsl`, `b12x` and `w4a16` are described and explained, but are not part of
//! this release.
//!
//! # Names
//!
//! | vLLM, FlashInfer | here |
//! | --- | --- |
//! | `init_nvfp4_linear_kernel` | [`Registry::select`], [`Linear::load`] |
//! | `NvFp4LinearKernel.is_supported`, `can_implement`, `input_quant_key` | [`KernelSupport`] |
//! | `NvFp4LinearKernel.process_weights_after_loading`, `apply_weights` | [`NvFp4LinearKernel`], [`LinearPlan::apply_weights`] |
//! | `NvFp4LinearLayerConfig` | [`NvFp4LinearLayerConfig`] |
//! | `--linear-backend` | `NVFP4_BACKEND`, [`select::Choice::Force`] |
//! | `QuantKey`, `QuantizedActivation`, `as_quantized_activation` | [`QuantKey`], [`QuantizedActivation`], [`as_quantized_activation`] |
//! | `scaled_fp4_quant`, `nvfp4_quantize` | [`quantize::scaled_fp4_quant`], [`Linear::quantize`] |
//! | `swizzle_blockscale`, `block_scale_interleave` | [`swizzle_blockscale`] |
//! | `pad_nvfp4_weight_for_cutlass`, `slice_nvfp4_output` | [`padding`] |
//! | `shuffle_matrix_a`, `shuffle_matrix_sf_a` | [`shuffle`] |
//! | `prepare_bf16_fp4_weights` | [`w4a16`] |
//! | `dequantize_to_dtype` | [`dequantize`] |
//! | `weight_scale`, `weight_scale_2` / `weight_global_scale` | [`NvFp4Weights::scales`], [`NvFp4Weights::global`] |
//! | `input_global_scale`, `input_global_scale_inv` | [`GlobalScale::decode`], [`GlobalScale::encode`] |
//! | what vLLM itself would choose or compute | [`vllm`] |

#[cfg(not(feature = "cpu"))]
mod cpu_stand_in;
#[cfg(feature = "cuda")]
mod cuda_linear;
mod explain;
mod known_gpus;
mod linear;
mod options;
mod plans;
mod policy_env;
mod quantize_activation;
mod registry;
mod workspace;

#[cfg(feature = "cuda")]
pub use cuda_linear::CudaLinear;
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

pub use half::{bf16, f16};

#[cfg(feature = "checkpoint")]
pub use nvfp4_checkpoint as checkpoint;
#[cfg(feature = "cpu")]
pub use nvfp4_cpu as cpu;
#[cfg(feature = "cuda")]
pub use nvfp4_cuda as cuda;
#[cfg(feature = "trtllm")]
pub use nvfp4_trtllm as trtllm;

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

/// The examples of the README files, which run as tests.
#[cfg(all(doctest, feature = "cpu"))]
mod readme {
    #[doc = include_str!("../README.md")]
    struct OfTheCrate;
    #[doc = include_str!("../../../README.md")]
    struct OfTheWorkspace;
}
