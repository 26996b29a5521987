//! `cargo xtask features`: every package compiles, without warnings, with no features and with each alone.

use crate::workspace;
use anyhow::{Result, ensure};

/// Checks every package of the workspace that has features.
pub(crate) fn check() -> Result<()> {
    let mut checked = 0;
    for package in workspace::packages()? {
        let name = package["name"].as_str().unwrap_or_default();
        let features: Vec<_> =
            package["features"].as_object().into_iter().flatten().map(|(name, _)| name).collect();
        if features.is_empty() {
            continue;
        }
        check_package(name, None)?;
        for feature in features.into_iter().filter(|feature| *feature != "default") {
            check_package(name, Some(feature))?;
            checked += 1;
        }
    }
    ensure!(checked > 0, "no package has a feature");
    Ok(())
}

fn check_package(package: &str, feature: Option<&str>) -> Result<()> {
    println!("{package}: {}", feature.unwrap_or("no features"));
    let mut cargo = workspace::cargo();
    cargo.args(["clippy", "--quiet", "--package", package, "--no-default-features"]);
    if let Some(feature) = feature {
        cargo.args(["--features", feature]);
    }
    cargo.args(["--", "-D", "warnings"]);
    let status = cargo.status()?;
    ensure!(status.success(), "{package} does not compile with {}", feature.unwrap_or("no features"));
    Ok(())
}
