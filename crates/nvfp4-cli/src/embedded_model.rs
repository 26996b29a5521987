//! The data of `nvfp4 demo`, which is part of the program: six real linear layers and what real sentences feed them. See
//! `demo/NOTE.md` for where it comes from.

use anyhow::{Context, Result};
use nvfp4::checkpoint::{
    Source, TensorView,
    write::{CheckpointWriter, TensorSpec, WriteOptions},
};
use std::path::{Path, PathBuf};

const BYTES: &[u8] = include_bytes!("../demo/minilm_block0.safetensors");

/// What the data is, in a few words.
pub(crate) const TITLE: &str = "block 0 of all-MiniLM-L6-v2";
/// Where the inputs come from (`xtask/python/sentences.txt`).
pub(crate) const SENTENCES: usize = 36;

/// The data in files, as a user would have them.
pub(crate) struct EmbeddedModel {
    /// A dense model: bf16 weights and biases.
    pub(crate) dense: PathBuf,
    /// A calibration file: the inputs of each module.
    pub(crate) calibration: PathBuf,
    source: Source,
}

impl EmbeddedModel {
    /// Writes the data to files in `directory`.
    pub(crate) fn unpack(directory: &Path) -> Result<Self> {
        let calibration = directory.join("minilm_block0.safetensors");
        std::fs::write(&calibration, BYTES)
            .with_context(|| format!("cannot write the demo's data to `{}`", calibration.display()))?;
        let source = Source::open(&calibration)?;
        let dense = directory.join("dense");
        let tensors: Vec<TensorView<'_>> =
            source.tensors().filter(|tensor| module_of_input(tensor).is_none()).collect();
        let specs: Vec<TensorSpec> =
            tensors.iter().map(|tensor| TensorSpec::new(tensor.name, tensor.dtype, tensor.shape)).collect();
        let writer = CheckpointWriter::create(&dense, &specs, &WriteOptions::default())?;
        for tensor in &tensors {
            writer.write_tensor(tensor.name, tensor.bytes)?;
        }
        writer.finish()?;
        Ok(Self { dense, calibration, source })
    }

    /// The modules that have inputs, by name.
    pub(crate) fn modules(&self) -> Vec<String> {
        let inputs = self.source.tensors();
        inputs.filter_map(|tensor| module_of_input(&tensor).map(str::to_string)).collect()
    }

    /// The weight of a module, widened to f32: `[n, k]`.
    pub(crate) fn weight(&self, module: &str) -> Result<Vec<f32>> {
        self.floats(&format!("{module}.weight"))
    }
    /// Its bias.
    pub(crate) fn bias(&self, module: &str) -> Result<Vec<f32>> {
        self.floats(&format!("{module}.bias"))
    }
    /// Its input, one row a token: `[tokens, k]`.
    pub(crate) fn input(&self, module: &str) -> Result<Vec<f32>> {
        self.floats(&format!("{module}.input"))
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>> {
        let tensor = self.source.tensor(name).with_context(|| format!("the demo's data has no tensor `{name}`"))?;
        Ok(tensor.floats()?)
    }
}

fn module_of_input<'a>(tensor: &TensorView<'a>) -> Option<&'a str> {
    tensor.name.strip_suffix(".input")
}
