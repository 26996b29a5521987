//! One global scale for a tensor whose parts have several, for backends that take one `alpha`.
//!
//! A fused tensor (q, k and v; gate and up) may carry a global scale for each part. Taking the largest, as vLLM's loaders
//! do, leaves the other parts wrong by the ratio. What is exact instead, in this order:
//!
//! 1. [`fold_powers_of_two`]: where the ratios are powers of two and every block scale survives the shift;
//! 2. [`row_multipliers`]: one scale in the GEMM, each output row multiplied by its ratio afterwards (before the bias).
//!
//! [`requantize_block_scales`] rounds the block scales to a common global scale. It is not exact, says by how much, and is
//! for callers who ask for it.

use crate::{
    BLOCK_SIZE, E4M3_MAX,
    block_scale::LinearScales,
    e2m1, e4m3,
    error::Error,
    global_scale::{GlobalScale, GlobalScales},
    weights::NvFp4Weights,
};
use alloc::vec::Vec;

/// The same values with one global scale, or `None` if some block scale cannot absorb its part's ratio exactly.
///
/// The base is the largest part's scale divided by the least power of two, down to the smallest part's scale, for which no
/// block scale overflows 448 or loses bits below 2⁻⁹; it need not be the scale of any part. Blocks of zeros take any scale,
/// NaN block scales stay NaN.
pub fn fold_powers_of_two(weights: &NvFp4Weights<'_>) -> Result<Option<NvFp4Weights<'static>>, Error> {
    if weights.global().as_per_tensor().is_some() {
        return Ok(Some(weights.clone().into_owned()));
    }
    let order = |a: &GlobalScale, b: &GlobalScale| a.decode().get().total_cmp(&b.decode().get());
    let scales = || weights.global().parts().iter().map(|p| p.1);
    let (Some(largest), Some(smallest)) = (scales().max_by(order), scales().min_by(order)) else { return Ok(None) };
    // Block scales span 18 powers of two: no block survives a longer shift.
    let bases = (0..=18).map_while(|halvings| halved(largest, halvings));
    for base in bases.take_while(|base| order(base, &smallest).is_ge()) {
        if let Some(scales) = shift_scales(weights, base) {
            return with_scales(weights, scales, base).map(Some);
        }
    }
    Ok(None)
}

/// `scale` divided by a power of two, exactly and in both conventions, or `None` if there is no such scale.
fn halved(scale: GlobalScale, halvings: i32) -> Option<GlobalScale> {
    let power = f32::from_bits(((127 + halvings) as u32) << 23);
    let (decode, encode) = (scale.decode().get() / power, scale.encode().get() * power);
    [GlobalScale::from_decode(decode), GlobalScale::from_encode(encode)].into_iter().flatten().find(|base| {
        base.decode().get() == decode && base.encode().get() == encode && decode * power == scale.decode().get()
    })
}

/// Block scales for the global scale `base`, if all are exact.
fn shift_scales(weights: &NvFp4Weights<'_>, base: GlobalScale) -> Option<Vec<u8>> {
    let (k, columns) = (weights.in_features(), weights.scales().cols());
    let mut scales = weights.scales().bytes().to_vec();
    let rows = scales.chunks_exact_mut(columns).zip(weights.packed().chunks_exact(k / 2));
    for ((scales, codes), global) in rows.zip(weights.global().iter_rows()) {
        let ratio = global.decode().get() / base.decode().get();
        if !is_power_of_two(ratio) || ratio * base.decode().get() != global.decode().get() {
            return None;
        }
        for (scale, codes) in scales.iter_mut().zip(codes.chunks_exact(BLOCK_SIZE / 2)) {
            let exact = e4m3::decode(*scale) * ratio;
            if exact.is_nan() {
                continue;
            }
            let shifted = e4m3::encode(exact);
            if e4m3::decode(shifted) == exact {
                *scale = shifted;
            } else if codes.iter().all(|byte| byte & 0x77 == 0) {
                *scale = 0;
            } else {
                return None;
            }
        }
    }
    Some(scales)
}

fn is_power_of_two(value: f32) -> bool {
    value.is_normal() && value > 0.0 && value.to_bits() & 0x7f_ffff == 0
}

/// A base scale, and for each row the factor that its output is to be multiplied by: `factor = row scale / base`. The base
/// is the scale of the first part, so that layers with one scale have factors of exactly 1.
pub fn row_multipliers(global: &GlobalScales) -> (GlobalScale, Vec<f32>) {
    let base = global.parts().first().map_or(GlobalScale::ONE, |p| p.1);
    // In f64 and rounded once: the product with the base is then within one unit of the row's own scale.
    let factor = |scale: GlobalScale| (f64::from(scale.decode().get()) / f64::from(base.decode().get())) as f32;
    (base, global.iter_rows().map(factor).collect())
}

/// What requantizing did to one part.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FoldError {
    /// First row of the part.
    pub first_row: usize,
    /// Rows of the part.
    pub rows: usize,
    /// Largest relative change of a block scale whose block is not zero.
    pub max_relative: f32,
    /// Relative change of the part's values, ‖new − old‖ / ‖old‖.
    pub relative_l2: f32,
}

