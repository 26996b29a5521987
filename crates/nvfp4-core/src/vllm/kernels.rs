//! The kernel classes and where each claims to run.

use super::trace::FlashInferCalls;
use crate::quant_key::QuantKey;
use core::fmt;

/// The platform that vLLM detected.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Platform {
    /// NVIDIA GPUs.
    Cuda,
    /// AMD GPUs.
    Rocm,
    /// Anything else, e.g. a CPU: no NVFP4 kernel is offered.
    Other,
}

/// What vLLM finds on a machine, as far as NVFP4 kernels ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Environment {
    /// The platform.
    pub platform: Platform,
    /// `10 * major + minor` of the compute capability, or `None` if it cannot be told.
    pub compute_capability: Option<u32>,
    /// FlashInfer can be used, with its CuTe DSL, BF16 × FP4 and b12x parts.
    pub flashinfer: bool,
    /// vLLM itself was compiled with CUTLASS FP4 kernels for SM100 and SM120 (CUDA 12.8 or newer).
    pub cutlass: bool,
    /// The package `humming` is installed.
    pub humming: bool,
    /// The package `b12x` is installed.
    pub b12x: bool,
    /// The package `fbgemm_gpu` is installed.
    pub fbgemm: bool,
}

impl Environment {
    /// A usual installation on a CUDA GPU: the released wheel with the FlashInfer that it asks for, and none of the
    /// optional packages.
    pub const fn cuda(compute_capability: u32) -> Self {
        Self {
            platform: Platform::Cuda,
            compute_capability: Some(compute_capability),
            flashinfer: true,
            cutlass: true,
            humming: false,
            b12x: false,
            fbgemm: false,
        }
    }

    /// The CUTLASS kernels compiled into vLLM: SM100 ones for 10.0 to 11.x, SM120 ones for 12.x.
    fn has_cutlass(&self) -> bool {
        self.platform == Platform::Cuda && self.cutlass && self.capability_in(&[(100, 129)])
    }

    fn capability_in(&self, ranges: &[(u32, u32)]) -> bool {
        self.compute_capability
            .is_some_and(|number| ranges.iter().any(|&(low, high)| (low..=high).contains(&number)))
    }
}

/// One condition of [`Kernel::is_supported`].
#[derive(Clone, Debug)]
enum Need {
    Cuda,
    KnownCapability,
    /// Within one of these, both ends included.
    Capability(&'static [(u32, u32)]),
    FlashInfer,
    Cutlass,
    Fbgemm,
    B12x,
    Humming,
}

impl Need {
    fn is_met(&self, environment: &Environment) -> bool {
        match self {
            Self::Cuda => environment.platform == Platform::Cuda,
            Self::KnownCapability => environment.compute_capability.is_some(),
            Self::Capability(ranges) => environment.capability_in(ranges),
            Self::FlashInfer => environment.flashinfer,
            Self::Cutlass => environment.has_cutlass(),
            Self::Fbgemm => environment.fbgemm,
            Self::B12x => environment.b12x,
            Self::Humming => environment.humming,
        }
    }
}

/// A kernel class of vLLM. Two are equal if they have the same name.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Class name.
    pub name: &'static str,
    /// The value of `--linear-backend` that asks for it.
    pub linear_backend: &'static str,
    /// True if it can run W4A16 layers.
    pub w4a16: bool,
    /// Key of the pre-quantized activations that it takes.
    pub input_quant_key: Option<QuantKey>,
    /// Conditions, in the order in which they are checked, each with the text that is given if it does not hold.
    needs: &'static [(Need, &'static str)],
    /// True if `is_supported` heeds its argument instead of asking about the current device.
    heeds_argument: bool,
    /// How it prepares weights and what it calls, for the six FlashInfer kernels.
    pub(super) calls: Option<FlashInferCalls>,
}

impl PartialEq for Kernel {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}
impl Eq for Kernel {}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

const FAMILY_10X: Need = Need::Capability(&[(100, 109)]);
const FAMILY_12X: Need = Need::Capability(&[(120, 129)]);

/// A row with what most kernels have.
const fn kernel(
    name: &'static str,
    linear_backend: &'static str,
    needs: &'static [(Need, &'static str)],
) -> Kernel {
    Kernel { name, linear_backend, w4a16: false, input_quant_key: None, needs, heeds_argument: false, calls: None }
}

