//! What is wrong with a kernel: what happened, and where.
//!
//! Memories and instructions return a [`Cause`]; they know addresses and values. Whoever executes the instruction knows kernel, line,
//! CTA and thread, and makes a [`Fault`] of it.

use crate::tensor_fault::TensorFault;
use std::fmt;

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// An access outside every allocation, or outside a CTA's shared memory.
    OutOfBounds,
    /// An address that is not a multiple of what the access needs.
    Misaligned,
    /// An access to an allocation that was freed.
    UseAfterFree,
    /// A read of bytes or tensor memory that nothing wrote.
    Uninitialised,
    /// Two accesses with nothing between them that orders them, or a proxy fence that is missing.
    Race,
    /// No thread can go on: each waits for something that nobody will do.
    Deadlock,
    /// An mbarrier or a named barrier used against its rules.
    Barrier,
    /// A tensor map that breaks a rule, or a copy that does not fit it.
    TensorMap,
    /// A descriptor, selector or operand with a value that it cannot have.
    Descriptor,
    /// A misuse of tensor memory: its allocation, its lanes or columns.
    TensorMemory,
    /// Threads that had to execute an instruction together did not.
    Convergence,
    /// PTX that the simulator does not model.
    Unsupported,
    /// The kernel executed `trap`.
    Trap,
    /// The kernel ran longer than the limit that was set.
    Timeout,
    /// A launch that the kernel or the device does not allow.
    BadLaunch,
}

impl FaultKind {
    /// The kind, as the start of a message.
    pub const fn title(self) -> &'static str {
        match self {
            Self::OutOfBounds => "out of bounds",
            Self::Misaligned => "misaligned address",
            Self::UseAfterFree => "use after free",
            Self::Uninitialised => "read of what nothing wrote",
            Self::Race => "race",
            Self::Deadlock => "deadlock",
            Self::Barrier => "misused barrier",
            Self::TensorMap => "bad tensor map",
            Self::Descriptor => "bad descriptor or operand",
            Self::TensorMemory => "misused tensor memory",
            Self::Convergence => "threads not together",
            Self::Unsupported => "not modelled",
            Self::Trap => "trap",
            Self::Timeout => "time limit",
            Self::BadLaunch => "bad launch",
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.title())
    }
}

/// A fault whose place is not known yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct Cause {
    /// Its kind.
    pub kind: FaultKind,
    /// What was found, and what was expected.
    pub message: String,
}

impl Cause {
    /// A cause from its kind and what was found and expected.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

impl From<TensorFault> for Cause {
    fn from(fault: TensorFault) -> Self {
        let (kind, message) = match fault {
            TensorFault::OutOfBounds(message) => (FaultKind::OutOfBounds, message),
            TensorFault::Misaligned(message) => (FaultKind::Misaligned, message),
            TensorFault::Uninitialised(message) => (FaultKind::Uninitialised, message),
            TensorFault::BadDescriptor(message) => (FaultKind::Descriptor, message),
            TensorFault::BadTensorMap(message) => (FaultKind::TensorMap, message),
            TensorFault::TensorMemory(message) => (FaultKind::TensorMemory, message),
        };
        Self { kind, message }
    }
}

/// A fault of a kernel, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its kind.
    pub kind: FaultKind,
    /// What was found, and what was expected.
    pub message: String,
    /// The kernel.
    pub kernel: String,
    /// Line of the PTX, from 1; 0 if the fault belongs to no line.
    pub line: u32,
    /// Index of the CTA in the grid.
    pub cta: [u32; 3],
    /// Index of the thread in the CTA; `None` if the fault belongs to no single thread.
    pub thread: Option<[u32; 3]>,
}

impl Fault {
    /// A fault of a launch that never began: it has no line and no thread.
    pub fn of_launch(kernel: &str, cause: Cause) -> Self {
        Self { kind: cause.kind, message: cause.message, kernel: kernel.into(), line: 0, cta: [0; 3], thread: None }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; in kernel `{}`", self.kind, self.message, self.kernel)?;
        if self.line == 0 {
            return Ok(());
        }
        let [x, y, z] = self.cta;
        write!(f, ", PTX line {}, CTA ({x}, {y}, {z})", self.line)?;
        match self.thread {
            Some([x, y, z]) => write!(f, ", thread ({x}, {y}, {z})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_says_what_and_where() {
        let mut fault = Fault {
            kind: FaultKind::OutOfBounds,
            message: "read of 4 bytes at 0x110, the end of 16 bytes at 0x100".into(),
            kernel: "copy".into(),
            line: 12,
            cta: [1, 2, 3],
            thread: Some([31, 0, 0]),
        };
        assert_eq!(
            fault.to_string(),
            "out of bounds: read of 4 bytes at 0x110, the end of 16 bytes at 0x100; in kernel `copy`, PTX line 12, \
             CTA (1, 2, 3), thread (31, 0, 0)"
        );
        fault.thread = None;
        assert!(fault.to_string().ends_with("CTA (1, 2, 3)"));
        let launch = Fault::of_launch("copy", Cause::new(FaultKind::BadLaunch, "no threads"));
        assert_eq!(launch.to_string(), "bad launch: no threads; in kernel `copy`");
    }

    #[test]
    fn tensor_faults_keep_kind_and_message() {
        let cause = Cause::from(TensorFault::BadTensorMap("rank 9".into()));
        assert_eq!(cause, Cause::new(FaultKind::TensorMap, "rank 9"));
        assert_eq!(cause.to_string(), "bad tensor map: rank 9");
    }
}