/// The weights with one global scale, the largest of the parts', and block scales rounded to it; and what that cost each
/// part. The codes stay as they are. NaN and negative block scales are refused.
pub fn requantize_block_scales(
    weights: &NvFp4Weights<'_>,
) -> Result<(NvFp4Weights<'static>, Vec<FoldError>), Error> {
    weights.scales().check_values()?;
    let parts = weights.global().parts();
    let base = parts
        .iter()
        .map(|p| p.1)
        .max_by(|a, b| a.decode().get().total_cmp(&b.decode().get()))
        .unwrap_or(GlobalScale::ONE);
    let (k, columns) = (weights.in_features(), weights.scales().cols());
    let mut scales = weights.scales().bytes().to_vec();
    let mut errors = Vec::with_capacity(parts.len());
    let mut first_row = 0;
    for &(rows, global) in parts {
        let ratio = global.decode().get() / base.decode().get();
        let (mut max_relative, mut change, mut norm) = (0f32, 0f64, 0f64);
        let blocks = first_row * columns..(first_row + rows) * columns;
        let codes = weights.packed()[first_row * (k / 2)..].chunks_exact(BLOCK_SIZE / 2);
        for (scale, codes) in scales[blocks].iter_mut().zip(codes) {
            let ideal = e4m3::decode(*scale) * ratio;
            *scale = e4m3::encode(ideal.min(E4M3_MAX));
            let squares: f64 = codes
                .iter()
                .flat_map(|b| [b & 15, b >> 4])
                .map(|code| f64::from(e2m1::decode(code)) * f64::from(e2m1::decode(code)))
                .sum();
            if squares == 0.0 || ideal == 0.0 {
                continue;
            }
            let difference = e4m3::decode(*scale) - ideal;
            max_relative = max_relative.max((difference / ideal).abs());
            change += squares * f64::from(difference) * f64::from(difference);
            norm += squares * f64::from(ideal) * f64::from(ideal);
        }
        let relative_l2 = if norm > 0.0 { sqrt(change / norm) as f32 } else { 0.0 };
        errors.push(FoldError { first_row, rows, max_relative, relative_l2 });
        first_row += rows;
    }
    Ok((with_scales(weights, scales, base)?, errors))
}

/// The codes of `weights` with other scales.
fn with_scales(
    weights: &NvFp4Weights<'_>,
    scales: Vec<u8>,
    global: GlobalScale,
) -> Result<NvFp4Weights<'static>, Error> {
    let (n, k) = (weights.out_features(), weights.in_features());
    let scales = LinearScales::new(n, k / BLOCK_SIZE, scales)?;
    let global = GlobalScales::per_tensor(n, global);
    let folded = NvFp4Weights::new(n, k, weights.packed().to_vec(), scales, global)?;
    match weights.stacked_rows() {
        Some(rows) => folded.with_stacked_rows(rows),
        None => Ok(folded),
    }
}

/// Square root by Newton's method: `core` has none.
fn sqrt(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let mut root = f64::from_bits((value.to_bits() >> 1) + (1023u64 << 51));
    for _ in 0..6 {
        root = 0.5 * (root + value / root);
    }
    root
}
