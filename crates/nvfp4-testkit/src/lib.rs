//! Golden data, random inputs, the conformance suite that every backend must pass, and broken backends that must
//! fail it.

pub mod broken;
pub mod conformance;
pub mod coverage;
pub mod golden;
pub mod layers;
pub mod matrices;
pub mod oracle;
pub mod random;

mod implementation;

pub use implementation::{HostMemory, Implementation, Input, Kernel, LoadedLayer, TestMemory};
