//! The backend: support, preparation, plans.

use crate::{
    activation::{self, Groups, QuantizedBlock, Rows},
    columns::ColumnsMut,
    gemm::{self, MAX_ROWS, Packed, Pass},
    isa::{Isa, Selected},
    weights::{CpuWeights, LAYOUT},
};
use nvfp4_core::{
    ActivationScale, ActivationScheme, BLOCK_SIZE, DType, DeviceFacts, Error, FloatSlice, FloatSliceMut,
    GlobalScale, Host, KernelId, KernelSupport, LinearPlan, MatrixMut, MatrixRef, NvFp4LinearKernel,
    NvFp4LinearLayerConfig, NvFp4Weights, PreparedWeights, QuantKey, QuantizedActivation, Unsupported,
    as_quantized_activation,
    kernel::{LinearInput, WeightLayout},
};
use std::{any::Any, sync::Arc};

/// NVFP4 linear layers on any CPU: W4A16, and W4A4 with static, per-tensor and per-token scales; bf16, f16 and f32
/// in and out.
///
/// Results do not depend on the number of rows of a call or of threads, so every layer is batch-invariant, but for
/// W4A4 with one dynamic scale for all rows, which is refused where batch invariance is asked for.
#[derive(Clone, Copy, Debug)]
pub struct CpuNvFp4LinearKernel {
    isa: Selected,
}

impl CpuNvFp4LinearKernel {
    /// The backend with the best instructions that this machine has.
    pub fn new() -> Self {
        Self { isa: Selected::best() }
    }

    /// The backend with portable code only, whatever the machine has: slower, and what runs where nothing better
    /// is known. W4A4 results are the same to the bit; W4A16 results may differ in the last bits.
    pub fn portable() -> Self {
        Self { isa: Selected::portable() }
    }
}

impl Default for CpuNvFp4LinearKernel {
    fn default() -> Self {
        Self::new()
    }
}

fn check_dtype(operand: &'static str, found: DType) -> Result<(), Unsupported> {
    match found {
        DType::Bf16 | DType::F16 | DType::F32 => Ok(()),
        _ => Err(Unsupported::DType { operand, needed: "bf16, f16 or f32", found }),
    }
}

fn check_config(config: &NvFp4LinearLayerConfig) -> Result<(), Unsupported> {
    let (n, k) = (config.out_features, config.in_features);
    if k == 0 || !k.is_multiple_of(BLOCK_SIZE) {
        return Err(Unsupported::Shape { dimension: "k (input features)", multiple: BLOCK_SIZE, found: k });
    }
    if n == 0 {
        return Err(Unsupported::Shape { dimension: "n (output features), not zero,", multiple: 1, found: n });
    }
    check_dtype("input", config.input_dtype)?;
    check_dtype("output", config.output_dtype)?;
    match config.activation {
        scheme if config.batch_invariant && !scheme.is_batch_invariant() => Err(Unsupported::BatchInvariance),
        ActivationScheme::Unquantized
        | ActivationScheme::Nvfp4Static
        | ActivationScheme::Nvfp4DynamicPerTensor
        | ActivationScheme::Nvfp4DynamicPerToken => Ok(()),
        asked => Err(Unsupported::Scheme { offered: "W4A16 and W4A4", asked }),
    }
}

impl KernelSupport for CpuNvFp4LinearKernel {
    fn id(&self) -> KernelId {
        KernelId::CPU
    }

    fn is_supported(&self, device: &DeviceFacts) -> Result<(), Unsupported> {
        match device {
            DeviceFacts::Cpu(_) => Ok(()),
            other => Err(Unsupported::Device { needed: "a CPU".into(), found: other.to_string() }),
        }
    }

    fn can_implement(&self, _: &DeviceFacts, config: &NvFp4LinearLayerConfig) -> Result<(), Unsupported> {
        check_config(config)
    }

