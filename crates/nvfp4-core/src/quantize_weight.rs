//! Weights to NVFP4, with the arithmetic of each ecosystem's own quantizer.
use crate::{error::Error, global_scale::GlobalScale, matrix::MatrixRef, weights::NvFp4Weights};

/// Whose arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WeightQuantizer {
    /// nvidia-modelopt `NVFP4QTensor.quantize`.
    ModelOpt,
    /// compressed-tensors `calculate_qparams` and `NVFP4PackedCompressor.compress`.
    CompressedTensors,
    /// torchao `nvfp4_quantize`, two-level.
    TorchAo,
}

/// The global scale that `quantizer` computes for a tensor from its largest magnitude.
pub fn weight_global_scale(w: MatrixRef<'_>, quantizer: WeightQuantizer) -> Result<GlobalScale, Error> {
    let _ = (w, quantizer);
    todo!()
}

/// Quantizes a `[n, k]` weight. `global`: the global scale to use instead of the tensor's own (fused layers share one).
pub fn quantize_weight(
    w: MatrixRef<'_>,
    quantizer: WeightQuantizer,
    global: Option<GlobalScale>,
) -> Result<NvFp4Weights<'static>, Error> {
    let _ = (w, quantizer, global);
    todo!()
}
