//! The device codecs, held against their definitions. For the GPU tests: the kernels of `kernels/codec_check.cu`.

use crate::{
    device::Device,
    error::CudaError,
    launch::{Kernel, LaunchConfig, Module},
    memory::DeviceBuffer,
    pack,
    stream::Stream,
};
use std::{ffi::c_void, path::PathBuf};

/// Name of the pack.
pub const BACKEND: &str = "codec-check";
/// Revision of the kernels' interface.
pub const REVISION: u32 = 1;
/// Every symbol that the pack must have.
pub const SYMBOLS: [&str; 3] = ["nvfp4_check_codecs", "nvfp4_rcp", "nvfp4_decode_tables"];

/// The checking kernels, loaded for one device.
#[derive(Debug)]
pub struct Codecs {
    device: Device,
    check: Kernel,
    rcp: Kernel,
    decode_tables: Kernel,
}

fn config(grid: u32, threads: u32) -> LaunchConfig {
    LaunchConfig {
        grid: [grid, 1, 1],
        block: [threads, 1, 1],
        cluster: [1, 1, 1],
        shared_memory: 0,
        overlap_previous: false,
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

impl Codecs {
    /// Finds, verifies and loads the pack.
    pub fn load(device: &Device, roots: &[PathBuf]) -> Result<Self, CudaError> {
        let (_, _, bytes) = pack::find_pack(roots, BACKEND, REVISION, device.compute_capability())?;
        let module = Module::load(device, &bytes)?;
        let [check, rcp, decode_tables] = SYMBOLS;
        Ok(Self {
            device: device.clone(),
            check: module.kernel(check)?,
            rcp: module.kernel(rcp)?,
            decode_tables: module.kernel(decode_tables)?,
        })
    }

    /// How many of all f32 are encoded otherwise than the definition says: to e2m1, to e4m3.
    pub fn mismatches(&self) -> Result<(u32, u32), CudaError> {
        let stream = Stream::new(&self.device)?;
        let counts = DeviceBuffer::from_host(&self.device, &[0; 8])?;
        // 256 launches of 2^24 values.
        for part in 0..256u32 {
            let (mut first, mut to) = (part << 24, counts.address());
            let mut parameters = [(&raw mut first).cast::<c_void>(), (&raw mut to).cast::<c_void>()];
            // SAFETY: the kernel takes a u32 and a pointer to two counters.
            unsafe { self.check.launch(stream.as_ref(), &config(1 << 16, 256), &mut parameters)? };
        }
        let host = counts.to_host()?;
        let word = |i: usize| host.iter().skip(4 * i).take(4).rev().fold(0, |v, &b| v << 8 | u32::from(b));
        Ok((word(0), word(1)))
    }

    /// `rcp.approx.ftz.f32` of each value.
    pub fn rcp(&self, values: &[f32]) -> Result<Vec<f32>, CudaError> {
        let stream = Stream::new(&self.device)?;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let buffer = DeviceBuffer::from_host(&self.device, &bytes)?;
        let mut count = u32::try_from(values.len())
            .map_err(|_| CudaError::Operand(nvfp4_core::Error::Overflow { what: "values" }))?;
        let mut address = buffer.address();
        let mut parameters = [(&raw mut address).cast::<c_void>(), (&raw mut count).cast::<c_void>()];
        // SAFETY: the kernel takes a pointer to `count` f32 and the count.
        unsafe { self.rcp.launch(stream.as_ref(), &config(count.div_ceil(128).max(1), 128), &mut parameters)? };
        Ok(floats(&buffer.to_host()?))
    }

    /// Values of the 128 non-negative e4m3 bytes, then of the 16 e2m1 codes.
    pub fn decode_tables(&self) -> Result<Vec<f32>, CudaError> {
        let stream = Stream::new(&self.device)?;
        let buffer = DeviceBuffer::new(&self.device, 144 * 4)?;
        let mut address = buffer.address();
        let mut parameters = [(&raw mut address).cast::<c_void>()];
        // SAFETY: the kernel takes a pointer to 144 f32 and runs with 128 threads.
        unsafe { self.decode_tables.launch(stream.as_ref(), &config(1, 128), &mut parameters)? };
        Ok(floats(&buffer.to_host()?))
    }
}
