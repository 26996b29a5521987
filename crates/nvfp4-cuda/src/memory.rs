//! Device memory: owned buffers, and operands that borrow cudarc's or anybody's allocations.

use crate::{
    device::Device,
    error::{CudaError, driver},
    stream::StreamRef,
};
use cudarc::driver::{result, sys};
use nvfp4_core::{DType, Error, Memory};
use std::{fmt, marker::PhantomData};

/// CUDA device memory, as a kind of [`Memory`] for the kernel contract.
#[derive(Debug)]
pub enum Cuda {}

impl Memory for Cuda {
    type Stream<'a> = StreamRef<'a>;
    type Matrix<'a> = DeviceMatrix<'a>;
    type MatrixMut<'a> = DeviceMatrixMut<'a>;
    type Vector<'a> = DeviceVector<'a>;
    type Workspace<'a> = DeviceBytesMut<'a>;
    type Buffer = DeviceBuffer;
    type Context = Device;
}

/// An owned allocation. Allocating and freeing synchronize with the device and are not legal while a graph is being
/// captured in global mode: make buffers before, drop them after.
pub struct DeviceBuffer {
    device: Device,
    address: u64,
    len: usize,
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({:#x}, {} bytes)", self.address, self.len)
    }
}

impl DeviceBuffer {
    /// `len` bytes of which nothing is known, aligned to 256 bytes. Zero bytes allocate nothing.
    pub fn new(device: &Device, len: usize) -> Result<Self, CudaError> {
        device.bind()?;
        let address = if len == 0 {
            0
        } else {
            // SAFETY: a plain allocation, freed in `drop`.
            unsafe { result::malloc_sync(len) }.map_err(|e| device.explain_allocation(len, e))?
        };
        Ok(Self { device: device.clone(), address, len })
    }

    /// A buffer with the same bytes as `bytes`. Returns when the copy is done.
    pub fn from_host(device: &Device, bytes: &[u8]) -> Result<Self, CudaError> {
        let mut buffer = Self::new(device, bytes.len())?;
        buffer.write(bytes)?;
        Ok(buffer)
    }

    /// Replaces all bytes. Waits for all work of the device first, returns when the copy is done.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), CudaError> {
        if bytes.len() != self.len {
            let (expected, found) = (self.len, bytes.len());
            return Err(Error::Size { what: "bytes for the device buffer", expected, found }.into());
        }
        if bytes.is_empty() {
            return Ok(());
        }
        self.device.synchronize()?;
        // SAFETY: the buffer holds exactly `bytes.len()` bytes.
        driver("cuMemcpyHtoD", unsafe { result::memcpy_htod_sync(self.address, bytes) })
    }

    /// The bytes. Waits for all work of the device first.
    pub fn to_host(&self) -> Result<Vec<u8>, CudaError> {
        self.device.synchronize()?;
        let mut bytes = vec![0; self.len];
        if self.len > 0 {
            // SAFETY: the buffer holds exactly `bytes.len()` bytes.
            driver("cuMemcpyDtoH", unsafe { result::memcpy_dtoh_sync(&mut bytes, self.address) })?;
        }
        Ok(bytes)
    }

    /// Sets all bytes, in stream order.
    pub fn fill(&mut self, stream: StreamRef<'_>, byte: u8) -> Result<(), CudaError> {
        if self.len == 0 {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: the buffer holds `len` bytes and is borrowed mutably.
        driver("cuMemsetD8Async", unsafe {
            result::memset_d8_async(self.address, byte, self.len, stream.cu_stream())
        })
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }
    /// True if there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The device address; 0 if the buffer is empty.
    pub const fn address(&self) -> u64 {
        self.address
    }
    /// All bytes, to write.
    pub const fn as_bytes_mut(&mut self) -> DeviceBytesMut<'_> {
        DeviceBytesMut { address: self.address, len: self.len, owner: PhantomData }
    }
    /// The buffer as a dense `[rows, cols]` matrix.
    pub fn as_matrix(&self, dtype: DType, rows: usize, cols: usize) -> Result<DeviceMatrix<'_>, Error> {
        DeviceMatrix::checked(self.address, self.len, dtype, rows, cols, cols)
    }
    /// The buffer as a `[rows, cols]` matrix whose rows lie `row_stride` elements apart.
    pub fn as_strided_matrix(
        &self,
        dtype: DType,
        rows: usize,
        cols: usize,
        row_stride: usize,
    ) -> Result<DeviceMatrix<'_>, Error> {
        DeviceMatrix::checked(self.address, self.len, dtype, rows, cols, row_stride)
    }
    /// The buffer as a dense `[rows, cols]` matrix to write.
    pub fn as_matrix_mut(&mut self, dtype: DType, rows: usize, cols: usize) -> Result<DeviceMatrixMut<'_>, Error> {
        DeviceMatrix::checked(self.address, self.len, dtype, rows, cols, cols).map(|m| DeviceMatrixMut(m.of()))
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.address != 0 && self.device.bind().is_ok() {
            // SAFETY: the allocation is ours and not used after this. cuMemFree waits for work that uses it; a failure
            // cannot be reported from here.
            let _ = unsafe { result::free_sync(self.address as sys::CUdeviceptr) };
        }
    }
}

