//! Layers and dense tensors by name, from the golden checkpoints of every dialect.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use candle_core::{DType, Device, Module, Tensor};
use nvfp4::{
    LinearOptions,
    checkpoint::{Checkpoint, Scheme},
};
use nvfp4_candle::{AnyLinear, Nvfp4VarBuilder};
use nvfp4_testkit::golden::{self, File};
use std::sync::Arc;

const CPU: &Device = &Device::Cpu;

fn golden_checkpoints() -> Vec<String> {
    let names = std::fs::read_dir(golden::dir()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = names.filter(|name| name.starts_with("ckpt_")).collect();
    assert!(names.len() >= 5, "{names:?}");
    names
}

fn open(name: &str) -> Nvfp4VarBuilder {
    Nvfp4VarBuilder::open(golden::dir().join(name), DType::F32, CPU).unwrap()
}

fn message<T>(result: candle_core::Result<T>) -> String {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => error.to_string(),
    }
}

/// Every module of every checkpoint, run weight-only on the unit vectors, gives the columns of the weight that upstream decodes.
#[test]
fn every_module_holds_the_upstream_values() {
    for name in golden_checkpoints() {
        let checkpoint = Arc::new(Checkpoint::open(golden::dir().join(&name)).unwrap());
        let weight_only = nvfp4::Policy { numerics: nvfp4::select::Numerics::WeightOnly, ..Default::default() };
        let options = LinearOptions::new().with_policy(weight_only);
        let vb = Nvfp4VarBuilder::new(checkpoint, options, DType::F32, CPU).unwrap();
        let expected = File::open(&format!("{name}/expected_dequant_f32.safetensors"));
        for (tensor, expected) in &expected.tensors {
            let module = tensor.strip_suffix(".weight").unwrap_or(tensor);
            let (n, k) = (expected.shape[0], expected.shape[1]);
            // By steps, as a model's code does it.
            let place = module.split('.').fold(vb.clone(), |vb, part| vb.pp(part));
            assert_eq!(place.prefix(), module);
            assert!(place.contains_linear());
            let linear = place.linear(k, n).unwrap();
            let ys = linear.forward(&Tensor::eye(k, DType::F32, CPU).unwrap()).unwrap().t().unwrap();
            let found = ys.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            for (i, (found, expected)) in found.iter().zip(expected.floats()).enumerate() {
                // One product, rounded in another order.
                assert!((found - expected).abs() <= 2.4e-7 * expected.abs(), "{name}: {module} [{i}]");
            }
            let text = message(place.linear(n + 1, k));
            assert!(text.contains(module) && text.contains(&format!("found [{n}, {k}]")), "{text}");
        }
    }
}

/// Three layers as one, under their own names and under the fused module's.
#[test]
fn fused_layers_are_the_parts_stacked() {
    let vb = open("ckpt_ct_w4a16").pp("model").pp("layers").pp(1).pp("self_attn");
    let xs = Tensor::arange(0f32, 3.0 * 64.0, CPU).unwrap().reshape((3, 64)).unwrap().sin().unwrap();
    let parts = [("q_proj", 64), ("k_proj", 32), ("v_proj", 32)]
        .map(|(name, n)| vb.pp(name).linear(64, n).unwrap().forward(&xs).unwrap());
    let expected = Tensor::cat(&parts, 1).unwrap().to_vec2::<f32>().unwrap();
    for fused in [vb.fused_linear(&["q_proj", "k_proj", "v_proj"], 64, 128), vb.pp("qkv_proj").linear(64, 128)] {
        let ys = fused.unwrap().forward(&xs).unwrap();
        assert_eq!(ys.to_vec2::<f32>().unwrap(), expected);
    }
    assert!(message(vb.fused_linear(&["q_proj", "z_proj"], 64, 128)).contains("z_proj"));
}

