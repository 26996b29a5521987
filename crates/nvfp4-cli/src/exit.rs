//! How the program ends. The codes are documented in `--help` and do not change.

use nvfp4::{LoadError, select::SelectError};
use std::process::ExitCode;

/// What a command that did its work has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// What was asked for is done, or the answer is yes.
    Yes,
    /// The answer is no: faults were found, or nothing can run.
    No,
}

/// Why a command could not do its work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments (or the environment variables that stand for them) ask for something impossible.
    Usage(anyhow::Error),
    /// No backend can run a layer.
    Refused(anyhow::Error),
    /// An input is bad or an output cannot be written.
    Input(anyhow::Error),
}

/// What a command returns.
pub(crate) type CommandResult = Result<Outcome, Failure>;

impl Failure {
    /// For `map_err`.
    pub(crate) fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self::Usage(error.into())
    }

    /// For `map_err`: why a layer could not be loaded.
    pub(crate) fn loading(error: LoadError) -> Self {
        match error {
            LoadError::Policy(_) | LoadError::Select { source: SelectError::Unknown { .. }, .. } => {
                Self::Usage(error.into())
            }
            LoadError::Select { .. } | LoadError::NotRunnable { .. } => Self::Refused(error.into()),
            other => Self::Input(other.into()),
        }
    }

    /// The error, whatever its kind.
    pub(crate) fn error(&self) -> &anyhow::Error {
        match self {
            Self::Usage(error) | Self::Refused(error) | Self::Input(error) => error,
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Input(error.into())
    }
}

/// The code for the operating system.
pub(crate) fn exit_code(result: &CommandResult) -> ExitCode {
    ExitCode::from(match result {
        Ok(Outcome::Yes) => 0,
        Ok(Outcome::No) | Err(Failure::Refused(_)) => 1,
        Err(Failure::Usage(_)) => 2,
        Err(Failure::Input(_)) => 3,
    })
}

/// An error with the chain of its causes, without repeating a cause whose text the error above it already holds.
pub(crate) fn chain_text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    let mut above = String::new();
    for cause in error.chain() {
        let line = cause.to_string();
        if text.is_empty() {
            text.push_str(&line);
        } else if !above.contains(&line) {
            text.push_str("\n  caused by: ");
            text.push_str(&line);
        }
        above = line;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn causes_are_listed_once() {
        let error = anyhow!("disk full").context("cannot write `a`: disk full").context("cannot quantize");
        assert_eq!(chain_text(&error), "cannot quantize\n  caused by: cannot write `a`: disk full");
        assert_eq!(chain_text(&anyhow!("alone")), "alone");
    }
}
