//! A linear layer that is ready to run.

use crate::{
    LinearOptions, Placement, PolicyError, Registry, WorkspacePool, host_cpu,
    plans::{PlanCache, PlanKey, row_bucket},
};
use nvfp4_core::{
    ActivationScheme, DType, Decision, DeviceFacts, Error, FloatSlice, FloatSliceMut, GlobalScale, Host, KernelId,
    LinearPlan, MatrixMut, MatrixRef, NvFp4LinearKernel, NvFp4LinearLayer, NvFp4LinearLayerConfig, PreparedWeights,
    QuantKey, QuantizedActivation, as_quantized_activation,
    kernel::LinearInput,
    select::{SelectError, Source, Verdict},
};
use std::sync::Arc;

/// A layer could not be loaded.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The environment asks for something impossible.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// No backend was chosen.
    #[error("layer `{layer}`: {source}")]
    Select {
        /// Name of the layer.
        layer: String,
        /// Why.
        source: SelectError,
    },
    /// The chosen backend answers questions but does not run layers in this kind of memory: [`Linear`] runs in host memory,
    /// `CudaLinear` on a CUDA device.
    #[error(
        "layer `{layer}`: backend `{id}` was chosen, but this registry has no code that runs it in this kind of memory"
    )]
    NotRunnable {
        /// Name of the layer.
        layer: String,
        /// The backend.
        id: KernelId,
    },
    /// The layer itself is at fault.
    #[error(transparent)]
    Layer(#[from] Error),
}

/// `y = x · Wᵀ + b` with NVFP4 weights, prepared for the backend that was chosen for it.
///
/// `forward` takes `&self` and may be called from many threads at once. The first call with a new range of row
/// counts plans (see [`warm_up`](Self::warm_up)); after that, calls allocate nothing.
///
/// ```
/// use nvfp4::{
///     ActivationScheme, DType, GlobalScale, GlobalScales, Linear, LinearOptions, LinearScales, MatrixMut, MatrixRef,
///     NvFp4LinearLayer, NvFp4Weights,
/// };
/// # #[cfg(feature = "cpu")] {
/// // 2 outputs, 16 inputs; every weight is 1.0 (code 2, block scale 1.0 = 0x38, global scale 0.5 and 0.25).
/// let scales = LinearScales::new(2, 1, vec![0x38; 2])?;
/// let global =
///     GlobalScales::from_parts([(1, GlobalScale::from_decode(0.5)?), (1, GlobalScale::from_decode(0.25)?)]);
/// let layer = NvFp4LinearLayer {
///     name: "proj".into(),
///     weights: NvFp4Weights::new(2, 16, vec![0x22; 16], scales, global)?,
///     activation: ActivationScheme::Unquantized,
///     input_scale: None,
///     bias: Some(vec![0.0, 1.0]),
/// };
/// let linear = Linear::load(&layer, &LinearOptions::new().with_dtypes(DType::F32, DType::F32))?;
///
/// let x = [1.0f32; 16];
/// let mut y = [0.0f32; 2];
/// linear.forward(MatrixRef::new(&x[..], 1, 16)?, MatrixMut::new(&mut y[..], 1, 2)?)?;
/// assert_eq!(y, [8.0, 5.0]);
/// println!("{}", linear.decision());
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Linear {
    name: String,
    /// Of the checkpoint; the layer may be run weight-only instead.
    scheme: ActivationScheme,
    placement: Placement,
    kernel: Arc<dyn NvFp4LinearKernel<Host>>,
    /// Other backends that run the same form of the layer from the same prepared weights.
    others: Vec<Arc<dyn NvFp4LinearKernel<Host>>>,
    weights: Loaded,
    workspaces: Arc<WorkspacePool>,
}

/// What changes when a layer is reloaded.
#[derive(Debug)]
struct Loaded {
    prepared: Arc<dyn PreparedWeights>,
    input_scale: Option<GlobalScale>,
    bias: Option<Vec<f32>>,
    checkpoint: Option<NvFp4LinearLayer<'static>>,
    plans: PlanCache<Host>,
}

