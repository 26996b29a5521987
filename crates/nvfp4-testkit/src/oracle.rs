//! The answer that every backend must give, by the obvious loops in f64, from the format's definition alone. It
//! shares no code with what it judges.

use half::{bf16, f16};
use nvfp4_core::{
    ActivationScale, ActivationScheme, DType, GlobalScale, MatrixRef, NvFp4Weights, QuantKey, QuantizedActivation,
    ScaleLayout,
};
use std::sync::LazyLock;

/// Values that share a block scale.
const BLOCK: usize = 16;

/// Values of the e2m1 magnitudes: two exponent bits with bias 1, one mantissa bit.
static E2M1: LazyLock<[f64; 8]> = LazyLock::new(|| {
    std::array::from_fn(|code| {
        let (exponent, mantissa) = (code as i32 >> 1, (code & 1) as f64);
        if exponent == 0 { mantissa / 2.0 } else { (1.0 + mantissa / 2.0) * 2f64.powi(exponent - 1) }
    })
});

/// Values of the e4m3 codes that are neither negative nor NaN: four exponent bits with bias 7, three mantissa bits.
static E4M3: LazyLock<[f64; 127]> = LazyLock::new(|| {
    std::array::from_fn(|code| {
        let (exponent, mantissa) = (code as i32 >> 3, (code & 7) as f64);
        if exponent == 0 { mantissa * 2f64.powi(-9) } else { (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7) }
    })
});

/// Value of an e2m1 code; bit 3 is the sign.
pub fn e2m1(code: u8) -> f64 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 != 0 { -magnitude } else { magnitude }
}

/// Value of an e4m3 code. Panics on codes that are negative or NaN.
pub fn e4m3(code: u8) -> f64 {
    E4M3[usize::from(code)]
}

/// The position of the value that is nearest to `x >= 0`; ties go to the even position.
fn nearest(x: f64, values: &[f64]) -> u8 {
    let above = values.partition_point(|&v| v < x).min(values.len() - 1);
    let below = above.saturating_sub(1);
    let (to_above, to_below) = ((values[above] - x).abs(), (x - values[below]).abs());
    let tie_up = to_above == to_below && above % 2 == 0;
    (if to_above < to_below || tie_up { above } else { below }) as u8
}

/// Nearest e2m1 code of a finite value, saturating.
pub fn to_e2m1(x: f32) -> u8 {
    nearest(f64::from(x.abs()), &*E2M1) | if x.is_sign_negative() { 8 } else { 0 }
}

/// Nearest e4m3 code of a finite value that is not negative, saturating.
pub fn to_e4m3(x: f32) -> u8 {
    nearest(f64::from(x), &*E4M3)
}

/// `x` rounded to `dtype`, to nearest even, once; infinite beyond its range.
pub fn round(x: f64, dtype: DType) -> f64 {
    let (digits, smallest_exponent, largest): (i32, i32, f64) = match dtype {
        DType::Bf16 => (8, -126, f64::from(bf16::MAX.to_f32())),
        DType::F16 => (11, -14, f64::from(f16::MAX.to_f32())),
        DType::F32 => return f64::from(x as f32),
        other => panic!("no rounding for {other}"),
    };
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let exponent = ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(smallest_exponent);
    let unit = 2f64.powi(exponent - digits + 1);
    let rounded = (x / unit).round_ties_even() * unit;
    if rounded.abs() > largest { f64::INFINITY.copysign(x) } else { rounded }
}

/// Largest relative error of rounding to `dtype`.
pub fn unit_roundoff(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => 2f64.powi(-8),
        DType::F16 => 2f64.powi(-11),
        _ => 2f64.powi(-24),
    }
}

/// Row `n` of the weight.
pub fn weight_row(weights: &NvFp4Weights<'_>, n: usize) -> Vec<f64> {
    let k = weights.in_features();
    let packed = &weights.packed()[n * k / 2..(n + 1) * k / 2];
    let scales = &weights.scales().bytes()[n * k / BLOCK..(n + 1) * k / BLOCK];
    let global = weights.global().row(n).map_or(f64::NAN, |g| f64::from(g.decode().get()));
    (0..k)
        .map(|i| {
            let code = packed[i / 2] >> (4 * (i % 2)) & 0xf;
            e2m1(code) * e4m3(scales[i / BLOCK]) * global
        })
        .collect()
}

