//! A linear layer in the memory of a CUDA device.

use crate::{
    LinearOptions, LoadError,
    plans::{PlanCache, PlanKey, row_bucket},
};
use nvfp4_core::{
    ActivationScheme, DType, Decision, Error, GlobalScale, LinearPlan, NvFp4LinearKernel, NvFp4LinearLayer,
    NvFp4LinearLayerConfig, PreparedWeights, QuantKey, QuantizedActivation, as_quantized_activation,
    kernel::LinearInput,
};
use nvfp4_cuda::{
    Cuda, Device, DeviceBuffer, DeviceBytesMut, DeviceMatrix, DeviceMatrixMut, DeviceVector, StreamRef,
};
use std::sync::Arc;

/// `y = x · Wᵀ + b` with NVFP4 weights on a CUDA device, prepared for the backend that was chosen for it.
///
/// The caller owns streams, operands and workspace, and calls from as many threads as it likes. A call enqueues kernels on the given
/// stream and does nothing else, once the layer is planned for its number of rows ([`warm_up`](Self::warm_up)): it does not
/// allocate, load or wait, so that it can be captured into a graph.
///
/// ```no_run
/// # #[cfg(feature = "checkpoint")] {
/// use nvfp4::{CudaLinear, DType, LinearOptions, checkpoint::Checkpoint, cuda};
/// let device = cuda::Device::new(0)?;
/// let checkpoint = Checkpoint::open("model")?;
/// let linear = CudaLinear::load(&checkpoint.linear("mlp.down_proj")?, &device, &LinearOptions::new())?;
/// println!("{}", linear.decision());
///
/// let (m, k, n) = (16, linear.in_features(), linear.out_features());
/// let x = cuda::DeviceBuffer::new(&device, m * k * 2)?;
/// let mut y = cuda::DeviceBuffer::new(&device, m * n * 2)?;
/// let mut workspace = cuda::DeviceBuffer::new(&device, linear.workspace_size(m)?)?;
/// let stream = cuda::Stream::new(&device)?;
/// linear.forward(
///     stream.as_ref(),
///     x.as_matrix(DType::Bf16, m, k)?,
///     y.as_matrix_mut(DType::Bf16, m, n)?,
///     workspace.as_bytes_mut(),
/// )?;
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CudaLinear {
    name: String,
    decision: Decision,
    kernel: Arc<dyn NvFp4LinearKernel<Cuda>>,
    prepared: Arc<dyn PreparedWeights>,
    input_scale: Option<GlobalScale>,
    /// `out_features` f32 values.
    bias: Option<DeviceBuffer>,
    plans: PlanCache<Cuda>,
}

impl CudaLinear {
    /// Chooses a backend of the registry for `layer` on `device` and prepares and uploads its weights. The tensors are not needed
    /// afterwards.
    ///
    /// Of the options count the registry, the policy, the element types and batch invariance; the device is the one given here, and
    /// scratch memory is the caller's.
    ///
    /// # Errors
    /// No backend can run the layer; the options allow the CPU, where this type cannot run, or keep the checkpoint; the layer is
    /// at fault; the device is out of memory.
    pub fn load(layer: &NvFp4LinearLayer<'_>, device: &Device, options: &LinearOptions) -> Result<Self, LoadError> {
        layer.check()?;
        if options.cpu_fallback || options.keep_checkpoint {
            return Err(LoadError::Layer(Error::Invalid(
                "a layer on a CUDA device neither falls back to the CPU nor keeps its checkpoint; use `Linear` for that",
            )));
        }
        let policy = match &options.policy {
            Some(policy) => policy.clone(),
            None => options.registry.policy_from_env()?,
        };
        let config =
            layer.config(options.input_dtype, options.output_dtype).with_batch_invariant(options.batch_invariant);
        let selected = options.registry.select(&device.facts(), &config, &policy);
        let decision = selected.map_err(|source| LoadError::Select { layer: layer.name.clone(), source })?;
        let kernel = options.registry.cuda_kernel(decision.chosen);
        let kernel = kernel
            .ok_or_else(|| LoadError::NotRunnable { layer: layer.name.clone(), id: decision.chosen })?
            .clone();
        let in_layer = |error: Error| error.in_tensor(layer.name.clone());
        let scales = layer.weights.scales();
        scales.check_values().map_err(|error| error.in_tensor(format!("{}.weight_scale", layer.name)))?;
        let prepared =
            kernel.process_weights_after_loading(device, &decision.config, &layer.weights).map_err(in_layer)?;
        let bias = layer.bias.as_ref().map(|bias| {
            let bytes: Vec<u8> = bias.iter().flat_map(|value| value.to_ne_bytes()).collect();
            DeviceBuffer::from_host(device, &bytes)
        });
        let bias = bias.transpose().map_err(|error| in_layer(error.into()))?;
        Ok(Self {
            name: layer.name.clone(),
            input_scale: layer.input_scale.filter(|_| decision.config.activation == ActivationScheme::Nvfp4Static),
            decision,
            kernel,
            prepared,
            bias,
            plans: PlanCache::default(),
        })
    }

