//! Dense models to checkpoints.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod models;

use models::{
    Tensor, Tensors, contents, json, llama, llama_calibration, llama_config, llama_linears, names, normal,
};
use nvfp4_checkpoint::{
    CheckpointFormat, ModelError, Progress, ProgressUpdate, quantize,
    quantize::{Calibration, DenseReason, ModulePattern, QuantizeOptions, QuantizeReport},
};
use nvfp4_core::{DType, MatrixRef, quantize_weight};
use safetensors::Dtype;
use std::{collections::HashMap, fs, path::Path, sync::Mutex};

const FORMATS: [CheckpointFormat; 2] = [CheckpointFormat::ModelOpt, CheckpointFormat::CompressedTensors];

fn pattern(text: &str) -> ModulePattern {
    ModulePattern::new(text).unwrap()
}

fn run(source: &Path, target: &Path, options: &QuantizeOptions) -> Result<QuantizeReport, ModelError> {
    quantize(source, target, options, &())
}

/// Suffixes of codes, global scale and input scale; shape of a scalar.
fn layout(format: CheckpointFormat) -> (&'static str, &'static str, &'static str, Vec<usize>) {
    match format {
        CheckpointFormat::ModelOpt => ("weight", "weight_scale_2", "input_scale", vec![]),
        _ => ("weight_packed", "weight_global_scale", "input_global_scale", vec![1]),
    }
}

fn quantizer(format: CheckpointFormat) -> quantize_weight::WeightQuantizer {
    match format {
        CheckpointFormat::ModelOpt => quantize_weight::WeightQuantizer::ModelOpt,
        _ => quantize_weight::WeightQuantizer::CompressedTensors,
    }
}

/// Quantizes the values of a dense tensor as a whole, with the global scale given.
fn expected(
    tensor: &Tensor,
    format: CheckpointFormat,
    global: nvfp4_core::GlobalScale,
) -> nvfp4_core::NvFp4Weights<'static> {
    let (n, k) = (tensor.shape[0], tensor.shape[1]);
    let bf16: Vec<_> = tensor.bytes.as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b)).collect();
    let f32s = tensor.floats();
    let matrix = match tensor.dtype {
        Dtype::BF16 => MatrixRef::new(&bf16[..], n, k),
        Dtype::F32 => MatrixRef::new(&f32s[..], n, k),
        other => panic!("{other:?}"),
    };
    quantize_weight::quantize_weight(matrix.unwrap(), quantizer(format), Some(global)).unwrap()
}

fn amax(tensor: &Tensor) -> f32 {
    tensor.floats().iter().fold(0.0, |max, v| max.max(v.abs()))
}

