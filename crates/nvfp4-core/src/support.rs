//! Reasons why a backend cannot run a layer. Each says what is needed and what was found.

use crate::{device::ComputeCapability, dtype::DType, layer::ActivationScheme};
use alloc::{string::String, vec::Vec};
use core::fmt;

/// Why a backend cannot run a layer. The variant is the kind of reason (for programs); the text is for people.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// The device is of another kind or architecture.
    #[error("needs {needed}, this device is {found}")]
    Device {
        /// Devices that are accepted, e.g. `sm_100 | sm_103` or `a CPU`.
        needed: String,
        /// This device.
        found: String,
    },
    /// The device is right, but no kernel image for it is in the pack that was found.
    #[error(
        "no kernel image for {device} ({}); build one with `cargo xtask build-kernels --backend {backend} --arch {device}`",
        Images(packaged)
    )]
    NotBuilt {
        /// Name of the backend.
        backend: &'static str,
        /// This device.
        device: ComputeCapability,
        /// Images in the pack, e.g. `sm_120a`; empty if there is no pack.
        packaged: Vec<String>,
    },
    /// A kernel pack that the backend needs is missing or damaged, in the words of whoever looked for it.
    #[error("{0}")]
    KernelPack(String),
    /// A shared library is missing or too old.
    #[error("needs {library} >= {needed}, found {}", found.as_deref().unwrap_or("none"))]
    Library {
        /// e.g. `cuDNN`.
        library: &'static str,
        /// Oldest version that works.
        needed: String,
        /// Version that was found.
        found: Option<String>,
    },
    /// The driver is missing or too old.
    #[error("needs a driver for CUDA {needed}, found {}", found.as_deref().unwrap_or("none"))]
    Driver {
        /// Oldest CUDA version that works.
        needed: String,
        /// CUDA version of the driver.
        found: Option<String>,
    },
    /// A dimension is not a multiple of what the kernel needs, and padding cannot help.
    #[error("{dimension} must be a multiple of {multiple}, this layer has {found}")]
    Shape {
        /// `n (output features)` or `k (input features)`.
        dimension: &'static str,
        /// Required divisor.
        multiple: usize,
        /// Value of the layer.
        found: usize,
    },
    /// The number of rows is outside what the kernel runs.
    #[error("runs {needed} rows, asked for {found}")]
    Rows {
        /// Accepted rows, e.g. `1..=32`.
        needed: String,
        /// Rows asked for.
        found: usize,
    },
    /// The kernel treats activations otherwise than the layer asks.
    #[error("computes {offered}, the layer is {asked}")]
    Scheme {
        /// What the kernel computes.
        offered: &'static str,
        /// What the layer is.
        asked: ActivationScheme,
    },
    /// The kernel does not take or give this element type.
    #[error("{operand} must be {needed}, asked for {found}")]
    DType {
        /// `input` or `output`.
        operand: &'static str,
        /// Types that work, e.g. `bf16`.
        needed: &'static str,
        /// Type asked for.
        found: DType,
    },
    /// The kernel takes one global scale, the (fused) layer has several.
    #[error("takes one weight global scale, the layer has one for each of several row ranges")]
    PerRowScale,
    /// The kernel's results depend on the number of rows.
    #[error("is not batch-invariant")]
    BatchInvariance,
    /// The kernel gave wrong answers on this device, or is known to.
    #[error("quarantined on this device: {0}")]
    Quarantined(String),
    /// Switched off by the user.
    #[error("disabled by {0}")]
    Disabled(String),
    /// Not part of this build.
    #[error("not compiled in; enable the cargo feature `{0}`")]
    Feature(&'static str),
    /// Not part of this release.
    #[error("not available in this release of nvfp4")]
    NotReleased,
}

struct Images<'a>(&'a [String]);

impl fmt::Display for Images<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no kernel pack found");
        }
        f.write_str("images present: ")?;
        for (i, image) in self.0.iter().enumerate() {
            write!(f, "{}{image}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}
