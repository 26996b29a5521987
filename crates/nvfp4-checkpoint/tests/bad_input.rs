//! Files that lie, end early or contradict each other: an error that names file and tensor, never a panic, never an
//! allocation that a header asks for.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod models;

use models::{Tensor, Tensors};
use nvfp4_checkpoint::{Checkpoint, Source};
use nvfp4_core::gguf::{BLOCK_BYTES, TYPE_ID};
use nvfp4_testkit::golden;
use proptest::prelude::*;
use safetensors::Dtype;
use serde_json::{Value, json};
use std::path::Path;

/// A safetensors file from its header and data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

fn error_of(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    let text = Source::open(&path).unwrap_err().to_string();
    assert!(text.contains("model.safetensors"), "names the file: {text}");
    text
}

#[test]
fn headers_that_lie() {
    let tensor = |dtype: &str, shape: Value, offsets: [u64; 2]| json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
    let one = |value: Value| json!({"m.weight": value}).to_string();
    for (bytes, texts) in [
        (vec![], vec!["0 bytes long"]),
        (vec![1, 2, 3], vec!["3 bytes long"]),
        (u64::MAX.to_le_bytes().to_vec(), vec!["18446744073709551615", "100000000"]),
        (99_000_000u64.to_le_bytes().to_vec(), vec!["99000000", "truncated"]),
        (file("{", b""), vec!["not a safetensors header"]),
        (file("[]", b""), vec!["an object of tensors"]),
        (file(&one(tensor("F99", json!([1]), [0, 4])), &[0; 4]), vec!["m.weight", "F99"]),
        (file(&one(tensor("F32", json!([2]), [0, 4])), &[0; 4]), vec!["m.weight", "[2]", "8 bytes", "0..4"]),
        (file(&one(tensor("F32", json!([1]), [4, 0])), &[0; 4]), vec!["m.weight", "4..0"]),
        (file(&one(tensor("F32", json!([2]), [0, 8])), &[0; 4]), vec!["m.weight", "byte 8", "truncated"]),
        (file(&one(tensor("F32", json!([1u64 << 40, 1u64 << 40]), [0, 4])), &[0; 4]), vec!["m.weight"]),
        (file(&one(tensor("F4", json!([3]), [0, 2])), &[0; 2]), vec!["m.weight", "whole number of bytes"]),
        (file(&one(tensor("F32", json!([1]), [0, 4])), &[0; 9]), vec!["9 bytes of data", "describes 4"]),
        (file(&one(tensor("F32", json!([1]), [4, 8])), &[0; 8]), vec!["m.weight", "gap"]),
        (file(&one(json!({"dtype": "F32", "shape": [1]})), &[0; 4]), vec!["data_offsets"]),
        (
            file(
                &json!({"a": tensor("F32", json!([2]), [0, 8]), "b": tensor("F32", json!([1]), [4, 8])})
                    .to_string(),
                &[0; 8],
            ),
            vec!["`b`", "overlaps"],
        ),
        (
            file(
                r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#,
                &[0; 2],
            ),
            vec!["`a`", "twice"],
        ),
    ] {
        let text = error_of(&bytes);
        assert!(texts.iter().all(|t| text.contains(t)), "expected {texts:?}: {text}");
    }
}

/// No elements, and a width that overflows when it is doubled.
#[test]
fn an_empty_tensor_of_the_largest_width() {
    let header =
        json!({"m.weight_packed": {"dtype": "U8", "shape": [0, u64::MAX], "data_offsets": [0, 0]}}).to_string();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, file(&header, b"")).unwrap();
    assert!(Checkpoint::open(&path).unwrap().linear("m").is_err());
}

