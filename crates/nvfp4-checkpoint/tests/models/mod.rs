//! Small models, written with the `safetensors` crate, and what tests look at in the results.
#![allow(dead_code, reason = "each test file uses a part")]

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
};

/// A tensor: type, shape, little-endian bytes.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Tensor {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Tensor {
    /// Rounds values to the type.
    pub(crate) fn new(dtype: Dtype, shape: &[usize], values: &[f32]) -> Self {
        assert_eq!(values.len(), shape.iter().product::<usize>());
        let bytes = match dtype {
            Dtype::BF16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
            Dtype::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
            Dtype::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            other => panic!("{other:?}"),
        };
        Self { dtype, shape: shape.to_vec(), bytes }
    }

    pub(crate) fn floats(&self) -> Vec<f32> {
        match self.dtype {
            Dtype::BF16 => self.bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
            Dtype::F16 => self.bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
            Dtype::F32 => self.bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) type Tensors = BTreeMap<String, Tensor>;

/// Normally distributed values, the same for the same seed.
pub(crate) fn normal(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x0123_4567_89ab_cdef;
    let mut uniform = || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..count)
        .map(|_| {
            let (u, v) = (1.0 - uniform(), uniform());
            ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
        })
        .collect()
}

/// Writes `model.safetensors`.
pub(crate) fn write(folder: &Path, tensors: &Tensors) {
    write_file(&folder.join("model.safetensors"), tensors, &HashMap::new());
}

pub(crate) fn write_file(path: &Path, tensors: &Tensors, metadata: &HashMap<String, String>) {
    let views = tensors.iter().map(|(n, t)| (n, TensorView::new(t.dtype, t.shape.clone(), &t.bytes).unwrap()));
    let metadata = (!metadata.is_empty()).then(|| metadata.clone());
    fs::write(path, safetensors::serialize(views, metadata).unwrap()).unwrap();
}

/// Writes the tensors over `shards` files with an index.
pub(crate) fn write_sharded(folder: &Path, tensors: &Tensors, shards: usize) {
    let mut map = serde_json::Map::new();
    let mut files = vec![Tensors::new(); shards];
    for (i, (name, tensor)) in tensors.iter().enumerate() {
        files[i % shards].insert(name.clone(), tensor.clone());
        map.insert(name.clone(), format!("model-{}.safetensors", i % shards).into());
    }
    for (i, file) in files.iter().enumerate() {
        write_file(&folder.join(format!("model-{i}.safetensors")), file, &HashMap::new());
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

/// All tensors of a directory's safetensors files, read with the `safetensors` crate.
pub(crate) fn read(folder: &Path) -> Tensors {
    let mut all = Tensors::new();
    for name in names(folder).into_iter().filter(|n| n.ends_with(".safetensors")) {
        let bytes = fs::read(folder.join(name)).unwrap();
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().iter() {
            let tensor = Tensor { dtype: view.dtype(), shape: view.shape().to_vec(), bytes: view.data().to_vec() };
            assert!(all.insert(name.to_string(), tensor).is_none(), "{name} twice");
        }
    }
    all
}

/// File names of a folder, sorted.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Every file under a folder with its bytes.
pub(crate) fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for name in names(folder) {
        let path = folder.join(&name);
        if path.is_dir() {
            all.extend(contents(&path).into_iter().map(|(n, b)| (format!("{name}/{n}"), b)));
        } else {
            all.insert(name, fs::read(path).unwrap());
        }
    }
    all
}

pub(crate) fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Linear modules of [`llama`] that are quantized by default: name, rows, columns.
pub(crate) fn llama_linears() -> Vec<(String, usize, usize)> {
    let mut linears = Vec::new();
    for layer in 0..2 {
        for (name, n, k) in [
            ("self_attn.q_proj", 64, 64),
            ("self_attn.k_proj", 32, 64),
            ("self_attn.v_proj", 32, 64),
            ("self_attn.o_proj", 64, 64),
            ("mlp.gate_proj", 112, 64),
            ("mlp.up_proj", 112, 64),
            ("mlp.down_proj", 64, 112),
        ] {
            linears.push((format!("model.layers.{layer}.{name}"), n, k));
        }
    }
    linears.sort();
    linears
}

/// A two-layer model with Llama's names; `scale` multiplies the weights of a module.
pub(crate) fn llama(dtype: Dtype, seed: u64, scale: impl Fn(&str) -> f32) -> Tensors {
    let mut tensors = Tensors::new();
    for (i, (name, n, k)) in llama_linears().into_iter().enumerate() {
        let factor = scale(&name);
        let values: Vec<f32> = normal(seed + i as u64, n * k).iter().map(|v| v * factor).collect();
        tensors.insert(format!("{name}.weight"), Tensor::new(dtype, &[n, k], &values));
    }
    let mut other = |name: &str, shape: &[usize]| {
        let values = normal(seed ^ name.len() as u64, shape.iter().product());
        tensors.insert(name.to_string(), Tensor::new(dtype, shape, &values));
    };
    other("model.embed_tokens.weight", &[96, 64]);
    other("lm_head.weight", &[96, 64]);
    other("model.norm.weight", &[64]);
    other("model.layers.0.input_layernorm.weight", &[64]);
    other("model.layers.0.self_attn.q_proj.bias", &[64]);
    other("model.layers.1.mlp.odd.weight", &[8, 40]);
    tensors
}

/// A dense model's config.json.
pub(crate) fn llama_config() -> serde_json::Value {
    serde_json::json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "torch_dtype": "bfloat16",
    })
}