impl Loaded {
    /// Checks a layer and brings it into the layout of `kernel`.
    fn new(
        layer: &NvFp4LinearLayer<'_>,
        config: &NvFp4LinearLayerConfig,
        kernel: &dyn NvFp4LinearKernel<Host>,
        keep_checkpoint: bool,
    ) -> Result<Self, Error> {
        let in_layer = |e: Error| e.in_tensor(layer.name.clone());
        layer.check()?;
        let scales = layer.weights.scales();
        scales.check_values().map_err(|e| e.in_tensor(format!("{}.weight_scale", layer.name)))?;
        Ok(Self {
            prepared: kernel.process_weights_after_loading(&(), config, &layer.weights).map_err(in_layer)?,
            input_scale: layer.input_scale.filter(|_| config.activation == ActivationScheme::Nvfp4Static),
            bias: layer.bias.clone(),
            checkpoint: keep_checkpoint.then(|| NvFp4LinearLayer {
                name: layer.name.clone(),
                weights: layer.weights.clone().into_owned(),
                activation: layer.activation,
                input_scale: layer.input_scale,
                bias: layer.bias.clone(),
            }),
            plans: PlanCache::default(),
        })
    }
}

impl Linear {
    /// Chooses a backend for `layer` and prepares its weights for it. The tensors are not needed afterwards.
    pub fn load(layer: &NvFp4LinearLayer<'_>, options: &LinearOptions) -> Result<Self, LoadError> {
        layer.check()?;
        let policy = match &options.policy {
            Some(policy) => policy.clone(),
            None => options.registry.policy_from_env()?,
        };
        let config =
            layer.config(options.input_dtype, options.output_dtype).with_batch_invariant(options.batch_invariant);
        let selected = if options.cpu_fallback {
            options.registry.select_or_cpu(&options.device, &host_cpu(), &config, &policy)
        } else {
            options.registry.select(&options.device, &config, &policy).map(|decision| Placement {
                device: options.device.clone(),
                decision,
                left: None,
            })
        };
        let placement = selected.map_err(|source| LoadError::Select { layer: layer.name.clone(), source })?;
        let decision = &placement.decision;
        let kernel = options
            .registry
            .kernel(decision.chosen)
            .ok_or_else(|| LoadError::NotRunnable { layer: layer.name.clone(), id: decision.chosen })?;
        let weights = Loaded::new(layer, &decision.config, kernel.as_ref(), options.keep_checkpoint)?;
        let others = sharing(&options.registry, kernel, &placement);
        Ok(Self {
            name: layer.name.clone(),
            scheme: layer.activation,
            kernel: kernel.clone(),
            others,
            weights,
            workspaces: options.workspaces.clone(),
            placement,
        })
    }

    /// Replaces the tensors by those of `layer`, which must be the same layer: same shape, scheme and kind of
    /// scales. The backend stays. On an error the old tensors stay.
    pub fn reload(&mut self, layer: &NvFp4LinearLayer<'_>) -> Result<(), Error> {
        let config = *self.config();
        let found = layer.config(config.input_dtype, config.output_dtype);
        let same = || {
            check_size("output features of the reloaded layer", config.out_features, found.out_features)?;
            check_size("input features of the reloaded layer", config.in_features, found.in_features)?;
            if (found.activation, found.weight_scale_kind) != (self.scheme, config.weight_scale_kind) {
                return Err(Error::Invalid(
                    "a layer is reloaded with the activation scheme and the kind of weight scales that it was loaded with",
                ));
            }
            Ok(())
        };
        same().map_err(|e: Error| e.in_tensor(layer.name.clone()))?;
        let kernel = self.kernel().clone();
        self.weights = Loaded::new(layer, &config, kernel.as_ref(), self.weights.checkpoint.is_some())?;
        Ok(())
    }

