//! Quantize, verify, dequantize, compare.

use crate::{
    model::{self, Tensors, linear_modules, relative_error},
    run::{list, number, nvfp4, text},
};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// A model and a calibration file in a temporary directory.
struct Workplace {
    directory: tempfile::TempDir,
    tensors: Tensors,
}

impl Workplace {
    fn new(seed: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let tensors = model::llama(&directory.path().join("model"), seed);
        model::calibration(&directory.path().join("calibration.safetensors"));
        Self { directory, tensors }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Quantizes the model to `name`; a word that starts with `@` stands for a path in the directory.
    fn quantize(&self, name: &str, options: &[&str]) -> crate::run::Run {
        let mut arguments = vec!["quantize".to_string(), self.text("model"), self.text(name)];
        arguments.extend(options.iter().map(|o| o.strip_prefix('@').map_or(o.to_string(), |path| self.text(path))));
        nvfp4(arguments)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().into()
    }
}

const W4A4: [&str; 4] = ["--scheme", "w4a4", "--calibration", "@calibration.safetensors"];

#[test]
fn every_format_and_scheme_goes_there_and_back() {
    let place = Workplace::new(3);
    for format in ["compressed-tensors", "modelopt"] {
        for scheme in ["w4a16", "w4a4"] {
            let name = format!("{format}-{scheme}");
            let mut options = vec!["--format", format, "--json"];
            options.extend(if scheme == "w4a4" { &W4A4[..] } else { &[] });
            let report = place.quantize(&name, &options).ended(0).json();
            assert_eq!(report["format"], format);
            let layers = list(&report, "layers");
            let names: BTreeSet<String> = layers.iter().map(|layer| text(layer, "name").into()).collect();
            assert_eq!(names, linear_modules().into_iter().map(|module| module.0).collect());
            let dense: Vec<_> = list(&report, "dense").iter().map(|module| text(module, "name")).collect();
            assert_eq!(dense, ["lm_head", "model.embed_tokens"]);

            let checkpoint = place.text(&name);
            let verified =
                nvfp4(["verify", &checkpoint, "--original", &place.text("model"), "--json"]).ended(0).json();
            assert_eq!((number(&verified, "errors"), number(&verified, "warnings")), (0.0, 0.0), "{verified}");
            for (layer, quantized) in list(&verified, "layers").iter().zip(layers) {
                assert_eq!(layer["name"], quantized["name"]);
                let (found, told) = (number(layer, "relative_error"), number(quantized, "relative_error"));
                assert!((found - told).abs() < 1e-6 && (0.07..0.13).contains(&found), "{found} {told}");
                assert_eq!(text(layer, "scheme").to_lowercase(), format!("nvfp4 {scheme}"));
            }

            let dense = place.text(&format!("{name}-dense"));
            nvfp4(["dequantize", &checkpoint, &dense, "--dtype", "bf16"]).ended(0);
            let back = model::read(&Path::new(&dense).join("model.safetensors"));
            assert_eq!(back.keys().collect::<Vec<_>>(), place.tensors.keys().collect::<Vec<_>>());
            for (tensor, original) in &place.tensors {
                let quantized = tensor.strip_suffix(".weight").is_some_and(|module| names.contains(module));
                if quantized {
                    let error = relative_error(&original.floats(), &back[tensor].floats());
                    assert!((0.07..0.13).contains(&error), "{tensor}: {error}");
                } else {
                    assert_eq!(&back[tensor], original, "{tensor} is copied");
                }
            }
            assert!(Path::new(&dense).join("tokenizer.json").is_file());
        }
    }
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let place = Workplace::new(4);
    for threads in ["1", "2", "5"] {
        place.quantize(threads, &["--threads", threads]).ended(0);
    }
    let files = |name: &str| -> Vec<(String, Vec<u8>)> {
        let mut files: Vec<_> = fs::read_dir(place.path(name))
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
            .collect();
        files.sort();
        files
    };
    assert!(files("1").len() >= 3);
    assert_eq!(files("1"), files("2"));
    assert_eq!(files("1"), files("5"));
}

#[test]
fn patterns_choose_modules() {
    let place = Workplace::new(5);
    let names = |report: &serde_json::Value| -> Vec<String> {
        list(report, "layers").iter().map(|layer| text(layer, "name").to_string()).collect()
    };
    let options = ["--json", "--exclude", "*", "--include", "*.mlp.*", "--include", "re:lm_head$"];
    let report = place.quantize("mlp", &options).ended(0).json();
    let found = names(&report);
    assert_eq!(found.len(), 7);
    assert!(found.iter().all(|name| name.contains(".mlp.") || name == "lm_head"), "{found:?}");
    nvfp4(["verify", &place.text("mlp")]).ended(0);

    let report = place.quantize("without", &["--json", "--exclude", "re:.*self_attn"]).ended(0).json();
    assert!(names(&report).iter().all(|name| name.contains(".mlp.")));
    let excluded = list(&report, "dense").iter().filter(|module| module["reason"] == "excluded");
    assert_eq!(excluded.count(), 8);

    place.quantize("bad", &["--include", "re:("]).ended(2);
    place.quantize("none", &["--exclude", "*"]).ended(3).says(&["no linear module"]);
    assert!(!place.path("none").exists());
}

#[test]
fn shards_have_the_size_asked_for() {
    let place = Workplace::new(6);
    let report = place.quantize("shards", &["--shard-size", "8KiB", "--json"]).ended(0).json();
    let files = number(&report["written"], "files");
    assert!(files >= 4.0, "{report}");
    assert!(place.path("shards").join("model.safetensors.index.json").is_file());
    let inspected = nvfp4(["inspect", &place.text("shards"), "--json"]).ended(0).json();
    assert_eq!(list(&inspected, "files").len() as f64, files);
    nvfp4(["verify", &place.text("shards"), "--original", &place.text("model")]).ended(0);
    place.quantize("x", &["--shard-size", "0"]).ended(2);
}

#[test]
fn calibration_belongs_to_w4a4() {
    let place = Workplace::new(7);
    place.quantize("x", &["--scheme", "w4a4"]).ended(2).says(&["--calibration"]);
    place.quantize("x", &["--calibration", "@calibration.safetensors"]).ended(2).says(&["--scheme w4a4"]);
    let mut some = model::read(&place.path("calibration.safetensors"));
    some.retain(|name, _| !name.contains("layers.1.mlp.down_proj"));
    model::write(&some, &place.path("some.safetensors"));
    let run = place.quantize("x", &["--scheme", "w4a4", "--calibration", "@some.safetensors"]).ended(3);
    run.says(&["some.safetensors", "model.layers.1.mlp.down_proj"]);
    assert!(!place.path("x").exists());
}

#[test]
fn separate_scales_are_warned_about() {
    let place = Workplace::new(8);
    place.quantize("shared", &[]).ended(0);
    place.quantize("separate", &["--separate-scales"]).ended(0);
    nvfp4(["verify", &place.text("shared"), "--strict"]).ended(0);
    nvfp4(["verify", &place.text("separate")]).ended(0);
    let run = nvfp4(["verify", &place.text("separate"), "--strict"]).ended(1);
    assert!(run.stdout.contains("q_proj") && run.stdout.contains("warning"), "{}", run.stdout);
}

#[test]
fn an_existing_checkpoint_is_replaced_only_if_asked() {
    let place = Workplace::new(9);
    place.quantize("out", &[]).ended(0);
    place.quantize("out", &["--format", "modelopt"]).ended(3).says(&["exists"]);
    let dialect =
        |place: &Workplace| nvfp4(["inspect", &place.text("out"), "--json"]).ended(0).json()["dialect"].clone();
    assert_eq!(dialect(&place), "compressed-tensors");
    place.quantize("out", &["--format", "modelopt", "--replace"]).ended(0);
    assert_eq!(dialect(&place), "ModelOpt");
    place.quantize("model", &["--replace"]).ended(3).says(&["is the input"]);
    nvfp4(["quantize", &place.text("out"), &place.text("twice")]).ended(3).says(&["quantized already"]);
}
