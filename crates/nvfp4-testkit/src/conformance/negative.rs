//! Calls that must be refused with an error, not a panic, and layers that a backend says it cannot run.

use super::Report;
use crate::{
    implementation::{Implementation, Input, Kernel, TestMemory},
    layers::{Case, Example, SCHEMES, dtype_pairs, random},
    matrices::HostMatrix,
    oracle,
    random::Rng,
};
use nvfp4_core::{
    ActivationScheme, Error, LinearPlan, NvFp4LinearLayerConfig, PreparedWeights, QuantKey, QuantizedActivation,
    ScaleLayout, WeightScaleKind, kernel::WeightLayout,
};
use std::sync::Arc;

const M: usize = 3;
const N: usize = 20;
const K: usize = 80;

/// Runs the tier.
pub fn run<T: TestMemory>(kernel: &Kernel<'_, T>, seed: u64) -> Report {
    let mut report = Report::new("negative", kernel.name());
    let mut rng = Rng::new(seed);
    for scheme in SCHEMES {
        for dtypes in dtype_pairs() {
            let case = Case::new(M, N, K, scheme, rng.bits()).with_dtypes(dtypes);
            match kernel.can_run(&case.config) {
                Ok(()) => Accused { kernel, example: random(case) }.judge(&mut report),
                // What it says it cannot run, it must not run.
                Err(_) => refuses_layer(&mut report, kernel, &random(case)),
            }
        }
    }
    refuses_what_it_says(&mut report, kernel, &mut rng);
    report
}

/// A layer that [`can_implement`](nvfp4_core::KernelSupport::can_implement) refuses must not load and run.
fn refuses_layer<T: TestMemory>(report: &mut Report, kernel: &Kernel<'_, T>, example: &Example) {
    let case = example.case;
    let ran = kernel.load(&example.layer, &case.config).and_then(|loaded| {
        let mut out = HostMatrix::filled(
            case.config.output_dtype,
            case.m,
            case.config.out_features,
            case.config.out_features,
            0,
        );
        loaded.run(case.m, Input::Matrix(example.x.view()), out.view_mut(), 0)
    });
    report.check(ran.is_err(), case, || "runs a layer that it says it cannot run".into());
}

/// The same for several global scales and batch invariance.
fn refuses_what_it_says<T: TestMemory>(report: &mut Report, kernel: &Kernel<'_, T>, rng: &mut Rng) {
    for scheme in SCHEMES {
        let case = Case::new(M, N, K, scheme, rng.bits());
        if kernel.can_run(&case.config).is_err() {
            continue;
        }
        let fused = case.with_parts(2);
        if kernel.can_run(&fused.config).is_err() {
            refuses_layer(report, kernel, &random(fused));
        }
        // Weights with several global scales behind a configuration that promises one.
        let mut lying = random(fused);
        lying.case.config = fused.config.with_weight_scale_kind(WeightScaleKind::PerTensor);
        let loaded = kernel.load(&lying.layer, &lying.case.config);
        let right = match loaded {
            Err(_) => true,
            Ok(loaded) => {
                let mut inner = Report::new("negative", String::new());
                super::run_and_compare(&mut inner, &lying, loaded.as_ref(), super::Bar::Bounded);
                inner.failures().is_empty()
            }
        };
        report.check(right, fused, || "takes weights with two global scales for one, and runs them wrongly".into());
    }
}

/// A layer that loads and runs, and the calls that it must refuse.
struct Accused<'a, 'k, T: TestMemory> {
    kernel: &'a Kernel<'k, T>,
    example: Example,
}

/// Weights that no kernel knows, with a layout that claims to be one it does.
#[derive(Debug)]
struct ForeignWeights(WeightLayout);

impl PreparedWeights for ForeignWeights {
    fn layout(&self) -> WeightLayout {
        self.0
    }
    fn bytes(&self) -> usize {
        0
    }
}