    fn weight_layout(&self, _: &DeviceFacts, _: &NvFp4LinearLayerConfig) -> WeightLayout {
        LAYOUT
    }

    fn input_quant_key(&self, config: &NvFp4LinearLayerConfig) -> Option<QuantKey> {
        config.activation.quant_key()
    }
}

impl NvFp4LinearKernel<Host> for CpuNvFp4LinearKernel {
    fn process_weights_after_loading(
        &self,
        _: &(),
        config: &NvFp4LinearLayerConfig,
        weights: &NvFp4Weights<'_>,
    ) -> Result<Arc<dyn PreparedWeights>, Error> {
        check_config(config)?;
        check("rows of the weight (output features)", config.out_features, weights.out_features())?;
        check("columns of the weight (input features)", config.in_features, weights.in_features())?;
        Ok(Arc::new(CpuWeights::new(weights)?))
    }

    fn plan(
        &self,
        config: &NvFp4LinearLayerConfig,
        weights: &Arc<dyn PreparedWeights>,
        input_scale: Option<GlobalScale>,
        m: usize,
    ) -> Result<Box<dyn LinearPlan<Host>>, Error> {
        check_config(config)?;
        let (n, k) = (config.out_features, config.in_features);
        let any: Arc<dyn Any + Send + Sync> = weights.clone();
        let weights = any
            .downcast::<CpuWeights>()
            .map_err(|_| format!("{}", weights.layout()))
            .and_then(|w| {
                if (w.n(), w.k()) == (n, k) { Ok(w) } else { Err(format!("{LAYOUT} [{}, {}]", w.n(), w.k())) }
            })
            .map_err(|found| Error::Layout { expected: format!("{LAYOUT} [{n}, {k}]"), found })?;
        let plan = CpuPlan { isa: self.isa, config: *config, weights, input_scale, rows: m };
        plan.scratch_bytes()?;
        Ok(Box::new(plan))
    }
}

fn check(what: &'static str, expected: usize, found: usize) -> Result<(), Error> {
    if expected == found { Ok(()) } else { Err(Error::Size { what, expected, found }) }
}

/// A layer, ready to run.
#[derive(Debug)]
struct CpuPlan {
    isa: Selected,
    config: NvFp4LinearLayerConfig,
    weights: Arc<CpuWeights>,
    input_scale: Option<GlobalScale>,
    rows: usize,
}

/// Scale of W4A16 rows.
static ONES: [f32; MAX_ROWS] = [1.0; MAX_ROWS];

impl CpuPlan {
    /// Workspace for the largest pass: packed activations, then the global scale of each row.
    fn scratch_bytes(&self) -> Result<usize, Error> {
        let k = self.config.in_features;
        let row = if self.config.activation.is_quantized() {
            (k / BLOCK_SIZE).checked_mul(size_of::<QuantizedBlock>()).and_then(|v| v.checked_add(size_of::<f32>()))
        } else {
            k.checked_mul(size_of::<f32>())
        };
        let bytes = row.and_then(|row| row.checked_mul(self.rows.min(MAX_ROWS)));
        bytes.ok_or(Error::Overflow { what: "workspace bytes" })
    }

