//! Activations that are already quantized to NVFP4, so that q, k and v (or gate and up) quantize once.

use crate::{
    block_scale::ScaleLayout,
    dtype::DType,
    error::{Error, check_multiple, check_size},
    global_scale::GlobalScale,
    quant_key::QuantKey,
};
use alloc::{format, vec::Vec};

/// The global scale that an activation was quantized with. `B` is the buffer type (`Vec<u8>` on the host).
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum ActivationScale<B = Vec<u8>> {
    /// One scale for the tensor.
    PerTensor(GlobalScale),
    /// One f32 decode scale for each row, `rows * 4` bytes in native byte order.
    PerToken(B),
}

/// An activation quantized to NVFP4. `B` is the buffer type (`Vec<u8>` on the host).
///
/// It carries the global scale that it was quantized with, and the consumer multiplies its output by that one:
/// a layer with another `input_scale` still gets a right answer.
#[derive(Clone, PartialEq, Debug)]
pub struct QuantizedActivation<B = Vec<u8>> {
    /// Packed e2m1 codes `[rows, padded_k / 2]`, low nibble first.
    pub data: B,
    /// e4m3 block scales in `scale_layout`, for `padded_k / 16` columns.
    pub scale: B,
    /// Layout of `scale`. By vLLM's convention a producer hands over [`ScaleLayout::Swizzled128x4`].
    pub scale_layout: ScaleLayout,
    /// The global scale used.
    pub global_scale: ActivationScale<B>,
    /// Rows (tokens), the product of the leading dimensions.
    pub rows: usize,
    /// Columns before padding (input features).
    pub k: usize,
    /// Columns of `data` and `scale`, at least `k`; codes and scales beyond `k` are zero.
    pub padded_k: usize,
    /// Element type before quantization, which is the type of the layer's output.
    pub orig_dtype: DType,
    /// Shape before quantization, `[.., k]`.
    pub orig_shape: Vec<usize>,
    /// How it is quantized.
    pub quant_key: QuantKey,
}

impl<B: AsRef<[u8]>> QuantizedActivation<B> {
    /// `Ok` if the buffers have the sizes that the shape asks for.
    pub fn check(&self) -> Result<(), Error> {
        check_multiple("k (activation columns)", crate::BLOCK_SIZE, self.k)?;
        check_multiple("padded_k", crate::BLOCK_SIZE, self.padded_k)?;
        if self.padded_k < self.k {
            return Err(Error::Size { what: "padded_k", expected: self.k, found: self.padded_k });
        }
        let codes = crate::error::checked_mul("activation codes", self.rows, self.padded_k / 2)?;
        check_size("activation codes", codes, self.data.as_ref().len())?;
        let scales = self.scale_layout.len(self.rows, self.padded_k / crate::BLOCK_SIZE)?;
        check_size("activation scales", scales, self.scale.as_ref().len())?;
        if let ActivationScale::PerToken(bytes) = &self.global_scale {
            check_size("per-token global scales (bytes)", self.rows * 4, bytes.as_ref().len())?;
        }
        Ok(())
    }
}

/// The activation itself if its key is the one that the consumer asks for, otherwise the error that names both.
/// A consumer whose `input_quant_key` is `None` takes no pre-quantized activation.
pub fn as_quantized_activation<B>(
    x: &QuantizedActivation<B>,
    expected_key: Option<QuantKey>,
) -> Result<&QuantizedActivation<B>, Error> {
    if expected_key == Some(x.quant_key) {
        return Ok(x);
    }
    let expected = expected_key.map_or_else(|| "None".into(), |key| format!("{key}"));
    Err(Error::QuantKey { expected, found: format!("{}", x.quant_key) })
}
