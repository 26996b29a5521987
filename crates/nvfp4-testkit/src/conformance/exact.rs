//! Inputs on a grid where every sum is exact in f32 in any order: there is one right answer, to the bit.

use super::{Bar, NAN_FILL, Report, all, compare, run_and_compare, with_layer};
use crate::{
    implementation::{Implementation, Input},
    layers::{Case, Example, SCHEMES, dtype_pairs, exact, layer},
    matrices::HostMatrix,
    oracle::Activation,
    random::Rng,
};
use nvfp4_core::{ActivationScheme, DType, GlobalScale, GlobalScales};

/// `(m, n, k)`: small, and none a multiple of a vector or tile.
const SHAPES: &[(usize, usize, usize)] =
    &[(1, 1, 16), (3, 5, 48), (2, 33, 80), (9, 17, 112), (5, 40, 240), (17, 8, 464)];

/// Runs the tier.
pub fn run(implementation: &dyn Implementation, seed: u64) -> Report {
    let mut report = Report::new("exact", implementation.name());
    let mut rng = Rng::new(seed);
    for scheme in SCHEMES {
        for dtypes in dtype_pairs() {
            for &(m, n, k) in SHAPES {
                let case = Case::new(m, n, k, scheme, rng.bits())
                    .with_dtypes(dtypes)
                    .with_bias(rng.flip())
                    .with_parts(1 + rng.below(5));
                with_layer(&mut report, implementation, case, exact, |report, example, loaded| {
                    run_and_compare(report, example, loaded, Bar::Exact);
                });
            }
        }
    }
    every_block_scale(&mut report, implementation);
    global_scales_of_fused_parts(&mut report, implementation);
    global_scale_before_rounding(&mut report, implementation);
    tiny_global_scales(&mut report, implementation);
    zero_input(&mut report, implementation, &mut rng);
    report
}

/// The value of every input of [`uniform`]: 1, or where x is quantized 1.5, which is 6 · 1 · 0.25.
fn uniform_x(scheme: ActivationScheme) -> f32 {
    if scheme.is_quantized() { 1.5 } else { 1.0 }
}

/// A layer whose codes are all `code`, with block scale `scales[n]` along row `n`.
fn uniform(case: Case, code: u8, scales: &[u8], global: GlobalScales, bias: Option<Vec<f32>>) -> Example {
    let (n, k) = (case.config.out_features, case.config.in_features);
    let packed = vec![code << 4 | code; n * k / 2];
    let scales = scales.iter().flat_map(|&s| std::iter::repeat_n(s, k / 16)).collect();
    let x = uniform_x(case.config.activation);
    Example {
        case,
        layer: layer(&case.config, packed, scales, global, Some(decode(0.25)), bias),
        x: HostMatrix::new(case.config.input_dtype, case.m, k, &vec![x; case.m * k]),
    }
}

fn decode(scale: f32) -> GlobalScale {
    GlobalScale::from_decode(scale).unwrap_or_else(|e| panic!("{scale}: {e}"))
}

/// All 127 block scales, a row each; subnormal ones must not be flushed, and neighbours not disturb each other.
fn every_block_scale(report: &mut Report, implementation: &dyn Implementation) {
    let mixed: Vec<u8> = (0..128).map(|i| if i % 2 == 0 { 0x01 } else { 0x7e }).collect();
    for scales in [(0..0x7f).collect::<Vec<u8>>(), mixed] {
        for scheme in [ActivationScheme::Unquantized, ActivationScheme::Nvfp4Static] {
            for dtypes in dtype_pairs() {
                let case = Case::new(2, scales.len(), 128, scheme, 0).with_dtypes(dtypes);
                let global = GlobalScales::per_tensor(scales.len(), GlobalScale::ONE);
                // Codes 1.0, x 1.0 and k = 128: scale 0x01 gives 0.25, 0x7e gives 57344.
                let make = |case| uniform(case, 2, &scales, global, None);
                with_layer(report, implementation, case, make, |report, example, loaded| {
                    run_and_compare(report, example, loaded, Bar::Exact);
                });
            }
        }
    }
}

