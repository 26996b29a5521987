//! The device, the kernels and the data that the tests share.

use nvfp4_core::DType;
use nvfp4_cuda::{CudaError, Device, DeviceBuffer, DeviceMatrix, Quantizer, pack};
use std::sync::Arc;

/// What a test is given.
#[derive(Clone)]
pub(crate) struct Gpu {
    pub(crate) device: Device,
    pub(crate) quantizer: Arc<Quantizer>,
}

/// The first device with its kernels, or why there is none.
pub(crate) fn gpu() -> Result<Gpu, CudaError> {
    let device = Device::new(0)?;
    let quantizer = Quantizer::load(&device, &pack::search_path())?;
    Ok(Gpu { device, quantizer: Arc::new(quantizer) })
}

/// Random numbers from a seed (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    pub(crate) fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }
    /// Roughly normal, standard deviation 1.
    pub(crate) fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }
}

/// A seed that is new on each run, printed by failing tests; `NVFP4_SEED` repeats one.
pub(crate) fn seed() -> u64 {
    std::env::var("NVFP4_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64)
    })
}

/// Bytes of `value` in `dtype`.
pub(crate) fn encode(dtype: DType, value: f32) -> Vec<u8> {
    match dtype {
        DType::Bf16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    }
}

/// `value` rounded to `dtype`.
pub(crate) fn round(dtype: DType, value: f32) -> f32 {
    match dtype {
        DType::Bf16 => half::bf16::from_f32(value).to_f32(),
        DType::F16 => half::f16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// A `[rows, cols]` activation on the host and the device: rows `row_stride` apart, the first element `offset`
/// elements into the buffer, everything that is not an element of the matrix NaN.
pub(crate) struct Activation {
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) values: Vec<f32>,
    buffer: DeviceBuffer,
    row_stride: usize,
    offset: usize,
}

impl Activation {
    pub(crate) fn new(
        gpu: &Gpu,
        dtype: DType,
        (rows, cols): (usize, usize),
        (row_stride, offset): (usize, usize),
        mut value: impl FnMut(usize, usize) -> f32,
    ) -> Self {
        let values: Vec<f32> = (0..rows * cols).map(|i| round(dtype, value(i / cols, i % cols))).collect();
        let mut host = encode(dtype, f32::NAN).repeat(offset + rows * row_stride + 64);
        for (i, &v) in values.iter().enumerate() {
            let at = (offset + i / cols * row_stride + i % cols) * dtype.size();
            host[at..at + dtype.size()].copy_from_slice(&encode(dtype, v));
        }
        let buffer = DeviceBuffer::from_host(&gpu.device, &host).unwrap();
        Self { dtype, rows, cols, values, buffer, row_stride, offset }
    }

    pub(crate) fn dense(
        gpu: &Gpu,
        dtype: DType,
        rows: usize,
        cols: usize,
        value: impl FnMut(usize, usize) -> f32,
    ) -> Self {
        Self::new(gpu, dtype, (rows, cols), (cols, 0), value)
    }

    pub(crate) fn matrix(&self) -> DeviceMatrix<'_> {
        let address = self.buffer.address() + (self.offset * self.dtype.size()) as u64;
        // SAFETY: the buffer holds the matrix and lives as long as the borrow; nothing writes it.
        unsafe { DeviceMatrix::from_raw(address, self.dtype, self.rows, self.cols, self.row_stride) }
    }
}
