//! Faults of one NVFP4 module.

use super::{
    finding::{Fault, Finding, Severity},
    values::{Convention, all_zero, check_block_scales, check_global_scale},
};
use crate::{
    Checkpoint, Error, Module, Scheme, StoredScales, TensorDType, TensorView,
    layer::{Names, tensor_names},
    resolve::Storage,
};
use nvfp4_core::{
    ActivationScheme, BLOCK_SIZE, GlobalScale, ScaleLayout, SwizzledScales, gguf,
    pack::{NibbleOrder, swap_nibbles},
};
use std::borrow::Cow;

/// Last names of tensors that a module may have beside its own.
const COMPANIONS: &[&str] = &["bias", "k_scale", "v_scale", "q_scale", "prob_scale"];

/// What the check of a module found.
pub(super) struct Checked {
    pub(super) findings: Vec<Finding>,
    /// The weight's global scale, if it is one and sound.
    pub(super) global: Option<GlobalScale>,
    /// The input scale, if it is one and sound.
    pub(super) input: Option<GlobalScale>,
}

impl Checked {
    /// Whether the module loads.
    pub(super) fn is_loadable(&self) -> bool {
        self.findings.iter().all(|f| f.severity != Severity::Error)
    }

    fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }
}

/// Checks the tensors of a module that is stored as NVFP4, whatever its scheme. `limit`: places to keep of each fault.
pub(super) fn check_module(checkpoint: &Checkpoint, module: &Module, limit: usize) -> Checked {
    let mut checked = Checked { findings: Vec::new(), global: None, input: None };
    if let Scheme::Faulty(error) = &module.scheme {
        checked.add(from_error(error).in_module(&module.name));
    }
    if let Some(names) = tensor_names(&module.storage) {
        let check = ModuleCheck { checkpoint, module, names, limit };
        let packed = check.packed(&mut checked);
        check.block_scales(packed.as_deref(), &mut checked);
        let dead = packed.as_deref().is_some_and(all_zero);
        checked.global = check.global_scale(dead, &mut checked);
        checked.input = check.input_scale(&mut checked);
        check.extra_tensors(&mut checked);
        check.bias(&mut checked);
    }
    if let Scheme::NvFp4(_) = module.scheme
        && checked.is_loadable()
        && let Err(error) = checkpoint.linear(&module.name)
    {
        checked.add(Finding::error(Fault::Loader, error.to_string()).in_module(&module.name));
    }
    checked
}

/// A loader's error as a finding.
pub(super) fn from_error(error: &Error) -> Finding {
    let fault = match error {
        Error::Io { .. } | Error::Container { .. } => Fault::Unreadable,
        Error::Config { .. } => Fault::Configuration,
        Error::MissingTensor { .. } => Fault::MissingTensor,
        Error::Contradiction { .. } => Fault::Contradiction,
        Error::MixedParts { .. } => Fault::FusedSchemesDiffer,
        _ => Fault::Loader,
    };
    let finding = Finding::error(fault, error.to_string());
    match error {
        Error::MissingTensor { tensor, .. } | Error::Tensor { tensor, .. } | Error::Values { tensor, .. } => {
            finding.in_tensor(tensor)
        }
        _ => finding,
    }
}

struct ModuleCheck<'a> {
    checkpoint: &'a Checkpoint,
    module: &'a Module,
    names: &'static Names,
    limit: usize,
}

