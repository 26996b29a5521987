//! The backend: support and preparation.

use crate::{
    choice::{Problem, chosen_tactic, default_tactic, tuning_candidates},
    loaded::{self, Devices, Loaded},
    plan::{TrtllmPlan, activation_scale_layout},
    tactic::Tactic,
    weights::{ShuffledWeights, shuffle_weights},
};
use nvfp4_core::{
    DeviceFacts, Error, GlobalScale, KernelId, KernelSupport, LinearPlan, NvFp4LinearKernel,
    NvFp4LinearLayerConfig, NvFp4Weights, PreparedWeights, ScaleLayout, Unsupported, kernel::WeightLayout,
    requirements::Requirements,
};
use nvfp4_cuda::{
    Cuda, Device, DeviceBuffer, StreamRef, Tuned, Tuner, TuningKey, epilogue::column_scales, measure::Bench, pack,
    tuner::row_bucket,
};
use std::{any::Any, path::PathBuf, sync::Arc};

/// NVFP4 W4A4 linear layers by the TensorRT-LLM-gen cubins, on SM100 and SM103; bf16 in and out.
///
/// `n` and `k` are padded with zeros where the kernels need it (32 and 64), and layers whose parts have global scales of
/// their own are multiplied column by column afterwards; upstream refuses the former and gets the latter wrong.
/// Results that are padded, biased or so multiplied are rounded to bf16 before and after.
#[derive(Debug)]
pub struct TrtllmNvFp4LinearKernel {
    roots: Vec<PathBuf>,
    devices: Devices,
    tuner: Arc<Tuner>,
}

impl TrtllmNvFp4LinearKernel {
    /// The backend with the packs on the [search path](pack::search_path). Touches no device.
    pub fn new() -> Self {
        Self::with_packs(pack::search_path())
    }

    /// The backend with the packs in these folders: `trtllm`, `quantize` and `epilogue`.
    pub fn with_packs(roots: Vec<PathBuf>) -> Self {
        Self { roots, devices: Devices::default(), tuner: Arc::default() }
    }

    /// The same with what a tuner has measured, which plans use where it is known. Batch-invariant layers do not.
    pub fn with_tuner(mut self, tuner: Arc<Tuner>) -> Self {
        self.tuner = tuner;
        self
    }

    /// Measures the candidates for up to `m` rows on the device of the weights, on `stream`, and remembers the fastest for
    /// every plan with as many rows (up to the next power of two). Takes seconds, allocates, and waits for the device.
    /// For a batch-invariant layer there is nothing to choose: it measures the one kernel.
    pub fn tune(
        &self,
        config: &NvFp4LinearLayerConfig,
        weights: &Arc<dyn PreparedWeights>,
        m: usize,
        stream: StreamRef<'_>,
    ) -> Result<Tuned, Error> {
        check_layer(config)?;
        stream.refuse_capture("tuning")?;
        let weights = TrtllmWeights::of(config, weights)?;
        let layout = activation_scale_layout(config, weights.padded_k, m);
        let problem = Problem::new(m, weights.padded_n, weights.padded_k)?;
        let none = Error::Invalid("no kernel runs this problem");
        let default = default_tactic(problem, layout).ok_or(none)?;
        let candidates = match config.batch_invariant {
            true => vec![default],
            false => tuning_candidates(problem, layout),
        };
        let name = |tactic: &Tactic| tactic.index.to_string();
        let names: Vec<String> = candidates.iter().map(|tactic| name(tactic)).collect();
        let mut bench = Bench::new(&weights.loaded.device, config, m)?;
        self.tuner.tune(&key(config, &weights, problem, layout), &name(default), &names, |wanted| {
            let tactic = candidates.iter().find(|tactic| name(tactic) == wanted).copied();
            let plan = TrtllmPlan::new(*config, weights.clone(), GlobalScale::ONE, m, |problem, layout| {
                // A plan for many rows has a kernel for few as well, which is not what is measured.
                tactic.filter(|tactic| tactic.activation_scales == layout).or(default_tactic(problem, layout))
            })?;
            bench.seconds(stream, &plan)
        })
    }

    fn choose(
        &self,
        config: &NvFp4LinearLayerConfig,
        weights: &TrtllmWeights,
        problem: Problem,
        layout: ScaleLayout,
    ) -> Option<&'static Tactic> {
        let measured = match config.batch_invariant {
            true => None,
            false => self.tuner.get(&key(config, weights, problem, layout)),
        };
        chosen_tactic(problem, layout, measured.and_then(|index| index.parse().ok()))
    }
}

impl Default for TrtllmNvFp4LinearKernel {
    fn default() -> Self {
        Self::new()
    }
}

/// The backend's row of requirements.
fn requirements() -> Result<&'static Requirements, Unsupported> {
    Requirements::of(KernelId::TRTLLM).ok_or(Unsupported::NotReleased)
}

pub(crate) fn check_layer(config: &NvFp4LinearLayerConfig) -> Result<(), Unsupported> {
    requirements()?.check_layer(config)
}

