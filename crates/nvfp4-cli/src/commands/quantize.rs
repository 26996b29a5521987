//! `nvfp4 quantize`: a dense model to an NVFP4 checkpoint.

use crate::{
    exit::{CommandResult, Failure, Outcome},
    notices,
    progress::Bar,
    quantities,
    session::Session,
    table::{Align, Table},
    writing_arguments::{FormatArgument, WritingArguments},
};
use anyhow::anyhow;
use nvfp4::checkpoint::{
    quantize,
    quantize::{Calibration, ModulePattern, QuantizeOptions, QuantizeReport},
};
use std::{io::Write, path::PathBuf};

/// Quantize a safetensors model to NVFP4
///
/// SRC is a safetensors file, or a directory with one or several and a config.json. Its linear modules are quantized with
/// the arithmetic of the library that owns the format; embeddings, output head, routers and vision towers stay as they
/// are unless --include names them. All else is copied. DST is complete or absent, and the same input gives the same
/// bytes. The model is read in pieces, so that its size does not matter.
///
/// A CALIBRATION file for W4A4 is a safetensors file that holds, for each module, either `<module>.input_amax` (one
/// value) or `<module>.input` (activations).
///
/// A PATTERN is a glob on the whole module name (`*.mlp.*`), or `re:` and a regular expression.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The model: a directory or a safetensors file
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// The directory to write
    #[arg(value_name = "DST")]
    target: PathBuf,
    /// The format to write
    #[arg(long, value_enum, default_value_t = FormatArgument::CompressedTensors)]
    format: FormatArgument,
    /// Weights only, or activations too
    #[arg(long, value_enum, default_value_t = Scheme::W4a16)]
    scheme: Scheme,
    /// Measured inputs of the modules, for w4a4
    #[arg(long, value_name = "FILE", required_if_eq("scheme", "w4a4"))]
    calibration: Option<PathBuf>,
    /// Quantize modules that match, whatever else is said
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    include: Vec<ModulePattern>,
    /// Leave modules that match as they are
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    exclude: Vec<ModulePattern>,
    /// Give each of q, k, v (and gate, up) global scales of its own, which vLLM and others compute wrongly with
    #[arg(long)]
    separate_scales: bool,
    #[command(flatten)]
    writing: WritingArguments,
}

const EXAMPLES: &str = "\
Examples:
  nvfp4 quantize my-model my-model-nvfp4
  nvfp4 quantize my-model out --format modelopt --scheme w4a4 --calibration amax.safetensors
  nvfp4 quantize my-model out --exclude '*' --include '*.mlp.*'";

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Scheme {
    /// Activations keep their type
    W4a16,
    /// Activations are quantized, with scales from --calibration
    W4a4,
}

fn pattern(text: &str) -> Result<ModulePattern, String> {
    ModulePattern::new(text).map_err(|error| error.to_string())
}

pub(crate) fn run(arguments: &Arguments, session: &mut Session) -> CommandResult {
    let mut options = QuantizeOptions::new(arguments.format.format());
    options.calibration = match (arguments.scheme, &arguments.calibration) {
        (Scheme::W4a4, Some(file)) => Some(Calibration::open(file)?),
        (Scheme::W4a16, Some(_)) => {
            return Err(Failure::Usage(anyhow!("--calibration is for --scheme w4a4")));
        }
        (_, None) => None,
    };
    options.selection.include = arguments.include.clone();
    options.selection.exclude = arguments.exclude.clone();
    options.fuse = !arguments.separate_scales;
    options.write = arguments.writing.options();
    let bar = Bar::bytes(session);
    let report = quantize(&arguments.source, &arguments.target, &options, &bar)?;
    drop(bar);
    if session.json {
        session.out.json(&report)?;
    } else {
        write_text(&report, arguments, session)?;
    }
    Ok(Outcome::Yes)
}

fn write_text(report: &QuantizeReport, arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let out = &mut session.out;
    let right = |name| (name, Align::Right);
    let mut table = Table::new([
        ("module", Align::Left),
        right("n"),
        right("k"),
        right("rel. error"),
        right("cosine"),
        right("before"),
        right("after"),
    ]);
    for layer in &report.layers {
        table.row([
            layer.name.clone(),
            layer.out_features.to_string(),
            layer.in_features.to_string(),
            format!("{:.4}", layer.error.relative_error),
            format!("{:.5}", layer.error.cosine),
            quantities::bytes(layer.bytes_before),
            quantities::bytes(layer.bytes_after),
        ]);
    }
    table.write(out)?;
    let dense: Vec<String> =
        report.dense.iter().map(|module| format!("{}: {}", module.name, module.reason)).collect();
    notices::write("Left as they are", &dense, out)?;
    notices::write("Warnings", &report.warnings, out)?;
    writeln!(
        out,
        "\n{}: {} quantized, {} -> {} in {}",
        arguments.target.display(),
        quantities::count(report.layers.len(), "module"),
        quantities::bytes(report.bytes_before),
        quantities::bytes(report.written.tensor_bytes),
        quantities::count(report.written.files, "file"),
    )?;
    Ok(())
}
