//! Conversions and dequantization of the golden checkpoints.

use crate::{
    inspect::{golden_checkpoints, module_of},
    model,
    run::{list, nvfp4, text},
};
use std::path::Path;

/// Dequantizes to f32 and compares with the golden values.
fn assert_dequantizes_to(checkpoint: &Path, golden: &Path, tolerance: f32, to: &Path) {
    let arguments =
        ["dequantize".as_ref(), checkpoint.as_os_str(), to.as_os_str(), "--dtype".as_ref(), "f32".as_ref()];
    nvfp4(arguments).ended(0);
    let found = model::read(&to.join("model.safetensors"));
    let expected = model::read(&golden.join("expected_dequant_f32.safetensors"));
    assert!(!expected.is_empty());
    for (name, expected) in &expected {
        let found = &found[&format!("{}.weight", module_of(name))];
        assert_eq!(found.shape, expected.shape, "{name}");
        for (a, b) in found.floats().iter().zip(expected.floats()) {
            assert!((a - b).abs() <= tolerance * b.abs(), "{name}: {a} {b}");
        }
    }
}

#[test]
fn golden_checkpoints_dequantize_to_their_values() {
    let directory = tempfile::tempdir().unwrap();
    for golden in golden_checkpoints() {
        let to = directory.path().join(golden.file_name().unwrap());
        assert_dequantizes_to(&golden, &golden, 0.0, &to);
    }
}

#[test]
fn golden_checkpoints_convert_to_every_format_and_keep_their_values() {
    let directory = tempfile::tempdir().unwrap();
    for golden in golden_checkpoints() {
        let name = golden.file_name().unwrap().to_str().unwrap();
        for format in ["compressed-tensors", "modelopt"] {
            let to = directory.path().join(format!("{name}-{format}"));
            let arguments =
                ["convert", golden.to_str().unwrap(), to.to_str().unwrap(), "--format", format, "--json"];
            let report = nvfp4(arguments).ended(0).json();
            let exact = list(&report, "layers").iter().all(|layer| layer["exact"] == true);
            // The reciprocal of a reciprocal may differ in the last bit.
            let tolerance = if exact { 0.0 } else { f32::EPSILON };
            assert_dequantizes_to(
                &to,
                &golden,
                tolerance,
                &directory.path().join(format!("{name}-{format}-dense")),
            );
            nvfp4(["verify".as_ref(), to.as_os_str()]).ended(0);
        }
    }
}

#[test]
fn weight_only_leaves_input_scales_out() {
    let directory = tempfile::tempdir().unwrap();
    for golden in golden_checkpoints() {
        let to = directory.path().join(golden.file_name().unwrap());
        let arguments = ["convert", golden.to_str().unwrap(), to.to_str().unwrap(), "--format", "modelopt"];
        nvfp4(arguments.iter().chain(&["--weight-only"])).ended(0);
        let report = nvfp4(["inspect".as_ref(), to.as_os_str(), "--json".as_ref()]).ended(0).json();
        for module in list(&report, "modules").iter().filter(|m| text(m, "scheme").starts_with("NVFP4")) {
            assert_eq!(module["scheme"], "NVFP4 W4A16");
            assert!(module["input_global_scales"].as_array().unwrap().is_empty());
        }
    }
}

#[test]
fn a_dense_model_cannot_be_converted_or_dequantized() {
    let directory = tempfile::tempdir().unwrap();
    let dense = directory.path().join("dense");
    model::llama(&dense, 1);
    let (dense, to) = (dense.to_str().unwrap(), directory.path().join("to"));
    nvfp4(["convert", dense, to.to_str().unwrap(), "--format", "modelopt"]).ended(3).says(&["no NVFP4 module"]);
    nvfp4(["dequantize", dense, to.to_str().unwrap()]).ended(3).says(&["no NVFP4 module"]);
    assert!(!to.exists());
}
