//! Tests that need a GPU. Without one they are listed as ignored, with the reason; with `NVFP4_REQUIRE_GPU` set that
//! is a failure. Kernel packs come from `NVFP4_KERNELS`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod capture;
mod codecs;
mod epilogue;
mod oracle;
mod quantize;
mod setup;

/// Name and body of a test.
pub(crate) type Test = (&'static str, fn(&setup::Gpu));

use libtest_mimic::{Arguments, Trial};

fn main() {
    let arguments = Arguments::from_args();
    let gpu = setup::gpu();
    if let Err(reason) = &gpu {
        let required = std::env::var_os("NVFP4_REQUIRE_GPU").is_some_and(|v| !v.is_empty());
        eprintln!("GPU tests {}: {reason}", if required { "failed" } else { "ignored" });
        if required {
            std::process::exit(1);
        }
    }
    let tests: Vec<Test> = [codecs::TESTS, quantize::TESTS, capture::TESTS, epilogue::TESTS].concat();
    let trials = tests
        .into_iter()
        .map(|(name, test)| match &gpu {
            Ok(gpu) => {
                let gpu = gpu.clone();
                Trial::test(name, move || {
                    test(&gpu);
                    Ok(())
                })
            }
            Err(_) => Trial::test(name, || Ok(())).with_ignored_flag(true),
        })
        .collect();
    // One at a time: the tests share a context, and capture in global mode forbids allocations beside it.
    let arguments = Arguments { test_threads: Some(1), ..arguments };
    libtest_mimic::run(&arguments, trials).exit();
}
