//! Generated models, and tensors of files.

use half::bf16;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::{collections::BTreeMap, fs, path::Path};

/// A tensor of a file.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Tensor {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) type Tensors = BTreeMap<String, Tensor>;

impl Tensor {
    pub(crate) fn bf16(shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
        Self { dtype: Dtype::BF16, shape: shape.to_vec(), bytes }
    }

    pub(crate) fn f32(shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { dtype: Dtype::F32, shape: shape.to_vec(), bytes }
    }

    /// The elements of a bf16 or f32 tensor.
    pub(crate) fn floats(&self) -> Vec<f32> {
        match self.dtype {
            Dtype::BF16 => self.bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            Dtype::F32 => {
                self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Reads a safetensors file.
pub(crate) fn read(file: &Path) -> Tensors {
    let bytes = fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |view: TensorView<'_>| Tensor {
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    };
    file.tensors().into_iter().map(|(name, view)| (name, tensor(view))).collect()
}

/// Writes a safetensors file.
pub(crate) fn write(tensors: &Tensors, file: &Path) {
    let views = tensors
        .iter()
        .map(|(name, t)| (name.as_str(), TensorView::new(t.dtype, t.shape.clone(), &t.bytes).unwrap()));
    fs::write(file, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Random values of about normal distribution.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    }

    pub(crate) fn values(&mut self, len: usize, deviation: f32) -> Vec<f32> {
        (0..len).map(|_| (0..12).map(|_| self.next()).sum::<f32>() * deviation).collect()
    }
}

/// The linear modules of [`llama`] that are quantized by default, with their shapes.
pub(crate) fn linear_modules() -> Vec<(String, usize, usize)> {
    let mut modules = Vec::new();
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
            modules.push((format!("model.layers.{layer}.{name}"), n, k));
        }
    }
    modules
}

/// Writes a small model of Llama's form to `directory`, and returns its tensors.
pub(crate) fn llama(directory: &Path, seed: u64) -> Tensors {
    let mut random = Random::new(seed);
    let mut tensors = Tensors::new();
    for (module, n, k) in linear_modules() {
        tensors.insert(format!("{module}.weight"), Tensor::bf16(&[n, k], &random.values(n * k, 0.02)));
    }
    for name in ["model.embed_tokens", "lm_head"] {
        tensors.insert(format!("{name}.weight"), Tensor::bf16(&[96, 64], &random.values(96 * 64, 0.02)));
    }
    tensors.insert("model.norm.weight".into(), Tensor::bf16(&[64], &random.values(64, 1.0)));
    tensors.insert("model.layers.0.self_attn.q_proj.bias".into(), Tensor::bf16(&[64], &random.values(64, 0.1)));
    fs::create_dir_all(directory).unwrap();
    write(&tensors, &directory.join("model.safetensors"));
    fs::write(directory.join("config.json"), r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}"#)
        .unwrap();
    fs::write(directory.join("tokenizer.json"), "{}").unwrap();
    tensors
}

/// Writes a calibration file for [`llama`]: activations for some modules, an amax for the others.
pub(crate) fn calibration(file: &Path) {
    let mut random = Random::new(77);
    let mut tensors = Tensors::new();
    for (i, (module, _, k)) in linear_modules().into_iter().enumerate() {
        if i % 2 == 0 {
            tensors.insert(format!("{module}.input"), Tensor::bf16(&[3, 5, k], &random.values(15 * k, 1.0)));
        } else {
            tensors.insert(format!("{module}.input_amax"), Tensor::f32(&[], &[4.5]));
        }
    }
    write(&tensors, file);
}

/// ‖b − a‖ / ‖a‖.
pub(crate) fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let sum = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
        a.iter().zip(b).map(|(a, b)| f(f64::from(*a), f64::from(*b))).sum()
    };
    (sum(&|a, b| (b - a) * (b - a)) / sum(&|a, _| a * a)).sqrt()
}