#[test]
fn an_index_that_does_not_agree() {
    let tensors: Tensors = (0..4).map(|i| (format!("t{i}"), Tensor::new(Dtype::F32, &[1], &[i as f32]))).collect();
    let folder = tempfile::tempdir().unwrap();
    models::write_sharded(folder.path(), &tensors, 2);
    assert_eq!(Source::open(folder.path()).unwrap().tensors().count(), 4);
    let index = folder.path().join("model.safetensors.index.json");
    let good: Value = serde_json::from_slice(&std::fs::read(&index).unwrap()).unwrap();
    let with = |change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
        let mut changed = good.clone();
        change(changed["weight_map"].as_object_mut().unwrap());
        std::fs::write(&index, changed.to_string()).unwrap();
        Source::open(folder.path()).unwrap_err().to_string()
    };
    for (text, expected) in [
        (
            with(&|m| drop(m.insert("t0".into(), "model-7.safetensors".into()))),
            vec!["model-7.safetensors", "cannot be read"],
        ),
        (with(&|m| drop(m.insert("t0".into(), "model-1.safetensors".into()))), vec!["`t0`", "model-1", "model-0"]),
        (with(&|m| drop(m.insert("t9".into(), "model-0.safetensors".into()))), vec!["`t9`", "is not"]),
        (with(&|m| drop(m.remove("t1"))), vec!["`t1`", "does not name"]),
        (with(&|m| drop(m.insert("t0".into(), "../model-0.safetensors".into()))), vec!["plain file name"]),
    ] {
        assert!(text.contains("index.json") && expected.iter().all(|t| text.contains(t)), "{expected:?}: {text}");
    }
    std::fs::write(&index, "{\"weight_map\": 3}").unwrap();
    assert!(Source::open(folder.path()).unwrap_err().to_string().contains("not an index"));
    // One tensor in two shards.
    std::fs::write(&index, good.to_string()).unwrap();
    models::write_file(&folder.path().join("model-1.safetensors"), &tensors, &Default::default());
    let text = Source::open(folder.path()).unwrap_err().to_string();
    assert!(text.contains("`t0`") && text.contains("is also in"), "{text}");
}

#[test]
fn paths_that_hold_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("nowhere");
    assert!(Checkpoint::open(&missing).unwrap_err().to_string().contains("nowhere"));
    assert!(Checkpoint::open(folder.path()).unwrap_err().to_string().contains("no checkpoint here"));
    for name in ["a.safetensors", "b.safetensors"] {
        models::write_file(&folder.path().join(name), &Tensors::new(), &Default::default());
    }
    let text = Checkpoint::open(folder.path()).unwrap_err().to_string();
    assert!(text.contains("2 weight files") && text.contains("a.safetensors"), "{text}");
    std::fs::write(folder.path().join("config.json"), "{").unwrap();
    let text = Checkpoint::open(folder.path().join("a.safetensors")).unwrap_err().to_string();
    assert!(text.contains("config.json") && text.contains("not valid JSON"), "{text}");
}

#[test]
fn tensors_of_the_wrong_form() {
    let module = || {
        Tensors::from([
            ("m.weight".to_string(), Tensor { dtype: Dtype::U8, shape: vec![4, 16], bytes: vec![0x22; 64] }),
            (
                "m.weight_scale".to_string(),
                Tensor { dtype: Dtype::F8_E4M3, shape: vec![4, 2], bytes: vec![0x38; 8] },
            ),
            ("m.weight_scale_2".to_string(), Tensor::new(Dtype::F32, &[], &[0.5])),
        ])
    };
    let error = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = module();
        change(&mut tensors);
        let folder = tempfile::tempdir().unwrap();
        models::write(folder.path(), &tensors);
        Checkpoint::open(folder.path()).unwrap().linear("m").unwrap_err().to_string()
    };
    let set = |name: &str, dtype, shape: &[usize], bytes: usize| {
        let (name, tensor) = (name.to_string(), Tensor { dtype, shape: shape.to_vec(), bytes: vec![0x38; bytes] });
        move |t: &mut Tensors| drop(t.insert(name.clone(), tensor.clone()))
    };
    for (text, expected) in [
        (error(&set("m.weight_scale", Dtype::F8_E4M3, &[4, 1], 4)), vec!["m.weight_scale", "[4, 2]", "[4, 1]"]),
        (error(&set("m.weight_scale", Dtype::F8_E4M3, &[2, 4], 8)), vec!["m.weight_scale", "[4, 2]", "[2, 4]"]),
        (error(&set("m.weight_scale", Dtype::F8_E5M2, &[4, 2], 8)), vec!["m.weight_scale", "F8_E4M3", "F8_E5M2"]),
        (error(&set("m.weight_scale_2", Dtype::I32, &[], 4)), vec!["m.weight_scale_2", "F32", "I32"]),
        (error(&set("m.weight_scale_2", Dtype::F32, &[2], 8)), vec!["m.weight_scale_2", "found 2"]),
        (error(&set("m.weight", Dtype::U8, &[4, 12], 48)), vec!["m.weight", "multiple of 16", "24"]),
        (error(&set("m.weight", Dtype::U8, &[4, 0], 0)), vec!["m.weight", "multiple of 16", "0"]),
        (error(&set("m.bias", Dtype::F32, &[3], 12)), vec!["m.bias", "[4]", "[3]"]),
        (error(&set("m.bias", Dtype::I32, &[4], 16)), vec!["m.bias", "F32", "I32"]),
    ] {
        assert!(expected.iter().all(|t| text.contains(t)), "{expected:?}: {text}");
    }
    let folder = tempfile::tempdir().unwrap();
    models::write(folder.path(), &module());
    let text = Checkpoint::open(folder.path()).unwrap().linear("n").unwrap_err().to_string();
    assert!(text.contains("no linear module `n`"), "{text}");
}