/// q, k and v with divisors 4096, 2048 and 1024; a merged scale gives the same value three times.
fn global_scales_of_fused_parts(report: &mut Report, implementation: &dyn Implementation) {
    for scheme in [ActivationScheme::Unquantized, ActivationScheme::Nvfp4Static] {
        for dtypes in dtype_pairs() {
            let case = Case::new(1, 3, 16, scheme, 0).with_dtypes(dtypes).with_parts(3);
            let divisor = |d| (1, GlobalScale::from_encode(d).unwrap_or_else(|e| panic!("{d}: {e}")));
            let global = GlobalScales::from_parts([4096.0, 2048.0, 1024.0].map(divisor));
            let make = |case| uniform(case, 2, &[0x38; 3], global, None);
            with_layer(report, implementation, case, make, |report, example, loaded| {
                let Some(out) = super::run(report, case, loaded, Input::Matrix(example.x.view()), (3, NAN_FILL))
                else {
                    return;
                };
                let found = [0, 1, 2].map(|n| out.get(0, n) / uniform_x(scheme));
                report
                    .check(found == [0.00390625, 0.0078125, 0.015625], case, || format!("q, k, v give {found:?}"));
            });
        }
    }
}

/// A sum beyond the range of f16 that the global scale brings back: it must not be rounded before. And one that the
/// global scale does not bring back: infinite, not clamped.
fn global_scale_before_rounding(report: &mut Report, implementation: &dyn Implementation) {
    for (output, bias, global, expected) in [
        (DType::F16, None, 1e-6, 11.0078125),
        (DType::Bf16, None, 1e-6, 11.0),
        (DType::F16, Some(2.0), 1e-6, 13.0078125),
        (DType::F16, None, 0.0078125, f32::INFINITY),
        (DType::F16, Some(-25000.0), 0.0078125, 61024.0),
    ] {
        for input in [DType::Bf16, DType::F16] {
            for m in [1, 16, 64] {
                let case = Case::new(m, 64, 4096, ActivationScheme::Unquantized, 0)
                    .with_dtypes((input, output))
                    .with_bias(bias.is_some());
                let scales = GlobalScales::per_tensor(64, decode(global));
                // 4096 · 6 · 448 = 11 010 048.
                let make = |case| uniform(case, 7, &[0x7e; 64], scales, bias.map(|b| vec![b; 64]));
                with_layer(report, implementation, case, make, |report, example, loaded| {
                    let Some(out) =
                        super::run(report, case, loaded, Input::Matrix(example.x.view()), (64, NAN_FILL))
                    else {
                        return;
                    };
                    let wrong = (0..m * 64).map(|i| out.get(i / 64, i % 64)).find(|&v| v != expected);
                    report.check(wrong.is_none(), case, || {
                        format!("global scale {global}: expected {expected} everywhere, found {wrong:?}")
                    });
                });
            }
        }
    }
}

/// Global scales that a factor hidden in the kernel (2¹¹⁹ in some) would push out of range.
fn tiny_global_scales(report: &mut Report, implementation: &dyn Implementation) {
    for global in [1.0, 2f32.powi(-20), 2.79e-4, 1e-38] {
        for output in [DType::Bf16, DType::F32] {
            let case = Case::new(2, 4, 128, ActivationScheme::Unquantized, 0).with_dtypes((DType::Bf16, output));
            let scales = GlobalScales::per_tensor(4, decode(global));
            let make = |case| uniform(case, 2, &[0x01, 0x07, 0x08, 0x7e], scales, None);
            with_layer(report, implementation, case, make, |report, example, loaded| {
                run_and_compare(report, example, loaded, Bar::Bounded);
            });
        }
    }
}

/// Zeros quantize to zeros, whatever their scale: the output is the bias.
fn zero_input(report: &mut Report, implementation: &dyn Implementation, rng: &mut Rng) {
    for scheme in SCHEMES {
        let case = Case::new(3, 20, 48, scheme, rng.bits()).with_bias(true);
        let make = |case| {
            let mut example = exact(case);
            example.x = HostMatrix::filled(case.config.input_dtype, case.m, 48, 48, 0);
            example
        };
        with_layer(report, implementation, case, make, |report, example, loaded| {
            let Some(out) = super::run(report, case, loaded, Input::Matrix(example.x.view()), (20, NAN_FILL))
            else {
                return;
            };
            let zeros = Activation { values: vec![0.0; 48], slack: vec![0.0; 48] };
            compare(report, example, &|_| zeros.clone(), &out, (&all(3), &all(20)), Bar::Exact);
        });
    }
}
