//! Activation quantization on the GPU (`scaled_fp4_quant`), with the kernels of `kernels/quantize.cu`.
//!
//! Every function here only enqueues kernels (and, for a dynamic tensor scale, one 4-byte set): no allocation, no copy,
//! no synchronization, legal under stream capture.

use crate::{
    device::Device,
    error::CudaError,
    launch::{Kernel, LaunchConfig, Module},
    memory::{DeviceBuffer, DeviceBytesMut, DeviceMatrix, DeviceMatrixMut},
    pack::{self, Pack},
    stream::StreamRef,
};
use cudarc::driver::result;
use nvfp4_core::{
    ActivationScale, BLOCK_SIZE, DType, EncodeScale, Error, GlobalScale, QuantKey, QuantizedActivation,
    ScaleLayout, quantize::QuantizeOptions,
};
use std::{collections::HashMap, ffi::c_void, path::PathBuf};

/// Name of the pack.
pub const BACKEND: &str = "quantize";
/// Revision of the kernels' interface. Bump it when a parameter or a symbol changes.
pub const REVISION: u32 = 1;

/// Threads of a CTA, and rows that a thread handles (`kThreads`, `kUnits` in the kernel source).
const THREADS: u32 = 256;
const UNITS: u64 = 4;

/// `QuantizeParams` of the kernel source, field for field.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct QuantizeParams {
    x: u64,
    x_row_stride: i64,
    codes: u64,
    scales: u64,
    encode_scale: u64,
    row_decode: u64,
    grid: u64,
    grid_row_stride: i64,
    m: i64,
    k: i32,
    padded_k: i32,
    encode_scale_value: f32,
    flags: u32,
}

const _: () = assert!(std::mem::size_of::<QuantizeParams>() == 88);

const FLAG_VECTOR_LOADS: u32 = 1;
const FLAG_EXACT: u32 = 2;

/// The global scale to quantize with.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum InputScale {
    /// Known on the host: the checkpoint's `input_scale`.
    Static(EncodeScale),
    /// One f32 encode scale in device memory, e.g. the first of the two that [`Quantizer::tensor_scale`] writes.
    Device {
        /// Device address of the value; it must stay valid until the work has run.
        encode: u64,
    },
    /// One f32 decode scale for each row in device memory, as [`Quantizer::row_scales`] writes.
    PerToken {
        /// Device address of `m` values; they must stay valid until the work has run.
        decode: u64,
    },
}

/// Where the codes and scales go.
#[derive(Debug)]
pub struct QuantizeOutput<'a> {
    /// `[m, padded_k / 2]` bytes of codes; 8-byte aligned.
    pub codes: DeviceBytesMut<'a>,
    /// Scales in the layout that was asked for, padding included; 4-byte aligned.
    pub scales: DeviceBytesMut<'a>,
}

/// What is quantized.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Operation {
    Quantize,
    SiluAndMulQuantize,
    QuantizeDequantize,
    RowScale,
    AbsMax,
}

/// The quantization kernels, loaded for one device. `Send + Sync`; every method takes `&self`.
#[derive(Debug)]
pub struct Quantizer {
    device: Device,
    pack: Pack,
    target: String,
    kernels: HashMap<String, Kernel>,
}

/// Name of a kernel of `kernels/quantize.cu`.
fn symbol(operation: Operation, layout: ScaleLayout, dtype: DType) -> Result<String, Error> {
    let layout = match layout {
        ScaleLayout::Linear => "linear",
        ScaleLayout::Swizzled128x4 => "128x4",
        ScaleLayout::Swizzled8x4 => "8x4",
        _ => return Err(Error::Invalid("the CUDA quantizer writes linear, 128x4 and 8x4 scale layouts")),
    };
    let dtype = match dtype {
        DType::Bf16 => "bf16",
        DType::F16 => "f16",
        DType::F32 => "f32",
        found => return Err(Error::DType { what: "activation", expected: "bf16, f16 or f32", found }),
    };
    Ok(match operation {
        Operation::Quantize => format!("nvfp4_quantize_{layout}_{dtype}"),
        Operation::SiluAndMulQuantize => format!("nvfp4_silu_and_mul_quantize_{layout}_{dtype}"),
        Operation::QuantizeDequantize => format!("nvfp4_quantize_dequantize_{dtype}"),
        Operation::RowScale => format!("nvfp4_row_scale_{dtype}"),
        Operation::AbsMax => format!("nvfp4_absmax_{dtype}"),
    })
}

