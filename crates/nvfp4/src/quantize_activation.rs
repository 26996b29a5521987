//! Activations for layers that share an input.

use nvfp4_core::{
    Error, GlobalScale, MatrixRef, QuantKey, QuantizedActivation, ScaleLayout,
    quantize::{QuantizeOptions, scaled_fp4_quant, scaled_fp4_quant_dynamic, scaled_fp4_quant_per_token},
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
        (Some(QuantKey::NVFP4_DYNAMIC_TENSOR), _) => scaled_fp4_quant_dynamic(x, options),
        (Some(QuantKey::NVFP4_DYNAMIC_TOKEN), _) => scaled_fp4_quant_per_token(x, options),
        (Some(QuantKey::NVFP4_DYNAMIC), None) => {
            Err(Error::Invalid("a layer with static activation scales needs an input scale to quantize with"))
        }
        (Some(key), _) => Err(Error::QuantKey {
            expected: key.to_string(),
            found: "none of the keys that activations can be quantized to here".into(),
        }),
        (None, _) => Err(Error::Invalid(
            "this layer takes no quantized activations (its input_quant_key is None); give it the values",
        )),
    }
}
