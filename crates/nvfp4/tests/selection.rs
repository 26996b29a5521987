//! The registry: every backend is explained, names are checked, nothing is substituted unasked.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use nvfp4::{
    ActivationScheme, BACKEND_VARIABLE, ComputeCapability, CpuFacts, DISABLE_VARIABLE, DeviceFacts, KNOWN_GPUS,
    KernelId, Linear, LoadError, NvFp4LinearLayerConfig, Policy, PolicyError, Registry, Unsupported,
    WeightScaleKind, gpu, host_device,
    requirements::{REQUIREMENTS, Requirements},
    select::{Choice, Disabled, Note, SelectError, Verdict},
};
use std::{collections::BTreeSet, ffi::OsString, sync::Arc};
use support::{Limited, layer, options};

const W4A4: NvFp4LinearLayerConfig = NvFp4LinearLayerConfig::w4a4(4096, 4096);
const W4A16: NvFp4LinearLayerConfig = NvFp4LinearLayerConfig::w4a16(4096, 4096);

fn named(name: &str) -> DeviceFacts {
    gpu(name).unwrap()
}

fn cpu_facts() -> CpuFacts {
    CpuFacts::new("test", Vec::new(), 1)
}

fn force(name: &str) -> Policy {
    Policy { choice: Choice::Force(name.into()), ..Policy::default() }
}

/// Why a backend was not taken.
fn reason(error: &SelectError, id: KernelId) -> &Unsupported {
    let SelectError::NoneEligible(reasons) = error else { panic!("{error}") };
    &reasons.iter().find(|(other, _)| *other == id).unwrap_or_else(|| panic!("{id} is missing: {error}")).1
}

