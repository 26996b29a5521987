//! Activations for layers that share an input.

use nvfp4_core::{
    Error, GlobalScale, MatrixRef, QuantKey, QuantizedActivation, ScaleLayout,
    quantize::{QuantizeOptions, scaled_fp4_quant},
};

/// Quantizes `x` as `key` says: the layout is [`ScaleLayout::Swizzled128x4`], by vLLM's convention.
pub(crate) fn quantize(
    x: MatrixRef<'_>,
    key: Option<QuantKey>,
    input_scale: Option<GlobalScale>,
) -> Result<QuantizedActivation, Error> {
    let options = QuantizeOptions { layout: ScaleLayout::Swizzled128x4, padded_n: None, exact: false };
    match (key, input_scale) {
        (Some(QuantKey::NVFP4_DYNAMIC), Some(scale)) => scaled_fp4_quant(x, scale, options),
        (key, _) => Err(Error::QuantKey {
            expected: key.map_or_else(|| "None".into(), |key| key.to_string()),
            found: "an activation that this layer could quantize ahead of time".into(),
        }),
    }
}
