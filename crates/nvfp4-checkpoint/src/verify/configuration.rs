//! The configuration against the tensors.

use super::finding::{Fault, Finding};
use crate::{
    Checkpoint, Module, QuantizationConfig, Scheme,
    config::{compressed_tensors::Quantization, modelopt::Algorithm, pattern::fnmatch},
    quantize::is_embedding,
};

/// Contradictions between the configuration and modules that are stored dense, and ignore lists that match nothing.
pub(super) fn check_configuration(checkpoint: &Checkpoint) -> Vec<Finding> {
    let Some(config) = checkpoint.config() else { return Vec::new() };
    let mut findings = Vec::new();
    for module in checkpoint.modules().filter(|m| matches!(m.scheme, Scheme::Dense(_)) && !is_embedding(&m.name)) {
        match says_nvfp4(checkpoint, config, module) {
            Ok(false) => {}
            Ok(true) => findings.push(stored_dense(module)),
            Err(()) => findings.push(
                Finding::error(
                    Fault::FusedSchemesDiffer,
                    "the configuration excludes some parts of the fused module and not the others",
                )
                .in_module(&module.name),
            ),
        }
    }
    findings.extend(unmatched_ignore_list(checkpoint, config));
    findings
}

/// A module that the configuration calls NVFP4 and that is not.
fn stored_dense(module: &Module) -> Finding {
    let message = format!(
        "the configuration says NVFP4, but `{}.weight` is {} [{}, {}]; it must be in the ignore list",
        module.name, module.scheme, module.out_features, module.in_features
    );
    // Engines have classes of their own for output heads, which a target `Linear` does not reach in all of them.
    let finding = match module.name.rsplit('.').next() {
        Some("lm_head" | "output_layer" | "embed_out") => Finding::warning(Fault::Contradiction, message),
        _ => Finding::error(Fault::Contradiction, message),
    };
    finding.in_module(&module.name).in_tensor(format!("{}.weight", module.name))
}

/// Whether the configuration says that a module is NVFP4. `Err`: it says so of a part of it.
fn says_nvfp4(checkpoint: &Checkpoint, config: &QuantizationConfig, module: &Module) -> Result<bool, ()> {
    let names = checkpoint.config_names(&module.name);
    let fused = &checkpoint.options.fused_modules;
    match config {
        QuantizationConfig::ModelOpt(config) => {
            for name in &names {
                if config.is_excluded(name, fused).map_err(|_| ())? {
                    return Ok(false);
                }
            }
            for name in &names {
                if let Some(algorithm) = config.algorithm_of(name, fused).map_err(|_| ())? {
                    return Ok(matches!(algorithm, Algorithm::NvFp4 | Algorithm::NvFp4WeightOnly));
                }
            }
            Ok(false)
        }
        QuantizationConfig::CompressedTensors(config) => {
            for name in &names {
                if config.is_ignored(name, fused).map_err(|_| ())? {
                    return Ok(false);
                }
            }
            let group = names.iter().find_map(|name| config.groups_of(name, "Linear", fused).next());
            Ok(group.is_some_and(|g| matches!(g.weights, Quantization::NvFp4 | Quantization::NvFp4Dynamic)))
        }
        QuantizationConfig::Other(_) => Ok(false),
    }
}

/// An ignore list none of whose entries matches anything: its names have another prefix than the tensors.
fn unmatched_ignore_list(checkpoint: &Checkpoint, config: &QuantizationConfig) -> Option<Finding> {
    let modules: Vec<Vec<String>> = checkpoint.modules().map(|m| checkpoint.config_names(&m.name)).collect();
    let any = |matches: &dyn Fn(&str) -> bool| modules.iter().flatten().any(|name| matches(name));
    let (entries, matched): (Vec<&str>, bool) = match config {
        QuantizationConfig::ModelOpt(config) => {
            let matches = |entry: &String| any(&|name| name.contains(entry.as_str()) || fnmatch(entry, name));
            (config.exclude.iter().map(String::as_str).collect(), config.exclude.iter().any(matches))
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
