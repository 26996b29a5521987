//! vLLM's emulated W4A4 layer: operands to the bit, results within the bound of a sum in f32.

use crate::support::{Layer, Values, kernels};
use nvfp4_core::{
    ActivationScheme, DType, GlobalScale, GlobalScales, LinearScales, MatrixRef, NvFp4LinearLayerConfig,
    NvFp4Weights,
};
use nvfp4_cpu::reference::run_nvfp4_emulations;
use nvfp4_testkit::golden::{File, Tensor};

fn weights(file: &File, case: &str) -> NvFp4Weights<'static> {
    let (codes, scales) = (file.get(&format!("{case}_w")), file.get(&format!("{case}_ws")));
    let (n, k) = (codes.shape[0], 2 * codes.shape[1]);
    let scales = LinearScales::new(n, k / 16, scales.bytes.clone()).unwrap();
    let global = GlobalScale::from_decode(file.get(&format!("{case}_wgs")).scalar()).unwrap();
    NvFp4Weights::new(n, k, codes.bytes.clone(), scales, GlobalScales::per_tensor(n, global)).unwrap()
}

fn values(tensor: &Tensor) -> Values {
    match format!("{:?}", tensor.dtype).as_str() {
        "BF16" => Values::Bf16(tensor.bf16s()),
        "F16" => Values::F16(tensor.f16s()),
        _ => Values::F32(tensor.floats()),
    }
}

fn dtype(values: &Values) -> DType {
    values.slice().dtype()
}

fn unit_roundoff(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => 2f64.powi(-8),
        DType::F16 => 2f64.powi(-11),
        _ => 2f64.powi(-24),
    }
}

fn assert_bits(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!(f.to_bits() == e.to_bits() || (f.is_nan() && e.is_nan()), "{what} at {i}: {f:e}, expected {e:e}");
    }
}

/// `γ(k + extra) Σ|x·w|` and one rounding to `dtype`.
fn allowed(x: &[f32], w: &[f32], truth: f64, extra: usize, dtype: DType) -> f64 {
    let sum: f64 = x.iter().zip(w).map(|(x, w)| (f64::from(*x) * f64::from(*w)).abs()).sum();
    let n = (x.len() + extra) as f64 * 2f64.powi(-24);
    let sum = n / (1.0 - n) * sum;
    sum + unit_roundoff(dtype) * (truth.abs() + sum)
}

#[test]
fn emulated_layers_equal_vllm() {
    let file = File::open("linear_emulated.safetensors");
    for case in file.prefixes("_wgs") {
        let w = weights(&file, &case);
        let encode = file.get(&format!("{case}_igs_inv")).scalar();
        for name in file.suffixes(&format!("{case}_x_")) {
            let tensor = |kind: &str| file.get(&format!("{case}_{kind}_{name}"));
            let x = values(tensor("x"));
            let (m, n, k) = (tensor("x").shape[0], w.out_features(), w.in_features());
            let matrix = MatrixRef::new(x.slice(), m, k).unwrap();
            let what = format!("case {case} {name}");
            let found = run_nvfp4_emulations(matrix, encode, &w).unwrap();
            assert_bits(&found.x, &tensor("xdq").floats(), &format!("{what} xdq"));
            assert_bits(&found.w, &tensor("wdq").floats(), &format!("{what} wdq"));
            let (truth, upstream) = (tensor("out64").f64s(), tensor("out").floats());
            assert_eq!((truth.len(), upstream.len(), found.out.len()), (m * n, m * n, m * n));
            for (i, out) in found.out.iter().enumerate() {
                let (x, w) = (&found.x[i / n * k..][..k], &found.w[i % n * k..][..k]);
                let allowed = allowed(x, w, truth[i], 2, dtype(&values(tensor("x"))));
                let off = (f64::from(*out) - truth[i]).abs();
                assert!(
                    off <= allowed,
                    "{what} at {i}: {out:e}, expected {:e}, off {off:e} > {allowed:e}",
                    truth[i]
                );
                let off = (f64::from(*out) - f64::from(upstream[i])).abs();
                assert!(off <= 2.0 * allowed, "{what} at {i}: {out:e}, PyTorch {:e}", upstream[i]);
            }
        }
    }
}

/// The backend itself, for the type in which the emulation does not round its operands.
#[test]
fn the_backend_agrees_with_the_emulation() {
    let file = File::open("linear_emulated.safetensors");
    for case in file.prefixes("_x_f32") {
        let w = weights(&file, &case);
        let scale = GlobalScale::from_encode(file.get(&format!("{case}_igs_inv")).scalar()).unwrap();
        let x = file.get(&format!("{case}_x_f32")).floats();
        let truth = file.get(&format!("{case}_out64_f32")).f64s();
        let (xdq, wdq) =
            (file.get(&format!("{case}_xdq_f32")).floats(), file.get(&format!("{case}_wdq_f32")).floats());
        let (n, k) = (w.out_features(), w.in_features());
        for kernel in kernels() {
            let config = NvFp4LinearLayerConfig::w4a4(n, k)
                .with_activation(ActivationScheme::Nvfp4Static)
                .with_dtypes(DType::F32, DType::F32);
            let out = Layer::new(kernel, config, &w, Some(scale), x.len() / k).run(&x).to_f32();
            assert_eq!(out.len(), truth.len());
            for (i, out) in out.iter().enumerate() {
                // Eight more roundings: those of the emulation's own operands.
                let allowed = allowed(&xdq[i / n * k..][..k], &wdq[i % n * k..][..k], truth[i], 8, DType::F32);
                let off = (f64::from(*out) - truth[i]).abs();
                assert!(off <= allowed, "case {case} {kernel:?} at {i}: {out:e}, expected {:e}", truth[i]);
            }
        }
    }
}
