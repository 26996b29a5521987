//! A layer that may be quantized or not.

use crate::Nvfp4Linear;
use candle_core::{Module, Result, Tensor};

/// A linear layer as the checkpoint has it: NVFP4, or dense because it was left out of quantization.
#[derive(Clone, Debug)]
pub enum AnyLinear {
    /// Quantized.
    Nvfp4(Nvfp4Linear),
    /// Dense.
    Dense(candle_nn::Linear),
}

impl Module for AnyLinear {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Nvfp4(linear) => linear.forward(xs),
            Self::Dense(linear) => linear.forward(xs),
        }
    }
}
