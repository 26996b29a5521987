//! The suite that every backend must pass. A tier is a function from an [`Implementation`] to a [`Report`];
//! [`conformance!`](crate::conformance!) makes a test of each.
//!
//! | tier | what it checks |
//! | --- | --- |
//! | [`exact`] | where sums are exact, every output bit, for every scheme, type, bias and mix of global scales |
//! | [`random`] | results against the dequantized product in f64: per element by the bound of an f32 sum, and rel-L2 |
//! | [`mod@format`] | one-hot inputs read every weight; the error against the unquantized weight is that of the format |
//! | [`poison`] | contents of output, scratch memory, row gaps, foreign rows and padded scales change nothing |
//! | [`shapes`] | every pair of awkward `m`, `n`, `k` |
//! | [`quantized`] | activations that arrive quantized: every layout and padding, scales of their own |
//! | [`batches`] | `m = 0`, fewer rows than planned, repeats, and batch invariance where it is promised |
//! | [`negative`] | calls that must be refused, and layers that a backend says it cannot run (backends only) |
//! | [`host`] | answers about devices that are not here (backends only) |

pub mod batches;
pub mod exact;
pub mod format;
pub mod host;
pub mod negative;
pub mod poison;
pub mod quantized;
pub mod random;
pub mod shapes;

mod report;

pub use report::{Failure, Report};

use crate::{
    implementation::{Implementation, Input, LoadedLayer},
    layers::{Case, Example},
    matrices::HostMatrix,
    oracle::{self, Activation},
};
use nvfp4_core::{DType, QuantizedActivation};

/// A byte that scratch memory and outputs are filled with before a call: NaN in every type.
const NAN_FILL: u8 = 0xff;

/// Runs `case` with `make`'s data and hands the layer to `check`; a case that the implementation cannot run is
/// recorded as refused, one that does not load as failed.
fn with_layer(
    report: &mut Report,
    implementation: &dyn Implementation,
    case: Case,
    make: impl FnOnce(Case) -> Example,
    check: impl FnOnce(&mut Report, &Example, &dyn LoadedLayer),
) {
    if let Err(reason) = implementation.can_run(&case.config) {
        report.refused(case, reason);
        return;
    }
    let example = make(case);
    match implementation.load(&example.layer, &case.config) {
        Ok(loaded) => check(report, &example, loaded.as_ref()),
        Err(error) => report.failed(case, format!("the layer does not load: {error}")),
    }
}

/// Runs a layer into a fresh output of `stride`, all bytes `fill`, and checks that the gaps stay as they are.
fn run(
    report: &mut Report,
    case: Case,
    loaded: &dyn LoadedLayer,
    x: Input<'_>,
    (stride, fill): (usize, u8),
) -> Option<HostMatrix> {
    let n = case.config.out_features;
    let mut out = HostMatrix::filled(case.config.output_dtype, x.rows(), n, stride, fill);
    match loaded.run(x.rows().max(1), x, out.view_mut(), fill) {
        Err(error) => {
            report.failed(case, format!("error: {error}"));
            None
        }
        Ok(()) if !out.gaps_are(fill) => {
            report.failed(case, "wrote between the rows of the output".into());
            None
        }
        Ok(()) => Some(out),
    }
}

/// What the input stands for once the layer has quantized it, row by row.
fn activation_rows(example: &Example) -> impl Fn(usize) -> Activation + '_ {
    oracle::activation_rows(example.x.view(), example.case.config.activation, example.layer.input_scale)
}

/// How a result is judged.
#[derive(Clone, Copy)]
enum Bar {
    /// Every bit; the sign of zero aside.
    Exact,
    /// Each element by [`oracle::bound`], all of them together by [`relative_l2_bar`].
    Bounded,
}

/// Bar for `‖y - ŷ‖ / ‖ŷ‖`: a little more than the rounding to the output type alone.
fn relative_l2_bar(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => 5e-3,
        DType::F16 => 1e-3,
        _ => 1e-4,
    }
}