/// Byte offset of a block scale (`r`, `c`) of a matrix with `cols` columns of scales.
pub fn scale_offset(layout: ScaleLayout, r: usize, c: usize, cols: usize) -> usize {
    let tiles = cols.div_ceil(4);
    match layout {
        ScaleLayout::Linear => r * cols + c,
        ScaleLayout::Swizzled128x4 => {
            ((r / 128) * tiles + c / 4) * 512 + (r % 32) * 16 + (r % 128) / 32 * 4 + c % 4
        }
        ScaleLayout::Swizzled8x4 => ((r / 8) * tiles + c / 4) * 32 + (r % 8) * 4 + c % 4,
        other => panic!("no offsets for {other:?}"),
    }
}

/// Bytes of `rows × cols` block scales.
pub fn scale_bytes(layout: ScaleLayout, rows: usize, cols: usize) -> usize {
    match layout {
        ScaleLayout::Linear => rows * cols,
        ScaleLayout::Swizzled128x4 => rows.next_multiple_of(128) * cols.next_multiple_of(4),
        ScaleLayout::Swizzled8x4 => rows.next_multiple_of(8) * cols.next_multiple_of(4),
        other => panic!("no size for {other:?}"),
    }
}

/// A row of an activation in NVFP4.
#[derive(Clone, Debug)]
struct QuantizedRow {
    codes: Vec<u8>,
    scales: Vec<u8>,
}

/// Quantizes finite values with the encode scale `g`, in f32 and in the order of the device kernels:
/// `s = g · (amax · (1/6))`, `o = 1 / (s · (1/g))`, `code = e2m1(x · o)`.
fn quantize_row(x: &[f32], g: f32) -> QuantizedRow {
    let mut row = QuantizedRow { codes: Vec::new(), scales: Vec::new() };
    for block in x.chunks(BLOCK) {
        let amax = block.iter().fold(0f32, |a, v| a.max(v.abs()));
        let scale = to_e4m3((g * (amax * (1.0 / 6.0))).min(448.0));
        let o = if scale == 0 { 0.0 } else { 1.0 / (e4m3(scale) as f32 * (1.0 / g)) };
        row.codes.extend(block.iter().map(|v| to_e2m1(v * o)));
        row.scales.push(scale);
    }
    row
}

/// The global scale of a dynamically quantized activation with this largest magnitude.
fn dynamic_scale(amax: f32) -> GlobalScale {
    GlobalScale::from_decode(amax * (1.0 / 2688.0)).unwrap_or(GlobalScale::ONE)
}

fn row(x: MatrixRef<'_>, r: usize) -> Vec<f32> {
    let mut values = vec![0.0; x.cols()];
    x.row(r).unwrap_or_else(|| panic!("row {r} of {}", x.rows())).widen_into(&mut values);
    values
}

fn amax(values: &[f32]) -> f32 {
    values.iter().fold(0f32, |a, v| a.max(v.abs()))
}

/// The global scale for each row of `x`.
fn row_scales(x: MatrixRef<'_>, scheme: ActivationScheme, input_scale: Option<GlobalScale>) -> Vec<GlobalScale> {
    let row_amax: Vec<f32> = (0..x.rows()).map(|r| amax(&row(x, r))).collect();
    match scheme {
        ActivationScheme::Nvfp4Static => vec![input_scale.unwrap_or_else(|| panic!("no input scale")); x.rows()],
        ActivationScheme::Nvfp4DynamicPerTensor => vec![dynamic_scale(amax(&row_amax)); x.rows()],
        ActivationScheme::Nvfp4DynamicPerToken => row_amax.into_iter().map(dynamic_scale).collect(),
        other => panic!("{other} does not quantize"),
    }
}

/// A row of an activation as a layer multiplies it.
#[derive(Clone, PartialEq, Debug)]
pub struct Activation {
    /// The values.
    pub values: Vec<f64>,
    /// How far each value may be off because what it is rounded from lies so near to a rounding boundary that right
    /// implementations (reciprocals instead of divisions, approximate ones on GPUs) come out on either side. Mostly
    /// zeros.
    pub slack: Vec<f64>,
}

impl Activation {
    fn certain(values: Vec<f64>) -> Self {
        let slack = vec![0.0; values.len()];
        Self { values, slack }
    }
}

/// Relative error of the few f32 operations before a value is rounded to a code, generously.
const QUANTIZER_ERROR: f64 = 1.0 / (1 << 20) as f64;

/// The codes that a value may be rounded to: one, or the two beside the boundary that it lies on.
fn possible(x: f64, values: &[f64]) -> [u8; 2] {
    [x * (1.0 - QUANTIZER_ERROR), x * (1.0 + QUANTIZER_ERROR)].map(|x| nearest(x, values))
}

