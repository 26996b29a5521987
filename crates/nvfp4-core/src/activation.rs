//! Activations that are already quantized to NVFP4, so that q, k and v (or gate and up) quantize once.

use crate::{
    block_scale::ScaleLayout,
    dtype::DType,
    error::{Error, check_multiple, check_size, checked_mul},
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
        let codes = checked_mul("activation codes", self.rows, self.padded_k / 2)?;
        check_size("activation codes", codes, self.data.as_ref().len())?;
        let scales = self.scale_layout.len(self.rows, self.padded_k / crate::BLOCK_SIZE)?;
        check_size("activation scales", scales, self.scale.as_ref().len())?;
        if let ActivationScale::PerToken(bytes) = &self.global_scale {
            let expected = checked_mul("per-token global scales (bytes)", self.rows, 4)?;
            check_size("per-token global scales (bytes)", expected, bytes.as_ref().len())?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{string::ToString, vec};

    fn activation(rows: usize, k: usize, padded_k: usize, scale_layout: ScaleLayout) -> QuantizedActivation {
        QuantizedActivation {
            data: vec![0; rows * padded_k / 2],
            scale: vec![0; scale_layout.len(rows, padded_k / 16).unwrap()],
            scale_layout,
            global_scale: ActivationScale::PerTensor(GlobalScale::ONE),
            rows,
            k,
            padded_k,
            orig_dtype: DType::Bf16,
            orig_shape: vec![rows, k],
            quant_key: QuantKey::NVFP4_DYNAMIC,
        }
    }

    #[test]
    fn sizes_are_checked() {
        for layout in [ScaleLayout::Linear, ScaleLayout::Swizzled128x4, ScaleLayout::Swizzled8x4] {
            for (rows, k, padded_k) in [(0, 16, 16), (3, 48, 48), (130, 48, 64)] {
                let good = activation(rows, k, padded_k, layout);
                assert_eq!(good.check(), Ok(()));
                for part in 0..2 {
                    let mut long = good.clone();
                    if part == 0 {
                        long.data.push(0)
                    } else {
                        long.scale.push(0)
                    }
                    assert!(
                        matches!(long.check(), Err(Error::Size { expected, found, .. }) if found == expected + 1)
                    );
                }
            }
        }
        assert!(matches!(
            activation(3, 64, 48, ScaleLayout::Linear).check(),
            Err(Error::Size { what: "padded_k", expected: 64, found: 48 })
        ));
        for (k, padded_k) in [(24, 32), (16, 24)] {
            let odd = activation(2, k, padded_k, ScaleLayout::Linear).check();
            assert!(matches!(odd, Err(Error::NotMultiple { multiple: 16, found: 24, .. })));
        }
        let mut tokens = activation(3, 16, 16, ScaleLayout::Linear);
        tokens.global_scale = ActivationScale::PerToken(vec![0; 12]);
        assert_eq!(tokens.check(), Ok(()));
        tokens.global_scale = ActivationScale::PerToken(vec![0; 8]);
        assert!(matches!(tokens.check(), Err(Error::Size { expected: 12, found: 8, .. })));
        let mut huge = activation(0, 16, 32, ScaleLayout::Linear);
        huge.rows = usize::MAX;
        assert!(matches!(huge.check(), Err(Error::Overflow { .. })));
    }

    #[test]
    fn per_token_scales_of_impossible_tensors_are_errors() {
        let mut huge = activation(0, 0, 0, ScaleLayout::Linear);
        huge.rows = usize::MAX;
        huge.global_scale = ActivationScale::PerToken(vec![]);
        assert!(matches!(huge.check(), Err(Error::Overflow { .. })));
    }

    #[test]
    fn only_the_key_that_is_asked_for_is_taken() {
        let x = activation(1, 16, 16, ScaleLayout::Swizzled128x4);
        assert_eq!(as_quantized_activation(&x, Some(QuantKey::NVFP4_DYNAMIC)), Ok(&x));
        for key in [None, Some(QuantKey::NVFP4_STATIC), Some(QuantKey::NVFP4_DYNAMIC_TOKEN)] {
            let Err(Error::QuantKey { expected, found }) = as_quantized_activation(&x, key) else { panic!() };
            assert_eq!(found, QuantKey::NVFP4_DYNAMIC.to_string());
            assert_eq!(expected, key.map_or("None".into(), |key| key.to_string()));
        }
    }
}
