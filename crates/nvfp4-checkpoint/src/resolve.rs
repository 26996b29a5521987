//! How a module is quantized: what the configuration says, held against what its tensors say.

use crate::{
    Error,
    config::{
        QuantizationConfig, compressed_tensors,
        compressed_tensors::Quantization,
        modelopt,
        modelopt::{Algorithm, MixedParts},
        pattern::FusedModules,
        torchao::Parameter,
    },
    foreign_format::ForeignFormat,
};
use nvfp4_core::{ActivationScheme, BLOCK_SIZE, DType};
use std::fmt;

/// The configuration says one thing about a module, its tensors another.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Contradiction {
    /// What the configuration says, e.g. `it is NVFP4`.
    pub config: String,
    /// What the tensors say, e.g. `it is dense bf16`.
    pub tensors: String,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the configuration says {}, its tensors say {}", self.config, self.tensors)
    }
}

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
    /// A format that is not read.
    Foreign(ForeignFormat),
    /// Tensors that make no module.
    Incomplete,
}

impl Storage {
    /// In words.
    fn words(&self) -> String {
        match self {
            Self::ModelOpt => "it is packed NVFP4 as ModelOpt writes it".into(),
            Self::CompressedTensors => "it is packed NVFP4 as compressed-tensors writes it".into(),
            Self::TorchAo(_) => "it is packed NVFP4 as torchao writes it".into(),
            Self::Gguf => "it is NVFP4 in GGUF blocks".into(),
            Self::Dense(dtype) => format!("it is dense {dtype}"),
            Self::Foreign(format) => format!("it is {format}"),
            Self::Incomplete => "nothing".into(),
        }
    }
}

/// What a configuration says of one module.
enum Statement {
    /// Nothing: there is no configuration, or none that is understood.
    Silent,
    /// It is not quantized; why.
    Dense(String),
    /// It is NVFP4.
    NvFp4(Activations),
    /// It is NVFP4 in a form that cannot be loaded; which.
    OtherNvFp4(String),
    /// It is something else.
    Other(String),
}

/// What a configuration says of the activations of an NVFP4 module.
enum Activations {
    Unquantized,
    Static,
    /// Their global scale is computed for each call, unless one is stored.
    Dynamic,
}

/// A module's scheme, and what its configuration and its tensors disagree about. `names`: its name, and the names under
/// which the configuration may know it. `is_table`: it is an embedding table, of which configurations do not speak.
pub(crate) fn resolve(
    config: Option<&QuantizationConfig>,
    names: &[String],
    fused: &FusedModules,
    storage: &Storage,
    has_input_scale: bool,
    is_table: bool,
) -> (Scheme, Option<Contradiction>) {
    let module = names.first().cloned().unwrap_or_default();
    let faulty = |error: Error| Scheme::Faulty(Box::new(error));
    let against = |config: &str| Contradiction { config: config.into(), tensors: storage.words() };
    let statement = statement(config, names, fused);
    // Weights that are not packed NVFP4 are what they are, whatever the configuration says.
    let plain = match storage {
        Storage::Dense(dtype) => Some(Scheme::Dense(*dtype)),
        Storage::Foreign(format) => Some(Scheme::Other(format.to_string())),
        _ => None,
    };
    if let Some(scheme) = plain {
        let dense = matches!(storage, Storage::Dense(_));
        let contradiction = match statement {
            _ if is_table => None,
            Ok(Statement::NvFp4(_) | Statement::OtherNvFp4(_)) => Some(against("it is NVFP4")),
            Ok(Statement::Other(what)) if dense => Some(against(&format!("it is {what}"))),
            Ok(Statement::Dense(why)) if !dense => Some(against(&why)),
            Ok(_) => None,
            Err(MixedParts) => Some(against("different things about its parts")),
        };
        return (scheme, contradiction);
    }

    let by_tensors = if has_input_scale { ActivationScheme::Nvfp4Static } else { ActivationScheme::Unquantized };
    let dynamic =
        if has_input_scale { ActivationScheme::Nvfp4Static } else { ActivationScheme::Nvfp4DynamicPerTensor };
    let unsupported = |reason: String| faulty(Error::Unsupported { module: module.clone(), reason });
    let contradiction = |what: &str| {
        let found = against(what);
        let (config, tensors) = (found.config.clone(), found.tensors.clone());
        (faulty(Error::Contradiction { module: module.clone(), config, tensors }), Some(found))
    };
    let dialect = match (config, storage) {
        (Some(QuantizationConfig::Other(method)), _) => return (unsupported(unknown_method(method)), None),
        (Some(QuantizationConfig::ModelOpt(_)), Storage::ModelOpt)
        | (Some(QuantizationConfig::CompressedTensors(_)), Storage::CompressedTensors)
        | (None, _) => None,
        (Some(QuantizationConfig::ModelOpt(_)), _) => Some("the format is ModelOpt"),
        (Some(QuantizationConfig::CompressedTensors(_)), _) => Some("the format is compressed-tensors"),
    };
    if let Some(dialect) = dialect {
        return contradiction(dialect);
    }
    match (statement, storage) {
        (Err(MixedParts), _) => {
            let parts = "the configuration names some of its parts only".into();
            (faulty(Error::MixedParts { module, parts }), None)
        }
        (Ok(Statement::Dense(why)), _) => contradiction(&why),
        (Ok(Statement::Other(what)), _) => contradiction(&format!("it is {what}")),
        (Ok(Statement::OtherNvFp4(reason)), _) => (unsupported(reason), None),
        (Ok(Statement::NvFp4(Activations::Unquantized)), _) => (Scheme::NvFp4(ActivationScheme::Unquantized), None),
        (Ok(Statement::NvFp4(Activations::Static)), _) => (Scheme::NvFp4(ActivationScheme::Nvfp4Static), None),
        (Ok(Statement::NvFp4(Activations::Dynamic)), _) => (Scheme::NvFp4(dynamic), None),
        (Ok(Statement::Silent), Storage::TorchAo(parameter)) if parameter.block_size != BLOCK_SIZE => {
            (unsupported(wrong_group_size(parameter.block_size)), None)
        }
        (Ok(Statement::Silent), Storage::TorchAo(parameter)) if parameter.quantized_activations => {
            (Scheme::NvFp4(dynamic), None)
        }
        (Ok(Statement::Silent), Storage::TorchAo(_)) => (Scheme::NvFp4(ActivationScheme::Unquantized), None),
        (Ok(Statement::Silent), _) => (Scheme::NvFp4(by_tensors), None),
    }
}

