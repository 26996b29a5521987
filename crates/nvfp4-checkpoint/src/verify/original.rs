//! A quantized module against its dense original: how far it is, and what explains the distance.

use super::finding::{Fault, Finding, Places};
use crate::{
    dense_matrix::{DenseMatrix, row_chunks},
    layer_error::{ErrorMeasures, ErrorSums},
};
use nvfp4_core::{
    BLOCK_SIZE, E2M1_MAX, E4M3_MAX, Error, LinearScales, NvFp4Weights, ScaleLayout, SwizzledScales,
    dequantize::dequantize_row, e4m3,
};
use serde::Serialize;
use std::fmt;

/// Relative error above which values are wrong. NVFP4 itself gives 0.095 on normal data; block scales in the wrong order
/// give 0.31 to 0.68, swapped nibbles 1.41.
pub const WRONG: f64 = 0.2;
/// Rows that an explanation is tried on.
const SAMPLE_ROWS: usize = 128;
/// Smallest normal block scale: below, scales have fewer than four significant bits.
const SMALLEST_NORMAL_SCALE: f32 = 1.0 / 64.0;
/// Smallest block scale that is not zero.
const SMALLEST_SCALE: f32 = 1.0 / 512.0;

/// Error of a row.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct RowError {
    /// The row.
    pub row: usize,
    /// Its relative error.
    pub relative_error: f64,
}

/// What explains the distance from the original.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Diagnosis {
    /// The error of the format.
    Sound,
    /// The tensor's values span more than block scales can: what is lost lies in blocks whose scale would be below the
    /// smallest normal or above 448. No loader can help; the quantizer's global scale can.
    FormatLimit,
    /// Everything is too large by one factor: the global scale is wrong.
    GlobalScale {
        /// ‖found‖ / ‖original‖.
        ratio: f64,
        /// The factor is the square of the global scale: a divisor was stored where a multiplier belongs, or the reverse.
        inverted: bool,
    },
    /// Each row is too large or small by a factor of its own: parts of a fused matrix with one part's global scale.
    RowScales {
        /// Smallest ‖found‖ / ‖original‖ of a row.
        smallest: f64,
        /// Largest.
        largest: f64,
    },
    /// Some rows are wrong, and not by a factor; the others are sound.
    Rows,
    /// The block scales are stored in the 128x4 layout of the kernels.
    SwizzledScales,
    /// The even element of a pair is in the high nibble.
    NibbleOrder,
    /// Both of the above.
    NibbleOrderAndSwizzledScales,
    /// Nibbles hold elements 8 apart, as in GGUF.
    SplitNibbles,
    /// None of these: another module's weights, permuted rows or columns, or damaged data.
    Unexplained,
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sound => f.write_str("the error of the format"),
            Self::FormatLimit => f.write_str(
                "the values span more than block scales can hold (format, not loader): quantize with another global scale",
            ),
            Self::GlobalScale { ratio, inverted: true } => write!(
                f,
                "global scale inverted: values are {ratio:.4e} times the original's, the square of the global scale; a \
                 divisor is stored as a multiplier or the reverse"
            ),
            Self::GlobalScale { ratio, inverted: false } => write!(
                f,
                "global scale mismatched: the ratio of norms is constant, values are {ratio:.4} times the original's"
            ),
            Self::RowScales { smallest, largest } => write!(
                f,
                "global scale of rows mismatched: rows are {smallest:.4} to {largest:.4} times the original's, as when \
                 parts of a fused matrix get one part's global scale"
            ),
            Self::Rows => f.write_str("some rows are damaged or misplaced, the others are sound"),
            Self::SwizzledScales => f.write_str("block scales are in the 128x4 layout, not row by row"),
            Self::NibbleOrder => f.write_str("nibble order: the even element of a pair is in the high nibble"),
            Self::NibbleOrderAndSwizzledScales => f.write_str("nibble order, and block scales in the 128x4 layout"),
            Self::SplitNibbles => f.write_str("nibble order: nibbles hold elements 8 apart, as in GGUF"),
            Self::Unexplained => f.write_str(
                "no known fault explains it: weights of another module, permuted rows or columns, or damaged data",
            ),
        }
    }
}

/// A module compared with its original.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Comparison {
    pub(super) error: ErrorMeasures,
    pub(super) diagnosis: Diagnosis,
    /// The rows with the largest errors, the worst first.
    pub(super) worst_rows: Vec<RowError>,
    /// Rows above [`WRONG`], in order, if the other rows are sound, that the format does not explain.
    pub(super) wrong_rows: Vec<RowError>,
    /// The same, explained by the format.
    pub(super) limited_rows: Vec<RowError>,
}

