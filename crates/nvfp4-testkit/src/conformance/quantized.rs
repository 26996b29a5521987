//! Activations that arrive quantized: in every layout, padded, and with a global scale that is not the layer's.

use super::{Bar, NAN_FILL, Report, run as apply, run_quantized_and_compare, with_layer};
use crate::{
    implementation::{Implementation, Input, LoadedLayer},
    layers::{Case, Example, SCHEMES, dtype_pairs, exact, random},
    oracle,
    random::Rng,
};
use nvfp4_core::{ActivationScheme, GlobalScale, QuantizedActivation, ScaleLayout};

const LAYOUTS: [ScaleLayout; 3] = [ScaleLayout::Linear, ScaleLayout::Swizzled128x4, ScaleLayout::Swizzled8x4];
const SHAPES: &[(usize, usize, usize)] = &[(1, 9, 80), (3, 34, 48), (9, 17, 176), (130, 5, 112)];

/// Runs the tier.
pub fn run(implementation: &dyn Implementation, seed: u64) -> Report {
    let mut report = Report::new("quantized", implementation.name());
    let mut rng = Rng::new(seed);
    for scheme in SCHEMES {
        for dtypes in dtype_pairs() {
            for &(m, n, k) in SHAPES {
                let case = Case::new(m, n, k, scheme, rng.bits())
                    .with_dtypes(dtypes)
                    .with_bias(rng.flip())
                    .with_parts(1 + rng.below(3));
                for (make, bar) in [(exact as fn(Case) -> Example, Bar::Exact), (random, Bar::Bounded)] {
                    with_layer(&mut report, implementation, case, make, |report, example, loaded| {
                        match loaded.input_quant_key() {
                            Some(_) => accepted(report, example, loaded, bar),
                            None => refused(report, example, loaded),
                        }
                    });
                }
            }
        }
    }
    report
}

fn quantize(
    example: &Example,
    scale: Option<GlobalScale>,
    layout: ScaleLayout,
    padded_k: usize,
) -> QuantizedActivation {
    // A W4A16 layer has no scheme to quantize by; any will do for an input that it must refuse.
    let scheme = match example.case.config.activation {
        ActivationScheme::Unquantized => ActivationScheme::Nvfp4DynamicPerTensor,
        scheme => scheme,
    };
    oracle::quantize(example.x.view(), scheme, scale, layout, padded_k)
}

fn accepted(report: &mut Report, example: &Example, loaded: &dyn LoadedLayer, bar: Bar) {
    let case = example.case;
    let (scale, k) = (example.layer.input_scale, case.config.in_features);
    report.check(loaded.input_quant_key() == case.config.activation.quant_key(), case, || {
        format!("takes activations with key {:?}, the layer's scheme makes others", loaded.input_quant_key())
    });
    for layout in LAYOUTS {
        for padded_k in [k, k.next_multiple_of(32), k.next_multiple_of(64), k + 128] {
            let x = quantize(example, scale, layout, padded_k);
            run_quantized_and_compare(report, example, loaded, &x, bar);
        }
    }
    // The activation's own global scale counts, not the layer's.
    let other = scale.and_then(|s| GlobalScale::from_decode(s.decode().get() * 4.0).ok());
    let x = quantize(example, other.or(scale), ScaleLayout::Swizzled128x4, k);
    run_quantized_and_compare(report, example, loaded, &x, bar);
}

/// A layer that takes no quantized activations says so, in an error.
fn refused(report: &mut Report, example: &Example, loaded: &dyn LoadedLayer) {
    let case = example.case;
    let x = quantize(example, example.layer.input_scale, ScaleLayout::Swizzled128x4, case.config.in_features);
    let mut quiet = Report::new("quantized", String::new());
    let ran = apply(&mut quiet, case, loaded, Input::Quantized(&x), (case.config.out_features, NAN_FILL));
    report.check(ran.is_none(), case, || "runs on a quantized activation that it has no key for".into());
}