#[test]
fn every_format_scheme_and_sharding() {
    for format in FORMATS {
        for w4a4 in [false, true] {
            for shard_bytes in [1 << 30, 20_000] {
                let folder = tempfile::tempdir().unwrap();
                let (source, target) = (folder.path().join("dense"), folder.path().join("out"));
                fs::create_dir(&source).unwrap();
                let dense = llama(Dtype::BF16, 7, |name| 0.02 * (1 + name.len() % 7) as f32);
                models::write_sharded(&source, &dense, 3);
                fs::write(source.join("config.json"), llama_config().to_string()).unwrap();
                fs::write(source.join("tokenizer.json"), "{\"t\": 1}").unwrap();
                fs::write(source.join("pytorch_model.bin"), "left behind").unwrap();
                let calibration = folder.path().join("calibration.safetensors");
                llama_calibration(&calibration);

                let mut options = QuantizeOptions::new(format);
                options.write.shard_bytes = shard_bytes;
                options.calibration = w4a4.then(|| Calibration::open(&calibration).unwrap());
                let report = run(&source, &target, &options).unwrap();

                let written = models::read(&target);
                let (codes, global, input, scalar) = layout(format);
                let mut remaining = written.clone();
                let mut shared: HashMap<String, Vec<Vec<u8>>> = HashMap::new();
                for (name, n, k) in llama_linears() {
                    let mut take = |suffix: &str| remaining.remove(&format!("{name}.{suffix}")).unwrap();
                    let (packed, scales, global) = (take(codes), take("weight_scale"), take(global));
                    assert_eq!((packed.dtype, &packed.shape), (Dtype::U8, &vec![n, k / 2]));
                    assert_eq!((scales.dtype, &scales.shape), (Dtype::F8_E4M3, &vec![n, k / 16]));
                    assert_eq!((global.dtype, &global.shape), (Dtype::F32, &scalar));
                    let stored = global.floats()[0];
                    let scale = match format {
                        CheckpointFormat::ModelOpt => nvfp4_core::GlobalScale::from_decode(stored),
                        _ => nvfp4_core::GlobalScale::from_encode(stored),
                    };
                    let weights = expected(&dense[&format!("{name}.weight")], format, scale.unwrap());
                    assert_eq!(packed.bytes, weights.packed());
                    assert_eq!(scales.bytes, weights.scales().bytes());
                    let mut scalars = global.bytes;
                    if w4a4 {
                        let input = take(input);
                        assert_eq!((input.dtype, &input.shape), (Dtype::F32, &scalar));
                        scalars.extend(input.bytes);
                    }
                    let (parent, last) = name.rsplit_once('.').unwrap();
                    let group = match last {
                        "q_proj" | "k_proj" | "v_proj" => "qkv",
                        "gate_proj" | "up_proj" => "gate_up",
                        alone => alone,
                    };
                    shared.entry(format!("{parent}.{group}")).or_default().push(scalars);
                }
                assert_eq!(shared.len(), 8);
                for (group, scalars) in shared {
                    assert!(scalars.windows(2).all(|w| w[0] == w[1]), "{group} shares its scales");
                }
                for (name, tensor) in &remaining {
                    assert_eq!(tensor, &dense[name], "{name} is copied");
                }
                assert_eq!(remaining.len() + llama_linears().len(), dense.len());

                assert_eq!(report.layers.len(), llama_linears().len());
                for (layer, (name, n, k)) in report.layers.iter().zip(llama_linears()) {
                    assert_eq!((&layer.name, layer.out_features, layer.in_features), (&name, n, k));
                    assert_eq!(layer.bytes_before, (2 * n * k) as u64);
                    assert_eq!(layer.bytes_after, (n * k / 2 + n * k / 16 + if w4a4 { 8 } else { 4 }) as u64);
                    let error = layer.error;
                    assert!((0.085..0.105).contains(&error.relative_error), "{name}: {error:?}");
                    assert!(error.cosine > 0.994 && (error.norm_ratio - 1.0).abs() < 0.01, "{name}: {error:?}");
                }
                let dense_modules: Vec<_> = report.dense.iter().map(|d| (d.name.as_str(), &d.reason)).collect();
                assert_eq!(
                    dense_modules,
                    [
                        ("lm_head", &DenseReason::OutputHead),
                        ("model.embed_tokens", &DenseReason::Embedding),
                        ("model.layers.1.mlp.odd", &DenseReason::InFeatures { found: 40 }),
                    ]
                );
                assert!(report.warnings.is_empty(), "{:?}", report.warnings);

                let config = json(&target.join("config.json"));
                assert_eq!(config["hidden_size"], 64);
                let quantization = &config["quantization_config"];
                assert_eq!(quantization["ignore"], serde_json::json!(["lm_head", "model.layers.1.mlp.odd"]));
                let golden = match (format, w4a4) {
                    (CheckpointFormat::ModelOpt, true) => "ckpt_modelopt",
                    (CheckpointFormat::ModelOpt, false) => "ckpt_modelopt_w4a16",
                    (_, true) => "ckpt_ct",
                    (_, false) => "ckpt_ct_w4a16",
                };
                let upstream = |file: &str| {
                    let mut value = nvfp4_testkit::golden::json(&format!("{golden}/{file}"));
                    *ignore_list(&mut value) = serde_json::json!(["lm_head", "model.layers.1.mlp.odd"]);
                    value
                };
                assert_eq!(quantization, &upstream("config.json")["quantization_config"]);
                let mut files = vec!["config.json".to_string(), "tokenizer.json".to_string()];
                if format == CheckpointFormat::ModelOpt {
                    assert_eq!(json(&target.join("hf_quant_config.json")), upstream("hf_quant_config.json"));
                    files.push("hf_quant_config.json".into());
                }
                let others: Vec<_> = names(&target).into_iter().filter(|n| !n.starts_with("model")).collect();
                files.sort();
                assert_eq!(others, files);
                assert_eq!(report.written.files > 1, shard_bytes == 20_000);
                assert_eq!(names(folder.path()), ["calibration.safetensors", "dense", "out"]);

                // The same input gives the same bytes.
                let again = folder.path().join("again");
                run(&source, &again, &options).unwrap();
                assert_eq!(contents(&again), contents(&target));
            }
        }
    }
}