type Prepared = Arc<dyn PreparedWeights>;

impl<T: TestMemory> Accused<'_, '_, T> {
    fn judge(&self, report: &mut Report) {
        let case = self.example.case;
        let prepared = match self.prepare(&case.config) {
            Ok(prepared) => prepared,
            Err(error) => return report.failed(case, format!("the layer does not load: {error}")),
        };
        let promised = self.kernel.kernel.weight_layout(&self.kernel.memory.device(), &case.config);
        report.check(prepared.layout() == promised, case, || {
            format!("promises layout {promised}, prepares {}", prepared.layout())
        });
        report.check(prepared.bytes() >= N * K / 2, case, || {
            format!("says that it keeps {} bytes of {N}x{K} weights", prepared.bytes())
        });
        self.wrong_configurations(report, &prepared);
        self.foreign_weights(report, promised);
        match self.plan(&prepared) {
            Ok(plan) => {
                self.wrong_matrices(report, plan.as_ref());
                self.wrong_bias_and_workspace(report, plan.as_ref());
                self.wrong_quantized_inputs(report, plan.as_ref());
            }
            Err(error) => report.failed(case, format!("does not plan: {error}")),
        }
        if case.config.activation == ActivationScheme::Nvfp4Static {
            let planned = self.kernel.kernel.plan(&case.config, &prepared, None, M);
            let ran = planned.and_then(|plan| self.apply(plan.as_ref(), self.input(), None, N, M));
            report.check(ran.is_err(), case, || "quantizes without an input scale".into());
        }
    }

