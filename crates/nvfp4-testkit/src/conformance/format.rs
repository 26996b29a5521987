//! One-hot inputs read the weight back, element by element, so that a swapped nibble, a scale of a neighbour or a
//! wrong row shows where it is; and the weight must be as near to what was quantized as the format allows.

use super::{NAN_FILL, Report, with_layer};
use crate::{
    implementation::{Implementation, Input},
    layers::{Case, Example, SCHEMES, layer},
    matrices::HostMatrix,
    oracle,
    random::Rng,
};
use nvfp4_core::{ActivationScheme, DType, GlobalScale, GlobalScales};

/// Relative error of NVFP4 for normally distributed values, and how far it may be off.
const FORMAT_ERROR: (f64, f64) = (0.095, 0.003);

/// Runs the tier.
pub fn run(implementation: &dyn Implementation, seed: u64) -> Report {
    let mut report = Report::new("format", implementation.name());
    let mut rng = Rng::new(seed);
    for scheme in SCHEMES {
        for (n, k) in [(128, 256), (130, 176)] {
            let case = Case::new(k, n, k, scheme, rng.bits()).with_dtypes((DType::Bf16, DType::F32));
            let (example, dense) = quantized_normal(case);
            with_layer(
                &mut report,
                implementation,
                case,
                |_| example,
                |report, example, loaded| {
                    let x = Input::Matrix(example.x.view());
                    if let Some(out) = super::run(report, case, loaded, x, (n, NAN_FILL)) {
                        read_back(report, example, &dense, &out);
                    }
                },
            );
        }
    }
    report
}

/// Every input that is not zero.
const ONE: f32 = 0.75;

/// A normally distributed weight whose blocks differ in size (data of one size hides half of a wrong scale layout),
/// quantized by the oracle, and the identity as input. Also gives the weight.
fn quantized_normal(case: Case) -> (Example, Vec<f64>) {
    let mut rng = Rng::new(case.seed);
    let (n, k) = (case.config.out_features, case.config.in_features);
    let dense: Vec<f32> = (0..n * k / 16)
        .flat_map(|_| {
            let size = rng.log_uniform(0.05, 1.0);
            (0..16).map(|_| (size * rng.normal()) as f32).collect::<Vec<_>>()
        })
        .collect();
    let amax = dense.iter().fold(0f32, |a, v| a.max(v.abs()));
    let global = GlobalScale::from_decode(amax / 2688.0).unwrap_or_else(|e| panic!("{amax}: {e}"));
    let weight = HostMatrix::new(DType::F32, n, k, &dense);
    let quantized = oracle::quantize(
        weight.view(),
        ActivationScheme::Nvfp4Static,
        Some(global),
        nvfp4_core::ScaleLayout::Linear,
        k,
    );
    // 0.75 = 6 · 64 · 2⁻⁹, exact with that input scale; dynamic schemes use 6 · 448 · amax/2688, exact up to the
    // rounding of the last factor.
    let mut x = HostMatrix::filled(case.config.input_dtype, k, k, k, 0);
    (0..k).for_each(|i| x.set(i, i, ONE));
    let example = Example {
        case,
        layer: layer(
            &case.config,
            quantized.data,
            quantized.scale,
            GlobalScales::per_tensor(n, global),
            GlobalScale::from_decode(2f32.powi(-9)).ok(),
            None,
        ),
        x,
    };
    (example, dense.into_iter().map(f64::from).collect())
}

/// Row `i` of the output must be column `i` of the weight, which differs from `dense` by the format's error.
fn read_back(report: &mut Report, example: &Example, dense: &[f64], out: &HostMatrix) {
    let (n, k) = (example.case.config.out_features, example.case.config.in_features);
    let mut wrong = None;
    let (mut error, mut size) = (0.0, 0.0);
    for row in 0..n {
        for (column, w) in oracle::weight_row(&example.layer.weights, row).into_iter().enumerate() {
            let found = f64::from(out.get(column, row)) / f64::from(ONE);
            // One product and no sum: a few roundings of f32.
            if wrong.is_none() && ((found - w).abs() > w.abs() * 8.0 * 2f64.powi(-24) || found.is_nan()) {
                wrong = Some(format!(
                    "weight at row {row}, column {column} is {w:e}, the layer multiplies by {found:e}"
                ));
            }
            let original = dense[row * k + column];
            error += (found - original) * (found - original);
            size += original * original;
        }
    }
    let relative = (error / size).sqrt();
    if wrong.is_none() && (relative - FORMAT_ERROR.0).abs() > FORMAT_ERROR.1 {
        wrong = Some(format!("rel-L2 against the unquantized weight is {relative}, expected {FORMAT_ERROR:?}"));
    }
    match wrong {
        None => report.passed(),
        Some(what) => report.failed(example.case, what),
    }
}
