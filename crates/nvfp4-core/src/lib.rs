//! The NVFP4 format, its layouts, the kernel contract and backend selection.
//!
//! An NVFP4 linear layer computes `y = x · Wᵀ + b`, where `W` (`[n, k]`) is stored as 4-bit e2m1 codes with
//! one e4m3 block scale per 16 values along `k` and f32 global scales, and `x` (`[m, k]`) is either
//! quantized to NVFP4 on the fly (W4A4) or kept in 16 or 32 bits (W4A16).
//!
//! This crate is pure Rust, `no_std` + `alloc`, without GPU code, I/O or `unsafe`. It holds
//!
//! * the numbers: [`e2m1`], [`e4m3`], [`pack`], [`global_scale`], [`quantize`], [`quantize_weight`], [`dequantize`], [`fold`], [`gguf`];
//! * the layouts: [`block_scale`], [`padding`], [`shuffle`], [`w4a16`];
//! * the layer: [`weights`], [`layer`], [`activation`], [`quant_key`];
//! * the contract that every backend implements: [`kernel`];
//! * who could run a layer, and why not: [`device`], [`support`], [`select`](mod@select), [`preference`], [`requirements`];
//! * what vLLM 0.33 would do with the same layer: [`vllm`].
//!
//! Letters used throughout: `m` rows of activations (tokens), `n` output features, `k` input features.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

pub mod activation;
pub mod block_scale;
pub mod dequantize;
pub mod device;
pub mod dtype;
pub mod e2m1;
pub mod e4m3;
pub mod error;
pub mod fold;
pub mod gguf;
pub mod global_scale;
pub mod kernel;
pub mod layer;
pub mod matrix;
pub mod pack;
pub mod padding;
pub mod preference;
pub mod quant_key;
pub mod quantize;
pub mod quantize_weight;
pub mod requirements;
pub mod select;
pub mod shuffle;
pub mod support;
pub mod vllm;
pub mod w4a16;
pub mod weights;

pub use activation::{ActivationScale, QuantizedActivation, as_quantized_activation};
pub use block_scale::{LinearScales, ScaleLayout, SwizzledScales, swizzle_blockscale};
pub use device::{ComputeCapability, CpuFacts, CudaFacts, DeviceFacts};
pub use dtype::{DType, FloatSlice, FloatSliceMut};
pub use error::Error;
pub use global_scale::{DecodeScale, EncodeScale, GlobalScale, GlobalScales};
pub use kernel::{Host, KernelId, KernelSupport, LinearPlan, Memory, NvFp4LinearKernel, PreparedWeights};
pub use layer::{ActivationScheme, NvFp4LinearLayer, NvFp4LinearLayerConfig, WeightScaleKind};
pub use matrix::{MatrixMut, MatrixRef};
pub use quant_key::QuantKey;
pub use select::{Decision, Policy, select};
pub use support::Unsupported;
pub use weights::NvFp4Weights;

/// Values along `k` that share one block scale.
pub const BLOCK_SIZE: usize = 16;
/// Largest magnitude of an e2m1 code.
pub const E2M1_MAX: f32 = 6.0;
/// Largest finite e4m3 value.
pub const E4M3_MAX: f32 = 448.0;
