//! Golden data, random inputs, the conformance suite that every backend must pass, and a broken backend that
//! must fail it.

pub mod golden;
