//! The arguments that describe a layer.

use nvfp4::{ActivationScheme, DType};

/// What happens to the activations of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum SchemeArgument {
    /// Activations keep their type
    W4a16,
    /// Activations are quantized with the checkpoint's input scale
    W4a4,
    /// Activations are quantized with one scale computed for each call
    W4a4DynamicTensor,
    /// Activations are quantized with one scale computed for each row
    W4a4DynamicToken,
}

impl SchemeArgument {
    pub(crate) const fn activation(self) -> ActivationScheme {
        match self {
            Self::W4a16 => ActivationScheme::Unquantized,
            Self::W4a4 => ActivationScheme::Nvfp4Static,
            Self::W4a4DynamicTensor => ActivationScheme::Nvfp4DynamicPerTensor,
            Self::W4a4DynamicToken => ActivationScheme::Nvfp4DynamicPerToken,
        }
    }
}

/// An element type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum DTypeArgument {
    /// bfloat16
    Bf16,
    /// IEEE half precision
    F16,
    /// IEEE single precision
    F32,
}

impl DTypeArgument {
    pub(crate) const fn dtype(self) -> DType {
        match self {
            Self::Bf16 => DType::Bf16,
            Self::F16 => DType::F16,
            Self::F32 => DType::F32,
        }
    }
}