/// Bytes of device memory to write, e.g. a workspace.
#[derive(Debug)]
pub struct DeviceBytesMut<'a> {
    address: u64,
    len: usize,
    owner: PhantomData<&'a mut ()>,
}

impl DeviceBytesMut<'_> {
    /// Memory of another library.
    ///
    /// # Safety
    /// `len` bytes at `address` are device memory that nothing else reads or writes for `'a` and until the work that
    /// is given them has run.
    pub const unsafe fn from_raw(address: u64, len: usize) -> Self {
        Self { address, len, owner: PhantomData }
    }
    /// The device address.
    pub const fn address(&self) -> u64 {
        self.address
    }
    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }
    /// True if there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A `[rows, cols]` matrix in device memory. Row `r` starts at element `r * row_stride`.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMatrix<'a> {
    address: u64,
    dtype: DType,
    rows: usize,
    cols: usize,
    row_stride: usize,
    owner: PhantomData<&'a ()>,
}

impl<'a> DeviceMatrix<'a> {
    /// A matrix in memory of another library.
    ///
    /// # Safety
    /// The elements are initialized device memory that nothing writes for `'a` and until the work that is given them
    /// has run.
    pub const unsafe fn from_raw(address: u64, dtype: DType, rows: usize, cols: usize, row_stride: usize) -> Self {
        Self { address, dtype, rows, cols, row_stride, owner: PhantomData }
    }

    fn checked(
        address: u64,
        bytes: usize,
        dtype: DType,
        rows: usize,
        cols: usize,
        row_stride: usize,
    ) -> Result<Self, Error> {
        if row_stride < cols {
            return Err(Error::Size { what: "row stride", expected: cols, found: row_stride });
        }
        let expected = match rows {
            0 => 0,
            _ => (rows - 1)
                .checked_mul(row_stride)
                .and_then(|v| v.checked_add(cols))
                .and_then(|v| v.checked_mul(dtype.size()))
                .ok_or(Error::Overflow { what: "matrix bytes" })?,
        };
        if bytes < expected {
            return Err(Error::Size { what: "matrix bytes", expected, found: bytes });
        }
        Ok(Self { address, dtype, rows, cols, row_stride, owner: PhantomData })
    }

    /// The same matrix with another lifetime; for use where the caller's borrow already guarantees it.
    const fn of<'b>(self) -> DeviceMatrix<'b> {
        DeviceMatrix {
            address: self.address,
            dtype: self.dtype,
            rows: self.rows,
            cols: self.cols,
            row_stride: self.row_stride,
            owner: PhantomData,
        }
    }

    /// Device address of the first element.
    pub const fn address(&self) -> u64 {
        self.address
    }
    /// Element type.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }
    /// Number of rows.
    pub const fn rows(&self) -> usize {
        self.rows
    }
    /// Number of columns.
    pub const fn cols(&self) -> usize {
        self.cols
    }
    /// Elements from one row to the next.
    pub const fn row_stride(&self) -> usize {
        self.row_stride
    }
}

/// A `[rows, cols]` matrix in device memory, to write.
#[derive(Debug)]
pub struct DeviceMatrixMut<'a>(DeviceMatrix<'a>);

impl<'a> DeviceMatrixMut<'a> {
    /// A matrix in memory of another library.
    ///
    /// # Safety
    /// The elements are device memory that nothing else reads or writes for `'a` and until the work that is given
    /// them has run.
    pub const unsafe fn from_raw(address: u64, dtype: DType, rows: usize, cols: usize, row_stride: usize) -> Self {
        // SAFETY: passed on to the caller.
        Self(unsafe { DeviceMatrix::from_raw(address, dtype, rows, cols, row_stride) })
    }

    /// The matrix, to read.
    pub const fn as_matrix(&self) -> DeviceMatrix<'_> {
        self.0
    }
}

/// `len` f32 values in device memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceVector<'a> {
    address: u64,
    len: usize,
    owner: PhantomData<&'a ()>,
}

impl DeviceVector<'_> {
    /// A vector in memory of another library.
    ///
    /// # Safety
    /// As for [`DeviceMatrix::from_raw`].
    pub const unsafe fn from_raw(address: u64, len: usize) -> Self {
        Self { address, len, owner: PhantomData }
    }
    /// Device address of the first value.
    pub const fn address(&self) -> u64 {
        self.address
    }
    /// Values.
    pub const fn len(&self) -> usize {
        self.len
    }
    /// True if there are no values.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}
