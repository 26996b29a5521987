//! Layers and backends for the tests of the facade.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use nvfp4::{
    ActivationScheme, DType, DeviceFacts, Error, GlobalScale, GlobalScales, Host, KernelId, KernelSupport, Linear,
    LinearOptions, LinearPlan, LinearScales, MatrixMut, MatrixRef, NvFp4LinearKernel, NvFp4LinearLayer,
    NvFp4LinearLayerConfig, NvFp4Weights, Policy, PreparedWeights, QuantKey, Unsupported, WeightScaleKind,
    cpu::CpuNvFp4LinearKernel, kernel::WeightLayout,
};
use nvfp4_testkit::random::Rng;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// A random layer with a bias and one global scale.
pub fn layer(n: usize, k: usize, scheme: ActivationScheme, seed: u64) -> NvFp4LinearLayer<'static> {
    let mut rng = Rng::new(seed);
    let scales = (0..n * k / 16).map(|_| rng.between(0x20, 0x50) as u8).collect::<Vec<_>>();
    NvFp4LinearLayer {
        name: "model.layers.0.mlp.down_proj".into(),
        weights: NvFp4Weights::new(
            n,
            k,
            rng.bytes(n * k / 2),
            LinearScales::new(n, k / 16, scales).unwrap(),
            GlobalScales::per_tensor(n, GlobalScale::from_decode(3e-3).unwrap()),
        )
        .unwrap(),
        activation: scheme,
        input_scale: (scheme == ActivationScheme::Nvfp4Static).then(|| GlobalScale::from_decode(1.5e-3).unwrap()),
        bias: Some((0..n).map(|_| rng.normal() as f32).collect()),
    }
}

/// Options that do not read the environment, f32 in and out.
pub fn options() -> LinearOptions {
    LinearOptions::new().with_policy(Policy::default()).with_dtypes(DType::F32, DType::F32)
}

/// Random values.
pub fn values(len: usize, seed: u64) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.normal() as f32).collect()
}

/// The output for the dense rows `x`.
pub fn forward(linear: &Linear, x: &[f32]) -> Vec<f32> {
    let (n, k) = (linear.out_features(), linear.in_features());
    let m = x.len() / k;
    let mut out = vec![f32::NAN; m * n];
    linear
        .forward(MatrixRef::new(x, m, k).unwrap(), MatrixMut::new(&mut out[..], m, n).unwrap())
        .unwrap_or_else(|e| panic!("{m} rows: {e}"));
    out
}

/// The CPU backend under another name, with limits.
#[derive(Debug)]
pub struct Limited {
    pub name: &'static str,
    pub inner: CpuNvFp4LinearKernel,
    /// Rows that it runs at most.
    pub rows: usize,
    /// Takes weights with several global scales.
    pub per_row_scale: bool,
    /// How often it was asked to prepare and to plan.
    pub prepared: AtomicUsize,
    pub planned: AtomicUsize,
}

impl Limited {
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            inner: CpuNvFp4LinearKernel::new(),
            rows: usize::MAX,
            per_row_scale: true,
            prepared: AtomicUsize::new(0),
            planned: AtomicUsize::new(0),
        }
    }
}

impl KernelSupport for Limited {
    fn id(&self) -> KernelId {
        KernelId::new(self.name)
    }
    fn is_supported(&self, device: &DeviceFacts) -> Result<(), Unsupported> {
        self.inner.is_supported(device)
    }
    fn can_implement(&self, device: &DeviceFacts, config: &NvFp4LinearLayerConfig) -> Result<(), Unsupported> {
        if config.weight_scale_kind == WeightScaleKind::PerRow && !self.per_row_scale {
            return Err(Unsupported::PerRowScale);
        }
        self.inner.can_implement(device, config)
    }
    fn can_run_rows(&self, _: &DeviceFacts, _: &NvFp4LinearLayerConfig, m: usize) -> Result<(), Unsupported> {
        if m <= self.rows {
            return Ok(());
        }
        Err(Unsupported::Rows { needed: format!("1..={}", self.rows), found: m })
    }
    fn weight_layout(&self, device: &DeviceFacts, config: &NvFp4LinearLayerConfig) -> WeightLayout {
        self.inner.weight_layout(device, config)
    }
    fn input_quant_key(&self, config: &NvFp4LinearLayerConfig) -> Option<QuantKey> {
        self.inner.input_quant_key(config)
    }
}

impl NvFp4LinearKernel<Host> for Limited {
    fn process_weights_after_loading(
        &self,
        context: &(),
        config: &NvFp4LinearLayerConfig,
        weights: &NvFp4Weights<'_>,
    ) -> Result<Arc<dyn PreparedWeights>, Error> {
        self.prepared.fetch_add(1, Ordering::Relaxed);
        self.inner.process_weights_after_loading(context, config, weights)
    }
    fn plan(
        &self,
        config: &NvFp4LinearLayerConfig,
        weights: &Arc<dyn PreparedWeights>,
        input_scale: Option<GlobalScale>,
        m: usize,
    ) -> Result<Box<dyn LinearPlan<Host>>, Error> {
        assert!(m <= self.rows, "planned for {m} rows, runs {}", self.rows);
        self.planned.fetch_add(1, Ordering::Relaxed);
        self.inner.plan(config, weights, input_scale, m)
    }
}
