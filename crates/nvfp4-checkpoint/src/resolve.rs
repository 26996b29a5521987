//! How a module is quantized: what the configuration says, held against what its tensors say.

use crate::{
    Error,
    config::{
        QuantizationConfig,
        compressed_tensors::Quantization,
        modelopt::{Algorithm, MixedParts},
        pattern::FusedModules,
        torchao::Parameter,
    },
};
use nvfp4_core::{ActivationScheme, BLOCK_SIZE, DType};
use std::fmt;

/// How a linear module is stored and meant to be run.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Scheme {
    /// NVFP4 weights.
    NvFp4(ActivationScheme),
    /// Unquantized weights.
    Dense(DType),
    /// Quantized otherwise, in words.
    Other(String),
    /// It cannot be told, or must not be loaded.
    Faulty(Box<Error>),
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NvFp4(activation) => write!(f, "NVFP4 {activation}"),
            Self::Dense(dtype) => write!(f, "dense {dtype}"),
            Self::Other(what) => f.write_str(what),
            Self::Faulty(error) => write!(f, "faulty: {error}"),
        }
    }
}

/// What the tensors of a module look like.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Storage {
    /// `weight` of packed bytes, `weight_scale`, `weight_scale_2`.
    ModelOpt,
    /// `weight_packed`, `weight_scale`, `weight_global_scale`.
    CompressedTensors,
    /// `_weight_qdata`, `_weight_scale`, `_weight_per_tensor_scale`.
    TorchAo(Parameter),
    /// One tensor of GGUF blocks.
    Gguf,
    /// One floating-point matrix.
    Dense(DType),
    /// Something else, in words.
    Other(String),
}

/// Decides a module's scheme. `names`: its name, and the names under which the configuration may know it.
pub(crate) fn resolve(
    config: Option<&QuantizationConfig>,
    names: &[String],
    fused: &FusedModules,
    storage: &Storage,
    has_input_scale: bool,
) -> Result<Scheme, Error> {
    let module = names.first().cloned().unwrap_or_default();
    let by_tensors = if has_input_scale { ActivationScheme::Nvfp4Static } else { ActivationScheme::Unquantized };
    let dynamic =
        if has_input_scale { ActivationScheme::Nvfp4Static } else { ActivationScheme::Nvfp4DynamicPerTensor };
    let contradiction = |config: String, tensors: &str| {
        Err(Error::Contradiction { module: module.clone(), config, tensors: tensors.into() })
    };
    match storage {
        Storage::Dense(dtype) => Ok(Scheme::Dense(*dtype)),
        Storage::Other(what) => Ok(Scheme::Other(what.clone())),
        Storage::Gguf => Ok(Scheme::NvFp4(by_tensors)),
        Storage::TorchAo(parameter) if parameter.block_size != BLOCK_SIZE => {
            unsupported(&module, format!("blocks of {} values, NVFP4 has {BLOCK_SIZE}", parameter.block_size))
        }
        Storage::TorchAo(parameter) if parameter.quantized_activations => Ok(Scheme::NvFp4(dynamic)),
        Storage::TorchAo(_) => Ok(Scheme::NvFp4(ActivationScheme::Unquantized)),
        Storage::ModelOpt => match config {
            None => Ok(Scheme::NvFp4(by_tensors)),
            Some(QuantizationConfig::ModelOpt(config)) => {
                let excluded = any(names, |name| config.is_excluded(name, fused)).map_err(|_| mixed(&module))?;
                if excluded {
                    return contradiction("it is excluded from quantization".into(), "it is packed NVFP4");
                }
                let mut algorithm = None;
                for name in names {
                    algorithm = algorithm.or(config.algorithm_of(name, fused).map_err(|_| mixed(&module))?);
                }
                match algorithm {
                    Some(Algorithm::NvFp4 | Algorithm::NvFp4WeightOnly) if config.group_size != BLOCK_SIZE => {
                        unsupported(&module, format!("group_size {}, NVFP4 has {BLOCK_SIZE}", config.group_size))
                    }
                    Some(Algorithm::NvFp4) if config.dynamic_activations => Ok(Scheme::NvFp4(dynamic)),
                    Some(Algorithm::NvFp4) => Ok(Scheme::NvFp4(ActivationScheme::Nvfp4Static)),
                    Some(Algorithm::NvFp4WeightOnly) => Ok(Scheme::NvFp4(ActivationScheme::Unquantized)),
                    Some(Algorithm::Other(name)) => contradiction(format!("it is {name}"), "it is packed NVFP4"),
                    Some(Algorithm::Mixed) | None => {
                        contradiction("it is not among quantized_layers".into(), "it is packed NVFP4")
                    }
                }
            }
            Some(QuantizationConfig::CompressedTensors(_)) => {
                contradiction("the format is compressed-tensors".into(), "it is packed as ModelOpt does")
            }
            Some(QuantizationConfig::Other(method)) => unsupported(&module, method_hint(method)),
        },
        Storage::CompressedTensors => match config {
            None => Ok(Scheme::NvFp4(by_tensors)),
            Some(QuantizationConfig::CompressedTensors(config)) => {
                let ignored = any(names, |name| config.is_ignored(name, fused)).map_err(|_| mixed(&module))?;
                if ignored {
                    return contradiction("it is in the ignore list".into(), "it is packed NVFP4");
                }
                let groups: Vec<_> =
                    names.iter().flat_map(|name| config.groups_of(name, "Linear", fused)).collect();
                // Groups may overlap; then the tensors decide.
                let nvfp4 =
                    groups.iter().find(|g| matches!(g.weights, Quantization::NvFp4 | Quantization::NvFp4Dynamic));
                match (nvfp4, groups.first()) {
                    (Some(group), _) => match &group.activations {
                        Quantization::None => Ok(Scheme::NvFp4(ActivationScheme::Unquantized)),
                        Quantization::NvFp4 => Ok(Scheme::NvFp4(ActivationScheme::Nvfp4Static)),
                        Quantization::NvFp4Dynamic => Ok(Scheme::NvFp4(dynamic)),
                        Quantization::Other(what) => unsupported(
                            &module,
                            format!(
                                "activations in {what}; beside NVFP4 weights they must be NVFP4 or not quantized"
                            ),
                        ),
                    },
                    (None, Some(group)) => {
                        let what = match &group.weights {
                            Quantization::Other(what) => what.clone(),
                            _ => "unquantized".into(),
                        };
                        contradiction(format!("group `{}` makes it {what}", group.name), "it is packed NVFP4")
                    }
                    (None, None) => contradiction("no group covers it".into(), "it is packed NVFP4"),
                }
            }
            Some(QuantizationConfig::ModelOpt(_)) => {
                contradiction("the format is ModelOpt".into(), "it is packed as compressed-tensors does")
            }
            Some(QuantizationConfig::Other(method)) => unsupported(&module, method_hint(method)),
        },
    }
}

fn any(names: &[String], mut test: impl FnMut(&str) -> Result<bool, MixedParts>) -> Result<bool, MixedParts> {
    for name in names {
        if test(name)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn mixed(module: &str) -> Error {
    let parts = "the configuration names some of its parts only".into();
    Error::MixedParts { module: module.into(), parts }
}

fn unsupported(module: &str, reason: String) -> Result<Scheme, Error> {
    Err(Error::Unsupported { module: module.into(), reason })
}

fn method_hint(method: &str) -> String {
    match method {
        "fp_quant" => {
            "FP-Quant checkpoints rotate activations (Hadamard) before quantizing, which is not supported".into()
        }
        _ => format!("quant_method `{method}` is not known; known are modelopt, compressed-tensors and torchao"),
    }
}
