//! A CUDA device: its context, its facts, its memory.

use crate::{
    error::{CudaError, driver},
    probe,
};
use cudarc::driver::{
    CudaContext, result,
    sys::{CUdevice_attribute, CUresult},
};
use nvfp4_core::{ComputeCapability, CudaFacts, DeviceFacts};
use std::sync::Arc;

/// A CUDA device with its primary context, which it shares with everything else in the process that uses the device
/// (candle, cudarc, cuBLAS …). Cheap to clone.
#[derive(Clone, Debug)]
pub struct Device {
    context: Arc<CudaContext>,
    facts: Arc<CudaFacts>,
}

impl Device {
    /// Device number `ordinal`. Errors: no driver, driver too old, no such device.
    pub fn new(ordinal: usize) -> Result<Self, CudaError> {
        let count = probe::device_count()?;
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        Self::from_context(driver("cuDevicePrimaryCtxRetain", CudaContext::new(ordinal))?)
    }

    /// The device of a cudarc context.
    pub(crate) fn from_context(context: Arc<CudaContext>) -> Result<Self, CudaError> {
        let driver_cuda = probe::driver_version()?;
        let (major, minor) = driver("cuDeviceGetAttribute", context.compute_capability())?;
        let number = |value: i32| u8::try_from(value).unwrap_or(0);
        let attribute = |a: CUdevice_attribute| -> Result<u32, CudaError> {
            Ok(u32::try_from(driver("cuDeviceGetAttribute", context.attribute(a))?).unwrap_or(0))
        };
        let mut facts = CudaFacts::new(ComputeCapability::new(number(major), number(minor)));
        facts.name = driver("cuDeviceGetName", context.name())?;
        facts.driver_cuda = Some(driver_cuda);
        facts.sm_count = Some(attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?);
        facts.shared_memory_optin =
            Some(attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?);
        facts.l2_bytes = Some(attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into());
        facts.memory_bytes = u64::try_from(driver("cuDeviceTotalMem", context.total_mem())?).ok();
        Ok(Self { context, facts: Arc::new(facts) })
    }

    /// What selection knows about the device.
    pub fn facts(&self) -> DeviceFacts {
        DeviceFacts::Cuda((*self.facts).clone())
    }

    /// Number of the device.
    pub fn ordinal(&self) -> usize {
        self.context.ordinal()
    }

    /// Compute capability.
    pub fn compute_capability(&self) -> ComputeCapability {
        self.facts.compute_capability
    }

    /// CUDA version that the driver supports, e.g. 13000 for 13.0.
    pub fn driver_cuda(&self) -> u32 {
        self.facts.driver_cuda.unwrap_or(0)
    }

    /// Name and compute capability, for messages.
    pub fn describe(&self) -> String {
        format!("{} ({})", self.facts.name, self.facts.compute_capability)
    }

    /// The context, made current on the calling thread. Every entry point does this, since callers with raw streams
    /// may come from any thread.
    pub(crate) fn bind(&self) -> Result<&Arc<CudaContext>, CudaError> {
        driver("cuCtxSetCurrent", self.context.bind_to_thread())?;
        Ok(&self.context)
    }

    /// Waits for all work of the device's context.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        driver("cuCtxSynchronize", self.bind()?.synchronize())
    }

    /// Bytes of device memory that are free.
    pub fn free_memory(&self) -> Result<usize, CudaError> {
        Ok(driver("cuMemGetInfo", self.bind()?.mem_get_info())?.0)
    }

    /// Turns the driver's out-of-memory code into an error with figures.
    pub(crate) fn explain_allocation(&self, bytes: usize, error: result::DriverError) -> CudaError {
        if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY
            && let Ok((free, total)) = self.context.mem_get_info()
        {
            return CudaError::OutOfMemory { bytes, free, total };
        }
        match driver::<()>("cuMemAlloc", Err(error)) {
            Err(error) => error,
            Ok(()) => CudaError::OutOfMemory { bytes, free: 0, total: 0 },
        }
    }
}
