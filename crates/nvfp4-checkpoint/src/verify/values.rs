//! Faults in the values of tensors.

use super::finding::{Fault, Finding, Places};
use crate::dense_matrix::DenseMatrix;
use nvfp4_core::{BLOCK_SIZE, GlobalScale};

/// Bytes of codes that share a scale.
const BLOCK_BYTES: usize = BLOCK_SIZE / 2;
/// NaN without sign.
const NAN: u8 = 0x7f;

/// Faults of block scales. `packed` are the codes they belong to, `columns` the blocks of a row.
pub(super) fn check_block_scales(packed: &[u8], scales: &[u8], columns: usize, limit: usize) -> Vec<Finding> {
    let (mut nan, mut negative, mut zero) = (Places::new(limit), Places::new(limit), Places::new(limit));
    for (i, (&scale, codes)) in scales.iter().zip(packed.as_chunks::<BLOCK_BYTES>().0).enumerate() {
        let places = match scale {
            0 | 0x80 if !all_zero(codes) => &mut zero,
            0 => continue,
            _ if scale & NAN == NAN => &mut nan,
            0x80.. => &mut negative,
            _ => continue,
        };
        places.add(i / columns.max(1), Some(i % columns.max(1)), || format!("{scale:#04x}"));
    }
    let all = scales.len();
    [
        (nan.count > 0).then(|| {
            let message = format!(
                "{} of {all} block scales are NaN; each turns an output feature into NaN (exporters that divide a \
                 stand-in scale of empty blocks write these)",
                nan.count
            );
            Finding::error(Fault::NanBlockScale, message).at(nan)
        }),
        (negative.count > 0).then(|| {
            let message = format!(
                "{} of {all} block scales have the sign bit, which tensor cores ignore; expected 0x00 to 0x7e",
                negative.count
            );
            Finding::error(Fault::NegativeBlockScale, message).at(negative)
        }),
        (zero.count > 0).then(|| {
            let message = format!(
                "{} of {all} block scales are zero over codes that are not; those values are lost",
                zero.count
            );
            Finding::warning(Fault::ZeroBlockScale, message).at(zero)
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Whether all codes are zero, of either sign.
pub(super) fn all_zero(codes: &[u8]) -> bool {
    codes.iter().all(|pair| pair & 0x77 == 0)
}

/// The convention that a global scale is stored in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Convention {
    /// A multiplier.
    Decode,
    /// A divisor.
    Encode,
}

/// Largest magnitude that a weight or an activation plausibly has: the largest that f16 holds. A global scale that
/// means more is one of the other convention.
const PLAUSIBLE_AMAX: f32 = 65504.0;

/// The scale, or why it is none.
pub(super) fn check_global_scale(
    value: f32,
    convention: Convention,
    dead: bool,
) -> (Option<GlobalScale>, Option<Finding>) {
    let scale = match convention {
        Convention::Decode => GlobalScale::from_decode(value),
        Convention::Encode => GlobalScale::from_encode(value),
    };
    let scale = match scale {
        Ok(scale) => scale,
        Err(_) if value == 0.0 && dead => {
            let message = "is 0 and all codes are zero: a module that was never used; it computes zeros";
            return (None, Some(Finding::warning(Fault::GlobalScale, message)));
        }
        Err(error) => return (None, Some(Finding::error(Fault::GlobalScale, error.to_string()))),
    };
    // decode = amax / 2688
    let amax = scale.decode().get() * (nvfp4_core::E2M1_MAX * nvfp4_core::E4M3_MAX);
    if amax <= PLAUSIBLE_AMAX {
        return (Some(scale), None);
    }
    let (is, other) = match convention {
        Convention::Decode => ("multiplier", "divisor"),
        Convention::Encode => ("divisor", "multiplier"),
    };
    let message = format!(
        "{value} as a {is} means values up to {amax:e}; it looks like a {other}, whose reciprocal belongs here"
    );
    (Some(scale), Some(Finding::warning(Fault::GlobalScaleConvention, message)))
}

/// NaN and infinity in an unquantized tensor.
pub(super) fn check_finite(matrix: &DenseMatrix<'_>, limit: usize) -> Option<Finding> {
    let mut places = Places::new(limit);
    for range in matrix.chunks() {
        let values = matrix.read(range.clone()).widened();
        // A cheap pass first: almost every piece is sound.
        if values.iter().fold(true, |sound, v| sound & v.is_finite()) {
            continue;
        }
        for (i, value) in values.iter().enumerate().filter(|(_, v)| !v.is_finite()) {
            places.add(range.start + i / matrix.cols(), Some(i % matrix.cols()), || value.to_string());
        }
    }
    (places.count > 0).then(|| {
        let message = format!("{} of {} values are not finite", places.count, matrix.rows() * matrix.cols());
        Finding::error(Fault::NotFinite, message).at(places)
    })
}