impl<'a> ModuleCheck<'a> {
    fn tensor(&self, suffix: &str) -> Option<TensorView<'a>> {
        self.checkpoint.tensor(&format!("{}.{suffix}", self.module.name))
    }

    /// A finding about a tensor of the module.
    fn found(&self, suffix: &str, finding: Finding) -> Finding {
        finding.in_module(&self.module.name).in_tensor(format!("{}.{suffix}", self.module.name))
    }

    fn missing(&self, suffix: &str, why: &str) -> Finding {
        self.found(suffix, Finding::error(Fault::MissingTensor, format!("is missing; {why}")))
    }

    /// Packed codes, in the usual order; `None` if there are none of the right form.
    fn packed(&self, checked: &mut Checked) -> Option<Cow<'a, [u8]>> {
        let (n, k) = (self.module.out_features, self.module.in_features);
        // Without this tensor the module would not be known as NVFP4.
        let view = self.tensor(self.names.packed)?;
        if k == 0 || n == 0 || !k.is_multiple_of(BLOCK_SIZE) {
            let message =
                format!("[{n}, {k}] values: neither may be zero, and {k} must be a multiple of {BLOCK_SIZE}");
            checked.add(self.found(self.names.packed, Finding::error(Fault::WrongShape, message)));
            return None;
        }
        if let Storage::Gguf = self.module.storage {
            let (mut packed, mut scales) = (vec![0; n * k / 2], vec![0; n * k / BLOCK_SIZE]);
            let fault = match gguf::to_checkpoint(view.bytes, k / BLOCK_SIZE, &mut packed, &mut scales) {
                Ok(()) => return Some(packed.into()),
                Err(error @ nvfp4_core::Error::BlockScale { .. }) => {
                    let message = format!("{error}; it means 480 there, which block scales of NVFP4 do not have");
                    Finding::error(Fault::NanBlockScale, message)
                }
                Err(error) => Finding::error(Fault::WrongShape, error.to_string()),
            };
            checked.add(self.found(self.names.packed, fault));
            return None;
        }
        if view.dtype != TensorDType::U8 {
            let message = format!("expected U8 (two codes a byte), found {}", view.dtype);
            checked.add(self.found(self.names.packed, Finding::error(Fault::WrongType, message)));
            return None;
        }
        if view.shape != [n, k / 2] {
            let message = format!("expected two dimensions, found {:?}", view.shape);
            checked.add(self.found(self.names.packed, Finding::error(Fault::WrongShape, message)));
            return None;
        }
        let mut packed = Cow::Borrowed(view.bytes);
        if self.checkpoint.options.nibble_order == NibbleOrder::HighFirst {
            swap_nibbles(packed.to_mut());
        }
        Some(packed)
    }

    /// Block scales: there, of the right form, of sound values.
    fn block_scales(&self, packed: Option<&[u8]>, checked: &mut Checked) {
        if let Storage::Gguf = self.module.storage {
            // They lie in the blocks, whose bytes 0x7f and above 0x7f have a meaning of their own.
            return;
        }
        let suffix = self.names.scale;
        let Some(view) = self.tensor(suffix) else {
            checked.add(self.missing(suffix, "it holds the block scales"));
            return;
        };
        if ![TensorDType::F8E4M3, TensorDType::U8].contains(&view.dtype) {
            let message = format!("expected F8_E4M3, found {}", view.dtype);
            checked.add(self.found(suffix, Finding::error(Fault::WrongType, message)));
            return;
        }
        let (rows, columns) = (self.module.out_features, self.module.in_features / BLOCK_SIZE);
        let tiles = || SwizzledScales::from_bytes(ScaleLayout::Swizzled128x4, rows, columns, view.bytes);
        let swizzled = match &self.module.storage {
            Storage::TorchAo(parameter) => parameter.swizzled,
            _ => self.checkpoint.options.stored_scales == StoredScales::Swizzled128x4,
        };
        let bytes: Cow<'_, [u8]> = if swizzled {
            match tiles().and_then(|tiles| tiles.unswizzle()) {
                Ok(linear) => Cow::Owned(linear.into_bytes().into_owned()),
                Err(error) => {
                    checked.add(self.found(suffix, Finding::error(Fault::WrongShape, error.to_string())));
                    return;
                }
            }
        } else if view.shape != [rows, columns] {
            let padded = (view.bytes.len() != rows * columns && tiles().is_ok())
                .then_some("; it has the size of the kernels' 128x4 layout: such scales need `Swizzled128x4`");
            let message = format!(
                "expected [{rows}, {columns}], one for each {BLOCK_SIZE} values of a row; found {:?}{}",
                view.shape,
                padded.unwrap_or_default()
            );
            checked.add(self.found(suffix, Finding::error(Fault::WrongShape, message)));
            return;
        } else {
            Cow::Borrowed(view.bytes)
        };
        if let Some(packed) = packed {
            for finding in check_block_scales(packed, &bytes, columns, self.limit) {
                checked.add(self.found(suffix, finding));
            }
        }
    }

    /// The weight's global scale.
    fn global_scale(&self, dead: bool, checked: &mut Checked) -> Option<GlobalScale> {
        match self.tensor(self.names.global) {
            None if self.names.optional_global => Some(GlobalScale::ONE),
            None => {
                checked.add(self.missing(self.names.global, "it holds the weight's global scale"));
                None
            }
            Some(view) => self.scalar(self.names.global, view, dead, self.module.out_features, checked),
        }
    }

    /// The input's global scale.
    fn input_scale(&self, checked: &mut Checked) -> Option<GlobalScale> {
        let suffix = self.names.input;
        match (self.tensor(suffix), &self.module.scheme) {
            (None, Scheme::NvFp4(ActivationScheme::Nvfp4Static)) => {
                checked.add(self.missing(suffix, "static W4A4 activations need it"));
                None
            }
            (None, _) => None,
            (Some(_), Scheme::NvFp4(ActivationScheme::Unquantized)) => {
                let message = "is not used: the configuration says that activations are not quantized";
                checked.add(self.found(suffix, Finding::new(Severity::Note, Fault::ExtraTensor, message)));
                None
            }
            (Some(view), _) => self.scalar(suffix, view, false, 0, checked),
        }
    }

    /// The scale in a tensor of one value, or the first of several parts'.
    fn scalar(
        &self,
        suffix: &str,
        view: TensorView<'_>,
        dead: bool,
        rows: usize,
        checked: &mut Checked,
    ) -> Option<GlobalScale> {
        if view.dtype != TensorDType::F32 {
            let message = format!("expected F32, found {}", view.dtype);
            checked.add(self.found(suffix, Finding::error(Fault::WrongType, message)));
            return None;
        }
        let values: Vec<f32> = view.floats().unwrap_or_default();
        let Some(first) = values.first() else {
            let message = format!("expected one value, found shape {:?}", view.shape);
            checked.add(self.found(suffix, Finding::error(Fault::WrongShape, message)));
            return None;
        };
        if values.len() > 1 && values.len() != rows {
            let message = format!(
                "{} values: scales of the parts of a fused module, which load with the rows of the parts only",
                values.len()
            );
            checked.add(self.found(suffix, Finding::warning(Fault::WrongShape, message)));
        }
        let convention = if self.names.encode { Convention::Encode } else { Convention::Decode };
        let mut scale = None;
        for value in &values {
            let (found, finding) = check_global_scale(*value, convention, dead);
            scale = scale.or(found);
            if let Some(finding) = finding {
                checked.add(self.found(suffix, finding));
            }
        }
        scale.filter(|_| values.iter().all(|v| v == first))
    }

    /// Tensors of the module that its format does not have.
    fn extra_tensors(&self, checked: &mut Checked) {
        let own = [self.names.packed, self.names.scale, self.names.global, self.names.input];
        let prefix = format!("{}.", self.module.name);
        for tensor in self.checkpoint.source().tensors_under(&prefix) {
            let Some(suffix) = tensor.name.strip_prefix(&prefix) else { continue };
            if suffix.contains('.') || own.contains(&suffix) || COMPANIONS.contains(&suffix) {
                continue;
            }
            let finding = match suffix {
                "weight" | "weight_packed" | "_weight_qdata" => {
                    let message = format!(
                        "is a second weight ({} {:?}) beside `{prefix}{}`; which of them counts depends on the loader",
                        tensor.dtype, tensor.shape, self.names.packed
                    );
                    Finding::error(Fault::ExtraTensor, message)
                }
                "pre_quant_scale" => Finding::error(
                    Fault::ExtraTensor,
                    "scales the input before it is quantized (AWQ), which loaders of NVFP4 do not do",
                ),
                _ => Finding::warning(
                    Fault::ExtraTensor,
                    "does not belong to an NVFP4 module; loaders ignore or refuse it",
                ),
            };
            checked.add(self.found(suffix, finding));
        }
    }

    /// The bias: one value for each output feature.
    fn bias(&self, checked: &mut Checked) {
        let Some(view) = self.tensor("bias") else { return };
        if view.dtype.as_float().is_none() {
            let message = format!("expected BF16, F16 or F32, found {}", view.dtype);
            checked.add(self.found("bias", Finding::error(Fault::WrongType, message)));
        } else if view.shape != [self.module.out_features] {
            let message = format!("expected [{}], found {:?}", self.module.out_features, view.shape);
            checked.add(self.found("bias", Finding::error(Fault::WrongShape, message)));
        }
    }
}
