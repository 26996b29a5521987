//! The tensors that vLLM's FlashInfer kernels prepare, and the calls that they make.

use super::{Exception, Kernel};
use crate::block_scale::{MmaScaleView, ScaleLayout};
use alloc::{format, vec, vec::Vec};
use core::fmt;

/// Element type of a PyTorch tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum TorchDType {
    U8,
    I32,
    F8E4M3Fn,
    F16,
    Bf16,
    F32,
}

impl fmt::Display for TorchDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U8 => "torch.uint8",
            Self::I32 => "torch.int32",
            Self::F8E4M3Fn => "torch.float8_e4m3fn",
            Self::F16 => "torch.float16",
            Self::Bf16 => "torch.bfloat16",
            Self::F32 => "torch.float32",
        })
    }
}

/// A tensor without its data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorInfo {
    /// Extents.
    pub shape: Vec<usize>,
    /// Elements from one index to the next, for each dimension.
    pub strides: Vec<usize>,
    /// Element type.
    pub dtype: TorchDType,
}

impl TensorInfo {
    /// A row-major tensor.
    fn contiguous(shape: impl Into<Vec<usize>>, dtype: TorchDType) -> Self {
        let shape = shape.into();
        let mut strides = vec![1; shape.len()];
        for i in (1..shape.len()).rev() {
            strides[i - 1] = strides[i] * shape[i].max(1);
        }
        Self { shape, strides, dtype }
    }
    /// The same data with dimensions in reverse order.
    fn transposed(mut self) -> Self {
        self.shape.reverse();
        self.strides.reverse();
        self
    }
    fn viewed_as(mut self, dtype: TorchDType) -> Self {
        self.dtype = dtype;
        self
    }
}

/// How a FlashInfer kernel class prepares weights and what it calls.
#[derive(Clone, Debug)]
pub(super) struct FlashInferCalls {
    /// The `backend` of the GEMM.
    backend: &'static str,
    /// What is done with the weights.
    preparation: Preparation,
    /// Who pads the codes of the activations when the weight is padded along `k`.
    padded_by: PaddedBy,
    /// Element type that block scales are passed as.
    scale_dtype: TorchDType,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Preparation {
    /// Padded to 32, scales swizzled.
    Cutlass,
    /// Rows shuffled, nothing padded.
    Shuffle,
    /// Padded to 64, then in the layout of the BF16 × FP4 kernel.
    Bf16Fp4,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PaddedBy {
    Quantizer,
    Caller,
}

impl FlashInferCalls {
    const W4A4: Self = Self {
        backend: "",
        preparation: Preparation::Cutlass,
        padded_by: PaddedBy::Caller,
        scale_dtype: TorchDType::F8E4M3Fn,
    };
    pub(super) const CUTE_DSL: Self = Self { backend: "cute-dsl", ..Self::W4A4 };
    pub(super) const B12X: Self = Self { backend: "b12x", ..Self::W4A4 };
    pub(super) const CUTLASS: Self =
        Self { backend: "cutlass", padded_by: PaddedBy::Quantizer, scale_dtype: TorchDType::U8, ..Self::W4A4 };
    pub(super) const CUDNN: Self = Self { backend: "cudnn", ..Self::CUTLASS };
    pub(super) const TRTLLM: Self = Self { backend: "trtllm", preparation: Preparation::Shuffle, ..Self::W4A4 };
    pub(super) const BF16_FP4: Self = Self { backend: "cute-dsl", preparation: Preparation::Bf16Fp4, ..Self::W4A4 };

    /// Multiple that `n` and `k` of the weight are padded to.
    const fn alignment(&self) -> usize {
        match self.preparation {
            Preparation::Cutlass => 32,
            Preparation::Shuffle => 1,
            Preparation::Bf16Fp4 => 64,
        }
    }
    fn padded_k(&self, k: usize) -> usize {
        k.next_multiple_of(self.alignment())
    }
}

/// A layer after `process_weights_after_loading`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PreparedLayer {
    /// The class.
    pub kernel: &'static Kernel,
    /// Output features, before padding.
    pub n: usize,
    /// Input features, before padding.
    pub k: usize,
    /// `layer.weight`.
    pub weight: TensorInfo,
    /// `layer.weight_scale`.
    pub weight_scale: TensorInfo,
    /// `layer.weights_padding_cols`, which only the W4A16 class sets: bytes that each row grew by.
    pub weights_padding_cols: Option<usize>,
}

/// The operands that the GEMM calls have in common.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GemmOperands {
    /// Activations.
    pub a: TensorInfo,
    /// Weights.
    pub b: TensorInfo,
    /// Block scales of the weights.
    pub b_descale: TensorInfo,
    /// Output multiplier.
    pub alpha: TensorInfo,
}