/// Norms, embeddings and heads that were left out of quantization come through candle's own builder.
#[test]
fn dense_tensors_come_through_candles_builder() {
    let mut dense = 0;
    for name in golden_checkpoints() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let vb = Nvfp4VarBuilder::open(golden::dir().join(&name), dtype, CPU).unwrap();
            let file = File::open(&format!("{name}/model.safetensors"));
            for (tensor, expected) in file.tensors.iter().filter(|(t, _)| t.contains("norm") || t.contains("embed"))
            {
                let found = vb.dense().get(expected.shape.as_slice(), tensor).unwrap();
                assert_eq!(found.dtype(), dtype);
                let as_f32 = Tensor::from_vec(expected.floats(), expected.shape.as_slice(), CPU).unwrap();
                let expected = as_f32.to_dtype(dtype).unwrap().to_dtype(DType::F32).unwrap();
                let found = found.to_dtype(DType::F32).unwrap();
                let flat = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                assert_eq!(flat(&found), flat(&expected), "{name}: {tensor}");
                dense += 1;
            }
        }
    }
    assert!(dense > 10, "{dense}");
    let vb = open("ckpt_ct");
    let norm = vb.pp("model.layers.0").dense();
    assert_eq!(norm.get(64, "input_layernorm.weight").unwrap().dims(), [64]);
    let text = message(norm.get(32, "input_layernorm.weight"));
    assert!(text.contains("model.layers.0.input_layernorm.weight") && text.contains("64"), "{text}");
    let text = message(norm.get(64, "output_layernorm.weight"));
    assert!(text.contains("model.layers.0.output_layernorm.weight"), "{text}");
}

/// The bytes of a packed module are no values: nobody gets them by accident.
#[test]
fn packed_tensors_are_not_given_as_dense_ones() {
    for (name, part, shape) in [("ckpt_modelopt", "weight", (64, 32)), ("ckpt_ct", "weight_packed", (64, 32))] {
        let vb = open(name).pp("model.layers.0.self_attn.q_proj").dense();
        let text = message(vb.get(shape, part));
        assert!(text.contains("q_proj") && text.contains("NVFP4"), "{text}");
    }
}

/// What the checkpoint holds decides: NVFP4, or dense where it was left out.
#[test]
fn a_layer_is_what_the_checkpoint_has() {
    let vb = open("ckpt_modelopt");
    let head = vb.pp("lm_head").linear_or_dense(64, 128).unwrap();
    assert!(matches!(&head, AnyLinear::Dense(_)));
    let weight = vb.dense().get((128, 64), "lm_head.weight").unwrap();
    let xs = Tensor::ones((2, 64), DType::F32, CPU).unwrap();
    let expected = xs.matmul(&weight.t().unwrap()).unwrap().to_vec2::<f32>().unwrap();
    assert_eq!(head.forward(&xs).unwrap().to_vec2::<f32>().unwrap(), expected);
    let down = vb.pp("model.layers.0.mlp.down_proj").linear_or_dense(96, 64).unwrap();
    let AnyLinear::Nvfp4(linear) = &down else { panic!("{down:?}") };
    assert!(matches!(vb.checkpoint().module("lm_head").unwrap().scheme, Scheme::Dense(_)));
    let xs = Tensor::ones((2, 96), DType::F32, CPU).unwrap();
    assert_eq!(
        down.forward(&xs).unwrap().to_vec2::<f32>().unwrap(),
        linear.forward(&xs).unwrap().to_vec2::<f32>().unwrap()
    );
    assert!(message(vb.pp("lm_head").linear(64, 128)).contains("lm_head"));
    assert!(message(vb.pp("lm_head").linear_or_dense(64, 127)).contains("lm_head"));
}

#[test]
fn what_is_not_there_is_named() {
    let vb = open("ckpt_ct");
    let text = message(vb.pp("model.layers.7.mlp.down_proj").linear(96, 64));
    assert!(text.contains("model.layers.7.mlp.down_proj") && text.contains("there are"), "{text}");
    assert!(!vb.pp("model.layers.7.mlp.down_proj").contains_linear());
    assert!(message(vb.pp("nowhere").linear_or_dense(96, 64)).contains("nowhere"));
    let path = golden::dir().join("ckpt_none");
    assert!(message(Nvfp4VarBuilder::open(&path, DType::F32, CPU)).contains("ckpt_none"));
    for dtype in [DType::F64, DType::U8, DType::F8E4M3] {
        let text = message(Nvfp4VarBuilder::open(golden::dir().join("ckpt_ct"), dtype, CPU));
        assert!(text.contains(dtype.as_str()), "{text}");
    }
}

/// Files may go once the layers are loaded.
#[test]
fn layers_do_not_need_the_files() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(golden::dir().join("ckpt_ct").join(file), folder.path().join(file)).unwrap();
    }
    let vb = Nvfp4VarBuilder::open(folder.path(), DType::F32, CPU).unwrap();
    let linear = vb.pp("model.layers.0.mlp.down_proj").linear(96, 64).unwrap();
    let xs = Tensor::ones((1, 96), DType::F32, CPU).unwrap();
    let before = linear.forward(&xs).unwrap().to_vec2::<f32>().unwrap();
    drop((vb, folder));
    assert_eq!(linear.forward(&xs).unwrap().to_vec2::<f32>().unwrap(), before);
}
