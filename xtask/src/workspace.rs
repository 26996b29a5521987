//! Where the workspace is, and its cargo.

use anyhow::{Context, Result, ensure};
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The root of the checkout.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// The cargo that runs us, in the root of the checkout.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// A path of the checkout, from its parts relative to the root with `/` between them.
pub(crate) fn path(relative: &str) -> PathBuf {
    root().join(relative)
}

/// The packages of the workspace, as `cargo metadata` describes them.
pub(crate) fn packages() -> Result<Vec<serde_json::Value>> {
    metadata()?["packages"].as_array().cloned().context("cargo metadata names no packages")
}

/// Where cargo builds.
pub(crate) fn target_folder() -> Result<PathBuf> {
    let metadata = metadata()?;
    Ok(metadata["target_directory"].as_str().context("cargo metadata names no target folder")?.into())
}

fn metadata() -> Result<serde_json::Value> {
    let output = cargo().args(["metadata", "--no-deps", "--format-version", "1"]).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}
