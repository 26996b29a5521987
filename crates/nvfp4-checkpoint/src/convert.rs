//! An NVFP4 checkpoint to another format, its values kept.

use crate::{
    Checkpoint, ModelError, Module, OpenOptions, QuantizationConfig,
    emit::{CheckpointFormat, Configuration, KvCacheScheme, ModuleTensors, QuantizedModule, module_tensors},
    model_input::{self, copied_spec, copy_tensor},
    nvfp4_modules::{divide, part_names, total_bytes},
    progress::{Counter, Progress},
    quantize::is_embedding,
    write::{CheckpointWriter, TensorSpec, WriteOptions, WriteSummary},
};
use nvfp4_core::{ActivationScheme, GlobalScale, NvFp4LinearLayer, NvFp4Weights, fold::fold_powers_of_two};
use rayon::prelude::*;
use serde::Serialize;
use serde_json::{Map, Value};
use std::{collections::BTreeSet, path::Path};

/// How a checkpoint is converted.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// The format to write.
    pub format: CheckpointFormat,
    /// Whether the output is W4A16 throughout: input scales are left out. Default: no.
    pub weight_only: bool,
    /// How the checkpoint is read.
    pub open: OpenOptions,
    /// Files and target.
    pub write: WriteOptions,
}

impl ConvertOptions {
    /// To this format, with the defaults of everything else.
    pub fn new(format: CheckpointFormat) -> Self {
        Self { format, weight_only: false, open: OpenOptions::default(), write: WriteOptions::default() }
    }
}

/// What was converted.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct ConvertReport {
    /// The dialect of the input.
    pub from: String,
    /// The format written.
    pub format: CheckpointFormat,
    /// The modules, by name.
    pub layers: Vec<ConvertedLayer>,
    /// What the user should know.
    pub warnings: Vec<String>,
    /// Bytes of all tensors of the input.
    pub bytes_before: u64,
    /// What was written.
    pub written: WriteSummary,
}

/// A module that was converted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct ConvertedLayer {
    /// Module name.
    pub name: String,
    /// Rows of the weight.
    pub out_features: usize,
    /// Columns of the weight.
    pub in_features: usize,
    /// `W4A4` or `W4A16`.
    pub scheme: String,
    /// Whether a reader gets exactly the global scales that the input stores. ModelOpt stores multipliers and
    /// compressed-tensors divisors; the f32 reciprocal of a reciprocal can differ from the number it came from in the
    /// last bit, and then every value of the module does, too (by at most 2⁻²³ of itself). Nothing nearer can be stored.
    pub exact: bool,
}

