//! Configurations and matching rules against what vLLM 0.33 and compressed-tensors 0.17 did with them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use nvfp4_checkpoint::{
    Dialect,
    config::{
        compressed_tensors::{self, Pattern, matched_target},
        modelopt::{self, Algorithm},
        pattern::FusedModules,
    },
    vllm_scales,
};
use nvfp4_testkit::golden;
use serde_json::Value;

fn rows(key: &str) -> Vec<Value> {
    let rows = golden::json("loading.json")[key].as_array().unwrap().clone();
    assert!(!rows.is_empty(), "{key}");
    rows
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_string()).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

#[test]
fn modelopt_configs() {
    for row in rows("modelopt_configs") {
        let name = row["name"].as_str().unwrap();
        let found = modelopt::Config::parse(&row["config"]);
        let Some(expected) = row["result"].as_object() else {
            // vLLM refuses it: so do we, or we say that it is no NVFP4 checkpoint (FP8 is one to us).
            let text = row["result"].as_str().unwrap();
            match found {
                Ok(config) => assert!(matches!(config.algorithm, Algorithm::Other(_)), "{name}: {text}"),
                Err(error) => {
                    let error = error.to_string();
                    let field =
                        ["quant_algo", "group_size", "exclude_modules"].into_iter().find(|f| text.contains(f));
                    let known = error.contains(field.unwrap_or("quant_algo"));
                    assert!(known || error.contains("NVFP4_AWQ"), "{name}: {error} for {text}");
                }
            }
            continue;
        };
        let found = found.unwrap_or_else(|e| panic!("{name}: {e}"));
        let algorithm = match expected["quant_method"].as_str().unwrap() {
            "NVFP4" => Algorithm::NvFp4,
            "W4A16_NVFP4" => Algorithm::NvFp4WeightOnly,
            other => panic!("{name}: {other}"),
        };
        assert_eq!(found.algorithm, algorithm, "{name}");
        assert_eq!(found.group_size as u64, expected["group_size"].as_u64().unwrap(), "{name}");
        assert_eq!(found.kv_cache_fp8, expected["kv"].as_str() == Some("FP8"), "{name}");
        let exclude: Vec<_> = found.exclude.iter().map(|entry| entry.as_str()).collect();
        assert_eq!(exclude, strings(&expected["exclude"]), "{name}");
    }
}

#[test]
fn modelopt_exclusion() {
    let fused = FusedModules::default();
    for row in rows("modelopt_exclusion") {
        let config = serde_json::json!({"quant_algo": "NVFP4", "exclude_modules": row["patterns"]});
        let found = modelopt::Config::parse(&config).unwrap().is_excluded(row["prefix"].as_str().unwrap(), &fused);
        assert_eq!(found.ok(), row["excluded"].as_bool(), "{row}");
    }
}

#[test]
fn compressed_tensors_ignore() {
    let fused = FusedModules::default();
    for row in rows("ct_ignore") {
        let config = serde_json::json!({"config_groups": {}, "ignore": row["ignore"]});
        let config = compressed_tensors::Config::parse(&config).unwrap();
        let found = config.is_ignored(row["name"].as_str().unwrap(), &fused);
        assert_eq!(found.ok(), row["result"].as_bool(), "{row}");
    }
}

#[test]
fn compressed_tensors_targets() {
    let fused = FusedModules::default();
    for row in rows("ct_targets") {
        let targets: Vec<Pattern> = strings(&row["targets"]).iter().map(|t| Pattern::new(t).unwrap()).collect();
        let (name, class) = (row["name"].as_str().unwrap(), row["cls"].as_str().unwrap());
        let found = matched_target(&targets, name, class, &fused).map(|(_, target)| target.as_str());
        assert_eq!(found, row["match"].as_str(), "{row}");
    }
}

#[test]
fn global_scale_fusion() {
    for row in rows("global_scale_fusion") {
        for (dialect, key, weight, input) in [
            (Dialect::ModelOpt, "modelopt", "weight_scale_2", "input_scale"),
            (
                Dialect::CompressedTensors,
                "compressed_tensors",
                "weight_global_scale_ckpt",
                "input_global_scale_ckpt",
            ),
        ] {
            let expected = &row[key];
            let (weight, input) = (floats(&expected[weight]), floats(&expected[input]));
            let found = vllm_scales::fuse(dialect, &weight, &input).unwrap();
            for (what, found) in [
                ("weight_global_scale", found.weight_global_scale),
                ("input_global_scale", found.input_global_scale),
                ("input_global_scale_inv", found.input_global_scale_inv),
                ("alpha", found.alpha),
            ] {
                assert_eq!(found, expected[what].as_f64().unwrap() as f32, "{key} {what}: {row}");
            }
            let warnings = expected["warnings"].as_array().unwrap().len();
            let ours = usize::from(found.weights_differ) + usize::from(found.inputs_differ);
            assert_eq!(ours, warnings, "{key}: {row}");
        }
    }
    assert_eq!(vllm_scales::fuse(Dialect::Gguf, &[1.0], &[1.0]), None);
    assert_eq!(vllm_scales::fuse(Dialect::ModelOpt, &[], &[]), None);
}

/// vLLM sees a layer that the checkpoint holds unquantized by its scales, which stay NaN; here it is an error of its own.
#[test]
fn a_dense_layer_is_not_loaded_as_nvfp4() {
    let text = golden::json("loading.json")["nan_scale_error"].as_str().unwrap().to_string();
    assert!(text.contains("never loaded"), "{text}");
    let checkpoint = nvfp4_checkpoint::Checkpoint::open(golden::dir().join("ckpt_modelopt")).unwrap();
    let dense = checkpoint.modules().find(|m| matches!(m.scheme, nvfp4_checkpoint::Scheme::Dense(_))).unwrap();
    let error = checkpoint.linear(&dense.name).unwrap_err().to_string();
    assert!(error.contains(&dense.name) && error.contains("dense") && error.contains("ignored modules"), "{error}");
}
