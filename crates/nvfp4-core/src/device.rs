//! Devices as plain data, so that selection can be asked about devices that are not here.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::{fmt, str::FromStr};

/// A CUDA compute capability such as 10.0 or 12.1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ComputeCapability {
    major: u8,
    minor: u8,
}

impl ComputeCapability {
    /// A100.
    pub const SM80: Self = Self::new(8, 0);
    /// RTX 30 series, A10, A40.
    pub const SM86: Self = Self::new(8, 6);
    /// RTX 40 series, L4, L40.
    pub const SM89: Self = Self::new(8, 9);
    /// H100, H200, GH200.
    pub const SM90: Self = Self::new(9, 0);
    /// B200, GB200.
    pub const SM100: Self = Self::new(10, 0);
    /// B300, GB300.
    pub const SM103: Self = Self::new(10, 3);
    /// Jetson Thor.
    pub const SM110: Self = Self::new(11, 0);
    /// RTX 50 series, RTX PRO Blackwell.
    pub const SM120: Self = Self::new(12, 0);
    /// DGX Spark (GB10).
    pub const SM121: Self = Self::new(12, 1);

    /// From the pair that the driver reports.
    pub const fn new(major: u8, minor: u8) -> Self {
        Self { major, minor }
    }
    /// Major version: the architecture family, e.g. 10 for 10.0 and 10.3.
    pub const fn major(self) -> u8 {
        self.major
    }
    /// Minor version.
    pub const fn minor(self) -> u8 {
        self.minor
    }
    /// `10 * major + minor`, the number in `sm_103`.
    pub const fn number(self) -> u32 {
        10 * self.major as u32 + self.minor as u32
    }
    /// True if both are members of one family (same major version), as vLLM's `is_device_capability_family`.
    pub const fn is_family(self, other: Self) -> bool {
        self.major == other.major
    }
    /// True if the tensor cores multiply FP4 (Blackwell and later).
    pub const fn has_fp4(self) -> bool {
        self.major >= 10
    }
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("sm_{}", self.number()))
    }
}

/// Text that is no compute capability.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no compute capability; write it as sm_121, 121 or 12.1")]
pub struct ParseComputeCapabilityError(String);

impl FromStr for ComputeCapability {
    type Err = ParseComputeCapabilityError;

    /// Takes `sm_121`, `sm121`, `sm_121a`, `121` and `12.1`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let err = || ParseComputeCapabilityError(text.to_string());
        let lower = text.trim().to_ascii_lowercase();
        let digits = lower.strip_prefix("sm").unwrap_or(&lower);
        let digits = digits.strip_prefix('_').unwrap_or(digits);
        let digits = digits.strip_suffix(['a', 'f']).unwrap_or(digits);
        let (major, minor) = match digits.split_once('.') {
            Some(pair) => pair,
            None => digits.split_at_checked(digits.len().saturating_sub(1)).ok_or_else(err)?,
        };
        let number = |s: &str| -> Option<u8> {
            if s.is_empty() || !s.bytes().all(|b| b.is_ascii_digit()) { None } else { s.parse().ok() }
        };
        match (number(major), number(minor)) {
            (Some(major), Some(minor)) if (1..100).contains(&major) && minor < 10 => Ok(Self::new(major, minor)),
            _ => Err(err()),
        }
    }
}

/// A CPU, as far as selection cares.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CpuFacts {
    /// Model name, or the architecture if the system does not tell.
    pub name: String,
    /// Instruction-set extensions that the kernels can use, e.g. `avx2`.
    pub features: Vec<String>,
    /// Threads that the kernels will use.
    pub threads: usize,
}

impl CpuFacts {
    /// Facts from their parts.
    pub fn new(name: impl Into<String>, features: Vec<String>, threads: usize) -> Self {
        Self { name: name.into(), features, threads }
    }
}

/// A CUDA device and the libraries beside it, as far as selection cares.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CudaFacts {
    /// Marketing name.
    pub name: String,
    /// Compute capability.
    pub compute_capability: ComputeCapability,
    /// CUDA version of the driver, e.g. 13000 for 13.0.
    pub driver_cuda: Option<u32>,
    /// Streaming multiprocessors.
    pub sm_count: Option<u32>,
    /// Largest dynamic shared memory that a block can opt in to, bytes.
    pub shared_memory_optin: Option<u32>,
    /// Level-2 cache, bytes.
    pub l2_bytes: Option<u64>,
    /// Device memory, bytes.
    pub memory_bytes: Option<u64>,
    /// cuDNN version if the library was found, e.g. 91900 for 9.19.0.
    pub cudnn: Option<u32>,
}

impl CudaFacts {
    /// A device of which only the compute capability is known.
    pub fn new(compute_capability: ComputeCapability) -> Self {
        Self {
            name: format!("a {compute_capability} GPU"),
            compute_capability,
            driver_cuda: None,
            sm_count: None,
            shared_memory_optin: None,
            l2_bytes: None,
            memory_bytes: None,
            cudnn: None,
        }
    }
}

/// A device that layers run on.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceFacts {
    /// The host.
    Cpu(CpuFacts),
    /// A CUDA GPU.
    Cuda(CudaFacts),
}

impl DeviceFacts {
    /// The compute capability of a GPU.
    pub const fn compute_capability(&self) -> Option<ComputeCapability> {
        match self {
            Self::Cpu(_) => None,
            Self::Cuda(facts) => Some(facts.compute_capability),
        }
    }
}

impl fmt::Display for DeviceFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(facts) => write!(f, "CPU {}", facts.name),
            Self::Cuda(facts) => write!(f, "{} ({})", facts.name, facts.compute_capability),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_people_write() {
        for text in ["sm_121", "sm121", "SM_121a", "121", "12.1", " 12.1 ", "sm_121f"] {
            assert_eq!(text.parse(), Ok(ComputeCapability::SM121), "{text}");
        }
        assert_eq!("9.0".parse(), Ok(ComputeCapability::SM90));
        assert_eq!(ComputeCapability::SM90.to_string(), "sm_90");
        for text in ["", "sm_", "x", "9", "12.", ".1", "12.1.1", "12.10", "-1.0", "+9.0", "1 2"] {
            assert!(text.parse::<ComputeCapability>().is_err(), "{text}");
        }
    }
}
