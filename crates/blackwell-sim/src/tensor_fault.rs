//! What tensor instructions and tensor maps find wrong. They know operands and matrices but not the kernel, line and thread; whoever
//! executes the instruction adds those.

use thiserror::Error;

/// A fault of a tensor instruction's operands or data.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TensorFault {
    /// An access outside a memory.
    #[error("out of bounds: {0}")]
    OutOfBounds(String),
    /// An address that is not aligned as the instruction needs it.
    #[error("misaligned: {0}")]
    Misaligned(String),
    /// A read of what nothing wrote.
    #[error("uninitialised: {0}")]
    Uninitialised(String),
    /// A matrix or instruction descriptor, selector or operand with a value that it cannot have, or that is not modelled.
    #[error("bad descriptor or operand: {0}")]
    BadDescriptor(String),
    /// A tensor map, or parameters for one, that break a rule.
    #[error("bad tensor map: {0}")]
    BadTensorMap(String),
    /// A misuse of tensor memory: its allocation, or lanes that a warp cannot reach.
    #[error("tensor memory: {0}")]
    TensorMemory(String),
}
