//! The devices that the simulator presents.

use std::fmt;

/// Environment variable that names the device to present, e.g. `sm_100a`.
pub const PROFILE_VARIABLE: &str = "NVFP4_SIM";

/// What a device says of itself. The figures are those that the CUDA driver reports for the named product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name of the product that is presented.
    pub name: &'static str,
    /// Target of the device code that it runs, e.g. `sm_100a`.
    pub target: &'static str,
    /// Compute capability: major, minor.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub sm_count: u32,
    /// Bytes of shared memory that a CTA may use without asking.
    pub shared_per_block: u32,
    /// Bytes of shared memory that a CTA may use if its kernel asks.
    pub shared_optin: u32,
    /// Bytes of shared memory of a multiprocessor, 1 KiB of each resident CTA's reserved by the system.
    pub shared_per_sm: u32,
    /// Threads that can be resident on a multiprocessor.
    pub threads_per_sm: u32,
    /// CTAs that can be resident on a multiprocessor.
    pub ctas_per_sm: u32,
    /// Most CTAs of a cluster, if the kernel allows sizes that are not portable.
    pub max_cluster: u32,
    /// Bytes of the L2 cache.
    pub l2_bytes: u64,
    /// Bytes of device memory.
    pub memory_bytes: u64,
    /// Width of the memory bus, bits.
    pub memory_bus_bits: u32,
    /// Clock of the multiprocessors, kHz.
    pub clock_khz: u32,
    /// Clock of the memory, kHz.
    pub memory_clock_khz: u32,
    /// The device has tensor memory and the `tcgen05` instructions.
    pub tensor_memory: bool,
}

/// A data-centre device: shared memory, residency and clusters as on compute capability 9.0 and 10.x.
const DATA_CENTRE: Profile = Profile {
    name: "",
    target: "",
    capability: (0, 0),
    sm_count: 0,
    shared_per_block: 48 * 1024,
    shared_optin: 227 * 1024,
    shared_per_sm: 228 * 1024,
    threads_per_sm: 2048,
    ctas_per_sm: 32,
    max_cluster: 16,
    l2_bytes: 0,
    memory_bytes: 0,
    memory_bus_bits: 0,
    clock_khz: 0,
    memory_clock_khz: 0,
    tensor_memory: false,
};

/// A consumer device of compute capability 12.x.
const CONSUMER: Profile = Profile {
    shared_optin: 99 * 1024,
    shared_per_sm: 100 * 1024,
    threads_per_sm: 1536,
    ctas_per_sm: 24,
    max_cluster: 8,
    ..DATA_CENTRE
};

/// Every device that can be presented. Sources: the tables of compute capabilities in the CUDA C++ Programming Guide; what `deviceQuery`
/// prints for the product, where somebody published it, else the product's data sheet.
pub const PROFILES: &[Profile] = &[
    Profile {
        name: "NVIDIA H200",
        target: "sm_90a",
        capability: (9, 0),
        sm_count: 132,
        l2_bytes: 60 << 20,
        memory_bytes: 150_109_880_320,
        memory_bus_bits: 6144,
        clock_khz: 1_980_000,
        memory_clock_khz: 3_201_000,
        ..DATA_CENTRE
    },
    Profile {
        name: "NVIDIA B200",
        target: "sm_100a",
        capability: (10, 0),
        sm_count: 148,
        l2_bytes: 132_644_864,
        memory_bytes: 191_501_762_560,
        memory_bus_bits: 7680,
        clock_khz: 1_965_000,
        memory_clock_khz: 3_996_000,
        tensor_memory: true,
        ..DATA_CENTRE
    },
    Profile {
        name: "NVIDIA B300",
        target: "sm_103a",
        capability: (10, 3),
        sm_count: 148,
        l2_bytes: 132_644_864,
        memory_bytes: 288_000_000_000,
        memory_bus_bits: 8192,
        clock_khz: 1_920_000,
        memory_clock_khz: 3_996_000,
        tensor_memory: true,
        ..DATA_CENTRE
    },
    Profile {
        name: "NVIDIA GeForce RTX 5090",
        target: "sm_120a",
        capability: (12, 0),
        sm_count: 170,
        l2_bytes: 100_663_296,
        memory_bytes: 33_680_457_728,
        memory_bus_bits: 512,
        clock_khz: 2_550_000,
        memory_clock_khz: 14_001_000,
        ..CONSUMER
    },
    Profile {
        name: "NVIDIA GB10",
        target: "sm_121a",
        capability: (12, 1),
        sm_count: 48,
        l2_bytes: 24 << 20,
        memory_bytes: 128_000_000_000,
        memory_bus_bits: 256,
        clock_khz: 2_418_000,
        memory_clock_khz: 4_266_000,
        ..CONSUMER
    },
];

