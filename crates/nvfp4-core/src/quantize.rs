//! Activations to NVFP4: `scaled_fp4_quant`, bit for bit.
//!
//! The arithmetic of the device kernels of vLLM and FlashInfer, all f32, in this order (G is the encode scale):
//!
//! ```text
//! amax = max |x|                       over the 16 values of a block; NaN is skipped unless all are NaN
//! S    = e4m3( G * (amax * (1/6)) )    nearest even, saturating at 448
//! o    = S == 0 ? 0 : 1 / ( f32(S) * (1/G) )
//! q    = e2m1( x * o )                 nearest even, saturating at 6
//! ```
//!
//! The device takes its three reciprocals with `rcp.approx.ftz`, which errs by at most one unit in the last place; here
//! they are correctly rounded, so a device may differ where a value lies within that unit of a rounding boundary.
//! Multiplying by a reciprocal instead of dividing is part of the format as the field computes it: 116 of the 6,174
//! values within 3 ulp of a tie round otherwise under division.
//!
//! Outcomes for special inputs: a NaN becomes +6 and leaves the scale alone (a block of NaN gets scale NaN, `0x7F`); an
//! infinity gives scale 448 and ±6; a block whose scale rounds to 0 becomes zeros with their signs.

use crate::{
    BLOCK_SIZE,
    activation::{ActivationScale, QuantizedActivation},
    block_scale::ScaleLayout,
    e2m1, e4m3,
    error::{Error, check_multiple},
    global_scale::GlobalScale,
    matrix::MatrixRef,
    quant_key::QuantKey,
};
use alloc::{vec, vec::Vec};

/// `6 * 448`: the largest value that codes and block scales reach together.
pub const FULL_RANGE: f32 = crate::E2M1_MAX * crate::E4M3_MAX;

/// How to quantize an activation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuantizeOptions {
    /// Layout of the block scales.
    pub layout: ScaleLayout,
    /// Width that the codes and scales are padded to with zeros, at least `k` and a multiple of 16. `None`: `k`.
    pub padded_n: Option<usize>,
    /// Exact divisions instead of the reciprocals of the device kernels (FlashInfer's
    /// `FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH`): `S = e4m3(amax * (G * (1/6)))`,
    /// `o = min(1 / (f32(S) * (1/G)), f32::MAX)`.
    pub exact: bool,
}

/// A quantized block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuantizedBlock {
    /// e4m3 scale.
    pub scale: u8,
    /// Sixteen codes, low nibble first.
    pub codes: [u8; BLOCK_SIZE / 2],
    /// True if the ideal scale was above 448: the block's largest values are clipped.
    pub saturated: bool,
}

/// Quantizes 16 values with the encode scale `encode`.
#[inline]
pub fn quantize_block(x: &[f32; BLOCK_SIZE], encode: f32, exact: bool) -> QuantizedBlock {
    let amax = x.iter().fold(f32::NAN, |amax, v| amax.max(v.abs()));
    let ideal = if exact { amax * (encode * (1.0 / 6.0)) } else { encode * (amax * (1.0 / 6.0)) };
    let scale = e4m3::encode(ideal);
    let value = e4m3::decode(scale);
    let multiplier = if scale == 0 {
        0.0
    } else if exact {
        // `f32::min` would take MAX for NaN.
        let quotient = 1.0 / (value * (1.0 / encode));
        if quotient > f32::MAX { f32::MAX } else { quotient }
    } else {
        1.0 / (value * (1.0 / encode))
    };
    let codes = e2m1::encode_block(&x.map(|v| v * multiplier));
    QuantizedBlock { scale, codes, saturated: ideal > crate::E4M3_MAX }
}

/// The largest magnitude of a matrix; NaN is skipped. 0 for an empty matrix.
pub fn absmax(x: MatrixRef<'_>) -> f32 {
    let mut wide = vec![0.0; x.cols()];
    let rows = (0..x.rows()).filter_map(|r| x.row(r));
    rows.fold(0.0, |amax: f32, row| {
        row.widen_into(&mut wide);
        wide.iter().fold(amax, |amax, v| amax.max(v.abs()))
    })
}

