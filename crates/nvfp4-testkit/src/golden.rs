//! The golden data: inputs and outputs of the real upstream functions. `golden/MANIFEST.md` describes each file.

use safetensors::{Dtype, SafeTensors};
use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
};

/// The directory named by `NVFP4_GOLDEN_DIR`, else the copy in the repository.
pub fn dir() -> PathBuf {
    match std::env::var_os("NVFP4_GOLDEN_DIR") {
        Some(dir) => dir.into(),
        None => PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/golden")),
    }
}

/// A JSON file of the golden data. Panics with the path if it cannot be read.
pub fn json(name: &str) -> serde_json::Value {
    let path = dir().join(name);
    let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// One tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    /// Element type.
    pub dtype: Dtype,
    /// Shape.
    pub shape: Vec<usize>,
    /// Little-endian bytes.
    pub bytes: Vec<u8>,
}

impl Tensor {
    fn chunks<const N: usize>(&self) -> impl Iterator<Item = [u8; N]> + '_ {
        self.bytes.chunks_exact(N).map(|c| <[u8; N]>::try_from(c).unwrap_or([0; N]))
    }

    /// Elements of an F32, F16 or BF16 tensor, widened to f32. Panics on other types.
    pub fn floats(&self) -> Vec<f32> {
        match self.dtype {
            Dtype::F32 => self.chunks().map(f32::from_le_bytes).collect(),
            Dtype::F16 => self.chunks().map(|b| half::f16::from_le_bytes(b).to_f32()).collect(),
            Dtype::BF16 => self.chunks().map(|b| half::bf16::from_le_bytes(b).to_f32()).collect(),
            other => panic!("{other:?} tensor asked for floats"),
        }
    }

    /// Elements of an F16 tensor. Panics on other types.
    pub fn f16s(&self) -> Vec<half::f16> {
        assert_eq!(self.dtype, Dtype::F16);
        self.chunks().map(half::f16::from_le_bytes).collect()
    }

    /// Elements of a BF16 tensor. Panics on other types.
    pub fn bf16s(&self) -> Vec<half::bf16> {
        assert_eq!(self.dtype, Dtype::BF16);
        self.chunks().map(half::bf16::from_le_bytes).collect()
    }

    /// Elements of an F64 tensor. Panics on other types.
    pub fn f64s(&self) -> Vec<f64> {
        assert_eq!(self.dtype, Dtype::F64);
        self.chunks().map(f64::from_le_bytes).collect()
    }

    /// Elements of an I32 or I64 tensor. Panics on other types.
    pub fn integers(&self) -> Vec<i64> {
        match self.dtype {
            Dtype::I32 => self.chunks().map(|b| i32::from_le_bytes(b).into()).collect(),
            Dtype::I64 => self.chunks().map(i64::from_le_bytes).collect(),
            other => panic!("{other:?} tensor asked for integers"),
        }
    }

    /// The one element of a one-element float tensor. Panics on others.
    pub fn scalar(&self) -> f32 {
        let values = self.floats();
        assert_eq!(values.len(), 1, "not a scalar: {:?}", self.shape);
        values[0]
    }
}

/// A safetensors file of the golden data.
#[derive(Clone, Debug)]
pub struct File {
    /// File name, for messages.
    pub name: String,
    /// Tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// The header's `__metadata__`.
    pub metadata: HashMap<String, String>,
}

impl File {
    /// Reads a file, relative to [`dir`]. Panics with the path if it cannot be read.
    pub fn open(name: &str) -> Self {
        let path = dir().join(name);
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let fail = |e| -> ! { panic!("{}: {e}", path.display()) };
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap_or_else(|e| fail(e));
        let file = SafeTensors::deserialize(&bytes).unwrap_or_else(|e| fail(e));
        let tensors = file
            .iter()
            .map(|(name, t)| {
                let tensor = Tensor { dtype: t.dtype(), shape: t.shape().to_vec(), bytes: t.data().to_vec() };
                (name.to_string(), tensor)
            })
            .collect();
        Self { name: name.into(), tensors, metadata: header.metadata().clone().unwrap_or_default() }
    }

    /// A tensor. Panics with file and name if it is missing.
    pub fn get(&self, tensor: &str) -> &Tensor {
        self.tensors.get(tensor).unwrap_or_else(|| panic!("{}: no tensor `{tensor}`", self.name))
    }

    /// What `prefix` is followed by in the names that start with it, in order: for `in_128x4` and prefix `in_`,
    /// `128x4`. Panics if there is none, so that a loop over it cannot be empty.
    pub fn suffixes(&self, prefix: &str) -> Vec<String> {
        let found: Vec<_> = self.tensors.keys().filter_map(|k| k.strip_prefix(prefix)).map(String::from).collect();
        assert!(!found.is_empty(), "{}: no tensor named `{prefix}…`", self.name);
        found
    }

    /// What stands before `suffix` in the names that end with it, in order: for `3_w` and suffix `_w`, `3`.
    /// Panics if there is none, so that a loop over it cannot be empty.
    pub fn prefixes(&self, suffix: &str) -> Vec<String> {
        let found: Vec<_> = self.tensors.keys().filter_map(|k| k.strip_suffix(suffix)).map(String::from).collect();
        assert!(!found.is_empty(), "{}: no tensor named `…{suffix}`", self.name);
        found
    }
}
