//! The scalars that vLLM 0.33 keeps for a fused layer, for comparison. Layers loaded here keep one global scale for each
//! part instead.

use crate::Dialect;

/// vLLM's runtime scalars of a layer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FusedScales {
    /// Decode scale of all weights.
    pub weight_global_scale: f32,
    /// Decode scale of the input.
    pub input_global_scale: f32,
    /// Encode scale of the input.
    pub input_global_scale_inv: f32,
    /// Output multiplier.
    pub alpha: f32,
    /// The parts' weight scales differ: all but one are wrong by the ratio.
    pub weights_differ: bool,
    /// The parts' input scales differ.
    pub inputs_differ: bool,
}

/// What vLLM makes of the parts' scalars as the checkpoint stores them. ModelOpt's largest multiplier wins, and
/// compressed-tensors' largest divisor: opposite errors for the same weights. `None` without parts or for other dialects.
pub fn fuse(dialect: Dialect, weight: &[f32], input: &[f32]) -> Option<FusedScales> {
    let max = |values: &[f32]| values.iter().copied().reduce(f32::max);
    let differ = |values: &[f32]| values.windows(2).any(|pair| pair[0] != pair[1]);
    let (weight_max, input_max) = (max(weight)?, max(input)?);
    let (weight_global_scale, input_global_scale, input_global_scale_inv) = match dialect {
        Dialect::ModelOpt => (weight_max, input_max, 1.0 / input_max),
        Dialect::CompressedTensors => (1.0 / weight_max, 1.0 / input_max, input_max),
        _ => return None,
    };
    Some(FusedScales {
        weight_global_scale,
        input_global_scale,
        input_global_scale_inv,
        alpha: input_global_scale * weight_global_scale,
        weights_differ: differ(weight),
        inputs_differ: differ(input),
    })
}
