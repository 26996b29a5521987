//! NVFP4 linear layers for [candle](https://github.com/huggingface/candle).
//!
//! [`Nvfp4Linear`] is a [`Module`](candle_core::Module) over [`nvfp4::Linear`]. [`Nvfp4VarBuilder`] loads it from a
//! checkpoint of any dialect (ModelOpt, compressed-tensors, torchao, GGUF) the way candle's own `VarBuilder` loads dense
//! layers, and gives a `VarBuilder` over the same files for what is not quantized.
//!
//! ```
//! use candle_core::{DType, Device, Module, Tensor};
//! use nvfp4_candle::{Nvfp4VarBuilder, forward_all};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../nvfp4-testkit/golden/ckpt_ct");
//! let vb = Nvfp4VarBuilder::open(path, DType::F32, &Device::Cpu)?;
//! let attention = vb.pp("model.layers.0.self_attn");
//! // (input features, output features), as in candle_nn::linear.
//! let q = attention.pp("q_proj").linear(64, 64)?;
//! let k = attention.pp("k_proj").linear(64, 32)?;
//! println!("{}", q.linear().decision()); // the kernel that was chosen, and why not the others
//!
//! let xs = Tensor::ones((2, 5, 64), DType::F32, &Device::Cpu)?;
//! assert_eq!(q.forward(&xs)?.dims(), [2, 5, 64]);
//! // Layers with one input quantize it once.
//! let [yq, yk] = forward_all([&q, &k], &xs)?;
//! assert_eq!((yq.dims(), yk.dims()), (&[2, 5, 64][..], &[2, 5, 32][..]));
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! Inputs are f32, bf16 or f16, and outputs are of the same type. Any number of leading dimensions is taken, none and empty
//! ones included; views whose rows are whole and evenly spaced are read where they are, others are copied first.
//!
//! Layers run in host memory in this version: a tensor on another device is an error. Gradients do not pass through a layer:
//! `backward` over one is an error, not a silent zero.
#![forbid(unsafe_code)]

mod any_linear;
mod dense_tensors;
mod host_op;
mod linear;
mod var_builder;

pub use any_linear::AnyLinear;
pub use linear::{Nvfp4Linear, QuantizedInput, forward_all};
pub use var_builder::Nvfp4VarBuilder;

#[cfg(doctest)]
mod readme {
    #[doc = include_str!("../README.md")]
    struct OfTheCrate;
}