const LAYOUTS: [ScaleLayout; 3] = [ScaleLayout::Linear, ScaleLayout::Swizzled128x4, ScaleLayout::Swizzled8x4];
const DTYPES: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];
const GLOBAL_SCALE: &str = "nvfp4_global_scale";
const COPY: &str = "nvfp4_copy";

/// Every symbol that the pack must have.
pub fn symbols() -> Vec<String> {
    let mut all = vec![GLOBAL_SCALE.to_string(), COPY.to_string()];
    for dtype in DTYPES {
        for layout in LAYOUTS {
            all.extend(symbol(Operation::Quantize, layout, dtype));
            all.extend(symbol(Operation::SiluAndMulQuantize, layout, dtype));
        }
        for operation in [Operation::QuantizeDequantize, Operation::RowScale, Operation::AbsMax] {
            all.extend(symbol(operation, ScaleLayout::Linear, dtype));
        }
    }
    all
}

/// CTAs of a launch over `m` rows and `columns` blocks, scale padding included. 64-bit throughout: a big vocabulary
/// times a big batch passes 2^31 elements.
pub fn launch_grid(layout: ScaleLayout, m: u64, columns: u64) -> Result<u32, Error> {
    let (tile_rows, tile_columns, row_alignment, column_alignment) = match layout {
        ScaleLayout::Swizzled128x4 => (32 * UNITS, 8, 128, 4),
        ScaleLayout::Swizzled8x4 => (8 * UNITS, u64::from(THREADS) / 8, 8, 4),
        _ => (u64::from(THREADS) / 32 * UNITS, 32, 1, 1),
    };
    let rows = m.next_multiple_of(row_alignment).div_ceil(tile_rows);
    let columns = columns.next_multiple_of(column_alignment).div_ceil(tile_columns);
    rows.checked_mul(columns)
        .and_then(|grid| u32::try_from(grid).ok())
        .filter(|&grid| i32::try_from(grid).is_ok())
        .ok_or(Error::Overflow { what: "CTAs of the quantization kernel" })
}

impl Quantizer {
    /// Finds the pack in `roots` (see [`pack::search_path`]), verifies it, loads the image for the device, and asks it
    /// questions with known answers (see [`self_test`](crate::self_test)); a device image that answers wrongly is an
    /// error.
    pub fn load(device: &Device, roots: &[PathBuf]) -> Result<Self, CudaError> {
        let quantizer = Self::load_untested(device, roots)?;
        crate::self_test::quantizer(&quantizer)?;
        Ok(quantizer)
    }

    /// As [`load`](Self::load), without asking.
    pub fn load_untested(device: &Device, roots: &[PathBuf]) -> Result<Self, CudaError> {
        let (pack, image, bytes) = pack::find_pack(roots, BACKEND, REVISION, device.compute_capability())?;
        let module = Module::load(device, &bytes)?;
        let kernels = symbols()
            .into_iter()
            .map(|symbol| Ok((symbol.clone(), module.kernel(&symbol)?)))
            .collect::<Result<_, CudaError>>()?;
        Ok(Self { device: device.clone(), pack, target: image.target, kernels })
    }