/// Converts the NVFP4 checkpoint `source` (ModelOpt, compressed-tensors, torchao, GGUF) and writes the checkpoint
/// directory `target`, which is either complete or absent afterwards.
///
/// Codes and block scales keep their values, and so do global scales, each module its own; see
/// [`ConvertedLayer::exact`]. Other tensors are copied byte for byte, the other files of the model, too; config.json gets
/// the format's quantization_config.
///
/// A module whose activations are quantized without a stored scale cannot be written, unless
/// [`weight_only`](ConvertOptions::weight_only) is set. Modules of other schemes (FP8 …) are an error.
///
/// Memory: the input is mapped; each thread holds one module at most (of a GGUF file, or of a torchao file with swizzled
/// scales).
pub fn convert(
    source: impl AsRef<Path>,
    target: impl AsRef<Path>,
    options: &ConvertOptions,
    progress: &dyn Progress,
) -> Result<ConvertReport, ModelError> {
    let (source, target) = (source.as_ref(), target.as_ref());
    let checkpoint = Checkpoint::open_with(source, options.open.clone())?;
    model_input::check_target(source, target)?;
    let divided = divide(&checkpoint)?;
    let modules = divided
        .modules
        .iter()
        .map(|&(module, activation)| Planned::new(module, activation, options))
        .collect::<Result<Vec<_>, _>>()?;

    let read = |name: &str| match model_input::folder(source) {
        Some(folder) => model_input::read_config(&folder.join(name)),
        None => Ok(Map::new()),
    };
    let config = read("config.json")?;
    let configuration =
        configuration(&config, &read("hf_quant_config.json")?, &checkpoint, &modules, options.format)?;

    let copied = divided.others.iter().map(copied_spec);
    let specs: Vec<TensorSpec> = modules.iter().flat_map(|m| m.tensors.clone().specs()).chain(copied).collect();
    let writer = CheckpointWriter::create(target, &specs, &options.write)?;
    model_input::copy_companion_files(source, &writer)?;
    configuration.write(config, &writer)?;

    let counter = Counter::new(progress, total_bytes(&checkpoint));
    let layers = modules
        .par_iter()
        .map(|planned| {
            let module = planned.module;
            let layer = checkpoint.linear(&module.name)?;
            let exact = planned.write(&layer, options.format, &writer)?;
            let parts = part_names(module);
            let bytes = parts.iter().filter_map(|name| checkpoint.tensor(name)).map(|t| t.bytes.len() as u64).sum();
            counter.add(&module.name, bytes);
            Ok(ConvertedLayer {
                name: module.name.clone(),
                out_features: module.out_features,
                in_features: module.in_features,
                scheme: if planned.quantized_activations { "W4A4" } else { "W4A16" }.to_string(),
                exact,
            })
        })
        .collect::<Result<Vec<_>, ModelError>>()?;
    divided.others.par_iter().try_for_each(|tensor| copy_tensor(tensor, &writer, &counter))?;
    let written = writer.finish()?;
    Ok(ConvertReport {
        from: checkpoint.dialect().to_string(),
        format: options.format,
        layers,
        warnings: checkpoint.warnings().iter().map(ToString::to_string).collect(),
        bytes_before: total_bytes(&checkpoint),
        written,
    })
}

/// A module and the tensors that are written for it.
struct Planned<'a> {
    module: &'a Module,
    quantized_activations: bool,
    tensors: ModuleTensors,
}

impl<'a> Planned<'a> {
    fn new(module: &'a Module, activation: ActivationScheme, options: &ConvertOptions) -> Result<Self, ModelError> {
        let quantized_activations = match activation {
            _ if options.weight_only => false,
            ActivationScheme::Unquantized => false,
            ActivationScheme::Nvfp4Static => true,
            dynamic => {
                return Err(ModelError::Inexpressible {
                    module: module.name.clone(),
                    reason: format!(
                        "it is {dynamic}, and the output needs a stored input scale; convert it to weight-only, or \
                         quantize the original with calibration data"
                    ),
                });
            }
        };
        let (n, k) = (module.out_features, module.in_features);
        let tensors = module_tensors(options.format, &module.name, n, k, quantized_activations);
        Ok(Self { module, quantized_activations, tensors })
    }

    /// Writes the module; whether its global scales are kept to the bit.
    fn write(
        &self,
        layer: &NvFp4LinearLayer<'_>,
        format: CheckpointFormat,
        writer: &CheckpointWriter,
    ) -> Result<bool, ModelError> {
        let folded;
        let (weights, global) = match layer.weights.global().as_per_tensor() {
            Some(global) => (&layer.weights, global),
            None => {
                folded = self.fold(&layer.weights)?;
                (&folded.0, folded.1)
            }
        };
        writer.write_tensor(&self.tensors.packed.name, weights.packed())?;
        writer.write_tensor(&self.tensors.scales.name, weights.scales().bytes())?;
        writer.write_tensor(&self.tensors.global.name, &format.global_scale_bytes(global))?;
        let mut exact = format.keeps(global);
        if let Some(tensor) = &self.tensors.input {
            let input = layer.input_scale.ok_or_else(|| self.inexpressible("it has no input scale"))?;
            writer.write_tensor(&tensor.name, &format.global_scale_bytes(input))?;
            exact &= format.keeps(input);
        }
        Ok(exact)
    }