    fn input(&self) -> Input<'_> {
        Input::Matrix(self.example.x.view())
    }

    fn prepare(&self, config: &NvFp4LinearLayerConfig) -> Result<Prepared, Error> {
        self.kernel.kernel.process_weights_after_loading(
            self.kernel.memory.context(),
            config,
            &self.example.layer.weights,
        )
    }

    fn plan(&self, prepared: &Prepared) -> Result<Box<dyn LinearPlan<T::Memory>>, Error> {
        self.kernel.kernel.plan(&self.example.case.config, prepared, self.example.layer.input_scale, M)
    }

    /// Applies a plan to an output of `rows × cols`.
    fn apply(
        &self,
        plan: &dyn LinearPlan<T::Memory>,
        x: Input<'_>,
        bias: Option<&[f32]>,
        cols: usize,
        rows: usize,
    ) -> Result<(), Error> {
        let mut out = HostMatrix::filled(self.example.case.config.output_dtype, rows, cols, cols, 0);
        self.kernel.memory.apply(plan, x, bias, out.view_mut(), plan.workspace_size(), 0)
    }

    /// Weights must have the shape that the configuration says, when prepared and when planned.
    fn wrong_configurations(&self, report: &mut Report, prepared: &Prepared) {
        let config = self.example.case.config;
        for (n, k) in [(N + 1, K), (N - 1, K), (N, K + 16), (N, K - 16), (2 * N, K / 2), (0, K), (N, 0)] {
            let other = NvFp4LinearLayerConfig::w4a4(n, k)
                .with_activation(config.activation)
                .with_dtypes(config.input_dtype, config.output_dtype);
            let prepares = self.prepare(&other).is_ok();
            report.check(!prepares, self.example.case, || format!("prepares {N}x{K} weights as {n}x{k}"));
            let plans = self.kernel.kernel.plan(&other, prepared, self.example.layer.input_scale, M).is_ok();
            report.check(!plans, self.example.case, || format!("plans {N}x{K} weights as {n}x{k}"));
        }
    }

    /// Weights of another layout, and of this layout by name only.
    fn foreign_weights(&self, report: &mut Report, own: WeightLayout) {
        for layout in [WeightLayout::new("conformance-foreign", 7), own] {
            let weights: Prepared = Arc::new(ForeignWeights(layout));
            let refused = matches!(self.plan(&weights), Err(Error::Layout { .. }));
            report.check(refused, self.example.case, || {
                format!("does not refuse foreign weights of layout {layout} with Error::Layout")
            });
        }
    }

    fn wrong_matrices(&self, report: &mut Report, plan: &dyn LinearPlan<T::Memory>) {
        let case = self.example.case;
        let (input, rows) = (case.config.input_dtype, plan.rows());
        let x = |m, k| HostMatrix::filled(input, m, k, k, 0);
        for (what, x, rows, cols) in [
            ("x too narrow", x(M, K - 16), M, N),
            ("x too wide", x(M, K + 16), M, N),
            ("out too narrow", x(M, K), M, N - 1),
            ("out too wide", x(M, K), M, N + 1),
            ("out with too few rows", x(M, K), M - 1, N),
            ("out with too many rows", x(M, K), M + 1, N),
            ("more rows than planned", x(rows + 1, K), rows + 1, N),
        ] {
            let ran = self.apply(plan, Input::Matrix(x.view()), None, cols, rows);
            report.check(ran.is_err(), case, || format!("accepts {what}"));
        }
    }

    fn wrong_bias_and_workspace(&self, report: &mut Report, plan: &dyn LinearPlan<T::Memory>) {
        let case = self.example.case;
        for len in [0, N - 1, N + 1] {
            let ran = self.apply(plan, self.input(), Some(&vec![0.0; len]), N, M);
            report.check(ran.is_err(), case, || format!("accepts a bias of {len} values for {N} outputs"));
        }
        if let Some(less) = plan.workspace_size().checked_sub(8) {
            let mut out = HostMatrix::filled(case.config.output_dtype, M, N, N, 0);
            let ran = self.kernel.memory.apply(plan, self.input(), None, out.view_mut(), less, 0);
            report.check(ran.is_err(), case, || format!("accepts {less} bytes of scratch memory"));
        }
    }

    fn wrong_quantized_inputs(&self, report: &mut Report, plan: &dyn LinearPlan<T::Memory>) {
        let case = self.example.case;
        let Some(key) = self.kernel.kernel.input_quant_key(&case.config) else { return };
        let good = oracle::quantize(
            self.example.x.view(),
            case.config.activation,
            self.example.layer.input_scale,
            ScaleLayout::Swizzled128x4,
            K,
        );
        let ran = self.apply(plan, Input::Quantized(&good), None, N, M);
        report.check(ran.is_ok(), case, || format!("refuses a good quantized activation: {ran:?}"));

        let other_key = [QuantKey::NVFP4_DYNAMIC, QuantKey::NVFP4_DYNAMIC_TOKEN].into_iter().find(|k| *k != key);
        type Spoil = fn(&mut QuantizedActivation);
        let spoils: [(&str, Spoil); 8] = [
            ("codes that are too short", |x| x.data.truncate(x.data.len() - 1)),
            ("codes that are too long", |x| x.data.push(0)),
            ("scales that are too short", |x| x.scale.truncate(x.scale.len() - 1)),
            ("scales of another layout", |x| x.scale_layout = ScaleLayout::Swizzled8x4),
            ("k of another layer", |x| x.k -= 16),
            ("padded_k below k", |x| x.padded_k = 64),
            ("more rows than data", |x| x.rows += 1),
            ("the key of a weight", |x| x.quant_key = QuantKey::NVFP4_STATIC),
        ];
        let spoilt = spoils.into_iter().map(|(what, spoil)| {
            let mut x = good.clone();
            spoil(&mut x);
            (what, x)
        });
        let other = other_key.map(|quant_key| ("another key", QuantizedActivation { quant_key, ..good.clone() }));
        for (what, x) in spoilt.chain(other) {
            let ran = self.apply(plan, Input::Quantized(&x), None, N, M.max(x.rows));
            report.check(ran.is_err(), case, || format!("accepts a quantized activation with {what}"));
        }
    }
}