/// The ignore list of an upstream config.json or hf_quant_config.json.
fn ignore_list(value: &mut serde_json::Value) -> &mut serde_json::Value {
    if value.get("quantization_config").is_some() {
        &mut value["quantization_config"]["ignore"]
    } else {
        &mut value["quantization"]["exclude_modules"]
    }
}

#[test]
fn global_scales_are_those_of_the_ecosystems() {
    for dtype in [Dtype::BF16, Dtype::F32] {
        for format in FORMATS {
            for fuse in [true, false] {
                let folder = tempfile::tempdir().unwrap();
                let dense = llama(dtype, 3, |name| if name.ends_with("k_proj") { 5.0 } else { 0.3 });
                let source = folder.path().join("model.safetensors");
                models::write_file(&source, &dense, &HashMap::new());
                let mut options = QuantizeOptions::new(format);
                options.fuse = fuse;
                run(&source, &folder.path().join("out"), &options).unwrap();
                let written = models::read(&folder.path().join("out"));
                let weight = |name: &str| amax(&dense[&format!("model.layers.0.self_attn.{name}.weight")]);
                let (_, suffix, ..) = layout(format);
                for part in ["q_proj", "k_proj", "v_proj"] {
                    let largest = if fuse {
                        weight("q_proj").max(weight("k_proj")).max(weight("v_proj"))
                    } else {
                        weight(part)
                    };
                    let core_type = if dtype == Dtype::BF16 { DType::Bf16 } else { DType::F32 };
                    let scale = quantize_weight::global_scale_of(largest, core_type, quantizer(format)).unwrap();
                    let expected = match format {
                        CheckpointFormat::ModelOpt => scale.decode().get(),
                        _ => scale.encode().get(),
                    };
                    let found = written[&format!("model.layers.0.self_attn.{part}.{suffix}")].floats()[0];
                    assert_eq!(found.to_bits(), expected.to_bits(), "{format:?} {part} fused: {fuse}");
                }
                // A file without a configuration gets a minimal one.
                let config = json(&folder.path().join("out/config.json"));
                assert_eq!(config.as_object().unwrap().keys().collect::<Vec<_>>(), ["quantization_config"]);
            }
        }
    }
}

#[test]
fn patterns_decide_and_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("dense.safetensors");
    models::write_file(&source, &llama(Dtype::F16, 1, |_| 1.0), &HashMap::new());
    let mut options = QuantizeOptions::new(CheckpointFormat::ModelOpt);
    options.selection.include = vec![pattern("lm_head"), pattern("*.q_proj")];
    options.selection.exclude = vec![pattern("*.self_attn.*")];
    let report = run(&source, &folder.path().join("out"), &options).unwrap();
    let quantized: Vec<_> = report.layers.iter().map(|l| l.name.as_str()).collect();
    assert!(quantized.contains(&"lm_head") && quantized.contains(&"model.layers.1.self_attn.q_proj"));
    assert!(!quantized.contains(&"model.layers.1.self_attn.k_proj"));
    let split: Vec<_> = report.warnings.iter().filter(|w| w.contains("{q_proj,k_proj,v_proj}")).collect();
    assert_eq!(split.len(), 2, "{:?}", report.warnings);
    let excluded = report.dense.iter().find(|d| d.name == "model.layers.0.self_attn.o_proj").unwrap();
    assert_eq!(excluded.reason, DenseReason::Excluded { pattern: "*.self_attn.*".into() });

    options.selection.include = vec![pattern("*.odd")];
    let error = run(&source, &folder.path().join("odd"), &options).unwrap_err();
    assert!(
        matches!(&error, ModelError::Impossible { module, reason: DenseReason::InFeatures { found: 40 } } if module == "model.layers.1.mlp.odd"),
        "{error}"
    );
    options.selection.include.clear();
    options.selection.exclude = vec![pattern("*")];
    let error = run(&source, &folder.path().join("none"), &options).unwrap_err();
    assert!(matches!(&error, ModelError::NothingToQuantize { .. }), "{error}");
    assert!(error.to_string().contains("excluded by `*`"), "{error}");
    assert_eq!(names(folder.path()), ["dense.safetensors", "out"]);
}

