//! `nvfp4 verify`: every fault of a checkpoint, before a GPU is touched.

use crate::{
    exit::{CommandResult, Failure, Outcome},
    progress::Bar,
    quantities,
    reading_arguments::ReadingArguments,
    session::Session,
    table::{Align, Table},
};
use anyhow::Context;
use nvfp4::checkpoint::verify::{VerifyOptions, VerifyReport, verify};
use std::{io::Write, path::PathBuf};

/// Check a checkpoint: name tensor, row and column of every fault, before a GPU is touched
///
/// Reads everything: files and headers, configuration, types and shapes, every scale, every unquantized value, fused
/// modules whose parts do not fit. With --original, also the error of each layer and its worst rows, and what explains an
/// error that is too large: a fault of the file (inverted global scale, order of scales or nibbles) or a limit of the
/// format.
///
/// The exit code is 1 if there are errors.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The checkpoint: a directory, a safetensors file or a GGUF file
    path: PathBuf,
    /// The dense model that it was made from: a directory or a safetensors file
    #[arg(long, value_name = "SRC")]
    original: Option<PathBuf>,
    /// Warnings make the exit code 1, too
    #[arg(long)]
    strict: bool,
    /// Places that --json lists of each kind of fault in each tensor; all are counted
    #[arg(long, value_name = "NUMBER", default_value_t = VerifyOptions::default().places)]
    places: usize,
    /// Rows of each layer that are listed, the farthest from the original first
    #[arg(long, value_name = "NUMBER", default_value_t = VerifyOptions::default().worst_rows)]
    worst_rows: usize,
    #[command(flatten)]
    reading: ReadingArguments,
}

const EXAMPLES: &str = "\
Examples:
  nvfp4 verify my-model-nvfp4
  nvfp4 verify my-model-nvfp4 --original my-model --json";

pub(crate) fn run(arguments: &Arguments, session: &mut Session) -> CommandResult {
    // A path that leads nowhere is no faulty checkpoint.
    std::fs::metadata(&arguments.path).with_context(|| format!("`{}`", arguments.path.display()))?;
    let mut options = VerifyOptions::default();
    options.original = arguments.original.clone();
    options.open = arguments.reading.options();
    options.places = arguments.places;
    options.worst_rows = arguments.worst_rows;
    let bar = Bar::bytes(session);
    let report = verify(&arguments.path, &options, &bar)?;
    drop(bar);
    if session.json {
        session.out.json(&report)?;
    } else {
        write_text(&report, arguments.original.is_some(), session)?;
    }
    let sound = report.is_sound() && !(arguments.strict && report.warnings > 0);
    Ok(if sound { Outcome::Yes } else { Outcome::No })
}

fn write_text(report: &VerifyReport, with_original: bool, session: &mut Session) -> Result<(), Failure> {
    let out = &mut session.out;
    writeln!(out, "{}: {}", report.path.display(), report.dialect.as_deref().unwrap_or("cannot be opened"))?;
    if with_original && !report.layers.is_empty() {
        writeln!(out)?;
        write_errors(report, out)?;
    }
    if !report.findings.is_empty() {
        writeln!(out)?;
    }
    for finding in &report.findings {
        writeln!(out, "{finding}")?;
    }
    writeln!(
        out,
        "\n{}: {}, {} in {}",
        if report.is_sound() { "sound" } else { "FAULTY" },
        quantities::count(report.errors, "error"),
        quantities::count(report.warnings, "warning"),
        quantities::count(report.layers.len(), "NVFP4 module"),
    )?;
    Ok(())
}

/// How far each layer is from the original.
fn write_errors(report: &VerifyReport, out: &mut impl Write) -> std::io::Result<()> {
    let right = |name| (name, Align::Right);
    let mut table = Table::new([
        ("module", Align::Left),
        right("n"),
        right("k"),
        right("rel. error"),
        right("cosine"),
        ("worst rows", Align::Left),
        ("explained by", Align::Left),
    ]);
    for layer in &report.layers {
        let (error, cosine) = layer.error.map_or(Default::default(), |error| {
            (format!("{:.4}", error.relative_error), format!("{:.5}", error.cosine))
        });
        let rows: Vec<String> =
            layer.worst_rows.iter().map(|row| format!("{} ({:.3})", row.row, row.relative_error)).collect();
        table.row([
            layer.name.clone(),
            layer.out_features.to_string(),
            layer.in_features.to_string(),
            error,
            cosine,
            rows.join(", "),
            layer.diagnosis.map(|diagnosis| diagnosis.to_string()).unwrap_or_default(),
        ]);
    }
    table.write(out)
}