/// A call of a device operation.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Call {
    /// vLLM's quantizer, `_C.scaled_fp4_quant.out`.
    ScaledFp4Quant {
        /// Activations.
        input: TensorInfo,
        /// Scales in 128x4 tiles.
        swizzled: bool,
        /// Packed codes, as wide as `padded_n` asks.
        output: TensorInfo,
        /// Block scales, four a 32-bit word.
        output_scale: TensorInfo,
    },
    /// FlashInfer's `nvfp4_quantize` with 8x4 block scales and no shuffle.
    NvFp4Quantize8x4 {
        /// Activations.
        input: TensorInfo,
        /// Packed codes.
        output: TensorInfo,
        /// Block scales.
        output_scale: TensorInfo,
    },
    /// FlashInfer's `mm_fp4`.
    MmFp4 {
        /// Operands; `b` and its scales are transposed views.
        operands: GemmOperands,
        /// Block scales of the activations.
        a_descale: TensorInfo,
        /// Element type of the output.
        out_dtype: TorchDType,
        /// Block scales of the activations are in 8x4 tiles.
        use_8x4_sf_layout: bool,
        /// Backend.
        backend: &'static str,
        /// Values that share a block scale.
        block_size: usize,
        /// NVFP4, not MXFP4.
        use_nvfp4: bool,
    },
    /// FlashInfer's `mm_bf16_fp4(backend="cute-dsl")`.
    MmBf16Fp4 {
        /// Operands.
        operands: GemmOperands,
    },
}

/// What `apply_weights` did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Applied {
    /// Device operations, in order.
    pub calls: Vec<Call>,
    /// The output, or the exception.
    pub output: Result<TensorInfo, Exception>,
}

/// The weights `[n, k]` as a FlashInfer kernel class prepares them on a GPU of compute capability `10 * major +
/// minor`. `None` for classes that are not FlashInfer's.
pub fn process_weights_after_loading(
    kernel: &'static Kernel,
    compute_capability: u32,
    n: usize,
    k: usize,
) -> Option<Result<PreparedLayer, Exception>> {
    let calls = kernel.calls.as_ref()?;
    if let Err(exception) = check_extents(n, k) {
        return Some(Err(exception));
    }
    let (rows, padded_k) = (n.next_multiple_of(calls.alignment()), calls.padded_k(k));
    let packed = TensorInfo::contiguous([rows, padded_k / 2], TorchDType::U8);
    let swizzled = [n.next_multiple_of(128), (k / 16).next_multiple_of(4)];
    let done = |weight, weight_scale, weights_padding_cols| {
        Ok(PreparedLayer { kernel, n, k, weight, weight_scale, weights_padding_cols })
    };
    Some(match calls.preparation {
        Preparation::Cutlass => done(packed, TensorInfo::contiguous(swizzled, TorchDType::F8E4M3Fn), None),
        Preparation::Shuffle => match check_shuffle(n, k, swizzled) {
            Ok(()) => done(packed, TensorInfo::contiguous([n, k / 16], TorchDType::F8E4M3Fn), None),
            Err(exception) => Err(exception),
        },
        Preparation::Bf16Fp4 => {
            let pad_bytes = Some((padded_k - k) / 2);
            match compute_capability {
                100 | 103 | 107 => match mma_view(rows, padded_k / 16) {
                    Ok(view) => done(packed, view, pad_bytes),
                    Err(exception) => Err(exception),
                },
                120..130 => done(
                    TensorInfo::contiguous([padded_k / 16, 2 * rows], TorchDType::I32),
                    TensorInfo::contiguous([padded_k / 16, rows], TorchDType::U8),
                    pad_bytes,
                ),
                other => Err(Exception::new(
                    "NotImplementedError",
                    format!(
                        "cute-dsl w4a16 GEMM only supports SM100/103/107 and SM12x; got {}.{}",
                        other / 10,
                        other % 10
                    ),
                )),
            }
        }
    })
}

/// What the shuffle and the reshape of its result insist on, in the order in which they fail.
fn check_shuffle(n: usize, k: usize, swizzled: [usize; 2]) -> Result<(), Exception> {
    if !n.is_multiple_of(32) {
        return Err(Exception::new("AssertionError", "input_tensor.shape[0] must be multiples of 32"));
    }
    if !n.is_multiple_of(128) {
        return Err(Exception::new("AssertionError", ""));
    }
    let (cols, bytes) = (k / 16, swizzled[0] * swizzled[1]);
    if n * cols != bytes {
        return Err(Exception::new(
            "RuntimeError",
            format!("shape '[{n}, {cols}]' is invalid for input of size {bytes}"),
        ));
    }
    Ok(())
}

fn mma_view(rows: usize, cols: usize) -> Result<TensorInfo, Exception> {
    let view = ScaleLayout::Swizzled128x4
        .len(rows, cols)
        .and_then(|bytes| MmaScaleView::new(rows, cols, bytes))
        .map_err(|error| Exception::new("ValueError", error))?;
    Ok(TensorInfo { shape: view.shape.to_vec(), strides: view.strides.to_vec(), dtype: TorchDType::F8E4M3Fn })
}

