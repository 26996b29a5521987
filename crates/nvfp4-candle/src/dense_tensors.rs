//! The unquantized tensors of a checkpoint, for candle's own `VarBuilder`.

use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use candle_nn::{Init, var_builder::SimpleBackend};
use nvfp4::checkpoint::{Checkpoint, Scheme, TensorDType, TensorView};
use std::sync::Arc;

/// Tensors by their full names; those of NVFP4 modules are errors, since their bytes are no values.
pub(crate) struct DenseTensors(pub(crate) Arc<Checkpoint>);

impl DenseTensors {
    fn view(&self, name: &str) -> Result<TensorView<'_>> {
        let Some(view) = self.0.tensor(name) else {
            return Err(Error::CannotFindTensor { path: name.to_string() });
        };
        let packed = name
            .rsplit_once('.')
            .filter(|(_, part)| *part != "bias")
            .and_then(|(module, _)| self.0.module(module))
            .filter(|module| !matches!(module.scheme, Scheme::Dense(_)));
        match packed {
            None => Ok(view),
            Some(module) => Err(Error::msg(format!(
                "tensor `{name}` belongs to module `{}`, which is {}: load it with Nvfp4VarBuilder::linear",
                module.name, module.scheme
            ))),
        }
    }
}

/// Candle's type of a tensor in a file.
fn dtype(view: &TensorView<'_>) -> Result<DType> {
    Ok(match view.dtype {
        TensorDType::F64 => DType::F64,
        TensorDType::F32 => DType::F32,
        TensorDType::F16 => DType::F16,
        TensorDType::Bf16 => DType::BF16,
        TensorDType::F8E4M3 => DType::F8E4M3,
        TensorDType::U8 => DType::U8,
        TensorDType::U32 => DType::U32,
        TensorDType::I16 => DType::I16,
        TensorDType::I32 => DType::I32,
        TensorDType::I64 => DType::I64,
        other => return Err(Error::msg(format!("tensor `{}`: candle has no tensors of {other}", view.name))),
    })
}

impl SimpleBackend for DenseTensors {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        let found = self.view(name)?.shape;
        if shape.dims() != found {
            let (expected, got) = (shape, Shape::from(found));
            return Err(Error::UnexpectedShape { msg: format!("tensor `{name}`"), expected, got });
        }
        self.get_unchecked(name, dtype, device)
    }

    fn get_unchecked(&self, name: &str, to: DType, device: &Device) -> Result<Tensor> {
        let view = self.view(name)?;
        Tensor::from_raw_buffer(view.bytes, dtype(&view)?, view.shape, device)?.to_dtype(to)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.tensor(name).is_some()
    }
}
