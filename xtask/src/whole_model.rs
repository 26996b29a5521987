//! The whole MiniLM through the real program: quantize in every format and scheme, verify against the original,
//! dequantize.

use crate::{
    minilm::{self, MiniLm},
    nvfp4_program::Program,
};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::{ffi::OsStr, path::Path};

/// What `nvfp4 quantize --format` writes.
pub(crate) const FORMATS: [&str; 2] = ["compressed-tensors", "modelopt"];
/// What `nvfp4 quantize --scheme` takes.
pub(crate) const SCHEMES: [&str; 2] = ["w4a4", "w4a16"];
/// Linear layers of MiniLM: six blocks of six, and the pooler.
const LINEAR_LAYERS: usize = 37;

/// Quantizes the whole model.
pub(crate) fn quantize(program: &Program, minilm: &MiniLm, format: &str, scheme: &str, to: &Path) -> Result<()> {
    let mut arguments: Vec<&OsStr> = vec!["quantize".as_ref(), minilm.model.as_os_str(), to.as_os_str()];
    arguments.extend(["--format", format, "--scheme", scheme].map(OsStr::new));
    if scheme == "w4a4" {
        arguments.extend([OsStr::new("--calibration"), minilm.calibration.as_os_str()]);
    }
    program.succeed(arguments)?;
    Ok(())
}

/// The demo data against what the model gives now, then every format and scheme.
pub(crate) fn test() -> Result<()> {
    minilm::demo_data(true)?;
    let minilm = minilm::fetch()?;
    let program = Program::build()?;
    let folder = tempfile::tempdir()?;
    for format in FORMATS {
        for scheme in SCHEMES {
            let checkpoint = folder.path().join(format!("{format}-{scheme}"));
            quantize(&program, &minilm, format, scheme, &checkpoint)?;
            verify(&program, &minilm, &checkpoint).with_context(|| format!("{format} {scheme}"))?;
        }
    }
    Ok(())
}

fn verify(program: &Program, minilm: &MiniLm, checkpoint: &Path) -> Result<()> {
    let report = program.succeed([
        "verify".as_ref(),
        checkpoint.as_os_str(),
        "--original".as_ref(),
        minilm.model.as_os_str(),
        "--json".as_ref(),
    ])?;
    let report: Value = serde_json::from_str(&report).context("verify --json")?;
    let layers = report["layers"].as_array().context("verify --json: no layers")?;
    ensure!(layers.len() == LINEAR_LAYERS, "{} layers, not {LINEAR_LAYERS}", layers.len());
    Ok(())
}
