//! The formats that checkpoints are written in: names, types and shapes of a quantized module's tensors, and the
//! configuration files.
//!
//! Source of both: what nvidia-modelopt 0.47 and compressed-tensors 0.17 write.

mod configuration;
mod ignore_list;
mod module_tensors;

pub(crate) use configuration::{Configuration, KvCacheScheme, remove_quantization, write_json};
pub(crate) use module_tensors::{ModuleTensors, module_tensors};

use nvfp4_core::quantize_weight::WeightQuantizer;
use serde::Serialize;

/// A format that checkpoints are written in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum CheckpointFormat {
    /// NVIDIA ModelOpt: `weight`, `weight_scale`, `weight_scale_2`, `input_scale`.
    #[serde(rename = "modelopt")]
    ModelOpt,
    /// compressed-tensors `nvfp4-pack-quantized` (llm-compressor): `weight_packed`, `weight_scale`,
    /// `weight_global_scale`, `input_global_scale`.
    CompressedTensors,
}

impl CheckpointFormat {
    /// The arithmetic of the ecosystem whose format this is.
    pub(crate) fn quantizer(self) -> WeightQuantizer {
        match self {
            Self::ModelOpt => WeightQuantizer::ModelOpt,
            Self::CompressedTensors => WeightQuantizer::CompressedTensors,
        }
    }
}

/// A quantized module, for the configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct QuantizedModule {
    pub(crate) name: String,
    /// W4A4 with a static input scale, else W4A16.
    pub(crate) quantized_activations: bool,
}
