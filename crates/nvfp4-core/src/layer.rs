//! A linear layer: what it needs ([`NvFp4LinearLayerConfig`], plain data for selection) and what it is
//! ([`NvFp4LinearLayer`], with its tensors).

use crate::{
    dtype::DType,
    error::{Error, check_size},
    global_scale::GlobalScale,
    quant_key::QuantKey,
    weights::NvFp4Weights,
};
use alloc::{string::String, vec::Vec};
use core::fmt;

/// What happens to the activations of a layer before they are multiplied. It is part of the layer: a layer whose
/// activations are not quantized (W4A16) never runs on a kernel that quantizes them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ActivationScheme {
    /// W4A16: activations keep their type.
    Unquantized,
    /// W4A4 with the checkpoint's `input_scale`.
    Nvfp4Static,
    /// W4A4 with one global scale computed for each call.
    Nvfp4DynamicPerTensor,
    /// W4A4 with one global scale computed for each row.
    Nvfp4DynamicPerToken,
}

impl ActivationScheme {
    /// True for W4A4.
    pub const fn is_quantized(self) -> bool {
        !matches!(self, Self::Unquantized)
    }

    /// True if a row is quantized alike whatever rows are beside it. One scale computed from all rows of a call is not: a
    /// layer of that scheme cannot be batch-invariant on any backend.
    pub const fn is_batch_invariant(self) -> bool {
        !matches!(self, Self::Nvfp4DynamicPerTensor)
    }

    /// The key of an activation quantized by this scheme, or `None` for W4A16.
    pub const fn quant_key(self) -> Option<QuantKey> {
        match self {
            Self::Unquantized => None,
            Self::Nvfp4Static => Some(QuantKey::NVFP4_DYNAMIC),
            Self::Nvfp4DynamicPerTensor => Some(QuantKey::NVFP4_DYNAMIC_TENSOR),
            Self::Nvfp4DynamicPerToken => Some(QuantKey::NVFP4_DYNAMIC_TOKEN),
        }
    }
}

impl fmt::Display for ActivationScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unquantized => "W4A16",
            Self::Nvfp4Static => "W4A4",
            Self::Nvfp4DynamicPerTensor => "W4A4 (dynamic per tensor)",
            Self::Nvfp4DynamicPerToken => "W4A4 (dynamic per token)",
        })
    }
}

/// How many global scales the weights have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WeightScaleKind {
    /// One for the tensor: it can be part of the GEMM's `alpha`.
    PerTensor,
    /// Several, each for a run of output rows (fused layers with differing scales).
    PerRow,
}

/// What a layer needs from a kernel. Plain data, so that selection can be asked about layers and GPUs that are
/// not here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct NvFp4LinearLayerConfig {
    /// Output features (`n`).
    pub out_features: usize,
    /// Input features (`k`), a multiple of 16.
    pub in_features: usize,
    /// What happens to the activations.
    pub activation: ActivationScheme,
    /// Element type of the activations.
    pub input_dtype: DType,
    /// Element type of the output.
    pub output_dtype: DType,
    /// How many global scales the weights have.
    pub weight_scale_kind: WeightScaleKind,
    /// Row `i` of the output must not depend, to the bit, on how many rows the call has. No backend can promise that for
    /// every scheme: see [`ActivationScheme::is_batch_invariant`].
    pub batch_invariant: bool,
}

impl NvFp4LinearLayerConfig {
    /// A W4A4 layer with a static input scale, one weight scale, and bf16 in and out.
    pub const fn w4a4(out_features: usize, in_features: usize) -> Self {
        Self {
            out_features,
            in_features,
            activation: ActivationScheme::Nvfp4Static,
            input_dtype: DType::Bf16,
            output_dtype: DType::Bf16,
            weight_scale_kind: WeightScaleKind::PerTensor,
            batch_invariant: false,
        }
    }

    /// A W4A16 layer with one weight scale, and bf16 in and out.
    pub const fn w4a16(out_features: usize, in_features: usize) -> Self {
        let mut config = Self::w4a4(out_features, in_features);
        config.activation = ActivationScheme::Unquantized;
        config
    }

    /// The same layer with other activations.
    pub const fn with_activation(mut self, activation: ActivationScheme) -> Self {
        self.activation = activation;
        self
    }
    /// The same layer with other input and output types.
    pub const fn with_dtypes(mut self, input: DType, output: DType) -> Self {
        self.input_dtype = input;
        self.output_dtype = output;
        self
    }
    /// The same layer with another kind of weight scale.
    pub const fn with_weight_scale_kind(mut self, kind: WeightScaleKind) -> Self {
        self.weight_scale_kind = kind;
        self
    }
    /// Checks that weights, as a checkpoint holds them, are this layer's: their shape, and that block scales are values that
    /// the format allows. Every backend does so before it prepares them.
    ///
    /// # Errors
    /// [`Error::Size`] with both sizes; the first block scale that is NaN or negative.
    pub fn check_weights(&self, weights: &NvFp4Weights<'_>) -> Result<(), Error> {
        check_size("rows of the weight (output features)", self.out_features, weights.out_features())?;
        check_size("columns of the weight (input features)", self.in_features, weights.in_features())?;
        weights.scales().check_values()
    }
    /// The same layer, batch-invariant or not.
    pub const fn with_batch_invariant(mut self, yes: bool) -> Self {
        self.batch_invariant = yes;
        self
    }
}

