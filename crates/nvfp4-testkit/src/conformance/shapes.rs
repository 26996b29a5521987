//! Awkward sizes: every pair of `m`, `n` and `k` from the lists, with all else random.

use super::{Bar, NAN_FILL, Report, compare, run as apply, with_layer};
use crate::{
    implementation::{Implementation, Input},
    layers::{Case, DTYPES, SCHEMES, random},
    oracle,
    random::Rng,
};
use nvfp4_core::ScaleLayout;
use std::collections::BTreeSet;

const M: &[usize] = &[0, 1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65, 127, 128, 129, 257, 512, 2001];
const N: &[usize] = &[1, 8, 16, 80, 130, 176, 352, 1856, 10304, 248_320];
const K: &[usize] = &[16, 48, 80, 96, 112, 240, 464, 1856, 2688, 3696, 5472];

/// Multiplications that a case may take, except in [`LARGE`].
const LARGEST_PRODUCT: usize = 1 << 21;
/// Cases beyond that.
const LARGE: &[(usize, usize, usize)] = &[(1, 10_304, 2688), (1, 248_320, 16), (2001, 80, 464), (129, 130, 1856)];
/// Rows and columns of the output that are compared, at least.
const SAMPLE: usize = 12;

/// The cases: every pair of two of `m`, `n`, `k`, the third as large as the limit allows. Pairs beyond the limit are
/// left out.
fn cases() -> BTreeSet<(usize, usize, usize)> {
    let third = |list: &[usize], a: usize, b: usize| {
        list.iter().copied().filter(|c| a.max(1) * b.max(1) * c <= LARGEST_PRODUCT).max()
    };
    let pairs =
        |a: &'static [usize], b: &'static [usize]| a.iter().flat_map(move |&x| b.iter().map(move |&y| (x, y)));
    let mk = pairs(M, K).filter_map(|(m, k)| third(N, m, k).map(|n| (m, n, k)));
    let mn = pairs(M, N).filter_map(|(m, n)| third(K, m, n).map(|k| (m, n, k)));
    let nk = pairs(N, K).filter_map(|(n, k)| third(&M[1..], n, k).map(|m| (m, n, k)));
    mk.chain(mn).chain(nk).chain(LARGE.iter().copied()).collect()
}

/// Runs the tier.
pub fn run(implementation: &dyn Implementation, seed: u64) -> Report {
    let mut report = Report::new("shapes", implementation.name());
    let mut rng = Rng::new(seed);
    for (m, n, k) in cases() {
        let case = Case::new(m, n, k, *rng.pick(&SCHEMES), rng.bits())
            .with_dtypes((*rng.pick(&DTYPES), *rng.pick(&DTYPES)))
            .with_bias(rng.flip())
            .with_parts(1 + rng.below(3));
        with_layer(&mut report, implementation, case, random, |report, example, loaded| {
            let scheme = case.config.activation;
            // Half of the quantized cases arrive quantized.
            let quantized = (loaded.input_quant_key().is_some() && rng.flip()).then(|| {
                let scale = example.layer.input_scale;
                oracle::quantize(example.x.view(), scheme, scale, ScaleLayout::Swizzled128x4, k)
            });
            let input = match &quantized {
                Some(x) => Input::Quantized(x),
                None => Input::Matrix(example.x.view()),
            };
            let Some(out) = apply(report, case, loaded, input, (n + rng.below(2), NAN_FILL)) else { return };
            let rows = sample(&mut rng, m);
            let places = (&rows[..], &sample(&mut rng, n)[..]);
            match &quantized {
                Some(x) => compare(report, example, &oracle::quantized_rows(x), &out, places, Bar::Bounded),
                None => compare(report, example, &super::activation_rows(example), &out, places, Bar::Bounded),
            }
        });
    }
    report
}

/// The first, the last, those around multiples of 128, and random ones.
fn sample(rng: &mut Rng, len: usize) -> Vec<usize> {
    if len <= SAMPLE {
        return (0..len).collect();
    }
    let edges = [0, 1, 127, 128, 65_535, 65_536, len / 2, len - 2, len - 1];
    let random = (0..SAMPLE).map(|_| rng.below(len));
    let picked: BTreeSet<usize> = edges.into_iter().chain(random).filter(|&i| i < len).collect();
    picked.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_occurs() {
        let cases = cases();
        for (list, of) in [(M, 0), (N, 1), (K, 2)] {
            for size in list {
                assert!(cases.iter().any(|c| [c.0, c.1, c.2][of] == *size), "{size}");
            }
        }
    }
}
