//! The module against the facade's layer (same bits) and against candle's own product of the dequantized weight.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use candle_core::{DType, Device, Module, Tensor, Var};
use half::{bf16, f16};
use nvfp4::{
    ActivationScheme, GlobalScale, GlobalScales, LinearOptions, LinearScales, MatrixMut, MatrixRef,
    NvFp4LinearLayer, NvFp4Weights, Policy, dequantize::dequantize,
};
use nvfp4_candle::{Nvfp4Linear, forward_all};
use nvfp4_testkit::random::{Rng, seed};

const CPU: &Device = &Device::Cpu;
const SCHEMES: [ActivationScheme; 4] = [
    ActivationScheme::Unquantized,
    ActivationScheme::Nvfp4Static,
    ActivationScheme::Nvfp4DynamicPerTensor,
    ActivationScheme::Nvfp4DynamicPerToken,
];

fn layer(n: usize, k: usize, scheme: ActivationScheme, rng: &mut Rng) -> NvFp4LinearLayer<'static> {
    let scales: Vec<u8> = (0..n * k / 16).map(|_| rng.between(0x20, 0x50) as u8).collect();
    let parts =
        [(n / 3 + 1, 3e-3), (n - n / 3 - 1, 7e-3)].map(|(rows, s)| (rows, GlobalScale::from_decode(s).unwrap()));
    let weights = NvFp4Weights::new(
        n,
        k,
        rng.bytes(n * k / 2),
        LinearScales::new(n, k / 16, scales).unwrap(),
        GlobalScales::from_parts(parts),
    );
    NvFp4LinearLayer {
        name: "blocks.0.proj".into(),
        weights: weights.unwrap(),
        activation: scheme,
        input_scale: (scheme == ActivationScheme::Nvfp4Static).then(|| GlobalScale::from_decode(1.5e-3).unwrap()),
        bias: rng.flip().then(|| (0..n).map(|_| rng.normal() as f32).collect()),
    }
}

fn options() -> LinearOptions {
    LinearOptions::new().with_policy(Policy::default()).with_dtypes(nvfp4::DType::F32, nvfp4::DType::F32)
}

fn load(layer: &NvFp4LinearLayer<'_>) -> Nvfp4Linear {
    Nvfp4Linear::load(layer, &options()).unwrap()
}

fn normal(shape: &[usize], rng: &mut Rng) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.normal() as f32).collect();
    Tensor::from_vec(values, shape, CPU).unwrap()
}

