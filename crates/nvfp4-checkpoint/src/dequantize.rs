//! An NVFP4 checkpoint to a dense model.

use crate::{
    Checkpoint, ModelError, Module, OpenOptions,
    dense_matrix::{append_rounded, row_chunks},
    emit::{remove_quantization, write_json},
    model_input::{self, copied_spec, copy_tensor},
    nvfp4_modules::{divide, part_names, total_bytes},
    progress::{Counter, Progress},
    write::{CheckpointWriter, TensorSpec, WriteOptions, WriteSummary},
};
use nvfp4_core::{DType, NvFp4LinearLayer, dequantize::dequantize_row};
use rayon::prelude::*;
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::Path;

/// How a checkpoint is dequantized.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct DequantizeOptions {
    /// Type of the weights that are written. Default: bf16.
    pub dtype: DType,
    /// How the checkpoint is read.
    pub open: OpenOptions,
    /// Files and target.
    pub write: WriteOptions,
}

impl Default for DequantizeOptions {
    fn default() -> Self {
        Self { dtype: DType::Bf16, open: OpenOptions::default(), write: WriteOptions::default() }
    }
}

/// What was dequantized.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct DequantizeReport {
    /// The checkpoint's dialect.
    pub from: String,
    /// The modules that were dequantized, by name.
    pub layers: Vec<String>,
    /// Tensors that only a quantized model has and that were left out, e.g. scales of a key-value cache.
    pub dropped: Vec<String>,
    /// What the user should know.
    pub warnings: Vec<String>,
    /// Bytes of all tensors of the input.
    pub bytes_before: u64,
    /// What was written.
    pub written: WriteSummary,
}

/// Last names of tensors that tell how activations or a key-value cache are quantized.
const SCALES_OF_ACTIVATIONS: &[&str] = &["k_scale", "v_scale", "q_scale", "prob_scale", "kv_scale"];

/// Dequantizes the NVFP4 checkpoint `source` (any dialect) and writes the dense model directory `target`, which is
/// either complete or absent afterwards.
///
/// Each value is `e2m1 * (block scale * global scale)` in f32, rounded once to the type asked for. A value that does not
/// fit it (f16) is an error that names tensor, row and column. Other tensors keep their type and bytes; config.json
/// loses every statement about quantization and gets the type.
///
/// Memory: the input is mapped; each thread holds a few MiB of rows, and one module of a GGUF file, or of a torchao file
/// with swizzled scales.
pub fn dequantize(
    source: impl AsRef<Path>,
    target: impl AsRef<Path>,
    options: &DequantizeOptions,
    progress: &dyn Progress,
) -> Result<DequantizeReport, ModelError> {
    let (source, target) = (source.as_ref(), target.as_ref());
    let checkpoint = Checkpoint::open_with(source, options.open.clone())?;
    model_input::check_target(source, target)?;
    let divided = divide(&checkpoint)?;
    let (dropped, copied): (Vec<_>, Vec<_>) = divided.others.iter().partition(|t| {
        let last = t.name.rsplit('.').next().unwrap_or_default();
        SCALES_OF_ACTIVATIONS.contains(&last)
    });

    let weights = divided.modules.iter().map(|(module, _)| weight_spec(module, options.dtype));
    let specs: Vec<TensorSpec> = weights.chain(copied.iter().map(|t| copied_spec(t))).collect();
    let writer = CheckpointWriter::create(target, &specs, &options.write)?;
    model_input::copy_companion_files(source, &writer)?;
    write_config(source, options.dtype, &writer)?;

    let counter = Counter::new(progress, total_bytes(&checkpoint));
    divided.modules.par_iter().try_for_each(|(module, _)| {
        let layer = checkpoint.linear(&module.name)?;
        write_dense(&layer, module, options.dtype, &writer)?;
        let parts = part_names(module);
        let bytes = parts.iter().filter_map(|name| checkpoint.tensor(name)).map(|t| t.bytes.len() as u64).sum();
        counter.add(&module.name, bytes);
        Ok::<_, ModelError>(())
    })?;
    copied.par_iter().try_for_each(|tensor| copy_tensor(tensor, &writer, &counter))?;
    for tensor in &dropped {
        counter.add(tensor.name, tensor.bytes.len() as u64);
    }
    let written = writer.finish()?;
    Ok(DequantizeReport {
        from: checkpoint.dialect().to_string(),
        layers: divided.modules.iter().map(|(module, _)| module.name.clone()).collect(),
        dropped: dropped.iter().map(|t| t.name.to_string()).collect(),
        warnings: checkpoint.warnings().iter().map(ToString::to_string).collect(),
        bytes_before: total_bytes(&checkpoint),
        written,
    })
}

fn weight_spec(module: &Module, dtype: DType) -> TensorSpec {
    TensorSpec::new(format!("{}.weight", module.name), dtype.into(), [module.out_features, module.in_features])
}

/// Writes a module's weight, some rows at a time.
fn write_dense(
    layer: &NvFp4LinearLayer<'_>,
    module: &Module,
    dtype: DType,
    writer: &CheckpointWriter,
) -> Result<(), ModelError> {
    let weights = &layer.weights;
    let (n, k) = (weights.out_features(), weights.in_features());
    let name = weight_spec(module, dtype).name;
    let mut output = writer.tensor(&name)?;
    let mut row = vec![0.0; k];
    for range in row_chunks(n, k) {
        let mut bytes = Vec::with_capacity(range.len() * k * dtype.size());
        for n in range {
            dequantize_row(weights, n, &mut row).map_err(ModelError::in_tensor(&name))?;
            if dtype == DType::F16
                && let Some(column) = row.iter().position(|v| !half::f16::from_f32(*v).is_finite())
            {
                return Err(ModelError::DoesNotFit { tensor: name, row: n, column, found: row[column], dtype });
            }
            append_rounded(&row, dtype, &mut bytes);
        }
        output.write(&bytes)?;
    }
    Ok(output.finish()?)
}

/// Writes config.json without quantization, if the input has one.
fn write_config(source: &Path, dtype: DType, writer: &CheckpointWriter) -> Result<(), ModelError> {
    let Some(folder) = model_input::folder(source) else { return Ok(()) };
    let mut config: Map<String, Value> = model_input::read_config(&folder.join("config.json"))?;
    if config.is_empty() {
        return Ok(());
    }
    remove_quantization(&mut config);
    let name = match dtype {
        DType::Bf16 => "bfloat16",
        DType::F16 => "float16",
        _ => "float32",
    };
    // transformers 4 says `torch_dtype`, 5 says `dtype`.
    let key = if config.contains_key("dtype") { "dtype" } else { "torch_dtype" };
    config.insert(key.into(), name.into());
    Ok(write_json(writer, "config.json", &Value::Object(config))?)
}
