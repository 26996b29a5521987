//! Python virtual environments in the cache, made from hash-locked requirements.

use crate::{cache::Cache, pins, workspace};
use anyhow::{Context, Result, bail, ensure};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Oldest Python that the locks and scripts support.
const OLDEST: (u32, u32) = (3, 10);

/// A virtual environment.
pub(crate) struct Environment {
    path: PathBuf,
}

impl Environment {
    /// The environment of the lock `third_party/pins.toml` calls `name`; created if it is not in the cache.
    pub(crate) fn of_lock(cache: &Cache, name: &str) -> Result<Self> {
        let python = Python::find()?;
        let key = Key::of(&python, name)?;
        let environment = key.environment(cache);
        if environment.is_complete() {
            return Ok(environment);
        }
        environment.make(&python)?;
        let mut pip = environment.python();
        pip.args([
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--no-compile",
            "--no-deps",
            "--only-binary",
            ":all:",
        ]);
        pip.arg("--require-hashes").arg("-r").arg(&key.lock);
        run(&mut pip).with_context(|| format!("installing {}", key.lock.display()))?;
        fs::write(environment.marker(), b"")?;
        Ok(environment)
    }

    /// An environment with pip and nothing else.
    pub(crate) fn bare(cache: &Cache) -> Result<Self> {
        let python = Python::find()?;
        let digest = pins::sha256_of(&[python.identity.as_bytes()]);
        let environment = Self { path: cache.path(&format!("python/bare-{}", &digest[..16])) };
        if !environment.is_complete() {
            environment.make(&python)?;
            fs::write(environment.marker(), b"")?;
        }
        Ok(environment)
    }

    /// Makes the environment, with pip and nothing else, in place of what is there.
    fn make(&self, python: &Python) -> Result<()> {
        eprintln!("python: making the environment {}", self.path.display());
        if self.path.exists() {
            fs::remove_dir_all(&self.path).with_context(|| self.path.display().to_string())?;
        }
        let made = python.command().args(["-m", "venv"]).arg(&self.path).status()?;
        if !made.success() {
            bail!(
                "{} -m venv failed: on Debian and Ubuntu, `apt install python3-venv` provides it",
                python.program
            );
        }
        Ok(())
    }

    /// The environment of a lock if it is complete in the cache.
    pub(crate) fn cached(cache: &Cache, name: &str) -> Result<Option<Self>> {
        let environment = Key::of(&Python::find()?, name)?.environment(cache);
        Ok(environment.is_complete().then_some(environment))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its interpreter, isolated from the user's site-packages and from the caller's `PYTHONPATH`.
    pub(crate) fn python(&self) -> Command {
        let mut command = Command::new(if cfg!(windows) {
            self.path.join("Scripts").join("python.exe")
        } else {
            self.path.join("bin").join("python")
        });
        command.arg("-I").env("PYTHONUTF8", "1");
        command
    }

    fn marker(&self) -> PathBuf {
        self.path.join("complete")
    }

    fn is_complete(&self) -> bool {
        self.marker().exists()
    }
}

/// What decides which environment it is: the interpreter and the lock's content.
struct Key {
    name: String,
    lock: PathBuf,
    digest: String,
}

impl Key {
    fn of(python: &Python, name: &str) -> Result<Self> {
        let lock = workspace::path(&pins::Pins::read()?.lock(name)?.file);
        let text = fs::read(&lock).with_context(|| lock.display().to_string())?;
        let digest = pins::sha256_of(&[&text, python.identity.as_bytes()]);
        Ok(Self { name: name.into(), lock, digest })
    }

    fn environment(&self, cache: &Cache) -> Environment {
        Environment { path: cache.path(&format!("python/{}-{}", self.name, &self.digest[..16])) }
    }
}

/// An interpreter of the system.
struct Python {
    program: &'static str,
    /// Version and location, as the interpreter tells them.
    identity: String,
}

impl Python {
    fn find() -> Result<Self> {
        let mut tried = Vec::new();
        for program in ["python3", "python"] {
            let probe = "import sys; print(*sys.version_info[:2], sys.version, sys.executable)";
            let output = Command::new(program).args(["-I", "-c", probe]).stdin(Stdio::null()).output();
            match output {
                Ok(output) if output.status.success() => {
                    let identity = String::from_utf8_lossy(&output.stdout).trim().to_string();
                    let mut numbers = identity.split(' ').map_while(|part| part.parse::<u32>().ok());
                    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
                    if version >= OLDEST {
                        return Ok(Self { program, identity });
                    }
                    tried.push(format!("{program} is {}.{}", version.0, version.1));
                }
                Ok(output) => tried.push(format!("{program}: {}", output.status)),
                Err(error) => tried.push(format!("{program}: {error}")),
            }
        }
        bail!("Python {}.{} or newer is needed: {}", OLDEST.0, OLDEST.1, tried.join("; "))
    }

    fn command(&self) -> Command {
        Command::new(self.program)
    }
}

/// Runs a command with our output streams; its failure is an error that shows it.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("{command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
