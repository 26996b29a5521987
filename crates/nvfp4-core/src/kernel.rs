//! The contract that every backend implements.
//!
//! A layer goes through four states: checkpoint weights ([`NvFp4Weights`]) → prepared
//! ([`PreparedWeights`], stamped with the [`WeightLayout`] they have) → planned for a number of rows
//! ([`LinearPlan`]; all that is slow or can fail has been done) → applied ([`LinearPlan::apply_weights`]:
//! no allocation, no loading, no synchronization; scratch memory comes from the caller).
//!
//! [`KernelSupport`] answers *who could run this layer*, from plain data and without a device.
//! [`NvFp4LinearKernel`] does it, in one kind of [`Memory`]: [`Host`] here, CUDA device memory in `nvfp4-cuda`.

use crate::{
    activation::QuantizedActivation,
    device::DeviceFacts,
    error::Error,
    global_scale::GlobalScale,
    layer::NvFp4LinearLayerConfig,
    matrix::{MatrixMut, MatrixRef},
    quant_key::QuantKey,
    support::Unsupported,
    weights::NvFp4Weights,
};
use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::{any::Any, fmt, fmt::Debug};

/// The stable, printable name of a backend; also the name of its cargo feature.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KernelId(&'static str);

impl KernelId {
    /// Our SIMD kernels for any CPU (`nvfp4-cpu`).
    pub const CPU: Self = Self("cpu");
    /// CUTLASS block-scaled GEMM (`FlashInferCutlassNvFp4LinearKernel`).
    pub const CUTLASS: Self = Self("cutlass");
    /// cuDNN graph (`FlashInferCudnnNvFp4LinearKernel`).
    pub const CUDNN: Self = Self("cudnn");
    /// TensorRT-LLM-gen cubins (`FlashInferTrtllmNvFp4LinearKernel`).
    pub const TRTLLM: Self = Self("trtllm");
    /// FlashInfer's CuTe DSL GEMM for SM10x (`FlashInferCuteDslNvFp4LinearKernel`).
    pub const CUTEDSL: Self = Self("cutedsl");
    /// FlashInfer's CuTe DSL GEMM for SM12x (`FlashInferB12xNvFp4LinearKernel`).
    pub const B12X: Self = Self("b12x");
    /// BF16 × NVFP4 (`FlashInferCuteDslNvFp4W4A16LinearKernel`, and our kernels for SM80–SM90).
    pub const W4A16: Self = Self("w4a16");

    /// A name of one's own; use lower case without spaces.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }
    /// The name.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for KernelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

/// The layout that prepared weights have: a name and a revision, which changes when a byte may move. Kernels with
/// equal layouts can share one copy of the weights.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WeightLayout {
    name: &'static str,
    revision: u32,
}

impl WeightLayout {
    /// Packed codes padded to 32 rows and 32 columns, block scales in 128x4 tiles. Read by the cutlass, cudnn,
    /// cutedsl and b12x kernels.
    pub const SWIZZLED_128X4: Self = Self::new("swizzled-128x4", 1);

    /// Names a layout.
    pub const fn new(name: &'static str, revision: u32) -> Self {
        Self { name, revision }
    }
}

impl fmt::Display for WeightLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.revision)
    }
}

/// A kind of memory that operands live in, and how work is given to it.
pub trait Memory: 'static {
    /// Where work is enqueued: nothing on the host, a stream on CUDA.
    type Stream<'a>: Copy;
    /// A `[rows, cols]` matrix of bf16, f16 or f32 to read.
    type Matrix<'a>: Copy;
    /// A `[rows, cols]` matrix of bf16, f16 or f32 to write.
    type MatrixMut<'a>;
    /// `n` f32 values to read.
    type Vector<'a>: Copy;
    /// Scratch memory of at least [`LinearPlan::workspace_size`] bytes.
    type Workspace<'a>;
    /// An owned buffer of bytes.
    type Buffer: Debug + Send + Sync;
    /// Where weights are prepared: nothing on the host, a context and an allocator on CUDA.
    type Context;
}

/// Host memory. Work is done by the calling thread and, in `nvfp4-cpu`, by rayon's current pool.
#[derive(Debug)]
pub enum Host {}

impl Memory for Host {
    type Stream<'a> = ();
    type Matrix<'a> = MatrixRef<'a>;
    type MatrixMut<'a> = MatrixMut<'a>;
    type Vector<'a> = &'a [f32];
    /// 8-byte words, so that every element type is aligned: at least `workspace_size().div_ceil(8)` of them.
    type Workspace<'a> = &'a mut [u64];
    type Buffer = Vec<u8>;
    type Context = ();
}

