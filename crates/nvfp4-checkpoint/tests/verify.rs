//! The checkpoint doctor: each fault is found, named and told from the others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod models;

use models::{Tensor, Tensors, golden_checkpoints, json, llama, llama_calibration, llama_config, normal};
use nvfp4_checkpoint::{
    CheckpointFormat, quantize,
    quantize::{Calibration, QuantizeOptions},
    verify,
    verify::{Diagnosis, Fault, Finding, Severity, VerifyOptions, VerifyReport},
};
use nvfp4_core::{LinearScales, swizzle_blockscale};
use safetensors::Dtype;
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

const FORMATS: [CheckpointFormat; 2] = [CheckpointFormat::ModelOpt, CheckpointFormat::CompressedTensors];

fn check(path: &Path) -> VerifyReport {
    verify(path, &VerifyOptions::default(), &()).unwrap()
}

fn check_against(path: &Path, original: &Path) -> VerifyReport {
    let mut options = VerifyOptions::default();
    options.original = Some(original.to_path_buf());
    verify(path, &options, &()).unwrap()
}

/// A checkpoint that tests damage.
struct Patient {
    folder: tempfile::TempDir,
    format: CheckpointFormat,
}

impl Patient {
    /// The Llama-shaped model in W4A4.
    fn llama(format: CheckpointFormat) -> Self {
        let patient = Self { folder: tempfile::tempdir().unwrap(), format };
        fs::create_dir(patient.original()).unwrap();
        models::write(&patient.original(), &llama(Dtype::BF16, 11, |_| 0.7));
        fs::write(patient.original().join("config.json"), llama_config().to_string()).unwrap();
        let calibration = patient.folder.path().join("calibration.safetensors");
        llama_calibration(&calibration);
        let mut options = QuantizeOptions::new(format);
        options.calibration = Some(Calibration::open(calibration).unwrap());
        quantize(patient.original(), patient.path(), &options, &()).unwrap();
        patient
    }

    /// One weight `m.proj`, W4A16.
    fn matrix(format: CheckpointFormat, n: usize, k: usize, values: &[f32]) -> Self {
        let patient = Self { folder: tempfile::tempdir().unwrap(), format };
        fs::create_dir(patient.original()).unwrap();
        let weight = Tensor::new(Dtype::F32, &[n, k], values);
        models::write(&patient.original(), &Tensors::from([("m.proj.weight".into(), weight)]));
        quantize(patient.original(), patient.path(), &QuantizeOptions::new(format), &()).unwrap();
        patient
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("checkpoint")
    }

    fn original(&self) -> PathBuf {
        self.folder.path().join("original")
    }

    fn edit(&self, edit: impl FnOnce(&mut Tensors)) -> &Self {
        let mut tensors = models::read(&self.path());
        edit(&mut tensors);
        models::write(&self.path(), &tensors);
        self
    }

    fn edit_config(&self, edit: impl FnOnce(&mut serde_json::Value)) -> &Self {
        let path = self.path().join("config.json");
        let mut config = json(&path);
        edit(&mut config);
        fs::write(path, config.to_string()).unwrap();
        self
    }

    /// The format's name of a part.
    fn part(&self, part: &str) -> &'static str {
        match (self.format, part) {
            (CheckpointFormat::ModelOpt, "codes") => "weight",
            (CheckpointFormat::ModelOpt, "global") => "weight_scale_2",
            (CheckpointFormat::ModelOpt, "input") => "input_scale",
            (_, "codes") => "weight_packed",
            (_, "global") => "weight_global_scale",
            (_, "input") => "input_global_scale",
            _ => "weight_scale",
        }
    }

    fn tensor(&self, module: &str, part: &str) -> String {
        format!("{module}.{}", self.part(part))
    }

    fn scalar(&self, value: f32) -> Tensor {
        let shape: &[usize] = if self.format == CheckpointFormat::ModelOpt { &[] } else { &[1] };
        Tensor::new(Dtype::F32, shape, &[value])
    }
}

type Summary<'a> = (Severity, Fault, Option<&'a str>, Vec<(usize, Option<usize>)>);

/// Severity, fault, tensor and places of the findings.
fn summary(report: &VerifyReport) -> Vec<Summary<'_>> {
    let places = |f: &Finding| f.positions.iter().map(|p| (p.row, p.column)).collect();
    report.findings.iter().map(|f| (f.severity, f.fault, f.tensor.as_deref(), places(f))).collect()
}

const Q: &str = "model.layers.0.self_attn.q_proj";
const UP: &str = "model.layers.1.mlp.up_proj";
const DOWN: &str = "model.layers.1.mlp.down_proj";

