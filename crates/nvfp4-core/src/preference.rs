//! Which backend is tried first, as data: one row an architecture and scheme, each with its source.

use crate::{device::DeviceFacts, kernel::KernelId};

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Preference {
    /// `10 * major + minor` of the compute capabilities that the row is for.
    pub compute_capabilities: &'static [u32],
    /// True if the row is for W4A4, false for W4A16.
    pub quantized_activations: bool,
    /// Backends, best first.
    pub order: &'static [KernelId],
    /// Where the order comes from.
    pub source: &'static str,
}

/// The table. The first row that matches counts. It ranks what [`REQUIREMENTS`](crate::requirements::REQUIREMENTS) say can
/// run, no more and no less. On the CPU there is nothing to rank.
pub const PREFERENCES: &[Preference] = &[
    Preference {
        compute_capabilities: &[100, 103],
        quantized_activations: true,
        order: &[KernelId::CUTEDSL, KernelId::CUTLASS, KernelId::CUDNN, KernelId::TRTLLM],
        source: "vLLM 0.33 order; trtllm last because its weight layout is shared with nobody",
    },
    Preference {
        compute_capabilities: &[107, 110],
        quantized_activations: true,
        order: &[KernelId::CUTLASS, KernelId::CUDNN],
        source: "vLLM 0.33 order",
    },
    Preference {
        compute_capabilities: &[120],
        quantized_activations: true,
        order: &[KernelId::B12X, KernelId::CUTLASS, KernelId::CUDNN],
        source: "FlashInfer 0.7.4 `auto`; SGLang #38170 measured b12x at 78-92 % of memory bandwidth, CUTLASS at 52-65 %",
    },
    Preference {
        compute_capabilities: &[121],
        quantized_activations: true,
        order: &[KernelId::CUTLASS, KernelId::B12X, KernelId::CUDNN],
        source: "vLLM 0.33 order; FlashInfer 0.7.4 `auto` leaves b12x out on 12.1",
    },
    Preference {
        compute_capabilities: &[80, 86, 87, 89, 90, 100, 103, 120, 121],
        quantized_activations: false,
        order: &[KernelId::W4A16],
        source: "the only weight-only backend",
    },
    Preference {
        compute_capabilities: &[80, 86, 87, 89, 90],
        quantized_activations: true,
        order: &[KernelId::W4A16],
        source: "no FP4 tensor cores before 10.0; e2m1 x e4m3 products are exact in bf16",
    },
];

/// Position of a backend in the order for this device and scheme: 0 is best; `usize::MAX` if the table does not
/// name it.
pub fn rank(device: &DeviceFacts, quantized_activations: bool, id: KernelId) -> usize {
    let Some(compute_capability) = device.compute_capability() else { return usize::MAX };
    PREFERENCES
        .iter()
        .find(|row| {
            row.quantized_activations == quantized_activations
                && row.compute_capabilities.contains(&compute_capability.number())
        })
        .and_then(|row| row.order.iter().position(|&other| other == id))
        .unwrap_or(usize::MAX)
}