/// A row of finite values as a layer that quantizes with `g` multiplies it.
fn quantized_activation(x: &[f32], g: GlobalScale) -> Activation {
    let (encode, decode) = (g.encode().get(), f64::from(g.decode().get()));
    let quantized = quantize_row(x, encode);
    let mut row = Activation { values: Vec::with_capacity(x.len()), slack: vec![0.0; x.len()] };
    for (b, block) in x.chunks(BLOCK).enumerate() {
        let scale = f64::from(encode) * f64::from(amax(block)) / 6.0;
        for (i, &v) in block.iter().enumerate() {
            let value = e2m1(quantized.codes[b * BLOCK + i]) * e4m3(quantized.scales[b]) * decode;
            let mut slack = 0f64;
            for s in possible(scale, &*E4M3).map(e4m3) {
                let ratio = if s == 0.0 { 0.0 } else { f64::from(v.abs()) * f64::from(encode) / s };
                for code in possible(ratio, &*E2M1) {
                    slack = slack.max((e2m1(code) * s * decode - value.abs()).abs());
                }
            }
            row.values.push(value);
            row.slack[b * BLOCK + i] = slack;
        }
    }
    row
}

/// Row `r` of the activation as a layer of this scheme multiplies it. All values must be finite.
pub fn activation_rows(
    x: MatrixRef<'_>,
    scheme: ActivationScheme,
    input_scale: Option<GlobalScale>,
) -> impl Fn(usize) -> Activation + '_ {
    let scales = (scheme != ActivationScheme::Unquantized).then(|| row_scales(x, scheme, input_scale));
    move |r| match &scales {
        Some(scales) => quantized_activation(&row(x, r), scales[r]),
        None => Activation::certain(row(x, r).into_iter().map(f64::from).collect()),
    }
}

/// `x` quantized as a producer would hand it over, its codes and scales padded with zeros to `padded_k` columns.
pub fn quantize(
    x: MatrixRef<'_>,
    scheme: ActivationScheme,
    input_scale: Option<GlobalScale>,
    layout: ScaleLayout,
    padded_k: usize,
) -> QuantizedActivation {
    let globals = row_scales(x, scheme, input_scale);
    let cols = padded_k / BLOCK;
    let mut data = vec![0u8; x.rows() * padded_k / 2];
    let mut scale = vec![0u8; scale_bytes(layout, x.rows(), cols)];
    for (r, g) in globals.iter().enumerate() {
        let quantized = quantize_row(&row(x, r), g.encode().get());
        for (i, code) in quantized.codes.iter().enumerate() {
            data[r * padded_k / 2 + i / 2] |= code << (4 * (i % 2));
        }
        for (c, byte) in quantized.scales.iter().enumerate() {
            scale[scale_offset(layout, r, c, cols)] = *byte;
        }
    }
    let global_scale = match scheme {
        ActivationScheme::Nvfp4DynamicPerToken => {
            ActivationScale::PerToken(globals.iter().flat_map(|g| g.decode().get().to_ne_bytes()).collect())
        }
        _ => ActivationScale::PerTensor(globals.first().copied().or(input_scale).unwrap_or(GlobalScale::ONE)),
    };
    QuantizedActivation {
        data,
        scale,
        scale_layout: layout,
        global_scale,
        rows: x.rows(),
        k: x.cols(),
        padded_k,
        orig_dtype: x.dtype(),
        orig_shape: vec![x.rows(), x.cols()],
        quant_key: quant_key(scheme),
    }
}

fn quant_key(scheme: ActivationScheme) -> QuantKey {
    match scheme {
        ActivationScheme::Nvfp4Static => QuantKey::NVFP4_DYNAMIC,
        ActivationScheme::Nvfp4DynamicPerTensor => QuantKey::NVFP4_DYNAMIC_TENSOR,
        ActivationScheme::Nvfp4DynamicPerToken => QuantKey::NVFP4_DYNAMIC_TOKEN,
        other => panic!("{other} does not quantize"),
    }
}

/// What row `r` of a quantized activation stands for.
pub fn quantized_rows(x: &QuantizedActivation) -> impl Fn(usize) -> Activation + '_ {
    let cols = x.padded_k / BLOCK;
    move |r| {
        let global = match &x.global_scale {
            ActivationScale::PerTensor(g) => f64::from(g.decode().get()),
            ActivationScale::PerToken(bytes) => {
                let four = bytes.chunks_exact(4).nth(r).and_then(|b| <[u8; 4]>::try_from(b).ok());
                f64::from(f32::from_ne_bytes(four.unwrap_or_else(|| panic!("no scale for row {r}"))))
            }
            other => panic!("no value for {other:?}"),
        };
        let value = |i: usize| {
            let byte = x.data[(r * x.padded_k + i) / 2];
            let code = byte >> (4 * (i % 2)) & 0xf;
            e2m1(code) * e4m3(x.scale[scale_offset(x.scale_layout, r, i / BLOCK, cols)]) * global
        };
        Activation::certain((0..x.k).map(value).collect())
    }
}

