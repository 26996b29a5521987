//! ModelOpt's configuration: `quantization_config` of `config.json`, or the older `hf_quant_config.json`.
//!
//! The rules are vLLM 0.33's `ModelOptNvFp4Config` (`from_config`, `is_layer_excluded`) and `ModelOptMixedPrecisionConfig`.

use super::pattern::{FusedModules, fnmatch};
use serde_json::Value;
use std::collections::BTreeMap;

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
    pub exclude: Vec<String>,
    /// True if the activations' global scale is computed for each call.
    pub dynamic_activations: bool,
    /// For [`Algorithm::Mixed`]: what each layer is quantized to.
    pub layers: BTreeMap<String, Algorithm>,
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
    /// One that is not NVFP4.
    Other(String),
}

/// Names that ModelOpt and vLLM know.
const KNOWN: &[&str] =
    &["FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8", "MIXED_PRECISION"];
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
        field: &'static str,
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

/// A list of strings, or the empty list for null and absence.
fn names(value: Option<&Value>) -> Result<Vec<String>, ConfigError> {
    let wrong = |found: &Value| ConfigError::Type {
        field: "exclude_modules",
        expected: "a list of names",
        found: found.to_string(),
    };
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => {
            list.iter().map(|v| v.as_str().map(String::from).ok_or_else(|| wrong(v))).collect()
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
        let group_size = match part.get("group_size") {
            None | Some(Value::Null) => nvfp4_core::BLOCK_SIZE,
            Some(value) => {
                let number = value.as_u64().or_else(|| value.as_str()?.trim().parse().ok());
                let number = number.and_then(|n| usize::try_from(n).ok());
                number.ok_or_else(|| ConfigError::Type {
                    field: "group_size",
                    expected: "an integer",
                    found: value.to_string(),
                })?
            }
        };
        let groups: Vec<&Value> =
            part.get("config_groups").and_then(Value::as_object).map(|g| g.values().collect()).unwrap_or_default();
        let activations = |group: &&Value| group.get("input_activations").cloned().unwrap_or(Value::Null);
        if algorithm == Algorithm::NvFp4 && !groups.is_empty() && groups.iter().all(|g| activations(g).is_null()) {
            algorithm = Algorithm::NvFp4WeightOnly;
        }
        let dynamic = |group: &&Value| activations(group).get("dynamic") == Some(&Value::Bool(true));
        let mut layers = BTreeMap::new();
        if let Some(map) = part.get("quantized_layers").and_then(Value::as_object) {
            for (layer, entry) in map {
                let name = entry.get("quant_algo").and_then(Value::as_str).ok_or(ConfigError::NoAlgorithm)?;
                layers.insert(layer.clone(), self::algorithm(name)?);
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
            exclude: names(part.get("ignore").or_else(|| part.get("exclude_modules")))?,
            dynamic_activations: !groups.is_empty() && groups.iter().any(dynamic),
            layers,
        })
    }

    /// Whether a module is left unquantized. For a fused module, the error says that only some of its parts are.
    pub fn is_excluded(&self, name: &str, fused: &FusedModules) -> Result<bool, MixedParts> {
        if NEVER.iter().any(|never| name.contains(never)) {
            return Ok(true);
        }
        let listed = |name: &String| self.exclude.contains(name);
        if let Some(parts) = fused.parts(name)
            && !listed(&name.to_string())
        {
            match parts.iter().filter(|part| listed(part)).count() {
                0 => {}
                n if n == parts.len() => return Ok(true),
                _ => return Err(MixedParts),
            }
        }
        let inner = name.strip_prefix("language_model.").unwrap_or(name);
        Ok(self.exclude.iter().any(|entry| {
            entry == name || name.contains(entry.as_str()) || inner.contains(entry.as_str()) || fnmatch(entry, name)
        }))
    }

    /// What a module is quantized to, exclusion aside; `None` for a module that a mixed checkpoint does not name.
    pub fn algorithm_of(&self, name: &str, fused: &FusedModules) -> Result<Option<&Algorithm>, MixedParts> {
        if self.algorithm != Algorithm::Mixed {
            return Ok(Some(&self.algorithm));
        }
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
            let prefix = format!("{name}.");
            if let Some((_, found)) = self.layers.iter().find(|(layer, _)| layer.starts_with(&prefix)) {
                return Ok(Some(found));
            }
            if let Some((parent, _)) = name.split_once(".experts")
                && let Some((_, found)) =
                    self.layers.iter().find(|(layer, _)| layer.starts_with(&format!("{parent}.")))
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
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
