//! What the backends share whose kernels are CuTe DSL programs, compiled ahead of time: what a configuration is, what
//! a pack says about each kernel, and how such kernels are launched.
//!
//! A CuTe DSL program exports, beside its kernel, a host function that packs tensor maps and parameters and launches.
//! The product does without it (it is compiled for the build machine's CPU and needs the vendor's runtime): the same
//! is computed here. The host function is the oracle that this is compared with, byte for byte, when packs are built
//! and in the tests: [`record`].

pub mod configuration;
pub mod divisor;
pub mod launch;
pub mod recipe;
pub mod record;

pub use configuration::{Configuration, KernelFacts, L2Policy, Output, Program};
pub use launch::{Launch, Problem};
pub use recipe::Recipe;
pub use record::Addresses;