    /// The device.
    pub const fn device(&self) -> &Device {
        &self.device
    }
    /// The pack that the kernels come from.
    pub const fn pack(&self) -> &Pack {
        &self.pack
    }
    /// Target of the loaded image, e.g. `sm_90a`.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// An activation with room for `m` rows. Allocates.
    pub fn allocate(
        &self,
        dtype: DType,
        m: usize,
        k: usize,
        options: QuantizeOptions,
    ) -> Result<QuantizedActivation<DeviceBuffer>, CudaError> {
        let (padded_k, codes, scales) = sizes(m, k, options)?;
        Ok(QuantizedActivation {
            data: DeviceBuffer::new(&self.device, codes)?,
            scale: DeviceBuffer::new(&self.device, scales)?,
            scale_layout: options.layout,
            global_scale: ActivationScale::PerTensor(GlobalScale::ONE),
            rows: m,
            k,
            padded_k,
            orig_dtype: dtype,
            orig_shape: vec![m, k],
            quant_key: QuantKey::NVFP4_DYNAMIC,
        })
    }

    /// Quantizes `x` with the checkpoint's input scale into `out`, which [`allocate`](Self::allocate) made for at least
    /// as many rows.
    pub fn scaled_fp4_quant(
        &self,
        stream: StreamRef<'_>,
        x: DeviceMatrix<'_>,
        scale: GlobalScale,
        options: QuantizeOptions,
        out: &mut QuantizedActivation<DeviceBuffer>,
    ) -> Result<(), CudaError> {
        let output = QuantizeOutput { codes: out.data.as_bytes_mut(), scales: out.scale.as_bytes_mut() };
        self.quantize(stream, x, InputScale::Static(scale.encode()), options, output)?;
        out.global_scale = ActivationScale::PerTensor(scale);
        out.rows = x.rows();
        out.k = x.cols();
        out.padded_k = sizes(x.rows(), x.cols(), options)?.0;
        out.scale_layout = options.layout;
        out.orig_dtype = x.dtype();
        out.orig_shape = vec![x.rows(), x.cols()];
        out.quant_key = QuantKey::NVFP4_DYNAMIC;
        Ok(())
    }

    /// Enqueues the quantization of `x` `[m, k]`. Scale padding and `padded_n` columns are written with zeros.
    pub fn quantize(
        &self,
        stream: StreamRef<'_>,
        x: DeviceMatrix<'_>,
        scale: InputScale,
        options: QuantizeOptions,
        output: QuantizeOutput<'_>,
    ) -> Result<(), CudaError> {
        self.enqueue(Operation::Quantize, stream, x, x.cols(), scale, options, output)
    }

    /// Enqueues the quantization of `silu(x[:, ..k]) * x[:, k..]` for `x` `[m, 2k]`; the product is rounded to the type
    /// of `x` first.
    pub fn silu_and_mul_quantize(
        &self,
        stream: StreamRef<'_>,
        x: DeviceMatrix<'_>,
        scale: InputScale,
        options: QuantizeOptions,
        output: QuantizeOutput<'_>,
    ) -> Result<(), CudaError> {
        if !x.cols().is_multiple_of(2) {
            let found = x.cols();
            return Err(Error::NotMultiple { what: "columns of gate and up", multiple: 2, found }.into());
        }
        self.enqueue(Operation::SiluAndMulQuantize, stream, x, x.cols() / 2, scale, options, output)
    }

    #[expect(clippy::too_many_arguments, reason = "one call site a public method; all are operands of the kernel")]
    fn enqueue(
        &self,
        operation: Operation,
        stream: StreamRef<'_>,
        x: DeviceMatrix<'_>,
        k: usize,
        scale: InputScale,
        options: QuantizeOptions,
        output: QuantizeOutput<'_>,
    ) -> Result<(), CudaError> {
        let (padded_k, codes, scales) = sizes(x.rows(), k, options)?;
        check_output("activation codes", codes, 8, &output.codes)?;
        check_output("activation scales", scales, 4, &output.scales)?;
        let grid = launch_grid(options.layout, x.rows() as u64, (padded_k / BLOCK_SIZE) as u64)?;
        let mut parameters = self.parameters(x, k, padded_k, scale, options.exact)?;
        parameters.codes = output.codes.address();
        parameters.scales = output.scales.address();
        self.launch(&symbol(operation, options.layout, x.dtype())?, stream, grid, THREADS, &mut parameters, None)
    }

