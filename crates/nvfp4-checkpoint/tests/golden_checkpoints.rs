//! The golden checkpoints, written by the upstream libraries, load to the values that upstream decodes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use nvfp4_checkpoint::{Checkpoint, Dialect, Scheme};
use nvfp4_core::{ActivationScheme, dequantize};
use nvfp4_testkit::golden::{self, File};

#[test]
fn every_module_decodes_bit_for_bit() {
    let mut dialects = Vec::new();
    for entry in std::fs::read_dir(golden::dir()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.starts_with("ckpt_") {
            continue;
        }
        let checkpoint = Checkpoint::open(golden::dir().join(&name)).unwrap();
        dialects.push(checkpoint.dialect());
        let expected = File::open(&format!("{name}/expected_dequant_f32.safetensors"));
        let mut modules = 0;
        for (tensor, expected) in &expected.tensors {
            let module = tensor.strip_suffix(".weight").unwrap_or(tensor);
            let layer = checkpoint.linear(module).unwrap_or_else(|e| panic!("{name}: {module}: {e}"));
            let found = dequantize::dequantize(&layer.weights).unwrap();
            assert_eq!(vec![layer.weights.out_features(), layer.weights.in_features()], expected.shape);
            for (i, (f, e)) in found.iter().zip(expected.floats()).enumerate() {
                // torchao multiplies in another order.
                let close = checkpoint.dialect() == Dialect::TorchAo && (f - e).abs() <= 2.4e-7 * e.abs();
                assert!(f.to_bits() == e.to_bits() || close, "{name}: {module} [{i}]: found {f}, expected {e}");
            }
            layer.check().unwrap();
            modules += 1;
        }
        let quantized = checkpoint.modules().filter(|m| matches!(m.scheme, Scheme::NvFp4(_))).count();
        assert_eq!(quantized, modules, "{name}");
        let weight_only = name.contains("w4a16") || checkpoint.dialect() == Dialect::TorchAo;
        for module in checkpoint.modules() {
            if let Scheme::NvFp4(activation) = module.scheme {
                let expected =
                    if weight_only { ActivationScheme::Unquantized } else { ActivationScheme::Nvfp4Static };
                assert_eq!(activation, expected, "{name}: {}", module.name);
            }
        }
        assert!(checkpoint.warnings().is_empty(), "{name}: {:?}", checkpoint.warnings());
    }
    assert_eq!(dialects.len(), 5);
    for dialect in [Dialect::ModelOpt, Dialect::CompressedTensors, Dialect::TorchAo] {
        assert!(dialects.contains(&dialect), "{dialect}");
    }
}

/// q, k and v have different global scales in these files, on purpose: the fused layer keeps each.
#[test]
fn fused_layers_stay_exact() {
    for name in ["ckpt_modelopt", "ckpt_modelopt_w4a16", "ckpt_ct", "ckpt_ct_w4a16"] {
        let checkpoint = Checkpoint::open(golden::dir().join(name)).unwrap();
        let expected = File::open(&format!("{name}/expected_dequant_f32.safetensors"));
        for (fused, parts) in [
            ("self_attn.qkv_proj", vec!["q_proj", "k_proj", "v_proj"]),
            ("mlp.gate_up_proj", vec!["gate_proj", "up_proj"]),
        ] {
            let prefix = format!("model.layers.1.{}", fused.split('.').next().unwrap());
            let layer = checkpoint.linear(&format!("model.layers.1.{fused}")).unwrap();
            assert!(
                layer.weights.global().as_per_tensor().is_none(),
                "{name}: {fused} has parts of different scale"
            );
            let values = dequantize::dequantize(&layer.weights).unwrap();
            let parts: Vec<f32> = parts
                .iter()
                .flat_map(|part| {
                    let key = format!("{prefix}.{part}");
                    let key = if expected.tensors.contains_key(&key) { key } else { format!("{key}.weight") };
                    expected.get(&key).floats()
                })
                .collect();
            assert_eq!(values, parts, "{name}: {fused}");
        }
    }
}
