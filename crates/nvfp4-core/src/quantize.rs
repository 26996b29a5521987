//! Activations to NVFP4: `scaled_fp4_quant`.
use crate::{
    activation::QuantizedActivation, block_scale::ScaleLayout, error::Error, global_scale::GlobalScale,
    matrix::MatrixRef,
};

/// How to quantize an activation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuantizeOptions {
    /// Layout of the block scales.
    pub layout: ScaleLayout,
    /// Width that the codes and scales are padded to with zeros, at least `k` and a multiple of 16. `None`: `k`.
    pub padded_n: Option<usize>,
    /// Exact divisions instead of the reciprocals of the device kernels (FlashInfer's
    /// `FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH`).
    pub exact: bool,
}

/// Quantizes `x` with one global scale.
pub fn scaled_fp4_quant(
    x: MatrixRef<'_>,
    scale: GlobalScale,
    options: QuantizeOptions,
) -> Result<QuantizedActivation, Error> {
    let _ = (x, scale, options);
    todo!()
}
