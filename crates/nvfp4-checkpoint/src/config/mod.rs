//! What the configuration files say about quantization, by each ecosystem's own rules.

pub mod compressed_tensors;
pub mod modelopt;
pub mod pattern;
pub mod torchao;

use crate::Error;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The quantization part of a checkpoint's configuration.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum QuantizationConfig {
    /// NVIDIA ModelOpt.
    ModelOpt(modelopt::Config),
    /// compressed-tensors (llm-compressor).
    CompressedTensors(compressed_tensors::Config),
    /// Another `quant_method`, by name.
    Other(String),
}

/// Reads the configuration beside the weights: `config.json`'s `quantization_config` (older: `compression_config`), else
/// ModelOpt's `hf_quant_config.json`. `None` if there is neither. With the file that it came from.
pub(crate) fn read(directory: &Path) -> Result<Option<(QuantizationConfig, PathBuf)>, Error> {
    let path = directory.join("config.json");
    if let Some(config) = read_json(&path)? {
        let parts = [config.get("quantization_config"), config.get("compression_config")];
        // Multimodal models keep their language model's configuration one level down.
        let nested = config.get("text_config").and_then(|t| t.get("quantization_config"));
        let part = parts.into_iter().chain([nested]).flatten().find(|v| !v.is_null());
        if let Some(part) = part {
            return parse(&path, part).map(|config| Some((config, path)));
        }
    }
    let path = directory.join("hf_quant_config.json");
    match read_json(&path)? {
        Some(config) => {
            let config = modelopt::Config::parse(&config).map_err(|e| Error::config(&path, e.to_string()))?;
            Ok(Some((QuantizationConfig::ModelOpt(config), path)))
        }
        None => Ok(None),
    }
}

fn read_json(path: &Path) -> Result<Option<Value>, Error> {
    match std::fs::read(path) {
        Ok(text) => {
            serde_json::from_slice(&text).map(Some).map_err(|e| Error::config(path, format!("not valid JSON: {e}")))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(path, e)),
    }
}

fn parse(path: &Path, part: &Value) -> Result<QuantizationConfig, Error> {
    let method = part.get("quant_method").and_then(Value::as_str);
    let method = match method {
        Some(method) => method.to_lowercase(),
        // Some ModelOpt exports leave the method out.
        None if part.get("quant_algo").is_some() => "modelopt".into(),
        None => {
            let keys: Vec<_> = part.as_object().map(|o| o.keys().cloned().collect()).unwrap_or_default();
            return Err(Error::config(
                path,
                format!("quantization_config has no quant_method; it has: {}", keys.join(", ")),
            ));
        }
    };
    match method.as_str() {
        "compressed-tensors" => compressed_tensors::Config::parse(part)
            .map(QuantizationConfig::CompressedTensors)
            .map_err(|e| Error::config(path, e.to_string())),
        m if m.starts_with("modelopt") => modelopt::Config::parse(part)
            .map(QuantizationConfig::ModelOpt)
            .map_err(|e| Error::config(path, e.to_string())),
        _ => Ok(QuantizationConfig::Other(method)),
    }
}