#[test]
fn names_that_the_format_cannot_call_quantized() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("dense.safetensors");
    let weight = |seed| Tensor::new(Dtype::BF16, &[16, 32], &normal(seed, 512));
    let names = ["layers.1.fc", "layers.1.fc2", "layers.10.fc", "layers.1.gate", "model.vision_tower.fc1"];
    let dense: Tensors = names.iter().zip(0..).map(|(n, i)| (format!("{n}.weight"), weight(i))).collect();
    models::write_file(&source, &dense, &HashMap::new());
    for format in FORMATS {
        // An ignored name that is contained in quantized ones does not ignore them.
        let mut options = QuantizeOptions::new(format);
        options.selection.exclude = vec![pattern("layers.1.fc")];
        let target = folder.path().join(format!("{format:?}"));
        let report = run(&source, &target, &options).unwrap();
        let quantized: Vec<_> = report.layers.iter().map(|l| l.name.as_str()).collect();
        assert_eq!(quantized, ["layers.1.fc2", "layers.10.fc"]);
        let verified = nvfp4_checkpoint::verify(&target, &Default::default(), &()).unwrap();
        assert_eq!(verified.findings, [], "{format:?}");

        // vLLM takes vision towers of ModelOpt checkpoints for dense, whatever the configuration says.
        options.selection.include = vec![pattern("*.vision_tower.*")];
        let result = run(&source, &folder.path().join("vision"), &options);
        match format {
            CheckpointFormat::ModelOpt => {
                let error = result.unwrap_err();
                assert!(
                    matches!(&error, ModelError::Inexpressible { module, .. } if module == "model.vision_tower.fc1"),
                    "{error}"
                );
            }
            _ => assert!(result.unwrap().layers.iter().any(|l| l.name == "model.vision_tower.fc1")),
        }
    }
}

#[test]
fn faults_name_the_place_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("dense.safetensors");
    for bad in [f32::NAN, f32::INFINITY] {
        let mut dense = llama(Dtype::BF16, 1, |_| 1.0);
        let mut values = normal(9, 64 * 112);
        values[37 * 112 + 101] = bad;
        dense.insert("model.layers.1.mlp.down_proj.weight".into(), Tensor::new(Dtype::BF16, &[64, 112], &values));
        models::write_file(&source, &dense, &HashMap::new());
        for format in FORMATS {
            let error = run(&source, &folder.path().join("out"), &QuantizeOptions::new(format)).unwrap_err();
            let ModelError::Tensor { tensor, source: nvfp4_core::Error::NotFinite { row, column, .. } } = &error
            else {
                panic!("{error}")
            };
            assert_eq!((tensor.as_str(), *row, *column), ("model.layers.1.mlp.down_proj.weight", 37, 101));
        }
    }
    assert_eq!(names(folder.path()), ["dense.safetensors"]);
}

