//! The layer as a candle module.

use crate::host_op::{HostLinear, Rows};
use candle_core::{CpuStorage, DType, Device, Error, Module, Result, Storage, Tensor, bail};
use nvfp4::{Linear, LinearOptions, MatrixMut, NvFp4LinearLayer, QuantizedActivation};
use std::sync::Arc;

/// `y = x · Wᵀ + b` with NVFP4 weights, as a candle [`Module`].
///
/// Clones share the weights.
#[derive(Clone, Debug)]
pub struct Nvfp4Linear {
    linear: Arc<Linear>,
}

/// An input that is quantized already, for the layers that share it. Made by [`Nvfp4Linear::quantize`].
#[derive(Clone, Debug)]
pub struct QuantizedInput {
    activation: QuantizedActivation,
}

impl QuantizedInput {
    /// The codes and scales.
    pub const fn activation(&self) -> &QuantizedActivation {
        &self.activation
    }
}

impl Nvfp4Linear {
    /// Chooses a backend for `layer` and prepares its weights for it.
    pub fn load(layer: &NvFp4LinearLayer<'_>, options: &LinearOptions) -> Result<Self> {
        Ok(Self::from(Arc::new(Linear::load(layer, options).map_err(Error::wrap)?)))
    }

    /// The layer: its shape, its backend, and why that was chosen.
    pub const fn linear(&self) -> &Arc<Linear> {
        &self.linear
    }

    /// Quantizes an input once for several layers that share it; see [`forward_all`], which does so where it may. An
    /// error if the layer takes no quantized inputs (W4A16).
    pub fn quantize(&self, xs: &Tensor) -> Result<QuantizedInput> {
        let xs = self.checked(xs)?.contiguous()?;
        let (storage, layout) = xs.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else { return Err(self.not_on_host(xs.device())) };
        let range = layout.start_offset()..layout.start_offset() + xs.elem_count();
        let activation = match storage {
            CpuStorage::F32(x) => self.linear.quantize_nd(x[range].into(), xs.dims()),
            CpuStorage::BF16(x) => self.linear.quantize_nd(x[range].into(), xs.dims()),
            CpuStorage::F16(x) => self.linear.quantize_nd(x[range].into(), xs.dims()),
            _ => return Err(self.wrong_type(xs.dtype())),
        };
        Ok(QuantizedInput { activation: activation.map_err(|e| self.wrap(e))? })
    }

    /// As [`forward`](Module::forward), for an input that is quantized already. The output has the type that the input had.
    pub fn forward_quantized(&self, xs: &QuantizedInput) -> Result<Tensor> {
        let shape = self.linear.output_shape(&xs.activation.orig_shape).map_err(|e| self.wrap(e))?;
        let (rows, n) = (xs.activation.rows, self.linear.out_features());
        /// Zeros, which the layer then writes over.
        macro_rules! run {
            ($zero:expr) => {{
                let mut y = vec![$zero; rows * n];
                let out = MatrixMut::new(&mut y[..], rows, n).map_err(|e| self.wrap(e))?;
                self.linear.forward_quantized(&xs.activation, out).map_err(|e| self.wrap(e))?;
                Tensor::from_vec(y, shape, &Device::Cpu)
            }};
        }
        match xs.activation.orig_dtype {
            nvfp4::DType::F32 => run!(0f32),
            nvfp4::DType::Bf16 => run!(nvfp4::bf16::ZERO),
            nvfp4::DType::F16 => run!(nvfp4::f16::ZERO),
            other => bail!("layer `{}`: there is no candle tensor of {other}", self.linear.name()),
        }
    }

    /// The input, if the layer can read it.
    fn checked<'a>(&self, xs: &'a Tensor) -> Result<&'a Tensor> {
        if !xs.device().is_cpu() {
            return Err(self.not_on_host(xs.device()));
        }
        if !matches!(xs.dtype(), DType::F32 | DType::BF16 | DType::F16) {
            return Err(self.wrong_type(xs.dtype()));
        }
        let k = self.linear.in_features();
        if xs.dims().last() != Some(&k) {
            bail!("layer `{}`: expected an input [.., {k}], found {:?}", self.linear.name(), xs.dims());
        }
        Ok(xs)
    }

    fn not_on_host(&self, device: &Device) -> Error {
        let name = self.linear.name();
        Error::msg(format!("layer `{name}` runs in host memory, the input is on {:?}; move it", device.location()))
    }

    fn wrong_type(&self, found: DType) -> Error {
        let name = self.linear.name();
        Error::msg(format!("layer `{name}`: expected an f32, bf16 or f16 input, found {}", found.as_str()))
    }

    fn wrap(&self, error: nvfp4::Error) -> Error {
        Error::wrap(error).context(format!("layer `{}`", self.linear.name()))
    }

    /// Whether both layers quantize an input alike.
    fn quantizes_like(&self, other: &Self) -> bool {
        let of = |layer: &Self| {
            let linear = &layer.linear;
            (linear.input_quant_key(), linear.input_scale(), linear.in_features())
        };
        of(self) == of(other)
    }
}

impl From<Arc<Linear>> for Nvfp4Linear {
    fn from(linear: Arc<Linear>) -> Self {
        Self { linear }
    }
}

impl From<Linear> for Nvfp4Linear {
    fn from(linear: Linear) -> Self {
        Arc::new(linear).into()
    }
}

impl Module for Nvfp4Linear {
    /// `xs`: `[.., in_features]` in f32, bf16 or f16. The output is `[.., out_features]` in the same type.
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.checked(xs)?;
        let xs = if Rows::of(xs.layout()).is_some() { xs.clone() } else { xs.contiguous()? };
        let operation = HostLinear(self.linear.clone());
        // Without a record of the operation, `backward` would take the output for a constant.
        if xs.track_op() { xs.apply_op1(operation) } else { xs.apply_op1_no_bwd(&operation) }
    }
}

/// The outputs of several layers for one input (q, k and v; gate and up). The input is quantized once if all of them quantize
/// it alike, i.e. by the same scheme with the same input scale; the results are the same bits either way.
pub fn forward_all<const N: usize>(layers: [&Nvfp4Linear; N], xs: &Tensor) -> Result<[Tensor; N]> {
    let shared = match layers.as_slice() {
        [first, rest @ ..] if !rest.is_empty() => {
            first.linear.input_quant_key().is_some()
                && !xs.track_op()
                && rest.iter().all(|other| other.quantizes_like(first))
        }
        _ => false,
    };
    let outputs: Vec<Tensor> = match layers.first() {
        Some(first) if shared => {
            let xs = first.quantize(xs)?;
            layers.iter().map(|layer| layer.forward_quantized(&xs)).collect::<Result<_>>()?
        }
        _ => layers.iter().map(|layer| layer.forward(xs)).collect::<Result<_>>()?,
    };
    outputs.try_into().map_err(|_| Error::msg("as many outputs as layers"))
}
