//! Loading layers by name, as candle's `VarBuilder` does.

use crate::{AnyLinear, Nvfp4Linear, dense_tensors::DenseTensors};
use candle_core::{DType, Device, Error, Result, bail};
use candle_nn::VarBuilder;
use nvfp4::{
    LinearOptions, NvFp4LinearLayer,
    checkpoint::{Checkpoint, Scheme},
};
use std::{fmt, path::Path, sync::Arc};

/// A place in an NVFP4 checkpoint, from which layers are loaded by name.
///
/// All layers that are loaded through one builder and those made from it share scratch memory. The files stay mapped as
/// long as a builder, or a `VarBuilder` made by [`dense`](Self::dense), lives; layers do not need them.
#[derive(Clone)]
pub struct Nvfp4VarBuilder {
    checkpoint: Arc<Checkpoint>,
    options: LinearOptions,
    prefix: String,
    dtype: DType,
    device: Device,
}

impl fmt::Debug for Nvfp4VarBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nvfp4VarBuilder")
            .field("checkpoint", &self.checkpoint.path())
            .field("prefix", &self.prefix)
            .field("dtype", &self.dtype)
            .finish_non_exhaustive()
    }
}

impl Nvfp4VarBuilder {
    /// Opens a checkpoint (a directory, a safetensors file, an index of shards, a GGUF file). Backends are chosen for
    /// activations of `dtype`, which is also the type that dense tensors are loaded in: f32, bf16 or f16.
    pub fn open(path: impl AsRef<Path>, dtype: DType, device: &Device) -> Result<Self> {
        let checkpoint = Checkpoint::open(path).map_err(Error::wrap)?;
        Self::new(Arc::new(checkpoint), LinearOptions::new(), dtype, device)
    }

    /// From an open checkpoint, with options for the choice of backends.
    pub fn new(checkpoint: Arc<Checkpoint>, options: LinearOptions, dtype: DType, device: &Device) -> Result<Self> {
        let activations = match dtype {
            DType::F32 => nvfp4::DType::F32,
            DType::BF16 => nvfp4::DType::Bf16,
            DType::F16 => nvfp4::DType::F16,
            other => bail!("activations are f32, bf16 or f16, not {}", other.as_str()),
        };
        if !device.is_cpu() {
            bail!("NVFP4 layers run in host memory: expected Device::Cpu, found {:?}", device.location());
        }
        let options = options.with_dtypes(activations, activations);
        Ok(Self { checkpoint, options, prefix: String::new(), dtype, device: device.clone() })
    }

    /// The place called `name` inside this one.
    pub fn pp(&self, name: impl fmt::Display) -> Self {
        Self { prefix: self.path(&name.to_string()), ..self.clone() }
    }

    /// The full name of this place.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The checkpoint.
    pub const fn checkpoint(&self) -> &Arc<Checkpoint> {
        &self.checkpoint
    }

    /// The options that layers are loaded with.
    pub const fn options(&self) -> &LinearOptions {
        &self.options
    }

    /// True if there is a linear module at this place.
    pub fn contains_linear(&self) -> bool {
        self.checkpoint.module(&self.prefix).is_some()
    }

    /// The NVFP4 layer at this place, with its bias if the checkpoint has one. A name like `qkv_proj` whose parts are stored
    /// apart gives the parts, stacked. An error if the module is missing, of another shape, or not NVFP4.
    pub fn linear(&self, in_features: usize, out_features: usize) -> Result<Nvfp4Linear> {
        let layer = self.checkpoint.linear(&self.prefix).map_err(Error::wrap)?;
        self.load(&layer, in_features, out_features)
    }

    /// The NVFP4 layers `names` inside this place as one, stacked in that order (q, k, v; gate, up): one product instead
    /// of several. Exact: every part keeps its own global scale.
    pub fn fused_linear(&self, names: &[&str], in_features: usize, out_features: usize) -> Result<Nvfp4Linear> {
        let names: Vec<String> = names.iter().map(|name| self.path(name)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let layer = self.checkpoint.fused_linear(&names).map_err(Error::wrap)?;
        self.load(&layer, in_features, out_features)
    }

    /// The layer at this place as the checkpoint has it: NVFP4, or dense if it was left out of quantization.
    pub fn linear_or_dense(&self, in_features: usize, out_features: usize) -> Result<AnyLinear> {
        let dense = self.checkpoint.module(&self.prefix).is_some_and(|m| matches!(m.scheme, Scheme::Dense(_)));
        if !dense {
            return self.linear(in_features, out_features).map(AnyLinear::Nvfp4);
        }
        let vb = self.dense();
        let bias = vb.contains_tensor("bias");
        candle_nn::linear_b(in_features, out_features, bias, vb).map(AnyLinear::Dense)
    }

    /// Candle's builder at this place, for norms, embeddings and layers that are not quantized. Tensors of NVFP4 modules
    /// are errors there.
    pub fn dense(&self) -> VarBuilder<'static> {
        let tensors = DenseTensors(self.checkpoint.clone());
        let vb = VarBuilder::from_backend(Box::new(tensors), self.dtype, self.device.clone());
        if self.prefix.is_empty() { vb } else { vb.pp(&self.prefix) }
    }

    fn load(&self, layer: &NvFp4LinearLayer<'_>, in_features: usize, out_features: usize) -> Result<Nvfp4Linear> {
        let found = (layer.weights.out_features(), layer.weights.in_features());
        if found != (out_features, in_features) {
            let (n, k) = found;
            bail!("layer `{}`: expected [{out_features}, {in_features}], found [{n}, {k}]", layer.name);
        }
        Nvfp4Linear::load(layer, &self.options)
    }

    fn path(&self, name: &str) -> String {
        match self.prefix.as_str() {
            "" => name.to_string(),
            prefix => format!("{prefix}.{name}"),
        }
    }
}