impl Comparison {
    /// What is worth reporting.
    pub(super) fn findings(&self, limit: usize) -> Vec<Finding> {
        let places = |rows: &[RowError]| {
            let mut places = Places::new(limit);
            rows.iter().for_each(|r| places.add(r.row, None, || format!("relative error {:.4}", r.relative_error)));
            places
        };
        let error = self.error.relative_error;
        let mut findings = Vec::new();
        match self.diagnosis {
            // The rows are named below.
            Diagnosis::Sound | Diagnosis::Rows => {}
            Diagnosis::FormatLimit => findings.push(Finding::warning(
                Fault::FormatLimit,
                format!("relative error {error:.4}: {}", self.diagnosis),
            )),
            _ => findings.push(Finding::error(
                Fault::WrongValues,
                format!("relative error {error:.4}, expected about 0.095: {}", self.diagnosis),
            )),
        }
        if !self.wrong_rows.is_empty() {
            let message = format!(
                "most of the module is sound (relative error of all {error:.4}), but {} rows are not: damaged or misplaced",
                self.wrong_rows.len()
            );
            findings.push(Finding::error(Fault::WrongRows, message).at(places(&self.wrong_rows)));
        }
        if !self.limited_rows.is_empty() {
            let message = format!(
                "{} rows lose values that the format cannot hold beside the tensor's largest (block scales below the \
                 smallest normal, or above 448)",
                self.limited_rows.len()
            );
            findings.push(Finding::warning(Fault::FormatLimit, message).at(places(&self.limited_rows)));
        }
        findings
    }
}

/// Sums of a row: all its blocks, and those that the format can hold.
struct RowSums {
    all: ErrorSums,
    holdable: ErrorSums,
}

/// Compares a module, whose values must be finite, with the original of the same shape. `worst`: rows to name.
pub(super) fn compare(
    original: &DenseMatrix<'_>,
    weights: &NvFp4Weights<'_>,
    worst: usize,
) -> Result<Comparison, Error> {
    let mut total = RowSums { all: ErrorSums::default(), holdable: ErrorSums::default() };
    let mut rows = Vec::with_capacity(original.rows());
    for_rows(original, weights, 1, |row, sums| {
        total.all.merge(&sums.all);
        total.holdable.merge(&sums.holdable);
        rows.push(RowMeasures { row, all: sums.all.measures(), holdable: sums.holdable.measures() });
    })?;
    let error = total.all.measures();
    let diagnosis = if error.relative_error <= WRONG {
        Diagnosis::Sound
    } else if let Some(ratio) = scaled(&error) {
        let square = weights.global().as_per_tensor().map(|g| f64::from(g.decode().get()).powi(2));
        Diagnosis::GlobalScale {
            ratio,
            inverted: square.is_some_and(|square| (ratio / square - 1.0).abs() < WRONG),
        }
    } else if total.holdable.measures().relative_error <= WRONG {
        Diagnosis::FormatLimit
    } else {
        explain(original, weights, &rows)?
    };
    let by_row = matches!(diagnosis, Diagnosis::Sound | Diagnosis::Rows);
    let wrong = |row: &&RowMeasures| by_row && row.all.relative_error > WRONG;
    let limited = |row: &&RowMeasures| row.holdable.relative_error <= WRONG;
    let wrong_rows = rows.iter().filter(wrong).filter(|r| !limited(r)).map(RowMeasures::error).collect();
    let limited_rows = rows.iter().filter(wrong).filter(limited).map(RowMeasures::error).collect();
    rows.sort_by(|a, b| b.all.relative_error.total_cmp(&a.all.relative_error).then(a.row.cmp(&b.row)));
    let worst_rows = rows.iter().take(worst).map(RowMeasures::error).collect();
    Ok(Comparison { error, diagnosis, worst_rows, wrong_rows, limited_rows })
}

/// Measures of a row.
struct RowMeasures {
    row: usize,
    all: ErrorMeasures,
    holdable: ErrorMeasures,
}

impl RowMeasures {
    fn error(&self) -> RowError {
        RowError { row: self.row, relative_error: self.all.relative_error }
    }
}

/// Calls `each` with the sums of every `step`th row.
fn for_rows(
    original: &DenseMatrix<'_>,
    weights: &NvFp4Weights<'_>,
    step: usize,
    mut each: impl FnMut(usize, RowSums),
) -> Result<(), Error> {
    let (k, columns) = (original.cols(), weights.scales().cols());
    let mut found = vec![0.0; k];
    let chunks: Box<dyn Iterator<Item = std::ops::Range<usize>>> = match step {
        1 => Box::new(row_chunks(original.rows(), k)),
        _ => Box::new((0..original.rows()).step_by(step).map(|row| row..row + 1)),
    };
    for range in chunks {
        let values = original.read(range.clone()).widened();
        for (row, expected) in range.zip(values.chunks_exact(k)) {
            dequantize_row(weights, row, &mut found)?;
            let decode = weights.global().row(row).map_or(1.0, |g| g.decode().get());
            let mut sums = RowSums { all: ErrorSums::default(), holdable: ErrorSums::default() };
            let scales = weights.scales().bytes().get(row * columns..).unwrap_or_default();
            for ((expected, found), &scale) in expected.chunks(BLOCK_SIZE).zip(found.chunks(BLOCK_SIZE)).zip(scales)
            {
                sums.all.add(expected, found);
                let ideal = expected.iter().fold(0f32, |max, v| max.max(v.abs())) / (E2M1_MAX * decode);
                if !is_limited(ideal, e4m3::decode(scale), found) {
                    sums.holdable.add(expected, found);
                }
            }
            each(row, sums);
        }
    }
    Ok(())
}