    /// Enqueues `x` onto the NVFP4 grid: `e2m1 * e4m3` as bf16, exact, without the global scale. `out` `[m, k]` must be
    /// bf16, its rows 16-byte aligned.
    pub fn quantize_dequantize(
        &self,
        stream: StreamRef<'_>,
        x: DeviceMatrix<'_>,
        scale: InputScale,
        exact: bool,
        out: DeviceMatrixMut<'_>,
    ) -> Result<(), CudaError> {
        let to = out.as_matrix();
        if to.dtype() != DType::Bf16 {
            return Err(Error::DType { what: "values on the grid", expected: "bf16", found: to.dtype() }.into());
        }
        check(x.rows(), to.rows(), "rows of the output")?;
        check(x.cols(), to.cols(), "columns of the output")?;
        if !to.address().is_multiple_of(16) || !to.row_stride().is_multiple_of(8) {
            return Err(Error::Invalid("the output's rows must start at multiples of 16 bytes").into());
        }
        let mut parameters = self.parameters(x, x.cols(), x.cols(), scale, exact)?;
        parameters.grid = to.address();
        parameters.grid_row_stride = signed("row stride", to.row_stride())?;
        let grid = launch_grid(ScaleLayout::Linear, x.rows() as u64, (x.cols() / BLOCK_SIZE) as u64)?;
        let symbol = symbol(Operation::QuantizeDequantize, ScaleLayout::Linear, x.dtype())?;
        self.launch(&symbol, stream, grid, THREADS, &mut parameters, None)
    }

    /// Enqueues the computation of one f32 decode scale for each row, `amax / (6 * 448)`, into `4 * m` bytes.
    pub fn row_scales(
        &self,
        stream: StreamRef<'_>,
        x: DeviceMatrix<'_>,
        row_decode: DeviceBytesMut<'_>,
    ) -> Result<(), CudaError> {
        check_output("per-token global scales", x.rows() * 4, 4, &row_decode)?;
        let mut parameters = self.parameters(x, x.cols(), x.cols(), InputScale::Device { encode: 0 }, false)?;
        let grid = u32::try_from(x.rows()).map_err(|_| Error::Overflow { what: "rows" })?;
        let symbol = symbol(Operation::RowScale, ScaleLayout::Linear, x.dtype())?;
        self.launch(&symbol, stream, grid, THREADS, &mut parameters, Some(row_decode.address()))
    }

    /// Enqueues the computation of one global scale for all of `x`, without a host round trip: `scales[0]` becomes the
    /// encode scale, `scales[1]` the decode scale `amax / (6 * 448)`; both are 1 if `x` is zero. `scales` needs 12
    /// bytes: two f32 and a word of scratch.
    pub fn tensor_scale(
        &self,
        stream: StreamRef<'_>,
        x: DeviceMatrix<'_>,
        scales: DeviceBytesMut<'_>,
    ) -> Result<(), CudaError> {
        check_output("dynamic global scale", 12, 4, &scales)?;
        let amax = scales.address() + 8;
        self.device.bind()?;
        // SAFETY: the word lies inside `scales`, which is borrowed mutably.
        crate::error::driver("cuMemsetD8Async", unsafe {
            result::memset_d8_async(amax, 0, 4, stream.cu_stream())
        })?;
        let mut parameters = self.parameters(x, x.cols(), x.cols(), InputScale::Device { encode: 0 }, false)?;
        // Enough CTAs to fill any GPU, few enough that their atomics do not queue.
        let grid = u32::try_from(x.rows()).unwrap_or(u32::MAX).min(2048);
        let symbol = symbol(Operation::AbsMax, ScaleLayout::Linear, x.dtype())?;
        self.launch(&symbol, stream, grid, THREADS, &mut parameters, Some(amax))?;
        let kernel = self.kernel(GLOBAL_SCALE)?;
        let (mut amax, mut to) = (amax, scales.address());
        let mut pointers = [(&raw mut amax).cast::<c_void>(), (&raw mut to).cast::<c_void>()];
        // SAFETY: the kernel takes two pointers, to a word and to two f32, all inside `scales`.
        unsafe { kernel.launch(stream, &self.config(1, 1), &mut pointers) }
    }

