//! `nvfp4 demo`: the whole way, on real data that is part of the program.

use crate::{
    backend_arguments::BackendArguments,
    decision_report::DecisionReport,
    embedded_model::{self, EmbeddedModel},
    exit::{CommandResult, Failure, Outcome},
    f32_gemm,
    progress::Bar,
    quantities,
    session::Session,
    table::{Align, Table},
    timing,
    writing_arguments::FormatArgument,
};
use anyhow::Context;
use half::bf16;
use nvfp4::{
    Linear, LinearOptions, MatrixMut, MatrixRef, NvFp4LinearLayer, Policy, Registry,
    checkpoint::{
        Checkpoint, ErrorSums,
        quantize::{Calibration, QuantizeOptions, QuantizeReport, quantize},
    },
    select::Numerics,
};
use serde::Serialize;
use std::{io::Write, path::PathBuf, time::Instant};

/// Quantize, load and run a real transformer block, offline, and show error, size and speed of each layer
///
/// The six linear layers of block 0 of all-MiniLM-L6-v2, and the inputs that 36 sentences give them, are part of this
/// program. The demo quantizes the layers to an NVFP4 checkpoint, reads it back, chooses a backend, runs every layer with
/// 16-bit activations (W4A16) and with quantized ones (W4A4), and compares the outputs and the times with an f32 matrix
/// product of the original weights.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Keep the checkpoint in this directory, which must not exist [default: a temporary one, removed at the end]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Format of the checkpoint
    #[arg(long, value_enum, default_value_t = FormatArgument::CompressedTensors)]
    format: FormatArgument,
    /// How often each layer is timed
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    backend: BackendArguments,
}

const EXAMPLES: &str = "\
Examples:
  nvfp4 demo
  nvfp4 demo --out demo-checkpoint && nvfp4 inspect demo-checkpoint";

#[derive(Debug, Serialize)]
struct Report {
    model: &'static str,
    sentences: usize,
    tokens: usize,
    /// The checkpoint, if it was kept.
    checkpoint: Option<PathBuf>,
    dialect: String,
    quantize_seconds: f64,
    device: String,
    /// The choice for the first layer with 16-bit activations.
    w4a16: DecisionReport,
    /// The choice for the first layer with quantized activations.
    w4a4: DecisionReport,
    layers: Vec<Row>,
    bytes_before: u64,
    bytes_after: u64,
}

#[derive(Debug, Serialize)]
struct Row {
    layer: String,
    n: usize,
    k: usize,
    scheme: &'static str,
    backend: &'static str,
    /// Of the output, against f32.
    relative_error: f64,
    cosine: f64,
    /// Of the weight, against the original.
    weight_relative_error: f64,
    bytes_before: u64,
    bytes_after: u64,
    timings: Vec<Timing>,
}

#[derive(Debug, Serialize)]
struct Timing {
    /// Tokens in the call.
    m: usize,
    seconds: f64,
    f32_seconds: f64,
    /// `f32_seconds / seconds`.
    speedup: f64,
}

