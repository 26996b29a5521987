//! A program with the facade starts without a GPU driver and needs none of NVIDIA's libraries.
#![cfg(feature = "cpu")]

mod support;

use nvfp4::{ActivationScheme, KernelId, Linear};
use support::{forward, layer, options, values};

/// Libraries that the dynamic loader would have loaded for a program that is linked with them.
#[cfg(target_os = "linux")]
#[test]
fn no_cuda_library_is_linked() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let loaded: std::collections::BTreeSet<&str> = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .filter(|path| path.contains(".so"))
        .collect();
    assert!(loaded.iter().any(|path| path.contains("libc.so") || path.contains("ld-")), "{loaded:?}");
    for library in ["libcuda", "libcudart", "libcudnn", "libcublas", "libnvrtc", "libnvidia"] {
        assert!(loaded.iter().all(|path| !path.contains(library)), "{loaded:?}");
    }
}

#[test]
fn runs_on_the_cpu_of_a_machine_without_a_driver() {
    let linear = Linear::load(&layer(8, 32, ActivationScheme::Unquantized, 1), &options()).unwrap();
    assert_eq!(linear.decision().chosen, KernelId::CPU);
    assert!(forward(&linear, &values(32, 2)).iter().all(|y| y.is_finite()));
}

/// Checks on data from outside are errors, which a release build keeps, not assertions, which it drops.
#[test]
fn no_library_source_has_a_debug_assertion() {
    let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut files = Vec::new();
    let mut folders: Vec<_> = std::fs::read_dir(crates)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.ends_with("nvfp4-testkit"))
        .map(|path| path.join("src"))
        .filter(|path| path.is_dir())
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    assert!(files.len() > 30, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let needle = ["debug", "_assert"].concat();
        assert!(!text.contains(&needle), "{} has a {needle}", file.display());
    }
}
