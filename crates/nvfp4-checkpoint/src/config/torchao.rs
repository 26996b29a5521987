//! torchao's parameters: tensor subclasses flattened into plain tensors, described in the safetensors metadata.

use serde::Deserialize;
use std::collections::HashMap;

/// An `NVFP4Tensor` parameter.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Parameter {
    /// Values that share a block scale.
    pub(crate) block_size: usize,
    /// Scales are in 128x4 tiles.
    pub(crate) swizzled: bool,
    /// Activations are quantized, too.
    pub(crate) quantized_activations: bool,
    /// The parameter has a scale for the tensor, or does not say.
    pub(crate) per_tensor_scale: bool,
}

#[derive(Deserialize)]
struct Description {
    _type: String,
    _data: Option<Data>,
    _tensor_data_names: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Data {
    block_size: Option<usize>,
    is_swizzled_scales: Option<bool>,
    act_quant_kwargs: Option<serde_json::Value>,
}

/// The description of parameter `name` if it is an `NVFP4Tensor`; the error is what is wrong with it.
pub(crate) fn parameter(metadata: &HashMap<String, String>, name: &str) -> Result<Option<Parameter>, String> {
    let Some(text) = metadata.get(name) else { return Ok(None) };
    let Ok(description) = serde_json::from_str::<Description>(text) else {
        // Metadata of other programs is none of our business unless it speaks of NVFP4.
        return if text.contains("NVFP4Tensor") {
            Err(format!("metadata is not torchao's: {text}"))
        } else {
            Ok(None)
        };
    };
    if description._type != "NVFP4Tensor" {
        return Ok(None);
    }
    let data = description._data.ok_or("metadata has no `_data`")?;
    Ok(Some(Parameter {
        block_size: data.block_size.ok_or("metadata has no `block_size`")?,
        swizzled: data.is_swizzled_scales.ok_or("metadata has no `is_swizzled_scales`")?,
        per_tensor_scale: description
            ._tensor_data_names
            .is_none_or(|names| names.iter().any(|name| name == "per_tensor_scale")),
        quantized_activations: data.act_quant_kwargs.is_some_and(|v| !v.is_null()),
    }))
}
