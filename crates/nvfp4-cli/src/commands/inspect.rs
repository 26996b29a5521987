//! `nvfp4 inspect`: what a checkpoint holds.

use crate::{
    exit::{CommandResult, Failure, Outcome},
    quantities,
    reading_arguments::ReadingArguments,
    session::Session,
    table::{Align, Table},
};
use nvfp4::{
    GlobalScale,
    checkpoint::{
        Checkpoint, Module, QuantizationConfig, Scheme, TensorView,
        config::{compressed_tensors, modelopt},
    },
};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    io::Write,
    path::{Path, PathBuf},
};

/// Show what a checkpoint holds: dialect, configuration, and scheme, shape, scales and bytes of every linear module
///
/// Reads file headers and global scales only, so that it is quick whatever the size; `nvfp4 verify` reads all values.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A directory, a safetensors file, an index of shards, or a GGUF file
    path: PathBuf,
    #[command(flatten)]
    reading: ReadingArguments,
}

const EXAMPLES: &str = "\
Examples:
  nvfp4 inspect my-model-nvfp4
  nvfp4 inspect model.gguf --json";

#[derive(Debug, Serialize)]
struct Report {
    path: PathBuf,
    dialect: String,
    files: Vec<PathBuf>,
    configuration: Vec<String>,
    modules: Vec<ModuleReport>,
    totals: Totals,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ModuleReport {
    name: String,
    /// e.g. `NVFP4 W4A4`, `dense bf16`.
    scheme: String,
    /// Output features.
    n: usize,
    /// Input features.
    k: usize,
    /// Weight global scales as multipliers, one or several.
    weight_global_scales: Vec<f32>,
    /// Input global scales as multipliers.
    input_global_scales: Vec<f32>,
    bytes: usize,
    tensors: Vec<TensorReport>,
}

#[derive(Debug, Serialize)]
struct TensorReport {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: usize,
}

#[derive(Debug, Serialize)]
struct Totals {
    bytes: usize,
    /// Modules and bytes of each scheme.
    schemes: BTreeMap<String, SchemeTotal>,
    /// Tensors that belong to no linear module.
    other_tensors: SchemeTotal,
    /// Bits that a weight of an NVFP4 module takes, scales included.
    bits_per_nvfp4_weight: Option<f64>,
}

#[derive(Debug, Default, Serialize)]
struct SchemeTotal {
    count: usize,
    bytes: usize,
}

impl SchemeTotal {
    fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes;
    }
}

pub(crate) fn run(arguments: &Arguments, session: &mut Session) -> CommandResult {
    let checkpoint = Checkpoint::open_with(&arguments.path, arguments.reading.options())?;
    let report = report(&checkpoint);
    if session.json {
        session.out.json(&report)?;
    } else {
        write_text(&report, session)?;
    }
    Ok(Outcome::Yes)
}

fn report(checkpoint: &Checkpoint) -> Report {
    let mut of_module: BTreeMap<&str, Vec<TensorView<'_>>> = BTreeMap::new();
    let mut totals = Totals {
        bytes: checkpoint.tensors().map(|tensor| tensor.bytes.len()).sum(),
        schemes: BTreeMap::new(),
        other_tensors: SchemeTotal::default(),
        bits_per_nvfp4_weight: None,
    };
    for tensor in checkpoint.tensors() {
        match tensor.name.rsplit_once('.').filter(|(module, _)| checkpoint.module(module).is_some()) {
            Some((module, _)) => of_module.entry(module).or_default().push(tensor),
            None => totals.other_tensors.add(tensor.bytes.len()),
        }
    }
    let mut warnings: Vec<String> = checkpoint.warnings().iter().map(ToString::to_string).collect();
    let (mut weights, mut weight_bytes) = (0usize, 0usize);
    let modules = checkpoint.modules().map(|module| {
        let tensors = of_module.remove(module.name.as_str()).unwrap_or_default();
        let bytes = tensors.iter().map(|tensor| tensor.bytes.len()).sum();
        totals.schemes.entry(scheme_name(module)).or_default().add(bytes);
        match (&module.scheme, &module.contradiction) {
            (Scheme::Faulty(error), _) => warnings.push(error.to_string()),
            (_, Some(contradiction)) => warnings.push(format!("module `{}`: {contradiction}", module.name)),
            _ => {}
        }
        if let Scheme::NvFp4(_) = module.scheme {
            weights = weights.saturating_add(module.out_features.saturating_mul(module.in_features));
            let of_weight = tensors.iter().filter(|tensor| !tensor.name.ends_with(".bias"));
            weight_bytes += of_weight.map(|tensor| tensor.bytes.len()).sum::<usize>();
        }
        module_report(module, &tensors, bytes, &mut warnings)
    });
    let modules = modules.collect();
    totals.bits_per_nvfp4_weight = (weights > 0).then(|| 8.0 * weight_bytes as f64 / weights as f64);
    Report {
        path: checkpoint.path().to_path_buf(),
        dialect: checkpoint.dialect().to_string(),
        files: checkpoint.source().paths().map(Path::to_path_buf).collect(),
        configuration: checkpoint.config().map(configuration).unwrap_or_default(),
        modules,
        totals,
        warnings,
    }
}

