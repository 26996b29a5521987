//! Input scales for W4A4.

use crate::{ModelError, Source, dense_matrix::DenseMatrix};
use nvfp4_core::DType;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

/// The largest magnitudes of the inputs of linear modules, measured with real data.
#[derive(Clone, PartialEq, Debug)]
pub struct Calibration {
    path: PathBuf,
    amax: HashMap<String, InputAmax>,
}

/// The largest magnitude of a module's input, and the type that it was measured in: compressed-tensors computes the
/// global scale in that type.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct InputAmax {
    pub(crate) amax: f32,
    pub(crate) dtype: DType,
}

impl Calibration {
    /// Reads a safetensors file with, for each module, either `<module>.input_amax` (one bf16, f16 or f32 value) or
    /// `<module>.input` (activations, `[…, in_features]`), of which the largest magnitude is taken. Other tensors are
    /// ignored.
    ///
    /// An amax must be positive and finite, activations must be finite.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let source = Source::open(path)?;
        let mut amax = HashMap::new();
        for tensor in source.tensors() {
            let module = [".input_amax", ".input"].iter().find_map(|suffix| tensor.name.strip_suffix(suffix));
            let Some(module) = module else { continue };
            let fault = |fault: String| ModelError::Calibration {
                path: path.to_path_buf(),
                tensor: tensor.name.to_string(),
                fault,
            };
            let dtype = tensor
                .dtype
                .as_float()
                .ok_or_else(|| fault(format!("expected BF16, F16 or F32, found {}", tensor.dtype)))?;
            let elements: usize = tensor.shape.iter().product();
            if tensor.name.ends_with(".input_amax") && elements != 1 {
                return Err(fault(format!("expected one value, found shape {:?}", tensor.shape)));
            }
            let cols = tensor.shape.last().copied().unwrap_or(1).max(1);
            let found = DenseMatrix::new(dtype, elements / cols, cols, tensor.bytes)
                .and_then(|matrix| matrix.amax())
                .map_err(|e| fault(e.to_string()))?;
            if found == 0.0 {
                return Err(fault("the largest magnitude is zero, expected a positive number".to_string()));
            }
            let found = InputAmax { amax: found, dtype };
            if amax.insert(module.to_string(), found).is_some() {
                return Err(fault(format!("`{module}` has both activations and an amax")));
            }
        }
        Ok(Self { path: path.to_path_buf(), amax })
    }

    /// The modules that have an amax, in no particular order.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        self.amax.keys().map(String::as_str)
    }

    /// The amax of each of `modules`, or the error that names the first that has none.
    pub(crate) fn for_modules(&self, modules: &[&str]) -> Result<Vec<InputAmax>, ModelError> {
        let found: Vec<Option<&InputAmax>> = modules.iter().map(|m| self.amax.get(*m)).collect();
        match found.iter().position(Option::is_none) {
            None => Ok(found.into_iter().flatten().copied().collect()),
            Some(first) => Err(ModelError::NotCalibrated {
                path: self.path.clone(),
                module: modules.get(first).copied().unwrap_or_default().to_string(),
                missing: found.iter().filter(|f| f.is_none()).count(),
                modules: modules.len(),
            }),
        }
    }
}

/// The larger of two amaxima, with its type.
pub(crate) fn larger(a: InputAmax, b: InputAmax) -> InputAmax {
    if b.amax > a.amax { b } else { a }
}