/// A GGUF file with one tensor.
fn gguf(rows: u64, k: u64, kind: u32, offset: u64, data: usize) -> Vec<u8> {
    let string = |s: &str| [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat();
    let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes(), &1u64.to_le_bytes(), &2u64.to_le_bytes()].concat();
    bytes.extend([string("general.architecture"), 8u32.to_le_bytes().to_vec(), string("llama")].concat());
    // An array of two strings.
    bytes.extend([string("tokens"), 9u32.to_le_bytes().to_vec(), 8u32.to_le_bytes().to_vec()].concat());
    bytes.extend([2u64.to_le_bytes().to_vec(), string("a"), string("bc")].concat());
    bytes.extend([string("blk.0.attn_q.weight"), 2u32.to_le_bytes().to_vec()].concat());
    bytes.extend([k.to_le_bytes(), rows.to_le_bytes()].concat());
    bytes.extend([&kind.to_le_bytes()[..], &offset.to_le_bytes()].concat());
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(
        std::iter::repeat_n([0x38, 0x38, 0x38, 0x38].into_iter().chain([0x22; 32]), data / BLOCK_BYTES).flatten(),
    );
    bytes
}

fn open_gguf(bytes: &[u8]) -> Result<Checkpoint, nvfp4_checkpoint::Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    Checkpoint::open(path)
}

#[test]
fn gguf_files() {
    let good = gguf(3, 128, TYPE_ID, 0, 6 * BLOCK_BYTES);
    let checkpoint = open_gguf(&good).unwrap();
    let layer = checkpoint.linear("blk.0.attn_q").unwrap();
    assert_eq!((layer.weights.out_features(), layer.weights.in_features()), (3, 128));
    assert_eq!(nvfp4_core::dequantize::dequantize(&layer.weights).unwrap(), vec![1.0; 3 * 128]);
    for (bytes, texts) in [
        (b"GGUF".to_vec(), vec!["truncated"]),
        ([&b"GGUF"[..], &9u32.to_le_bytes()].concat(), vec!["version 9"]),
        (gguf(3, 96, TYPE_ID, 0, 6 * BLOCK_BYTES), vec!["blk.0.attn_q.weight", "multiples of 64", "96"]),
        (gguf(4, 128, TYPE_ID, 0, 6 * BLOCK_BYTES), vec!["blk.0.attn_q.weight", "truncated"]),
        (gguf(3, 128, TYPE_ID, 7, 8 * BLOCK_BYTES), vec!["blk.0.attn_q.weight", "alignment"]),
        (gguf(3, 128, 99, 0, 6 * BLOCK_BYTES), vec!["blk.0.attn_q.weight", "type 99"]),
        (gguf(u64::MAX, 128, TYPE_ID, 0, 0), vec!["blk.0.attn_q.weight"]),
        (good[..good.len() - 1].to_vec(), vec!["truncated"]),
    ] {
        let text = open_gguf(&bytes).unwrap_err().to_string();
        assert!(texts.iter().all(|t| text.contains(t)), "{texts:?}: {text}");
    }
}

