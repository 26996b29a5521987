//! What `inspect` tells of the golden checkpoints.

use crate::{
    model,
    run::{list, number, nvfp4, text},
};
use nvfp4_testkit::golden;
use std::{collections::BTreeMap, path::PathBuf};

/// The golden checkpoints.
pub(crate) fn golden_checkpoints() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(golden::dir()).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.join("model.safetensors").is_file()).collect();
    found.sort();
    assert!(!found.is_empty());
    found
}

/// The name in `expected`, with or without its last part: torchao's file names parameters.
pub(crate) fn module_of(expected: &str) -> &str {
    expected.strip_suffix(".weight").unwrap_or(expected)
}

#[test]
fn golden_checkpoints_are_described() {
    for path in golden_checkpoints() {
        let directory = path.to_str().unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let report = nvfp4(["inspect", directory, "--json"]).ended(0).json();
        let dialect = match name {
            name if name.starts_with("ckpt_modelopt") => "ModelOpt",
            name if name.starts_with("ckpt_ct") => "compressed-tensors",
            name if name.starts_with("ckpt_torchao") => "torchao",
            other => panic!("a golden checkpoint of an unknown kind: {other}"),
        };
        assert_eq!(text(&report, "dialect"), dialect);
        let modules: BTreeMap<&str, _> = list(&report, "modules").iter().map(|m| (text(m, "name"), m)).collect();
        let scheme = if name.ends_with("a16") || name == "ckpt_torchao" { "NVFP4 W4A16" } else { "NVFP4 W4A4" };
        let expected = model::read(&path.join("expected_dequant_f32.safetensors"));
        assert!(!expected.is_empty());
        for (module, weight) in &expected {
            let found = modules[module_of(module)];
            assert_eq!(text(found, "scheme"), scheme, "{name} {module}");
            assert_eq!([number(found, "n"), number(found, "k")], [weight.shape[0] as f64, weight.shape[1] as f64]);
            let scales = list(found, "weight_global_scales");
            assert!(scales.iter().all(|scale| (1e-6..1e-2).contains(&scale.as_f64().unwrap())), "{scales:?}");
            let inputs = found["input_global_scales"].as_array().unwrap().len();
            assert_eq!(inputs, usize::from(scheme == "NVFP4 W4A4"), "{name} {module}");
            let tensors = list(found, "tensors");
            let bytes: f64 = tensors.iter().map(|tensor| number(tensor, "bytes")).sum();
            assert_eq!(number(found, "bytes"), bytes);
        }
        let others = modules.values().filter(|module| !text(module, "scheme").starts_with("NVFP4"));
        assert_eq!(others.count() + expected.len(), modules.len(), "{name}");
        let size: usize = model::read(&path.join("model.safetensors")).values().map(|t| t.bytes.len()).sum();
        assert_eq!(number(&report["totals"], "bytes"), size as f64);

        let table = nvfp4(["inspect", directory]).ended(0);
        assert_eq!(table.stderr, "");
        for module in modules.keys() {
            assert!(table.stdout.contains(module), "{module}");
        }
    }
}

#[test]
fn a_dense_model_is_no_error() {
    let directory = tempfile::tempdir().unwrap();
    model::llama(directory.path(), 1);
    let report = nvfp4(["inspect".as_ref(), directory.path().as_os_str(), "--json".as_ref()]).ended(0).json();
    assert_eq!(report["dialect"], "unquantized");
    assert!(list(&report, "modules").iter().all(|module| module["scheme"] == "dense bf16"));
    assert!(report["totals"]["bits_per_nvfp4_weight"].is_null());
}

#[test]
fn an_unusable_global_scale_is_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let golden = golden::dir().join("ckpt_modelopt");
    std::fs::copy(golden.join("config.json"), directory.path().join("config.json")).unwrap();
    let mut tensors = model::read(&golden.join("model.safetensors"));
    let name = tensors.keys().find(|name| name.ends_with(".weight_scale_2")).unwrap().clone();
    tensors.insert(name.clone(), model::Tensor::f32(&[], &[f32::NAN]));
    model::write(&tensors, &directory.path().join("model.safetensors"));
    let report = nvfp4(["inspect".as_ref(), directory.path().as_os_str(), "--json".as_ref()]).ended(0).json();
    let warnings = list(&report, "warnings");
    assert!(warnings.iter().any(|w| w.as_str().unwrap().contains(&name)), "{warnings:?}");
}
