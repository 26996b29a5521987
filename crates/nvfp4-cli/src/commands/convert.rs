//! `nvfp4 convert`: an NVFP4 checkpoint to another format.

use crate::{
    exit::{CommandResult, Outcome},
    notices,
    progress::Bar,
    quantities,
    reading_arguments::ReadingArguments,
    session::Session,
    writing_arguments::{FormatArgument, WritingArguments},
};
use nvfp4::checkpoint::{convert, convert::ConvertOptions};
use std::{io::Write, path::PathBuf};

/// Convert an NVFP4 checkpoint (ModelOpt, compressed-tensors, torchao, GGUF) to another format without requantizing
///
/// Codes and block scales keep their values. Global scales do too, but for the last bit of a reciprocal where one format
/// multiplies and the other divides; the report names such modules. DST is complete or absent.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The checkpoint: a directory, a safetensors file or a GGUF file
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// The directory to write
    #[arg(value_name = "DST")]
    target: PathBuf,
    /// The format to write
    #[arg(long, value_enum)]
    format: FormatArgument,
    /// Leave input scales out: the output is W4A16
    #[arg(long)]
    weight_only: bool,
    #[command(flatten)]
    reading: ReadingArguments,
    #[command(flatten)]
    writing: WritingArguments,
}

const EXAMPLES: &str = "\
Examples:
  nvfp4 convert model-ct model-modelopt --format modelopt
  nvfp4 convert model.gguf model-ct --format compressed-tensors --weight-only";

pub(crate) fn run(arguments: &Arguments, session: &mut Session) -> CommandResult {
    let mut options = ConvertOptions::new(arguments.format.format());
    options.weight_only = arguments.weight_only;
    options.open = arguments.reading.options();
    options.write = arguments.writing.options();
    let bar = Bar::bytes(session);
    let report = convert(&arguments.source, &arguments.target, &options, &bar)?;
    drop(bar);
    if session.json {
        session.out.json(&report)?;
        return Ok(Outcome::Yes);
    }
    let out = &mut session.out;
    let rounded: Vec<&str> = report.layers.iter().filter(|l| !l.exact).map(|l| l.name.as_str()).collect();
    notices::write("Global scales rounded in the last bit, by a reciprocal", &rounded, out)?;
    notices::write("Warnings", &report.warnings, out)?;
    if !rounded.is_empty() || !report.warnings.is_empty() {
        writeln!(out)?;
    }
    writeln!(
        out,
        "{}: {} converted from {}, {} in {}",
        arguments.target.display(),
        quantities::count(report.layers.len(), "module"),
        report.from,
        quantities::bytes(report.written.tensor_bytes),
        quantities::count(report.written.files, "file"),
    )?;
    Ok(Outcome::Yes)
}
