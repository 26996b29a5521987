//! What vLLM 0.33.0 (with FlashInfer 0.7.2.post1) would do with an NVFP4 linear layer, as pure functions over
//! plain data. Nothing here runs a kernel, and nothing else in this workspace depends on it: it answers users who
//! compare.
//!
//! * [`KERNELS`] are vLLM's fourteen kernel classes in the order in which it tries them, and
//!   [`Kernel::is_supported`] says where each claims to run;
//! * [`init_nvfp4_linear_kernel`] is the choice, with the error text and the log lines;
//! * [`process_weights_after_loading`] and [`apply_weights`] are the tensors that a FlashInfer kernel prepares and
//!   the calls that it makes.
//!
//! Upstream's quirks are kept on purpose: the TensorRT-LLM and cuDNN classes claim to run on any GPU, for instance,
//! so that automatic selection on a V100 takes TensorRT-LLM, which then fails. What this library does itself is in
//! [`select`](mod@crate::select) and [`requirements`](crate::requirements).

mod kernels;
mod selection;
mod trace;

pub use kernels::{Environment, KERNELS, Kernel, Platform};
pub use selection::{LogLine, Request, Selection, init_nvfp4_linear_kernel};
pub use trace::{
    Applied, Call, GemmOperands, PreparedLayer, TensorInfo, TorchDType, apply_weights,
    process_weights_after_loading,
};

use alloc::string::String;
use core::fmt;

/// A Python exception.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct Exception {
    /// The class, e.g. `ValueError`.
    pub kind: &'static str,
    /// The text, empty for a bare `assert`.
    pub message: String,
}

impl Exception {
    fn new(kind: &'static str, message: impl fmt::Display) -> Self {
        Self { kind, message: alloc::format!("{message}") }
    }
}
