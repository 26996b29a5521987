//! Who is chosen on which device, for which layer, and what is said about the others.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use nvfp4_core::{
    ActivationScheme, ComputeCapability, CpuFacts, CudaFacts, DType, Decision, DeviceFacts, KernelId,
    KernelSupport, NvFp4LinearLayerConfig, Policy, Unsupported, WeightScaleKind,
    kernel::WeightLayout,
    preference::{self, PREFERENCES},
    requirements::{REQUIREMENTS, Requirements, RequirementsSupport},
    select,
    select::{Choice, Disabled, Note, Numerics, SelectError, Source, Verdict},
};
use proptest::prelude::*;

/// A backend for tests: on CPUs and GPUs alike, for given schemes.
#[derive(Clone, Debug)]
struct Fake {
    id: KernelId,
    schemes: Vec<ActivationScheme>,
}

impl KernelSupport for Fake {
    fn id(&self) -> KernelId {
        self.id
    }
    fn is_supported(&self, _: &DeviceFacts) -> Result<(), Unsupported> {
        Ok(())
    }
    fn can_implement(&self, _: &DeviceFacts, config: &NvFp4LinearLayerConfig) -> Result<(), Unsupported> {
        match self.schemes.contains(&config.activation) {
            true => Ok(()),
            false => Err(Unsupported::Scheme { offered: "something else", asked: config.activation }),
        }
    }
    fn weight_layout(&self, _: &DeviceFacts, _: &NvFp4LinearLayerConfig) -> WeightLayout {
        WeightLayout::new("fake", 1)
    }
}

fn fake(name: &'static str, schemes: &[ActivationScheme]) -> Fake {
    Fake { id: KernelId::new(name), schemes: schemes.to_vec() }
}

const W4A4: ActivationScheme = ActivationScheme::Nvfp4Static;
const W4A16: ActivationScheme = ActivationScheme::Unquantized;

fn gpu(number: u32) -> DeviceFacts {
    DeviceFacts::Cuda(CudaFacts::new(ComputeCapability::new((number / 10) as u8, (number % 10) as u8)))
}

fn cpu() -> DeviceFacts {
    DeviceFacts::Cpu(CpuFacts::new("a CPU", vec![], 1))
}

/// All backends of the table, as if each were there.
fn all() -> Vec<RequirementsSupport> {
    REQUIREMENTS.iter().map(|row| row.support(Ok(()))).collect()
}

fn refs<T: KernelSupport>(backends: &[T]) -> Vec<&dyn KernelSupport> {
    backends.iter().map(|b| b as &dyn KernelSupport).collect()
}

fn select_all(number: u32, config: NvFp4LinearLayerConfig, policy: &Policy) -> Result<Decision, SelectError> {
    select(&refs(&all()), &gpu(number), &config, policy)
}

fn choice(choice: Choice) -> Policy {
    Policy { choice, ..Policy::default() }
}

fn numerics(numerics: Numerics) -> Policy {
    Policy { numerics, ..Policy::default() }
}

fn force(name: &str) -> Policy {
    choice(Choice::Force(name.into()))
}

fn reason(decision: &Decision, id: KernelId) -> &Unsupported {
    let candidate = decision.candidates.iter().find(|c| c.id == id).unwrap();
    match &candidate.verdict {
        Verdict::Rejected(reason) => reason,
        other => panic!("{id}: {other:?}"),
    }
}

const NUMBERS: [u32; 14] = [75, 80, 86, 87, 89, 90, 100, 101, 103, 107, 110, 120, 121, 129];

// The four questions behind "your GPU has no FP4".

#[test]
fn w4a16_checkpoint_on_a_gpu_with_fp4() {
    let device = gpu(120);
    assert!(device.compute_capability().unwrap().has_fp4());
    let decision = select_all(120, NvFp4LinearLayerConfig::w4a16(4096, 4096), &Policy::default()).unwrap();
    assert_eq!((decision.chosen, decision.note), (KernelId::W4A16, None));
    for id in [KernelId::CUTLASS, KernelId::CUDNN, KernelId::B12X] {
        let expected = Unsupported::Scheme { offered: "W4A4", asked: W4A16 };
        assert_eq!(*reason(&decision, id), expected, "{id}: the scheme has no activation scale");
    }
    assert!(!decision.to_string().contains("no FP4"), "{decision}");
}