fn statement(
    config: Option<&QuantizationConfig>,
    names: &[String],
    fused: &FusedModules,
) -> Result<Statement, MixedParts> {
    match config {
        None | Some(QuantizationConfig::Other(_)) => Ok(Statement::Silent),
        Some(QuantizationConfig::ModelOpt(config)) => modelopt_statement(config, names, fused),
        Some(QuantizationConfig::CompressedTensors(config)) => compressed_tensors_statement(config, names, fused),
    }
}

fn modelopt_statement(
    config: &modelopt::Config,
    names: &[String],
    fused: &FusedModules,
) -> Result<Statement, MixedParts> {
    for name in names {
        if config.is_excluded(name, fused)? {
            return Ok(Statement::Dense("it is excluded from quantization".into()));
        }
    }
    let mut found = None;
    for name in names {
        found = found.or(config.quantization_of(name, fused)?);
    }
    let Some(found) = found else { return Ok(Statement::Dense("it is not among quantized_layers".into())) };
    Ok(match found.algorithm {
        Algorithm::NvFp4 | Algorithm::NvFp4WeightOnly if found.group_size != BLOCK_SIZE => {
            Statement::OtherNvFp4(wrong_group_size(found.group_size))
        }
        Algorithm::NvFp4 if config.dynamic_activations => Statement::NvFp4(Activations::Dynamic),
        Algorithm::NvFp4 => Statement::NvFp4(Activations::Static),
        Algorithm::NvFp4WeightOnly => Statement::NvFp4(Activations::Unquantized),
        Algorithm::Mixed => Statement::Dense("it is not among quantized_layers".into()),
        Algorithm::Other(name) => match name.as_str() {
            "NVFP4_AWQ" => Statement::OtherNvFp4(
                "quant_algo NVFP4_AWQ scales the input before it is quantized, which is not supported".into(),
            ),
            "NVFP4_SVD" => Statement::OtherNvFp4(
                "quant_algo NVFP4_SVD adds a low-rank product to NVFP4, which is not supported".into(),
            ),
            "W4A8_NVFP4_FP8" => Statement::OtherNvFp4(
                "quant_algo W4A8_NVFP4_FP8 has FP8 activations; beside NVFP4 weights they must be NVFP4 or not quantized"
                    .into(),
            ),
            _ => Statement::Other(name),
        },
    })
}

fn compressed_tensors_statement(
    config: &compressed_tensors::Config,
    names: &[String],
    fused: &FusedModules,
) -> Result<Statement, MixedParts> {
    for name in names {
        if config.is_ignored(name, fused)? {
            return Ok(Statement::Dense("it is in the ignore list".into()));
        }
    }
    let groups: Vec<_> = names.iter().flat_map(|name| config.groups_of(name, "Linear", fused)).collect();
    // Groups may overlap; then the tensors decide, which are those of NVFP4.
    let nvfp4 = groups.iter().find(|g| matches!(g.weights, Quantization::NvFp4 | Quantization::NvFp4Dynamic));
    Ok(match (nvfp4, groups.first()) {
        (Some(group), _) => match &group.activations {
            Quantization::None => Statement::NvFp4(Activations::Unquantized),
            Quantization::NvFp4 => Statement::NvFp4(Activations::Static),
            Quantization::NvFp4Dynamic => Statement::NvFp4(Activations::Dynamic),
            Quantization::Other(what) => Statement::OtherNvFp4(format!(
                "activations in {what}; beside NVFP4 weights they must be NVFP4 or not quantized"
            )),
        },
        (None, Some(group)) => match &group.weights {
            Quantization::Other(what) => Statement::Other(format!("{what} (group `{}`)", group.name)),
            _ => Statement::Dense(format!("group `{}` does not quantize it", group.name)),
        },
        (None, None) => Statement::Dense("no group covers it".into()),
    })
}

fn wrong_group_size(found: usize) -> String {
    format!("group_size {found}, NVFP4 has {BLOCK_SIZE}")
}

fn unknown_method(method: &str) -> String {
    match method {
        "fp_quant" => format!("quant_method `fp_quant`{}", ForeignFormat::FpQuantPseudo.hint()),
        _ => format!("quant_method `{method}` is not known; known are modelopt, compressed-tensors and torchao"),
    }
}
