//! The simulator as the CUDA driver: a folder with it, to be first on the library path.

use crate::workspace;
use anyhow::{Result, ensure};
use std::path::PathBuf;

/// Builds the simulator and returns a folder that holds it as `libcuda.so.1`.
pub(crate) fn make() -> Result<PathBuf> {
    let status = workspace::cargo().args(["build", "--package", "blackwell-sim", "--lib"]).status()?;
    ensure!(status.success(), "cargo build --package blackwell-sim: {status}");
    let target = workspace::target_folder()?;
    let folder = target.join("blackwell-sim");
    blackwell_sim::install(&target.join("debug").join(blackwell_sim::LIBRARY), &folder)?;
    Ok(folder)
}