/// A GGUF file: metadata as (key, type, bytes), tensors as (name, sizes, type, offset), then data.
fn gguf_of(metadata: &[(&str, u32, Vec<u8>)], tensors: &[(&str, &[u64], u32, u64)], data: usize) -> Vec<u8> {
    let counts = [tensors.len() as u64, metadata.len() as u64].map(u64::to_le_bytes).concat();
    let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes(), &counts].concat();
    for (key, kind, value) in metadata {
        bytes.extend([&string(key)[..], &kind.to_le_bytes(), value].concat());
    }
    for (name, sizes, kind, offset) in tensors {
        bytes.extend([string(name), (sizes.len() as u32).to_le_bytes().to_vec()].concat());
        sizes.iter().for_each(|size| bytes.extend(size.to_le_bytes()));
        bytes.extend([&kind.to_le_bytes()[..], &offset.to_le_bytes()].concat());
    }
    bytes.resize(bytes.len().next_multiple_of(32) + data, 0);
    bytes
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// Counts, lengths and nestings that no file can hold. Each is refused at once: none is allocated for, none is looped over.
#[test]
fn gguf_metadata_that_lies() {
    let array = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    let nested =
        |depth: usize| std::iter::repeat_n(array(9, 1), depth).flatten().chain(array(0, 0)).collect::<Vec<u8>>();
    let huge = u64::MAX.to_le_bytes().to_vec();
    let with_counts = |tensors: u64, values: u64| {
        let mut bytes = gguf_of(&[], &[], 64);
        bytes[8..16].copy_from_slice(&tensors.to_le_bytes());
        bytes[16..24].copy_from_slice(&values.to_le_bytes());
        bytes
    };
    let long_key = |length: u64| {
        let mut bytes = gguf_of(&[("k", 4, vec![0; 4])], &[], 0);
        bytes[24..32].copy_from_slice(&length.to_le_bytes());
        bytes
    };
    for (bytes, expected) in [
        (with_counts(u64::MAX, 0), "truncated"),
        (with_counts(0, u64::MAX), "metadata key `` is there twice"),
        (with_counts(1 << 40, 1), "truncated"),
        (long_key(u64::MAX), "18446744073709551615 bytes reaches past the end"),
        (long_key(1 << 33), "reaches past the end"),
        (gguf_of(&[("k", 8, huge.clone())], &[], 0), "reaches past the end"),
        (gguf_of(&[("k", 9, array(8, u64::MAX))], &[], 0), "truncated"),
        (gguf_of(&[("k", 9, array(0, u64::MAX))], &[], 0), "18446744073709551615 bytes reaches past the end"),
        (gguf_of(&[("k", 9, array(10, 1 << 61))], &[], 0), "array of 2305843009213693952 values"),
        (gguf_of(&[("k", 9, array(9, u64::MAX))], &[], 0), "truncated"),
        (gguf_of(&[("k", 9, nested(5))], &[], 64), "nested too deeply"),
        (gguf_of(&[("k", 9, nested(100_000))], &[], 64), "nested too deeply"),
        (gguf_of(&[("k", 9, array(77, 1))], &[], 64), "unknown metadata type 77"),
        (gguf_of(&[("k", 13, vec![])], &[], 64), "unknown metadata type 13"),
        (gguf_of(&[("k", 4, vec![1; 4]), ("k", 4, vec![2; 4])], &[], 64), "`k` is there twice"),
        (gguf_of(&[("general.alignment", 4, vec![0; 4])], &[], 0), "general.alignment is 0"),
        (gguf_of(&[("general.alignment", 4, vec![0xff; 4])], &[], 0), "general.alignment is 4294967295"),
        (gguf_of(&[("general.alignment", 10, huge)], &[], 0), "general.alignment is 18446744073709551615"),
        (gguf_of(&[("general.alignment", 8, string("x"))], &[], 0), "general.alignment is x"),
        (gguf_of(&[], &[("t", &[1, 1, 1, 1, 1], 0, 0)], 64), "5 dimensions"),
        ([&b"GGUF"[..], &3u32.to_be_bytes(), &[0; 16]].concat(), "big-endian"),
    ] {
        let text = open_gguf(&bytes).unwrap_err().to_string();
        assert!(text.contains("model.gguf") && text.contains(expected), "expected {expected}: {text}");
    }
    // What is merely unusual is read.
    let latin = [&1u64.to_le_bytes()[..], &[0xe9]].concat();
    for good in [
        gguf_of(&[("k", 9, nested(3))], &[], 0),
        gguf_of(&[("general.author", 8, latin)], &[], 0),
        gguf_of(&[("k", 9, array(8, 0))], &[("t", &[], 0, 0)], 4),
        gguf_of(&[], &[("t", &[0, 5], 0, 0), ("u", &[2], 0, 0)], 8),
    ] {
        open_gguf(&good).unwrap();
    }
}

