//! Weights to NVFP4, with the arithmetic of each ecosystem's own quantizer, bit for bit.
//!
//! | | block scale | block of zeros | global scale | value |
//! | --- | --- | --- | --- | --- |
//! | ModelOpt | `amax / (6 g)`, at least 2⁻⁹ | 1.0 (`0x38`) | `g = amax / 2688` | `x / (s g)` |
//! | compressed-tensors | `amax / 6` in the weight's type, times `G` | 0.125 (`0x20`) | `G = (1 / amax) * 2688`, each step in the weight's type | `x / (s / G)` |
//! | torchao | `(amax / 6) / g`, at least 2⁻⁶ | 2⁻⁶ (`0x08`) | `g = amax / 2688` | `x * ((1 / g) / s)` |
//!
//! (`s` is the rounded block scale, saturated at 448; `g` decodes, `G` encodes.) The same weight quantized by two of them
//! differs in a handful of codes and scales. A tensor of zeros gets the global scale 1. No NaN scale is ever written.
//!
//! Large tensors can be quantized a few rows at a time: [`weight_amax`] over all, [`global_scale_of`] once,
//! [`quantize_rows`] over all.

use crate::{
    BLOCK_SIZE, E4M3_MAX,
    block_scale::LinearScales,
    dtype::DType,
    e2m1, e4m3,
    error::{Error, check_multiple, check_size},
    global_scale::{GlobalScale, GlobalScales},
    matrix::MatrixRef,
    quantize::FULL_RANGE,
    weights::NvFp4Weights,
};
use alloc::vec;

/// Whose arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WeightQuantizer {
    /// nvidia-modelopt `NVFP4QTensor.quantize`.
    ModelOpt,
    /// compressed-tensors `calculate_qparams` and `NVFP4PackedCompressor.compress`.
    CompressedTensors,
    /// torchao `nvfp4_quantize`, with a scale for the tensor.
    TorchAo,
    /// torchao `nvfp4_quantize` without one: the global scale is 1.
    TorchAoSingleLevel,
}

/// The largest magnitude of a weight, or of some of its rows. A NaN or an infinity is an error that names row and
/// column.
pub fn weight_amax(w: MatrixRef<'_>) -> Result<f32, Error> {
    let mut wide = vec![0.0; w.cols()];
    let mut amax = 0.0f32;
    for (row, values) in (0..w.rows()).filter_map(|r| Some((r, w.row(r)?))) {
        values.widen_into(&mut wide);
        check_finite(row, &wide)?;
        amax = wide.iter().fold(amax, |amax, v| amax.max(v.abs()));
    }
    Ok(amax)
}

fn check_finite(row: usize, values: &[f32]) -> Result<(), Error> {
    match values.iter().enumerate().find(|(_, v)| !v.is_finite()) {
        Some((column, &found)) => Err(Error::NotFinite { row, column, found }),
        None => Ok(()),
    }
}

/// The global scale that `quantizer` gives a tensor (or a group of tensors) whose largest magnitude is `amax` and whose
/// type is `dtype`. A tensor of zeros gets 1. Where the formula overflows `dtype` it is computed in f32; where it overflows
/// f32 (magnitudes that are subnormal, or nearly) the decode scale is the least normal number for ModelOpt and torchao, and
/// the scale is 1 for compressed-tensors, as upstream.
pub fn global_scale_of(amax: f32, dtype: DType, quantizer: WeightQuantizer) -> Result<GlobalScale, Error> {
    if amax == 0.0 || quantizer == WeightQuantizer::TorchAoSingleLevel {
        return Ok(GlobalScale::ONE);
    }
    match quantizer {
        WeightQuantizer::CompressedTensors => {
            // PyTorch computes `2688 / tensor` as the reciprocal times 2688, each rounded to the tensor's type.
            // It gives 1 where that overflows. In f16 it does so for every tensor below 2688 / 65504 = 0.041, which would
            // lose such a tensor in part or whole; the checkpoint stores f32, so those are computed in f32.
            let encode = |dtype: DType| dtype.round(dtype.round(1.0 / amax) * FULL_RANGE);
            let usable = [encode(dtype), encode(DType::F32)].into_iter().find(|scale| scale.is_finite());
            GlobalScale::from_encode(usable.unwrap_or(1.0))
        }
        _ => GlobalScale::from_decode((amax / FULL_RANGE).max(f32::MIN_POSITIVE)),
    }
}

/// The global scale that `quantizer` computes for a tensor from its largest magnitude.
pub fn weight_global_scale(w: MatrixRef<'_>, quantizer: WeightQuantizer) -> Result<GlobalScale, Error> {
    global_scale_of(weight_amax(w)?, w.dtype(), quantizer)
}

