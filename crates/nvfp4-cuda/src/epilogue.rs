//! What is left to do after a GEMM, with the kernels of `kernels/epilogue.cu`: the first `n` columns of a padded staging
//! matrix become the caller's rows, scaled column by column and with the bias added.
//!
//! The native GEMMs round to bf16 or f16 before this, as upstream: `round(round(x · Wᵀ) * scale + bias)`.

use crate::{
    device::Device,
    error::CudaError,
    launch::{Kernel, LaunchConfig, Module},
    memory::{DeviceBuffer, DeviceMatrix, DeviceMatrixMut, DeviceVector},
    pack::{self, Pack},
    stream::StreamRef,
};
use nvfp4_core::{DType, Error, GlobalScale, GlobalScales, fold::row_multipliers};
use std::{ffi::c_void, path::PathBuf};

/// Name of the pack.
pub const BACKEND: &str = "epilogue";
/// Revision of the kernels' interface. Bump it when a parameter or a symbol changes.
pub const REVISION: u32 = 1;
/// Every symbol that the pack must have.
pub const SYMBOLS: [&str; 2] = ["nvfp4_epilogue_bf16", "nvfp4_epilogue_f16"];

/// Columns and rows that a CTA handles (`kColumns * kVector`, `kRows * kUnits` in the kernel source), and its threads.
const TILE_COLUMNS: u64 = 256;
const TILE_ROWS: u64 = 32;
const THREADS: u32 = 256;

const FLAG_VECTOR_LOADS: u32 = 1;
const FLAG_VECTOR_STORES: u32 = 2;

/// `EpilogueParams` of the kernel source, field for field.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct EpilogueParams {
    from: u64,
    from_row_stride: i64,
    to: u64,
    to_row_stride: i64,
    column_scale: u64,
    bias: u64,
    m: i64,
    n: i32,
    column_tiles: u32,
    flags: u32,
    zero: u32,
}

const _: () = assert!(std::mem::size_of::<EpilogueParams>() == 72);

/// What is done to the columns besides copying them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Columns<'a> {
    /// One factor for each column, e.g. the ratio of a row's global scale to the one in `alpha`.
    pub scale: Option<DeviceVector<'a>>,
    /// What is added to each column, after the factor.
    pub bias: Option<DeviceVector<'a>>,
}

/// The global scale for `alpha`, and on the device the f32 factor of each output feature ([`row_multipliers`]); none if all are 1.
pub fn column_scales(
    device: &Device,
    global: &GlobalScales,
) -> Result<(GlobalScale, Option<DeviceBuffer>), CudaError> {
    let (base, factors) = row_multipliers(global);
    if factors.iter().all(|&factor| factor == 1.0) {
        return Ok((base, None));
    }
    let bytes: Vec<u8> = factors.iter().flat_map(|factor| factor.to_ne_bytes()).collect();
    Ok((base, Some(DeviceBuffer::from_host(device, &bytes)?)))
}

/// The epilogue kernels, loaded for one device. `Send + Sync`; every method takes `&self`.
#[derive(Debug)]
pub struct Epilogue {
    device: Device,
    pack: Pack,
    bf16: Kernel,
    f16: Kernel,
}

impl Epilogue {
    /// Finds the pack in `roots` (see [`pack::search_path`]), verifies it, and loads the image for the device.
    pub fn load(device: &Device, roots: &[PathBuf]) -> Result<Self, CudaError> {
        let (pack, _, bytes) = pack::find_pack(roots, BACKEND, REVISION, device.compute_capability())?;
        let module = Module::load(device, &bytes)?;
        let [bf16, f16] = SYMBOLS;
        Ok(Self { device: device.clone(), pack, bf16: module.kernel(bf16)?, f16: module.kernel(f16)? })
    }

    /// The device.
    pub const fn device(&self) -> &Device {
        &self.device
    }
    /// The pack that the kernels come from.
    pub const fn pack(&self) -> &Pack {
        &self.pack
    }

    /// Enqueues `to[r, c] = round(f32(from[r, c]) * scale[c] + bias[c])` for the columns of `to`. `from` has as many
    /// rows, at least as many columns, and the same type: bf16 or f16. They may be the same memory if they have the same
    /// row stride. Enqueues one kernel and nothing else; an empty matrix enqueues nothing.
    pub fn apply(
        &self,
        stream: StreamRef<'_>,
        from: DeviceMatrix<'_>,
        columns: Columns<'_>,
        to: &DeviceMatrixMut<'_>,
    ) -> Result<(), CudaError> {
        let out = to.as_matrix();
        let (mut parameters, grid) = parameters(from, columns, out)?;
        if grid == 0 {
            return Ok(());
        }
        let kernel = if out.dtype() == DType::F16 { &self.f16 } else { &self.bf16 };
        let config = LaunchConfig {
            grid: [grid, 1, 1],
            block: [THREADS, 1, 1],
            cluster: [1, 1, 1],
            shared_memory: 0,
            overlap_previous: self.device.compute_capability().major() >= 9,
        };
        let mut pointers = [(&raw mut parameters).cast::<c_void>()];
        // SAFETY: the kernel takes `EpilogueParams`; shapes, types and alignments have been checked, and the operands are
        // borrowed.
        unsafe { kernel.launch(stream, &config, &mut pointers) }
    }
}

