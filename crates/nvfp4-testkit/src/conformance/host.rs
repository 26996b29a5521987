//! Answers about devices and layers that are not here: plain functions, which must not fail, must agree with
//! themselves, and must know their own device.

use super::Report;
use crate::{
    implementation::{Implementation, Kernel, TestMemory},
    layers::{SCHEMES, dtype_pairs},
    random::Rng,
};
use nvfp4_core::{
    ComputeCapability, CpuFacts, CudaFacts, DeviceFacts, NvFp4LinearLayerConfig, Unsupported, WeightScaleKind,
};

/// Devices that exist, and one (12.9) that does not.
fn devices() -> Vec<DeviceFacts> {
    let gpu = |cc| DeviceFacts::Cuda(CudaFacts::new(cc));
    let cpu = DeviceFacts::Cpu(CpuFacts::new("a CPU", Vec::new(), 1));
    let known = [
        ComputeCapability::SM80,
        ComputeCapability::SM89,
        ComputeCapability::SM90,
        ComputeCapability::SM100,
        ComputeCapability::SM103,
        ComputeCapability::SM110,
        ComputeCapability::SM120,
        ComputeCapability::SM121,
        ComputeCapability::new(12, 9),
    ];
    known.into_iter().map(gpu).chain([cpu]).collect()
}

/// Runs the tier.
pub fn run<T: TestMemory>(kernel: &Kernel<'_, T>, seed: u64) -> Report {
    let mut report = Report::new("host", kernel.name());
    let mut rng = Rng::new(seed);
    let own = kernel.memory.device();
    let name = kernel.name();
    report.check(kernel.kernel.is_supported(&own).is_ok(), &name, || {
        format!("does not run on its own device {own}: {:?}", kernel.kernel.is_supported(&own))
    });
    report.check(!name.is_empty() && name.chars().all(|c| !c.is_whitespace() && !c.is_uppercase()), &name, || {
        "the name is not lower case without spaces".into()
    });
    for device in devices() {
        let other_kind = matches!((&own, &device), (DeviceFacts::Cpu(_), DeviceFacts::Cuda(_)))
            || matches!((&own, &device), (DeviceFacts::Cuda(_), DeviceFacts::Cpu(_)));
        if other_kind {
            let refused = matches!(kernel.kernel.is_supported(&device), Err(Unsupported::Device { .. }));
            report.check(refused, &name, || format!("does not refuse {device} as a device of another kind"));
        }
        for config in configurations(&mut rng) {
            let first = kernel.kernel.can_implement(&device, &config);
            report.check(first == kernel.kernel.can_implement(&device, &config), &name, || {
                format!("gives two answers about {config:?}")
            });
            // These must answer, whatever is asked.
            let layout = kernel.kernel.weight_layout(&device, &config);
            report.check(layout == kernel.kernel.weight_layout(&device, &config), &name, || {
                format!("gives two layouts for {config:?}")
            });
            let key = kernel.kernel.input_quant_key(&config);
            let right_key = key.is_none() || key == config.activation.quant_key();
            report.check(right_key, &name, || format!("asks for activations {key:?} for {config:?}"));
        }
    }
    impossible_layers(&mut report, kernel);
    report
}

/// Layers of all kinds, some of impossible size.
fn configurations(rng: &mut Rng) -> Vec<NvFp4LinearLayerConfig> {
    let sizes = [0, 1, 15, 16, 17, 128, 352, 4096, 248_320, usize::MAX / 16 * 16, usize::MAX];
    let mut list = Vec::new();
    for scheme in SCHEMES {
        for (input, output) in dtype_pairs() {
            let kind = *rng.pick(&[WeightScaleKind::PerTensor, WeightScaleKind::PerRow]);
            list.push(
                NvFp4LinearLayerConfig::w4a4(*rng.pick(&sizes), *rng.pick(&sizes))
                    .with_activation(scheme)
                    .with_dtypes(input, output)
                    .with_weight_scale_kind(kind)
                    .with_batch_invariant(rng.flip()),
            );
        }
    }
    list
}

/// No layer has `n = 0`, `k = 0` or `k` that cuts a block: never «can implement».
fn impossible_layers<T: TestMemory>(report: &mut Report, kernel: &Kernel<'_, T>) {
    let own = kernel.memory.device();
    for scheme in SCHEMES {
        for (n, k) in [(0, 64), (64, 0), (64, 24), (64, 8), (1, usize::MAX)] {
            let config = NvFp4LinearLayerConfig::w4a4(n, k).with_activation(scheme);
            let able = kernel.kernel.can_implement(&own, &config).is_ok();
            report.check(!able, kernel.name(), || format!("says that it can run a layer of {n}x{k}"));
        }
    }
}
