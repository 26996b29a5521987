//! A layer, ready to run: the choice of kernels has been made, they are loaded, and their workspace is known.

use crate::{
    choice::Problem,
    kernel::TrtllmWeights,
    launch::{KernelParams, Operands, launch_record},
    tactic::Tactic,
};
use nvfp4_core::{
    BLOCK_SIZE, DType, Error, GlobalScale, LinearPlan, NvFp4LinearLayerConfig, ScaleLayout,
    as_quantized_activation, kernel::LinearInput, quantize::QuantizeOptions,
};
use nvfp4_cuda::{
    Cuda, DeviceBuffer, DeviceBytesMut, DeviceMatrix, DeviceMatrixMut, DeviceVector, Kernel, StreamRef, TensorMap,
    epilogue::Columns,
    quantize::{InputScale, QuantizeOutput},
};
use std::{ffi::c_void, sync::Arc};

/// The parts of a workspace begin at multiples of this, and so must the workspace.
const ALIGNMENT: usize = 256;

/// The layout that activations are quantized to, one value for quantizer and GEMM: 8x4 for up to 32 rows, whose kernels
/// have small tiles; 128x4 above, where codes are padded along `k` (the 8x4 layout has no padded form), and always where
/// the number of rows must not show.
pub fn activation_scale_layout(config: &NvFp4LinearLayerConfig, padded_k: usize, m: usize) -> ScaleLayout {
    if config.batch_invariant || padded_k != config.in_features {
        ScaleLayout::Swizzled128x4
    } else {
        ScaleLayout::for_trtllm(m)
    }
}

/// Where the parts of a workspace lie, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkspaceParts {
    /// Offset of the activation's block scales; the codes are at 0.
    pub scales: usize,
    /// Offset of the padded output.
    pub staging: usize,
    /// Bytes in all.
    pub bytes: usize,
}

impl WorkspaceParts {
    /// For `m` rows, codes of `padded_k` columns, scales in `layout`, and `staged` output features that do not go straight
    /// to the caller.
    pub fn new(m: usize, padded_k: usize, layout: ScaleLayout, staged: usize) -> Result<Self, Error> {
        let overflow = Error::Overflow { what: "workspace" };
        let part = |bytes: Option<usize>| bytes.and_then(|b| b.checked_next_multiple_of(ALIGNMENT));
        let codes = part(m.checked_mul(padded_k / 2));
        let scales = part(Some(layout.len(m, padded_k / BLOCK_SIZE)?));
        let staging = part(m.checked_mul(staged).and_then(|v| v.checked_mul(2)));
        let sum = |a: Option<usize>, b: Option<usize>| a?.checked_add(b?);
        let (at_staging, bytes) = (sum(codes, scales), sum(sum(codes, scales), staging));
        match (codes, at_staging, bytes) {
            (Some(scales), Some(staging), Some(bytes)) => Ok(Self { scales, staging, bytes }),
            _ => Err(overflow),
        }
    }
}

/// A kernel and what it is launched as.
#[derive(Clone, Debug)]
struct Loaded {
    tactic: &'static Tactic,
    kernel: Kernel,
}

/// See [`LinearPlan`].
#[derive(Debug)]
pub(crate) struct TrtllmPlan {
    config: NvFp4LinearLayerConfig,
    weights: Arc<TrtllmWeights>,
    input_scale: GlobalScale,
    /// One f32: input scale times weight scale.
    alpha: DeviceBuffer,
    rows: usize,
    /// Kernels for the layouts that calls with up to `rows` rows use.
    kernels: Vec<Loaded>,
    /// Output features that are written to the workspace first; 0 if they go to the caller.
    staged: usize,
    workspace: usize,
}

impl TrtllmPlan {
    pub(crate) fn new(
        config: NvFp4LinearLayerConfig,
        weights: Arc<TrtllmWeights>,
        input_scale: GlobalScale,
        rows: usize,
        choose: impl Fn(Problem, ScaleLayout) -> Option<&'static Tactic>,
    ) -> Result<Self, Error> {
        let alpha = GlobalScale::alpha(input_scale, weights.global);
        let alpha = DeviceBuffer::from_host(&weights.loaded.device, &alpha.to_ne_bytes())?;
        // Rows of the output are copied in units of 16 bytes.
        let direct = weights.padded_n == config.out_features;
        let staged = if direct { 0 } else { weights.padded_n };
        let (mut kernels, mut workspace): (Vec<Loaded>, usize) = (Vec::new(), 0);
        // Calls with few rows may use another layout than calls with many.
        for m in [rows, rows.min(ScaleLayout::TRTLLM_8X4_ROWS)].into_iter().filter(|&m| m > 0) {
            let layout = activation_scale_layout(&config, weights.padded_k, m);
            workspace = workspace.max(WorkspaceParts::new(m, weights.padded_k, layout, staged)?.bytes);
            if kernels.iter().any(|loaded| loaded.tactic.activation_scales == layout) {
                continue;
            }
            let problem = Problem::new(m, weights.padded_n, weights.padded_k)?;
            let tactic = choose(problem, layout).ok_or(Error::Invalid("no kernel runs this problem"))?;
            kernels.push(Loaded { tactic, kernel: weights.loaded.kernel(tactic)? });
        }
        Ok(Self { config, weights, input_scale, alpha, rows, kernels, staged, workspace })
    }

