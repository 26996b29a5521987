//! The NVFP4 modules of a checkpoint, for operations that rewrite it.

use crate::{Checkpoint, ModelError, Module, Scheme, TensorView, layer::tensor_names};
use nvfp4_core::ActivationScheme;
use std::collections::HashSet;

/// A checkpoint's tensors, divided.
pub(crate) struct Divided<'a> {
    /// NVFP4 modules, by name, with what happens to their activations.
    pub(crate) modules: Vec<(&'a Module, ActivationScheme)>,
    /// Tensors that belong to none of them.
    pub(crate) others: Vec<TensorView<'a>>,
}

/// Divides a checkpoint's tensors. A module that is faulty, or quantized in another way than NVFP4, is an error: nothing
/// that is written could speak for it.
pub(crate) fn divide(checkpoint: &Checkpoint) -> Result<Divided<'_>, ModelError> {
    let mut modules = Vec::new();
    let mut parts = HashSet::new();
    for module in checkpoint.modules() {
        match &module.scheme {
            Scheme::NvFp4(activation) => {
                modules.push((module, *activation));
                parts.extend(part_names(module));
            }
            Scheme::Dense(_) => {}
            Scheme::Faulty(error) => return Err((**error).clone().into()),
            Scheme::Other(what) => {
                return Err(ModelError::Inexpressible {
                    module: module.name.clone(),
                    reason: format!("it is {what}; only NVFP4 and unquantized modules can be rewritten"),
                });
            }
        }
    }
    if modules.is_empty() {
        return Err(ModelError::NotQuantized { path: checkpoint.path().to_path_buf() });
    }
    let others: Vec<_> = checkpoint.tensors().filter(|t| !parts.contains(t.name)).collect();
    if checkpoint.source().is_gguf()
        && let Some(blocks) = others.iter().find(|t| t.dtype == crate::TensorDType::U8)
    {
        return Err(ModelError::Inexpressible {
            module: blocks.name.to_string(),
            reason: "it is in a GGUF block format; of those, only two-dimensional NVFP4 can be rewritten".into(),
        });
    }
    Ok(Divided { modules, others })
}

/// Names of the tensors that make up an NVFP4 module.
pub(crate) fn part_names(module: &Module) -> Vec<String> {
    let Some(names) = tensor_names(&module.storage) else { return Vec::new() };
    [names.packed, names.scale, names.global, names.input].map(|part| format!("{}.{part}", module.name)).into()
}

/// Bytes of a checkpoint's tensors.
pub(crate) fn total_bytes(checkpoint: &Checkpoint) -> u64 {
    checkpoint.tensors().map(|t| t.bytes.len() as u64).sum()
}