#[test]
fn golden_checkpoints_are_sound_and_their_fused_parts_differ() {
    for path in golden_checkpoints() {
        let report = check(&path);
        assert!(report.is_sound(), "{path:?}: {:?}", report.findings);
        assert!(!report.layers.is_empty() && report.layers.iter().all(|l| l.loads));
        let differing: Vec<_> = report
            .findings
            .iter()
            .filter(|f| f.fault == Fault::FusedScalesDiffer && f.severity == Severity::Warning)
            .collect();
        // q/k/v and gate/up of each Llama layer; torchao's file has no such modules.
        let llama = report.layers.iter().any(|l| l.name.ends_with("q_proj"));
        assert_eq!(differing.len(), if llama { 4 } else { 0 }, "{path:?}: {:?}", report.findings);
        assert!(differing.iter().all(|f| f.message.contains("times each other")));
    }
}

#[test]
fn what_we_write_is_sound() {
    for format in FORMATS {
        let patient = Patient::llama(format);
        for report in [check(&patient.path()), check_against(&patient.path(), &patient.original())] {
            assert_eq!(report.findings, [], "{format:?}");
            assert_eq!(report.layers.len(), models::llama_linears().len());
        }
        let report = check_against(&patient.path(), &patient.original());
        for layer in &report.layers {
            let error = layer.error.unwrap();
            assert!((0.085..0.105).contains(&error.relative_error), "{layer:?}");
            assert_eq!(layer.diagnosis, Some(Diagnosis::Sound));
            assert_eq!(layer.worst_rows.len(), 3);
            assert!(layer.worst_rows[0].relative_error >= layer.worst_rows[1].relative_error);
            assert!(layer.worst_rows[0].relative_error >= error.relative_error);
        }
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["layers"][0]["diagnosis"]["kind"], "sound");
        assert!(value["layers"][0]["relative_error"].as_f64().unwrap() > 0.05);
        // A single dense model is no checkpoint.
        let dense = check(&patient.original());
        assert_eq!(summary(&dense), [(Severity::Error, Fault::MissingTensor, None, vec![])]);
    }
}

#[test]
fn every_bad_block_scale_is_named() {
    for format in FORMATS {
        let patient = Patient::llama(format);
        let (up, down) = (format!("{UP}.weight_scale"), format!("{DOWN}.weight_scale"));
        patient.edit(|tensors| {
            let scales = &mut tensors.get_mut(&up).unwrap().bytes; // 4 a row
            for (row, column, byte) in [(3, 2, 0x7f), (17, 0, 0x7f), (17, 3, 0xff), (50, 1, 0xb8), (111, 3, 0x80)] {
                scales[row * 4 + column] = byte;
            }
            let scales = &mut tensors.get_mut(&down).unwrap().bytes; // 7 a row
            scales[63 * 7 + 6] = 0x7f;
            scales[5 * 7 + 2] = 0;
        });
        let report = check(&patient.path());
        assert_eq!(
            summary(&report),
            [
                (Severity::Error, Fault::NanBlockScale, Some(down.as_str()), vec![(63, Some(6))]),
                (
                    Severity::Error,
                    Fault::NanBlockScale,
                    Some(up.as_str()),
                    vec![(3, Some(2)), (17, Some(0)), (17, Some(3))]
                ),
                (Severity::Error, Fault::NegativeBlockScale, Some(up.as_str()), vec![(50, Some(1))]),
                (Severity::Warning, Fault::ZeroBlockScale, Some(down.as_str()), vec![(5, Some(2))]),
                (Severity::Warning, Fault::ZeroBlockScale, Some(up.as_str()), vec![(111, Some(3))]),
            ]
        );
        assert_eq!((report.errors, report.warnings, report.is_sound()), (3, 2, false));
        assert_eq!(report.layers.iter().filter(|l| !l.loads).count(), 2);
        let text = report.findings[1].to_string();
        assert!(text.contains(&up) && text.contains("row 17, column 3: 0xff"), "{text}");

        // Many: all are counted, as many as asked for are kept.
        patient.edit(|tensors| tensors.get_mut(&up).unwrap().bytes.fill(0x7f));
        let mut options = VerifyOptions::default();
        options.places = 10;
        let report = verify(patient.path(), &options, &()).unwrap();
        let nan = report.findings.iter().find(|f| f.tensor.as_deref() == Some(up.as_str())).unwrap();
        assert_eq!((nan.count, nan.positions.len()), (112 * 4, 10));
        assert!(nan.to_string().ends_with("and 438 more"), "{nan}");
    }
}