/// One layer in its two forms, and what to compare it with.
struct Subject {
    weights: Vec<f32>,
    input: Vec<f32>,
    bf16_input: Vec<bf16>,
    expected: Vec<f32>,
    linears: [(&'static str, Linear); 2],
}

pub(crate) fn run(arguments: &Arguments, session: &mut Session) -> CommandResult {
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let registry = Registry::installed();
    let policy = arguments.backend.policy(&registry)?;
    let model = EmbeddedModel::unpack(directory.path())?;
    let target = arguments.out.clone().unwrap_or_else(|| directory.path().join("nvfp4"));

    let mut options = QuantizeOptions::new(arguments.format.format());
    options.calibration = Some(Calibration::open(&model.calibration)?);
    let bar = Bar::bytes(session);
    let start = Instant::now();
    let quantized = quantize(&model.dense, &target, &options, &bar)?;
    let quantize_seconds = start.elapsed().as_secs_f64();
    drop(bar);

    let checkpoint = Checkpoint::open(&target)?;
    let modules = model.modules();
    let bar = Bar::steps(session, modules.len() as u64);
    let mut layers = Vec::new();
    let mut decisions: Option<[DecisionReport; 2]> = None;
    let mut tokens = 0;
    for module in &modules {
        bar.step(module);
        let layer = checkpoint.linear(module)?;
        let subject = Subject::new(&model, &layer, &policy)?;
        tokens = subject.input.len() / layer.weights.in_features();
        decisions.get_or_insert_with(|| {
            subject.linears.each_ref().map(|(_, linear)| DecisionReport::from(linear.decision()))
        });
        layers.extend(subject.measure(module, tokens, arguments.rounds as usize, &quantized)?);
    }
    drop(bar);
    let [w4a16, w4a4] = decisions.context("the demo's data holds no layer")?;
    let report = Report {
        model: embedded_model::TITLE,
        sentences: embedded_model::SENTENCES,
        tokens,
        checkpoint: arguments.out.clone(),
        dialect: checkpoint.dialect().to_string(),
        quantize_seconds,
        device: nvfp4::host_device().to_string(),
        w4a16,
        w4a4,
        bytes_before: quantized.layers.iter().map(|layer| layer.bytes_before).sum(),
        bytes_after: quantized.layers.iter().map(|layer| layer.bytes_after).sum(),
        layers,
    };
    if session.json {
        session.out.json(&report)?;
    } else {
        write_text(&report, session)?;
    }
    Ok(Outcome::Yes)
}

impl Subject {
    fn new(model: &EmbeddedModel, layer: &NvFp4LinearLayer<'_>, policy: &Policy) -> Result<Self, Failure> {
        let load = |numerics| {
            let policy = Policy { numerics, ..policy.clone() };
            // Activations as the model has them; outputs in f32, so that their rounding is not part of the error.
            let options =
                LinearOptions::new().with_policy(policy).with_dtypes(nvfp4::DType::Bf16, nvfp4::DType::F32);
            Linear::load(layer, &options).map_err(Failure::loading)
        };
        let linears = [("W4A16", load(Numerics::WeightOnly)?), ("W4A4", load(Numerics::Checkpoint)?)];
        let (n, k) = (layer.weights.out_features(), layer.weights.in_features());
        let (weights, input) = (model.weight(&layer.name)?, model.input(&layer.name)?);
        let tokens = input.len() / k;
        let mut expected = vec![0.0; tokens * n];
        f32_gemm::multiply(&input, &weights, &mut expected, tokens, n, k);
        let bias = model.bias(&layer.name)?;
        for row in expected.chunks_exact_mut(n) {
            row.iter_mut().zip(&bias).for_each(|(y, b)| *y += b);
        }
        let bf16_input = input.iter().map(|&x| bf16::from_f32(x)).collect();
        Ok(Self { weights, input, bf16_input, expected, linears })
    }

    /// A row of the table for each form of the layer.
    fn measure(
        &self,
        module: &str,
        tokens: usize,
        rounds: usize,
        quantized: &QuantizeReport,
    ) -> Result<Vec<Row>, Failure> {
        let report = (quantized.layers.iter())
            .find(|layer| layer.name == module)
            .with_context(|| format!("`{module}` was not quantized"))?;
        let (n, k) = (report.out_features, report.in_features);
        let times: Vec<(usize, Vec<f64>)> = [tokens, 1]
            .into_iter()
            .map(|m| Ok((m, self.time(m, n, k, rounds)?)))
            .collect::<Result<_, Failure>>()?;
        let mut rows = Vec::new();
        for (form, (scheme, linear)) in self.linears.iter().enumerate() {
            let mut output = vec![0.0f32; tokens * n];
            linear.forward(
                MatrixRef::new(&self.bf16_input[..], tokens, k)?,
                MatrixMut::new(&mut output[..], tokens, n)?,
            )?;
            let mut sums = ErrorSums::default();
            sums.add(&self.expected, &output);
            let error = sums.measures();
            let timing = |(m, times): &(usize, Vec<f64>)| {
                let (f32_seconds, seconds) = (times[0], times[form + 1]);
                Timing { m: *m, seconds, f32_seconds, speedup: f32_seconds / seconds }
            };
            rows.push(Row {
                layer: module.to_string(),
                n,
                k,
                scheme,
                backend: linear.decision().chosen.as_str(),
                relative_error: error.relative_error,
                cosine: error.cosine,
                weight_relative_error: report.error.relative_error,
                bytes_before: report.bytes_before,
                bytes_after: report.bytes_after,
                timings: times.iter().map(timing).collect(),
            });
        }
        Ok(rows)
    }

    /// Best times of the f32 product and of each form of the layer, in turns, for the first `m` tokens.
    fn time(&self, m: usize, n: usize, k: usize, rounds: usize) -> Result<Vec<f64>, nvfp4::Error> {
        let mut output = vec![0.0f32; m * n];
        timing::best_of(rounds, 1 + self.linears.len(), |piece| {
            match piece.checked_sub(1).and_then(|form| self.linears.get(form)) {
                None => f32_gemm::multiply(&self.input[..m * k], &self.weights, &mut output, m, n, k),
                Some((_, linear)) => linear.forward(
                    MatrixRef::new(&self.bf16_input[..m * k], m, k)?,
                    MatrixMut::new(&mut output[..], m, n)?,
                )?,
            }
            Ok(())
        })
    }
}

fn write_text(report: &Report, session: &mut Session) -> Result<(), Failure> {
    let out = &mut session.out;
    writeln!(
        out,
        "The linear layers of {}, with the inputs that {} sentences ({} tokens) give them.\n",
        report.model, report.sentences, report.tokens
    )?;
    let kept = match &report.checkpoint {
        Some(path) => format!("`{}`", path.display()),
        None => "a temporary directory (keep it with --out DIR)".into(),
    };
    writeln!(
        out,
        "Quantized to a {} checkpoint in {kept}, in {}, and read back.\n",
        report.dialect,
        quantities::seconds(report.quantize_seconds)
    )?;
    report.w4a16.write(&format!("Activations in 16 bits, on {}", report.device), out)?;
    writeln!(out)?;
    if report.w4a4.refuses_as(&report.w4a16) {
        report.w4a4.write_answer("Activations quantized", out)?;
    } else {
        report.w4a4.write("Activations quantized", out)?;
    }
    writeln!(out)?;

    let right = |name: &str| (name.to_string(), Align::Right);
    let left = |name: &str| (name.to_string(), Align::Left);
    let mut columns = vec![left("layer"), right("n"), right("k"), left("scheme"), left("backend")];
    columns.extend(["rel. error", "cosine", "bf16", "NVFP4"].map(right));
    let rows_of_timings = report.layers.first().map_or(&[][..], |row| &row.timings);
    for timing in rows_of_timings {
        columns.push(right(&format!("{}: time", quantities::count(timing.m, "token"))));
        columns.push(right("against f32"));
    }
    let mut table = Table::new(columns);
    for row in &report.layers {
        let mut cells = vec![
            row.layer.trim_start_matches("encoder.layer.0.").to_string(),
            row.n.to_string(),
            row.k.to_string(),
            row.scheme.to_string(),
            row.backend.to_string(),
            format!("{:.4}", row.relative_error),
            format!("{:.5}", row.cosine),
            quantities::bytes(row.bytes_before),
            quantities::bytes(row.bytes_after),
        ];
        for timing in &row.timings {
            cells.push(quantities::seconds(timing.seconds));
            cells.push(quantities::factor(timing.speedup));
        }
        table.row(cells);
    }
    table.write(out)?;
    writeln!(
        out,
        "\nAll weights: {} -> {}. Errors are ‖y - f32‖ / ‖f32‖ of the outputs; `against f32` is the time of an f32 matrix\n\
         product of the same shape over the layer's time (above 1: the layer is faster), best of several in turns.",
        quantities::bytes(report.bytes_before),
        quantities::bytes(report.bytes_after),
    )?;
    Ok(())
}
