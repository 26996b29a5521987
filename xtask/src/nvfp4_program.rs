//! The programs of this checkout, as a user runs them.

use crate::workspace;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::{
    ffi::OsStr,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

/// The built program.
pub(crate) struct Program {
    name: &'static str,
    path: PathBuf,
}

/// What a run printed.
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Program {
    /// Builds `nvfp4`.
    pub(crate) fn build() -> Result<Self> {
        Self::of("nvfp4-cli", "nvfp4")
    }

    /// Builds the program `name` of a package.
    pub(crate) fn of(package: &str, name: &'static str) -> Result<Self> {
        let mut cargo = workspace::cargo();
        cargo.args(["build", "--package", package, "--bin", name, "--message-format", "json-render-diagnostics"]);
        let output = cargo.stderr(Stdio::inherit()).stdin(Stdio::null()).output()?;
        ensure!(output.status.success(), "building {name}: {}", output.status);
        let path = String::from_utf8(output.stdout)?
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
            .next_back()
            .context("cargo named no executable")?;
        Ok(Self { name, path })
    }

    /// Runs it to its end, whatever its exit code.
    pub(crate) fn run<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Result<Run> {
        let mut command = Command::new(&self.path);
        command.args(arguments).stdin(Stdio::null());
        println!(
            "$ {} {}",
            self.name,
            command.get_args().map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
        );
        let Output { status, stdout, stderr } =
            command.output().with_context(|| self.path.display().to_string())?;
        Ok(Run {
            code: status.code().with_context(|| format!("{} ended without an exit code: {status}", self.name))?,
            stdout: String::from_utf8(stdout)?,
            stderr: String::from_utf8(stderr)?,
        })
    }

    /// Runs it with `--json` among its arguments; any exit code but 0 is an error that shows what it printed.
    pub(crate) fn report<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Result<Value> {
        let run = self.run(arguments)?;
        ensure!(run.code == 0, "exit code {}\n{}\n{}", run.code, run.stdout, run.stderr);
        serde_json::from_str(&run.stdout).with_context(|| format!("not JSON: {}", run.stdout))
    }
}