    /// Name of the layer in the checkpoint.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Output features.
    pub fn out_features(&self) -> usize {
        self.config().out_features
    }
    /// Input features.
    pub fn in_features(&self) -> usize {
        self.config().in_features
    }
    /// The layer as it is run.
    pub fn config(&self) -> &NvFp4LinearLayerConfig {
        &self.placement.decision.config
    }
    /// Which backend runs the layer, why, and why not the others.
    pub fn decision(&self) -> &Decision {
        &self.placement.decision
    }
    /// The decision, and the device that it is for.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }
    /// The backend.
    pub fn kernel(&self) -> &Arc<dyn NvFp4LinearKernel<Host>> {
        &self.kernel
    }
    /// The weights in the layout of the backend.
    pub fn prepared(&self) -> &Arc<dyn PreparedWeights> {
        &self.weights.prepared
    }
    /// Bytes that the prepared weights keep.
    pub fn prepared_bytes(&self) -> usize {
        self.weights.prepared.bytes()
    }
    /// The bias, if there is one.
    pub fn bias(&self) -> Option<&[f32]> {
        self.weights.bias.as_deref()
    }
    /// The checkpoint's tensors, if they were kept ([`LinearOptions::with_checkpoint_kept`]).
    pub fn checkpoint(&self) -> Option<&NvFp4LinearLayer<'static>> {
        self.weights.checkpoint.as_ref()
    }
    /// The static scale that inputs are quantized with; `None` if the layer runs weight-only or computes its scales.
    pub fn input_scale(&self) -> Option<GlobalScale> {
        self.weights.input_scale
    }
    /// The key of pre-quantized activations that [`forward_quantized`](Self::forward_quantized) takes and
    /// [`quantize`](Self::quantize) makes, or `None` if the layer takes none.
    pub fn input_quant_key(&self) -> Option<QuantKey> {
        self.kernel().input_quant_key(self.config())
    }

    /// Does ahead of time what the first call with up to `m` rows of these types would do: planning and scratch
    /// memory. Afterwards such calls allocate nothing.
    pub fn warm_up(&self, m: usize, input: DType, output: DType) -> Result<(), Error> {
        let mut rows = 1;
        loop {
            let plan = self.plan(rows.min(m.max(1)), input, output)?;
            self.workspaces.with(plan.workspace_size(), |_| ());
            if rows >= m {
                return Ok(());
            }
            rows = row_bucket(rows.saturating_add(1));
        }
    }

    /// Number of plans made so far.
    pub fn plans(&self) -> usize {
        self.weights.plans.len()
    }

    /// Writes `out = x · Wᵀ + bias`. `x` is `[m, in_features]`, `out` is `[m, out_features]`, `m` may be 0.
    pub fn forward(&self, x: MatrixRef<'_>, out: MatrixMut<'_>) -> Result<(), Error> {
        check_size("columns of x (input features)", self.in_features(), x.cols())?;
        self.apply(x.rows(), x.dtype(), LinearInput::Matrix(x), out)
    }

    /// As [`forward`](Self::forward) for a dense `x` of shape `[.., in_features]` and a dense `out` of shape
    /// `[.., out_features]`, with any leading dimensions (none included).
    ///
    /// ```
    /// # #[cfg(feature = "cpu")] {
    /// # use nvfp4::*;
    /// # let layer = NvFp4LinearLayer {
    /// #     name: "proj".into(),
    /// #     weights: NvFp4Weights::new(8, 16, vec![0x22; 64], LinearScales::new(8, 1, vec![0x38; 8])?,
    /// #         GlobalScales::per_tensor(8, GlobalScale::ONE))?,
    /// #     activation: ActivationScheme::Unquantized, input_scale: None, bias: None,
    /// # };
    /// # let linear = Linear::load(&layer, &LinearOptions::new().with_dtypes(DType::F32, DType::F32))?;
    /// let (x, mut y) = (vec![1.0f32; 2 * 3 * 16], vec![0.0f32; 2 * 3 * 8]);
    /// linear.forward_nd((&x[..]).into(), &[2, 3, 16], (&mut y[..]).into())?;
    /// assert_eq!(linear.output_shape(&[2, 3, 16])?, [2, 3, 8]);
    /// assert!(y.iter().all(|&v| v == 16.0));
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forward_nd(&self, x: FloatSlice<'_>, shape: &[usize], out: FloatSliceMut<'_>) -> Result<(), Error> {
        let rows = self.rows_of(shape)?;
        self.forward(MatrixRef::new(x, rows, self.in_features())?, MatrixMut::new(out, rows, self.out_features())?)
    }

    /// The shape of the output for an input of `shape`: the last dimension replaced.
    pub fn output_shape(&self, shape: &[usize]) -> Result<Vec<usize>, Error> {
        self.rows_of(shape)?;
        let mut shape = shape.to_vec();
        if let Some(last) = shape.last_mut() {
            *last = self.out_features();
        }
        Ok(shape)
    }

    /// Quantizes an activation once for several layers with the same input and input scale (q, k and v; gate and
    /// up). An error if the layer takes no quantized activations ([`input_quant_key`](Self::input_quant_key)).
    pub fn quantize(&self, x: MatrixRef<'_>) -> Result<QuantizedActivation, Error> {
        check_size("columns of x (input features)", self.in_features(), x.cols())?;
        crate::quantize_activation::quantize(x, self.input_quant_key(), self.weights.input_scale)
    }

    /// As [`quantize`](Self::quantize) for a dense `x` of shape `[.., in_features]`.
    pub fn quantize_nd(&self, x: FloatSlice<'_>, shape: &[usize]) -> Result<QuantizedActivation, Error> {
        let mut quantized = self.quantize(MatrixRef::new(x, self.rows_of(shape)?, self.in_features())?)?;
        quantized.orig_shape = shape.to_vec();
        Ok(quantized)
    }

    /// Writes `out = x · Wᵀ + bias` for an activation that is already quantized, with the global scale that it was
    /// quantized with. `out` is `[x.rows, out_features]`.
    pub fn forward_quantized(&self, x: &QuantizedActivation, out: MatrixMut<'_>) -> Result<(), Error> {
        as_quantized_activation(x, self.input_quant_key())?;
        x.check()?;
        check_size("k of the quantized activation (input features)", self.in_features(), x.k)?;
        self.apply(x.rows, x.orig_dtype, LinearInput::Quantized(x), out)
    }

    /// Product of the leading dimensions of `shape`, whose last must be `in_features`.
    fn rows_of(&self, shape: &[usize]) -> Result<usize, Error> {
        let Some((&last, leading)) = shape.split_last() else {
            return Err(Error::Invalid("x needs at least one dimension, [.., in_features]"));
        };
        check_size("last dimension of x (input features)", self.in_features(), last)?;
        if leading.contains(&0) {
            return Ok(0);
        }
        leading
            .iter()
            .try_fold(1usize, |rows, &dim| rows.checked_mul(dim))
            .ok_or(Error::Overflow { what: "rows of x (product of the leading dimensions)" })
    }

    fn apply(&self, m: usize, input: DType, x: LinearInput<'_, Host>, out: MatrixMut<'_>) -> Result<(), Error> {
        check_size("columns of out (output features)", self.out_features(), out.cols())?;
        check_size("rows of out", m, out.rows())?;
        if m == 0 {
            return Ok(());
        }
        let plan = self.plan(m, input, out.dtype())?;
        self.workspaces
            .with(plan.workspace_size(), |workspace| plan.apply_weights((), x, self.bias(), out, workspace))
    }

    /// The plan for `m` rows. Which one it is depends on `m` and the element types alone, not on earlier calls.
    fn plan(&self, m: usize, input: DType, output: DType) -> Result<Arc<dyn LinearPlan<Host>>, Error> {
        let config = self.config().with_dtypes(input, output);
        let (backend, rows) = self.route(m, &config)?;
        self.weights.plans.get_or_make(PlanKey { input, output, backend, rows }, || {
            let kernel = self.backends().nth(backend).unwrap_or(&self.kernel);
            kernel.plan(&config, &self.weights.prepared, self.weights.input_scale, rows)
        })
    }

    /// The first backend that runs `m` rows, by its place in [`backends`](Self::backends), and the rows to plan for:
    /// the bucket of `m`, or `m` itself if the backend stops short of the bucket.
    fn route(&self, m: usize, config: &NvFp4LinearLayerConfig) -> Result<(usize, usize), Error> {
        let device = &self.placement.device;
        let bucket = row_bucket(m);
        let mut refusal = None;
        for (place, kernel) in self.backends().enumerate() {
            let rows = kernel.can_implement(device, config).and_then(|()| {
                let runs = |rows| kernel.can_run_rows(device, config, rows).map(|()| rows);
                runs(bucket).or_else(|_| runs(m))
            });
            match rows {
                Ok(rows) => return Ok((place, rows)),
                Err(reason) => refusal = refusal.or(Some(reason)),
            }
        }
        Err(refusal.map_or(Error::Invalid("the layer has no backend"), Error::Unsupported))
    }

    fn backends(&self) -> impl Iterator<Item = &Arc<dyn NvFp4LinearKernel<Host>>> {
        std::iter::once(&self.kernel).chain(&self.others)
    }
}

