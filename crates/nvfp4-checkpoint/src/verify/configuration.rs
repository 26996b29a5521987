//! The configuration against the tensors.

use super::finding::{Fault, Finding};
use crate::{
    Checkpoint, Contradiction, Module, QuantizationConfig, Scheme,
    config::{modelopt::excludes, pattern::Glob},
    layer::tensor_names,
};

/// Contradictions between the configuration and modules that are not packed NVFP4 (those that are do not load, and are
/// findings of theirs), and ignore lists that match nothing.
pub(super) fn check_configuration(checkpoint: &Checkpoint) -> Vec<Finding> {
    let Some(config) = checkpoint.config() else { return Vec::new() };
    let plain = checkpoint.modules().filter(|m| tensor_names(&m.storage).is_none());
    let mut findings: Vec<_> =
        plain.filter_map(|module| Some(contradicted(module, module.contradiction.as_ref()?))).collect();
    findings.extend(unmatched_ignore_list(checkpoint, config));
    findings
}

/// A module that is not what the configuration calls it.
fn contradicted(module: &Module, contradiction: &Contradiction) -> Finding {
    let hint = match module.scheme {
        Scheme::Dense(_) => "; it must be in the ignore list",
        _ => "",
    };
    let message = format!("{contradiction}{hint}");
    // Engines have classes of their own for output heads, which a target `Linear` does not reach in all of them.
    let finding = match module.name.rsplit('.').next() {
        Some("lm_head" | "output_layer" | "embed_out") => Finding::warning(Fault::Contradiction, message),
        _ => Finding::error(Fault::Contradiction, message),
    };
    finding.in_module(&module.name).in_tensor(format!("{}.weight", module.name))
}

/// An ignore list none of whose entries matches anything: its names have another prefix than the tensors.
fn unmatched_ignore_list(checkpoint: &Checkpoint, config: &QuantizationConfig) -> Option<Finding> {
    let modules: Vec<Vec<String>> = checkpoint.modules().map(|m| checkpoint.config_names(&m.name)).collect();
    let any = |matches: &dyn Fn(&str) -> bool| modules.iter().flatten().any(|name| matches(name));
    let (entries, matched): (Vec<&str>, bool) = match config {
        QuantizationConfig::ModelOpt(config) => {
            let matches = |entry: &Glob| any(&|name| excludes(entry, name));
            (config.exclude.iter().map(Glob::as_str).collect(), config.exclude.iter().any(matches))
        }
        QuantizationConfig::CompressedTensors(config) => (
            config.ignore.iter().map(|p| p.as_str()).collect(),
            config.ignore.iter().any(|pattern| any(&|name| pattern.matches(name))),
        ),
        QuantizationConfig::Other(_) => return None,
    };
    // An output head that is the embedding table has no tensors of its own.
    let untied: Vec<&&str> = entries.iter().filter(|e| !e.contains("lm_head")).collect();
    let first = untied.first().filter(|_| !matched)?;
    let message = format!(
        "none of the {} entries of the ignore list (`{first}` …) matches a module of the files; the names in the \
         configuration probably have another prefix",
        entries.len()
    );
    Some(Finding::warning(Fault::Contradiction, message))
}
