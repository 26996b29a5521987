//! What memory held before a call, or holds beside the operands, must not show in the result. All runs of a case
//! must give the same bits.

use super::{Report, run as apply, with_layer};
use crate::{
    implementation::{Implementation, Input, LoadedLayer},
    layers::{Case, Example, SCHEMES, dtype_pairs, random},
    matrices::HostMatrix,
    oracle,
    random::Rng,
};
use nvfp4_core::{ActivationScheme, ScaleLayout};

/// Zeros, the largest block scale, a NaN block scale, and NaN in every floating-point type.
const FILLS: [u8; 4] = [0x00, 0x7e, 0x7f, 0xff];

/// `(m, n, k)`; `k` is odd multiples of 16, so that every padding is at work.
const SHAPES: &[(usize, usize, usize)] = &[(1, 20, 48), (5, 33, 80), (8, 7, 176)];

/// Runs the tier.
pub fn run(implementation: &dyn Implementation, seed: u64) -> Report {
    let mut report = Report::new("poison", implementation.name());
    let mut rng = Rng::new(seed);
    for scheme in SCHEMES {
        for dtypes in dtype_pairs() {
            for &(m, n, k) in SHAPES {
                let case = Case::new(m, n, k, scheme, rng.bits()).with_dtypes(dtypes).with_bias(rng.flip());
                with_layer(&mut report, implementation, case, random, |report, example, loaded| {
                    fills(report, example, loaded);
                    foreign_rows(report, example, loaded);
                    if loaded.input_quant_key().is_some() {
                        padded_scales(report, example, loaded);
                    }
                });
            }
        }
    }
    report
}

/// Output, gaps and scratch memory filled; x strided, with its gaps filled.
fn fills(report: &mut Report, example: &Example, loaded: &dyn LoadedLayer) {
    let case = example.case;
    let (n, k) = (case.config.out_features, case.config.in_features);
    let mut first: Option<Vec<u32>> = None;
    for fill in FILLS {
        let x = example.x.restrided(k + 16, fill);
        let Some(out) = apply(report, case, loaded, Input::Matrix(x.view()), (n + 5, fill)) else { return };
        let bits: Vec<u32> = (0..case.m).flat_map(|r| out.row_bits(r)).collect();
        let same = first.get_or_insert_with(|| bits.clone()) == &bits;
        report.check(same, case, || format!("result depends on the contents of memory ({fill:#04x} against 0x00)"));
    }
}

/// Rows that are NaN, infinite or huge must not change the others. (With one dynamic scale for all rows they do, by
/// definition.)
fn foreign_rows(report: &mut Report, example: &Example, loaded: &dyn LoadedLayer) {
    let case = example.case;
    if case.config.activation == ActivationScheme::Nvfp4DynamicPerTensor {
        return;
    }
    let (n, k) = (case.config.out_features, case.config.in_features);
    let own: Vec<usize> = (0..case.m).map(|r| 2 * r + 1).collect();
    let mut first: Option<Vec<u32>> = None;
    for foreign in [0.0, f32::NAN, f32::INFINITY, 6e4] {
        let mut x =
            HostMatrix::new(case.config.input_dtype, 2 * case.m + 1, k, &vec![foreign; (2 * case.m + 1) * k]);
        for (r, &row) in own.iter().enumerate() {
            (0..k).for_each(|c| x.set(row, c, example.x.get(r, c)));
        }
        let Some(out) = apply(report, case, loaded, Input::Matrix(x.view()), (n, 0xff)) else { return };
        let bits: Vec<u32> = own.iter().flat_map(|&r| out.row_bits(r)).collect();
        let same = first.get_or_insert_with(|| bits.clone()) == &bits;
        report.check(same, case, || format!("rows of {foreign} change the rows beside them"));
    }
}

/// Block scales of rows that do not exist.
fn padded_scales(report: &mut Report, example: &Example, loaded: &dyn LoadedLayer) {
    let case = example.case;
    for layout in [ScaleLayout::Swizzled128x4, ScaleLayout::Swizzled8x4] {
        let mut first: Option<Vec<u32>> = None;
        for fill in FILLS {
            let k = case.config.in_features;
            let mut x =
                oracle::quantize(example.x.view(), case.config.activation, example.layer.input_scale, layout, k);
            let cols = k / 16;
            let rows = x.scale.len() / cols.next_multiple_of(4);
            for r in case.m..rows {
                for c in 0..cols {
                    x.scale[oracle::scale_offset(layout, r, c, cols)] = fill;
                }
            }
            let Some(out) = apply(report, case, loaded, Input::Quantized(&x), (case.config.out_features, 0xff))
            else {
                return;
            };
            let bits = out.bits();
            let same = first.get_or_insert_with(|| bits.clone()) == &bits;
            report
                .check(same, case, || format!("padded scale rows of {fill:#04x} in {layout:?} show in the result"));
        }
    }
}
