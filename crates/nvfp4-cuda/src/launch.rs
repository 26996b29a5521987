//! Kernels: loading an image's bytes, and launching with the attributes that our kernels need.

use crate::{
    device::Device,
    error::{CudaError, driver},
    stream::StreamRef,
};
use cudarc::driver::{result, sys};
use std::{
    ffi::{CString, c_void},
    fmt,
    sync::Arc,
};

/// A loaded image (cubin). Kernels keep it loaded.
pub struct Module {
    device: Device,
    raw: sys::CUmodule,
}

// SAFETY: a module handle may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above; nothing is mutated.
unsafe impl Sync for Module {}

impl Module {
    /// Loads an image from its bytes, which [`Pack::read_image`](crate::pack::Pack::read_image) has verified.
    pub fn load(device: &Device, image: &[u8]) -> Result<Arc<Self>, CudaError> {
        device.bind()?;
        // cuModuleLoadData takes no length: a cubin carries its own, but it must be aligned like an ELF header.
        let mut aligned = vec![0u64; image.len().div_ceil(8) + 1];
        for (word, bytes) in aligned.iter_mut().zip(image.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(padded);
        }
        // SAFETY: the image is a whole cubin (its hash was checked) followed by zeros; the driver copies what it needs.
        let raw = driver("cuModuleLoadData", unsafe { result::module::load_data(aligned.as_ptr().cast()) })?;
        Ok(Arc::new(Self { device: device.clone(), raw }))
    }

    /// A kernel of the image.
    pub fn kernel(self: &Arc<Self>, symbol: &str) -> Result<Kernel, CudaError> {
        self.device.bind()?;
        let name = CString::new(symbol).map_err(|_| CudaError::Driver {
            call: "cuModuleGetFunction",
            code: sys::CUresult::CUDA_ERROR_NOT_FOUND as u32,
            name: "CUDA_ERROR_NOT_FOUND".into(),
            message: format!("the symbol {symbol:?} holds a zero byte"),
        })?;
        // SAFETY: the module is loaded.
        let raw = driver("cuModuleGetFunction", unsafe { result::module::get_function(self.raw, name) })?;
        Ok(Kernel { module: self.clone(), raw })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: no kernel of the module is left, since each holds an `Arc` of it.
            let _ = unsafe { result::module::unload(self.raw) };
        }
    }
}

/// A kernel, ready to launch.
#[derive(Clone)]
pub struct Kernel {
    module: Arc<Module>,
    raw: sys::CUfunction,
}

// SAFETY: a function handle may be used from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above; nothing is mutated.
unsafe impl Sync for Kernel {}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({:?})", self.raw)
    }
}

/// How to launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaunchConfig {
    /// CTAs along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a CTA along x, y, z.
    pub block: [u32; 3],
    /// CTAs of a cluster along x, y, z; `[1, 1, 1]` for none.
    pub cluster: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared_memory: u32,
    /// The kernel may start before the previous one in the stream has ended (programmatic dependent launch); it then
    /// waits by itself for what it reads. Needs compute capability 9.0.
    pub overlap_previous: bool,
}

impl Kernel {
    /// Lets the kernel use that much dynamic shared memory, bytes; needed above 48 KiB. Errors: more than the device has.
    pub fn allow_shared_memory(&self, bytes: u32) -> Result<(), CudaError> {
        self.module.device.bind()?;
        let most = i32::try_from(bytes).unwrap_or(i32::MAX);
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the kernel is loaded.
        driver("cuFuncSetAttribute", unsafe { result::function::set_function_attribute(self.raw, attribute, most) })
    }

    /// Enqueues the kernel.
    ///
    /// # Safety
    /// `parameters` point to values of the types and in the order of the kernel's parameters, and what they refer to
    /// fits the kernel's accesses.
    pub unsafe fn launch(
        &self,
        stream: StreamRef<'_>,
        config: &LaunchConfig,
        parameters: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        self.module.device.bind()?;
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut attributes: [sys::CUlaunchAttribute; 2] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        if config.cluster != [1, 1, 1] {
            attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            let [x, y, z] = config.cluster;
            attributes[count].value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
            count += 1;
        }
        if config.overlap_previous {
            attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes[count].value.programmaticStreamSerializationAllowed = 1;
            count += 1;
        }
        let launch = sys::CUlaunchConfig {
            gridDimX: config.grid[0],
            gridDimY: config.grid[1],
            gridDimZ: config.grid[2],
            blockDimX: config.block[0],
            blockDimY: config.block[1],
            blockDimZ: config.block[2],
            sharedMemBytes: config.shared_memory,
            hStream: stream.cu_stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        };
        // SAFETY: the kernel is loaded, the structs live through the call, the parameters are the caller's promise.
        let status =
            unsafe { sys::cuLaunchKernelEx(&launch, self.raw, parameters.as_mut_ptr(), std::ptr::null_mut()) };
        driver("cuLaunchKernelEx", status.result())
    }
}
