//! Looks for the CUDA driver without touching cudarc, which panics where there is none.

use crate::error::CudaError;
use std::{
    ffi::{c_int, c_uint},
    sync::OnceLock,
};

/// Oldest driver that is used: CUDA 12.0, whose entry points everything here calls.
pub const OLDEST_DRIVER: u32 = 12000;

const NAMES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// Version of the CUDA driver, e.g. 13000 for 13.0, after initializing it; or why there is none. Never panics; the
/// answer is kept for the life of the process.
pub fn driver_version() -> Result<u32, CudaError> {
    static ANSWER: OnceLock<Result<u32, String>> = OnceLock::new();
    let version = ANSWER.get_or_init(probe).clone().map_err(|reason| CudaError::NoDriver { reason })?;
    if version < OLDEST_DRIVER {
        return Err(CudaError::DriverTooOld { found: version, needed: OLDEST_DRIVER });
    }
    Ok(version)
}

fn probe() -> Result<u32, String> {
    let mut reasons = Vec::new();
    for name in NAMES {
        // SAFETY: loading the driver runs its initializers; it is made to be loaded by any process.
        match unsafe { libloading::Library::new(*name) } {
            Ok(library) => {
                let version = ask(&library);
                // The driver starts threads: it must stay loaded.
                std::mem::forget(library);
                return version;
            }
            Err(error) => reasons.push(error.to_string()),
        }
    }
    Err(reasons.join("; "))
}

fn ask(library: &libloading::Library) -> Result<u32, String> {
    type Init = unsafe extern "C" fn(c_uint) -> c_int;
    type Version = unsafe extern "C" fn(*mut c_int) -> c_int;
    let missing = |e: libloading::Error| e.to_string();
    // SAFETY: both signatures are the driver API's, unchanged since its first version.
    let (init, version) = unsafe {
        (
            library.get::<Init>(b"cuInit\0").map_err(missing)?,
            library.get::<Version>(b"cuDriverGetVersion\0").map_err(missing)?,
        )
    };
    // SAFETY: cuInit may be called at any time, any number of times; flags must be 0.
    match unsafe { init(0) } {
        0 => {}
        100 => return Err("the driver is there, but shows no device (CUDA_ERROR_NO_DEVICE)".into()),
        code => return Err(format!("the driver is there, but cuInit failed with code {code}")),
    }
    let mut number: c_int = 0;
    // SAFETY: the pointer is valid for a write of an int.
    match unsafe { version(&mut number) } {
        0 => u32::try_from(number).map_err(|_| format!("cuDriverGetVersion says {number}")),
        code => Err(format!("cuDriverGetVersion failed with code {code}")),
    }
}

/// Number of devices that the driver shows.
pub fn device_count() -> Result<usize, CudaError> {
    driver_version()?;
    let count = crate::error::driver("cuDeviceGetCount", cudarc::driver::result::device::get_count())?;
    Ok(usize::try_from(count).unwrap_or(0))
}
