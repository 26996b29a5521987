//! Faults that `verify` names.

use crate::{
    inspect::golden_checkpoints,
    model::{self, Tensor, Tensors},
    run::{Run, list, nvfp4, text},
};
use serde_json::Value;
use std::{fs, path::Path};

/// Quantizes a model, lets `spoil` change the tensors of the checkpoint, and verifies it against the original.
fn verify_spoiled(spoil: impl FnOnce(&mut Tensors)) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let (dense, quantized) = (directory.path().join("dense"), directory.path().join("quantized"));
    model::llama(&dense, 11);
    let quantize =
        ["quantize".as_ref(), dense.as_os_str(), quantized.as_os_str(), "--format".as_ref(), "modelopt".as_ref()];
    nvfp4(quantize).ended(0);
    let file = quantized.join("model.safetensors");
    let mut tensors = model::read(&file);
    spoil(&mut tensors);
    model::write(&tensors, &file);
    let verify =
        ["verify".as_ref(), quantized.as_os_str(), "--original".as_ref(), dense.as_os_str(), "--json".as_ref()];
    nvfp4(verify).ended(1).json()
}

fn finding<'a>(report: &'a Value, fault: &str) -> &'a Value {
    let findings = list(report, "findings");
    findings.iter().find(|finding| finding["fault"] == fault).unwrap_or_else(|| panic!("no {fault}: {findings:?}"))
}

const MODULE: &str = "model.layers.1.mlp.down_proj";

fn tensor<'a>(tensors: &'a mut Tensors, suffix: &str) -> &'a mut Tensor {
    tensors.get_mut(&format!("{MODULE}.{suffix}")).unwrap()
}

#[test]
fn golden_checkpoints_are_sound() {
    for path in golden_checkpoints() {
        let run = nvfp4(["verify".as_ref(), path.as_os_str()]).ended(0);
        assert!(run.stdout.contains("sound: 0 errors"), "{}", run.stdout);
    }
}

#[test]
fn bad_block_scales_are_named_by_row_and_column() {
    let report = verify_spoiled(|tensors| {
        let scales = tensor(tensors, "weight_scale");
        assert_eq!(scales.shape, [64, 7]);
        scales.bytes[9 * 7 + 3] = 0x7f;
        scales.bytes[63 * 7 + 6] = 0xff;
        scales.bytes[7] |= 0x80;
    });
    let nan = finding(&report, "nan_block_scale");
    assert_eq!(text(nan, "tensor"), format!("{MODULE}.weight_scale"));
    let places: Vec<_> = list(nan, "positions").iter().map(|p| (&p["row"], &p["column"])).collect();
    assert_eq!(places, [(&Value::from(9), &Value::from(3)), (&Value::from(63), &Value::from(6))]);
    let negative = finding(&report, "negative_block_scale");
    assert_eq!((&negative["positions"][0]["row"], &negative["positions"][0]["column"]), (&1.into(), &0.into()));
}

#[test]
fn an_inverted_global_scale_is_explained() {
    let report = verify_spoiled(|tensors| {
        let scale = tensor(tensors, "weight_scale_2");
        *scale = Tensor::f32(&[], &[1.0 / scale.floats()[0]]);
    });
    let layer = list(&report, "layers").iter().find(|layer| layer["name"] == MODULE).unwrap();
    assert_eq!(layer["diagnosis"]["kind"], "global_scale");
    assert_eq!(layer["diagnosis"]["inverted"], true);
}

#[test]
fn a_wrong_row_is_named() {
    let report = verify_spoiled(|tensors| {
        let codes = tensor(tensors, "weight");
        assert_eq!(codes.shape, [64, 56]);
        codes.bytes[5 * 56..6 * 56].iter_mut().for_each(|byte| *byte ^= 0x88);
    });
    let layer = list(&report, "layers").iter().find(|layer| layer["name"] == MODULE).unwrap();
    assert_eq!(layer["worst_rows"][0]["row"], 5);
    finding(&report, "wrong_rows");
}

#[test]
fn missing_tensors_are_named() {
    let report = verify_spoiled(|tensors| {
        tensors.remove(&format!("{MODULE}.weight_scale_2"));
    });
    assert!(finding(&report, "missing_tensor").to_string().contains(&format!("{MODULE}.weight_scale_2")));
}

/// The text form names the same things.
#[test]
fn the_text_names_places_and_ends_with_the_verdict() {
    let directory = tempfile::tempdir().unwrap();
    let golden = nvfp4_testkit::golden::dir().join("ckpt_ct_w4a16");
    fs::copy(golden.join("config.json"), directory.path().join("config.json")).unwrap();
    let mut tensors = model::read(&golden.join("model.safetensors"));
    let name = tensors.keys().find(|name| name.ends_with("down_proj.weight_scale")).unwrap().clone();
    tensors.get_mut(&name).unwrap().bytes[13] = 0x7f;
    model::write(&tensors, &directory.path().join("model.safetensors"));
    let run = nvfp4(["verify".as_ref(), directory.path().as_os_str()]).ended(1);
    assert!(run.stdout.contains(&name) && run.stdout.contains("row 2, column 1"), "{}", run.stdout);
    assert!(run.stdout.contains("FAULTY: one error"), "{}", run.stdout);
}

#[test]
fn damaged_files_are_faults_and_absent_ones_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let golden = nvfp4_testkit::golden::dir().join("ckpt_modelopt").join("model.safetensors");
    let bytes = fs::read(golden).unwrap();
    let verify = |path: &Path| -> Run { nvfp4(["verify".as_ref(), path.as_os_str(), "--json".as_ref()]) };
    for (name, bytes) in [
        ("truncated", bytes[..bytes.len() - 1].to_vec()),
        ("header-only", bytes[..100].to_vec()),
        ("empty", Vec::new()),
        ("lying", [&u64::MAX.to_le_bytes()[..], &bytes[8..]].concat()),
        ("huge", [&(1u64 << 40).to_le_bytes()[..], &bytes[8..]].concat()),
    ] {
        let file = directory.path().join(format!("{name}.safetensors"));
        fs::write(&file, bytes).unwrap();
        let report = verify(&file).ended(1).json();
        assert!(report["dialect"].is_null());
        let message = text(finding(&report, "unreadable"), "message");
        assert!(message.contains(name), "{message}");
        nvfp4(["inspect".as_ref(), file.as_os_str()]).ended(3).says(&[name]);
    }
    verify(&directory.path().join("nowhere")).ended(3).says(&["nowhere"]);
}
