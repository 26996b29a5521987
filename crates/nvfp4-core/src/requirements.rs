//! What each backend needs from a device and a layer, as data. The one source for `is_supported`,
//! `can_implement`, the list of kernels to build, and `nvfp4 explain`, so that they cannot disagree.

use crate::{
    device::DeviceFacts,
    dtype::DType,
    kernel::{KernelId, KernelSupport, WeightLayout},
    layer::{ActivationScheme, NvFp4LinearLayerConfig, WeightScaleKind},
    quant_key::QuantKey,
    support::Unsupported,
};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

/// What a CUDA backend needs. [`support`](Self::support) turns a row into a [`KernelSupport`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Requirements {
    /// Name of the backend and of its cargo feature.
    pub id: KernelId,
    /// The kernel class of vLLM that it stands for.
    pub vllm_class: &'static str,
    /// `10 * major + minor` of the compute capabilities it runs on.
    pub compute_capabilities: &'static [u32],
    /// Activation schemes it computes.
    pub schemes: &'static [ActivationScheme],
    /// The same in words, for messages.
    pub schemes_text: &'static str,
    /// Input types.
    pub input_dtypes: &'static [DType],
    /// The same in words.
    pub input_dtypes_text: &'static str,
    /// Output types.
    pub output_dtypes: &'static [DType],
    /// The same in words.
    pub output_dtypes_text: &'static str,
    /// `n` must be a multiple of this even after padding (1: any `n`).
    pub n_multiple: usize,
    /// `k` must be a multiple of this even after padding (16: any legal `k`).
    pub k_multiple: usize,
    /// Takes weights whose parts have different global scales.
    pub per_row_scale: bool,
    /// Row `i` of the output does not depend on the number of rows.
    pub batch_invariant: bool,
    /// Oldest CUDA version of the driver, e.g. 12080 for 12.8.
    pub driver_cuda: u32,
    /// Oldest cuDNN, e.g. 91500 for 9.15.0, if it needs one.
    pub cudnn: Option<u32>,
    /// Layouts that it reads, each for compute capabilities from one number to another, both included.
    pub weight_layouts: &'static [(u32, u32, WeightLayout)],
    /// Key of pre-quantized activations that it takes.
    pub input_quant_key: Option<QuantKey>,
    /// Where these facts come from.
    pub source: &'static str,
}

const W4A4: &[ActivationScheme] = &[ActivationScheme::Nvfp4Static];
const F16_BF16: &[DType] = &[DType::Bf16, DType::F16];
const BF16: &[DType] = &[DType::Bf16];
const SWIZZLED_128X4: &[(u32, u32, WeightLayout)] = &[(0, u32::MAX, WeightLayout::SWIZZLED_128X4)];