/// Whether a block is as good as the format allows, which is not good: its ideal scale cannot be stored, and the stored one
/// is the nearest. `ideal`: the scale that makes the largest original value 6.
fn is_limited(ideal: f32, scale: f32, found: &[f32]) -> bool {
    if ideal > E4M3_MAX * 1.04 {
        return scale == E4M3_MAX;
    }
    // Between two subnormal scales lies 2⁻⁹; some exporters write no smaller one. Others write a stand-in scale, with
    // which all codes are zero.
    let nearest = (scale - ideal).abs() <= SMALLEST_SCALE;
    ideal > 0.0 && ideal < SMALLEST_NORMAL_SCALE && (nearest || found.iter().all(|v| *v == 0.0))
}

/// The relative error that is left when the quantized values are scaled by the best factor.
fn residual(measures: &ErrorMeasures) -> f64 {
    (1.0 - measures.cosine * measures.cosine).max(0.0).sqrt()
}

/// ‖found‖ / ‖original‖, if the values are right but for that factor.
fn scaled(measures: &ErrorMeasures) -> Option<f64> {
    (measures.cosine > 0.0 && residual(measures) <= WRONG).then_some(measures.norm_ratio)
}

/// What explains values that are wrong, and not by one factor.
fn explain(
    original: &DenseMatrix<'_>,
    weights: &NvFp4Weights<'_>,
    rows: &[RowMeasures],
) -> Result<Diagnosis, Error> {
    // The right values but for a factor a row.
    let nonzero: Vec<&RowMeasures> =
        rows.iter().filter(|r| r.all.norm_ratio > 0.0 && r.all.norm_ratio.is_finite()).collect();
    let aligned = nonzero.iter().filter(|r| scaled(&r.all).is_some()).count();
    let wrong = || nonzero.iter().filter(|r| r.all.relative_error > WRONG);
    let mostly_aligned = aligned > 0 && aligned * 10 >= nonzero.len() * 9;
    if mostly_aligned && wrong().filter(|r| scaled(&r.all).is_some()).count() * 2 < wrong().count() {
        return Ok(Diagnosis::Rows);
    }
    if mostly_aligned {
        let ratios = nonzero.iter().map(|r| r.all.norm_ratio);
        let (smallest, largest) = ratios.fold((f64::INFINITY, 0.0), |(a, b), r| (r.min(a), r.max(b)));
        return Ok(Diagnosis::RowScales { smallest, largest });
    }
    // Other layouts, each with whatever global scale. The best wins, and must be good.
    let (n, columns) = (weights.out_features(), weights.scales().cols());
    let scales = |bytes: &[u8]| -> Option<LinearScales<'static>> {
        let swizzled = SwizzledScales::from_bytes(ScaleLayout::Swizzled128x4, n, columns, bytes).ok()?;
        swizzled.unswizzle().ok()
    };
    let linear = weights.scales().clone();
    let unswizzled = scales(weights.scales().bytes());
    let swapped: Vec<u8> = weights.packed().iter().map(|b| b.rotate_left(4)).collect();
    let joined = join_split_nibbles(weights.packed());
    let candidates = [
        (Diagnosis::SwizzledScales, weights.packed(), unswizzled.as_ref()),
        (Diagnosis::NibbleOrder, &swapped[..], Some(&linear)),
        (Diagnosis::NibbleOrderAndSwizzledScales, &swapped[..], unswizzled.as_ref()),
        (Diagnosis::SplitNibbles, &joined[..], Some(&linear)),
    ];
    let step = n.div_ceil(SAMPLE_ROWS).max(1);
    let mut best = (WRONG, Diagnosis::Unexplained);
    for (diagnosis, packed, scales) in candidates {
        let Some(scales) = scales else { continue };
        let candidate =
            NvFp4Weights::new(n, weights.in_features(), packed, scales.clone(), weights.global().clone())?;
        let mut sums = ErrorSums::default();
        for_rows(original, &candidate, step, |_, row| sums.merge(&row.all))?;
        let measures = sums.measures();
        if measures.cosine > 0.0 && residual(&measures) < best.0 {
            best = (residual(&measures), diagnosis);
        }
    }
    Ok(best.1)
}

/// Codes in the usual order from GGUF's, where byte `j` of a block holds elements `j` and `j + 8`.
fn join_split_nibbles(packed: &[u8]) -> Vec<u8> {
    let block = |b: &[u8; 8]| -> [u8; 8] {
        let code = |i: usize| if i < 8 { b[i] & 15 } else { b[i - 8] >> 4 };
        std::array::from_fn(|j| code(2 * j) | code(2 * j + 1) << 4)
    };
    packed.as_chunks::<8>().0.iter().flat_map(block).collect()
}
