//! A dense model to an NVFP4 checkpoint.

mod calibration;
mod plan;
mod selection;

pub use calibration::Calibration;
pub(crate) use selection::is_embedding;
pub use selection::{DenseReason, ModulePattern, Selection};

use crate::{
    ModelError,
    dense_matrix::DenseRows,
    emit::{CheckpointFormat, Configuration, ModuleTensors},
    layer_error::{ErrorMeasures, ErrorSums},
    model_input::{self, ModelInput, copied_spec, copy_tensor},
    progress::{Counter, Progress},
    write::{CheckpointWriter, TensorSpec, WriteOptions, WriteSummary},
};
use nvfp4_core::{
    BLOCK_SIZE, GlobalScale, GlobalScales, LinearScales, NvFp4Weights, dequantize::dequantize_row,
    quantize_weight::quantize_rows,
};
use plan::{Module, ModuleScales, Plan};
use rayon::prelude::*;
use serde::Serialize;
use std::path::Path;

/// How a model is quantized.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct QuantizeOptions {
    /// The format to write, whose ecosystem's arithmetic is used: the codes are those that nvidia-modelopt or
    /// compressed-tensors would write.
    pub format: CheckpointFormat,
    /// Input scales for W4A4, which are stored in the checkpoint. `None`: W4A16, activations are not quantized.
    pub calibration: Option<Calibration>,
    /// Which modules.
    pub selection: Selection,
    /// Whether modules that engines fuse (q, k, v; gate, up) get the same global scales, the largest of theirs, as
    /// the ecosystems' exporters do. Default: yes. Engines with one scale for a fused layer are wrong without it.
    pub fuse: bool,
    /// Files and target.
    pub write: WriteOptions,
}

impl QuantizeOptions {
    /// W4A16 in this format, with the defaults of everything else.
    pub fn new(format: CheckpointFormat) -> Self {
        Self {
            format,
            calibration: None,
            selection: Selection::default(),
            fuse: true,
            write: WriteOptions::default(),
        }
    }
}

/// What was quantized.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct QuantizeReport {
    /// The format.
    pub format: CheckpointFormat,
    /// The quantized modules, by name.
    pub layers: Vec<QuantizedLayer>,
    /// Two-dimensional weights that were left dense, by name.
    pub dense: Vec<DenseModule>,
    /// What the user should know.
    pub warnings: Vec<String>,
    /// Bytes of all tensors of the input.
    pub bytes_before: u64,
    /// What was written.
    pub written: WriteSummary,
}

/// A module that was quantized.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct QuantizedLayer {
    /// Module name.
    pub name: String,
    /// Rows of the weight.
    pub out_features: usize,
    /// Columns of the weight.
    pub in_features: usize,
    /// Distance of the quantized weight from the original.
    #[serde(flatten)]
    pub error: ErrorMeasures,
    /// Bytes of the dense weight.
    pub bytes_before: u64,
    /// Bytes of codes, block scales and global scales.
    pub bytes_after: u64,
}

/// A two-dimensional weight that was left dense.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct DenseModule {
    /// Module name.
    pub name: String,
    /// Rows of the weight.
    pub out_features: usize,
    /// Columns of the weight.
    pub in_features: usize,
    /// Why.
    #[serde(flatten)]
    pub reason: DenseReason,
}