    /// Enqueues a plain copy of `count` 16-byte vectors, the yardstick of the benchmarks.
    pub fn copy(&self, stream: StreamRef<'_>, from: &DeviceBuffer, to: &mut DeviceBuffer) -> Result<(), CudaError> {
        check(from.len(), to.len(), "bytes of the copy")?;
        let mut count = signed("vectors", from.len() / 16)?;
        let grid = u32::try_from((from.len() / 16).div_ceil(THREADS as usize * 4))
            .map_err(|_| Error::Overflow { what: "CTAs of the copy" })?;
        let (mut source, mut target) = (from.address(), to.address());
        let mut pointers = [
            (&raw mut source).cast::<c_void>(),
            (&raw mut target).cast::<c_void>(),
            (&raw mut count).cast::<c_void>(),
        ];
        // SAFETY: the kernel takes two pointers and a count; both buffers hold `count` vectors.
        unsafe { self.kernel(COPY)?.launch(stream, &self.config(grid, THREADS), &mut pointers) }
    }

    fn parameters(
        &self,
        x: DeviceMatrix<'_>,
        k: usize,
        padded_k: usize,
        scale: InputScale,
        exact: bool,
    ) -> Result<QuantizeParams, CudaError> {
        if !k.is_multiple_of(BLOCK_SIZE) {
            return Err(
                Error::NotMultiple { what: "k (activation columns)", multiple: BLOCK_SIZE, found: k }.into()
            );
        }
        if !x.address().is_multiple_of(x.dtype().size() as u64) {
            return Err(Error::Invalid("the activation's address is not aligned to its element type").into());
        }
        let narrow = |what, v: usize| i32::try_from(v).map_err(|_| Error::Overflow { what });
        let row_bytes = x.row_stride() * x.dtype().size();
        let vector = x.address().is_multiple_of(16)
            && (row_bytes.is_multiple_of(16) || x.rows() <= 1)
            && (k * x.dtype().size()).is_multiple_of(16);
        let mut parameters = QuantizeParams {
            x: x.address(),
            x_row_stride: signed("row stride", x.row_stride())?,
            m: signed("rows", x.rows())?,
            k: narrow("k (activation columns)", k)?,
            padded_k: narrow("padded_n", padded_k)?,
            flags: if vector { FLAG_VECTOR_LOADS } else { 0 } | if exact { FLAG_EXACT } else { 0 },
            ..QuantizeParams::default()
        };
        match scale {
            InputScale::Static(scale) => parameters.encode_scale_value = scale.get(),
            InputScale::Device { encode } => parameters.encode_scale = encode,
            InputScale::PerToken { decode } => parameters.row_decode = decode,
        }
        Ok(parameters)
    }

    fn kernel(&self, symbol: &str) -> Result<&Kernel, CudaError> {
        self.kernels
            .get(symbol)
            .ok_or(CudaError::Operand(Error::Invalid("the quantization pack has no kernel for this operation")))
    }

    fn config(&self, grid: u32, threads: u32) -> LaunchConfig {
        LaunchConfig {
            grid: [grid, 1, 1],
            block: [threads, 1, 1],
            cluster: [1, 1, 1],
            shared_memory: 0,
            overlap_previous: self.device.compute_capability().major() >= 9,
        }
    }

