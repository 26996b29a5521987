//! GPUs by the names that people use for them, so that selection can be asked about a GPU that is not here.

use nvfp4_core::{ComputeCapability, CudaFacts, DeviceFacts};

/// GPUs of one compute capability.
#[derive(Clone, Copy, Debug)]
pub struct KnownGpus {
    /// Their compute capability.
    pub compute_capability: ComputeCapability,
    /// Their names, without the maker's.
    pub names: &'static [&'static str],
}

/// The table, from NVIDIA's pages «CUDA GPU Compute Capability» and «CUDA Legacy GPU Compute Capability»
/// (developer.nvidia.com/cuda-gpus), read 2026-12; Thor as of CUDA 13 (it was 10.1 before). `RTX 6000` alone is left
/// out: three generations share that name.
pub const KNOWN_GPUS: &[KnownGpus] = &[
    KnownGpus { compute_capability: ComputeCapability::SM121, names: &["GB10", "DGX Spark"] },
    KnownGpus {
        compute_capability: ComputeCapability::SM120,
        names: &[
            "RTX 5090",
            "RTX 5080",
            "RTX 5070 Ti",
            "RTX 5070",
            "RTX 5060 Ti",
            "RTX 5060",
            "RTX 5050",
            "RTX PRO 6000",
            "RTX PRO 5000",
            "RTX PRO 4500",
            "RTX PRO 4000",
            "RTX PRO 2000",
        ],
    },
    KnownGpus { compute_capability: ComputeCapability::SM110, names: &["Thor", "T5000", "T4000"] },
    KnownGpus { compute_capability: ComputeCapability::SM103, names: &["B300", "GB300"] },
    KnownGpus { compute_capability: ComputeCapability::SM100, names: &["B200", "GB200"] },
    KnownGpus { compute_capability: ComputeCapability::SM90, names: &["H100", "H200", "GH200"] },
    KnownGpus {
        compute_capability: ComputeCapability::SM89,
        names: &[
            "L4",
            "L40",
            "L40S",
            "RTX 6000 Ada",
            "RTX 5000 Ada",
            "RTX 4500 Ada",
            "RTX 4000 Ada",
            "RTX 2000 Ada",
            "RTX 4090",
            "RTX 4080",
            "RTX 4070 Ti",
            "RTX 4070",
            "RTX 4060 Ti",
            "RTX 4060",
            "RTX 4050",
        ],
    },
    KnownGpus {
        compute_capability: ComputeCapability::new(8, 7),
        names: &["Jetson AGX Orin", "Jetson Orin NX", "Jetson Orin Nano"],
    },
    KnownGpus {
        compute_capability: ComputeCapability::SM86,
        names: &[
            "A10",
            "A40",
            "A16",
            "A2",
            "RTX A6000",
            "RTX A5000",
            "RTX A4000",
            "RTX A3000",
            "RTX A2000",
            "RTX 3090 Ti",
            "RTX 3090",
            "RTX 3080 Ti",
            "RTX 3080",
            "RTX 3070 Ti",
            "RTX 3070",
            "RTX 3060 Ti",
            "RTX 3060",
            "RTX 3050",
        ],
    },
    KnownGpus { compute_capability: ComputeCapability::SM80, names: &["A100", "A30"] },
    KnownGpus {
        compute_capability: ComputeCapability::new(7, 5),
        names: &["T4", "RTX 2080 Ti", "RTX 2080", "RTX 2070", "RTX 2060"],
    },
    KnownGpus { compute_capability: ComputeCapability::new(7, 0), names: &["V100"] },
];

/// Text that names no GPU of [`KNOWN_GPUS`] and is no compute capability.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no GPU is known as `{name}`; give its compute capability (sm_121, 121 or 12.1) or one of: {}",
    known_names().collect::<Vec<_>>().join(", ")
)]
pub struct UnknownGpu {
    /// The text.
    pub name: String,
}

/// Every name in [`KNOWN_GPUS`].
fn known_names() -> impl Iterator<Item = &'static str> {
    KNOWN_GPUS.iter().flat_map(|gpus| gpus.names.iter().copied())
}

/// Words that marketing adds and that tell nothing apart.
const NOISE: &[&str] = &["nvidia", "geforce", "tesla", "jetson", "agx", "gpu", "blackwell", "superchip"];

/// A name without case, separators and noise words: `NVIDIA GeForce RTX-5090` as `rtx5090`.
fn normalized(name: &str) -> String {
    name.to_ascii_lowercase()
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !NOISE.contains(word))
        .collect()
}

/// The facts of a GPU named by its compute capability (`sm_121`, `121`, `12.1`) or by a name in [`KNOWN_GPUS`]
/// (`RTX 5090`, `NVIDIA B200`, `DGX Spark`). Only the compute capability (and the name) is filled in: driver and
/// libraries of a GPU that is not here are taken as good.
///
/// ```
/// let spark = nvfp4::gpu("DGX Spark")?;
/// assert_eq!(spark.compute_capability(), Some(nvfp4::ComputeCapability::SM121));
/// assert_eq!(nvfp4::gpu("sm_121")?.compute_capability(), spark.compute_capability());
/// # Ok::<(), nvfp4::UnknownGpu>(())
/// ```
pub fn gpu(name: &str) -> Result<DeviceFacts, UnknownGpu> {
    if let Ok(compute_capability) = name.parse() {
        return Ok(DeviceFacts::Cuda(CudaFacts::new(compute_capability)));
    }
    let wanted = normalized(name);
    let found = KNOWN_GPUS
        .iter()
        .flat_map(|gpus| gpus.names.iter().map(|known| (*known, gpus.compute_capability)))
        .find(|(known, _)| normalized(known) == wanted);
    let Some((known, compute_capability)) = found else { return Err(UnknownGpu { name: name.into() }) };
    let mut facts = CudaFacts::new(compute_capability);
    facts.name = known.into();
    Ok(DeviceFacts::Cuda(facts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_name_finds_its_row_and_no_two_are_alike() {
        let mut seen = HashSet::new();
        for gpus in KNOWN_GPUS {
            for name in gpus.names {
                assert!(seen.insert(normalized(name)), "{name} is ambiguous");
                assert!(!normalized(name).is_empty(), "{name} is all noise");
                for text in [name.to_string(), format!("NVIDIA {name}"), name.to_lowercase().replace(' ', "-")] {
                    let facts = gpu(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
                    assert_eq!(facts.compute_capability(), Some(gpus.compute_capability), "{text}");
                }
            }
        }
        assert!(seen.len() > 40);
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        for text in ["", "RTX 6000", "NVIDIA", "MI300X", "RTX 50900", "sm_", "12."] {
            let error = gpu(text).unwrap_err();
            assert_eq!(error.name, text);
            assert!(error.to_string().contains("RTX 5090") && error.to_string().contains("sm_121"), "{error}");
        }
    }
}
