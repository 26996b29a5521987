//! The boundary to C: results become status codes, panics stop here, what is wrong is told.

use super::{log, status::Status};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) status: Status,
    /// What was found and what was expected, if the code alone does not tell.
    pub(super) message: Option<String>,
}

impl Failure {
    /// A failure that callers provoke on purpose or that its code explains: it is not logged.
    pub(super) const fn quiet(status: Status) -> Self {
        Self { status, message: None }
    }

    /// A failure that is logged with what was found and expected.
    pub(super) fn loud(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: Some(message.into()) }
    }
}

/// Runs the body of an exported function.
pub(super) fn call(name: &'static str, body: impl FnOnce() -> Result<(), Failure>) -> Status {
    // Shared state lies behind locks that a panic poisons or leaves consistent, so going on after one is safe.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::SUCCESS,
        Ok(Err(failure)) => {
            if let Some(message) = &failure.message {
                log::error(&format!("{name}: {}: {message}", failure.status.name()));
            }
            failure.status
        }
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(ToString::to_string);
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            log::error(&format!("{name}: a bug of the simulator: {text}"));
            Status::UNKNOWN
        }
    }
}

/// The table of a file's exported functions, by which `cuGetProcAddress` finds them.
macro_rules! entries {
    ($($name:ident),* $(,)?) => {
        /// The exported functions of this file.
        pub(super) const ENTRIES: &[$crate::driver::Entry] =
            &[$($crate::driver::Entry { name: stringify!($name), address: $name as *const () }),*];
    };
}
pub(super) use entries;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_does_not_cross() {
        let panics = || -> Result<(), Failure> { panic!("{}", "planted") };
        assert_eq!(call("test", panics), Status::UNKNOWN);
        assert_eq!(call("test", || Ok(())), Status::SUCCESS);
        assert_eq!(call("test", || Err(Failure::quiet(Status::NOT_FOUND))), Status::NOT_FOUND);
        assert!(log::last().contains("planted"), "{}", log::last());
    }
}
