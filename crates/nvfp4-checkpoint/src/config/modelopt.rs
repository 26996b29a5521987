//! ModelOpt's configuration: `quantization_config` of `config.json`, or the older `hf_quant_config.json`.
//!
//! The rules are vLLM 0.33's `ModelOptNvFp4Config` (`from_config`, `is_layer_excluded`) and `ModelOptMixedPrecisionConfig`.

use super::pattern::{FusedModules, Glob};
use nvfp4_core::BLOCK_SIZE;
use serde_json::Value;
use std::{collections::BTreeMap, ops::Bound};

/// A ModelOpt configuration.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// What the checkpoint as a whole is quantized to.
    pub algorithm: Algorithm,
    /// Values that share a block scale.
    pub group_size: usize,
    /// True if the key/value cache is FP8.
    pub kv_cache_fp8: bool,
    /// Names and patterns of modules that are not quantized.
    pub exclude: Vec<Glob>,
    /// True if the activations' global scale is computed for each call.
    pub dynamic_activations: bool,
    /// For [`Algorithm::Mixed`]: how each layer is quantized.
    pub layers: BTreeMap<String, LayerQuantization>,
}

/// How a layer is quantized.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LayerQuantization {
    /// What it is quantized to.
    pub algorithm: Algorithm,
    /// Values that share a block scale.
    pub group_size: usize,
}

/// A quantization algorithm.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Algorithm {
    /// `NVFP4`: W4A4.
    NvFp4,
    /// `W4A16_NVFP4`, or `NVFP4` whose groups quantize no activations.
    NvFp4WeightOnly,
    /// `MIXED_PRECISION`: see [`Config::layers`].
    Mixed,
    /// Another one, among them those that add something to NVFP4 (`NVFP4_AWQ`, `NVFP4_SVD`, `W4A8_NVFP4_FP8`).
    Other(String),
}

/// Names that ModelOpt 0.47 and vLLM know.
const KNOWN: &[&str] = &[
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "FP8_PB_REAL",
    "FP8_PB_WO",
    "MXFP4",
    "MXFP8",
    "NVFP4",
    "NVFP4_AWQ",
    "NVFP4_SVD",
    "W4A16_AWQ",
    "W4A16_NVFP4",
    "W4A8_AWQ",
    "W4A8_MXFP4_FP8",
    "W4A8_NVFP4_FP8",
    "W8A16",
    "W8A8_SQ_PER_CHANNEL",
    "MIXED_PRECISION",
];
/// Modules whose name holds one of these are never quantized.
const NEVER: &[&str] = &["vision_tower", "vision_model", "vit_large_projector"];