/// One element of the product.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// `Σ x·w + bias`.
    pub value: f64,
    /// `Σ |x·w| + |bias|`, which bounds the error of a sum in any order.
    pub magnitude: f64,
    /// How far the value may be off because x may ([`Activation::slack`]).
    pub slack: f64,
}

/// One element of `x · Wᵀ + bias`.
pub fn element(x: &Activation, w: &[f64], bias: f64) -> Element {
    assert_eq!(x.values.len(), w.len());
    let (mut value, mut magnitude, mut slack) = (0.0, 0.0, 0.0);
    for ((a, b), s) in x.values.iter().zip(w).zip(&x.slack) {
        value += a * b;
        magnitude += (a * b).abs();
        slack += s * b.abs();
    }
    Element { value: value + bias, magnitude: magnitude + bias.abs(), slack }
}

/// How far a result of type `dtype` may be from `element` if sums of `k` products are made in f32, in any order:
/// the classical `γ(k + 8) · Σ|x·w|` (eight more roundings for scales and bias), then one rounding to `dtype`.
/// Results that are subnormal in f32 may be flushed.
pub fn bound(element: Element, k: usize, dtype: DType) -> f64 {
    let n = (k + 8) as f64 * 2f64.powi(-24);
    let sum = n / (1.0 - n) * element.magnitude + element.slack;
    let smallest = if dtype == DType::F16 { 2f64.powi(-25) } else { 2f64.powi(-126) };
    sum + unit_roundoff(dtype) * (element.value.abs() + sum) + smallest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oracle_agrees_with_the_definition() {
        assert_eq!((0..8).map(e2m1).collect::<Vec<_>>(), [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert_eq!((e2m1(15), e4m3(0x7e), e4m3(1), e4m3(0x38)), (-6.0, 448.0, 2f64.powi(-9), 1.0));
        // Ties to even, both signs (quantiser corners of the field reports).
        for (x, magnitude) in
            [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0), (9.0, 6.0)]
        {
            assert_eq!((e2m1(to_e2m1(x)), e2m1(to_e2m1(-x))), (magnitude, -magnitude), "{x}");
        }
        // x = 0..15 with amax 15 / 2688: the answer that every correct device quantizer gives.
        let x: Vec<f32> = (0..16).map(|v| v as f32).collect();
        let row = quantize_row(&x, 1.0 / (1.0 / 179.2));
        let bytes: Vec<u8> = row.codes.chunks(2).map(|c| c[0] | c[1] << 4).collect();
        assert_eq!(bytes, [0x10, 0x22, 0x43, 0x54, 0x65, 0x66, 0x76, 0x77]);
        assert_eq!(row.scales, [0x7e]);
    }

    #[test]
    fn rounding_is_to_nearest_even_once() {
        assert_eq!(round(1.0 + 2f64.powi(-8), DType::Bf16), 1.0);
        assert_eq!(round(1.0 + 2f64.powi(-8) * 1.0001, DType::Bf16), 1.0 + 2f64.powi(-7));
        assert_eq!(round(1.0 + 3.0 * 2f64.powi(-8), DType::Bf16), 1.0 + 2f64.powi(-6));
        assert_eq!(round(65519.9, DType::F16), 65504.0);
        assert_eq!(round(-65520.0, DType::F16), f64::NEG_INFINITY);
        assert_eq!(round(2f64.powi(-25), DType::F16), 0.0);
        assert_eq!(round(3.0 * 2f64.powi(-25), DType::F16), 2f64.powi(-23));
        for bits in 0..=u16::MAX {
            let (b, h) = (bf16::from_bits(bits), f16::from_bits(bits));
            assert!(b.is_nan() || round(b.to_f64(), DType::Bf16) == b.to_f64(), "{b}");
            assert!(h.is_nan() || round(h.to_f64(), DType::F16) == h.to_f64(), "{h}");
        }
    }

    #[test]
    fn scale_offsets_are_those_of_the_field_reports() {
        use ScaleLayout::{Swizzled8x4, Swizzled128x4};
        for (r, c, cols, offset) in [
            (33, 5, 8, 533),
            (127, 230, 231, 29694),
            (128, 0, 231, 29696),
            (1, 0, 4, 16),
            (32, 0, 4, 4),
            (0, 1, 4, 1),
        ] {
            assert_eq!(scale_offset(Swizzled128x4, r, c, cols), offset);
        }
        assert_eq!(scale_offset(Swizzled8x4, 9, 5, 8), 101);
        assert_eq!((scale_bytes(Swizzled128x4, 129, 231), scale_bytes(Swizzled8x4, 9, 231)), (59392, 3712));
    }
}