    /// Everything that could be wrong with a call.
    fn check(
        &self,
        x: &LinearInput<'_, Host>,
        bias: Option<&[f32]>,
        out: &MatrixMut<'_>,
        workspace: &[u64],
    ) -> Result<(), Error> {
        let (rows, cols) = match x {
            LinearInput::Matrix(x) => (x.rows(), x.cols()),
            LinearInput::Quantized(x) => {
                as_quantized_activation(x, self.config.activation.quant_key())?;
                x.check()?;
                (x.rows, x.k)
            }
        };
        check("columns of x (input features)", self.config.in_features, cols)?;
        check("columns of out (output features)", self.config.out_features, out.cols())?;
        check("rows of out", rows, out.rows())?;
        if rows > self.rows {
            return Err(Error::Unsupported(Unsupported::Rows {
                needed: format!("0..={}", self.rows),
                found: rows,
            }));
        }
        if let LinearInput::Matrix(x) = x
            && x.dtype() != self.config.input_dtype
        {
            let expected = dtype_name(self.config.input_dtype);
            return Err(Error::DType { what: "x, as planned", expected, found: x.dtype() });
        }
        if out.dtype() != self.config.output_dtype {
            let expected = dtype_name(self.config.output_dtype);
            return Err(Error::DType { what: "out, as planned", expected, found: out.dtype() });
        }
        if let Some(bias) = bias {
            check("bias values", self.config.out_features, bias.len())?;
        }
        let needed = self.workspace_size().div_ceil(size_of::<u64>());
        if workspace.len() < needed {
            return Err(Error::Size { what: "workspace (8-byte words)", expected: needed, found: workspace.len() });
        }
        Ok(())
    }
}

fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bf16 => "bf16",
        DType::F16 => "f16",
        DType::F32 => "f32",
        _ => "the planned type",
    }
}

impl LinearPlan<Host> for CpuPlan {
    fn rows(&self) -> usize {
        self.rows
    }

    fn workspace_size(&self) -> usize {
        // `plan` has checked that it does not overflow.
        self.scratch_bytes().unwrap_or(usize::MAX)
    }

    fn apply_weights(
        &self,
        _: (),
        x: LinearInput<'_, Host>,
        bias: Option<&[f32]>,
        out: MatrixMut<'_>,
        workspace: &mut [u64],
    ) -> Result<(), Error> {
        self.check(&x, bias, &out, workspace)?;
        match self.isa {
            Selected::Portable(isa) => self.run(isa, x, bias, out, workspace),
            #[cfg(target_arch = "x86_64")]
            Selected::Avx2(isa) => self.run(isa, x, bias, out, workspace),
        }
    }
}

/// Runs `$body` with `$data` bound to the elements of a [`FloatSlice`] or [`FloatSliceMut`].
macro_rules! with_elements {
    ($slice:expr, $kind:ident, $data:ident => $body:expr) => {
        match $slice {
            $kind::Bf16($data) => $body,
            $kind::F16($data) => $body,
            $kind::F32($data) => $body,
            other => Err(Error::DType { what: "matrix", expected: "bf16, f16 or f32", found: other.dtype() }),
        }
    };
}