/// Quantizes the dense model `source` (a safetensors file, or a directory with one or several and a config.json) and
/// writes the checkpoint directory `target`, which is either complete or absent afterwards.
///
/// Tensors that are not quantized are copied byte for byte, and so are the other files of the model (tokenizer,
/// licence). config.json, or a minimal one, gets the format's quantization_config; its ignore list names every linear
/// module that was left dense. The same input gives the same bytes.
///
/// Memory: the input is mapped, not loaded; each thread holds a few MiB of rows (or one row, if that is more).
///
/// A weight that holds NaN or infinity is an error that names tensor, row and column.
pub fn quantize(
    source: impl AsRef<Path>,
    target: impl AsRef<Path>,
    options: &QuantizeOptions,
    progress: &dyn Progress,
) -> Result<QuantizeReport, ModelError> {
    let source = ModelInput::open_dense(source.as_ref())?;
    model_input::check_target(source.path(), target.as_ref())?;
    let plan = Plan::new(&source, options)?;
    let configuration = Configuration {
        format: options.format,
        modules: plan.quantized_modules(options),
        dense: plan.ignored(),
        kv_cache: None,
    };
    configuration.check()?;
    let counter = Counter::new(progress, plan.bytes_to_read());
    let scales = plan.global_scales(options, &counter)?;

    let modules: Vec<ModuleTensors> = plan.module_tensors(options);
    let copied = || plan.copied.iter().map(copied_spec);
    let specs: Vec<TensorSpec> = modules.iter().flat_map(|m| m.clone().specs()).chain(copied()).collect();
    let writer = CheckpointWriter::create(target.as_ref(), &specs, &options.write)?;
    model_input::copy_companion_files(source.path(), &writer)?;
    configuration.write(source.config().clone(), &writer)?;

    let layers = (plan.modules.par_iter().zip(&modules).zip(&scales.modules))
        .map(|((module, tensors), scales)| {
            let sums = write_module(module, tensors, scales, options.format, &writer, &counter)?;
            Ok(QuantizedLayer {
                name: module.name.clone(),
                out_features: module.weight.rows(),
                in_features: module.weight.cols(),
                error: sums.measures(),
                bytes_before: module.weight.bytes().len() as u64,
                bytes_after: tensors.clone().specs().map(|s| s.bytes()).sum::<Result<u64, _>>()?,
            })
        })
        .collect::<Result<Vec<_>, ModelError>>()?;
    plan.copied.par_iter().try_for_each(|tensor| copy_tensor(tensor, &writer, &counter))?;

    let warnings = [plan.warnings, scales.warnings].concat();
    let written = writer.finish()?;
    Ok(QuantizeReport {
        format: options.format,
        layers,
        dense: plan.dense,
        warnings,
        bytes_before: source.total_bytes(),
        written,
    })
}

/// Quantizes and writes a module, some rows at a time.
fn write_module(
    module: &Module<'_>,
    tensors: &ModuleTensors,
    scales: &ModuleScales,
    format: CheckpointFormat,
    writer: &CheckpointWriter,
    counter: &Counter<'_>,
) -> Result<ErrorSums, ModelError> {
    let weight = &module.weight;
    let mut packed = writer.tensor(&tensors.packed.name)?;
    let mut block_scales = writer.tensor(&tensors.scales.name)?;
    let mut sums = ErrorSums::default();
    for range in weight.chunks() {
        let rows = weight.read(range);
        let quantized =
            quantize_chunk(&rows, format, scales.weight).map_err(ModelError::in_tensor(&module.tensor))?;
        compare(&rows, &quantized, &mut sums).map_err(ModelError::in_tensor(&module.tensor))?;
        packed.write(quantized.packed())?;
        block_scales.write(quantized.scales().bytes())?;
        counter.add(&module.tensor, rows.bytes());
    }
    packed.finish()?;
    block_scales.finish()?;
    writer.write_tensor(&tensors.global.name, &format.global_scale_bytes(scales.weight))?;
    if let (Some(tensor), Some(input)) = (&tensors.input, scales.input) {
        writer.write_tensor(&tensor.name, &format.global_scale_bytes(input))?;
    }
    Ok(sums)
}

/// Quantizes some rows.
fn quantize_chunk(
    rows: &DenseRows,
    format: CheckpointFormat,
    global: GlobalScale,
) -> Result<NvFp4Weights<'static>, nvfp4_core::Error> {
    let matrix = rows.matrix()?;
    let (n, k) = (matrix.rows(), matrix.cols());
    let (mut packed, mut scales) = (vec![0; n * (k / 2)], vec![0; n * (k / BLOCK_SIZE)]);
    quantize_rows(matrix, format.quantizer(), global, &mut packed, &mut scales)?;
    NvFp4Weights::new(
        n,
        k,
        packed,
        LinearScales::new(n, k / BLOCK_SIZE, scales)?,
        GlobalScales::per_tensor(n, global),
    )
}

/// Adds the difference between dense rows and the same rows quantized.
fn compare(dense: &DenseRows, quantized: &NvFp4Weights<'_>, sums: &mut ErrorSums) -> Result<(), nvfp4_core::Error> {
    let mut row = vec![0.0; quantized.in_features()];
    for (n, original) in dense.widened().chunks_exact(quantized.in_features()).enumerate() {
        dequantize_row(quantized, n, &mut row)?;
        sums.add(original, &row);
    }
    Ok(())
}