/// Why a configuration is not one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No algorithm.
    #[error("missing `quant_algo` in the quantization config")]
    NoAlgorithm,
    /// An algorithm that nobody knows.
    #[error("unknown `quant_algo` `{0}`; known are: {known}", known = KNOWN.join(", "))]
    UnknownAlgorithm(String),
    /// The older file lacks fields that NVFP4 needs.
    #[error("NVFP4 needs these fields in hf_quant_config.json, which are missing: {0:?}")]
    MissingFields(Vec<&'static str>),
    /// A field has the wrong type.
    #[error("`{field}` must be {expected}, found {found}")]
    Type {
        /// The field.
        field: String,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
}

fn algorithm(name: &str) -> Result<Algorithm, ConfigError> {
    let upper = name.to_uppercase();
    match upper.as_str() {
        "NVFP4" => Ok(Algorithm::NvFp4),
        "W4A16_NVFP4" => Ok(Algorithm::NvFp4WeightOnly),
        "MIXED_PRECISION" => Ok(Algorithm::Mixed),
        known if KNOWN.contains(&known) => Ok(Algorithm::Other(upper)),
        _ => Err(ConfigError::UnknownAlgorithm(name.into())),
    }
}

/// A number of values that share a scale; some exports write it as text.
fn group_size(value: Option<&Value>, field: &str) -> Result<Option<usize>, ConfigError> {
    let Some(value) = value.filter(|v| !v.is_null()) else { return Ok(None) };
    let number = value.as_u64().or_else(|| value.as_str()?.trim().parse().ok());
    match number.and_then(|n| usize::try_from(n).ok()) {
        Some(number) => Ok(Some(number)),
        None => Err(ConfigError::Type { field: field.into(), expected: "an integer", found: value.to_string() }),
    }
}

/// The number of values that share a scale in modules that do not say so themselves: the configuration's, else the
/// config groups'. Of those that differ one that NVFP4 does not have, so that no module is taken for what it is not.
fn group_size_of_all(own: Option<&Value>, groups: &[&Value]) -> Result<usize, ConfigError> {
    let mut size = group_size(own, "group_size")?;
    for group in groups.iter().filter(|_| own.is_none_or(Value::is_null)) {
        let weights = group.get("weights").and_then(|w| w.get("group_size"));
        let found = group_size(weights, "config_groups.*.weights.group_size")?;
        size = found.filter(|&n| n != BLOCK_SIZE || size.is_none()).or(size);
    }
    Ok(size.unwrap_or(BLOCK_SIZE))
}

/// A list of names and patterns, empty for null and absence.
fn globs(value: Option<&Value>) -> Result<Vec<Glob>, ConfigError> {
    let wrong = |found: &Value| ConfigError::Type {
        field: "exclude_modules".into(),
        expected: "a list of names",
        found: found.to_string(),
    };
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => {
            list.iter().map(|v| v.as_str().map(Glob::new).ok_or_else(|| wrong(v))).collect()
        }
        Some(other) => Err(wrong(other)),
    }
}

impl Config {
    /// Parses `quantization_config`, or the whole of `hf_quant_config.json` (recognized by its `quantization` object).
    pub fn parse(config: &Value) -> Result<Self, ConfigError> {
        let legacy = config.get("quantization").filter(|q| q.is_object());
        let part = legacy.unwrap_or(config);
        let name = part.get("quant_algo").and_then(Value::as_str).filter(|name| !name.is_empty());
        let mut algorithm = algorithm(name.ok_or(ConfigError::NoAlgorithm)?)?;
        if legacy.is_some() && algorithm == Algorithm::NvFp4 {
            let needed = ["group_size", "kv_cache_quant_algo", "exclude_modules"];
            let missing: Vec<_> = needed.into_iter().filter(|field| part.get(field).is_none()).collect();
            if !missing.is_empty() {
                return Err(ConfigError::MissingFields(missing));
            }
        }
        let groups: Vec<&Value> =
            part.get("config_groups").and_then(Value::as_object).map(|g| g.values().collect()).unwrap_or_default();
        let group_size = group_size_of_all(part.get("group_size"), &groups)?;
        let activations = |group: &&Value| group.get("input_activations").cloned().unwrap_or(Value::Null);
        if algorithm == Algorithm::NvFp4 && !groups.is_empty() && groups.iter().all(|g| activations(g).is_null()) {
            algorithm = Algorithm::NvFp4WeightOnly;
        }
        let dynamic = |group: &&Value| activations(group).get("dynamic") == Some(&Value::Bool(true));
        let mut layers = BTreeMap::new();
        if let Some(map) = part.get("quantized_layers").and_then(Value::as_object) {
            for (layer, entry) in map {
                let name = entry.get("quant_algo").and_then(Value::as_str).ok_or(ConfigError::NoAlgorithm)?;
                let field = format!("quantized_layers.{layer}.group_size");
                let own = self::group_size(entry.get("group_size"), &field)?;
                let quantization =
                    LayerQuantization { algorithm: self::algorithm(name)?, group_size: own.unwrap_or(group_size) };
                layers.insert(layer.clone(), quantization);
            }
        }
        let kv_scheme = part.get("kv_cache_scheme");
        let kv_cache_fp8 = part.get("kv_cache_quant_algo").and_then(Value::as_str) == Some("FP8")
            || kv_scheme.is_some_and(|s| {
                s.get("type").and_then(Value::as_str) == Some("float")
                    && s.get("num_bits").and_then(Value::as_u64) == Some(8)
            });
        Ok(Self {
            algorithm,
            group_size,
            kv_cache_fp8,
            exclude: globs(part.get("ignore").or_else(|| part.get("exclude_modules")))?,
            dynamic_activations: !groups.is_empty() && groups.iter().any(dynamic),
            layers,
        })
    }