/// `Ok` if a matrix of these extents, padded by less than 256 each way, has a size that can be computed.
fn check_extents(rows: usize, cols: usize) -> Result<(), Exception> {
    let (padded_rows, padded_cols) = (rows.saturating_add(256), cols.saturating_add(256));
    match padded_rows.checked_mul(padded_cols).and_then(|elements| elements.checked_mul(4)) {
        Some(_) => Ok(()),
        None => Err(Exception::new(
            "RuntimeError",
            format!("Storage size calculation overflowed with sizes=[{rows}, {cols}]"),
        )),
    }
}

/// What a prepared layer does with activations of shape `[.., k]`. A bias is added afterwards, without a call of its
/// own.
pub fn apply_weights(layer: &PreparedLayer, x: &[usize], dtype: TorchDType) -> Applied {
    let mut calls = Vec::new();
    let output = run(layer, x, dtype, &mut calls);
    Applied { calls, output }
}

fn run(
    layer: &PreparedLayer,
    x: &[usize],
    dtype: TorchDType,
    calls: &mut Vec<Call>,
) -> Result<TensorInfo, Exception> {
    let (Some(kind), Some((&k, leading))) = (layer.kernel.calls.as_ref(), x.split_last()) else {
        return Err(Exception::new("RuntimeError", "not a FlashInfer kernel, or a scalar input"));
    };
    let m = leading.iter().fold(1usize, |m, &extent| m.saturating_mul(extent));
    check_extents(m, k.max(layer.n))?;
    let call = match kind.preparation {
        Preparation::Bf16Fp4 => bf16_fp4(layer, kind, m, k, dtype)?,
        Preparation::Cutlass | Preparation::Shuffle => {
            let (quantize, call) = fp4(layer, kind, m, k, dtype)?;
            calls.push(quantize);
            call
        }
    };
    calls.push(call);
    Ok(TensorInfo::contiguous([leading, &[layer.n]].concat(), dtype))
}

fn bf16_fp4(
    layer: &PreparedLayer,
    kind: &FlashInferCalls,
    m: usize,
    k: usize,
    dtype: TorchDType,
) -> Result<Call, Exception> {
    if dtype != TorchDType::Bf16 {
        return Err(Exception::new(
            "ValueError",
            format!("FlashInfer CuTe-DSL W4A16 requires BF16 input, got {dtype}"),
        ));
    }
    Ok(Call::MmBf16Fp4 {
        operands: GemmOperands {
            a: TensorInfo::contiguous([m, kind.padded_k(k)], dtype),
            b: layer.weight.clone(),
            b_descale: layer.weight_scale.clone(),
            alpha: TensorInfo::contiguous([1], TorchDType::F32),
        },
    })
}

/// The quantizer's call and the GEMM's.
fn fp4(
    layer: &PreparedLayer,
    kind: &FlashInferCalls,
    m: usize,
    k: usize,
    dtype: TorchDType,
) -> Result<(Call, Call), Exception> {
    if !k.is_multiple_of(16) {
        return Err(Exception::new("AssertionError", format!("last dim has to be multiple of 16, but got {k}.")));
    }
    if !matches!(dtype, TorchDType::F16 | TorchDType::Bf16) {
        return Err(Exception::new(
            "AssertionError",
            format!("input.dtype needs to be fp16 or bf16 but got {dtype}."),
        ));
    }
    let input = TensorInfo::contiguous([m, k], dtype);
    let padded_k = kind.padded_k(k);
    let quantized_k = if kind.padded_by == PaddedBy::Quantizer { padded_k } else { k };
    let output = TensorInfo::contiguous([m, quantized_k / 2], TorchDType::U8);
    let scale_cols = (quantized_k / 16).next_multiple_of(4);
    let layout = match kind.preparation {
        Preparation::Shuffle => ScaleLayout::for_trtllm(m),
        _ => ScaleLayout::Swizzled128x4,
    };
    let use_8x4_sf_layout = layout == ScaleLayout::Swizzled8x4;
    let scale_rows = m.next_multiple_of(layout.tile_rows());
    let quantize = if use_8x4_sf_layout {
        let output_scale = TensorInfo::contiguous([scale_rows, scale_cols], TorchDType::U8);
        Call::NvFp4Quantize8x4 { input, output, output_scale }
    } else {
        let output_scale = TensorInfo::contiguous([scale_rows, scale_cols / 4], TorchDType::I32);
        Call::ScaledFp4Quant { input, swizzled: true, output, output_scale }
    };
    let gemm = Call::MmFp4 {
        operands: GemmOperands {
            a: TensorInfo::contiguous([m, padded_k / 2], TorchDType::U8),
            b: layer.weight.clone().transposed(),
            b_descale: layer.weight_scale.clone().viewed_as(kind.scale_dtype).transposed(),
            alpha: TensorInfo::contiguous([], TorchDType::F32),
        },
        a_descale: TensorInfo::contiguous([scale_rows, scale_cols], kind.scale_dtype),
        out_dtype: dtype,
        use_8x4_sf_layout,
        backend: kind.backend,
        block_size: crate::BLOCK_SIZE,
        use_nvfp4: true,
    };
    Ok((quantize, gemm))
}