/// The decode scale for values up to `amax`: `amax / (6 * 448)`, kept where it and its reciprocal are normal numbers.
/// 0 for 0.
fn decode_scale(amax: f32) -> f32 {
    if amax == 0.0 { 0.0 } else { (amax.min(f32::MAX) / FULL_RANGE).max(f32::MIN_POSITIVE) }
}

/// The global scale of one call: [`GlobalScale::ONE`] for zeros, else `amax / (6 * 448)` as decode scale.
pub fn dynamic_global_scale(x: MatrixRef<'_>) -> Result<GlobalScale, Error> {
    match decode_scale(absmax(x)) {
        0.0 => Ok(GlobalScale::ONE),
        decode => GlobalScale::from_decode(decode),
    }
}

/// Quantizes `x` `[m, k]` with one global scale, e.g. the checkpoint's `input_scale`.
pub fn scaled_fp4_quant(
    x: MatrixRef<'_>,
    scale: GlobalScale,
    options: QuantizeOptions,
) -> Result<QuantizedActivation, Error> {
    let (data, bytes, padded_k) = quantize_rows(x, options, |_| scale.encode().get())?;
    Ok(activation(x, data, bytes, padded_k, options, ActivationScale::PerTensor(scale), QuantKey::NVFP4_DYNAMIC))
}

/// Quantizes `x` `[m, k]` with a global scale computed from its largest magnitude.
pub fn scaled_fp4_quant_dynamic(x: MatrixRef<'_>, options: QuantizeOptions) -> Result<QuantizedActivation, Error> {
    let scale = dynamic_global_scale(x)?;
    let mut quantized = scaled_fp4_quant(x, scale, options)?;
    quantized.quant_key = QuantKey::NVFP4_DYNAMIC_TENSOR;
    Ok(quantized)
}

/// Quantizes `x` `[m, k]` with a global scale for each row, `amax / (6 * 448)`. A row of zeros gets scale 0, codes 0 and
/// block scales 0 (upstream gives NaN); a row of which nothing but NaN is left gets scale 1, so that its NaN blocks stay NaN.
pub fn scaled_fp4_quant_per_token(
    x: MatrixRef<'_>,
    options: QuantizeOptions,
) -> Result<QuantizedActivation, Error> {
    let mut decode = Vec::with_capacity(x.rows() * 4);
    let (data, bytes, padded_k) = quantize_rows(x, options, |row| {
        let amax = row.iter().fold(0.0, |amax: f32, v| amax.max(v.abs()));
        let nothing_but_nan = amax == 0.0 && row.iter().any(|v| v.is_nan());
        let scale = if nothing_but_nan { 1.0 } else { decode_scale(amax) };
        decode.extend_from_slice(&scale.to_ne_bytes());
        if scale == 0.0 { 0.0 } else { 1.0 / scale }
    })?;
    let scale = ActivationScale::PerToken(decode);
    Ok(activation(x, data, bytes, padded_k, options, scale, QuantKey::NVFP4_DYNAMIC_TOKEN))
}

fn activation(
    x: MatrixRef<'_>,
    data: Vec<u8>,
    scale: Vec<u8>,
    padded_k: usize,
    options: QuantizeOptions,
    global_scale: ActivationScale,
    quant_key: QuantKey,
) -> QuantizedActivation {
    QuantizedActivation {
        data,
        scale,
        scale_layout: options.layout,
        global_scale,
        rows: x.rows(),
        k: x.cols(),
        padded_k,
        orig_dtype: x.dtype(),
        orig_shape: vec![x.rows(), x.cols()],
        quant_key,
    }
}

