//! The driver as programs use it: through cudarc, in a process that finds it as `libcuda.so.1`. Linux only.
//!
//! The loader reads `LD_LIBRARY_PATH` when a process starts, so the program starts itself once more with the simulator first on it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(target_os = "linux")]
mod capture;
#[cfg(target_os = "linux")]
mod device;
#[cfg(target_os = "linux")]
mod fault;
#[cfg(target_os = "linux")]
mod kernel;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod module;
#[cfg(target_os = "linux")]
mod stream;

/// Name and body of a test.
#[cfg(target_os = "linux")]
type Test = (&'static str, fn());

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() {
    use libtest_mimic::{Arguments, Trial};
    const INSIDE: &str = "BLACKWELL_SIM_INSIDE";

    if std::env::var_os(INSIDE).is_none() {
        let program = std::env::current_exe().unwrap();
        // cargo puts the library beside the tests that depend on it.
        let library = program.parent().unwrap().join(blackwell_sim::LIBRARY);
        let folder = tempfile::tempdir().unwrap();
        blackwell_sim::install(&library, folder.path()).unwrap();
        let mut command = std::process::Command::new(program);
        command.args(std::env::args_os().skip(1)).env(INSIDE, "1").env("LD_LIBRARY_PATH", folder.path());
        let target = std::env::var_os("NVFP4_SIM").unwrap_or_else(|| "sm_100a".into());
        let status = command.env("NVFP4_SIM", target).status().unwrap();
        drop(folder);
        std::process::exit(status.code().unwrap_or(1));
    }

    let tests =
        [device::TESTS, memory::TESTS, stream::TESTS, module::TESTS, kernel::TESTS, capture::TESTS, fault::TESTS]
            .concat();
    let trials = tests
        .into_iter()
        .map(|(name, test)| {
            Trial::test(name, move || {
                test();
                Ok(())
            })
        })
        .collect();
    // One at a time: a capture in global mode forbids allocations beside it.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials).exit();
}
