//! compressed-tensors' configuration: config groups with targets, and an ignore list.
//!
//! The rules are compressed-tensors 0.17's and vLLM 0.33's (`should_ignore_layer`, `find_matched_target`).

use super::{
    modelopt::MixedParts,
    pattern::{FusedModules, python_match},
};
use regex::Regex;
use serde_json::Value;

/// A compressed-tensors configuration.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Config groups in the order of the file.
    pub groups: Vec<Group>,
    /// Names and `re:` patterns of modules that are not quantized.
    pub ignore: Vec<Pattern>,
}

/// Modules that are quantized alike.
#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    /// Its name in the file.
    pub name: String,
    /// What it covers: names, `re:` patterns, classes.
    pub targets: Vec<Pattern>,
    /// What happens to the weights.
    pub weights: Quantization,
    /// What happens to the activations.
    pub activations: Quantization,
}

/// What a group does to weights or activations.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Quantization {
    /// Nothing.
    None,
    /// NVFP4; for activations, with a static global scale.
    NvFp4,
    /// NVFP4 activations whose global scale is computed for each call.
    NvFp4Dynamic,
    /// Something else, in words.
    Other(String),
}

/// A name, or a regular expression after `re:`.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    regex: Option<Regex>,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// Why a configuration is not one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A field is missing or has the wrong type.
    #[error("`{field}` must be {expected}, found {found}")]
    Type {
        /// The field.
        field: String,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// A pattern cannot be used.
    #[error("in `{field}`: {reason}")]
    Pattern {
        /// The list.
        field: String,
        /// Why.
        reason: String,
    },
    /// Sparse weights.
    #[error("the sparsity config has targets: sparse weights are not supported")]
    Sparse,
    /// Activation reordering.
    #[error("group `{group}`: actorder `{actorder}` is not supported for NVFP4")]
    ActivationOrder {
        /// The group.
        group: String,
        /// Its `actorder`.
        actorder: String,
    },
}

impl Pattern {
    /// A name or a `re:` pattern.
    pub fn new(text: &str) -> Result<Self, String> {
        let regex = text.strip_prefix("re:").map(python_match).transpose()?;
        Ok(Self { text: text.into(), regex })
    }

    /// The text in the file.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Equal to the name, or a regular expression that matches at its start.
    pub fn matches(&self, name: &str) -> bool {
        match &self.regex {
            Some(regex) => regex.is_match(name),
            None => self.text == name,
        }
    }

    /// As [`matches`](Self::matches), or a part of a class's name, whatever the case.
    pub fn matches_class(&self, class: &str) -> bool {
        self.matches(class) || (self.regex.is_none() && class.to_lowercase().contains(&self.text.to_lowercase()))
    }
}

fn patterns(value: Option<&Value>, field: &str) -> Result<Vec<Pattern>, ConfigError> {
    let wrong = |found: &Value| ConfigError::Type {
        field: field.into(),
        expected: "a list of names",
        found: found.to_string(),
    };
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => list
            .iter()
            .map(|v| {
                let text = v.as_str().ok_or_else(|| wrong(v))?;
                Pattern::new(text).map_err(|reason| ConfigError::Pattern { field: field.into(), reason })
            })
            .collect(),
        Some(other) => Err(wrong(other)),
    }
}

/// What quantization arguments mean.
fn quantization(args: Option<&Value>) -> Quantization {
    let Some(args) = args.filter(|a| !a.is_null()) else { return Quantization::None };
    let text = |key: &str| args.get(key).and_then(Value::as_str).unwrap_or_default();
    let number = |key: &str| args.get(key).and_then(Value::as_u64);
    let nvfp4 = text("strategy") == "tensor_group"
        && text("type") == "float"
        && number("num_bits") == Some(4)
        && number("group_size") == Some(16)
        && args.get("symmetric").and_then(Value::as_bool).unwrap_or(true);
    if nvfp4 && args.get("dynamic") == Some(&Value::Bool(true)) {
        Quantization::NvFp4Dynamic
    } else if nvfp4 {
        Quantization::NvFp4
    } else {
        let bits = number("num_bits").map_or_else(|| "?".into(), |n| n.to_string());
        let group = number("group_size").map_or_else(String::new, |g| format!(" of {g}"));
        Quantization::Other(format!("{bits}-bit {} {}{group}", text("type"), text("strategy")))
    }
}