#[test]
fn calibration_comes_from_amax_or_activations_and_must_be_complete() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("dense.safetensors");
    let mut dense = Tensors::new();
    for name in ["a.query", "a.key", "b"] {
        dense.insert(format!("{name}.weight"), Tensor::new(Dtype::F32, &[4, 32], &normal(2, 128)));
    }
    models::write_file(&source, &dense, &HashMap::new());
    let path = folder.path().join("calibration.safetensors");
    let calibrate = |tensors: &[(&str, Tensor)]| {
        let tensors = tensors.iter().map(|(n, t)| (n.to_string(), t.clone())).collect();
        models::write_file(&path, &tensors, &HashMap::new());
        Calibration::open(&path)
    };
    let scalar = |v: f32| Tensor::new(Dtype::F32, &[1], &[v]);
    let mut x = normal(5, 3 * 32);
    x[40] = -7.5;
    let good = calibrate(&[
        ("a.query.input", Tensor::new(Dtype::BF16, &[1, 3, 32], &x)),
        ("a.key.input_amax", scalar(2.0)),
        ("b.input_amax", Tensor::new(Dtype::F16, &[], &[0.5])),
        ("b.bias", scalar(f32::NAN)),
    ])
    .unwrap();
    let mut options = QuantizeOptions::new(CheckpointFormat::ModelOpt);
    options.calibration = Some(good);
    run(&source, &folder.path().join("out"), &options).unwrap();
    let written = models::read(&folder.path().join("out"));
    for (name, amax) in [("a.query", 7.5f32), ("a.key", 7.5), ("b", 0.5)] {
        assert_eq!(written[&format!("{name}.input_scale")].floats(), [amax / 2688.0], "{name}");
    }

    options.calibration =
        Some(calibrate(&[("a.query.input_amax", scalar(1.0)), ("b.input_amax", scalar(1.0))]).unwrap());
    let error = run(&source, &folder.path().join("missing"), &options).unwrap_err();
    assert!(
        matches!(&error, ModelError::NotCalibrated { module, missing: 1, modules: 3, .. } if module == "a.key"),
        "{error}"
    );
    for (tensor, bad) in [
        ("b.input_amax", scalar(0.0)),
        ("b.input_amax", scalar(f32::NAN)),
        ("b.input_amax", Tensor::new(Dtype::F32, &[2], &[1.0, 2.0])),
        ("b.input", Tensor::new(Dtype::F32, &[1, 2], &[1.0, f32::INFINITY])),
        ("b.input", Tensor::new(Dtype::F32, &[0, 2], &[])),
        ("b.input", Tensor { dtype: Dtype::I32, shape: vec![1], bytes: vec![1, 0, 0, 0] }),
    ] {
        let error = calibrate(&[(tensor, bad)]).unwrap_err();
        assert!(matches!(&error, ModelError::Calibration { tensor: t, .. } if t == tensor), "{error}");
    }
    assert!(calibrate(&[("b.input", scalar(1.0)), ("b.input_amax", scalar(1.0))]).is_err());
    assert_eq!(names(folder.path()), ["calibration.safetensors", "dense.safetensors", "out"]);
}

#[test]
fn what_is_quantized_already_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut checked = 0;
    for entry in fs::read_dir(nvfp4_testkit::golden::dir()).unwrap() {
        let path = entry.unwrap().path();
        if !path.file_name().unwrap().to_string_lossy().starts_with("ckpt_") {
            continue;
        }
        let options = QuantizeOptions::new(CheckpointFormat::ModelOpt);
        for source in [path.clone(), path.join("model.safetensors")] {
            let error = run(&source, &folder.path().join("out"), &options).unwrap_err();
            assert!(matches!(error, ModelError::AlreadyQuantized { .. }), "{error}");
        }
        checked += 1;
    }
    assert!(checked > 0);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn the_output_is_not_the_input() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("dense");
    fs::create_dir(&source).unwrap();
    models::write(&source, &llama(Dtype::BF16, 1, |_| 1.0));
    let before = contents(&source);
    let mut options = QuantizeOptions::new(CheckpointFormat::ModelOpt);
    options.write.replace = true;
    for target in [source.clone(), folder.path().to_path_buf()] {
        let error = run(&source, &target, &options).unwrap_err();
        assert!(matches!(error, ModelError::InPlace { .. }), "{error}");
    }
    // Into the input's own folder is fine, and does not copy itself.
    run(&source, &source.join("nvfp4"), &options).unwrap();
    assert_eq!(names(&source), ["model.safetensors", "nvfp4"]);
    assert_eq!(contents(&source)["model.safetensors"], before["model.safetensors"]);
}

#[test]
fn progress_rises_to_the_total() {
    struct Record(Mutex<Vec<(u64, u64)>>);
    impl Progress for Record {
        fn update(&self, update: ProgressUpdate<'_>) {
            assert!(!update.tensor.is_empty());
            self.0.lock().unwrap().push((update.bytes_done, update.bytes_total));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("dense.safetensors");
    models::write_file(&source, &llama(Dtype::BF16, 1, |_| 1.0), &HashMap::new());
    let record = Record(Mutex::new(Vec::new()));
    let options = QuantizeOptions::new(CheckpointFormat::CompressedTensors);
    quantize(&source, folder.path().join("out"), &options, &record).unwrap();
    let updates = record.0.into_inner().unwrap();
    assert!(updates.windows(2).all(|w| w[0].0 <= w[1].0 && w[0].1 == w[1].1));
    assert!(updates.len() > llama_linears().len());
    assert_eq!(updates.last().map(|u| u.0), updates.last().map(|u| u.1));
}