#[test]
fn zero_scales_of_zero_blocks_are_fine() {
    let mut values = normal(1, 8 * 32);
    values[16..32].fill(0.0);
    for format in FORMATS {
        let patient = Patient::matrix(format, 8, 32, &values);
        for byte in [0, 0x80] {
            patient.edit(|tensors| tensors.get_mut("m.proj.weight_scale").unwrap().bytes[1] = byte);
            let report = check(&patient.path());
            // The sign bit is a fault whatever the value.
            assert_eq!(report.is_sound(), byte == 0, "{byte}: {:?}", report.findings);
        }
    }
}

#[test]
fn global_scales_are_checked() {
    for format in FORMATS {
        for part in ["global", "input"] {
            for bad in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-39] {
                let patient = Patient::llama(format);
                let name = patient.tensor(DOWN, part);
                patient.edit(|tensors| {
                    tensors.insert(name.clone(), patient.scalar(bad));
                });
                let report = check(&patient.path());
                assert_eq!(
                    summary(&report),
                    [(Severity::Error, Fault::GlobalScale, Some(name.as_str()), vec![])],
                    "{bad}"
                );
            }
            // The reciprocal: the other convention.
            let patient = Patient::llama(format);
            let name = patient.tensor(DOWN, part);
            patient.edit(|tensors| {
                let value = tensors[&name].floats()[0];
                tensors.insert(name.clone(), patient.scalar(1.0 / value));
            });
            let report = check(&patient.path());
            assert_eq!(
                summary(&report),
                [(Severity::Warning, Fault::GlobalScaleConvention, Some(name.as_str()), vec![])]
            );
        }
        // Zero over codes that are all zero: a module that was never used.
        let patient = Patient::llama(format);
        let name = patient.tensor(DOWN, "global");
        patient.edit(|tensors| {
            tensors.insert(name.clone(), patient.scalar(0.0));
            tensors.get_mut(&patient.tensor(DOWN, "codes")).unwrap().bytes.fill(0x80);
        });
        let report = check(&patient.path());
        assert_eq!(summary(&report), [(Severity::Warning, Fault::GlobalScale, Some(name.as_str()), vec![])]);
    }
}

#[test]
fn missing_extra_and_misshapen_tensors_are_named() {
    for format in FORMATS {
        for part in ["codes", "scales", "global", "input"] {
            let patient = Patient::llama(format);
            let name = patient.tensor(UP, part);
            patient.edit(|tensors| {
                tensors.remove(&name).unwrap();
            });
            let report = check(&patient.path());
            assert_eq!(
                summary(&report),
                [(Severity::Error, Fault::MissingTensor, Some(name.as_str()), vec![])],
                "{format:?} {part}: {:?}",
                report.findings
            );
        }
        let wrong_types: [(&str, Dtype); 4] =
            [("codes", Dtype::I8), ("scales", Dtype::I8), ("global", Dtype::I32), ("input", Dtype::I32)];
        for (part, dtype) in wrong_types {
            if (format, part) == (CheckpointFormat::ModelOpt, "codes") {
                continue; // then it is not NVFP4 at all
            }
            let patient = Patient::llama(format);
            let name = patient.tensor(UP, part);
            patient.edit(|tensors| tensors.get_mut(&name).unwrap().dtype = dtype);
            let report = check(&patient.path());
            let found = (Severity::Error, Fault::WrongType, Some(name.as_str()), vec![]);
            assert!(summary(&report).contains(&found), "{format:?} {part}: {:?}", report.findings);
        }
        let patient = Patient::llama(format);
        let scales = patient.tensor(UP, "scales");
        patient.edit(|tensors| {
            // As the kernels want them: rows to 128, columns to 4.
            let tensor = tensors.get_mut(&scales).unwrap();
            let linear = LinearScales::new(112, 4, tensor.bytes.clone()).unwrap();
            tensor.bytes = swizzle_blockscale(&linear).unwrap().into_bytes();
            tensor.shape = vec![128, 4];
            let bias = Tensor::new(Dtype::BF16, &[63], &normal(1, 63));
            tensors.insert(format!("{DOWN}.bias"), bias);
            tensors.insert(format!("{Q}.weight_zero_point"), Tensor::new(Dtype::F32, &[1], &[0.0]));
            tensors.insert(format!("{Q}.pre_quant_scale"), Tensor::new(Dtype::F32, &[64], &[1.0; 64]));
        });
        let report = check(&patient.path());
        let (bias, pre) = (format!("{DOWN}.bias"), format!("{Q}.pre_quant_scale"));
        let zero_point = format!("{Q}.weight_zero_point");
        assert_eq!(
            summary(&report),
            [
                (Severity::Error, Fault::ExtraTensor, Some(pre.as_str()), vec![]),
                (Severity::Error, Fault::WrongShape, Some(bias.as_str()), vec![]),
                (Severity::Error, Fault::WrongShape, Some(scales.as_str()), vec![]),
                (Severity::Warning, Fault::ExtraTensor, Some(zero_point.as_str()), vec![]),
            ]
        );
        assert!(report.findings[2].message.contains("128x4"), "{}", report.findings[2]);
    }
    // compressed-tensors keeps the codes under another name, so that a dense weight may lie beside them.
    let patient = Patient::llama(CheckpointFormat::CompressedTensors);
    let weight = format!("{UP}.weight");
    patient.edit(|tensors| {
        tensors.insert(weight.clone(), Tensor::new(Dtype::BF16, &[112, 64], &normal(3, 112 * 64)));
    });
    let report = check(&patient.path());
    assert_eq!(summary(&report), [(Severity::Error, Fault::ExtraTensor, Some(weight.as_str()), vec![])]);
}

