//! Running the program.

use serde_json::Value;
use std::{
    ffi::OsStr,
    process::{Command, Stdio},
};

/// What a run printed, and its exit code.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The program, without the variables of whoever runs the tests.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfp4"));
    command.env_remove("NVFP4_BACKEND").env_remove("NVFP4_DISABLE").env_remove("RAYON_NUM_THREADS");
    command.stdin(Stdio::null());
    command
}

/// Runs the program with these arguments.
pub(crate) fn nvfp4<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Run {
    finish(command().args(arguments))
}

/// Runs a command to its end.
pub(crate) fn finish(command: &mut Command) -> Run {
    let output = command.output().unwrap();
    let run = Run {
        code: output.status.code().expect("ended by a signal"),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    };
    assert!(!run.stderr.contains("panicked"), "{run:?}");
    run
}

impl Run {
    /// Checks the exit code.
    pub(crate) fn ended(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}\n{}", self.stdout, self.stderr);
        self
    }

    /// The one JSON document on standard output.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}\n{}\n{}", self.stdout, self.stderr))
    }

    /// Checks that the error message holds these texts, and that nothing went to standard output.
    pub(crate) fn says(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.stderr.contains(text), "no `{text}` in: {}", self.stderr);
        }
        assert!(self.stderr.starts_with("error: "), "{}", self.stderr);
        assert_eq!(self.stdout, "");
        self
    }
}

/// The array at `key`, which must not be empty.
pub(crate) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    let list = value[key].as_array().unwrap_or_else(|| panic!("{key} is no array: {value}"));
    assert!(!list.is_empty(), "{key} is empty");
    list
}

/// The number at `key`.
pub(crate) fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} is no number: {value}"))
}

/// The text at `key`.
pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} is no text: {value}"))
}