fn check_size(what: &'static str, expected: usize, found: usize) -> Result<(), Error> {
    if expected == found { Ok(()) } else { Err(Error::Size { what, expected, found }) }
}

/// Every eligible backend but `kernel` that runs the same form of the layer, reads the same weight layout and takes
/// the same quantized activations. They stand in for row counts that `kernel` does not run.
fn sharing(
    registry: &Registry,
    kernel: &Arc<dyn NvFp4LinearKernel<Host>>,
    placement: &Placement,
) -> Vec<Arc<dyn NvFp4LinearKernel<Host>>> {
    let (device, config): (&DeviceFacts, _) = (&placement.device, &placement.decision.config);
    // A forced backend is never replaced, not even for some row counts; and two backends, each batch-invariant, are
    // not so together.
    if placement.decision.source == Source::Forced || config.batch_invariant {
        return Vec::new();
    }
    placement
        .decision
        .candidates
        .iter()
        .filter(|c| matches!(c.verdict, Verdict::Eligible(scheme) if scheme == config.activation))
        .filter_map(|c| registry.kernel(c.id))
        .filter(|other| {
            other.weight_layout(device, config) == kernel.weight_layout(device, config)
                && other.input_quant_key(config) == kernel.input_quant_key(config)
        })
        .cloned()
        .collect()
}