    /// Name of the layer in the checkpoint.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Output features.
    pub const fn out_features(&self) -> usize {
        self.decision.config.out_features
    }
    /// Input features.
    pub const fn in_features(&self) -> usize {
        self.decision.config.in_features
    }
    /// The layer as it is run.
    pub const fn config(&self) -> &NvFp4LinearLayerConfig {
        &self.decision.config
    }
    /// Which backend runs the layer, why, and why not the others.
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }
    /// The backend.
    pub const fn kernel(&self) -> &Arc<dyn NvFp4LinearKernel<Cuda>> {
        &self.kernel
    }
    /// The weights in the layout of the backend.
    pub const fn prepared(&self) -> &Arc<dyn PreparedWeights> {
        &self.prepared
    }
    /// The key of pre-quantized activations that [`forward_quantized`](Self::forward_quantized) takes; `None` if none.
    pub fn input_quant_key(&self) -> Option<QuantKey> {
        self.kernel.input_quant_key(self.config())
    }

    /// Bytes of scratch memory for calls with up to `m` rows, whose address must be a multiple of 256. Plans for `m` rows.
    pub fn workspace_size(&self, m: usize) -> Result<usize, Error> {
        let mut largest = 0;
        for rows in buckets(m) {
            largest = largest.max(self.plan(rows)?.workspace_size());
        }
        Ok(largest)
    }

    /// Does ahead of time what is slow about the first call with up to `m` rows: choice of kernels, their loading.
    pub fn warm_up(&self, m: usize) -> Result<(), Error> {
        self.workspace_size(m).map(drop)
    }

    /// Enqueues `out = x · Wᵀ + bias`. `x` is `[m, in_features]`, `out` is `[m, out_features]`, `m` may be 0; both of the types that
    /// the layer was loaded for.
    pub fn forward(
        &self,
        stream: StreamRef<'_>,
        x: DeviceMatrix<'_>,
        out: DeviceMatrixMut<'_>,
        workspace: DeviceBytesMut<'_>,
    ) -> Result<(), Error> {
        let rows = x.rows();
        self.apply(stream, rows, LinearInput::Matrix(x), out, workspace)
    }

    /// Enqueues `out = x · Wᵀ + bias` for an activation that is quantized already, in device memory.
    pub fn forward_quantized(
        &self,
        stream: StreamRef<'_>,
        x: &QuantizedActivation<DeviceBuffer>,
        out: DeviceMatrixMut<'_>,
        workspace: DeviceBytesMut<'_>,
    ) -> Result<(), Error> {
        as_quantized_activation(x, self.input_quant_key())?;
        self.apply(stream, x.rows, LinearInput::Quantized(x), out, workspace)
    }

    fn apply(
        &self,
        stream: StreamRef<'_>,
        m: usize,
        x: LinearInput<'_, Cuda>,
        out: DeviceMatrixMut<'_>,
        workspace: DeviceBytesMut<'_>,
    ) -> Result<(), Error> {
        if m == 0 {
            let found = out.as_matrix().rows();
            return match found {
                0 => Ok(()),
                found => Err(Error::Size { what: "rows of out", expected: 0, found }),
            };
        }
        // SAFETY: `out_features` f32 values were uploaded, nothing writes them, and they live as long as `self`.
        let bias = self.bias.as_ref().map(|b| unsafe { DeviceVector::from_raw(b.address(), self.out_features()) });
        self.plan(m)?.apply_weights(stream, x, bias, out, workspace)
    }

    /// The plan for `m` rows.
    fn plan(&self, m: usize) -> Result<Arc<dyn LinearPlan<Cuda>>, Error> {
        let config = self.config();
        let (input, output): (DType, DType) = (config.input_dtype, config.output_dtype);
        let key = PlanKey { input, output, backend: 0, rows: row_bucket(m) };
        self.plans.get_or_make(key, || self.kernel.plan(config, &self.prepared, self.input_scale, row_bucket(m)))
    }
}

/// The row counts that calls with up to `m` rows are planned for.
fn buckets(m: usize) -> impl Iterator<Item = usize> {
    let last = row_bucket(m.max(1));
    std::iter::successors(Some(1), move |&rows: &usize| (rows < last).then(|| row_bucket(rows.saturating_add(1))))
}

#[cfg(test)]
mod tests {
    #[test]
    fn buckets_end_with_that_of_m() {
        assert_eq!(super::buckets(0).collect::<Vec<_>>(), [1]);
        assert_eq!(super::buckets(1).collect::<Vec<_>>(), [1]);
        assert_eq!(super::buckets(5).collect::<Vec<_>>(), [1, 2, 4, 8]);
        assert_eq!(super::buckets(8193).last(), Some(16384));
    }
}