/// The rows, one for each of the six FlashInfer kernel families. A backend crate takes its own row from here.
pub const REQUIREMENTS: &[Requirements] = &[
    Requirements {
        id: KernelId::CUTLASS,
        vllm_class: "FlashInferCutlassNvFp4LinearKernel",
        compute_capabilities: &[100, 103, 107, 110, 120, 121],
        schemes: W4A4,
        schemes_text: "W4A4",
        input_dtypes: F16_BF16,
        input_dtypes_text: "bf16 or f16",
        output_dtypes: F16_BF16,
        output_dtypes_text: "bf16 or f16",
        n_multiple: 1,
        k_multiple: 16,
        per_row_scale: false,
        batch_invariant: false,
        driver_cuda: 12080,
        cudnn: None,
        weight_layouts: SWIZZLED_128X4,
        input_quant_key: Some(QuantKey::NVFP4_DYNAMIC),
        source: "FlashInfer 0.7.4 mm_fp4 requirements; vLLM #39912 (not batch-invariant)",
    },
    Requirements {
        id: KernelId::CUDNN,
        vllm_class: "FlashInferCudnnNvFp4LinearKernel",
        compute_capabilities: &[100, 103, 107, 110, 120, 121],
        schemes: W4A4,
        schemes_text: "W4A4",
        input_dtypes: F16_BF16,
        input_dtypes_text: "bf16 or f16",
        output_dtypes: F16_BF16,
        output_dtypes_text: "bf16 or f16",
        n_multiple: 1,
        k_multiple: 16,
        per_row_scale: false,
        batch_invariant: false,
        driver_cuda: 12080,
        cudnn: Some(91500),
        weight_layouts: SWIZZLED_128X4,
        input_quant_key: None,
        source: "FlashInfer 0.7.4 mm_fp4 requirements; cuDNN 9.15 is its own threshold for preferring cuDNN",
    },
    Requirements {
        id: KernelId::TRTLLM,
        vllm_class: "FlashInferTrtllmNvFp4LinearKernel",
        compute_capabilities: &[100, 103],
        schemes: W4A4,
        schemes_text: "W4A4",
        input_dtypes: BF16,
        input_dtypes_text: "bf16",
        output_dtypes: BF16,
        output_dtypes_text: "bf16",
        n_multiple: 1,
        k_multiple: 16,
        per_row_scale: true,
        batch_invariant: true,
        driver_cuda: 12080,
        cudnn: None,
        weight_layouts: &[(0, u32::MAX, WeightLayout::new("trtllm-shuffled", 1))],
        input_quant_key: None,
        source: "FlashInfer 0.7.4 mm_fp4; upstream needs n % 128 and k % 64 (vLLM #46879), which zero padding to 32 and 64 \
                 lifts; scales of parts are multiplied in afterwards; one kernel for every number of rows where batch \
                 invariance is asked for",
    },
    Requirements {
        id: KernelId::CUTEDSL,
        vllm_class: "FlashInferCuteDslNvFp4LinearKernel",
        compute_capabilities: &[100, 103],
        schemes: W4A4,
        schemes_text: "W4A4",
        input_dtypes: F16_BF16,
        input_dtypes_text: "bf16 or f16",
        output_dtypes: F16_BF16,
        output_dtypes_text: "bf16 or f16",
        n_multiple: 1,
        k_multiple: 16,
        per_row_scale: false,
        batch_invariant: false,
        driver_cuda: 12080,
        cudnn: None,
        weight_layouts: SWIZZLED_128X4,
        input_quant_key: Some(QuantKey::NVFP4_DYNAMIC),
        source: "FlashInfer 0.7.4 mm_fp4 requirements (n % 8 holds after padding to 32)",
    },
    Requirements {
        id: KernelId::B12X,
        vllm_class: "FlashInferB12xNvFp4LinearKernel",
        compute_capabilities: &[120, 121],
        schemes: W4A4,
        schemes_text: "W4A4",
        input_dtypes: F16_BF16,
        input_dtypes_text: "bf16 or f16",
        output_dtypes: F16_BF16,
        output_dtypes_text: "bf16 or f16",
        n_multiple: 1,
        k_multiple: 16,
        per_row_scale: false,
        batch_invariant: false,
        driver_cuda: 13000,
        cudnn: None,
        weight_layouts: SWIZZLED_128X4,
        input_quant_key: None,
        source: "FlashInfer 0.7.4 mm_fp4 requirements (k % 32 holds after padding)",
    },
    Requirements {
        id: KernelId::W4A16,
        vllm_class: "FlashInferCuteDslNvFp4W4A16LinearKernel",
        compute_capabilities: &[80, 86, 87, 89, 90, 100, 103, 120, 121],
        schemes: &[ActivationScheme::Unquantized],
        schemes_text: "W4A16",
        input_dtypes: BF16,
        input_dtypes_text: "bf16",
        output_dtypes: BF16,
        output_dtypes_text: "bf16",
        n_multiple: 1,
        k_multiple: 16,
        per_row_scale: false,
        batch_invariant: false,
        driver_cuda: 12080,
        cudnn: None,
        weight_layouts: &[
            (80, 90, WeightLayout::new("bf16-fp4-sm80", 1)),
            (100, 109, WeightLayout::new("bf16-fp4-sm100", 1)),
            (120, 129, WeightLayout::new("bf16-fp4-sm12x", 1)),
        ],
        input_quant_key: None,
        source: "10.x and 12.x: FlashInfer 0.7.4 mm_bf16_fp4 and prepare_bf16_fp4_weights (k is padded to 64); 8.x \
                 and 9.0: our own kernels, whose bf16 tensor cores multiply e2m1 x e4m3 exactly",
    },
];

/// `10 * major + minor` list as `sm_100 | sm_103`.
fn capabilities_text(list: &[u32]) -> String {
    list.iter().map(|n| format!("sm_{n}")).collect::<Vec<_>>().join(" | ")
}