/// The input of a layer.
#[derive(Debug)]
pub enum LinearInput<'a, M: Memory> {
    /// A `[m, k]` matrix; a kernel that computes W4A4 quantizes it.
    Matrix(M::Matrix<'a>),
    /// An activation that a producer has quantized. Its key must equal the kernel's `input_quant_key`.
    Quantized(&'a QuantizedActivation<M::Buffer>),
}

/// Who could run a layer. Pure, cheap, free of panics; touches no device.
pub trait KernelSupport: Debug + Send + Sync {
    /// Name of the backend.
    fn id(&self) -> KernelId;

    /// `Ok` if this build of the backend runs on such a device at all: architecture, driver, libraries, kernels
    /// really present.
    fn is_supported(&self, device: &DeviceFacts) -> Result<(), Unsupported>;

    /// `Ok` if the backend can run this layer on a device that [`is_supported`](Self::is_supported) accepts, for
    /// some number of rows: scheme, shape, types, scale kind, batch invariance.
    fn can_implement(&self, device: &DeviceFacts, config: &NvFp4LinearLayerConfig) -> Result<(), Unsupported>;

    /// `Ok` if the backend can run this layer with `m` rows (kernels for small `m` say no here).
    fn can_run_rows(
        &self,
        _device: &DeviceFacts,
        _config: &NvFp4LinearLayerConfig,
        _m: usize,
    ) -> Result<(), Unsupported> {
        Ok(())
    }

    /// The weight layout that the backend reads.
    fn weight_layout(&self, device: &DeviceFacts, config: &NvFp4LinearLayerConfig) -> WeightLayout;

    /// The key of pre-quantized activations that the backend takes for this layer, or `None` if it takes none.
    fn input_quant_key(&self, _config: &NvFp4LinearLayerConfig) -> Option<QuantKey> {
        None
    }
}

/// A backend: prepares weights, plans and runs linear layers in memory of kind `M`.
pub trait NvFp4LinearKernel<M: Memory>: KernelSupport {
    /// Brings checkpoint weights into the layout that the kernel reads (pads, swizzles, shuffles, repacks,
    /// uploads), once. `weights` are not changed and not needed afterwards.
    fn process_weights_after_loading(
        &self,
        context: &M::Context,
        config: &NvFp4LinearLayerConfig,
        weights: &NvFp4Weights<'_>,
    ) -> Result<Arc<dyn PreparedWeights>, Error>;

    /// Does for `m` rows all that is slow or can fail: choice of tactic, descriptors, workspace size.
    ///
    /// `input_scale` is the checkpoint's, for [`ActivationScheme::Nvfp4Static`](crate::ActivationScheme); the plan
    /// ignores it for inputs that arrive quantized. Weights of another layout are refused with [`Error::Layout`].
    fn plan(
        &self,
        config: &NvFp4LinearLayerConfig,
        weights: &Arc<dyn PreparedWeights>,
        input_scale: Option<GlobalScale>,
        m: usize,
    ) -> Result<Box<dyn LinearPlan<M>>, Error>;
}

/// Weights in the layout of some kernel. The kernel gets its own type back through [`Any`].
pub trait PreparedWeights: Any + Debug + Send + Sync {
    /// The layout they have.
    fn layout(&self) -> WeightLayout;
    /// Bytes of (device) memory that they keep.
    fn bytes(&self) -> usize;
}

/// A layer planned for up to [`rows`](Self::rows) rows.
pub trait LinearPlan<M: Memory>: Debug + Send + Sync {
    /// Largest number of rows that the plan can run.
    fn rows(&self) -> usize;

    /// Bytes of scratch memory that [`apply_weights`](Self::apply_weights) needs.
    fn workspace_size(&self) -> usize;

    /// Writes `out = x · Wᵀ + bias` for any `m <= rows()`, `m = 0` included. The sum over `k`, the global scales
    /// and the bias are f32 (or wider); the result is rounded once, to the type of `out`. (vLLM adds the bias
    /// after rounding, and rounds again.)
    fn apply_weights(
        &self,
        stream: M::Stream<'_>,
        x: LinearInput<'_, M>,
        bias: Option<M::Vector<'_>>,
        out: M::MatrixMut<'_>,
        workspace: M::Workspace<'_>,
    ) -> Result<(), Error>;
}