#[test]
fn unquantized_values_that_are_not_finite_are_named() {
    for format in FORMATS {
        let patient = Patient::llama(format);
        patient.edit(|tensors| {
            let mut values = normal(4, 96 * 64);
            values[70 * 64 + 3] = f32::NAN;
            values[95 * 64 + 63] = f32::NEG_INFINITY;
            tensors.insert("model.embed_tokens.weight".into(), Tensor::new(Dtype::BF16, &[96, 64], &values));
            tensors.insert(format!("{Q}.bias"), Tensor::new(Dtype::F32, &[64], &[f32::INFINITY; 64]));
        });
        let report = check(&patient.path());
        let found = summary(&report);
        let bias = format!("{Q}.bias");
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[0],
            (
                Severity::Error,
                Fault::NotFinite,
                Some("model.embed_tokens.weight"),
                vec![(70, Some(3)), (95, Some(63))]
            )
        );
        assert_eq!((found[1].1, found[1].2, found[1].3.len()), (Fault::NotFinite, Some(bias.as_str()), 64));
    }
}

#[test]
fn configuration_and_tensors_must_agree() {
    for format in FORMATS {
        let ignore = |patient: &Patient, list: serde_json::Value| {
            patient.edit_config(|c| c["quantization_config"]["ignore"] = list);
        };
        // Quantized, and in the ignore list.
        let patient = Patient::llama(format);
        ignore(&patient, serde_json::json!(["lm_head", "model.layers.1.mlp.odd", DOWN]));
        let report = check(&patient.path());
        assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
        let found = &report.findings[0];
        assert_eq!(
            (found.severity, found.fault, found.module.as_deref()),
            (Severity::Error, Fault::Contradiction, Some(DOWN))
        );

        // Dense, and not in it.
        let patient = Patient::llama(format);
        ignore(&patient, serde_json::json!(["model.embed_tokens"]));
        let report = check(&patient.path());
        assert_eq!(
            summary(&report),
            [
                (Severity::Error, Fault::Contradiction, Some("model.layers.1.mlp.odd.weight"), vec![]),
                (Severity::Warning, Fault::Contradiction, Some("lm_head.weight"), vec![]),
            ]
        );

        // FP8, and not in it.
        let patient = Patient::llama(format);
        let (packed, scales) = (patient.tensor(DOWN, "codes"), format!("{DOWN}.weight_scale"));
        patient.edit(|tensors| {
            let shape = tensors[&packed].shape.clone();
            tensors.retain(|name, _| !name.starts_with(DOWN));
            let fp8 = Tensor {
                dtype: Dtype::F8_E4M3,
                bytes: vec![0x38; shape[0] * shape[1] * 2],
                shape: vec![shape[0], shape[1] * 2],
            };
            tensors.insert(format!("{DOWN}.weight"), fp8);
            tensors.insert(scales, Tensor::new(Dtype::F32, &[1], &[1.0]));
        });
        let report = check(&patient.path());
        let weight = format!("{DOWN}.weight");
        assert_eq!(summary(&report), [(Severity::Error, Fault::Contradiction, Some(weight.as_str()), vec![])]);
        assert!(report.findings[0].message.contains("it is NVFP4") && report.findings[0].message.contains("FP8"));

        // A prefix that no module has.
        let patient = Patient::llama(format);
        ignore(&patient, serde_json::json!(["language_model.lm_head", "language_model.model.layers.1.mlp.odd"]));
        let report = check(&patient.path());
        let texts: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
        assert!(texts.iter().any(|t| t.contains("none of the 2 entries")), "{texts:?}");

        // A configuration that is none: the tensors are checked all the same.
        let patient = Patient::llama(format);
        let scales = format!("{DOWN}.weight_scale");
        patient.edit(|tensors| tensors.get_mut(&scales).unwrap().bytes[0] = 0x7f);
        fs::write(patient.path().join("config.json"), "{").unwrap();
        let found = check(&patient.path());
        assert_eq!(
            summary(&found),
            [
                (Severity::Error, Fault::Configuration, None, vec![]),
                (Severity::Error, Fault::NanBlockScale, Some(scales.as_str()), vec![(0, Some(0))]),
            ]
        );
    }
}