/// 12080 as `12.8`.
fn cuda_version_text(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// 91500 as `9.15.0`.
fn cudnn_version_text(version: u32) -> String {
    format!("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100)
}

impl Requirements {
    /// The row of a backend.
    pub fn of(id: KernelId) -> Option<&'static Self> {
        REQUIREMENTS.iter().find(|row| row.id == id)
    }

    /// `Ok` if the device is of a kind, architecture, driver and library version that the backend runs on. Facts
    /// that the caller does not know (`None`) are taken as good for the driver, and as absent for cuDNN only when
    /// the driver is known, i.e. when the device is really here.
    pub fn check_device(&self, device: &DeviceFacts) -> Result<(), Unsupported> {
        let DeviceFacts::Cuda(facts) = device else {
            return Err(Unsupported::Device {
                needed: capabilities_text(self.compute_capabilities),
                found: device.to_string(),
            });
        };
        if !self.compute_capabilities.contains(&facts.compute_capability.number()) {
            return Err(Unsupported::Device {
                needed: capabilities_text(self.compute_capabilities),
                found: facts.compute_capability.to_string(),
            });
        }
        if let Some(found) = facts.driver_cuda
            && found < self.driver_cuda
        {
            return Err(Unsupported::Driver {
                needed: cuda_version_text(self.driver_cuda),
                found: Some(cuda_version_text(found)),
            });
        }
        let cudnn_known = facts.cudnn.is_some() || facts.driver_cuda.is_some();
        if let Some(needed) = self.cudnn
            && cudnn_known
            && facts.cudnn.is_none_or(|found| found < needed)
        {
            return Err(Unsupported::Library {
                library: "cuDNN",
                needed: cudnn_version_text(needed),
                found: facts.cudnn.map(cudnn_version_text),
            });
        }
        Ok(())
    }

    /// `Ok` if the backend can run the layer: scheme, types, shape, scale kind, batch invariance.
    pub fn check_layer(&self, config: &NvFp4LinearLayerConfig) -> Result<(), Unsupported> {
        if !self.schemes.contains(&config.activation) {
            return Err(Unsupported::Scheme { offered: self.schemes_text, asked: config.activation });
        }
        if !self.input_dtypes.contains(&config.input_dtype) {
            return Err(Unsupported::DType {
                operand: "input",
                needed: self.input_dtypes_text,
                found: config.input_dtype,
            });
        }
        if !self.output_dtypes.contains(&config.output_dtype) {
            return Err(Unsupported::DType {
                operand: "output",
                needed: self.output_dtypes_text,
                found: config.output_dtype,
            });
        }
        if !config.out_features.is_multiple_of(self.n_multiple) {
            return Err(Unsupported::Shape {
                dimension: "n (output features)",
                multiple: self.n_multiple,
                found: config.out_features,
            });
        }
        if !config.in_features.is_multiple_of(self.k_multiple) {
            return Err(Unsupported::Shape {
                dimension: "k (input features)",
                multiple: self.k_multiple,
                found: config.in_features,
            });
        }
        if config.weight_scale_kind == WeightScaleKind::PerRow && !self.per_row_scale {
            return Err(Unsupported::PerRowScale);
        }
        if config.batch_invariant && !(self.batch_invariant && config.activation.is_batch_invariant()) {
            return Err(Unsupported::BatchInvariance);
        }
        Ok(())
    }

    /// The layout that the backend reads on a device; for devices that it does not run on, that of its first ones.
    pub fn weight_layout(&self, device: &DeviceFacts) -> WeightLayout {
        let number = device.compute_capability().map_or(0, |cc| cc.number());
        let of_device = self.weight_layouts.iter().find(|(low, high, _)| (*low..=*high).contains(&number));
        of_device.or(self.weight_layouts.first()).map_or(WeightLayout::SWIZZLED_128X4, |row| row.2)
    }

    /// A stand-in for the backend that answers from this row. `available` is what [`KernelSupport::is_supported`]
    /// says once the device is right: `Ok` to ask what would run if the backend were here.
    pub const fn support(&'static self, available: Result<(), Unsupported>) -> RequirementsSupport {
        RequirementsSupport { requirements: self, available }
    }
}

/// Answers for a backend from its row in [`REQUIREMENTS`]. It runs nothing.
#[derive(Clone, PartialEq, Debug)]
pub struct RequirementsSupport {
    requirements: &'static Requirements,
    available: Result<(), Unsupported>,
}

impl KernelSupport for RequirementsSupport {
    fn id(&self) -> KernelId {
        self.requirements.id
    }
    fn is_supported(&self, device: &DeviceFacts) -> Result<(), Unsupported> {
        self.requirements.check_device(device)?;
        self.available.clone()
    }
    fn can_implement(&self, _: &DeviceFacts, config: &NvFp4LinearLayerConfig) -> Result<(), Unsupported> {
        self.requirements.check_layer(config)
    }
    fn weight_layout(&self, device: &DeviceFacts, _: &NvFp4LinearLayerConfig) -> WeightLayout {
        self.requirements.weight_layout(device)
    }
    fn input_quant_key(&self, _: &NvFp4LinearLayerConfig) -> Option<QuantKey> {
        self.requirements.input_quant_key
    }
}