    /// Whether a module is left unquantized. For a fused module, the error says that only some of its parts are.
    pub fn is_excluded(&self, name: &str, fused: &FusedModules) -> Result<bool, MixedParts> {
        if NEVER.iter().any(|never| name.contains(never)) {
            return Ok(true);
        }
        let listed = |name: &str| self.exclude.iter().any(|entry| entry.as_str() == name);
        if let Some(parts) = fused.parts(name)
            && !listed(name)
        {
            match parts.iter().filter(|part| listed(part)).count() {
                0 => {}
                n if n == parts.len() => return Ok(true),
                _ => return Err(MixedParts),
            }
        }
        Ok(self.exclude.iter().any(|entry| excludes(entry, name)))
    }

    /// How a module is quantized, exclusion aside; `None` for a module that a mixed checkpoint does not name.
    pub fn quantization_of(
        &self,
        name: &str,
        fused: &FusedModules,
    ) -> Result<Option<LayerQuantization>, MixedParts> {
        if self.algorithm != Algorithm::Mixed {
            let (algorithm, group_size) = (self.algorithm.clone(), self.group_size);
            return Ok(Some(LayerQuantization { algorithm, group_size }));
        }
        self.layer_of(name, fused).map(|found| found.cloned())
    }

    /// What a mixed checkpoint says of the first layer inside `module`.
    fn first_below(&self, module: &str) -> Option<&LayerQuantization> {
        let prefix = format!("{module}.");
        let mut below = self.layers.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        below.next().filter(|(layer, _)| layer.starts_with(&prefix)).map(|(_, found)| found)
    }

    /// What a mixed checkpoint says of a module, under whichever of its names.
    fn layer_of(&self, name: &str, fused: &FusedModules) -> Result<Option<&LayerQuantization>, MixedParts> {
        for name in aliases(name) {
            if let Some(found) = self.layers.get(&name) {
                return Ok(Some(found));
            }
            if let Some(parts) = fused.parts(&name) {
                let found: Vec<_> = parts.iter().filter_map(|part| self.layers.get(part)).collect();
                match found.as_slice() {
                    [] => {}
                    [first, rest @ ..] if rest.iter().all(|other| other == first) => return Ok(Some(first)),
                    _ => return Err(MixedParts),
                }
            }
            let parent = name.split_once(".experts").map(|(parent, _)| parent);
            for prefix in [Some(name.as_str()), parent].into_iter().flatten() {
                if let Some(found) = self.first_below(prefix) {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }
}

/// Whether an entry of the exclusion list covers a module: by name, as a part of the name, or as a pattern. (A part of the
/// name without `language_model.` is a part of the name.)
pub(crate) fn excludes(entry: &Glob, name: &str) -> bool {
    name.contains(entry.as_str()) || entry.matches(name)
}

/// The name, and the other names that the same module has in checkpoints of multimodal models.
fn aliases(name: &str) -> Vec<String> {
    let mut names = vec![name.to_string()];
    if name.ends_with(".lm_head") {
        names.push("lm_head".into());
    }
    if let Some(rest) = name.strip_prefix("language_model.model.") {
        names.push(format!("model.language_model.{rest}"));
    }
    if let Some(rest) = name.strip_prefix("model.language_model.") {
        names.push(format!("language_model.model.{rest}"));
    }
    names
}

/// Parts of a fused module are treated differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("some but not all parts of the fused module are quantized (or all, but differently)")]
pub struct MixedParts;
