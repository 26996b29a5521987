//! `nvfp4 dequantize`: an NVFP4 checkpoint to a dense model.

use crate::{
    exit::{CommandResult, Outcome},
    layer_arguments::DTypeArgument,
    notices,
    progress::Bar,
    quantities,
    reading_arguments::ReadingArguments,
    session::Session,
    writing_arguments::WritingArguments,
};
use nvfp4::checkpoint::{dequantize, dequantize::DequantizeOptions};
use std::{io::Write, path::PathBuf};

/// Dequantize an NVFP4 checkpoint (any dialect) to a dense safetensors model
///
/// Each weight is computed in f32 and rounded once to the type asked for. DST is complete or absent.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The checkpoint: a directory, a safetensors file or a GGUF file
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// The directory to write
    #[arg(value_name = "DST")]
    target: PathBuf,
    /// Type of the weights
    #[arg(long, value_enum, default_value_t = DTypeArgument::Bf16)]
    dtype: DTypeArgument,
    #[command(flatten)]
    reading: ReadingArguments,
    #[command(flatten)]
    writing: WritingArguments,
}

const EXAMPLES: &str = "\
Examples:
  nvfp4 dequantize my-model-nvfp4 my-model-bf16
  nvfp4 dequantize model.gguf model-f32 --dtype f32";

pub(crate) fn run(arguments: &Arguments, session: &mut Session) -> CommandResult {
    let mut options = DequantizeOptions::default();
    options.dtype = arguments.dtype.dtype();
    options.open = arguments.reading.options();
    options.write = arguments.writing.options();
    let bar = Bar::bytes(session);
    let report = dequantize(&arguments.source, &arguments.target, &options, &bar)?;
    drop(bar);
    if session.json {
        session.out.json(&report)?;
        return Ok(Outcome::Yes);
    }
    let out = &mut session.out;
    notices::write("Left out, as only a quantized model has them", &report.dropped, out)?;
    notices::write("Warnings", &report.warnings, out)?;
    if !report.dropped.is_empty() || !report.warnings.is_empty() {
        writeln!(out)?;
    }
    writeln!(
        out,
        "{}: {} dequantized from {}, {} -> {} in {}",
        arguments.target.display(),
        quantities::count(report.layers.len(), "module"),
        report.from,
        quantities::bytes(report.bytes_before),
        quantities::bytes(report.written.tensor_bytes),
        quantities::count(report.written.files, "file"),
    )?;
    Ok(Outcome::Yes)
}
