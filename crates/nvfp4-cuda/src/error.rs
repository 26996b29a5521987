//! What can go wrong on the way to a GPU.

use crate::pack::PackError;

/// A fault of the driver, the device, a kernel pack or an operand.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no CUDA driver on this machine.
    #[error("no CUDA driver: {reason}; install an NVIDIA driver, or use the CPU backend")]
    NoDriver {
        /// What the system's loader or the driver said.
        reason: String,
    },
    /// The driver is too old.
    #[error(
        "the CUDA driver supports CUDA {}.{}, at least {}.{} is needed; update the NVIDIA driver",
        found / 1000, found % 1000 / 10, needed / 1000, needed % 1000 / 10
    )]
    DriverTooOld {
        /// Version of the driver, e.g. 12020 for 12.2.
        found: u32,
        /// Oldest version that works.
        needed: u32,
    },
    /// The device does not exist.
    #[error("no CUDA device {ordinal}; the driver shows {count}")]
    NoDevice {
        /// Device asked for.
        ordinal: usize,
        /// Devices that the driver shows.
        count: usize,
    },
    /// The device has not enough free memory.
    #[error("out of device memory: asked for {bytes} bytes, {free} of {total} are free")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes free on the device.
        free: usize,
        /// Bytes of the device.
        total: usize,
    },
    /// A driver call failed.
    #[error("{call}: {name} ({code}): {message}")]
    Driver {
        /// The call.
        call: &'static str,
        /// `CUresult` as a number.
        code: u32,
        /// Its name, e.g. `CUDA_ERROR_INVALID_VALUE`.
        name: String,
        /// The driver's own words.
        message: String,
    },
    /// An operation that allocates or synchronizes was asked for while the stream is being captured.
    #[error("{what} is not possible while a CUDA graph is being captured; do it before the capture")]
    Capturing {
        /// The operation.
        what: &'static str,
    },
    /// A kernel pack is missing, damaged, or for other GPUs.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// An operand has a wrong shape, type, alignment or address.
    #[error(transparent)]
    Operand(#[from] nvfp4_core::Error),
    /// A kernel gave a wrong answer to a question whose answer is known.
    #[error("device image does not work: kernel `{kernel}` on {device}: {detail}")]
    SelfTest {
        /// The kernel.
        kernel: String,
        /// The device.
        device: String,
        /// What was expected and found.
        detail: String,
    },
}

impl From<CudaError> for nvfp4_core::Error {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::Operand(error) => error,
            other => Self::Backend { backend: "cuda", message: other.to_string() },
        }
    }
}

/// Turns a cudarc result into ours, with the name of the call.
pub(crate) fn driver<T>(
    call: &'static str,
    result: Result<T, cudarc::driver::result::DriverError>,
) -> Result<T, CudaError> {
    result.map_err(|error| {
        let text = |r: Result<&std::ffi::CStr, _>| {
            r.map_or_else(|_| "unknown".to_string(), |s| s.to_string_lossy().into_owned())
        };
        CudaError::Driver {
            call,
            code: error.0 as u32,
            name: text(error.error_name()),
            message: text(error.error_string()),
        }
    })
}
