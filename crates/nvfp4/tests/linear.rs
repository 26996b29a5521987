//! `Linear`: any leading dimensions, quantize once, plans and memory that are kept, reload, and calls that must fail.
#![cfg(feature = "cpu")]

mod support;

use nvfp4::{
    ActivationScheme, DType, Error, GlobalScale, GlobalScales, KernelId, Linear, LinearOptions, LinearScales,
    LoadError, MatrixMut, MatrixRef, NvFp4LinearLayer, NvFp4Weights, Policy, PreparedWeights, Registry,
    Unsupported, WorkspacePool,
    kernel::WeightLayout,
    select::{Choice, Note, Numerics, SelectError},
};
use std::sync::{Arc, atomic::Ordering};
use support::{Limited, forward, layer, options, values};

const SCHEMES: [ActivationScheme; 4] = nvfp4_testkit::layers::SCHEMES;

fn load(layer: &NvFp4LinearLayer<'_>, options: &LinearOptions) -> Linear {
    Linear::load(layer, options).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn leading_dimensions_are_rows() {
    for scheme in SCHEMES {
        let linear = load(&layer(24, 48, scheme, 1), &options());
        let x = values(6 * 48, 2);
        let expected = forward(&linear, &x);
        for shape in [&[6, 48][..], &[2, 3, 48], &[1, 6, 1, 48], &[3, 2, 48]] {
            let mut out = vec![f32::NAN; 6 * 24];
            linear.forward_nd((&x[..]).into(), shape, (&mut out[..]).into()).unwrap();
            assert_eq!(out, expected, "{shape:?}");
            let mut output_shape = shape.to_vec();
            *output_shape.last_mut().unwrap() = 24;
            assert_eq!(linear.output_shape(shape).unwrap(), output_shape);
        }
        // One dimension is one row.
        let mut out = vec![f32::NAN; 24];
        linear.forward_nd((&x[..48]).into(), &[48], (&mut out[..]).into()).unwrap();
        if scheme != ActivationScheme::Nvfp4DynamicPerTensor {
            assert_eq!(out, expected[..24]);
        }
        // No rows: no work, no error, and the next call is as good as ever.
        for shape in [&[0, 48][..], &[2, 0, 48], &[0, usize::MAX, 48], &[usize::MAX, usize::MAX, 0, 48]] {
            linear.forward_nd((&x[..0]).into(), shape, (&mut out[..0]).into()).unwrap();
        }
        assert_eq!(forward(&linear, &x), expected);
        assert_eq!(linear.output_shape(&[2, 0, 48]).unwrap(), [2, 0, 24]);

        for shape in [&[][..], &[288], &[6, 47], &[48, 6], &[7, 48], &[usize::MAX, 2, 48], &[usize::MAX, 48]] {
            let mut out = vec![0.0; 6 * 24];
            assert!(linear.forward_nd((&x[..]).into(), shape, (&mut out[..]).into()).is_err(), "{shape:?}");
        }
    }
}

#[test]
fn an_activation_is_quantized_once_for_several_layers() {
    for scheme in SCHEMES {
        let (q, k) = (layer(24, 80, scheme, 3), layer(8, 80, scheme, 4));
        let (q, k) = (load(&q, &options()), load(&k, &options()));
        let x = values(2 * 3 * 80, 5);
        let matrix = MatrixRef::new(&x[..], 6, 80).unwrap();
        if scheme == ActivationScheme::Unquantized {
            assert_eq!(q.input_quant_key(), None);
            assert!(q.quantize(matrix).unwrap_err().to_string().contains("takes no quantized"));
            continue;
        }
        let quantized = q.quantize_nd((&x[..]).into(), &[2, 3, 80]).unwrap();
        assert_eq!((quantized.orig_shape.as_slice(), quantized.rows), (&[2, 3, 80][..], 6));
        assert_eq!(Some(quantized.quant_key), q.input_quant_key());
        for linear in [&q, &k] {
            let mut out = vec![f32::NAN; 6 * linear.out_features()];
            let view = MatrixMut::new(&mut out[..], 6, linear.out_features()).unwrap();
            linear.forward_quantized(&quantized, view).unwrap();
            assert_eq!(out, forward(linear, &x), "{scheme}");
        }

        // Of another layer shape, another scheme, or spoilt.
        let mut out = vec![0.0; 6 * 24];
        let narrow = load(&layer(24, 64, scheme, 6), &options());
        let unquantized = load(&layer(24, 80, ActivationScheme::Unquantized, 6), &options());
        for other in [&narrow, &unquantized] {
            let view = MatrixMut::new(&mut out[..], 6, 24).unwrap();
            assert!(other.forward_quantized(&quantized, view).is_err(), "{scheme}");
        }
        let mut spoilt = quantized.clone();
        spoilt.data.pop();
        assert!(q.forward_quantized(&spoilt, MatrixMut::new(&mut out[..], 6, 24).unwrap()).is_err());
        assert!(q.forward_quantized(&quantized, MatrixMut::new(&mut out[..120], 5, 24).unwrap()).is_err());
    }
}

#[test]
fn rows_do_not_depend_on_the_batch() {
    for scheme in SCHEMES {
        let layer = layer(40, 112, scheme, 7);
        let loaded = Linear::load(&layer, &options().with_batch_invariant(true));
        if scheme == ActivationScheme::Nvfp4DynamicPerTensor {
            // One scale for all rows: no backend can promise it. The layer runs weight-only, and says so; or, where
            // the checkpoint's numerics are a must, not at all.
            assert_eq!(loaded.unwrap().decision().note, Some(Note::NoQuantizedBackend));
            let strict = Policy { numerics: Numerics::Checkpoint, ..Policy::default() };
            let refused = Linear::load(&layer, &options().with_policy(strict).with_batch_invariant(true));
            let Err(LoadError::Select { source: SelectError::NoneEligible(reasons), .. }) = refused else {
                panic!("{refused:?}")
            };
            assert!(reasons.contains(&(KernelId::CPU, Unsupported::BatchInvariance)), "{reasons:?}");
            continue;
        }
        let linear = loaded.unwrap();
        let x = values(513 * 112, 8);
        let alone = forward(&linear, &x[..112]);
        for m in [2, 3, 8, 16, 17, 32, 64, 65, 128, 129, 257, 512, 513] {
            assert_eq!(forward(&linear, &x[..m * 112])[..40], alone[..], "{scheme}, {m} rows");
        }
        for _ in 0..20 {
            assert_eq!(forward(&linear, &x[..112]), alone);
        }
    }
}

/// Results beside the exact values of the field report: q, k and v with divisors 12343.1, 5334.3 and 8001.5.
#[test]
fn fused_parts_keep_their_global_scales() {
    let divisors = [12343.104f32, 5334.3257, 8001.4883];
    let part = |&d: &f32| (1, GlobalScale::from_encode(d).unwrap());
    for scheme in [ActivationScheme::Unquantized, ActivationScheme::Nvfp4Static] {
        let layer = NvFp4LinearLayer {
            name: "qkv_proj".into(),
            weights: NvFp4Weights::new(
                3,
                16,
                vec![0x22; 24],
                LinearScales::new(3, 1, vec![0x38; 3]).unwrap(),
                GlobalScales::from_parts(divisors.iter().map(part)),
            )
            .unwrap(),
            activation: scheme,
            input_scale: (scheme == ActivationScheme::Nvfp4Static).then(|| GlobalScale::from_decode(0.25).unwrap()),
            bias: None,
        };
        // 1.5 = 6 · 1 · 0.25 is exact in both schemes.
        let y = forward(&load(&layer, &options()), &[1.5; 16]);
        for (y, expected) in y.iter().zip([1.29627e-3f32, 2.99944e-3, 1.99963e-3]) {
            assert!((y / 1.5 / expected - 1.0).abs() < 3e-6, "{y} {expected}");
        }
    }
    // A part that is as good as dead does not disturb the others; one of zero cannot be built.
    let tiny = GlobalScale::from_decode(1.5e-38).unwrap();
    let global = GlobalScales::from_parts([(1, GlobalScale::ONE), (1, tiny)]);
    let layer = NvFp4LinearLayer {
        name: "gate_up_proj".into(),
        weights: NvFp4Weights::new(2, 16, vec![0x22; 16], LinearScales::new(2, 1, vec![0x38; 2]).unwrap(), global)
            .unwrap(),
        activation: ActivationScheme::Unquantized,
        input_scale: None,
        bias: None,
    };
    assert_eq!(forward(&load(&layer, &options()), &[1.0; 16]), [16.0, 16.0 * 1.5e-38]);
    assert!(GlobalScale::from_decode(0.0).is_err() && GlobalScale::from_encode(f32::INFINITY).is_err());
}

#[test]
fn every_pair_of_types_runs_whatever_the_layer_was_loaded_for() {
    use nvfp4_testkit::matrices::HostMatrix;
    let linear = load(&layer(24, 48, ActivationScheme::Unquantized, 9), &options());
    let x = HostMatrix::new(DType::Bf16, 2, 48, &values(96, 10));
    let narrow: Vec<f32> = (0..96).map(|i| x.get(i / 48, i % 48)).collect();
    let expected = forward(&linear, &narrow);
    for (input, output) in nvfp4_testkit::layers::dtype_pairs() {
        let x = HostMatrix::new(input, 2, 48, &narrow);
        let mut out = HostMatrix::filled(output, 2, 24, 27, 0xff);
        linear.forward(x.view(), out.view_mut()).unwrap();
        let mut rounded = HostMatrix::filled(output, 2, 24, 24, 0);
        (0..48).for_each(|i| rounded.set(i / 24, i % 24, expected[i]));
        if input != DType::F16 {
            let rows: Vec<_> = (0..2).map(|r| (out.row_bits(r), rounded.row_bits(r))).collect();
            assert!(rows.iter().all(|(a, b)| a == b), "{input} -> {output}");
        }
        assert!(out.gaps_are(0xff));
    }
    assert_eq!(linear.plans(), 9);
}

#[test]
fn plans_are_kept_by_range_of_rows() {
    let kernel = Arc::new(Limited::new("counting"));
    let registry = Registry::empty().with_kernel(kernel.clone());
    let linear = load(&layer(8, 32, ActivationScheme::Nvfp4Static, 11), &options().with_registry(registry));
    assert_eq!(kernel.prepared.load(Ordering::Relaxed), 1);
    let x = values(100 * 32, 12);
    for m in 1..=100 {
        forward(&linear, &x[..m * 32]);
    }
    // 1, 2, 4, 8, 16, 32, 64, 128.
    assert_eq!((kernel.planned.load(Ordering::Relaxed), linear.plans()), (8, 8));
    linear.warm_up(100, DType::F32, DType::F32).unwrap();
    assert_eq!(linear.plans(), 8);
    linear.warm_up(4, DType::Bf16, DType::F32).unwrap();
    assert_eq!(linear.plans(), 11);
}

/// A backend for few rows, and another that reads the same prepared weights for more.
#[test]
fn backends_with_one_layout_share_the_weights() {
    let few = Arc::new(Limited { rows: 20, ..Limited::new("few") });
    let registry = Arc::new(Registry::installed().with_kernel(few.clone()));
    let prefer = Policy { choice: Choice::Prefer(vec!["few".into()]), ..Policy::default() };
    let layer = layer(8, 32, ActivationScheme::Unquantized, 13);
    let x = values(40 * 32, 14);
    let expected = forward(&load(&layer, &options()), &x);

    let linear = load(&layer, &options().with_registry(registry.clone()).with_policy(prefer.clone()));
    assert_eq!(linear.decision().chosen, KernelId::new("few"));
    // 16: its own bucket. 20: less than the bucket of 32, but it can. 40 and 21: the other backend.
    for (m, planned) in [(16, 1), (40, 1), (20, 2), (21, 2), (20, 2)] {
        assert_eq!(forward(&linear, &x[..m * 32]), expected[..m * 8]);
        assert_eq!(few.planned.load(Ordering::Relaxed), planned, "{m} rows");
    }
    assert_eq!(few.prepared.load(Ordering::Relaxed), 1);

    // Where it is forced, or results must not depend on the number of rows, nothing stands in for it.
    let force = Policy { choice: Choice::Force("few".into()), ..Policy::default() };
    let forced = load(&layer, &options().with_registry(registry.clone()).with_policy(force));
    let invariant = load(&layer, &options().with_registry(registry).with_policy(prefer).with_batch_invariant(true));
    for linear in [forced, invariant] {
        let mut out = vec![0.0; 40 * 8];
        let (x, out) = (MatrixRef::new(&x[..], 40, 32).unwrap(), MatrixMut::new(&mut out[..], 40, 8).unwrap());
        assert_eq!(
            linear.forward(x, out),
            Err(Error::Unsupported(Unsupported::Rows { needed: "1..=20".into(), found: 40 }))
        );
    }
}

#[test]
fn reload_gives_the_same_bytes_and_keeps_what_it_was_given() {
    for scheme in SCHEMES {
        let (first, second) = (layer(24, 48, scheme, 15), layer(24, 48, scheme, 16));
        let x = values(3 * 48, 17);
        let mut linear = load(&first, &options().with_checkpoint_kept(true));
        let expected = forward(&linear, &x);
        assert_eq!(linear.checkpoint(), Some(&first), "the checkpoint's bytes are kept");
        for _ in 0..2 {
            linear.reload(&second).unwrap();
            assert_eq!(linear.checkpoint(), Some(&second));
            assert_eq!(forward(&linear, &x), forward(&load(&second, &options()), &x));
            // From what was kept, as an adapter that is unmerged would.
            linear.reload(&first).unwrap();
            let kept = linear.checkpoint().cloned().unwrap();
            linear.reload(&kept).unwrap();
            assert_eq!(kept, first);
            assert_eq!(forward(&linear, &x), expected);
        }

        // Another layer is refused, and the old one stays.
        let mut bad_scale = layer(24, 48, scheme, 18);
        let (packed, _, global) = bad_scale.weights.into_parts();
        let mut scales = vec![0x38; 72];
        scales[3 * 3 + 2] = 0x7f;
        bad_scale.weights =
            NvFp4Weights::new(24, 48, packed, LinearScales::new(24, 3, scales).unwrap(), global).unwrap();
        let mut other_parts = layer(24, 48, scheme, 19);
        let (packed, scales, _) = other_parts.weights.into_parts();
        let global =
            GlobalScales::from_parts([(12, GlobalScale::ONE), (12, GlobalScale::from_decode(2.0).unwrap())]);
        other_parts.weights = NvFp4Weights::new(24, 48, packed, scales, global).unwrap();
        let mut others = vec![bad_scale, other_parts, layer(24, 64, scheme, 20), layer(25, 48, scheme, 21)];
        others.extend(SCHEMES.into_iter().filter(|s| *s != scheme).map(|s| layer(24, 48, s, 22)));
        for other in others {
            let error = linear.reload(&other);
            assert!(error.is_err(), "{scheme} from {:?}", other.activation);
            assert_eq!(forward(&linear, &x), expected);
        }
    }
    let plain = load(&layer(8, 32, ActivationScheme::Unquantized, 23), &options());
    assert_eq!(plain.checkpoint(), None);
    assert!(plain.prepared_bytes() >= 8 * 32 / 2 && plain.prepared_bytes() < 8 * 32 * 4);
}

#[test]
fn a_fault_in_the_tensors_is_named() {
    let mut bad = layer(8, 48, ActivationScheme::Unquantized, 24);
    let (packed, _, global) = bad.weights.into_parts();
    for byte in [0x7f, 0xff, 0x80, 0xb8] {
        let mut scales = vec![0x38; 24];
        scales[3 * 3 + 2] = byte;
        scales[5 * 3] = byte;
        bad.weights =
            NvFp4Weights::new(8, 48, packed.clone(), LinearScales::new(8, 3, scales).unwrap(), global.clone())
                .unwrap();
        let error = Linear::load(&bad, &options()).unwrap_err();
        let expected = Error::BlockScale { row: 3, column: 2, byte, count: 2 };
        let tensor = "model.layers.0.mlp.down_proj.weight_scale";
        assert_eq!(error, LoadError::Layer(expected.in_tensor(tensor)));
    }
    let mut missing = layer(8, 48, ActivationScheme::Nvfp4Static, 25);
    missing.input_scale = None;
    let mut surplus = layer(8, 48, ActivationScheme::Unquantized, 26);
    surplus.input_scale = Some(GlobalScale::ONE);
    let mut short = layer(8, 48, ActivationScheme::Unquantized, 27);
    short.bias = Some(vec![0.0; 7]);
    for layer in [missing, surplus, short] {
        let error = Linear::load(&layer, &options()).unwrap_err();
        assert!(error.to_string().contains("model.layers.0.mlp.down_proj"), "{error}");
    }
}

#[test]
fn calls_of_the_wrong_shape_are_errors() {
    let linear = load(&layer(8, 48, ActivationScheme::Unquantized, 28), &options());
    let x = values(4 * 64, 29);
    for (m, k, rows, n) in [
        (2, 32, 2, 8),
        (2, 64, 2, 8),
        (2, 48, 2, 7),
        (2, 48, 2, 9),
        (2, 48, 1, 8),
        (2, 48, 3, 8),
        (0, 48, 1, 8),
        (0, 32, 0, 8),
    ] {
        let mut out = vec![0.0; rows * n];
        let x = MatrixRef::new(&x[..m * k], m, k).unwrap();
        let error = linear.forward(x, MatrixMut::new(&mut out[..], rows, n).unwrap()).unwrap_err();
        assert!(matches!(error, Error::Size { .. }), "{error}");
    }
}

/// Layout checks are errors in every build profile.
#[test]
fn weights_of_another_layout_are_errors() {
    #[derive(Debug)]
    struct Foreign(WeightLayout);
    impl PreparedWeights for Foreign {
        fn layout(&self) -> WeightLayout {
            self.0
        }
        fn bytes(&self) -> usize {
            0
        }
    }
    let linear = load(&layer(8, 48, ActivationScheme::Unquantized, 30), &options());
    for layout in [WeightLayout::SWIZZLED_128X4, linear.prepared().layout()] {
        let foreign: Arc<dyn PreparedWeights> = Arc::new(Foreign(layout));
        let planned = linear.kernel().plan(linear.config(), &foreign, None, 1);
        assert!(matches!(planned, Err(Error::Layout { .. })), "{planned:?}");
    }
}

#[test]
fn a_layer_runs_on_many_threads_at_once() {
    fn is_shareable<T: Send + Sync>(_: &T) {}
    let pool = Arc::new(WorkspacePool::new());
    let linear = load(&layer(40, 96, ActivationScheme::Nvfp4Static, 31), &options().with_workspaces(pool.clone()));
    is_shareable(&linear);
    let x = values(33 * 96, 32);
    let expected: Vec<_> = (1..=33).map(|m| forward(&linear, &x[..m * 96])).collect();
    std::thread::scope(|scope| {
        for t in 0..4 {
            let (linear, x, expected) = (&linear, &x, &expected);
            scope.spawn(move || {
                for i in 0..50 {
                    let m = 1 + (7 * i + 11 * t) % 33;
                    assert_eq!(forward(linear, &x[..m * 96]), expected[m - 1], "{m} rows");
                }
            });
        }
    });
    assert!(pool.bytes() > 0, "scratch memory is kept");
}
