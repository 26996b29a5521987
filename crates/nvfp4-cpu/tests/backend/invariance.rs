//! Results do not depend on the instruction set (as far as promised) nor on the number of threads.

use crate::support::{Layer, Values, decode, kernels, normal, random_weights};
use nvfp4_core::{ActivationScheme, DType, MatrixRef, NvFp4LinearLayerConfig};
use nvfp4_cpu::{CpuNvFp4LinearKernel, reference};
use proptest::prelude::*;

fn schemes() -> impl Strategy<Value = ActivationScheme> {
    prop_oneof![
        Just(ActivationScheme::Unquantized),
        Just(ActivationScheme::Nvfp4Static),
        Just(ActivationScheme::Nvfp4DynamicPerTensor),
        Just(ActivationScheme::Nvfp4DynamicPerToken),
    ]
}

fn dtypes() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::Bf16), Just(DType::F16), Just(DType::F32)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// W4A4: the same bits. W4A16: both within the bound.
    #[test]
    fn instruction_sets_agree(
        m in 1usize..150,
        n in 1usize..90,
        blocks in 1usize..40,
        scheme in schemes(),
        input in dtypes(),
        seed: u64,
    ) {
        let mut rng = nvfp4_testkit::random::Rng::new(seed);
        let k = 16 * blocks;
        let weights = random_weights(n, k, &mut rng);
        let x = Values::new(input, &normal(m * k, &mut rng)).to_f32();
        let bias = normal(n, &mut rng);
        let config = NvFp4LinearLayerConfig::w4a4(n, k).with_activation(scheme).with_dtypes(input, DType::F32);
        let [best, portable] = kernels().map(|kernel| {
            Layer::new(kernel, config, &weights, Some(decode(0.002)), m).with_bias(bias.clone()).run(&x)
        });
        if scheme.is_quantized() {
            prop_assert_eq!(best.bits(), portable.bits());
        } else {
            let w = reference::Operand::weights(&weights);
            let x = reference::Operand::unquantized(MatrixRef::new(&x[..], m, k).unwrap()).unwrap();
            let truth = reference::linear_f64(&x, &w, Some(&bias)).unwrap();
            let bound = reference::error_bound(&x, &w, Some(&bias)).unwrap();
            let plain = reference::linear_f32(&x, &w, Some(&bias)).unwrap();
            for found in [best.to_f32(), portable.to_f32(), plain] {
                for ((found, truth), bound) in found.iter().zip(&truth).zip(&bound) {
                    prop_assert!((f64::from(*found) - truth).abs() <= *bound, "{} {} {}", found, truth, bound);
                }
            }
        }
    }
}

/// Layers large enough to be shared between threads.
#[cfg(feature = "rayon")]
#[test]
fn the_number_of_threads_does_not_show() {
    let mut rng = nvfp4_testkit::random::Rng::new(nvfp4_testkit::random::seed());
    let (n, k) = (1111, 1040);
    let weights = random_weights(n, k, &mut rng);
    for scheme in
        [ActivationScheme::Unquantized, ActivationScheme::Nvfp4Static, ActivationScheme::Nvfp4DynamicPerToken]
    {
        for m in [1, 3, 40, 140] {
            let x = normal(m * k, &mut rng);
            let config = NvFp4LinearLayerConfig::w4a4(n, k).with_activation(scheme);
            for kernel in kernels() {
                let results = [1, 2, 3, 7].map(|threads| {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                    pool.install(|| Layer::new(kernel, config, &weights, Some(decode(0.002)), m).run(&x).bits())
                });
                assert!(results.iter().all(|r| *r == results[0]), "{scheme} {m} {kernel:?}");
            }
        }
    }
}

/// The truth, for one large layer with every kind of output.
#[test]
fn large_layers_are_within_the_bound_of_an_f32_sum() {
    let mut rng = nvfp4_testkit::random::Rng::new(nvfp4_testkit::random::seed());
    let (m, n, k) = (135, 515, 1120);
    let weights = random_weights(n, k, &mut rng);
    let w = reference::Operand::weights(&weights);
    for output in [DType::F32, DType::F16, DType::Bf16] {
        let x = Values::new(DType::Bf16, &normal(m * k, &mut rng)).to_f32();
        let config = NvFp4LinearLayerConfig::w4a16(n, k).with_dtypes(DType::Bf16, output);
        let y = Layer::new(CpuNvFp4LinearKernel::new(), config, &weights, None, m).run(&x).to_f32();
        let unit = match output {
            DType::Bf16 => 2f64.powi(-8),
            DType::F16 => 2f64.powi(-11),
            _ => 0.0,
        };
        // Every seventh row of x, all of W.
        let (mut error, mut size) = (0.0, 0.0);
        for row in (0..m).step_by(7) {
            let x = MatrixRef::new(&x[row * k..][..k], 1, k).unwrap();
            let x = reference::Operand::unquantized(x).unwrap();
            let truth = reference::linear_f64(&x, &w, None).unwrap();
            let bound = reference::error_bound(&x, &w, None).unwrap();
            for (n, (truth, bound)) in truth.iter().zip(&bound).enumerate() {
                let off = (f64::from(y[row * w.rows() + n]) - truth).abs();
                assert!(off <= bound + unit * (truth.abs() + bound), "{row} {n}");
                error += off * off;
                size += truth * truth;
            }
        }
        let relative = (error / size).sqrt();
        assert!(relative <= 5e-3 && (output != DType::F32 || relative <= 1e-6), "{output}: {relative:e}");
    }
}
