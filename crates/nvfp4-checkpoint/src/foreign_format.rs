//! Quantized modules that are not NVFP4, or NVFP4 in a form that is not read here: which format they are in, told by
//! their own tensors.
//!
//! Sources: transformers' integrations of FP-Quant, bitsandbytes and NVFP4; llama.cpp's converter for GPTQ; AutoAWQ's
//! `WQLinear_GEMM`; compressed-tensors' `pack-quantized`; MLX's `QuantizedLinear`.

use crate::{TensorDType, TensorView};
use std::fmt;

/// A format of quantized weights that is not read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ForeignFormat {
    /// `qweight` of bytes, `scales`, `act_global_scale`, `forward_hadamard_matrix`. Blocks of 16 are its NVFP4, of 32 its
    /// MXFP4; absent if the scales do not tell.
    FpQuant { block_size: Option<usize> },
    /// `dqweight`: FP-Quant's weights as floats, still rotated.
    FpQuantPseudo,
    /// `qweight` `[k / 8, n]` of words along the rows, `qzeros`, `scales`, usually `g_idx`.
    Gptq,
    /// `qweight` `[k, n / 8]` of words along the columns, `qzeros`, `scales`.
    Awq,
    /// `weight` of bytes, `weight.absmax`, `weight.quant_map`.
    BitsAndBytes4,
    /// `weight` of signed bytes, `SCB`.
    BitsAndBytes8,
    /// compressed-tensors' `pack-quantized`: `weight_packed` of words, `weight_shape`.
    PackedIntegers,
    /// MLX: `weight` of words, `scales`.
    Mlx,
    /// transformers' own NVFP4: `weight_sf`, `weight_sf_rowmajor`.
    KernelLayout,
    /// `weight` of FP8.
    Fp8,
    /// A GGUF type, by name.
    Gguf(String),
    /// A `qweight` or `weight` of this type, and nothing that tells more.
    Unknown { tensor: &'static str, dtype: TensorDType },
}

/// The format of a module, unless it is one that is read. `tensor` gives a tensor of the module by its last name.
pub(crate) fn foreign_format<'a>(tensor: impl Fn(&str) -> Option<TensorView<'a>>) -> Option<ForeignFormat> {
    let has = |suffix: &str| tensor(suffix).is_some();
    // FP-Quant keeps empty tensors for the forms that it does not use.
    let filled = |suffix: &str| tensor(suffix).filter(|t| !t.bytes.is_empty());
    let rotated = has("forward_hadamard_matrix") || has("act_global_scale");
    if let Some(packed) = filled("qweight") {
        let words = matches!(packed.dtype, TensorDType::I32 | TensorDType::U32);
        if packed.dtype == TensorDType::U8 || (rotated && !words) {
            return Some(ForeignFormat::FpQuant { block_size: block_size(packed, tensor("scales")) });
        }
        // Eight values a word: along the rows of the transposed weight (GPTQ) or along its columns (AWQ). Scales are
        // `[groups, n]` in both.
        let columns = |view: TensorView<'_>| view.shape.get(1).copied();
        let wider = match (columns(packed), tensor("scales").and_then(columns)) {
            (Some(words), Some(n)) => n > words,
            _ => false,
        };
        return Some(match (words && has("qzeros"), has("g_idx")) {
            (true, false) if wider => ForeignFormat::Awq,
            (true, _) => ForeignFormat::Gptq,
            (false, true) => ForeignFormat::Gptq,
            (false, false) => ForeignFormat::Unknown { tensor: "qweight", dtype: packed.dtype },
        });
    }
    if filled("dqweight").is_some() {
        return Some(ForeignFormat::FpQuantPseudo);
    }
    if let Some(packed) = tensor("weight_packed") {
        let words = matches!(packed.dtype, TensorDType::I32 | TensorDType::U32);
        return (words || has("weight_shape")).then_some(ForeignFormat::PackedIntegers);
    }
    let weight = tensor("weight")?;
    match weight.dtype {
        _ if has("weight_sf") || has("weight_sf_rowmajor") => Some(ForeignFormat::KernelLayout),
        TensorDType::U8 | TensorDType::Bf16 | TensorDType::F16 | TensorDType::F32 if has("weight.absmax") => {
            Some(ForeignFormat::BitsAndBytes4)
        }
        TensorDType::U8 | TensorDType::Bf16 | TensorDType::F16 | TensorDType::F32 => None,
        TensorDType::I8 if has("SCB") => Some(ForeignFormat::BitsAndBytes8),
        TensorDType::U32 if has("scales") => Some(ForeignFormat::Mlx),
        TensorDType::F8E4M3 | TensorDType::F8E5M2 => Some(ForeignFormat::Fp8),
        dtype => Some(ForeignFormat::Unknown { tensor: "weight", dtype }),
    }
}

/// Values that share a scale, from the shapes of two codes a byte and of the scales.
fn block_size(packed: TensorView<'_>, scales: Option<TensorView<'_>>) -> Option<usize> {
    let (bytes, scales) = (packed.shape.get(1)?, scales?.shape.get(1).copied().filter(|&n| n > 0)?);
    Some(bytes.checked_mul(2)? / scales)
}

impl ForeignFormat {
    /// What to do, starting with a separator; may be empty.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::FpQuant { .. } | Self::FpQuantPseudo => {
                "; FP-Quant rotates the input by `forward_hadamard_matrix` before it is quantized, which is not supported: \
                 quantize the original model instead"
            }
            Self::KernelLayout => {
                "; its scales are in the order of its kernel: quantize the original model instead"
            }
            Self::Gguf(_) => "; of GGUF's block formats only NVFP4 (type 40) of two dimensions is read",
            _ => "",
        }
    }
}

impl fmt::Display for ForeignFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FpQuant { block_size: Some(16) } => f.write_str("FP-Quant NVFP4 (rotated)"),
            Self::FpQuant { block_size: Some(32) } => f.write_str("FP-Quant MXFP4 (rotated)"),
            Self::FpQuant { .. } => f.write_str("FP-Quant (rotated)"),
            Self::FpQuantPseudo => f.write_str("FP-Quant, pseudo-quantized (rotated)"),
            Self::Gptq => f.write_str("GPTQ integers"),
            Self::Awq => f.write_str("AWQ integers"),
            Self::BitsAndBytes4 => f.write_str("bitsandbytes 4-bit"),
            Self::BitsAndBytes8 => f.write_str("bitsandbytes 8-bit"),
            Self::PackedIntegers => f.write_str("compressed-tensors packed integers"),
            Self::Mlx => f.write_str("MLX words"),
            Self::KernelLayout => f.write_str("NVFP4 in a kernel's layout (`weight_sf`)"),
            Self::Fp8 => f.write_str("FP8"),
            Self::Gguf(name) => write!(f, "GGUF {name}"),
            Self::Unknown { tensor, dtype } => write!(f, "a `{tensor}` of {dtype}"),
        }
    }
}