/// A layer with its tensors, as a checkpoint gives it.
#[derive(Clone, PartialEq, Debug)]
pub struct NvFp4LinearLayer<'a> {
    /// Module name in the checkpoint, e.g. `model.layers.0.mlp.down_proj`.
    pub name: String,
    /// The weights.
    pub weights: NvFp4Weights<'a>,
    /// What happens to the activations.
    pub activation: ActivationScheme,
    /// The checkpoint's input scale; `Some` exactly for [`ActivationScheme::Nvfp4Static`].
    pub input_scale: Option<GlobalScale>,
    /// `n` bias values, widened to f32.
    pub bias: Option<Vec<f32>>,
}

impl NvFp4LinearLayer<'_> {
    /// `Ok` if the parts fit each other.
    pub fn check(&self) -> Result<(), Error> {
        let check = || {
            if self.input_scale.is_some() != (self.activation == ActivationScheme::Nvfp4Static) {
                return Err(Error::Invalid(
                    "an input scale is needed for static W4A4 activations, and only for those",
                ));
            }
            match &self.bias {
                Some(bias) => check_size("bias values", self.weights.out_features(), bias.len()),
                None => Ok(()),
            }
        };
        check().map_err(|e| e.in_tensor(self.name.clone()))
    }

    /// What the layer needs from a kernel, for activations of type `input` and outputs of type `output`.
    pub fn config(&self, input: DType, output: DType) -> NvFp4LinearLayerConfig {
        let kind = match self.weights.global().as_per_tensor() {
            Some(_) => WeightScaleKind::PerTensor,
            None => WeightScaleKind::PerRow,
        };
        NvFp4LinearLayerConfig::w4a4(self.weights.out_features(), self.weights.in_features())
            .with_activation(self.activation)
            .with_dtypes(input, output)
            .with_weight_scale_kind(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{block_scale::LinearScales, global_scale::GlobalScales};
    use alloc::vec;

    fn layer(global: GlobalScales) -> NvFp4LinearLayer<'static> {
        let scales = LinearScales::new(4, 2, vec![0x38; 8]).unwrap();
        NvFp4LinearLayer {
            name: "mlp.down_proj".into(),
            weights: NvFp4Weights::new(4, 32, vec![0x22; 64], scales, global).unwrap(),
            activation: ActivationScheme::Nvfp4Static,
            input_scale: Some(GlobalScale::ONE),
            bias: None,
        }
    }

    fn scale(decode: f32) -> GlobalScale {
        GlobalScale::from_decode(decode).unwrap()
    }

    /// An input scale belongs to static W4A4 and to nothing else; an error names the layer.
    #[test]
    fn input_scale_and_bias_are_checked() {
        let good = layer(GlobalScales::per_tensor(4, GlobalScale::ONE));
        let schemes = [
            ActivationScheme::Unquantized,
            ActivationScheme::Nvfp4Static,
            ActivationScheme::Nvfp4DynamicPerTensor,
            ActivationScheme::Nvfp4DynamicPerToken,
        ];
        for activation in schemes {
            for input_scale in [None, Some(GlobalScale::ONE)] {
                let layer = NvFp4LinearLayer { activation, input_scale, ..good.clone() };
                let fits = input_scale.is_some() == (activation == ActivationScheme::Nvfp4Static);
                assert_eq!(layer.check().is_ok(), fits, "{activation} {input_scale:?}");
            }
        }
        for (bias, fits) in [(vec![0.0; 4], true), (vec![0.0; 3], false), (vec![], false)] {
            let layer = NvFp4LinearLayer { bias: Some(bias), ..good.clone() };
            match layer.check() {
                Ok(()) => assert!(fits),
                Err(error) => {
                    assert!(matches!(error, Error::InTensor { tensor, .. } if !fits && tensor == good.name))
                }
            }
        }
    }

    #[test]
    fn config_says_what_the_layer_is() {
        let config = layer(GlobalScales::per_tensor(4, GlobalScale::ONE)).config(DType::F16, DType::F32);
        assert_eq!(config, NvFp4LinearLayerConfig::w4a4(4, 32).with_dtypes(DType::F16, DType::F32));
        let parts = GlobalScales::from_parts([(1, scale(0.5)), (3, scale(0.25))]);
        let config = layer(parts).config(DType::Bf16, DType::Bf16);
        assert_eq!(config.weight_scale_kind, WeightScaleKind::PerRow);
        let equal = GlobalScales::from_parts([(1, scale(0.5)), (3, scale(0.5))]);
        let config = layer(equal).config(DType::Bf16, DType::Bf16);
        assert_eq!(config.weight_scale_kind, WeightScaleKind::PerTensor, "equal scales are one");
        let mut weight_only = layer(GlobalScales::per_tensor(4, GlobalScale::ONE));
        weight_only.activation = ActivationScheme::Unquantized;
        assert_eq!(weight_only.config(DType::Bf16, DType::Bf16), NvFp4LinearLayerConfig::w4a16(4, 32));
    }

    #[test]
    fn each_w4a4_scheme_has_its_key() {
        assert_eq!(ActivationScheme::Unquantized.quant_key(), None);
        let keys = [
            ActivationScheme::Nvfp4Static,
            ActivationScheme::Nvfp4DynamicPerTensor,
            ActivationScheme::Nvfp4DynamicPerToken,
        ]
        .map(|scheme| {
            assert!(scheme.is_quantized());
            scheme.quant_key().unwrap()
        });
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
    }
}