/// The registry with GPU backends of which some have kernels for some architectures.
fn built_for(images: &[(KernelId, &[&'static str], &[u32])]) -> Registry {
    images.iter().fold(Registry::installed(), |registry, &(id, packaged, numbers)| {
        let row = Requirements::of(id).unwrap();
        registry.with_support(Arc::new(Built { row, packaged: packaged.to_vec(), numbers: numbers.to_vec() }))
    })
}

/// A backend with kernels for some architectures only.
#[derive(Debug)]
struct Built {
    row: &'static Requirements,
    packaged: Vec<&'static str>,
    numbers: Vec<u32>,
}

impl nvfp4::KernelSupport for Built {
    fn id(&self) -> KernelId {
        self.row.id
    }
    fn is_supported(&self, device: &DeviceFacts) -> Result<(), Unsupported> {
        self.row.check_device(device)?;
        let Some(cc) = device.compute_capability() else { panic!("no GPU passes check_device") };
        if self.numbers.contains(&cc.number()) {
            return Ok(());
        }
        let packaged = self.packaged.iter().map(|image| image.to_string()).collect();
        Err(Unsupported::NotBuilt { backend: self.row.id.as_str(), device: cc, packaged })
    }
    fn can_implement(&self, _: &DeviceFacts, config: &NvFp4LinearLayerConfig) -> Result<(), Unsupported> {
        self.row.check_layer(config)
    }
    fn weight_layout(&self, device: &DeviceFacts, config: &NvFp4LinearLayerConfig) -> nvfp4::kernel::WeightLayout {
        self.row.support(Ok(())).weight_layout(device, config)
    }
}

#[test]
fn every_backend_is_in_the_registry_and_in_every_answer() {
    let registry = Registry::installed();
    let ids: BTreeSet<_> = registry.ids().collect();
    let expected: BTreeSet<_> = REQUIREMENTS.iter().map(|row| row.id).chain([KernelId::CPU]).collect();
    assert_eq!(ids, expected);
    assert_eq!(ids.len(), 7);
    for device in KNOWN_GPUS.iter().map(|g| named(g.names[0])).chain([host_device(), named("sm_129")]) {
        for config in [W4A4, W4A16] {
            let listed: BTreeSet<_> = match registry.select(&device, &config, &Policy::default()) {
                Ok(decision) => decision.candidates.iter().map(|c| c.id).collect(),
                Err(SelectError::NoneEligible(reasons)) => reasons.iter().map(|r| r.0).collect(),
                Err(other) => panic!("{other}"),
            };
            assert_eq!(listed, expected, "{device}");
        }
    }
}

#[test]
fn a_gpu_gets_honest_reasons_and_the_cpu_only_if_allowed() {
    let registry = Registry::installed();
    let device = named("B200");
    let error = registry.select(&device, &W4A4, &Policy::default()).unwrap_err();
    assert_eq!(reason(&error, KernelId::CUTLASS), &Unsupported::NotReleased);
    assert!(matches!(reason(&error, KernelId::CPU), Unsupported::Device { .. }));

    let placed = registry.select_or_cpu(&device, &cpu_facts(), &W4A4, &Policy::default()).unwrap();
    assert_eq!((placed.decision.chosen, placed.left.clone()), (KernelId::CPU, Some(error)));
    assert!(matches!(placed.device, DeviceFacts::Cpu(_)));
    assert!(placed.to_string().contains("trtllm"), "{placed}");

    // A backend that is forced is that one or an error, fallback or not.
    let forced = registry.select_or_cpu(&device, &cpu_facts(), &W4A4, &force("cutlass")).unwrap_err();
    assert_eq!(forced, SelectError::Forced { id: KernelId::CUTLASS, reason: Unsupported::NotReleased });
    let forced = registry.select_or_cpu(&device, &cpu_facts(), &W4A4, &force("cpu")).unwrap();
    assert_eq!(forced.decision.chosen, KernelId::CPU);
    assert!(matches!(
        registry.select_or_cpu(&device, &cpu_facts(), &W4A4, &force("cuda")),
        Err(SelectError::Unknown { .. })
    ));

    // The same through `Linear`.
    let layer = layer(8, 32, ActivationScheme::Nvfp4Static, 1);
    let refused = Linear::load(&layer, &options().with_device(device.clone())).unwrap_err();
    assert!(matches!(refused, LoadError::Select { source: SelectError::NoneEligible(_), .. }), "{refused}");
    assert!(refused.to_string().contains("model.layers.0.mlp.down_proj"), "{refused}");
    let linear = Linear::load(&layer, &options().with_device(device).with_cpu_fallback(true)).unwrap();
    assert_eq!(linear.decision().chosen, KernelId::CPU);
    assert!(linear.placement().left.is_some());
    let here = Linear::load(&layer, &options().with_cpu_fallback(true)).unwrap();
    assert_eq!(here.placement().left, None);
}

/// Fake devices × builds: the refusal names the device and the images, and nothing but the layer's own device is used.
#[test]
fn a_build_is_judged_by_the_images_in_it() {
    let none = built_for(&[(KernelId::CUTLASS, &[], &[])]);
    let only_100 = built_for(&[(KernelId::CUTLASS, &["sm_100a"], &[100])]);
    let only_120f = built_for(&[(KernelId::CUTLASS, &["sm_120f"], &[120, 121])]);
    let all = built_for(&[(
        KernelId::CUTLASS,
        &["sm_100a", "sm_103a", "sm_110a", "sm_120f"],
        &[100, 103, 110, 120, 121],
    )]);
    // (device, builds that run there: none, 100 only, 120f only, all)
    for (device, runs) in [
        ("8.0", [false, false, false, false]),
        ("8.9", [false, false, false, false]),
        ("9.0", [false, false, false, false]),
        ("10.0", [false, true, false, true]),
        ("10.3", [false, false, false, true]),
        ("11.0", [false, false, false, true]),
        ("12.0", [false, false, true, true]),
        ("12.1", [false, false, true, true]),
        ("12.9", [false, false, false, false]),
    ] {
        let facts = named(device);
        for (registry, runs) in [&none, &only_100, &only_120f, &all].into_iter().zip(runs) {
            match registry.select(&facts, &W4A4, &Policy::default()) {
                Ok(decision) => {
                    assert!(runs, "{device}");
                    assert_eq!(decision.chosen, KernelId::CUTLASS);
                }
                Err(error) => {
                    assert!(!runs, "{device}: {error}");
                    let text = reason(&error, KernelId::CUTLASS).to_string();
                    assert!(text.contains(&facts.compute_capability().unwrap().to_string()), "{device}: {text}");
                    let placed = registry.select_or_cpu(&facts, &cpu_facts(), &W4A4, &Policy::default()).unwrap();
                    assert_eq!((placed.decision.chosen, placed.left), (KernelId::CPU, Some(error)));
                }
            }
        }
    }
    let error = only_100.select(&named("12.1"), &W4A4, &Policy::default()).unwrap_err();
    let text = reason(&error, KernelId::CUTLASS).to_string();
    assert!(text.contains("sm_121") && text.contains("sm_100a"), "{text}");

    // With a weight-only backend built for 12.1, that one runs, and the decision says so.
    let w4a16 = built_for(&[(KernelId::CUTLASS, &["sm_100a"], &[100]), (KernelId::W4A16, &["sm_121a"], &[121])]);
    let decision = w4a16.select(&named("12.1"), &W4A4, &Policy::default()).unwrap();
    assert_eq!((decision.chosen, decision.note), (KernelId::W4A16, Some(Note::NoQuantizedBackend)));
}

#[test]
fn w4a4_runs_as_such_wherever_it_can_and_w4a16_never_does() {
    let registry = Registry::if_all_were_installed();
    let mut seen = 0;
    for gpus in KNOWN_GPUS {
        let device = named(gpus.names[0]);
        if let Ok(decision) = registry.select(&device, &W4A4, &Policy::default()) {
            let quantizes = decision.config.activation.is_quantized();
            assert_eq!(quantizes, gpus.compute_capability.has_fp4(), "{device}: {decision}");
            for candidate in &decision.candidates {
                // Nothing weight-only stands before a backend that runs W4A4.
                if let Verdict::Eligible(scheme) = candidate.verdict
                    && gpus.compute_capability.has_fp4()
                    && scheme.is_quantized()
                {
                    assert!(quantizes, "{device}: {decision}");
                }
            }
            seen += 1;
        }
        if let Ok(decision) = registry.select(&device, &W4A16, &Policy::default()) {
            assert_eq!(decision.config.activation, ActivationScheme::Unquantized, "{device}");
            let row = Requirements::of(decision.chosen).unwrap();
            assert!(row.schemes.contains(&ActivationScheme::Unquantized), "{device}: {decision}");
            seen += 1;
        }
    }
    assert!(seen >= 10, "{seen}");
    for name in ["cutlass", "b12x", "cutedsl", "trtllm"] {
        let error = registry.select(&named("B200"), &W4A16, &force(name)).unwrap_err();
        assert!(matches!(error, SelectError::Forced { .. }), "{error}");
    }
    assert_eq!(registry.select(&named("RTX 5090"), &W4A4, &force("cutlass")).unwrap().chosen, KernelId::CUTLASS);
}

/// «Your GPU has no FP4» may be said of GPUs that have none, and of no other.
#[test]
fn reasons_are_of_the_right_kind() {
    let registry = Registry::if_all_were_installed();
    let no_fp4 = |text: &str| text.contains("no FP4") || text.contains("not support FP4");

    // (a) 12.0 and a W4A16 layer: the scheme, on hardware that has FP4.
    let device = named("RTX 5090");
    let decision = registry.select(&device, &W4A16, &Policy::default()).unwrap();
    let verdict = &decision.candidates.iter().find(|c| c.id == KernelId::CUTLASS).unwrap().verdict;
    assert!(matches!(verdict, Verdict::Rejected(Unsupported::Scheme { .. })), "{verdict:?}");
    assert!(device.compute_capability().unwrap().has_fp4() && !no_fp4(&decision.to_string()));

    // (b) 9.0 and W4A4: the device, which has none; it runs weight-only and says so.
    let device = named("H200");
    let decision = registry.select(&device, &W4A4, &Policy::default()).unwrap();
    let verdict = &decision.candidates.iter().find(|c| c.id == KernelId::CUTLASS).unwrap().verdict;
    assert!(matches!(verdict, Verdict::Rejected(Unsupported::Device { .. })), "{verdict:?}");
    assert_eq!(decision.note, Some(Note::NoFp4Hardware));
    assert!(!device.compute_capability().unwrap().has_fp4() && no_fp4(&decision.to_string()));

    // (c) 12.1 and a build without images: not built.
    let error = built_for(&[(KernelId::CUTLASS, &[], &[])])
        .select(&named("DGX Spark"), &W4A4, &Policy::default())
        .unwrap_err();
    assert!(matches!(reason(&error, KernelId::CUTLASS), Unsupported::NotBuilt { .. }));
    assert!(!no_fp4(&error.to_string()), "{error}");

    // (d) 10.0 and n that a backend cannot run: the shape.
    let id = KernelId::new("unpadded");
    let row = Requirements { id, n_multiple: 128, ..*Requirements::of(KernelId::TRTLLM).unwrap() };
    let registry = registry.with_support(Arc::new(Box::leak(Box::new(row)).support(Ok(()))));
    let odd = NvFp4LinearLayerConfig::w4a4(352, 4096);
    let decision = registry.select(&named("B200"), &odd, &Policy::default()).unwrap();
    let verdict = &decision.candidates.iter().find(|c| c.id == id).unwrap().verdict;
    assert!(matches!(verdict, Verdict::Rejected(Unsupported::Shape { multiple: 128, found: 352, .. })));
    assert!(!no_fp4(&decision.to_string()));
}

#[test]
fn an_explanation_has_both_answers() {
    let explanation = nvfp4::explain(&named("sm_121"), &W4A4, &Policy::default());
    assert!(explanation.here.is_err());
    assert_eq!(explanation.if_all_were_installed.as_ref().unwrap().chosen, KernelId::CUTLASS);
    let text = explanation.to_string();
    for part in ["sm_121", "n = 4096", "not available in this release", "cutlass (best"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let here = nvfp4::explain(&host_device(), &W4A4, &Policy::default());
    assert_eq!(here.here, here.if_all_were_installed);
    // A backend of one's own counts in both answers.
    let own = Registry::installed().with_kernel(Arc::new(Limited::new("mine")));
    let explanation = own.explain(&host_device(), &W4A4, &force("mine"));
    assert_eq!(explanation.here.unwrap().chosen, KernelId::new("mine"));
    assert_eq!(explanation.if_all_were_installed.unwrap().chosen, KernelId::new("mine"));
}

fn policy(backend: Option<&str>, disable: Option<&str>) -> Result<Policy, PolicyError> {
    Registry::installed().policy_from(|name| match name {
        BACKEND_VARIABLE => backend.map(OsString::from),
        DISABLE_VARIABLE => disable.map(OsString::from),
        other => panic!("asks for {other}"),
    })
}

#[test]
fn the_environment_is_obeyed_or_refused() {
    assert_eq!(policy(None, None), Ok(Policy::default()));
    assert_eq!(policy(Some(" cutlass "), None).unwrap().choice, Choice::Force("cutlass".into()));
    let disabled = policy(None, Some("cpu, b12x")).unwrap().disabled;
    assert_eq!(disabled.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["cpu", "b12x"]);
    assert!(disabled.iter().all(|d| d.by == DISABLE_VARIABLE));

    for (backend, disable) in [
        (Some("cuttlass"), None),
        (Some("CPU"), None),
        (Some("cpu,cutlass"), None),
        (Some("auto"), None),
        (None, Some("cpu;b12x")),
        (None, Some("cpu,nope")),
    ] {
        let error = policy(backend, disable).unwrap_err();
        let PolicyError::Unknown { known, .. } = &error else { panic!("{error}") };
        assert!(known.iter().any(|k| k == "cpu") && error.to_string().contains("trtllm"), "{error}");
    }
    for (backend, disable) in
        [(Some(""), None), (Some("  "), None), (None, Some("")), (None, Some("cpu,")), (None, Some(",cpu"))]
    {
        assert!(matches!(policy(backend, disable), Err(PolicyError::Empty { .. })), "{backend:?} {disable:?}");
    }
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStringExt;
        let bad = Registry::installed().policy_from(|_| Some(OsString::from_vec(vec![0xff])));
        assert!(matches!(bad, Err(PolicyError::NotUtf8 { .. })));
    }
}

#[test]
fn a_disabled_backend_is_not_taken_forced_or_not() {
    let disabled = vec![Disabled { name: "cpu".into(), by: DISABLE_VARIABLE.into() }];
    let only_disabled = Policy { disabled: disabled.clone(), ..Policy::default() };
    let layer = layer(8, 32, ActivationScheme::Unquantized, 2);
    let error = Linear::load(&layer, &options().with_policy(only_disabled)).unwrap_err();
    assert!(error.to_string().contains("disabled by NVFP4_DISABLE"), "{error}");
    let forced = Policy { disabled, ..force("cpu") };
    let error = Linear::load(&layer, &options().with_policy(forced)).unwrap_err();
    assert!(matches!(&error, LoadError::Select { source: SelectError::Forced { .. }, .. }), "{error}");
}

/// A stand-in that is chosen says that it runs nothing.
#[test]
fn a_stand_in_does_not_run() {
    let options = options().with_registry(Registry::if_all_were_installed()).with_device(named("B200"));
    let options = options.with_dtypes(nvfp4::DType::Bf16, nvfp4::DType::Bf16);
    let error = Linear::load(&layer(128, 128, ActivationScheme::Nvfp4Static, 3), &options).unwrap_err();
    assert!(matches!(error, LoadError::NotRunnable { .. }), "{error}");
}

/// Weights whose parts have global scales of their own never run on a backend that takes one.
#[test]
fn fused_parts_choose_a_backend_that_takes_them() {
    let scalar = Arc::new(Limited { per_row_scale: false, ..Limited::new("scalar") });
    let registry = Registry::installed().with_kernel(scalar);
    let fused = W4A4.with_weight_scale_kind(WeightScaleKind::PerRow);
    let prefer = Policy { choice: Choice::Prefer(vec!["scalar".into()]), ..Policy::default() };
    let plain = registry.select(&host_device(), &W4A4, &prefer).unwrap();
    assert_eq!(plain.chosen, KernelId::new("scalar"));
    let decision = registry.select(&host_device(), &fused, &prefer).unwrap();
    assert_eq!(decision.chosen, KernelId::CPU);
    let verdict = &decision.candidates.iter().find(|c| c.id == KernelId::new("scalar")).unwrap().verdict;
    assert_eq!(verdict, &Verdict::Rejected(Unsupported::PerRowScale));
    let error = registry.select(&host_device(), &fused, &force("scalar")).unwrap_err();
    assert_eq!(error, SelectError::Forced { id: KernelId::new("scalar"), reason: Unsupported::PerRowScale });
}

#[test]
fn a_backend_of_the_same_name_replaces_the_other() {
    let before: Vec<_> = Registry::installed().ids().collect();
    let registry = Registry::installed().with_kernel(Arc::new(Limited::new("cpu")));
    assert_eq!(registry.ids().collect::<Vec<_>>(), before);
    assert!(format!("{:?}", registry.kernel(KernelId::CPU)).contains("Limited"));
    assert!(registry.support(KernelId::CUTLASS).is_some() && registry.kernel(KernelId::CUTLASS).is_none());
    assert_eq!(Registry::empty().ids().count(), 0);
    assert!(matches!(
        Registry::empty().select(&host_device(), &W4A4, &Policy::default()),
        Err(SelectError::NoneEligible(none)) if none.is_empty()
    ));
    assert_eq!(named("12.1").compute_capability(), Some(ComputeCapability::SM121));
}
