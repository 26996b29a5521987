//! What is done with each tensor of a dense model.

use super::{
    DenseModule, QuantizeOptions,
    calibration::{InputAmax, larger},
    selection::{Verdict, is_embedding},
};
use crate::{
    ModelError, TensorView,
    dense_matrix::DenseMatrix,
    emit::{ModuleTensors, QuantizedModule, module_tensors},
    fused_groups::{FusedGroup, fused_groups},
    model_input::ModelInput,
    progress::Counter,
};
use nvfp4_core::{GlobalScale, quantize_weight::global_scale_of};
use rayon::prelude::*;
use std::collections::BTreeSet;

/// What is done with each tensor.
pub(super) struct Plan<'a> {
    /// The modules to be quantized, by name.
    pub(super) modules: Vec<Module<'a>>,
    /// The other tensors.
    pub(super) copied: Vec<TensorView<'a>>,
    /// Two-dimensional weights among them.
    pub(super) dense: Vec<DenseModule>,
    /// Names of other modules that an ignore list must hold.
    other_ignored: BTreeSet<String>,
    groups: Vec<FusedGroup>,
    pub(super) warnings: Vec<String>,
}

/// A module to be quantized.
pub(super) struct Module<'a> {
    pub(super) name: String,
    /// Name of the weight tensor.
    pub(super) tensor: String,
    pub(super) weight: DenseMatrix<'a>,
}

/// The global scales of a module.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct ModuleScales {
    pub(super) weight: GlobalScale,
    /// For W4A4.
    pub(super) input: Option<GlobalScale>,
}

/// The global scales of all modules.
pub(super) struct Scales {
    /// In the order of the plan's modules.
    pub(super) modules: Vec<ModuleScales>,
    pub(super) warnings: Vec<String>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(source: &'a ModelInput, options: &QuantizeOptions) -> Result<Self, ModelError> {
        let model_type = source.config().get("model_type").and_then(|v| v.as_str());
        let mut plan = Self {
            modules: Vec::new(),
            copied: Vec::new(),
            dense: Vec::new(),
            other_ignored: BTreeSet::new(),
            groups: Vec::new(),
            warnings: Vec::new(),
        };
        for tensor in source.tensors() {
            plan.other_ignored.extend(dense_experts(&tensor));
            let Some((name, out_features, in_features)) = linear_weight(&tensor) else {
                plan.copied.push(tensor);
                continue;
            };
            match (options.selection.decide(name, out_features, in_features, model_type), tensor.dtype.as_float()) {
                (Verdict::Quantize, Some(dtype)) => plan.modules.push(Module {
                    name: name.to_string(),
                    tensor: tensor.name.to_string(),
                    weight: DenseMatrix::new(dtype, out_features, in_features, tensor.bytes)
                        .map_err(ModelError::in_tensor(tensor.name))?,
                }),
                (Verdict::Dense(reason), Some(_)) => {
                    plan.dense.push(DenseModule { name: name.to_string(), out_features, in_features, reason });
                    plan.copied.push(tensor);
                }
                (Verdict::Impossible(reason), Some(_)) => {
                    return Err(ModelError::Impossible { module: name.to_string(), reason });
                }
                (_, None) => plan.copied.push(tensor),
            }
        }
        if plan.modules.is_empty() {
            return Err(ModelError::NothingToQuantize { path: source.path().to_path_buf(), hint: plan.hint() });
        }
        plan.modules.sort_by(|a, b| a.name.cmp(&b.name));
        plan.dense.sort_by(|a, b| a.name.cmp(&b.name));
        plan.warn_of_split_groups();
        if options.fuse {
            plan.groups = fused_groups(plan.modules.iter().map(|m| (m.name.as_str(), m.weight.cols())));
        }
        if tied_output_head(source) {
            plan.other_ignored.insert("lm_head".to_string());
        }
        Ok(plan)
    }

    /// Why there is nothing to quantize.
    fn hint(&self) -> String {
        match self.dense.first() {
            None => String::new(),
            Some(first) => format!(
                "; {} such tensors stay dense, e.g. `{}` ({}); include them by pattern",
                self.dense.len(),
                first.name,
                first.reason
            ),
        }
    }

    /// Engines refuse a fused layer of which a part is quantized and a part is not.
    fn warn_of_split_groups(&mut self) {
        let quantized = self.modules.iter().map(|m| (m.name.as_str(), m.weight.cols()));
        let all: Vec<_> = quantized.chain(self.dense.iter().map(|m| (m.name.as_str(), m.in_features))).collect();
        let split: Vec<String> = fused_groups(all.iter().copied())
            .into_iter()
            .filter(|group| {
                let dense = group.members.iter().filter(|&&m| m >= self.modules.len()).count();
                dense > 0 && dense < group.members.len()
            })
            .map(|group| {
                format!(
                    "`{}`: some of these are quantized and some are not; engines that run them as one matrix refuse this",
                    group.name
                )
            })
            .collect();
        self.warnings.extend(split);
    }