/// A calibration file with an amax for every linear of [`llama`].
pub(crate) fn llama_calibration(path: &Path) {
    let tensors = llama_linears()
        .iter()
        .enumerate()
        .map(|(i, (name, ..))| {
            (format!("{name}.input_amax"), Tensor::new(Dtype::F32, &[], &[1.0 + i as f32 * 0.37]))
        })
        .collect();
    write_file(path, &tensors, &HashMap::new());
}

/// Directories of the golden checkpoints.
pub(crate) fn golden_checkpoints() -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(nvfp4_testkit::golden::dir()).unwrap().map(|e| e.unwrap().path());
    let mut found: Vec<_> =
        entries.filter(|p| p.file_name().unwrap().to_string_lossy().starts_with("ckpt_")).collect();
    found.sort();
    assert!(!found.is_empty(), "no golden checkpoint");
    found
}

/// Dequantized values of a golden checkpoint, by module.
pub(crate) fn golden_values(checkpoint: &Path) -> BTreeMap<String, Vec<f32>> {
    let bytes = fs::read(checkpoint.join("expected_dequant_f32.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let values = |view: TensorView<'_>| view.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let found: BTreeMap<_, _> =
        file.iter().map(|(name, view)| (name.trim_end_matches(".weight").to_string(), values(view))).collect();
    assert!(!found.is_empty());
    found
}

/// A GGUF file: name, dimensions (slowest first), type number, bytes.
pub(crate) fn write_gguf(path: &Path, tensors: &[(&str, Vec<usize>, u32, Vec<u8>)]) {
    let string = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend(1u64.to_le_bytes());
    string(&mut out, "general.architecture");
    out.extend(8u32.to_le_bytes());
    string(&mut out, "llama");
    let mut offset = 0u64;
    for (name, shape, kind, bytes) in tensors {
        string(&mut out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|d| out.extend((*d as u64).to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += (bytes.len() as u64).next_multiple_of(32);
    }
    for (.., bytes) in tensors {
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(bytes);
    }
    fs::write(path, out).unwrap();
}

/// The tensors of a directory's `model.safetensors`.
pub(crate) fn read_model(folder: &Path) -> Tensors {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.iter()
        .map(|(n, v)| {
            (n.to_string(), Tensor { dtype: v.dtype(), shape: v.shape().to_vec(), bytes: v.data().to_vec() })
        })
        .collect()
}