/// What is NVFP4 of a kind that the loader refuses is a finding, with the loader's reason and the module.
#[test]
fn what_the_loader_refuses_is_a_finding() {
    for (edit, reason) in [
        (serde_json::json!({"quant_algo": "NVFP4_AWQ"}), "NVFP4_AWQ"),
        (serde_json::json!({"group_size": 32}), "group_size 32"),
    ] {
        let patient = Patient::llama(CheckpointFormat::ModelOpt);
        patient.edit_config(|config| {
            let quantization = config["quantization_config"].as_object_mut().unwrap();
            quantization.extend(edit.as_object().unwrap().clone());
        });
        let report = check(&patient.path());
        let found: Vec<_> = report.findings.iter().filter(|f| f.fault == Fault::Loader).collect();
        assert_eq!(found.len(), report.layers.len(), "{:?}", report.findings);
        for finding in found {
            assert!(finding.severity == Severity::Error && finding.message.contains(reason), "{finding}");
        }
        assert!(report.findings.iter().any(|f| f.module.as_deref() == Some(DOWN)));
        assert!(!report.is_sound() && report.layers.iter().all(|layer| !layer.loads));
    }
    let patient = Patient::llama(CheckpointFormat::CompressedTensors);
    patient.edit_config(|config| {
        let group = &mut config["quantization_config"]["config_groups"]["group_0"];
        group["input_activations"] = serde_json::json!({"num_bits": 8, "type": "float", "strategy": "token"});
    });
    let report = check(&patient.path());
    assert!(report.findings.iter().all(|f| f.fault == Fault::Loader), "{:?}", report.findings);
    assert!(report.findings[0].message.contains("8-bit float token"), "{}", report.findings[0]);
}

#[test]
fn fused_parts_that_differ_are_a_warning_with_the_ratio() {
    for format in FORMATS {
        let patient = Patient::llama(format);
        let name = patient.tensor(Q, "global");
        patient.edit(|tensors| {
            let value = tensors[&name].floats()[0];
            tensors.insert(name.clone(), patient.scalar(value * 2.0));
        });
        let report = check(&patient.path());
        assert_eq!(report.findings.len(), 1);
        let found = &report.findings[0];
        assert_eq!((found.severity, found.fault), (Severity::Warning, Fault::FusedScalesDiffer));
        assert_eq!(found.module.as_deref(), Some("model.layers.0.self_attn.{q_proj,k_proj,v_proj}"));
        assert!(found.message.contains("2.0000 times"), "{found}");

        // One part dense.
        let patient = Patient::llama(format);
        patient.edit(|tensors| {
            let weight = Tensor::new(Dtype::BF16, &[64, 64], &normal(3, 64 * 64));
            tensors.retain(|name, _| !name.starts_with(Q));
            tensors.insert(format!("{Q}.weight"), weight);
        });
        let report = check(&patient.path());
        let faults: Vec<_> = report.findings.iter().map(|f| f.fault).collect();
        assert_eq!(faults, [Fault::Contradiction, Fault::FusedSchemesDiffer], "{:?}", report.findings);
    }
}

#[test]
fn files_that_cannot_be_read_are_findings() {
    let folder = tempfile::tempdir().unwrap();
    let missing = check(&folder.path().join("nowhere"));
    assert_eq!(summary(&missing), [(Severity::Error, Fault::Unreadable, None, vec![])]);
    for format in FORMATS {
        let patient = Patient::llama(format);
        let file = patient.path().join("model.safetensors");
        let bytes = fs::read(&file).unwrap();
        for len in [0, 7, 100, bytes.len() - 1] {
            fs::write(&file, &bytes[..len]).unwrap();
            let report = check(&patient.path());
            assert_eq!((report.findings.len(), report.findings[0].fault), (1, Fault::Unreadable), "{len}");
            assert!(report.findings[0].to_string().contains("model.safetensors"));
        }
    }
    let mut options = VerifyOptions::default();
    options.original = Some(folder.path().join("no"));
    assert!(verify(golden_checkpoints().first().unwrap(), &options, &()).is_err());
}