#[test]
fn w4a4_checkpoint_on_a_gpu_without_fp4() {
    assert!(!gpu(90).compute_capability().unwrap().has_fp4());
    let decision = select_all(90, NvFp4LinearLayerConfig::w4a4(4096, 4096), &Policy::default()).unwrap();
    assert_eq!((decision.chosen, decision.note), (KernelId::W4A16, Some(Note::NoFp4Hardware)));
    assert_eq!(decision.config.activation, W4A16);
    for row in REQUIREMENTS.iter().filter(|row| row.id != KernelId::W4A16) {
        let Unsupported::Device { needed, found } = reason(&decision, row.id) else { panic!("{}", row.id) };
        assert_eq!(found, "sm_90");
        assert!(needed.contains("sm_1"), "{needed}");
    }
    assert!(decision.to_string().contains("activations stay 16-bit: this GPU has no FP4"), "{decision}");
    // The checkpoint's own numerics were asked for: nobody can.
    let refused = select_all(90, NvFp4LinearLayerConfig::w4a4(4096, 4096), &numerics(Numerics::Checkpoint));
    assert!(matches!(refused, Err(SelectError::NoneEligible(reasons)) if reasons.len() == REQUIREMENTS.len()));
}

#[test]
fn build_without_images_for_the_gpu() {
    let backends: Vec<_> = REQUIREMENTS
        .iter()
        .map(|row| {
            row.support(Err(Unsupported::NotBuilt {
                backend: row.id.as_str(),
                device: ComputeCapability::SM121,
                packaged: vec!["sm_100a".into()],
            }))
        })
        .collect();
    let config = NvFp4LinearLayerConfig::w4a4(4096, 4096);
    let Err(SelectError::NoneEligible(reasons)) = select(&refs(&backends), &gpu(121), &config, &Policy::default())
    else {
        panic!()
    };
    for row in REQUIREMENTS.iter().filter(|row| row.compute_capabilities.contains(&121)) {
        let (_, reason) = reasons.iter().find(|(id, _)| *id == row.id).unwrap();
        assert!(matches!(reason, Unsupported::NotBuilt { device: ComputeCapability::SM121, .. }), "{reason}");
        for part in ["sm_121", "sm_100a"] {
            assert!(reason.to_string().contains(part), "{reason}");
        }
    }
    // With a weight-only backend in the build, that one is taken, and the reason is not the hardware.
    let fallback = fake("weight-only", &[W4A16]);
    let mut with_fallback = refs(&backends);
    with_fallback.push(&fallback);
    let decision = select(&with_fallback, &gpu(121), &config, &Policy::default()).unwrap();
    assert_eq!((decision.chosen, decision.note), (fallback.id, Some(Note::NoQuantizedBackend)));
    assert!(!decision.to_string().contains("no FP4"), "{decision}");
}

#[test]
fn shape_that_one_backend_cannot_run() {
    let id = KernelId::new("unpadded");
    let row = Requirements { id, n_multiple: 128, k_multiple: 64, ..*Requirements::of(KernelId::TRTLLM).unwrap() };
    let mut backends = all();
    backends.push(Box::leak(Box::new(row)).support(Ok(())));
    let run =
        |n, k, policy: &Policy| select(&refs(&backends), &gpu(100), &NvFp4LinearLayerConfig::w4a4(n, k), policy);
    let decision = run(4096 + 32, 4096, &Policy::default()).unwrap();
    let expected = Unsupported::Shape { dimension: "n (output features)", multiple: 128, found: 4128 };
    assert_eq!(*reason(&decision, id), expected);
    assert_eq!((decision.chosen, decision.note), (KernelId::CUTEDSL, None));
    let expected = Unsupported::Shape { dimension: "k (input features)", multiple: 64, found: 48 };
    assert_eq!(run(4096, 48, &force("unpadded")), Err(SelectError::Forced { id, reason: expected }));
}

// What the policy says.

