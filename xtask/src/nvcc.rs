//! The CUDA compiler: the user's (`CUDA_HOME`) or the pinned one from the Python Package Index.

use crate::{cache::Cache, python::Environment};
use anyhow::{Context, Result, ensure};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A compiler with its assembler and disassembler.
pub(crate) struct Nvcc {
    home: PathBuf,
    /// e.g. `13.0.88`.
    pub(crate) version: String,
}

impl Nvcc {
    /// The compiler in `CUDA_HOME` if that is set, else the pinned one, fetched into the cache if it is not there.
    pub(crate) fn find(cache: &Cache) -> Result<Self> {
        match std::env::var_os("CUDA_HOME").filter(|home| !home.is_empty()) {
            Some(home) => Self::at(Path::new(&home)).context("CUDA_HOME"),
            None => Self::at(&toolkit_of(Environment::of_lock(cache, "nvcc")?.path())?),
        }
    }

    /// Whether [`find`](Self::find) would fetch nothing.
    pub(crate) fn is_cached(cache: &Cache) -> Result<bool> {
        let given = std::env::var_os("CUDA_HOME").is_some_and(|home| !home.is_empty());
        Ok(given || Environment::cached(cache, "nvcc")?.is_some())
    }

    /// The folder of `cuda.h`.
    pub(crate) fn headers(&self) -> PathBuf {
        self.home.join("include")
    }

    fn at(home: &Path) -> Result<Self> {
        let mut nvcc = Self { home: home.to_path_buf(), version: String::new() };
        let text = output(nvcc.tool("nvcc").arg("--version"))?;
        nvcc.version = text
            .split_once(", V")
            .and_then(|(_, rest)| rest.split_whitespace().next())
            .with_context(|| format!("{} --version does not tell its version:\n{text}", home.display()))?
            .to_string();
        Ok(nvcc)
    }

    /// A program of the toolkit, which finds the others.
    pub(crate) fn tool(&self, name: &str) -> Command {
        let bin = self.home.join("bin");
        let mut command = Command::new(bin.join(name));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(bin).chain(std::env::split_paths(&path));
        if let Ok(joined) = std::env::join_paths(folders) {
            command.env("PATH", joined);
        }
        command.stdin(Stdio::null());
        command
    }

    /// The machine code of a cubin, as text.
    pub(crate) fn disassemble(&self, cubin: &Path) -> Result<String> {
        output(self.tool("cuobjdump").arg("-sass").arg(cubin))
    }
}

/// The toolkit's folder inside a Python environment.
fn toolkit_of(environment: &Path) -> Result<PathBuf> {
    let lib = environment.join("lib");
    let entries = std::fs::read_dir(&lib).with_context(|| lib.display().to_string())?;
    entries
        .flatten()
        .map(|entry| entry.path().join("site-packages").join("nvidia").join("cu13"))
        .find(|home| home.join("bin").join("nvcc").is_file())
        .with_context(|| format!("{} holds no nvcc; remove it and fetch again", environment.display()))
}

/// What a command prints; its failure is an error with its error output.
fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