/// A header with several faults is one finding for each, wherever they are and whatever the container; what only follows
/// from them is none.
#[test]
fn all_faults_of_a_header_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let faults = |path: &Path, expected: &[(&str, &str)]| {
        let report = check(path);
        let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        assert!(report.findings.iter().all(|f| (f.severity, f.fault) == (Severity::Error, Fault::Unreadable)));
        for (tensor, what) in expected {
            let named = |text: &&String| text.contains(&format!("`{tensor}`")) && text.contains(what);
            assert_eq!(found.iter().filter(named).count(), 1, "{tensor} {what}: {found:#?}");
        }
    };
    let safetensors = |header: serde_json::Value, data: usize| {
        let header = header.to_string();
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
    };
    let tensor = |dtype: &str, shape: &[u64], offsets: [u64; 2]| serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
    let file = folder.path().join("model.safetensors");
    let descriptions = serde_json::json!({
        "a": tensor("F99", &[1], [0, 4]),
        "b": tensor("F32", &[2], [4, 8]),
        "c": tensor("F32", &[1], [8, 12]), // sound
        "d": tensor("F32", &[4], [12, 28]),
        "e": tensor("F4", &[3], [12, 14]),
        "f": tensor("U8", &[u64::MAX, 3], [12, 14]),
    });
    fs::write(&file, safetensors(descriptions, 16)).unwrap();
    faults(
        &file,
        &[("a", "F99"), ("b", "8 bytes"), ("d", "truncated"), ("e", "whole number"), ("f", "whole number")],
    );
    let places = serde_json::json!({
        "a": tensor("F32", &[1], [0, 4]),
        "b": tensor("F32", &[2], [2, 10]),
        "c": tensor("F32", &[1], [12, 16]),
    });
    fs::write(&file, safetensors(places, 16)).unwrap();
    faults(&file, &[("b", "overlaps"), ("c", "gap")]);

    // Two shards with a fault each; a third that is not there. That the index names their tensors is no fault of its own.
    let shards = tempfile::tempdir().unwrap();
    let weight_map = serde_json::json!({"a": "1.safetensors", "b": "2.safetensors", "c": "3.safetensors"});
    fs::write(
        shards.path().join("model.safetensors.index.json"),
        serde_json::json!({"weight_map": weight_map}).to_string(),
    )
    .unwrap();
    let one = |name: &str, dtype: &str| safetensors(serde_json::json!({name: tensor(dtype, &[1], [0, 4])}), 4);
    fs::write(shards.path().join("1.safetensors"), one("a", "F31")).unwrap();
    fs::write(shards.path().join("2.safetensors"), one("b", "F64")).unwrap();
    let absent = shards.path().join("3.safetensors").display().to_string();
    faults(shards.path(), &[("a", "F31"), ("b", "8 bytes"), (absent.as_str(), "cannot be read")]);
    // Sound shards, and an index that is wrong three times.
    fs::write(shards.path().join("1.safetensors"), one("a", "F32")).unwrap();
    fs::write(shards.path().join("2.safetensors"), one("b", "F32")).unwrap();
    let weight_map = serde_json::json!({"a": "2.safetensors", "x": "2.safetensors", "y": "1.safetensors"});
    fs::write(
        shards.path().join("model.safetensors.index.json"),
        serde_json::json!({"weight_map": weight_map}).to_string(),
    )
    .unwrap();
    faults(shards.path(), &[("a", "it is in 1"), ("x", "is not"), ("y", "is not"), ("b", "does not name")]);

    // GGUF: a type that nobody knows, rows of half a block, an overlap.
    let path = folder.path().join("m.gguf");
    models::write_gguf(
        &path,
        &[
            ("a", vec![8], 0, vec![0; 32]),
            ("b", vec![8], 99, vec![0; 32]),
            ("c", vec![2, 32], 40, vec![0; 36]),
            ("d", vec![16], 0, vec![0; 32]), // 64 bytes, into the next
            ("e", vec![8], 0, vec![0; 32]),
        ],
    );
    faults(&path, &[("b", "type 99"), ("c", "multiples of 64"), ("e", "inside `d`")]);

    // More than anybody wants to read.
    let many = (0..3000).map(|i| (format!("t{i}"), tensor("F99", &[1], [0, 4]))).collect::<serde_json::Map<_, _>>();
    fs::write(&file, safetensors(many.into(), 4)).unwrap();
    let report = check(&file);
    assert!(report.findings.len() < 2000 && report.findings.iter().any(|f| f.message.contains("2000 more")));
}

/// Values whose rows and blocks have uneven sizes, as real weights do.
fn uneven(n: usize, k: usize) -> Vec<f32> {
    let (rows, blocks, values) = (normal(71, n), normal(72, k / 16), normal(73, n * k));
    let size = |i: usize| (rows[i / k] * 0.6).exp() * (blocks[i % k / 16] * 0.6).exp();
    values.iter().enumerate().map(|(i, v)| 0.05 * v * size(i)).collect()
}