    /// The same values with one global scale, which is all that a module can have in the formats.
    fn fold(&self, weights: &NvFp4Weights<'_>) -> Result<(NvFp4Weights<'static>, GlobalScale), ModelError> {
        let folded = fold_powers_of_two(weights).map_err(ModelError::in_tensor(&self.module.name))?;
        let folded = folded.and_then(|weights| Some((weights.global().as_per_tensor()?, weights)));
        let (global, weights) = folded.ok_or_else(|| {
            self.inexpressible(
                "its rows have different global scales, which cannot be made one exactly; split the fused module first",
            )
        })?;
        Ok((weights, global))
    }

    fn inexpressible(&self, reason: &str) -> ModelError {
        ModelError::Inexpressible { module: self.module.name.clone(), reason: reason.into() }
    }
}

/// What the configuration files will say.
fn configuration(
    config: &Map<String, Value>,
    legacy: &Map<String, Value>,
    checkpoint: &Checkpoint,
    modules: &[Planned<'_>],
    format: CheckpointFormat,
) -> Result<Configuration, ModelError> {
    let quantized = |m: &Planned<'_>| QuantizedModule {
        name: m.module.name.clone(),
        quantized_activations: m.quantized_activations,
    };
    let configuration = Configuration {
        format,
        modules: modules.iter().map(quantized).collect(),
        dense: dense_modules(checkpoint, modules),
        kv_cache: kv_cache_scheme(config, legacy)?,
    };
    configuration.check()?;
    Ok(configuration)
}

/// The linear modules that are not quantized: those that the checkpoint holds, and those that its configuration names
/// and that have no tensors (an output head that is the embedding table).
fn dense_modules(checkpoint: &Checkpoint, modules: &[Planned<'_>]) -> Vec<String> {
    let quantized: BTreeSet<&str> = modules.iter().map(|m| m.module.name.as_str()).collect();
    let stored = checkpoint
        .modules()
        .map(|module| module.name.as_str())
        .filter(|name| !quantized.contains(name) && !is_embedding(name))
        .map(String::from);
    let listed: Vec<String> = match checkpoint.config() {
        Some(QuantizationConfig::ModelOpt(config)) => {
            config.exclude.iter().map(|e| e.as_str().to_string()).collect()
        }
        Some(QuantizationConfig::CompressedTensors(config)) => {
            config.ignore.iter().map(|p| p.as_str().to_string()).collect()
        }
        _ => Vec::new(),
    };
    let is_name = |entry: &String| !entry.starts_with("re:") && !entry.contains(['*', '?', '[']);
    let has_tensors = |entry: &String| checkpoint.tensors().any(|t| t.name.contains(entry.as_str()));
    let absent = listed.into_iter().filter(|entry| is_name(entry) && !has_tensors(entry));
    stored.chain(absent).collect()
}

/// How the input's key-value cache is quantized.
fn kv_cache_scheme(
    config: &Map<String, Value>,
    legacy: &Map<String, Value>,
) -> Result<Option<KvCacheScheme>, ModelError> {
    let quantization = ["quantization_config", "compression_config"].iter().find_map(|key| config.get(*key));
    let scheme = match quantization {
        Some(quantization) => quantization.get("kv_cache_scheme"),
        None => legacy.get("quantization").and_then(|q| q.get("kv_cache_quant_algo")),
    };
    let Some(scheme) = scheme.filter(|s| !s.is_null()) else { return Ok(None) };
    let field = |key: &str| scheme.get(key).cloned().unwrap_or_default();
    let fp8 = scheme == "FP8" || (field("type") == "float" && field("num_bits") == 8);
    match fp8 && field("dynamic") != true {
        true => Ok(Some(KvCacheScheme::Fp8)),
        false => Err(ModelError::Inexpressible {
            module: "kv_cache_scheme".into(),
            reason: format!("only a static FP8 key-value cache can be written, found {scheme}"),
        }),
    }
}
