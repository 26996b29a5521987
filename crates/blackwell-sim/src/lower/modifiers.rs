//! The modifiers of an instruction.

use super::code::Space;
use crate::ptx::{Instruction, ScalarType};

/// An instruction's modifiers, without dots.
pub(crate) struct Modifiers<'a>(Vec<&'a str>);

impl<'a> Modifiers<'a> {
    pub(crate) fn new(instruction: &'a Instruction) -> Self {
        Self(instruction.modifiers.iter().map(String::as_str).collect())
    }

    pub(crate) fn all(&self) -> &[&'a str] {
        &self.0
    }

    pub(crate) fn first(&self) -> Option<&'a str> {
        self.0.first().copied()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains(&name)
    }

    /// The last type that is named.
    pub(crate) fn ty(&self) -> Option<ScalarType> {
        self.0.iter().rev().find_map(|name| ScalarType::from_name(name))
    }

    /// All types that are named.
    pub(crate) fn types(&self) -> Vec<ScalarType> {
        self.0.iter().filter_map(|name| ScalarType::from_name(name)).collect()
    }

    /// Elements of `.v2`, `.v4`, `.v8`; 1 without.
    pub(crate) fn vector(&self) -> u32 {
        self.0.iter().find_map(|name| name.strip_prefix('v')?.parse().ok()).unwrap_or(1)
    }

    /// The state space; generic without.
    pub(crate) fn space(&self) -> Space {
        let named = self.0.iter().find_map(|&name| {
            Some(match name {
                "global" | "const" => Space::Global,
                "shared" | "shared::cta" => Space::SharedCta,
                "shared::cluster" => Space::SharedCluster,
                "local" => Space::Local,
                "param" | "param::entry" | "param::func" => Space::Param,
                _ => return None,
            })
        });
        named.unwrap_or(Space::Generic)
    }
}
