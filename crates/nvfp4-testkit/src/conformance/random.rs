//! Random layers against the dequantized product in f64 (not the unquantized one).

use super::{Bar, Report, run_and_compare, with_layer};
use crate::{
    implementation::Implementation,
    layers::{Case, SCHEMES, dtype_pairs, random},
    random::Rng,
};

const SHAPES: &[(usize, usize, usize)] = &[(1, 65, 1040), (4, 96, 256), (7, 50, 336), (33, 29, 144), (66, 16, 64)];

/// Runs the tier.
pub fn run(implementation: &dyn Implementation, seed: u64) -> Report {
    let mut report = Report::new("random", implementation.name());
    let mut rng = Rng::new(seed);
    for scheme in SCHEMES {
        for dtypes in dtype_pairs() {
            for &(m, n, k) in SHAPES {
                let case = Case::new(m, n, k, scheme, rng.bits())
                    .with_dtypes(dtypes)
                    .with_bias(rng.flip())
                    .with_parts(1 + rng.below(4));
                with_layer(&mut report, implementation, case, random, |report, example, loaded| {
                    run_and_compare(report, example, loaded, Bar::Bounded);
                });
            }
        }
    }
    report
}