    /// Checks the operands of a call; `Ok(false)` if there is nothing to do.
    fn check(
        &self,
        x: DeviceMatrix<'_>,
        out: DeviceMatrix<'_>,
        workspace: &DeviceBytesMut<'_>,
    ) -> Result<bool, Error> {
        let (m, n, k) = (x.rows(), self.config.out_features, self.config.in_features);
        for (what, expected, found) in [
            ("columns of the activation", k, x.cols()),
            ("columns of the output", n, out.cols()),
            ("rows of the output", m, out.rows()),
        ] {
            if expected != found {
                return Err(Error::Size { what, expected, found });
            }
        }
        if m > self.rows {
            return Err(Error::Size { what: "rows, at most as planned", expected: self.rows, found: m });
        }
        for (what, expected, found) in
            [("activation", self.config.input_dtype, x.dtype()), ("output", self.config.output_dtype, out.dtype())]
        {
            if expected != found {
                return Err(Error::DType { what, expected: "bf16, as the layer is configured", found });
            }
        }
        if m == 0 {
            return Ok(false);
        }
        if workspace.len() < self.workspace {
            return Err(Error::Size { what: "workspace bytes", expected: self.workspace, found: workspace.len() });
        }
        if !workspace.address().is_multiple_of(ALIGNMENT as u64) {
            return Err(Error::Invalid("the workspace is not aligned to 256 bytes"));
        }
        let aligned = out.address().is_multiple_of(16) && (m <= 1 || out.row_stride().is_multiple_of(8));
        if self.staged == 0 && !aligned {
            return Err(Error::Invalid(
                "output rows must begin at multiples of 16 bytes: pass an aligned output with a row stride of a \
                 multiple of 8 elements",
            ));
        }
        Ok(true)
    }

    /// Enqueues the GEMM.
    fn multiply(
        &self,
        stream: StreamRef<'_>,
        loaded: &Loaded,
        problem: Problem,
        operands: &Operands,
    ) -> Result<(), Error> {
        let record = launch_record(loaded.tactic, problem, operands);
        let mut maps = [TensorMap::UNUSED; 5];
        for (map, spec) in maps.iter_mut().zip(&record.maps) {
            *map = spec.encode(stream.device())?;
        }
        let mut parameters = KernelParams { maps, sparsity: TensorMap::UNUSED, words: record.words };
        let mut pointers = [(&raw mut parameters).cast::<c_void>()];
        // SAFETY: the kernel takes this block by value (checked against the cubins and the vendor's own host code); the
        // operands are borrowed by the caller and have the sizes that the problem says.
        unsafe { loaded.kernel.launch(stream, &record.config, &mut pointers) }?;
        Ok(())
    }
}

impl LinearPlan<Cuda> for TrtllmPlan {
    fn rows(&self) -> usize {
        self.rows
    }

    fn workspace_size(&self) -> usize {
        self.workspace
    }

    fn apply_weights(
        &self,
        stream: StreamRef<'_>,
        x: LinearInput<'_, Cuda>,
        bias: Option<DeviceVector<'_>>,
        out: DeviceMatrixMut<'_>,
        workspace: DeviceBytesMut<'_>,
    ) -> Result<(), Error> {
        let x = match x {
            LinearInput::Matrix(x) => x,
            LinearInput::Quantized(x) => return as_quantized_activation(x, None).map(drop),
        };
        if !self.check(x, out.as_matrix(), &workspace)? {
            return Ok(());
        }
        let (m, weights) = (x.rows(), &*self.weights);
        let layout = activation_scale_layout(&self.config, weights.padded_k, m);
        let loaded = self.kernels.iter().find(|loaded| loaded.tactic.activation_scales == layout);
        let loaded = loaded.ok_or(Error::Invalid("the plan has no kernel for this number of rows"))?;
        let problem = Problem::new(m, weights.padded_n, weights.padded_k)?;
        let parts = WorkspaceParts::new(m, weights.padded_k, layout, self.staged)?;
        let at = |offset: usize| workspace.address() + offset as u64;
        let to = out.as_matrix();
        let (output, row_stride) = match self.staged {
            // The stride of a single row is never taken, but a tensor map must have one.
            0 if m == 1 => (to.address(), to.cols().next_multiple_of(8)),
            0 => (to.address(), to.row_stride()),
            columns => (at(parts.staging), columns),
        };

        let options = QuantizeOptions { layout, padded_n: Some(weights.padded_k), exact: false };
        // SAFETY: the parts lie inside the workspace, which is borrowed mutably and large enough, and do not overlap.
        let quantized = unsafe {
            QuantizeOutput {
                codes: DeviceBytesMut::from_raw(at(0), parts.scales),
                scales: DeviceBytesMut::from_raw(at(parts.scales), parts.staging - parts.scales),
            }
        };
        let scale = InputScale::Static(self.input_scale.encode());
        weights.loaded.quantizer.quantize(stream, x, scale, options, quantized)?;

        let operands = Operands {
            activation: at(0),
            activation_scales: at(parts.scales),
            weight: weights.codes.address(),
            weight_scales: weights.scales.address(),
            alpha: self.alpha.address(),
            output,
            output_row_bytes: row_stride as u64 * DType::Bf16.size() as u64,
        };
        self.multiply(stream, loaded, problem, &operands)?;

        let scale = weights.column_scale.as_ref();
        if self.staged == 0 && bias.is_none() && scale.is_none() {
            return Ok(());
        }
        // SAFETY: what the GEMM has written, in the workspace or in the output, which the epilogue may do in place; column
        // scales are f32, one an output feature, and live as long as the plan.
        let (from, scale) = unsafe {
            (
                DeviceMatrix::from_raw(output, to.dtype(), m, self.config.out_features, row_stride),
                scale.map(|s| DeviceVector::from_raw(s.address(), self.config.out_features)),
            )
        };
        weights.loaded.epilogue.apply(stream, from, Columns { scale, bias }, &out)?;
        Ok(())
    }
}