/// Codes, scales (padding included) and padded width. `encode` gives the encode scale of a row from its values; 0 stands
/// for a row of zeros.
fn quantize_rows(
    x: MatrixRef<'_>,
    options: QuantizeOptions,
    mut encode: impl FnMut(&[f32]) -> f32,
) -> Result<(Vec<u8>, Vec<u8>, usize), Error> {
    let (m, k) = (x.rows(), x.cols());
    check_multiple("k (activation columns)", BLOCK_SIZE, k)?;
    let padded_k = options.padded_n.unwrap_or(k);
    check_multiple("padded_n", BLOCK_SIZE, padded_k)?;
    if padded_k < k {
        return Err(Error::Size { what: "padded_n", expected: k, found: padded_k });
    }
    if options.layout == ScaleLayout::Swizzled8x4 && padded_k != k {
        return Err(Error::Invalid("padded_n is not supported with the 8x4 scale layout"));
    }
    let columns = padded_k / BLOCK_SIZE;
    let mut data = vec![0; crate::error::checked_mul("activation codes", m, padded_k / 2)?];
    let mut scales = vec![0; options.layout.len(m, columns)?];
    let mut wide = vec![0.0; k];
    for r in 0..m {
        let Some(row) = x.row(r) else { break };
        row.widen_into(&mut wide);
        let encode = encode(&wide);
        if encode == 0.0 {
            continue;
        }
        let (blocks, _) = wide.as_chunks::<BLOCK_SIZE>();
        let codes = &mut data[r * padded_k / 2..][..k / 2];
        for (c, (block, codes)) in blocks.iter().zip(codes.chunks_exact_mut(BLOCK_SIZE / 2)).enumerate() {
            let quantized = quantize_block(block, encode, options.exact);
            codes.copy_from_slice(&quantized.codes);
            scales[options.layout.offset(r, c, columns)] = quantized.scale;
        }
    }
    Ok((data, scales, padded_k))
}

/// How many blocks of `x` are clipped by the global scale: their ideal block scale is above 448.
pub fn saturated_blocks(x: MatrixRef<'_>, scale: GlobalScale) -> Result<usize, Error> {
    check_multiple("k (activation columns)", BLOCK_SIZE, x.cols())?;
    let mut wide = vec![0.0; x.cols()];
    Ok((0..x.rows())
        .filter_map(|r| x.row(r))
        .map(|row| {
            row.widen_into(&mut wide);
            let blocks = wide.as_chunks::<BLOCK_SIZE>().0.iter();
            blocks.filter(|b| quantize_block(b, scale.encode().get(), false).saturated).count()
        })
        .sum())
}

/// Moves 16-value blocks onto the NVFP4 grid in place: `e2m1 * e4m3`, without the global scale. The values are exact in
/// bf16 (at most six significant bits), so tensor cores that multiply bf16 give exact NVFP4 products.
pub fn quantize_dequantize(row: &mut [f32], encode: f32, exact: bool) -> Result<(), Error> {
    check_multiple("k (activation columns)", BLOCK_SIZE, row.len())?;
    for block in row.as_chunks_mut::<BLOCK_SIZE>().0 {
        let quantized = quantize_block(block, encode, exact);
        let scale = e4m3::decode(quantized.scale);
        for (pair, byte) in block.chunks_exact_mut(2).zip(quantized.codes) {
            pair[0] = e2m1::decode(byte & 15) * scale;
            pair[1] = e2m1::decode(byte >> 4) * scale;
        }
    }
    Ok(())
}

/// `silu(gate) * up` for rows `[gate | up]` of `x` `[m, 2k]`: `gate / (1 + exp(-gate)) * up` in f32, rounded to the type
/// of `x`, as f32 values `[m, k]`.
#[cfg(feature = "std")]
pub fn silu_and_mul(x: MatrixRef<'_>) -> Result<Vec<f32>, Error> {
    check_multiple("columns of gate and up", 2, x.cols())?;
    let k = x.cols() / 2;
    let mut wide = vec![0.0f32; x.cols()];
    let mut out = Vec::with_capacity(x.rows() * k);
    for row in (0..x.rows()).filter_map(|r| x.row(r)) {
        row.widen_into(&mut wide);
        let (gate, up) = wide.split_at(k);
        out.extend(gate.iter().zip(up).map(|(&g, &u)| x.dtype().round(g / (1.0 + (-g).exp()) * u)));
    }
    Ok(out)
}