/// The bits of a tensor, widened.
fn bits(tensor: &Tensor) -> Vec<u32> {
    let wide = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
    wide.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

/// What the facade computes for the dense rows of `xs`, in the type of `xs`.
fn expected(linear: &Nvfp4Linear, xs: &Tensor) -> Vec<u32> {
    let (n, k) = (linear.linear().out_features(), linear.linear().in_features());
    let m = xs.elem_count() / k;
    let flat = xs.flatten_all().unwrap();
    macro_rules! run {
        ($t:ty) => {{
            let (x, mut y) = (flat.to_vec1::<$t>().unwrap(), vec![<$t>::default(); m * n]);
            let out = MatrixMut::new(&mut y[..], m, n).unwrap();
            linear.linear().forward(MatrixRef::new(&x[..], m, k).unwrap(), out).unwrap();
            y.into_iter().map(|v| f32::from(v).to_bits()).collect()
        }};
    }
    match xs.dtype() {
        DType::F32 => run!(f32),
        DType::BF16 => run!(bf16),
        _ => run!(f16),
    }
}

#[test]
fn every_type_and_shape_gives_the_bits_of_the_facade() {
    let mut rng = Rng::new(seed());
    for scheme in SCHEMES {
        for (n, k) in [(1, 16), (37, 48), (64, 240)] {
            let linear = load(&layer(n, k, scheme, &mut rng));
            for leading in [&[][..], &[1], &[5], &[2, 3], &[2, 1, 3], &[0], &[2, 0], &[2, 1, 2, 3]] {
                let shape = [leading, &[k]].concat();
                for dtype in [DType::F32, DType::BF16, DType::F16] {
                    let xs = normal(&shape, &mut rng).to_dtype(dtype).unwrap();
                    let ys = linear.forward(&xs).unwrap();
                    assert_eq!((ys.dims(), ys.dtype()), (&[leading, &[n]].concat()[..], dtype));
                    assert!(ys.is_contiguous());
                    assert_eq!(bits(&ys), expected(&linear, &xs), "{scheme} {shape:?} {dtype:?}");
                }
            }
        }
    }
}

/// Views of every kind give what their contiguous copies give.
#[test]
fn views_are_read_as_they_are() {
    let mut rng = Rng::new(seed());
    for scheme in SCHEMES {
        let linear = load(&layer(19, 32, scheme, &mut rng));
        let whole = normal(&[4, 6, 80], &mut rng);
        let views = [
            whole.narrow(2, 7, 32).unwrap(),
            whole.narrow(1, 2, 3).unwrap().narrow(2, 48, 32).unwrap(),
            whole.narrow(0, 3, 1).unwrap().narrow(2, 0, 32).unwrap(),
            whole.transpose(0, 1).unwrap().narrow(2, 1, 32).unwrap(),
            whole.narrow(1, 0, 4).unwrap().narrow(2, 0, 32).unwrap().transpose(1, 2).unwrap().contiguous().unwrap(),
            whole.narrow(0, 0, 1).unwrap().narrow(2, 0, 32).unwrap().broadcast_as((5, 6, 32)).unwrap(),
            normal(&[32, 7], &mut rng).t().unwrap(),
            whole.get(2).unwrap().get(5).unwrap().narrow(0, 40, 32).unwrap(),
        ];
        for view in views {
            let view =
                if view.dim(candle_core::D::Minus1).unwrap() == 32 { view } else { view.transpose(1, 2).unwrap() };
            let copy = view.contiguous().unwrap();
            assert_eq!(
                bits(&linear.forward(&view).unwrap()),
                expected(&linear, &copy),
                "{scheme} {:?}",
                view.layout()
            );
            if let Ok(quantized) = linear.quantize(&view) {
                let ys = linear.forward_quantized(&quantized).unwrap();
                assert_eq!(bits(&ys), expected(&linear, &copy), "{scheme} {:?}", view.layout());
            } else {
                assert_eq!(scheme, ActivationScheme::Unquantized);
            }
        }
    }
}

/// An implementation of its own: candle's product with the dequantized weight.
#[test]
fn weight_only_layers_are_near_candles_product() {
    let mut rng = Rng::new(seed());
    for (m, n, k) in [(1, 40, 64), (9, 33, 1040), (130, 64, 256)] {
        let layer = layer(n, k, ActivationScheme::Unquantized, &mut rng);
        let weight = Tensor::from_vec(dequantize(&layer.weights).unwrap(), (n, k), CPU).unwrap();
        let bias = layer.bias.clone().map(|b| Tensor::from_vec(b, n, CPU).unwrap());
        let dense = candle_nn::Linear::new(weight.clone(), bias);
        let xs = normal(&[m, k], &mut rng);
        let (ours, theirs) = (load(&layer).forward(&xs).unwrap(), dense.forward(&xs).unwrap());
        // Both are sums of k products in f32, in orders of their own: off by at most k roundings of the sum of magnitudes.
        let magnitudes = xs.abs().unwrap().matmul(&weight.abs().unwrap().t().unwrap()).unwrap();
        let bound = (magnitudes * (2.0 * k as f64 * 2f64.powi(-24))).unwrap();
        let difference = (&ours - &theirs).unwrap().abs().unwrap();
        let worst = (difference - bound).unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(worst <= 1e-6, "{m} x {n} x {k}: beyond the bound by {worst}");
    }
}

/// q, k and v: together they give the bits that each gives alone, whether they may share a quantized input or not.
#[test]
fn layers_with_one_input() {
    let mut rng = Rng::new(seed());
    for scheme in SCHEMES {
        let layers = [(24, 7e-4), (8, 7e-4), (16, 9e-4)].map(|(n, input)| {
            let mut layer = layer(n, 96, scheme, &mut rng);
            layer.input_scale = layer.input_scale.map(|_| GlobalScale::from_decode(input).unwrap());
            load(&layer)
        });
        let xs = normal(&[2, 7, 96], &mut rng).to_dtype(DType::BF16).unwrap();
        let alone = layers.each_ref().map(|layer| bits(&layer.forward(&xs).unwrap()));
        let [q, k, v] = layers.each_ref();
        assert_eq!(forward_all([q, k], &xs).unwrap().each_ref().map(bits), [alone[0].clone(), alone[1].clone()]);
        assert_eq!(forward_all([q, k, v], &xs).unwrap().each_ref().map(bits), alone, "{scheme}");
        assert_eq!(forward_all([v], &xs).unwrap()[0].dims(), [2, 7, 16]);
        assert!(forward_all([], &xs).unwrap().is_empty());
        // Layers of other widths refuse the input instead of sharing it.
        let other = load(&layer(8, 32, scheme, &mut rng));
        assert!(forward_all([q, &other], &xs).is_err());
    }
}

#[test]
fn wrong_inputs_are_errors_that_name_the_layer() {
    let mut rng = Rng::new(seed());
    let linear = load(&layer(8, 32, ActivationScheme::Nvfp4Static, &mut rng));
    for (xs, what) in [
        (normal(&[2, 48], &mut rng), "[2, 48]"),
        (normal(&[32, 2], &mut rng), "[32, 2]"),
        (Tensor::new(1f32, CPU).unwrap(), "[]"),
        (Tensor::ones((2, 32), DType::F64, CPU).unwrap(), "f64"),
        (Tensor::ones((2, 32), DType::U32, CPU).unwrap(), "u32"),
    ] {
        for error in [linear.forward(&xs).unwrap_err().to_string(), linear.quantize(&xs).unwrap_err().to_string()] {
            assert!(error.contains("blocks.0.proj") && error.contains(what), "{what}: {error}");
        }
    }
    let weight_only = load(&layer(8, 32, ActivationScheme::Unquantized, &mut rng));
    let error = weight_only.quantize(&normal(&[2, 32], &mut rng)).unwrap_err().to_string();
    assert!(error.contains("blocks.0.proj"), "{error}");
    // An input quantized for a layer of another width.
    let wide = load(&layer(8, 64, ActivationScheme::Nvfp4Static, &mut rng));
    let quantized = wide.quantize(&normal(&[2, 64], &mut rng)).unwrap();
    assert!(linear.forward_quantized(&quantized).unwrap_err().to_string().contains("blocks.0.proj"));
}

/// A gradient that would have to pass through a layer is an error, not a silent zero.
#[test]
fn gradients_do_not_pass() {
    let mut rng = Rng::new(seed());
    let linear = load(&layer(8, 32, ActivationScheme::Nvfp4Static, &mut rng));
    let xs = Var::from_tensor(&normal(&[2, 32], &mut rng)).unwrap();
    let ys = linear.forward(&xs).unwrap();
    assert_eq!(bits(&ys), bits(&linear.forward(&xs.as_detached_tensor()).unwrap()));
    let error = ys.sum_all().unwrap().backward().unwrap_err().to_string();
    assert!(error.contains("nvfp4-linear"), "{error}");
    let [ys] = forward_all([&linear], &xs).unwrap();
    assert!(ys.sum_all().unwrap().backward().is_err());
    let [a, b] = forward_all([&linear, &linear], &xs).unwrap();
    assert!((a + b).unwrap().sum_all().unwrap().backward().is_err());
}

#[test]
fn many_threads_share_a_layer() {
    let mut rng = Rng::new(seed());
    let linear = load(&layer(24, 64, ActivationScheme::Nvfp4Static, &mut rng));
    let inputs: Vec<Tensor> = (1..9).map(|m| normal(&[m, 64], &mut rng)).collect();
    let outputs: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let run = |xs| {
            let linear = linear.clone();
            scope.spawn(move || (0..20).map(|_| bits(&linear.forward(xs).unwrap())).next_back().unwrap())
        };
        let threads: Vec<_> = inputs.iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (xs, ys) in inputs.iter().zip(outputs) {
        assert_eq!(ys, expected(&linear, xs));
    }
}
