//! The answer to «what would run this layer on that device, and why not the others».

use nvfp4_core::{Decision, DeviceFacts, NvFp4LinearLayerConfig, select::SelectError};
use std::fmt;

/// Made by [`Registry::explain`](crate::Registry::explain).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The device that was asked about.
    pub device: DeviceFacts,
    /// The layer that was asked about.
    pub config: NvFp4LinearLayerConfig,
    /// What runs it with the backends that this build has.
    pub here: Result<Decision, SelectError>,
    /// What would run it if every backend of this project were installed.
    pub if_all_were_installed: Result<Decision, SelectError>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.config;
        writeln!(
            f,
            "{} layer, n = {}, k = {}, {} -> {}, on {}",
            c.activation, c.out_features, c.in_features, c.input_dtype, c.output_dtype, self.device
        )?;
        let mut answer = |title: &str, answer: &Result<Decision, SelectError>| match answer {
            Ok(decision) => write!(f, "{title}: {decision}"),
            Err(refusal) => write!(f, "{title}: {refusal}"),
        };
        answer("this build", &self.here)?;
        answer("\nwith every backend installed", &self.if_all_were_installed)
    }
}
