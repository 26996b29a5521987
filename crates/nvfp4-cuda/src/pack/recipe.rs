//! What packs there are: sources, targets, symbols. The one table for the build list (`cargo xtask build-kernels`), for
//! loading, and for the tests that hold the two together.

use crate::{codec_check, epilogue, quantize};

/// How a pack is built. Paths are relative to the repository.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// Name of the pack.
    pub backend: &'static str,
    /// Revision of the kernels' interface.
    pub revision: u32,
    /// The source that is compiled; one binary a target.
    pub source: &'static str,
    /// Files that it includes.
    pub includes: &'static [&'static str],
    /// Targets, e.g. `sm_90a`.
    pub targets: &'static [&'static str],
    /// Symbols that the binary must have.
    pub symbols: fn() -> Vec<String>,
    /// Instructions that the disassembly of a target must hold: without them it is an image of the wrong flavour.
    pub needs_sass: &'static [(&'static str, &'static str)],
    /// Memory that the compiler takes, MiB.
    pub memory_mib: u64,
    /// Licence of the binaries (SPDX).
    pub licence: &'static str,
}

/// Every GPU family that the kernels of this crate serve. One image serves 8.0 to 8.7, one 8.9.
const TARGETS: &[&str] = &["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_110a", "sm_120a", "sm_121a"];

/// The conversion to e2m1, which exists only under `a` and `f` targets of 10.0 and later.
const E2M1_CONVERSION: &[(&str, &str)] = &[
    ("sm_100a", "F2FP.SATFINITE.E2M1"),
    ("sm_103a", "F2FP.SATFINITE.E2M1"),
    ("sm_110a", "F2FP.SATFINITE.E2M1"),
    ("sm_120a", "F2FP.SATFINITE.E2M1"),
    ("sm_121a", "F2FP.SATFINITE.E2M1"),
];

/// The instruction that waits for the previous kernel, which exists from 9.0 on.
const EPILOGUE_WAIT: &[(&str, &str)] = &[
    ("sm_90a", "ACQBULK"),
    ("sm_100a", "ACQBULK"),
    ("sm_103a", "ACQBULK"),
    ("sm_110a", "ACQBULK"),
    ("sm_120a", "ACQBULK"),
    ("sm_121a", "ACQBULK"),
];

/// The packs of this crate.
pub const RECIPES: &[Recipe] = &[
    Recipe {
        backend: quantize::BACKEND,
        revision: quantize::REVISION,
        source: "crates/nvfp4-cuda/kernels/quantize.cu",
        includes: &["crates/nvfp4-cuda/kernels/codec.cuh"],
        targets: TARGETS,
        symbols: quantize::symbols,
        needs_sass: E2M1_CONVERSION,
        memory_mib: 600,
        licence: "MIT OR Apache-2.0",
    },
    Recipe {
        backend: epilogue::BACKEND,
        revision: epilogue::REVISION,
        source: "crates/nvfp4-cuda/kernels/epilogue.cu",
        includes: &[],
        targets: TARGETS,
        symbols: || epilogue::SYMBOLS.map(String::from).to_vec(),
        // It converts nothing to e2m1; that it waits for its predecessor marks the right flavour.
        needs_sass: EPILOGUE_WAIT,
        memory_mib: 400,
        licence: "MIT OR Apache-2.0",
    },
    Recipe {
        backend: codec_check::BACKEND,
        revision: codec_check::REVISION,
        source: "crates/nvfp4-cuda/kernels/codec_check.cu",
        includes: &["crates/nvfp4-cuda/kernels/codec.cuh"],
        targets: TARGETS,
        symbols: || codec_check::SYMBOLS.map(String::from).to_vec(),
        needs_sass: E2M1_CONVERSION,
        memory_mib: 400,
        licence: "MIT OR Apache-2.0",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::Flavour;
    use nvfp4_core::{ComputeCapability, requirements::REQUIREMENTS};

    /// Every device that some backend accepts has exactly the images that the load table gives it.
    #[test]
    fn every_supported_device_has_an_image() {
        let older = [80, 86, 87, 89, 90];
        let devices = REQUIREMENTS.iter().flat_map(|r| r.compute_capabilities).chain(&older);
        for recipe in RECIPES {
            for &number in devices.clone() {
                // 10.7 is announced, and nvcc 13.0 has no target for it.
                if number == 107 {
                    continue;
                }
                let device = ComputeCapability::new((number / 10) as u8, (number % 10) as u8);
                let images: Vec<Flavour> = recipe.targets.iter().map(|t| t.parse().unwrap()).collect();
                assert!(images.iter().any(|i| i.runs_on(device)), "{} has no image for {device}", recipe.backend);
            }
        }
    }

    #[test]
    fn targets_of_fp4_devices_have_a_flavour_and_a_fingerprint() {
        for recipe in RECIPES {
            for target in recipe.targets {
                let flavour: Flavour = target.parse().unwrap();
                if flavour.compute_capability.has_fp4() {
                    assert!(flavour.runs_on(flavour.compute_capability), "{target} is a plain target");
                    assert!(recipe.needs_sass.iter().any(|(t, _)| t == target), "{target} has no fingerprint");
                }
            }
        }
    }
}
