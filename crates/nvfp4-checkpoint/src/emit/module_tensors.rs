//! The tensors of a quantized module.

use super::CheckpointFormat;
use crate::{TensorDType, write::TensorSpec};
use nvfp4_core::{BLOCK_SIZE, GlobalScale};

/// Specs and names of a module's tensors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ModuleTensors {
    /// Packed codes, `[n, k / 2]`.
    pub(crate) packed: TensorSpec,
    /// Block scales, `[n, k / 16]`.
    pub(crate) scales: TensorSpec,
    /// The weight's global scale.
    pub(crate) global: TensorSpec,
    /// The input's global scale, for W4A4.
    pub(crate) input: Option<TensorSpec>,
}

/// The tensors of `module`, whose weight is `[n, k]`.
pub(crate) fn module_tensors(
    format: CheckpointFormat,
    module: &str,
    n: usize,
    k: usize,
    quantized_activations: bool,
) -> ModuleTensors {
    let spec = |suffix: &str, dtype, shape: &[usize]| TensorSpec::new(format!("{module}.{suffix}"), dtype, shape);
    let (packed, global, input, scalar): (_, _, _, &[usize]) = match format {
        CheckpointFormat::ModelOpt => ("weight", "weight_scale_2", "input_scale", &[]),
        CheckpointFormat::CompressedTensors => ("weight_packed", "weight_global_scale", "input_global_scale", &[1]),
    };
    ModuleTensors {
        packed: spec(packed, TensorDType::U8, &[n, k / 2]),
        scales: spec("weight_scale", TensorDType::F8E4M3, &[n, k / BLOCK_SIZE]),
        global: spec(global, TensorDType::F32, scalar),
        input: quantized_activations.then(|| spec(input, TensorDType::F32, scalar)),
    }
}

impl ModuleTensors {
    /// All specs.
    pub(crate) fn specs(self) -> impl Iterator<Item = TensorSpec> {
        [self.packed, self.scales, self.global].into_iter().chain(self.input)
    }
}

impl CheckpointFormat {
    /// The bytes of a global scale, in the format's convention.
    pub(crate) fn global_scale_bytes(self, scale: GlobalScale) -> [u8; 4] {
        match self {
            Self::ModelOpt => scale.decode().get(),
            Self::CompressedTensors => scale.encode().get(),
        }
        .to_le_bytes()
    }

    /// Whether a reader of the format gets exactly the scale that the original stores. The reciprocal of a
    /// reciprocal is not always the number it came from; nothing nearer can be stored, because the reciprocal that is
    /// stored is already the nearest.
    pub(crate) fn keeps(self, scale: GlobalScale) -> bool {
        let read = match self {
            Self::ModelOpt => GlobalScale::from_decode(scale.decode().get()),
            Self::CompressedTensors => GlobalScale::from_encode(scale.encode().get()),
        };
        read.is_ok_and(|read| read == scale)
    }
}