    /// Bytes that quantizing reads: weights twice (once for the largest magnitude), other tensors once.
    pub(super) fn bytes_to_read(&self) -> u64 {
        let weights: u64 = self.modules.iter().map(|m| m.weight.bytes().len() as u64).sum();
        2 * weights + self.copied.iter().map(|t| t.bytes.len() as u64).sum::<u64>()
    }

    /// The global scales of the modules.
    pub(super) fn global_scales(
        &self,
        options: &QuantizeOptions,
        counter: &Counter<'_>,
    ) -> Result<Scales, ModelError> {
        // First, so that a missing module is found before minutes of work.
        let names: Vec<&str> = self.modules.iter().map(|m| m.name.as_str()).collect();
        let mut inputs = options.calibration.as_ref().map(|c| c.for_modules(&names)).transpose()?;
        let mut weights = self
            .modules
            .par_iter()
            .map(|module| {
                let amax = module.weight.amax().map_err(ModelError::in_tensor(&module.tensor))?;
                counter.add(&module.tensor, module.weight.bytes().len() as u64);
                Ok(InputAmax { amax, dtype: module.weight.dtype() })
            })
            .collect::<Result<Vec<_>, ModelError>>()?;
        for group in &self.groups {
            share_largest(&mut weights, group);
            if let Some(inputs) = &mut inputs {
                share_largest(inputs, group);
            }
        }

        let mut warnings = Vec::new();
        let mut modules = Vec::with_capacity(names.len());
        for (i, (module, weight)) in self.modules.iter().zip(&weights).enumerate() {
            let scale = |value: InputAmax| {
                global_scale_of(value.amax, value.dtype, options.format.quantizer())
                    .map_err(ModelError::in_tensor(&module.tensor))
            };
            if weight.amax == 0.0 {
                warnings.push(format!("`{}`: all weights are zero", module.tensor));
            }
            let input = inputs.as_ref().and_then(|inputs| inputs.get(i)).map(|value| scale(*value)).transpose()?;
            modules.push(ModuleScales { weight: scale(*weight)?, input });
        }
        Ok(Scales { modules, warnings })
    }

    /// The tensors of each module.
    pub(super) fn module_tensors(&self, options: &QuantizeOptions) -> Vec<ModuleTensors> {
        let quantized_activations = options.calibration.is_some();
        self.modules
            .iter()
            .map(|m| {
                module_tensors(options.format, &m.name, m.weight.rows(), m.weight.cols(), quantized_activations)
            })
            .collect()
    }

    /// The modules, for the configuration.
    pub(super) fn quantized_modules(&self, options: &QuantizeOptions) -> Vec<QuantizedModule> {
        let quantized_activations = options.calibration.is_some();
        self.modules.iter().map(|m| QuantizedModule { name: m.name.clone(), quantized_activations }).collect()
    }

    /// The names that an ignore list must hold: every linear module that stays dense.
    pub(super) fn ignored(&self) -> Vec<String> {
        let dense = self.dense.iter().filter(|m| !is_embedding(&m.name)).map(|m| m.name.clone());
        dense.chain(self.other_ignored.iter().cloned()).collect()
    }
}

/// Gives every member of the group the largest of their amaxima.
fn share_largest(values: &mut [InputAmax], group: &FusedGroup) {
    let largest = group.members.iter().filter_map(|&m| values.get(m).copied()).reduce(larger);
    for &member in &group.members {
        if let (Some(value), Some(largest)) = (values.get_mut(member), largest) {
            *value = largest;
        }
    }
}

/// Module name and shape, if the tensor may be the weight of a linear module.
fn linear_weight<'t>(tensor: &TensorView<'t>) -> Option<(&'t str, usize, usize)> {
    match (tensor.name.strip_suffix(".weight"), tensor.shape) {
        (Some(name), [n, k]) if tensor.dtype.as_float().is_some() => Some((name, *n, *k)),
        _ => None,
    }
}

/// The module of experts that are stored as one tensor of three dimensions (`….experts.gate_up_proj`). They stay
/// dense, and an engine that meets `….experts` has to know.
fn dense_experts(tensor: &TensorView<'_>) -> Option<String> {
    let (module, _) = tensor.name.rsplit_once('.')?;
    let experts = module.rsplit('.').next()? == "experts";
    (experts && tensor.shape.len() == 3 && tensor.dtype.as_float().is_some()).then(|| module.to_string())
}

/// Whether the output head is the embedding table, so that it has no tensor of its own and is a dense linear module
/// all the same.
fn tied_output_head(source: &ModelInput) -> bool {
    source.config().get("tie_word_embeddings").and_then(|v| v.as_bool()) == Some(true)
        && !source.tensors().any(|t| t.name.ends_with("lm_head.weight"))
}