impl CpuPlan {
    fn run<I: Isa>(
        &self,
        isa: I,
        x: LinearInput<'_, Host>,
        bias: Option<&[f32]>,
        mut out: MatrixMut<'_>,
        workspace: &mut [u64],
    ) -> Result<(), Error> {
        let m = out.rows();
        let tensor_scale = match (&x, self.config.activation) {
            (LinearInput::Matrix(x), ActivationScheme::Nvfp4DynamicPerTensor) => Some(tensor_scale(isa, *x)?),
            _ => self.input_scale,
        };
        // Passes of about equal size, so that the last is not a small one.
        let passes = Groups::new(m, MAX_ROWS);
        for pass in 0..passes.count() {
            let rows = passes.rows(pass);
            let groups = Groups::new(rows.len(), I::WIDTH);
            let (packed, row_scales) = match &x {
                LinearInput::Matrix(x) => self.pack(isa, *x, rows.start, groups, tensor_scale, workspace)?,
                LinearInput::Quantized(x) => self.unpack(x, rows.start, groups, workspace)?,
            };
            let weights = &*self.weights;
            let pass = Pass { weights, x: packed, row_scales: &row_scales[..rows.len()], bias };
            let (n, stride) = (out.cols(), out.row_stride());
            with_elements!(out.data_mut().reborrow(), FloatSliceMut, data => {
                let out = data.get_mut(rows.start * stride..).unwrap_or_default();
                let out = ColumnsMut::new(out, rows.len(), n, stride);
                gemm::multiply(isa, pass, out.ok_or(Error::Overflow { what: "matrix elements" })?);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Packs the rows of `x` from `first` on, quantized if the layer is W4A4. Returns them with their global scales.
    fn pack<'w, I: Isa>(
        &self,
        isa: I,
        x: MatrixRef<'_>,
        first: usize,
        groups: Groups,
        tensor_scale: Option<GlobalScale>,
        workspace: &'w mut [u64],
    ) -> Result<(Packed<'w>, &'w [f32]), Error> {
        let (k, stride) = (x.cols(), x.row_stride());
        if !self.config.activation.is_quantized() {
            let values: &mut [f32] = bytemuck::cast_slice_mut(workspace);
            let values = &mut values[..groups.len() * k];
            with_elements!(x.data(), FloatSlice, data => {
                activation::pack_f32(isa, Rows::new(data, k, stride, first), groups, values);
                Ok(())
            })?;
            return Ok((Packed::F32(values), &ONES));
        }
        let (blocks, scales) = split_workspace(workspace, groups.len(), k);
        if self.config.activation == ActivationScheme::Nvfp4DynamicPerToken {
            with_elements!(x.data(), FloatSlice, data => {
                let rows = Rows::new(data, k, stride, first);
                let scale = |r| activation::dynamic_scale(activation::absmax(isa, rows, r..r + 1));
                scales.iter_mut().enumerate().for_each(|(r, s)| *s = scale(r).decode().get());
                activation::quantize(isa, rows, scale, groups, blocks);
                Ok(())
            })?;
        } else {
            let scale = tensor_scale.ok_or(Error::Invalid(
                "the layer was planned without an input scale, which static W4A4 needs for x that is not quantized",
            ))?;
            scales.fill(scale.decode().get());
            with_elements!(x.data(), FloatSlice, data => {
                activation::quantize(isa, Rows::new(data, k, stride, first), |_| scale, groups, blocks);
                Ok(())
            })?;
        }
        Ok((Packed::Int(blocks), scales))
    }

    /// The same for an activation that is quantized already.
    fn unpack<'w>(
        &self,
        x: &QuantizedActivation,
        first: usize,
        groups: Groups,
        workspace: &'w mut [u64],
    ) -> Result<(Packed<'w>, &'w [f32]), Error> {
        let (blocks, scales) = split_workspace(workspace, groups.len(), x.k);
        activation::unpack(x, first, groups, blocks);
        match &x.global_scale {
            ActivationScale::PerToken(bytes) => {
                let rows = bytes.as_chunks::<4>().0.get(first..).unwrap_or_default();
                scales.iter_mut().zip(rows).for_each(|(s, b)| *s = f32::from_ne_bytes(*b));
            }
            ActivationScale::PerTensor(scale) => scales.fill(scale.decode().get()),
            _ => return Err(Error::Invalid("the quantized activation has global scales of an unknown kind")),
        }
        Ok((Packed::Int(blocks), scales))
    }
}

/// Room for the blocks and the global scales of `rows` rows of `k` values.
fn split_workspace(workspace: &mut [u64], rows: usize, k: usize) -> (&mut [QuantizedBlock], &mut [f32]) {
    let words: &mut [u32] = bytemuck::cast_slice_mut(workspace);
    let (blocks, rest) = words.split_at_mut(rows * (k / BLOCK_SIZE) * (size_of::<QuantizedBlock>() / 4));
    (bytemuck::cast_slice_mut(blocks), bytemuck::cast_slice_mut(&mut rest[..rows]))
}

/// The dynamic global scale of a whole matrix.
fn tensor_scale<I: Isa>(isa: I, x: MatrixRef<'_>) -> Result<GlobalScale, Error> {
    with_elements!(x.data(), FloatSlice, data => {
        let rows = Rows::new(data, x.cols(), x.row_stride(), 0);
        Ok(activation::dynamic_scale(activation::absmax(isa, rows, 0..x.rows())))
    })
}