impl Config {
    /// Parses `quantization_config`.
    pub fn parse(config: &Value) -> Result<Self, ConfigError> {
        let sparse = config.get("sparsity_config").and_then(|s| s.get("targets"));
        if sparse.and_then(Value::as_array).is_some_and(|targets| !targets.is_empty()) {
            return Err(ConfigError::Sparse);
        }
        let map = config.get("config_groups").and_then(Value::as_object).ok_or_else(|| ConfigError::Type {
            field: "config_groups".into(),
            expected: "an object of groups",
            found: config.get("config_groups").map_or_else(|| "nothing".into(), Value::to_string),
        })?;
        let mut groups = Vec::new();
        for (name, group) in map {
            let field = format!("config_groups.{name}.targets");
            let targets = patterns(group.get("targets"), &field)?;
            // Groups for attention quantize the cache, not linear layers.
            if let [only] = targets.as_slice()
                && only.as_str().ends_with("Attention")
            {
                continue;
            }
            let weights = quantization(group.get("weights"));
            let order = group.get("weights").and_then(|w| w.get("actorder")).and_then(Value::as_str);
            if let Some(actorder @ ("group" | "dynamic")) = order
                && weights == Quantization::NvFp4
            {
                return Err(ConfigError::ActivationOrder { group: name.clone(), actorder: actorder.into() });
            }
            let activations = quantization(group.get("input_activations"));
            groups.push(Group { name: name.clone(), targets, weights, activations });
        }
        Ok(Self { groups, ignore: patterns(config.get("ignore"), "ignore")? })
    }

    /// Whether a module is left unquantized. A direct match of a fused module's own name wins; else all of its parts must
    /// be treated alike.
    pub fn is_ignored(&self, name: &str, fused: &FusedModules) -> Result<bool, MixedParts> {
        let listed = |name: &str| self.ignore.iter().any(|pattern| pattern.matches(name));
        if listed(name) {
            return Ok(true);
        }
        let Some(parts) = fused.parts(name) else { return Ok(false) };
        match parts.iter().filter(|part| listed(part)).count() {
            0 => Ok(false),
            n if n == parts.len() => Ok(true),
            _ => Err(MixedParts),
        }
    }

    /// The groups that cover a module of class `class` (e.g. `Linear`), the one that counts first.
    pub fn groups_of<'a>(
        &'a self,
        name: &'a str,
        class: &'a str,
        fused: &'a FusedModules,
    ) -> impl Iterator<Item = &'a Group> {
        let rank = move |group: &Group| matched_target(&group.targets, name, class, fused).map(|(rank, _)| rank);
        let mut found: Vec<_> = self.groups.iter().filter_map(|g| Some((rank(g)?, g))).collect();
        found.sort_by_key(|(rank, _)| *rank);
        found.into_iter().map(|(_, group)| group)
    }
}

/// The first target that covers a module, with how: 0 by name, 1 by the names of a fused module's parts, 2 by class.
pub fn matched_target<'a>(
    targets: &'a [Pattern],
    name: &str,
    class: &str,
    fused: &FusedModules,
) -> Option<(u8, &'a Pattern)> {
    if let Some(target) = targets.iter().find(|t| t.matches(name)) {
        return Some((0, target));
    }
    if let Some(parts) = fused.parts(name) {
        let of_parts: Option<Vec<_>> = parts.iter().map(|part| targets.iter().find(|t| t.matches(part))).collect();
        if let Some(first) = of_parts.and_then(|t| t.first().copied()) {
            return Some((1, first));
        }
    }
    targets.iter().find(|t| t.matches_class(class)).map(|target| (2, target))
}