/// The diagnosis of `m.proj` after `damage`, with the relative error.
fn diagnose(patient: &Patient, damage: impl FnOnce(&mut Tensors)) -> (Diagnosis, f64, VerifyReport) {
    patient.edit(damage);
    let report = check_against(&patient.path(), &patient.original());
    let layer = &report.layers[0];
    (layer.diagnosis.unwrap(), layer.error.unwrap().relative_error, report.clone())
}

#[test]
fn faults_against_the_original_are_told_apart() {
    let (n, k) = (256, 512);
    for format in FORMATS {
        for values in [uneven(n, k), normal(8, n * k)] {
            let patient = || Patient::matrix(format, n, k, &values);
            let wrong = |found: &(Diagnosis, f64, VerifyReport)| {
                assert!(found.1 > 0.2, "{found:?}");
                let errors: Vec<_> =
                    found.2.findings.iter().filter(|f| f.severity == Severity::Error).map(|f| f.fault).collect();
                assert_eq!(errors, [Fault::WrongValues]);
            };

            let sound = diagnose(&patient(), |_| {});
            assert_eq!((sound.0, sound.2.findings.len()), (Diagnosis::Sound, 0));
            assert!((sound.1 - 0.095).abs() < 0.01, "{}", sound.1);

            let swizzle = |tensors: &mut Tensors| {
                let scales = tensors.get_mut("m.proj.weight_scale").unwrap();
                let linear = LinearScales::new(n, k / 16, scales.bytes.clone()).unwrap();
                scales.bytes = swizzle_blockscale(&linear).unwrap().into_bytes();
            };
            let swap = |p: &Patient, tensors: &mut Tensors| {
                let codes = tensors.get_mut(&p.tensor("m.proj", "codes")).unwrap();
                codes.bytes.iter_mut().for_each(|b| *b = b.rotate_left(4));
            };
            let found = diagnose(&patient(), swizzle);
            assert_eq!(found.0, Diagnosis::SwizzledScales);
            wrong(&found);
            let p = patient();
            let found = diagnose(&p, |t| swap(&p, t));
            assert_eq!(found.0, Diagnosis::NibbleOrder);
            assert!((found.1 - 1.41).abs() < 0.05, "{}", found.1);
            wrong(&found);
            let found = diagnose(&p, swizzle);
            assert_eq!(found.0, Diagnosis::NibbleOrderAndSwizzledScales);
            wrong(&found);

            let p = patient();
            let found = diagnose(&p, |tensors| {
                let codes = tensors.get_mut(&p.tensor("m.proj", "codes")).unwrap();
                let split = |b: &[u8; 8]| -> [u8; 8] {
                    let code = |i: usize| if i.is_multiple_of(2) { b[i / 2] & 15 } else { b[i / 2] >> 4 };
                    std::array::from_fn(|j| code(j) | code(j + 8) << 4)
                };
                codes.bytes = codes.bytes.as_chunks().0.iter().flat_map(split).collect();
            });
            assert_eq!(found.0, Diagnosis::SplitNibbles);
            wrong(&found);

            // Another global scale: by a factor, and inverted.
            let p = patient();
            let global = p.tensor("m.proj", "global");
            let found = diagnose(&p, |tensors| {
                let value = tensors[&global].floats()[0];
                tensors.insert(global.clone(), p.scalar(value * 3.0));
            });
            let ratio = if format == CheckpointFormat::ModelOpt { 3.0 } else { 1.0 / 3.0 };
            let Diagnosis::GlobalScale { ratio: r, inverted: false } = found.0 else { panic!("{found:?}") };
            assert!((r / ratio - 1.0).abs() < 0.01, "{r}");
            wrong(&found);
            let p = patient();
            let found = diagnose(&p, |tensors| {
                let value = tensors[&global].floats()[0];
                tensors.insert(global.clone(), p.scalar(1.0 / value));
            });
            assert!(matches!(found.0, Diagnosis::GlobalScale { inverted: true, .. }), "{found:?}");
            wrong(&found);

            // Parts of a fused matrix with one part's scale: half of the rows are 2.5 times too large.
            let halves: Vec<f32> =
                values.iter().enumerate().map(|(i, v)| if i < n / 2 * k { v / 2.5 } else { *v }).collect();
            let p = patient();
            models::write(
                &p.original(),
                &Tensors::from([("m.proj.weight".into(), Tensor::new(Dtype::F32, &[n, k], &halves))]),
            );
            let found = diagnose(&p, |_| {});
            let Diagnosis::RowScales { smallest, largest } = found.0 else { panic!("{found:?}") };
            assert!((smallest - 1.0).abs() < 0.05 && (largest - 2.5).abs() < 0.1, "{smallest} {largest}");
            wrong(&found);

            // Another module's weights.
            let p = patient();
            models::write(
                &p.original(),
                &Tensors::from([("m.proj.weight".into(), Tensor::new(Dtype::F32, &[n, k], &normal(99, n * k)))]),
            );
            let found = diagnose(&p, |_| {});
            assert_eq!(found.0, Diagnosis::Unexplained);
            wrong(&found);
        }
    }
}

