//! The test against the upstream Python libraries: checkpoints that `nvfp4 quantize` writes are opened by
//! compressed-tensors and ModelOpt, which must decode them to what `nvfp4 dequantize` makes of them.

use crate::{
    cache::Cache,
    minilm,
    nvfp4_program::Program,
    python::{Environment, run},
    whole_model::{FORMATS, SCHEMES, dequantize, quantize},
    workspace,
};
use anyhow::{Result, ensure};

const SCRIPT: &str = "xtask/python/upstream.py";

/// The environment with the upstream libraries, made if it is not in the cache.
pub(crate) fn fetch() -> Result<Environment> {
    let cache = Cache::open()?;
    let _lock = cache.lock()?;
    Environment::of_lock(&cache, "upstream")
}

/// Whether [`fetch`] would find everything in the cache.
pub(crate) fn is_cached() -> Result<bool> {
    Ok(Environment::cached(&Cache::open()?, "upstream")?.is_some())
}

/// Demo data against PyTorch, then every format and scheme over the whole MiniLM.
pub(crate) fn test() -> Result<()> {
    let python = fetch()?;
    let minilm = minilm::fetch()?;
    let script = |arguments: &[&std::ffi::OsStr]| {
        let mut command = python.python();
        command.arg(workspace::path(SCRIPT)).args(arguments);
        // transformers asks a hub about local models unless told not to.
        command.env("HF_HUB_OFFLINE", "1").env("TQDM_DISABLE", "1");
        run(&mut command)
    };
    script(&["versions".as_ref()])?;
    println!("demo data against PyTorch");
    script(&[
        "demo-data".as_ref(),
        "--model".as_ref(),
        minilm.model.as_os_str(),
        "--sentences".as_ref(),
        workspace::path(minilm::SENTENCES).as_os_str(),
        "--demo".as_ref(),
        workspace::path(minilm::DEMO).as_os_str(),
    ])?;

    let program = Program::build()?;
    let folder = tempfile::tempdir()?;
    let mut compared = 0;
    for format in FORMATS {
        for scheme in SCHEMES {
            let checkpoint = folder.path().join(format!("{format}-{scheme}"));
            quantize(&program, &minilm, format, scheme, &checkpoint)?;
            let dequantized = dequantize(&program, &checkpoint, &checkpoint.with_extension("f32"))?;
            script(&[
                "compare".as_ref(),
                "--format".as_ref(),
                format.as_ref(),
                "--scheme".as_ref(),
                scheme.as_ref(),
                "--checkpoint".as_ref(),
                checkpoint.as_os_str(),
                "--dequantized".as_ref(),
                dequantized.as_os_str(),
                "--calibration".as_ref(),
                minilm.calibration.as_os_str(),
            ])?;
            compared += 1;
        }
    }
    ensure!(compared == FORMATS.len() * SCHEMES.len(), "compared {compared} checkpoints");
    Ok(())
}