#[test]
fn forced_is_taken_or_refused_but_never_replaced() {
    for number in NUMBERS {
        for config in [NvFp4LinearLayerConfig::w4a4(256, 256), NvFp4LinearLayerConfig::w4a16(256, 256)] {
            for row in REQUIREMENTS {
                match select_all(number, config, &force(row.id.as_str())) {
                    Ok(decision) => {
                        assert_eq!((decision.chosen, decision.source), (row.id, Source::Forced));
                        assert!(row.compute_capabilities.contains(&number));
                        assert!(row.schemes.contains(&decision.config.activation));
                    }
                    Err(SelectError::Forced { id, reason }) => {
                        assert_eq!(id, row.id);
                        let expected =
                            if row.compute_capabilities.contains(&number) { "computes" } else { "needs" };
                        assert!(reason.to_string().starts_with(expected), "{number} {id}: {reason}");
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
}

#[test]
fn preferred_comes_first_if_it_can() {
    let config = NvFp4LinearLayerConfig::w4a4(256, 256);
    let prefer = |names: &[&str]| choice(Choice::Prefer(names.iter().map(|n| n.to_string()).collect()));
    let decision = select_all(100, config, &prefer(&["b12x", "trtllm", "cudnn"])).unwrap();
    assert_eq!((decision.chosen, decision.source), (KernelId::TRTLLM, Source::Preferred));
    let order: Vec<_> = decision.candidates.iter().map(|c| c.id).collect();
    let expected =
        [KernelId::TRTLLM, KernelId::CUDNN, KernelId::CUTEDSL, KernelId::CUTLASS, KernelId::W4A16, KernelId::B12X];
    assert_eq!(order, expected, "the wishes, then W4A4 by rank, then weight-only, then those that cannot");
    let decision = select_all(100, config, &prefer(&["b12x"])).unwrap();
    assert_eq!((decision.chosen, decision.source), (KernelId::CUTEDSL, Source::Ranked));
    let decision = select_all(100, config, &prefer(&[])).unwrap();
    assert_eq!(decision.source, Source::Ranked);
}

#[test]
fn disabled_backends_are_not_taken_forced_or_not() {
    let config = NvFp4LinearLayerConfig::w4a4(256, 256);
    let disable = |names: &[&str], choice: Choice| Policy {
        choice,
        disabled: names.iter().map(|n| Disabled { name: n.to_string(), by: "NVFP4_DISABLE".into() }).collect(),
        ..Policy::default()
    };
    let decision = select_all(100, config, &disable(&["cutedsl", "cutlass"], Choice::Auto)).unwrap();
    assert_eq!(decision.chosen, KernelId::CUDNN);
    for id in [KernelId::CUTEDSL, KernelId::CUTLASS] {
        assert_eq!(*reason(&decision, id), Unsupported::Disabled("NVFP4_DISABLE".into()));
    }
    let refused = select_all(100, config, &disable(&["cutlass"], Choice::Force("cutlass".into())));
    let reason = Unsupported::Disabled("NVFP4_DISABLE".into());
    assert_eq!(refused, Err(SelectError::Forced { id: KernelId::CUTLASS, reason }));
    let every: Vec<_> = REQUIREMENTS.iter().map(|row| row.id.as_str()).collect();
    let refused = select_all(100, config, &disable(&every, Choice::Auto));
    assert!(matches!(refused, Err(SelectError::NoneEligible(reasons)) if reasons.len() == every.len()));
}

#[test]
fn unknown_names_are_errors_wherever_they_stand() {
    let config = NvFp4LinearLayerConfig::w4a4(256, 256);
    let policies = [
        force("cutlas"),
        choice(Choice::Prefer(vec!["cudnn".into(), "cutlas".into()])),
        Policy { disabled: vec![Disabled { name: "cutlas".into(), by: "me".into() }], ..Policy::default() },
    ];
    for policy in policies {
        let refused = select_all(100, config, &policy).unwrap_err();
        let SelectError::Unknown { name, known } = &refused else { panic!("{refused}") };
        assert_eq!((name.as_str(), known.len()), ("cutlas", REQUIREMENTS.len()));
        assert!(refused.to_string().contains("cutlass, cudnn"), "{refused}");
    }
}

#[test]
fn notes_tell_what_is_computed_otherwise() {
    let w4a4 = NvFp4LinearLayerConfig::w4a4(256, 256);
    let note = |number, policy: &Policy| select_all(number, w4a4, policy).unwrap().note;
    assert_eq!(note(100, &Policy::default()), None);
    assert_eq!(note(90, &Policy::default()), Some(Note::NoFp4Hardware));
    assert_eq!(note(100, &numerics(Numerics::WeightOnly)), Some(Note::WeightOnlyPolicy));
    assert_eq!(note(90, &numerics(Numerics::WeightOnly)), Some(Note::WeightOnlyPolicy));
    assert_eq!(note(100, &force("w4a16")), Some(Note::NoQuantizedBackend));
    assert_eq!(note(100, &numerics(Numerics::Checkpoint)), None);

    let emulating = fake("emulating", &[W4A4]);
    let found = select(&[&emulating], &gpu(90), &w4a4, &Policy::default()).unwrap();
    assert_eq!((found.note, found.config.activation), (Some(Note::EmulatedQuantization), W4A4));
    let asked = select(&[&emulating], &gpu(90), &w4a4, &numerics(Numerics::Checkpoint)).unwrap();
    assert_eq!(asked.note, None);
    let refused = select(&[&emulating], &gpu(90), &w4a4, &numerics(Numerics::WeightOnly));
    assert!(matches!(refused, Err(SelectError::NoneEligible(_))));

    // On the CPU the checkpoint's numerics come first, and weight-only is the way out.
    let (both, only) = (fake("both", &[W4A4, W4A16]), fake("only", &[W4A16]));
    let found = select(&[&only, &both], &cpu(), &w4a4, &Policy::default()).unwrap();
    assert_eq!((found.chosen, found.note), (both.id, None));
    let found = select(&[&only], &cpu(), &w4a4, &Policy::default()).unwrap();
    assert_eq!((found.chosen, found.note), (only.id, Some(Note::NoQuantizedBackend)));
}

// Invariants over devices, layers and policies.

#[test]
fn a_w4a16_layer_never_runs_on_a_w4a4_kernel() {
    for number in NUMBERS {
        for numerics_asked in [Numerics::Auto, Numerics::Checkpoint, Numerics::WeightOnly] {
            let config = NvFp4LinearLayerConfig::w4a16(256, 256);
            if let Ok(decision) = select_all(number, config, &numerics(numerics_asked)) {
                assert_eq!((decision.config, decision.note), (config, None), "{number}");
                let row = Requirements::of(decision.chosen).unwrap();
                assert!(row.schemes.contains(&W4A16), "{number}: {}", row.id);
            }
        }
    }
}

#[test]
fn no_weight_only_backend_precedes_a_usable_w4a4_one_on_fp4_hardware() {
    for number in NUMBERS.into_iter().filter(|number| *number >= 100) {
        let Ok(decision) = select_all(number, NvFp4LinearLayerConfig::w4a4(256, 256), &Policy::default()) else {
            assert!([101, 129].contains(&number), "{number}");
            continue;
        };
        assert!(decision.config.activation.is_quantized(), "{number}");
        let quantized = |c: &nvfp4_core::select::Candidate| match c.verdict {
            Verdict::Chosen | Verdict::Eligible(W4A4) => 0,
            Verdict::Eligible(_) => 1,
            _ => 2,
        };
        assert!(decision.candidates.iter().map(quantized).is_sorted(), "{number}: {decision}");
    }
}

/// One row a device and build: what is expected, or that nothing is.
#[test]
fn matrix_of_devices() {
    let w4a4 = [
        (75, None),
        (80, Some(KernelId::W4A16)),
        (86, Some(KernelId::W4A16)),
        (87, Some(KernelId::W4A16)),
        (89, Some(KernelId::W4A16)),
        (90, Some(KernelId::W4A16)),
        (100, Some(KernelId::CUTEDSL)),
        (101, None),
        (103, Some(KernelId::CUTEDSL)),
        (107, Some(KernelId::CUTLASS)),
        (110, Some(KernelId::CUTLASS)),
        (120, Some(KernelId::B12X)),
        (121, Some(KernelId::CUTLASS)),
        (129, None),
    ];
    assert_eq!(w4a4.map(|row| row.0), NUMBERS);
    for (number, expected) in w4a4 {
        let found = select_all(number, NvFp4LinearLayerConfig::w4a4(256, 256), &Policy::default());
        assert_eq!(found.as_ref().ok().map(|d| d.chosen), expected, "{number}");
        if let Err(refused) = found {
            let SelectError::NoneEligible(reasons) = &refused else { panic!("{refused}") };
            assert_eq!(reasons.len(), REQUIREMENTS.len());
            let found = format!("sm_{number}");
            assert!(
                reasons.iter().all(|(_, r)| matches!(r, Unsupported::Device { found: f, .. } if *f == found)),
                "{refused}"
            );
        }
    }
    assert!(matches!(
        select(&refs(&all()), &cpu(), &NvFp4LinearLayerConfig::w4a4(256, 256), &Policy::default()),
        Err(SelectError::NoneEligible(reasons)) if reasons.iter().all(|r| matches!(r.1, Unsupported::Device { .. }))
    ));
    assert!(matches!(
        select(&[], &cpu(), &NvFp4LinearLayerConfig::w4a4(256, 256), &Policy::default()),
        Err(SelectError::NoneEligible(reasons)) if reasons.is_empty()
    ));
}

#[test]
fn ties_keep_the_order_of_the_backends() {
    let names = ["d", "b", "a", "c"];
    let backends: Vec<_> = names.iter().map(|name| fake(name, &[W4A4])).collect();
    for device in [cpu(), gpu(100), gpu(90), gpu(75)] {
        let config = NvFp4LinearLayerConfig::w4a4(256, 256);
        let decision = select(&refs(&backends), &device, &config, &Policy::default()).unwrap();
        assert_eq!(decision.candidates.iter().map(|c| c.id.as_str()).collect::<Vec<_>>(), names);
    }
}

#[test]
fn each_requirement_is_a_reason_of_its_kind() {
    let base = NvFp4LinearLayerConfig::w4a4(256, 256);
    let names = |text: &str, dtype: DType| text.split(" or ").any(|word| word == dtype.to_string());
    for row in REQUIREMENTS {
        let base = base.with_activation(row.schemes[0]);
        assert_eq!(row.check_layer(&base), Ok(()), "{}", row.id);
        for scheme in [W4A4, W4A16, ActivationScheme::Nvfp4DynamicPerTensor, ActivationScheme::Nvfp4DynamicPerToken]
        {
            let found = row.check_layer(&base.with_activation(scheme));
            assert_eq!(found.is_ok(), row.schemes.contains(&scheme), "{} {scheme}", row.id);
        }
        for dtype in [DType::Bf16, DType::F16, DType::F32] {
            let input = row.check_layer(&base.with_dtypes(dtype, DType::Bf16));
            assert_eq!(input.is_ok(), row.input_dtypes.contains(&dtype), "{} {dtype}", row.id);
            assert_eq!(names(row.input_dtypes_text, dtype), row.input_dtypes.contains(&dtype), "{}", row.id);
            let output = row.check_layer(&base.with_dtypes(DType::Bf16, dtype));
            assert_eq!(output.is_ok(), row.output_dtypes.contains(&dtype), "{} {dtype}", row.id);
            assert_eq!(names(row.output_dtypes_text, dtype), row.output_dtypes.contains(&dtype), "{}", row.id);
        }
        let per_row = row.check_layer(&base.with_weight_scale_kind(WeightScaleKind::PerRow));
        assert_eq!(per_row.is_ok(), row.per_row_scale);
        if let Err(reason) = per_row {
            assert_eq!(reason, Unsupported::PerRowScale);
        }
        let invariant = row.check_layer(&base.with_batch_invariant(true));
        assert_eq!(invariant.is_ok(), row.batch_invariant);
        if let Err(reason) = invariant {
            assert_eq!(reason, Unsupported::BatchInvariance);
        }
        assert!(!row.source.is_empty() && row.n_multiple > 0 && row.k_multiple.is_multiple_of(16));
        assert_eq!(row.schemes_text, row.schemes[0].to_string());
    }
    // One scale for all rows is batch-invariant nowhere.
    const TENSOR: ActivationScheme = ActivationScheme::Nvfp4DynamicPerTensor;
    let able = Requirements { schemes: &[TENSOR], batch_invariant: true, ..REQUIREMENTS[0] };
    let config = base.with_activation(TENSOR);
    assert_eq!(able.check_layer(&config), Ok(()));
    assert_eq!(able.check_layer(&config.with_batch_invariant(true)), Err(Unsupported::BatchInvariance));
    // TensorRT-LLM kernels write bf16 only.
    let found = Requirements::of(KernelId::TRTLLM).unwrap().check_layer(&base.with_dtypes(DType::Bf16, DType::F16));
    assert_eq!(found, Err(Unsupported::DType { operand: "output", needed: "bf16", found: DType::F16 }));
}

#[test]
fn drivers_and_libraries() {
    let device = |driver, cudnn| {
        let mut facts = CudaFacts::new(ComputeCapability::SM120);
        (facts.driver_cuda, facts.cudnn) = (driver, cudnn);
        DeviceFacts::Cuda(facts)
    };
    let check = |id, device| Requirements::of(id).unwrap().check_device(&device);
    assert_eq!(check(KernelId::CUDNN, device(Some(13_000), Some(91_500))), Ok(()));
    assert_eq!(
        check(KernelId::CUDNN, device(Some(13_000), Some(91_002))),
        Err(Unsupported::Library { library: "cuDNN", needed: "9.15.0".into(), found: Some("9.10.2".into()) })
    );
    assert_eq!(
        check(KernelId::CUDNN, device(Some(13_000), None)),
        Err(Unsupported::Library { library: "cuDNN", needed: "9.15.0".into(), found: None })
    );
    assert_eq!(check(KernelId::CUDNN, device(None, None)), Ok(()), "a device that is only asked about");
    assert_eq!(
        check(KernelId::B12X, device(Some(12_090), None)),
        Err(Unsupported::Driver { needed: "13.0".into(), found: Some("12.9".into()) })
    );
    assert_eq!(check(KernelId::CUTLASS, device(Some(12_080), None)), Ok(()));
}

/// The tables agree: what can run somewhere is ranked there, nothing else is, and vLLM knows every class that is named.
#[test]
fn tables_agree() {
    for row in REQUIREMENTS {
        for &number in row.compute_capabilities {
            for scheme in row.schemes {
                let rank = preference::rank(&gpu(number), scheme.is_quantized(), row.id);
                assert_ne!(rank, usize::MAX, "{} on sm_{number} is not ranked", row.id);
            }
            let layout = row.weight_layout(&gpu(number));
            assert!(row.weight_layouts.iter().any(|l| l.0 <= number && number <= l.1 && l.2 == layout));
        }
        assert!(nvfp4_core::vllm::Kernel::of(row.vllm_class).is_some(), "{}", row.vllm_class);
        assert_eq!(Requirements::of(row.id), Some(row));
    }
    for row in PREFERENCES {
        assert!(!row.source.is_empty());
        for id in row.order {
            let needs = Requirements::of(*id).unwrap();
            for number in row.compute_capabilities {
                assert!(
                    needs.compute_capabilities.contains(number),
                    "{id} is ranked on sm_{number}, where it cannot run"
                );
            }
            let weight_only = |scheme: &ActivationScheme| !scheme.is_quantized();
            // Before Blackwell, W4A4 layers run on the weight-only backend.
            let fits = needs.schemes.iter().any(|s| s.is_quantized() == row.quantized_activations)
                || (needs.schemes.iter().any(weight_only) && row.compute_capabilities.iter().all(|n| *n < 100));
            assert!(fits, "{id} is ranked for a scheme that it does not compute: {row:?}");
        }
        for number in row.compute_capabilities {
            let rows = PREFERENCES.iter().filter(|r| r.quantized_activations == row.quantized_activations);
            assert_eq!(rows.filter(|r| r.compute_capabilities.contains(number)).count(), 1, "sm_{number} twice");
        }
    }
    assert_eq!(Requirements::of(KernelId::CPU), None);
    assert_eq!(preference::rank(&cpu(), true, KernelId::CPU), usize::MAX);
    // Weights prepared for one architecture are not read by another's kernel.
    let w4a16 = Requirements::of(KernelId::W4A16).unwrap();
    assert_ne!(w4a16.weight_layout(&gpu(100)), w4a16.weight_layout(&gpu(120)));
}

fn configs() -> impl Strategy<Value = NvFp4LinearLayerConfig> {
    let schemes = prop::sample::select(vec![
        W4A4,
        W4A16,
        ActivationScheme::Nvfp4DynamicPerTensor,
        ActivationScheme::Nvfp4DynamicPerToken,
    ]);
    let dtypes = prop::sample::select(vec![DType::Bf16, DType::F16, DType::F32]);
    (schemes, dtypes.clone(), dtypes, 1..300usize, 1..20usize, any::<(bool, bool)>()).prop_map(
        |(scheme, input, output, n, blocks, (per_row, invariant))| {
            let kind = if per_row { WeightScaleKind::PerRow } else { WeightScaleKind::PerTensor };
            NvFp4LinearLayerConfig::w4a4(n, blocks * 16)
                .with_activation(scheme)
                .with_dtypes(input, output)
                .with_weight_scale_kind(kind)
                .with_batch_invariant(invariant)
        },
    )
}

fn policies() -> impl Strategy<Value = Policy> {
    let names = || prop::sample::select(vec!["cutlass", "cudnn", "trtllm", "cutedsl", "b12x", "w4a16", "any"]);
    let choice = prop_oneof![
        Just(Choice::Auto),
        prop::collection::vec(names().prop_map(String::from), 0..3).prop_map(Choice::Prefer),
        names().prop_map(|name| Choice::Force(name.into())),
    ];
    let numerics = prop::sample::select(vec![Numerics::Auto, Numerics::Checkpoint, Numerics::WeightOnly]);
    let disabled = prop::collection::vec(names(), 0..3);
    (choice, numerics, disabled).prop_map(|(choice, numerics, disabled)| Policy {
        choice,
        numerics,
        disabled: disabled.into_iter().map(|name| Disabled { name: name.into(), by: "test".into() }).collect(),
    })
}

proptest! {
    /// Selection agrees with the answers of the backends, whatever is asked.
    #[test]
    fn decisions_follow_from_the_answers(
        number in prop::sample::select(&NUMBERS[..]),
        on_cpu: bool,
        config in configs(),
        policy in policies(),
    ) {
        let device = if on_cpu { cpu() } else { gpu(number) };
        let (table, any_layer) = (all(), fake("any", &[W4A4, W4A16]));
        let mut backends = refs(&table);
        backends.push(&any_layer);
        let can = |id: KernelId, config: &NvFp4LinearLayerConfig| {
            let backend = backends.iter().find(|b| b.id() == id).unwrap();
            let off = policy.disabled.iter().any(|d| d.name == id.as_str());
            !off && backend.is_supported(&device).is_ok() && backend.can_implement(&device, config).is_ok()
        };
        let weight_only = config.with_activation(W4A16);
        match select(&backends, &device, &config, &policy) {
            Ok(decision) => {
                prop_assert!(can(decision.chosen, &decision.config));
                prop_assert!(decision.config == config || decision.config == weight_only);
                prop_assert_eq!(decision.note.is_some() && !decision.config.activation.is_quantized(),
                    decision.config != config);
                prop_assert_eq!(&decision.candidates[0].verdict, &Verdict::Chosen);
                prop_assert_eq!(decision.candidates[0].id, decision.chosen);
                prop_assert_eq!(decision.candidates.len(), backends.len());
                for candidate in &decision.candidates {
                    let able = can(candidate.id, &config) || can(candidate.id, &weight_only);
                    match &candidate.verdict {
                        Verdict::Rejected(_) if policy.numerics == Numerics::Auto => prop_assert!(!able),
                        Verdict::Rejected(_) => {}
                        Verdict::Eligible(scheme) =>
                            prop_assert!(can(candidate.id, &config.with_activation(*scheme))),
                        _ => prop_assert!(able),
                    }
                }
                match &policy.choice {
                    Choice::Force(name) => prop_assert_eq!(decision.chosen.as_str(), name),
                    Choice::Prefer(names) if decision.source == Source::Preferred =>
                        prop_assert!(names.iter().any(|n| n == decision.chosen.as_str())),
                    _ => prop_assert_eq!(decision.source, Source::Ranked),
                }
                // Nothing depends on anything but the arguments.
                prop_assert_eq!(select(&backends, &device, &config, &policy), Ok(decision));
            }
            Err(SelectError::Forced { id, .. }) => {
                prop_assert_eq!(&policy.choice, &Choice::Force(id.to_string()));
                let form = if policy.numerics == Numerics::WeightOnly { &weight_only } else { &config };
                prop_assert!(!can(id, form));
            }
            Err(SelectError::NoneEligible(reasons)) => {
                prop_assert_eq!(reasons.len(), backends.len());
                prop_assert!(!matches!(policy.choice, Choice::Force(_)));
                for backend in &backends {
                    let form = if policy.numerics == Numerics::WeightOnly { &weight_only } else { &config };
                    prop_assert!(!can(backend.id(), form));
                }
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}
