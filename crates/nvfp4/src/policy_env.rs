//! The selection policy that the environment asks for. A name that is not understood is an error, never ignored.

use crate::Registry;
use nvfp4_core::{
    Policy,
    select::{Choice, Disabled},
};
use std::ffi::OsString;

/// Names the one backend to use; selection gives it or an error.
pub const BACKEND_VARIABLE: &str = "NVFP4_BACKEND";
/// Lists backends that must not be used, separated by commas.
pub const DISABLE_VARIABLE: &str = "NVFP4_DISABLE";

/// A variable that asks for something impossible.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A name that no backend has.
    #[error("{variable}: there is no backend `{name}`; there are: {}", .known.join(", "))]
    Unknown {
        /// The variable.
        variable: &'static str,
        /// The name in it.
        name: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// An empty value or list entry.
    #[error("{variable}={value:?} has an empty name; unset it, or name one of: {}", .known.join(", "))]
    Empty {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// A value that is not UTF-8.
    #[error("{variable}={value:?} is not UTF-8; name one of: {}", .known.join(", "))]
    NotUtf8 {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: OsString,
        /// The names that exist.
        known: Vec<String>,
    },
}

impl Registry {
    /// The policy that the process environment asks for: `NVFP4_BACKEND` forces a backend by name, `NVFP4_DISABLE`
    /// lists backends (`a,b`) that must not be used. Neither set: [`Policy::default`].
    pub fn policy_from_env(&self) -> Result<Policy, PolicyError> {
        self.policy_from(|variable| std::env::var_os(variable))
    }

    /// As [`policy_from_env`](Self::policy_from_env), from any source of variables.
    ///
    /// ```
    /// use nvfp4::{Registry, select::Choice};
    /// let registry = Registry::installed();
    /// let policy = registry.policy_from(|name| (name == "NVFP4_BACKEND").then(|| "cpu".into()))?;
    /// assert_eq!(policy.choice, Choice::Force("cpu".into()));
    /// assert!(registry.policy_from(|name| (name == "NVFP4_DISABLE").then(|| "cpuu".into())).is_err());
    /// # Ok::<(), nvfp4::PolicyError>(())
    /// ```
    pub fn policy_from(&self, get: impl Fn(&str) -> Option<OsString>) -> Result<Policy, PolicyError> {
        let mut policy = Policy::default();
        if let Some(value) = self.value(BACKEND_VARIABLE, &get)? {
            policy.choice = Choice::Force(self.known(BACKEND_VARIABLE, &value, &value)?);
        }
        if let Some(value) = self.value(DISABLE_VARIABLE, &get)? {
            for name in value.split(',') {
                let name = self.known(DISABLE_VARIABLE, &value, name)?;
                policy.disabled.push(Disabled { name, by: DISABLE_VARIABLE.into() });
            }
        }
        Ok(policy)
    }

    fn value(
        &self,
        variable: &'static str,
        get: &impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<String>, PolicyError> {
        get(variable).map(OsString::into_string).transpose().map_err(|value| PolicyError::NotUtf8 {
            variable,
            value,
            known: self.names(),
        })
    }

    fn known(&self, variable: &'static str, value: &str, name: &str) -> Result<String, PolicyError> {
        let name = name.trim();
        if name.is_empty() {
            return Err(PolicyError::Empty { variable, value: value.into(), known: self.names() });
        }
        if self.ids().all(|id| id.as_str() != name) {
            return Err(PolicyError::Unknown { variable, name: name.into(), known: self.names() });
        }
        Ok(name.into())
    }

    fn names(&self) -> Vec<String> {
        self.ids().map(|id| id.to_string()).collect()
    }
}
