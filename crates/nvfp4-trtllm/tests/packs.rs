//! Packs that are missing: a refusal that says what was looked for, where, and what to do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use nvfp4_core::{ComputeCapability, CudaFacts, DeviceFacts, KernelSupport, Unsupported};
use nvfp4_cuda::{
    epilogue,
    pack::{
        Image, Manifest,
        manifest::{SCHEMA, sha256_hex},
    },
    quantize,
};
use nvfp4_trtllm::{BACKEND, REVISION, TARGET, TrtllmNvFp4LinearKernel};
use std::{collections::BTreeMap, fs, path::Path};

fn gpu(major: u8, minor: u8) -> DeviceFacts {
    DeviceFacts::Cuda(CudaFacts::new(ComputeCapability::new(major, minor)))
}

fn write_pack(root: &Path, backend: &str, revision: u32, target: &str) {
    let folder = root.join(backend).join(target);
    fs::create_dir_all(&folder).unwrap();
    let image = Image {
        target: target.into(),
        file: "k.cubin".into(),
        sha256: sha256_hex(b""),
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

#[test]
fn each_pack_that_is_missing_is_named() {
    let root = tempfile::tempdir().unwrap();
    let kernel = TrtllmNvFp4LinearKernel::with_packs(vec![root.path().to_path_buf()]);
    let missing = |backend: &str| match kernel.is_supported(&gpu(10, 0)) {
        Err(Unsupported::KernelPack(text)) => {
            for part in
                [&format!("`{backend}`"), "manifest.json", &root.path().display().to_string(), "NVFP4_KERNELS"]
            {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        other => panic!("{other:?}"),
    };
    missing(BACKEND);
    write_pack(root.path(), BACKEND, REVISION, TARGET);
    missing(quantize::BACKEND);
    write_pack(root.path(), quantize::BACKEND, quantize::REVISION, "sm_100a");
    missing(epilogue::BACKEND);
    write_pack(root.path(), epilogue::BACKEND, epilogue::REVISION, "sm_100a");
    assert_eq!(kernel.is_supported(&gpu(10, 0)), Ok(()));

    // 10.3 loads the cubins, but has no image of ours here.
    assert!(
        matches!(kernel.is_supported(&gpu(10, 3)), Err(Unsupported::KernelPack(text)) if text.contains("quantize"))
    );
    for (major, minor) in [(9, 0), (12, 0), (12, 1)] {
        assert!(matches!(kernel.is_supported(&gpu(major, minor)), Err(Unsupported::Device { .. })));
    }
}

#[test]
fn a_pack_of_another_revision_is_refused() {
    let root = tempfile::tempdir().unwrap();
    write_pack(root.path(), BACKEND, REVISION + 1, TARGET);
    let kernel = TrtllmNvFp4LinearKernel::with_packs(vec![root.path().to_path_buf()]);
    let refused = kernel.is_supported(&gpu(10, 0));
    assert!(matches!(&refused, Err(Unsupported::KernelPack(text)) if text.contains("revision 2")), "{refused:?}");
}