/// Compares the rows `rows` and columns `cols` of `out` with the product of `x` (row by row) and the layer.
fn compare(
    report: &mut Report,
    example: &Example,
    x: &dyn Fn(usize) -> Activation,
    out: &HostMatrix,
    (rows, cols): (&[usize], &[usize]),
    bar: Bar,
) {
    let case = example.case;
    let (k, dtype) = (case.config.in_features, case.config.output_dtype);
    let mut worst: Option<(f64, String)> = None;
    let (mut error, mut size, mut slack) = (0.0, 0.0, 0.0);
    let weights: Vec<_> = cols.iter().map(|&n| oracle::weight_row(&example.layer.weights, n)).collect();
    for &r in rows {
        let x = x(r);
        for (&n, w) in cols.iter().zip(&weights) {
            let bias = example.layer.bias.as_ref().map_or(0.0, |b| f64::from(b[n]));
            let element = oracle::element(&x, w, bias);
            let expected = oracle::round(element.value, dtype);
            let found = f64::from(out.get(r, n));
            let (difference, allowed) = match bar {
                Bar::Exact => (if found == expected { 0.0 } else { (found - expected).abs() }, 0.0),
                _ => ((found - element.value).abs(), oracle::bound(element, k, dtype)),
            };
            error += difference * difference;
            size += element.value * element.value;
            slack += element.slack * element.slack;
            // NaN is beyond every bound.
            let within = difference <= allowed;
            let ratio =
                if difference.is_nan() { f64::INFINITY } else { difference / allowed.max(f64::MIN_POSITIVE) };
            if !within && worst.as_ref().is_none_or(|w| ratio > w.0) {
                let text = format!(
                    "row {r}, column {n}: found {found:e}, expected {expected:e} (exactly {:e}); off by \
                     {difference:e}, allowed {allowed:e}",
                    element.value
                );
                worst = Some((ratio, text));
            }
        }
    }
    let relative = |squares: f64| if size > 0.0 { (squares / size).sqrt() } else { squares.sqrt() };
    let limit = if matches!(bar, Bar::Exact) { 0.0 } else { relative_l2_bar(dtype) + relative(slack) };
    let relative = relative(error);
    if let Some((_, text)) = worst {
        report.failed(case, format!("worst element {text}; rel-L2 of all {relative:e}"));
    } else if relative.is_nan() || relative > limit {
        report.failed(case, format!("rel-L2 {relative:e}, allowed {limit:e}"));
    } else {
        report.passed();
    }
}

fn all(len: usize) -> Vec<usize> {
    (0..len).collect()
}

/// Runs a layer on its example's input and compares all of the output.
fn run_and_compare(report: &mut Report, example: &Example, loaded: &dyn LoadedLayer, bar: Bar) {
    let case = example.case;
    let stride = case.config.out_features + 3 * (case.seed % 2) as usize;
    if let Some(out) = run(report, case, loaded, Input::Matrix(example.x.view()), (stride, NAN_FILL)) {
        let x = activation_rows(example);
        compare(report, example, &x, &out, (&all(case.m), &all(case.config.out_features)), bar);
    }
}

/// Runs a layer on a quantized input and compares all of the output.
fn run_quantized_and_compare(
    report: &mut Report,
    example: &Example,
    loaded: &dyn LoadedLayer,
    x: &QuantizedActivation,
    bar: Bar,
) {
    let case = example.case;
    if let Some(out) = run(report, case, loaded, Input::Quantized(x), (case.config.out_features, NAN_FILL)) {
        let rows = oracle::quantized_rows(x);
        compare(report, example, &rows, &out, (&all(case.m), &all(case.config.out_features)), bar);
    }
}

/// Makes one test of each tier.
///
/// * `conformance!(kernel: $make)`: `$make` is an expression of type [`Kernel`](crate::Kernel); all tiers.
/// * `conformance!(layers: $make)`: `$make` is an expression of any type that is an
///   [`Implementation`](crate::Implementation); the tiers that need no more.
///
/// A layer that the implementation refuses counts as a failure, unless `, may_refuse` is added.
#[macro_export]
macro_rules! conformance {
    (kernel: $make:expr $(, $may_refuse:ident)?) => {
        $crate::conformance!(layers: $make $(, $may_refuse)?);
        $crate::conformance!(@tests $make, ($($may_refuse)?), negative host);
    };
    (layers: $make:expr $(, $may_refuse:ident)?) => {
        $crate::conformance!(@tests $make, ($($may_refuse)?), exact random format poison shapes quantized batches);
    };
    (@tests $make:expr, $refuse:tt, $($tier:ident)*) => {
        $(
            #[test]
            fn $tier() {
                let report = $crate::conformance::$tier::run(&$make, $crate::random::seed());
                $crate::conformance!(@judge report, $refuse);
            }
        )*
    };
    (@judge $report:ident, ()) => { $report.assert_passed(); $report.assert_nothing_refused(); };
    (@judge $report:ident, (may_refuse)) => { $report.assert_passed(); };
}