impl KernelSupport for TrtllmNvFp4LinearKernel {
    fn id(&self) -> KernelId {
        KernelId::TRTLLM
    }

    fn is_supported(&self, device: &DeviceFacts) -> Result<(), Unsupported> {
        requirements()?.check_device(device)?;
        match device.compute_capability() {
            Some(device) => {
                loaded::check_packs(&self.roots, device).map_err(|error| Unsupported::KernelPack(error.to_string()))
            }
            None => Ok(()),
        }
    }

    fn can_implement(&self, _: &DeviceFacts, config: &NvFp4LinearLayerConfig) -> Result<(), Unsupported> {
        check_layer(config)
    }

    fn weight_layout(&self, device: &DeviceFacts, _: &NvFp4LinearLayerConfig) -> WeightLayout {
        requirements().map_or(WeightLayout::SWIZZLED_128X4, |row| row.weight_layout(device))
    }
}

/// Weights on a device, and the kernels that read them.
#[derive(Debug)]
pub(crate) struct TrtllmWeights {
    layout: WeightLayout,
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) codes: DeviceBuffer,
    pub(crate) scales: DeviceBuffer,
    /// The global scale that is part of `alpha`.
    pub(crate) global: GlobalScale,
    /// For each output feature, the ratio of its own global scale to that one; `None` if all are 1.
    pub(crate) column_scale: Option<DeviceBuffer>,
    /// Shape with padding.
    pub(crate) padded_n: usize,
    pub(crate) padded_k: usize,
    /// Shape without.
    n: usize,
    k: usize,
}

/// What a measured choice holds for.
fn key(
    config: &NvFp4LinearLayerConfig,
    weights: &TrtllmWeights,
    problem: Problem,
    layout: ScaleLayout,
) -> TuningKey {
    let device = &weights.loaded.device;
    TuningKey {
        backend: KernelId::TRTLLM.to_string(),
        device: device.describe(),
        driver: device.driver_cuda(),
        pack: weights.loaded.pack_hash.clone(),
        m: row_bucket(problem.m() as usize),
        n: problem.n() as usize,
        k: problem.k() as usize,
        layer: format!("{} to {}, {layout:?}", config.input_dtype, config.output_dtype),
    }
}

impl TrtllmWeights {
    /// The type behind prepared weights, if it is this one and of the layer's shape.
    fn of(config: &NvFp4LinearLayerConfig, weights: &Arc<dyn PreparedWeights>) -> Result<Arc<Self>, Error> {
        let (n, k) = (config.out_features, config.in_features);
        let any: Arc<dyn Any + Send + Sync> = weights.clone();
        let found = match any.downcast::<Self>() {
            Ok(weights) if (weights.n, weights.k) == (n, k) => return Ok(weights),
            Ok(weights) => format!("{} [{}, {}]", weights.layout, weights.n, weights.k),
            Err(_) => weights.layout().to_string(),
        };
        Err(Error::Layout { expected: format!("trtllm-shuffled@1 [{n}, {k}] on the device"), found })
    }
}

impl PreparedWeights for TrtllmWeights {
    fn layout(&self) -> WeightLayout {
        self.layout
    }
    fn bytes(&self) -> usize {
        self.codes.len() + self.scales.len() + self.column_scale.as_ref().map_or(0, DeviceBuffer::len)
    }
}

impl NvFp4LinearKernel<Cuda> for TrtllmNvFp4LinearKernel {
    fn process_weights_after_loading(
        &self,
        device: &Device,
        config: &NvFp4LinearLayerConfig,
        weights: &NvFp4Weights<'_>,
    ) -> Result<Arc<dyn PreparedWeights>, Error> {
        check_layer(config)?;
        config.check_weights(weights)?;
        let loaded = self.devices.get(device, &self.roots)?;
        let (global, column_scale) = column_scales(device, weights.global())?;
        let ShuffledWeights { codes, scales, n: padded_n, k: padded_k } = shuffle_weights(weights)?;
        let upload = |bytes: &[u8]| DeviceBuffer::from_host(device, bytes);
        Ok(Arc::new(TrtllmWeights {
            layout: self.weight_layout(&device.facts(), config),
            codes: upload(&codes)?,
            scales: upload(&scales)?,
            column_scale,
            global,
            padded_n,
            padded_k,
            n: config.out_features,
            k: config.in_features,
            loaded,
        }))
    }

    fn plan(
        &self,
        config: &NvFp4LinearLayerConfig,
        weights: &Arc<dyn PreparedWeights>,
        input_scale: Option<GlobalScale>,
        m: usize,
    ) -> Result<Box<dyn LinearPlan<Cuda>>, Error> {
        check_layer(config)?;
        let weights = TrtllmWeights::of(config, weights)?;
        let input_scale =
            input_scale.ok_or(Error::Invalid("a W4A4 layer with a static input scale needs its `input_scale`"))?;
        let choose = |problem, layout| self.choose(config, &weights, problem, layout);
        Ok(Box::new(TrtllmPlan::new(*config, weights.clone(), input_scale, m, choose)?))
    }
}
