//! A checkpoint doctor: every fault of an NVFP4 checkpoint, named by tensor, row and column, before a GPU is touched.

mod configuration;
mod finding;
mod fused;
mod module;
mod original;
mod values;

pub use finding::{Fault, Finding, Position, Severity};
pub use original::{Diagnosis, RowError, WRONG};

use crate::{
    Checkpoint, ModelError, Module, OpenOptions, Scheme, Source,
    dense_matrix::DenseMatrix,
    layer::tensor_names,
    layer_error::ErrorMeasures,
    model_input::ModelInput,
    nvfp4_modules::{part_names, total_bytes},
    progress::{Counter, Progress},
    source::Faults,
};
use module::{Checked, check_module, from_error};
use rayon::prelude::*;
use serde::Serialize;
use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

/// Faults of the files that are named; all are counted.
const FILE_FAULTS: usize = 1000;

/// What is checked.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct VerifyOptions {
    /// The dense model that the checkpoint was made from: a safetensors file or directory.
    pub original: Option<PathBuf>,
    /// How the checkpoint is read.
    pub open: OpenOptions,
    /// Places that are kept of each kind of fault in each tensor; all are counted. Default: 10,000.
    pub places: usize,
    /// Rows of each layer whose errors are named, the worst first. Default: 3.
    pub worst_rows: usize,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self { original: None, open: OpenOptions::default(), places: 10_000, worst_rows: 3 }
    }
}

/// What a check found.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct VerifyReport {
    /// The checkpoint.
    pub path: PathBuf,
    /// Its dialect, in words; absent if it cannot be opened.
    pub dialect: Option<String>,
    /// Its NVFP4 modules, by name.
    pub layers: Vec<VerifiedLayer>,
    /// Linear modules and embedding tables that are not NVFP4.
    pub other_modules: usize,
    /// Everything found, the worst first.
    pub findings: Vec<Finding>,
    /// Findings that are errors.
    pub errors: usize,
    /// Findings that are warnings.
    pub warnings: usize,
}

impl VerifyReport {
    /// Whether there is no error.
    pub const fn is_sound(&self) -> bool {
        self.errors == 0
    }

    fn new(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            dialect: None,
            layers: Vec::new(),
            other_modules: 0,
            findings: Vec::new(),
            errors: 0,
            warnings: 0,
        }
    }

    /// Sorts and counts the findings.
    fn finish(mut self) -> Self {
        self.findings.sort_by(|a, b| {
            (b.severity, &a.tensor, &a.module, a.fault).cmp(&(a.severity, &b.tensor, &b.module, b.fault))
        });
        let count = |severity| self.findings.iter().filter(|f| f.severity == severity).count();
        (self.errors, self.warnings) = (count(Severity::Error), count(Severity::Warning));
        self
    }
}

/// An NVFP4 module.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct VerifiedLayer {
    /// Module name.
    pub name: String,
    /// Rows of the weight.
    pub out_features: usize,
    /// Columns of the weight.
    pub in_features: usize,
    /// Its scheme, in words.
    pub scheme: String,
    /// Bytes of its tensors.
    pub bytes: usize,
    /// Whether it loads.
    pub loads: bool,
    /// Distance from the original, if that was given and both could be read.
    #[serde(flatten)]
    pub error: Option<ErrorMeasures>,
    /// What explains the distance.
    pub diagnosis: Option<Diagnosis>,
    /// The rows that are farthest from the original.
    pub worst_rows: Vec<RowError>,
}

/// Checks the NVFP4 checkpoint `source` (any dialect): files and headers, configuration, which tensors there are, their
/// types and shapes, every block scale and global scale, every unquantized value, fused modules whose parts differ. With
/// the original given, the error of each layer and row, and what explains those that are too large: a fault of the file
/// (wrong global scale, order of scales or nibbles), or a limit of the format.
///
/// Faults of the checkpoint are findings of the report; all are found that do not hide each other. The error is for an
/// original that cannot be read.
pub fn verify(
    source: impl AsRef<Path>,
    options: &VerifyOptions,
    progress: &dyn Progress,
) -> Result<VerifyReport, ModelError> {
    let source = source.as_ref();
    let original = options.original.as_deref().map(ModelInput::open_dense).transpose()?;
    let mut report = VerifyReport::new(source);
    let Some(checkpoint) = open(source, options, &mut report.findings) else { return Ok(report.finish()) };
    report.dialect = Some(checkpoint.dialect().to_string());
    let (modules, others): (Vec<&Module>, Vec<&Module>) = checkpoint
        .modules()
        .partition(|m| tensor_names(&m.storage).is_some() || matches!(m.scheme, Scheme::Faulty(_)));
    report.other_modules = others.len();
    if modules.is_empty() {
        report.findings.push(Finding::error(Fault::MissingTensor, "there is no NVFP4 module"));
    }

    let counter = Counter::new(progress, total_bytes(&checkpoint));
    let checked: Vec<(Checked, VerifiedLayer)> = modules
        .par_iter()
        .map(|module| {
            let mut checked = check_module(&checkpoint, module, options.places);
            let layer = compare_module(&checkpoint, module, original.as_ref(), options, &mut checked);
            let parts = part_names(module);
            let bytes = parts.iter().filter_map(|name| checkpoint.tensor(name)).map(|t| t.bytes.len() as u64).sum();
            counter.add(&module.name, bytes);
            (checked, layer)
        })
        .collect();
    report.findings.extend(fused::check_fused(&modules, &others, &checked));
    for (checked, layer) in checked {
        report.findings.extend(checked.findings);
        report.layers.push(layer);
    }
    report.findings.extend(configuration::check_configuration(&checkpoint));
    report.findings.extend(unquantized_values(&checkpoint, &modules, options, &counter));
    Ok(report.finish())
}