/// Tensors that share bytes, in whatever order they are listed, and tensors outside the file.
#[test]
fn gguf_tensors_out_of_place() {
    let f32s = |name, offset| (name, &[16u64][..], 0u32, offset);
    for (tensors, expected) in [
        (vec![f32s("a", 0), f32s("b", 32)], vec!["`b`", "inside `a`"]),
        (vec![f32s("b", 32), f32s("a", 0)], vec!["`b`", "inside `a`"]),
        (vec![f32s("a", 0), f32s("b", 0)], vec!["`b`", "inside `a`"]),
        // One that lies in the middle of a longer one, behind another that does.
        (vec![("long", &[64][..], 0, 0), f32s("in", 64), f32s("also", 128)], vec!["inside `long`"]),
        (vec![f32s("a", 0), f32s("b", 1 << 40)], vec!["`b`", "truncated"]),
        (vec![f32s("a", 0), f32s("b", u64::MAX - 31)], vec!["`b`", "truncated"]),
        (vec![("a", &[u64::MAX, u64::MAX][..], 0, 0)], vec!["`a`", "rows must be"]),
        (vec![("a", &[1 << 32, 1 << 32][..], 0, 0)], vec!["`a`", "overflows"]),
        (vec![("a", &[100][..], 40, 0)], vec!["`a`", "multiples of 64 values, found 100"]),
        (vec![("a", &[64][..], 4, 0)], vec!["`a`", "type 4 is not known"]),
        (vec![f32s("a", 0), f32s("a", 64)], vec!["`a`", "twice"]),
    ] {
        let text = open_gguf(&gguf_of(&[], &tensors, 512)).unwrap_err().to_string();
        assert!(expected.iter().all(|t| text.contains(t)), "{expected:?}: {text}");
    }
    // Gaps, padding and empty tensors inside others share nothing.
    let apart = [f32s("a", 0), ("empty", &[0][..], 0, 32), f32s("b", 128)];
    open_gguf(&gguf_of(&[], &apart, 512)).unwrap();
}

/// Opens, lists and loads all that can be; the outcome does not matter, that there is one does.
fn exercise(path: &Path) {
    if let Ok(checkpoint) = Checkpoint::open(path) {
        for module in checkpoint.modules() {
            if let Ok(layer) = checkpoint.linear(&module.name) {
                layer.check().unwrap();
            }
            assert!(!module.scheme.to_string().is_empty());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever bytes change or go missing, in weights or in configuration, nothing panics.
    #[test]
    fn damaged_files_never_panic(
        which in 0usize..6,
        in_config: bool,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        keep in any::<Option<prop::sample::Index>>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let target = match which {
            5 => {
                let path = folder.path().join("model.gguf");
                std::fs::write(&path, gguf(3, 128, TYPE_ID, 0, 6 * BLOCK_BYTES)).unwrap();
                path
            }
            n => {
                let name = ["ckpt_modelopt", "ckpt_modelopt_w4a16", "ckpt_ct", "ckpt_ct_w4a16", "ckpt_torchao"][n];
                for file in ["model.safetensors", "config.json", "hf_quant_config.json"] {
                    let from = golden::dir().join(name).join(file);
                    if from.is_file() {
                        std::fs::copy(from, folder.path().join(file)).unwrap();
                    }
                }
                let config = folder.path().join("config.json");
                if in_config && config.is_file() { config } else { folder.path().join("model.safetensors") }
            }
        };
        let mut bytes = std::fs::read(&target).unwrap();
        // Most of the structure is in the first bytes.
        let head = bytes.len().min(6000);
        for (at, value) in changes {
            let at = at.index(head);
            bytes[at] = value;
        }
        if let Some(keep) = keep {
            bytes.truncate(keep.index(bytes.len()));
        }
        std::fs::remove_file(&target).unwrap();
        std::fs::write(&target, bytes).unwrap();
        exercise(if which == 5 { &target } else { folder.path() });
    }
}