/// Quantizes a `[n, k]` weight. `global`: the global scale to use instead of the tensor's own (fused layers share one).
pub fn quantize_weight(
    w: MatrixRef<'_>,
    quantizer: WeightQuantizer,
    global: Option<GlobalScale>,
) -> Result<NvFp4Weights<'static>, Error> {
    let own = weight_global_scale(w, quantizer)?;
    let global = global.unwrap_or(own);
    let (n, k) = (w.rows(), w.cols());
    check_multiple("k (input features)", BLOCK_SIZE, k)?;
    let (mut packed, mut scales) = (vec![0; n * (k / 2)], vec![0; n * (k / BLOCK_SIZE)]);
    quantize_rows(w, quantizer, global, &mut packed, &mut scales)?;
    let scales = LinearScales::new(n, k / BLOCK_SIZE, scales)?;
    NvFp4Weights::new(n, k, packed, scales, GlobalScales::per_tensor(n, global))
}

/// Quantizes some rows `[r, k]` of a weight into `packed` (`r * k / 2` bytes) and `scales` (`r * k / 16` bytes). A NaN or an
/// infinity is an error that names column and row, counted from the first of these rows.
pub fn quantize_rows(
    w: MatrixRef<'_>,
    quantizer: WeightQuantizer,
    global: GlobalScale,
    packed: &mut [u8],
    scales: &mut [u8],
) -> Result<(), Error> {
    let (rows, k) = (w.rows(), w.cols());
    check_multiple("k (input features)", BLOCK_SIZE, k)?;
    check_size("packed weight bytes", rows * (k / 2), packed.len())?;
    check_size("block scale bytes", rows * (k / BLOCK_SIZE), scales.len())?;
    if k == 0 {
        return Ok(());
    }
    let mut wide = vec![0.0; k];
    let outputs = packed.chunks_exact_mut(k / 2).zip(scales.chunks_exact_mut(k / BLOCK_SIZE));
    for ((r, row), (packed, scales)) in (0..rows).filter_map(|r| Some((r, w.row(r)?))).zip(outputs) {
        row.widen_into(&mut wide);
        check_finite(r, &wide)?;
        let blocks = wide.as_chunks::<BLOCK_SIZE>().0.iter();
        for ((block, codes), scale) in blocks.zip(packed.chunks_exact_mut(BLOCK_SIZE / 2)).zip(scales) {
            *scale = quantize_block(block, w.dtype(), quantizer, global, codes);
        }
    }
    Ok(())
}

/// Writes the codes of a block; returns its scale.
fn quantize_block(
    x: &[f32; BLOCK_SIZE],
    dtype: DType,
    quantizer: WeightQuantizer,
    global: GlobalScale,
    codes: &mut [u8],
) -> u8 {
    let (decode, encode) = (global.decode().get(), global.encode().get());
    let amax = x.iter().fold(0.0, |amax: f32, v| amax.max(v.abs()));
    match quantizer {
        WeightQuantizer::ModelOpt => {
            let ideal = amax / (6.0 * decode);
            let ideal = if ideal == 0.0 { 1.0 } else { ideal };
            let scale = e4m3::encode(ideal.clamp(1.0 / 512.0, E4M3_MAX));
            let divisor = e4m3::decode(scale) * decode;
            pack(x, codes, |v| positive_zero(v) / divisor);
            scale
        }
        WeightQuantizer::CompressedTensors => {
            let ideal = (dtype.round(amax / 6.0) * encode).clamp(-E4M3_MAX, E4M3_MAX);
            let scale = match e4m3::encode(ideal) {
                0 => 0x20,
                scale => scale,
            };
            let divisor = e4m3::decode(scale) / encode;
            pack(x, codes, |v| positive_zero(v) / divisor);
            scale
        }
        WeightQuantizer::TorchAo | WeightQuantizer::TorchAoSingleLevel => {
            let scale = e4m3::encode((amax / 6.0 / decode).clamp(1.0 / 64.0, E4M3_MAX));
            let multiplier = (1.0 / decode) / e4m3::decode(scale);
            pack(x, codes, |v| v * multiplier);
            scale
        }
    }
}

/// ModelOpt and compressed-tensors take a code's sign from `x < 0` before rounding: -0.0 is code 0, while a negative value
/// that rounds to zero is code 8.
fn positive_zero(value: f32) -> f32 {
    value + 0.0
}

fn pack(x: &[f32; BLOCK_SIZE], codes: &mut [u8], scaled: impl Fn(f32) -> f32) {
    codes.iter_mut().zip(e2m1::encode_block(&x.map(scaled))).for_each(|(byte, code)| *byte = code);
}