/// The scheme without the text of its fault.
fn scheme_name(module: &Module) -> String {
    match &module.scheme {
        Scheme::Faulty(_) => "faulty".into(),
        scheme => scheme.to_string(),
    }
}

/// Last names of tensors with a weight's global scale, and whether they hold divisors.
const WEIGHT_SCALES: &[(&str, bool)] = &[
    ("weight_scale_2", false),
    ("weight_global_scale", true),
    ("_weight_per_tensor_scale", false),
    ("scale", false),
];
/// The same for the input.
const INPUT_SCALES: &[(&str, bool)] =
    &[("input_scale", false), ("input_global_scale", true), ("_weight_act_per_tensor_scale", false)];

fn module_report(
    module: &Module,
    tensors: &[TensorView<'_>],
    bytes: usize,
    warnings: &mut Vec<String>,
) -> ModuleReport {
    let mut scales = |names: &[(&str, bool)]| -> Vec<f32> {
        if !matches!(module.scheme, Scheme::NvFp4(_)) {
            return Vec::new();
        }
        let of_kind = tensors.iter().filter_map(|tensor| {
            let (_, last) = tensor.name.rsplit_once('.')?;
            names.iter().find(|(name, _)| *name == last).map(|(_, divisor)| (tensor, *divisor))
        });
        let mut found = Vec::new();
        for (tensor, divisor) in of_kind {
            match multipliers(tensor, divisor) {
                Ok(values) => found.extend(values),
                Err(fault) => warnings.push(fault),
            }
        }
        found
    };
    ModuleReport {
        name: module.name.clone(),
        scheme: scheme_name(module),
        n: module.out_features,
        k: module.in_features,
        weight_global_scales: scales(WEIGHT_SCALES),
        input_global_scales: scales(INPUT_SCALES),
        bytes,
        tensors: tensors
            .iter()
            .map(|tensor| TensorReport {
                name: tensor.name.to_string(),
                dtype: tensor.dtype.name(),
                shape: tensor.shape.to_vec(),
                bytes: tensor.bytes.len(),
            })
            .collect(),
    }
}

/// Global scales as multipliers.
fn multipliers(tensor: &TensorView<'_>, divisor: bool) -> Result<Vec<f32>, String> {
    let values = tensor.floats().map_err(|error| error.to_string())?;
    let multiplier = |value: f32| {
        let scale = if divisor { GlobalScale::from_encode(value) } else { GlobalScale::from_decode(value) };
        scale.map(|scale| scale.decode().get()).map_err(|error| format!("tensor `{}`: {error}", tensor.name))
    };
    values.into_iter().map(multiplier).collect()
}

fn configuration(config: &QuantizationConfig) -> Vec<String> {
    match config {
        QuantizationConfig::ModelOpt(config) => modelopt_configuration(config),
        QuantizationConfig::CompressedTensors(config) => compressed_tensors_configuration(config),
        QuantizationConfig::Other(method) => vec![format!("quantization method `{method}`")],
        other => vec![format!("{other:?}")],
    }
}

fn modelopt_configuration(config: &modelopt::Config) -> Vec<String> {
    let algorithm = match &config.algorithm {
        modelopt::Algorithm::NvFp4 => "NVFP4 (W4A4)".to_string(),
        modelopt::Algorithm::NvFp4WeightOnly => "NVFP4 weight-only (W4A16)".into(),
        modelopt::Algorithm::Mixed => {
            format!("mixed precision, {} named", quantities::count(config.layers.len(), "layer"))
        }
        modelopt::Algorithm::Other(name) => name.clone(),
        other => format!("{other:?}"),
    };
    let mut lines = vec![format!("ModelOpt: {algorithm}, {} values share a block scale", config.group_size)];
    if config.dynamic_activations {
        lines.push("activation scales are computed for each call".into());
    }
    if config.kv_cache_fp8 {
        lines.push("the key-value cache is FP8".into());
    }
    if !config.exclude.is_empty() {
        let entries: Vec<_> = config.exclude.iter().map(|entry| entry.as_str()).collect();
        lines.push(format!("not quantized: {}", entries.join(", ")));
    }
    lines
}

fn compressed_tensors_configuration(config: &compressed_tensors::Config) -> Vec<String> {
    use compressed_tensors::Quantization;
    let text = |quantization: &Quantization| match quantization {
        Quantization::None => "not quantized".to_string(),
        Quantization::NvFp4 => "NVFP4".into(),
        Quantization::NvFp4Dynamic => "NVFP4 with scales computed for each call".into(),
        Quantization::Other(what) => what.clone(),
        other => format!("{other:?}"),
    };
    let names = |patterns: &[compressed_tensors::Pattern]| {
        patterns.iter().map(|pattern| pattern.as_str()).collect::<Vec<_>>().join(", ")
    };
    let group = |group: &compressed_tensors::Group| {
        format!(
            "compressed-tensors {}: weights {}, activations {}, for {}",
            group.name,
            text(&group.weights),
            text(&group.activations),
            names(&group.targets)
        )
    };
    let mut lines: Vec<String> = config.groups.iter().map(group).collect();
    if !config.ignore.is_empty() {
        lines.push(format!("not quantized: {}", names(&config.ignore)));
    }
    lines
}

fn write_text(report: &Report, session: &mut Session) -> Result<(), Failure> {
    let out = &mut session.out;
    writeln!(
        out,
        "{}: {}, {}, {}",
        report.path.display(),
        report.dialect,
        quantities::count(report.files.len(), "file"),
        quantities::bytes(report.totals.bytes as u64)
    )?;
    for line in &report.configuration {
        writeln!(out, "  {line}")?;
    }
    writeln!(out)?;
    let right = |name| (name, Align::Right);
    let mut table = Table::new([
        ("module", Align::Left),
        ("scheme", Align::Left),
        right("n"),
        right("k"),
        ("stored as", Align::Left),
        right("weight scale"),
        right("input scale"),
        right("bytes"),
    ]);
    for module in &report.modules {
        table.row([
            module.name.clone(),
            module.scheme.clone(),
            module.n.to_string(),
            module.k.to_string(),
            stored_as(module),
            scales_text(&module.weight_global_scales),
            scales_text(&module.input_global_scales),
            quantities::bytes(module.bytes as u64),
        ]);
    }
    table.write(out)?;
    writeln!(out, "\nTotal: {}", quantities::bytes(report.totals.bytes as u64))?;
    for (scheme, total) in &report.totals.schemes {
        let modules = quantities::count(total.count, "module");
        writeln!(out, "  {scheme}: {modules}, {}", quantities::bytes(total.bytes as u64))?;
    }
    let other = &report.totals.other_tensors;
    if other.count > 0 {
        let tensors = quantities::count(other.count, "other tensor");
        writeln!(out, "  {tensors}, {}", quantities::bytes(other.bytes as u64))?;
    }
    if let Some(bits) = report.totals.bits_per_nvfp4_weight {
        writeln!(out, "  {bits:.3} bits a weight in NVFP4 modules")?;
    }
    crate::notices::write("Warnings", &report.warnings, out)?;
    Ok(())
}

/// Types of a module's matrices: `U8, F8_E4M3`.
fn stored_as(module: &ModuleReport) -> String {
    let mut types: Vec<&str> = Vec::new();
    for tensor in module.tensors.iter().filter(|tensor| tensor.shape.len() >= 2) {
        if !types.contains(&tensor.dtype) {
            types.push(tensor.dtype);
        }
    }
    types.join(", ")
}

fn scales_text(scales: &[f32]) -> String {
    match scales {
        [] => String::new(),
        [one] => format!("{one:.4e}"),
        several => format!("{} of them", several.len()),
    }
}
