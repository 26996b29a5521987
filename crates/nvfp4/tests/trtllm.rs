//! The trtllm backend in the registry: what is chosen where, and what is said where it cannot run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use nvfp4::{
    CudaLinear, DType, KernelId, NvFp4LinearLayerConfig, Policy, Registry, Unsupported, WeightScaleKind,
    cuda::pack,
    cuda::pack::{Image, Manifest, manifest::SCHEMA},
    cuda::{epilogue, quantize},
    gpu,
    select::{Choice, SelectError, Source},
    trtllm::{self, TrtllmNvFp4LinearKernel},
};
use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

const W4A4: NvFp4LinearLayerConfig = NvFp4LinearLayerConfig::w4a4(4096, 4096).with_dtypes(DType::Bf16, DType::Bf16);

fn write_pack(root: &Path, backend: &str, revision: u32, target: &str) {
    let folder = root.join(backend).join(target);
    fs::create_dir_all(&folder).unwrap();
    let image = Image {
        target: target.into(),
        file: "k.cubin".into(),
        sha256: pack::manifest::sha256_hex(b""),
        bytes: 0,
        ptx: None,
        kernels: vec!["kernel".into()],
        facts: None,
    };
    let manifest = Manifest {
        schema: SCHEMA,
        backend: backend.into(),
        revision,
        licence: "MIT".into(),
        tools: BTreeMap::new(),
        flags: Vec::new(),
        sources: BTreeMap::new(),
        images: vec![image],
    };
    fs::write(folder.join("manifest.json"), serde_json::to_string(&manifest).unwrap()).unwrap();
}

fn with_packs_in(root: &Path) -> Registry {
    let kernel = TrtllmNvFp4LinearKernel::with_packs(vec![root.to_path_buf()]);
    Registry::installed().with_cuda_kernel(Arc::new(kernel))
}

fn forced() -> Policy {
    Policy { choice: Choice::Force("trtllm".into()), ..Policy::default() }
}

#[test]
fn without_its_pack_the_refusal_says_what_to_do() {
    let root = tempfile::tempdir().unwrap();
    let registry = with_packs_in(root.path());
    let error = registry.select(&gpu("B200").unwrap(), &W4A4, &forced()).unwrap_err();
    let SelectError::Forced { id: KernelId::TRTLLM, reason: Unsupported::KernelPack(text) } = &error else {
        panic!("{error}")
    };
    for part in ["trtllm", "NVFP4_KERNELS", &root.path().display().to_string()] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // What would run if everything were installed does not depend on packs.
    let explanation = registry.explain(&gpu("B200").unwrap(), &W4A4, &forced());
    assert_eq!(explanation.if_all_were_installed.unwrap().chosen, KernelId::TRTLLM);
    assert!(explanation.here.is_err());
}

#[test]
fn with_its_packs_it_is_chosen_on_b200_and_runs_there_alone() {
    let root = tempfile::tempdir().unwrap();
    write_pack(root.path(), trtllm::BACKEND, trtllm::REVISION, trtllm::TARGET);
    write_pack(root.path(), quantize::BACKEND, quantize::REVISION, "sm_100a");
    write_pack(root.path(), epilogue::BACKEND, epilogue::REVISION, "sm_100a");
    let registry = with_packs_in(root.path());
    let decision = registry.select(&gpu("B200").unwrap(), &W4A4, &Policy::default()).unwrap();
    assert_eq!((decision.chosen, decision.source), (KernelId::TRTLLM, Source::Ranked));
    assert!(registry.cuda_kernel(KernelId::TRTLLM).is_some() && registry.kernel(KernelId::TRTLLM).is_none());

    // A fused layer whose parts keep their own scales, which upstream computes wrong.
    let mut fused = W4A4;
    fused.weight_scale_kind = WeightScaleKind::PerRow;
    assert_eq!(registry.select(&gpu("B200").unwrap(), &fused, &forced()).unwrap().chosen, KernelId::TRTLLM);

    for name in ["RTX 5090", "H200", "DGX Spark"] {
        let error = registry.select(&gpu(name).unwrap(), &W4A4, &forced()).unwrap_err();
        assert!(
            matches!(&error, SelectError::Forced { reason: Unsupported::Device { .. }, .. }),
            "{name}: {error}"
        );
    }
}

#[test]
fn other_backends_are_named_beside_it() {
    let registry = Registry::installed();
    assert!(registry.cuda_kernel(KernelId::TRTLLM).is_some());
    let cutlass = registry.support(KernelId::CUTLASS).unwrap().is_supported(&gpu("B200").unwrap());
    assert_eq!(cutlass, Err(Unsupported::NotReleased));
}

/// Layers on a device go from thread to thread.
#[test]
fn layers_are_shared_between_threads() {
    const fn shared<T: Send + Sync>() {}
    const { shared::<CudaLinear>() };
}
