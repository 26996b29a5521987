//! Against the vendor's own artefacts, which `cargo xtask fetch --backend trtllm` brings: the host code's headers and the
//! cubins. `cargo xtask test` runs this where they are, and names it as skipped where they are not.
//!
//! `NVFP4_TRTLLM_PACK` is the pack's folder, `NVFP4_TRTLLM_HEADERS` the folder of the headers, `NVFP4_CUDA_HEADERS` that of
//! `cuda.h`. With `NVFP4_RECORD` set, the recorded launches are written anew.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "vendor/cubin.rs"]
mod cubin;
mod launches;
#[path = "vendor/oracle.rs"]
mod oracle;

use launches::{answer, golden};
use nvfp4_cuda::pack::{Manifest, Pack};
use nvfp4_trtllm::{BACKEND, REVISION, TARGET, launch, tactic::TACTICS};
use oracle::Oracle;
use std::path::PathBuf;

fn folder(variable: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} is not set")))
}

fn oracle() -> Oracle {
    Oracle::compile(&folder("NVFP4_TRTLLM_HEADERS"), &folder("NVFP4_CUDA_HEADERS"))
}

#[test]
fn host_code_agrees() {
    let oracle = oracle();
    if std::env::var_os("NVFP4_RECORD").is_some() {
        let questions = oracle::questions(1, 480);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/launches.txt");
        let lines = questions.iter().zip(oracle.ask(&questions)).map(|(q, a)| format!("> {q}\n{a}"));
        std::fs::write(path, lines.collect::<String>()).unwrap();
        return;
    }
    let (questions, answers): (Vec<_>, Vec<_>) = golden().into_iter().unzip();
    assert_eq!(oracle.ask(&questions), answers, "the record is not what the vendor's code says");

    let seed = nvfp4_testkit::random::seed();
    let fresh = oracle::questions(seed, 4000);
    let mut launches = 0;
    for (question, expected) in fresh.iter().zip(oracle.ask(&fresh)) {
        assert_eq!(answer(question), expected, "{question} (seed {seed})");
        launches += usize::from(question.starts_with("launch"));
    }
    assert!(launches > 1000, "{launches} launches among the fresh questions");
}

#[test]
fn cubins_are_what_is_launched() {
    let folder = folder("NVFP4_TRTLLM_PACK");
    let manifest = Manifest::read(&folder.join("manifest.json")).unwrap();
    assert_eq!((manifest.backend.as_str(), manifest.revision), (BACKEND, REVISION));
    assert_eq!(manifest.images.len(), TACTICS.len());
    let pack = Pack { manifest, folder };
    for tactic in TACTICS {
        let image = pack.manifest.images.iter().find(|image| image.kernels == [tactic.kernel]).unwrap();
        assert_eq!((image.target.as_str(), image.sha256.as_str()), (TARGET, tactic.sha256));
        let facts = cubin::facts(&pack.read_image(image).unwrap(), tactic.kernel);
        let expected = cubin::KernelFacts {
            parameter_bytes: 960,
            parameters: vec![(0, std::mem::size_of::<launch::KernelParams>() as u32)],
            max_threads: [launch::THREADS, 1, 1],
            registers: 128,
            static_shared: 1024,
        };
        assert_eq!(facts, expected, "{}", tactic.kernel);
    }
}
