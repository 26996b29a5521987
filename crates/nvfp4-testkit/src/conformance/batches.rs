//! Numbers of rows: none, fewer than planned, and whether a row's result depends on how many there are.

use super::{Bar, NAN_FILL, Report, all, compare, run as apply, with_layer};
use crate::{
    implementation::{Implementation, Input, LoadedLayer},
    layers::{Case, DTYPES, Example, SCHEMES, random},
    matrices::HostMatrix,
    random::Rng,
};
use nvfp4_core::ActivationScheme;

/// Runs the tier.
pub fn run(implementation: &dyn Implementation, seed: u64) -> Report {
    let mut report = Report::new("batches", implementation.name());
    let mut rng = Rng::new(seed);
    for scheme in SCHEMES {
        for dtype in DTYPES {
            let case = Case::new(13, 37, 208, scheme, rng.bits()).with_dtypes((dtype, dtype)).with_bias(true);
            with_layer(&mut report, implementation, case, random, |report, example, loaded| {
                no_rows(report, example, loaded);
                fewer_rows_than_planned(report, example, loaded);
                repeats(report, example, loaded);
            });

            let mut case = Case::new(513, 19, 112, scheme, rng.bits()).with_dtypes((dtype, dtype));
            case.config = case.config.with_batch_invariant(true);
            // A backend need not be batch-invariant, but must not say so if it is not.
            if implementation.can_run(&case.config).is_ok() && scheme != ActivationScheme::Nvfp4DynamicPerTensor {
                with_layer(&mut report, implementation, case, random, batch_invariant);
            }
        }
    }
    report
}

/// `m = 0` is no work and no error, and leaves the layer as good as new.
fn no_rows(report: &mut Report, example: &Example, loaded: &dyn LoadedLayer) {
    let none = example.x.first_rows(0);
    let n = example.case.config.out_features;
    let ran = apply(report, example.case, loaded, Input::Matrix(none.view()), (n, NAN_FILL));
    report.check(ran.is_some(), example.case, || "does not run 0 rows".into());
    super::run_and_compare(report, example, loaded, Bar::Bounded);
}

/// A plan runs any number of rows up to its own.
fn fewer_rows_than_planned(report: &mut Report, example: &Example, loaded: &dyn LoadedLayer) {
    let case = example.case;
    let x = super::activation_rows(example);
    if case.config.activation == ActivationScheme::Nvfp4DynamicPerTensor {
        return;
    }
    for planned in [case.m, 16, 64] {
        for m in [1, 7, case.m] {
            let first = example.x.first_rows(m);
            let mut out = HostMatrix::filled(
                case.config.output_dtype,
                m,
                case.config.out_features,
                case.config.out_features,
                NAN_FILL,
            );
            match loaded.run(planned, Input::Matrix(first.view()), out.view_mut(), NAN_FILL) {
                Ok(()) => {
                    let places = (&all(m)[..], &all(case.config.out_features)[..]);
                    compare(report, example, &x, &out, places, Bar::Bounded);
                }
                Err(error) => report.failed(case, format!("{m} rows, planned for {planned}: {error}")),
            }
        }
    }
}

/// The same call gives the same bits.
fn repeats(report: &mut Report, example: &Example, loaded: &dyn LoadedLayer) {
    let n = example.case.config.out_features;
    let mut results = (0..20).map(|_| {
        apply(report, example.case, loaded, Input::Matrix(example.x.view()), (n, NAN_FILL)).map(|out| out.bits())
    });
    let first = results.next();
    let same = results.all(|bits| Some(bits) == first);
    report.check(same, example.case, || "repeated calls give different bits".into());
}

/// Each row gives the same bits whatever the number of rows.
fn batch_invariant(report: &mut Report, example: &Example, loaded: &dyn LoadedLayer) {
    let case = example.case;
    let n = case.config.out_features;
    let mut first: Option<Vec<u32>> = None;
    for m in [1, 2, 3, 8, 16, 17, 32, 64, 65, 128, 129, 257, 512] {
        let x = example.x.first_rows(m);
        let Some(out) = apply(report, case, loaded, Input::Matrix(x.view()), (n, NAN_FILL)) else { return };
        let bits = out.row_bits(0);
        let same = first.get_or_insert_with(|| bits.clone()) == &bits;
        report.check(same, case, || format!("row 0 of {m} rows differs from row 0 alone"));
    }
}