/// The kernel's parameters and its grid (0 if there is nothing to do).
fn parameters(
    from: DeviceMatrix<'_>,
    columns: Columns<'_>,
    to: DeviceMatrix<'_>,
) -> Result<(EpilogueParams, u32), Error> {
    let (m, n) = (to.rows(), to.cols());
    if !matches!(to.dtype(), DType::Bf16 | DType::F16) {
        return Err(Error::DType { what: "output", expected: "bf16 or f16", found: to.dtype() });
    }
    if from.dtype() != to.dtype() {
        let expected = if to.dtype() == DType::F16 { "f16, as the output" } else { "bf16, as the output" };
        return Err(Error::DType { what: "GEMM result", expected, found: from.dtype() });
    }
    let exactly = |what, expected, found| match found == expected {
        true => Ok(()),
        false => Err(Error::Size { what, expected, found }),
    };
    exactly("rows of the GEMM result", m, from.rows())?;
    if from.cols() < n {
        return Err(Error::Size { what: "columns of the GEMM result", expected: n, found: from.cols() });
    }
    let vector = |what, vector: Option<DeviceVector<'_>>| match vector {
        Some(vector) => exactly(what, n, vector.len()).and_then(|()| match vector.address().is_multiple_of(4) {
            true => Ok(vector.address()),
            false => Err(Error::Invalid("the bias or the column scales are not aligned to 4 bytes")),
        }),
        None => Ok(0),
    };
    let (column_scale, bias) = (vector("column scales", columns.scale)?, vector("bias values", columns.bias)?);
    if !from.address().is_multiple_of(2) || !to.address().is_multiple_of(2) {
        return Err(Error::Invalid("the GEMM result or the output is not aligned to its element type"));
    }
    let stride = |what, v: usize| i64::try_from(v).map_err(|_| Error::Overflow { what });
    let aligned =
        |x: DeviceMatrix<'_>| x.address().is_multiple_of(16) && (x.row_stride().is_multiple_of(8) || x.rows() <= 1);
    let column_tiles = (n as u64).div_ceil(TILE_COLUMNS);
    let overflow = Error::Overflow { what: "CTAs of the epilogue kernel" };
    let grid = (m as u64)
        .div_ceil(TILE_ROWS)
        .checked_mul(column_tiles)
        .filter(|&grid| i32::try_from(grid).is_ok())
        .ok_or(overflow)? as u32;
    let parameters = EpilogueParams {
        from: from.address(),
        from_row_stride: stride("row stride", from.row_stride())?,
        to: to.address(),
        to_row_stride: stride("row stride", to.row_stride())?,
        column_scale,
        bias,
        m: stride("rows", m)?,
        n: i32::try_from(n).map_err(|_| Error::Overflow { what: "output features" })?,
        column_tiles: column_tiles as u32,
        flags: if aligned(from) { FLAG_VECTOR_LOADS } else { 0 } | if aligned(to) { FLAG_VECTOR_STORES } else { 0 },
        zero: 0,
    };
    Ok((parameters, grid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(address: u64, dtype: DType, rows: usize, cols: usize, stride: usize) -> DeviceMatrix<'static> {
        // SAFETY: nothing reads through the address.
        unsafe { DeviceMatrix::from_raw(address, dtype, rows, cols, stride) }
    }

    #[test]
    fn vectors_are_used_exactly_where_rows_are_aligned() {
        let from = |address, stride| matrix(address, DType::Bf16, 3, 100, stride);
        let flags = |from, to| parameters(from, Columns::default(), to).unwrap().0.flags;
        assert_eq!(flags(from(4096, 128), from(8192, 104)), 3);
        assert_eq!(flags(from(4098, 128), from(8192, 104)), 2);
        assert_eq!(flags(from(4096, 128), from(8192, 100)), 1);
        assert_eq!(flags(from(4096, 101), from(8200, 104)), 0);
        // The stride of a single row is never taken.
        let one = |stride| matrix(4096, DType::F16, 1, 100, stride);
        assert_eq!(flags(one(101), one(103)), 3);
    }

    #[test]
    fn grids_cover_the_output_and_do_not_overflow() {
        let grid = |m, n| {
            let x = matrix(4096, DType::Bf16, m, n, n);
            parameters(x, Columns::default(), x).map(|(p, grid)| (p.column_tiles, grid))
        };
        assert_eq!(grid(0, 64), Ok((1, 0)));
        assert_eq!(grid(1, 1), Ok((1, 1)));
        assert_eq!(grid(33, 257), Ok((2, 4)));
        assert_eq!(grid(1 << 20, 248_320), Ok((970, 32_768 * 970)));
        assert!(grid(usize::MAX / 2, 1 << 30).is_err());
    }

    #[test]
    fn operands_that_do_not_fit_are_refused() {
        let to = matrix(4096, DType::Bf16, 3, 100, 100);
        // SAFETY: nothing reads through the address.
        let bias = |len| unsafe { DeviceVector::from_raw(64, len) };
        let with = |from, scale, bias| parameters(from, Columns { scale, bias }, to).map(|_| ());
        let good = matrix(8192, DType::Bf16, 3, 128, 128);
        assert_eq!(with(good, Some(bias(100)), Some(bias(100))), Ok(()));
        for (from, scale, added, text) in [
            (matrix(8192, DType::F16, 3, 128, 128), None, None, "GEMM result"),
            (matrix(8192, DType::Bf16, 4, 128, 128), None, None, "rows of the GEMM result"),
            (matrix(8192, DType::Bf16, 3, 96, 96), None, None, "columns of the GEMM result"),
            (matrix(8193, DType::Bf16, 3, 128, 128), None, None, "not aligned"),
            (good, Some(bias(101)), None, "column scales"),
            (good, None, Some(bias(99)), "bias values"),
        ] {
            let error = with(from, scale, added).unwrap_err().to_string();
            assert!(error.contains(text), "{text}: {error}");
        }
        let wide = matrix(4096, DType::F32, 3, 100, 100);
        assert!(parameters(good, Columns::default(), wide).unwrap_err().to_string().contains("bf16 or f16"));
    }
}