    /// Launches a kernel that takes [`QuantizeParams`] and, for some, a pointer. An empty grid launches nothing.
    fn launch(
        &self,
        symbol: &str,
        stream: StreamRef<'_>,
        grid: u32,
        threads: u32,
        parameters: &mut QuantizeParams,
        pointer: Option<u64>,
    ) -> Result<(), CudaError> {
        if grid == 0 {
            return Ok(());
        }
        let mut pointer_value = pointer.unwrap_or(0);
        let mut pointers =
            [std::ptr::from_mut(parameters).cast::<c_void>(), (&raw mut pointer_value).cast::<c_void>()];
        let count = if pointer.is_some() { 2 } else { 1 };
        // SAFETY: every kernel but the two handled elsewhere takes `QuantizeParams` first, and those that are given a
        // pointer take it second; sizes and alignments of the operands have been checked.
        unsafe { self.kernel(symbol)?.launch(stream, &self.config(grid, threads), &mut pointers[..count]) }
    }
}

/// Padded width, bytes of codes, bytes of scales.
fn sizes(m: usize, k: usize, options: QuantizeOptions) -> Result<(usize, usize, usize), Error> {
    let padded_k = options.padded_n.unwrap_or(k);
    for (what, found) in [("k (activation columns)", k), ("padded_n", padded_k)] {
        if !found.is_multiple_of(BLOCK_SIZE) {
            return Err(Error::NotMultiple { what, multiple: BLOCK_SIZE, found });
        }
    }
    if padded_k < k {
        return Err(Error::Size { what: "padded_n", expected: k, found: padded_k });
    }
    if options.layout == ScaleLayout::Swizzled8x4 && padded_k != k {
        return Err(Error::Invalid("padded_n is not supported with the 8x4 scale layout"));
    }
    let codes = m.checked_mul(padded_k / 2).ok_or(Error::Overflow { what: "activation codes" })?;
    Ok((padded_k, codes, options.layout.len(m, padded_k / BLOCK_SIZE)?))
}

fn check(expected: usize, found: usize, what: &'static str) -> Result<(), Error> {
    if expected == found { Ok(()) } else { Err(Error::Size { what, expected, found }) }
}

/// `Ok` if a buffer has at least `bytes` bytes and starts at a multiple of `alignment`.
fn check_output(
    what: &'static str,
    bytes: usize,
    alignment: u64,
    buffer: &DeviceBytesMut<'_>,
) -> Result<(), Error> {
    if buffer.len() < bytes {
        return Err(Error::Size { what, expected: bytes, found: buffer.len() });
    }
    if !buffer.address().is_multiple_of(alignment) {
        return Err(Error::Invalid("an output buffer is not aligned: codes need 8 bytes, scales 4"));
    }
    Ok(())
}

fn signed(what: &'static str, value: usize) -> Result<i64, Error> {
    i64::try_from(value).map_err(|_| Error::Overflow { what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_distinct() {
        let mut all = symbols();
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!((all.len(), count), (29, 29));
    }

    #[test]
    fn grids_are_64_bit_and_checked() {
        use ScaleLayout::{Linear, Swizzled8x4, Swizzled128x4};
        // 128 rows x 8 blocks a CTA, padding included.
        assert_eq!(launch_grid(Swizzled128x4, 1, 256), Ok(32));
        assert_eq!(launch_grid(Swizzled128x4, 129, 5), Ok(2));
        assert_eq!(launch_grid(Swizzled8x4, 9, 231), Ok(8));
        assert_eq!(launch_grid(Linear, 262_145, 1), Ok(8193));
        // 3.0e9 elements, and rows past the 65,535 of grid.y.
        assert_eq!(launch_grid(Linear, 23_491, 128_256 / 16), Ok(735 * 251));
        assert_eq!(launch_grid(Swizzled128x4, 799_040, 168), Ok(6243 * 21));
        assert_eq!(launch_grid(Linear, 0, 8), Ok(0));
        assert!(launch_grid(Linear, u64::from(u32::MAX) * 64, 32).is_err());
    }
}