#[test]
fn damaged_rows_and_limits_of_the_format_are_told_apart() {
    let (n, k) = (64, 128);
    for format in FORMATS {
        // Row 20 is too small for the format beside an outlier, rows 7 and 41 are damaged.
        let mut values = normal(5, n * k);
        values[3] = 20_000.0;
        values[20 * k..21 * k].iter_mut().for_each(|v| *v *= 1e-3);
        let mut dense_rows = values.clone();
        dense_rows[0..16].fill(0.0);
        dense_rows[3] = 20_000.0;
        let patient = Patient::matrix(format, n, k, &dense_rows);
        let (_, _, report) = diagnose(&patient, |tensors| {
            let scales = tensors.get_mut("m.proj.weight_scale").unwrap();
            for row in [7, 41] {
                scales.bytes[row * k / 16..(row + 1) * k / 16].rotate_left(1);
                scales.bytes[row * k / 16..(row + 1) * k / 16].fill(0x48);
            }
        });
        let rows = |fault: Fault| -> Vec<usize> {
            let found = report.findings.iter().filter(|f| f.fault == fault && !f.positions.is_empty());
            found.flat_map(|f| f.positions.iter().map(|p| p.row)).collect()
        };
        assert_eq!(rows(Fault::WrongRows), [7, 41], "{:?}", report.findings);
        assert!(rows(Fault::FormatLimit).contains(&20), "{:?}", report.findings);
        assert!(!rows(Fault::FormatLimit).contains(&7));
        assert_eq!(report.layers[0].worst_rows.len(), 3);
    }
    // Everything but an outlier is below what block scales can hold.
    let mut values: Vec<f32> = normal(6, n * k).iter().map(|v| v * 1e-3).collect();
    values[0] = 3000.0;
    let patient = Patient::matrix(CheckpointFormat::ModelOpt, n, k, &values);
    let report = check_against(&patient.path(), &patient.original());
    assert!(report.is_sound(), "{:?}", report.findings);
    assert!(report.findings.iter().any(|f| f.fault == Fault::FormatLimit), "{:?}", report.findings);
}

#[test]
fn an_original_of_another_shape_or_name_is_named() {
    for format in FORMATS {
        let patient = Patient::llama(format);
        let mut original = models::read(&patient.original());
        original.remove(&format!("{UP}.weight"));
        original.insert(format!("{DOWN}.weight"), Tensor::new(Dtype::BF16, &[112, 64], &normal(2, 112 * 64)));
        models::write(&patient.original(), &original);
        let report = check_against(&patient.path(), &patient.original());
        let found: Vec<_> = report.findings.iter().map(|f| (f.fault, f.module.as_deref())).collect();
        assert_eq!(found, [(Fault::Original, Some(DOWN)), (Fault::Original, Some(UP))]);
        assert_eq!(report.layers.iter().filter(|l| l.error.is_none()).count(), 2);
    }
}

#[test]
fn gguf_and_single_files_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let golden = nvfp4_testkit::golden::File::open("gguf_nvfp4.safetensors");
    let blocks = golden.get("conv_raw");
    let (n, k) = (blocks.shape[0], golden.get("conv_dequant").floats().len() / blocks.shape[0]);
    let path = folder.path().join("m.gguf");
    let write = |global: f32| {
        models::write_gguf(
            &path,
            &[
                ("blk.0.ffn_up.weight", vec![n, k], 40, blocks.bytes.clone()),
                ("blk.0.ffn_up.scale", vec![1], 0, global.to_le_bytes().to_vec()),
            ],
        );
        check(&path)
    };
    assert_eq!(write(0.5).findings, []);
    let report = write(f32::NAN);
    assert_eq!(summary(&report), [(Severity::Error, Fault::GlobalScale, Some("blk.0.ffn_up.scale"), vec![])]);

    let patient = Patient::llama(CheckpointFormat::ModelOpt);
    let alone = folder.path().join("alone.safetensors");
    models::write_file(&alone, &models::read(&patient.path()), &HashMap::new());
    assert!(check(&alone).is_sound());
}