/// The kernel classes, in the order in which vLLM tries them on CUDA.
pub static KERNELS: [Kernel; 14] = [
    Kernel {
        input_quant_key: Some(QuantKey::NVFP4_DYNAMIC),
        calls: Some(FlashInferCalls::CUTE_DSL),
        ..kernel(
            "FlashInferCuteDslNvFp4LinearKernel",
            "flashinfer_cutedsl",
            &[(FAMILY_10X, "FlashInfer cutedsl requires sm_10x"), (Need::FlashInfer, "FlashInfer required")],
        )
    },
    Kernel {
        input_quant_key: Some(QuantKey::NVFP4_DYNAMIC),
        calls: Some(FlashInferCalls::CUTLASS),
        ..kernel(
            "FlashInferCutlassNvFp4LinearKernel",
            "flashinfer_cutlass",
            &[
                (Need::Cutlass, "FlashInfer + >=sm_100 required"),
                (Need::FlashInfer, "FlashInfer + >=sm_100 required"),
            ],
        )
    },
    Kernel {
        calls: Some(FlashInferCalls::B12X),
        ..kernel(
            "FlashInferB12xNvFp4LinearKernel",
            "flashinfer_b12x",
            &[
                (
                    Need::Capability(&[(120, u32::MAX)]),
                    "FlashInfer b12x requires SM120+ and FlashInfer with Sm120BlockScaledDenseGemmKernel",
                ),
                (
                    Need::FlashInfer,
                    "FlashInfer b12x requires SM120+ and FlashInfer with Sm120BlockScaledDenseGemmKernel",
                ),
            ],
        )
    },
    kernel("CutlassNvFp4LinearKernel", "cutlass", &[(Need::Cutlass, "CUTLASS FP4 kernels not available")]),
    Kernel {
        w4a16: true,
        heeds_argument: true,
        calls: Some(FlashInferCalls::BF16_FP4),
        ..kernel(
            "FlashInferCuteDslNvFp4W4A16LinearKernel",
            "flashinfer_cutedsl",
            &[
                (Need::Cuda, "FlashInfer CuTe-DSL W4A16 requires CUDA"),
                (Need::KnownCapability, "CUDA compute capability is unavailable"),
                (
                    Need::Capability(&[(100, 100), (103, 103), (120, 129)]),
                    "FlashInfer CuTe-DSL W4A16 requires sm_100 or sm_12x",
                ),
                (Need::FlashInfer, "FlashInfer CuTe-DSL BF16 x FP4 GEMM is unavailable"),
            ],
        )
    },
    Kernel {
        w4a16: true,
        ..kernel(
            "MarlinNvFp4LinearKernel",
            "marlin",
            &[
                (Need::Cuda, "Marlin FP4 not available"),
                (Need::Capability(&[(75, u32::MAX)]), "Marlin FP4 not available"),
            ],
        )
    },
    Kernel {
        calls: Some(FlashInferCalls::TRTLLM),
        ..kernel(
            "FlashInferTrtllmNvFp4LinearKernel",
            "flashinfer_trtllm",
            &[(Need::FlashInfer, "FlashInfer required")],
        )
    },
    Kernel {
        calls: Some(FlashInferCalls::CUDNN),
        ..kernel(
            "FlashInferCudnnNvFp4LinearKernel",
            "flashinfer_cudnn",
            &[(Need::FlashInfer, "FlashInfer required")],
        )
    },
    kernel("FbgemmNvFp4LinearKernel", "fbgemm", &[(Need::Fbgemm, "fbgemm_gpu required")]),
    kernel("B12xNvFp4LinearKernel", "b12x", NATIVE_B12X),
    Kernel { w4a16: true, ..kernel("B12xNvFp4W4A16LinearKernel", "b12x", NATIVE_B12X) },
    kernel("TorchNvFp4LinearKernel", "torch", &[(FAMILY_10X, "Torch NVFP4 requires sm_10x (Blackwell)")]),
    kernel("EmulationNvFp4LinearKernel", "emulation", &[]),
    Kernel {
        w4a16: true,
        ..kernel(
            "HummingNvFp4LinearKernel",
            "humming",
            &[
                (Need::Cuda, "Humming only supported on CUDA"),
                (Need::Humming, "Humming is not installed"),
                (Need::Capability(&[(75, u32::MAX)]), "Humming only supported on SM75+"),
            ],
        )
    },
];

const NATIVE_B12X: &[(Need, &str)] = &[
    (Need::Cuda, "B12X NVFP4 kernels are only available on CUDA"),
    (FAMILY_12X, "B12X NVFP4 kernels require a Blackwell 12x device"),
    (Need::B12x, "Install the B12X backend with `pip install vllm[b12x]`"),
];

impl Kernel {
    /// The class of this name.
    pub fn of(name: &str) -> Option<&'static Self> {
        KERNELS.iter().find(|kernel| kernel.name == name)
    }

    /// `Ok`, or the reason that vLLM gives.
    pub fn is_supported(&self, environment: &Environment) -> Result<(), &'static str> {
        match self.needs.iter().find(|(need, _)| !need.is_met(environment)) {
            Some(&(_, reason)) => Err(reason),
            None => Ok(()),
        }
    }

    /// The same with the optional argument `compute_capability` of vLLM's method, which all classes but one ignore.
    pub fn is_supported_with_argument(
        &self,
        environment: &Environment,
        compute_capability: Option<u32>,
    ) -> Result<(), &'static str> {
        let mut asked = *environment;
        if self.heeds_argument && compute_capability.is_some() {
            asked.compute_capability = compute_capability;
        }
        self.is_supported(&asked)
    }
}