/// Opens the checkpoint. Every fault of the files is a finding, and then nothing more can be said. If only the
/// configuration is at fault, that is a finding and the tensors alone decide.
fn open(path: &Path, options: &VerifyOptions, findings: &mut Vec<Finding>) -> Option<Checkpoint> {
    let mut faults = Faults::keeping(FILE_FAULTS);
    let source = Source::collect(path, &mut faults);
    let count = faults.count();
    let kept = faults.into_kept();
    let more = count - kept.len();
    findings.extend(kept.iter().map(|fault| Finding { fault: Fault::Unreadable, ..from_error(fault) }));
    if more > 0 {
        let message = format!("the files have {more} more faults; those named come first");
        findings.push(Finding::error(Fault::Unreadable, message));
    }
    let source = source.filter(|_| count == 0)?;
    let config = Checkpoint::read_config(path, &source).unwrap_or_else(|error| {
        findings.push(from_error(&error));
        None
    });
    Some(Checkpoint::with_config(path, source, config, options.open.clone()))
}

/// NaN and infinity in tensors that belong to no NVFP4 module.
fn unquantized_values(
    checkpoint: &Checkpoint,
    modules: &[&Module],
    options: &VerifyOptions,
    counter: &Counter<'_>,
) -> Vec<Finding> {
    let parts: HashSet<String> = modules.iter().flat_map(|m| part_names(m)).collect();
    let tensors: Vec<_> = checkpoint.tensors().filter(|t| !parts.contains(t.name)).collect();
    tensors
        .par_iter()
        .filter_map(|tensor| {
            let columns = tensor.shape.last().copied().unwrap_or(1).max(1);
            let matrix = tensor
                .dtype
                .as_float()
                .and_then(|dtype| DenseMatrix::new(dtype, tensor.elements() / columns, columns, tensor.bytes).ok());
            let finding = matrix.and_then(|matrix| values::check_finite(&matrix, options.places));
            counter.add(tensor.name, tensor.bytes.len() as u64);
            finding.map(|finding| finding.in_tensor(tensor.name))
        })
        .collect()
}

/// Describes a module, and compares it with its original.
fn compare_module(
    checkpoint: &Checkpoint,
    module: &Module,
    original: Option<&ModelInput>,
    options: &VerifyOptions,
    checked: &mut Checked,
) -> VerifiedLayer {
    let mut layer = VerifiedLayer {
        name: module.name.clone(),
        out_features: module.out_features,
        in_features: module.in_features,
        scheme: module.scheme.to_string(),
        bytes: module.bytes,
        loads: checked.is_loadable() && matches!(module.scheme, Scheme::NvFp4(_)),
        error: None,
        diagnosis: None,
        worst_rows: Vec::new(),
    };
    let (Some(original), true) = (original, layer.loads) else { return layer };
    let name = format!("{}.weight", module.name);
    let expected = [module.out_features, module.in_features];
    let dense = original.tensor(&name).ok_or_else(|| format!("the original has no `{name}`")).and_then(|tensor| {
        let dtype = tensor.dtype.as_float().filter(|_| tensor.shape == expected);
        let fault = || {
            format!(
                "in the original it is {} {:?}, expected a float matrix {expected:?}",
                tensor.dtype, tensor.shape
            )
        };
        DenseMatrix::new(dtype.ok_or_else(fault)?, expected[0], expected[1], tensor.bytes)
            .map_err(|e| e.to_string())
    });
    let comparison = dense.and_then(|dense| {
        let loaded = checkpoint.linear(&module.name).map_err(|e| e.to_string())?;
        original::compare(&dense, &loaded.weights, options.worst_rows).map_err(|e| e.to_string())
    });
    match comparison {
        Err(fault) => checked.findings.push(Finding::error(Fault::Original, fault).in_module(&module.name)),
        Ok(comparison) => {
            let findings = comparison.findings(options.places);
            checked.findings.extend(findings.into_iter().map(|f| f.in_module(&module.name)));
            layer.error = Some(comparison.error);
            layer.diagnosis = Some(comparison.diagnosis);
            layer.worst_rows = comparison.worst_rows;
        }
    }
    layer
}
