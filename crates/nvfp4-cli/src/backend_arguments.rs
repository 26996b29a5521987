//! The arguments that say how a backend is chosen.

use crate::exit::Failure;
use anyhow::anyhow;
use nvfp4::{
    Policy, Registry,
    select::{Choice, Disabled},
};

/// How a backend is chosen.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Choice of the backend")]
pub(crate) struct BackendArguments {
    /// Use this backend or fail; never substitutes another [environment: NVFP4_BACKEND]
    #[arg(long, value_name = "NAME", conflicts_with = "prefer")]
    backend: Option<String>,
    /// Use the first of these backends that can run the layer, else the best of the others
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    prefer: Vec<String>,
    /// Do not use these backends [environment: NVFP4_DISABLE]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    disable: Vec<String>,
}

impl BackendArguments {
    /// The policy of the environment, with what the arguments say in its place or on top of it. A backend that does not
    /// exist is an error.
    pub(crate) fn policy(&self, registry: &Registry) -> Result<Policy, Failure> {
        // What an argument overrides is not even looked at.
        let overridden = self.backend.is_some() || !self.prefer.is_empty();
        let mut policy = registry
            .policy_from(|variable| {
                let ignored = overridden && variable == nvfp4::BACKEND_VARIABLE;
                (!ignored).then(|| std::env::var_os(variable)).flatten()
            })
            .map_err(Failure::usage)?;
        let known = |option: &str, name: &str| {
            let name = name.trim();
            if registry.ids().any(|id| id.as_str() == name) {
                return Ok(name.to_string());
            }
            let names: Vec<&str> = registry.ids().map(|id| id.as_str()).collect();
            Err(Failure::Usage(anyhow!("{option}: there is no backend `{name}`; there are: {}", names.join(", "))))
        };
        if let Some(name) = &self.backend {
            policy.choice = Choice::Force(known("--backend", name)?);
        } else if !self.prefer.is_empty() {
            let names = self.prefer.iter().map(|name| known("--prefer", name));
            policy.choice = Choice::Prefer(names.collect::<Result<_, _>>()?);
        }
        for name in &self.disable {
            policy.disabled.push(Disabled { name: known("--disable", name)?, by: "--disable".into() });
        }
        Ok(policy)
    }
}