/// Quantizes `silu(gate) * up` for rows `[gate | up]` of `x` `[m, 2k]` with one global scale.
#[cfg(feature = "std")]
pub fn silu_and_mul_scaled_fp4_quant(
    x: MatrixRef<'_>,
    scale: GlobalScale,
    options: QuantizeOptions,
) -> Result<QuantizedActivation, Error> {
    let product = silu_and_mul(x)?;
    let mut quantized = scaled_fp4_quant(MatrixRef::new(&product[..], x.rows(), x.cols() / 2)?, scale, options)?;
    quantized.orig_dtype = x.dtype();
    Ok(quantized)
}

/// What vLLM's pure-PyTorch reference gives.
#[derive(Clone, PartialEq, Debug)]
pub struct ReferenceQuant {
    /// e2m1 values (not codes), `[m, k]`.
    pub values: Vec<f32>,
    /// Decoded block scales, `[m, k / 16]`.
    pub scales: Vec<f32>,
}

/// vLLM 0.33's `ref_nvfp4_quant` (`nvfp4_emulation_utils`), with its outcomes for special inputs: one NaN poisons its
/// block, the reciprocal of 0 is 1e-8. `encode` may be anything, 0 included.
pub fn ref_nvfp4_quant(x: MatrixRef<'_>, encode: f32) -> Result<ReferenceQuant, Error> {
    check_multiple("k (activation columns)", BLOCK_SIZE, x.cols())?;
    let reciprocal = |t: f32| 1.0 / if t == 0.0 { 1e8 } else { t };
    let mut out = ReferenceQuant { values: Vec::new(), scales: Vec::new() };
    let mut wide = vec![0.0; x.cols()];
    for row in (0..x.rows()).filter_map(|r| x.row(r)) {
        row.widen_into(&mut wide);
        for block in wide.as_chunks::<BLOCK_SIZE>().0 {
            let amax = block
                .iter()
                .fold(0.0, |amax: f32, v| if amax.is_nan() || v.is_nan() { f32::NAN } else { amax.max(v.abs()) });
            let ideal = encode * (amax * (1.0 / 6.0));
            let scale = e4m3::decode(e4m3::encode(ideal.clamp(-crate::E4M3_MAX, crate::E4M3_MAX)));
            let multiplier = reciprocal(scale * reciprocal(encode));
            out.scales.push(scale);
            out.values.extend(block.iter().map(|v| cast_to_fp4((v * multiplier).clamp(-6.0, 6.0))));
        }
    }
    Ok(out)
}

/// vLLM 0.33's `ref_nvfp4_quant_dequant`: `(e2m1 * (scale / encode))`, rounded to the type of `x`; f32 values `[m, k]`.
pub fn ref_nvfp4_quant_dequant(x: MatrixRef<'_>, encode: f32) -> Result<Vec<f32>, Error> {
    let quantized = ref_nvfp4_quant(x, encode)?;
    let blocks = quantized.values.chunks_exact(BLOCK_SIZE).zip(&quantized.scales);
    Ok(blocks.flat_map(|(block, scale)| block.iter().map(move |q| x.dtype().round(q * (scale / encode)))).collect())
}

/// vLLM's `cast_to_fp4`: to the nearest e2m1 value, ties to even. Zero loses its sign, NaN stays NaN.
pub fn cast_to_fp4(value: f32) -> f32 {
    if value.is_nan() {
        value
    } else if value == 0.0 {
        0.0
    } else {
        e2m1::decode(e2m1::encode(value))
    }
}