/// A device name that is none of [`PROFILES`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no simulated device `{found}`; {PROFILE_VARIABLE} must be one of {}", Targets)]
pub struct UnknownDevice {
    /// What was asked for.
    pub found: String,
}

/// The targets of [`PROFILES`], for messages.
struct Targets;

impl fmt::Display for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let targets: Vec<_> = PROFILES.iter().map(|profile| profile.target).collect();
        f.write_str(&targets.join(", "))
    }
}

impl Profile {
    /// The device whose code has this target, e.g. `sm_100a`.
    ///
    /// # Errors
    /// No such device; the message names those there are.
    pub fn named(target: &str) -> Result<&'static Self, UnknownDevice> {
        PROFILES
            .iter()
            .find(|profile| profile.target == target)
            .ok_or_else(|| UnknownDevice { found: target.into() })
    }

    /// True if the device runs PTX of this target, such as `sm_90a`, `sm_100f` or `sm_80`: an `a` target runs on exactly its device, an
    /// `f` target on its own and later devices of the same major version, a plain one on its own and every later device (PTX ISA,
    /// `.target`).
    pub fn runs_ptx(&self, target: &str) -> bool {
        let Some(text) = target.strip_prefix("sm_") else { return false };
        let digits = text.trim_end_matches(['a', 'f']);
        let Ok(number) = digits.parse::<u32>() else { return false };
        let (code, device) = ((number / 10, number % 10), self.capability);
        match &text[digits.len()..] {
            "" => code <= device,
            "a" => code == device,
            "f" => code.0 == device.0 && code.1 <= device.1,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_found_by_its_target() {
        for profile in PROFILES {
            assert_eq!(Profile::named(profile.target), Ok(profile));
            let (major, minor) = profile.capability;
            assert_eq!(profile.target, format!("sm_{major}{minor}a"));
            assert_eq!(profile.shared_per_sm, profile.shared_optin + 1024, "1 KiB of a CTA is the system's");
        }
        assert_eq!(
            Profile::named("sm_99").unwrap_err().to_string(),
            "no simulated device `sm_99`; NVFP4_SIM must be one of sm_90a, sm_100a, sm_103a, sm_120a, sm_121a"
        );
    }

    #[test]
    fn which_ptx_runs_where() {
        let runs = |device: &str, target: &str| Profile::named(device).unwrap().runs_ptx(target);
        for (device, target, expected) in [
            ("sm_100a", "sm_100a", true),
            ("sm_100a", "sm_100f", true),
            ("sm_100a", "sm_90", true),
            ("sm_100a", "sm_90a", false),
            ("sm_100a", "sm_103a", false),
            ("sm_100a", "sm_103f", false),
            ("sm_103a", "sm_100f", true),
            ("sm_103a", "sm_100a", false),
            ("sm_120a", "sm_100f", false),
            ("sm_121a", "sm_120f", true),
            ("sm_121a", "sm_120a", false),
            ("sm_121a", "sm_80", true),
            ("sm_90a", "sm_100", false),
            ("sm_90a", "compute_90", false),
            ("sm_90a", "sm_90af", false),
            ("sm_90a", "sm_", false),
        ] {
            assert_eq!(runs(device, target), expected, "{target} on {device}");
        }
    }
}
