//! `nvfp4 bench`: how fast layers run here, beside an f32 GEMM and the speed of memory.

use crate::{
    backend_arguments::BackendArguments,
    exit::{CommandResult, Failure, Outcome},
    f32_gemm,
    layer_arguments::{DTypeArgument, SchemeArgument},
    progress::Bar,
    quantities,
    session::Session,
    table::{Align, Table},
    timing,
};
use anyhow::anyhow;
use half::{bf16, f16};
use nvfp4::{
    ActivationScheme, DType, FloatSlice, FloatSliceMut, Linear, LinearOptions, MatrixMut, MatrixRef,
    NvFp4LinearLayer, Policy, Registry,
    checkpoint::ErrorSums,
    quantize_weight::{WeightQuantizer, global_scale_of, quantize_weight, weight_amax},
    select::Numerics,
};
use rayon::prelude::*;
use serde::Serialize;
use std::{hint::black_box, io::Write};

/// Time NVFP4 layers on this machine, beside an f32 matrix product and the speed of memory
///
/// All are timed in turns, and the best time of each counts; ratios within one run mean more than times. Weights and
/// activations are random. `of memory` is the rate at which a layer's 4-bit weights are read, as a part of the rate at
/// which this machine reads memory: with few rows, that is the limit.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Output features of each layer
    #[arg(long, short, value_delimiter = ',', default_value = "4096,14336")]
    n: Vec<usize>,
    /// Input features of each layer, as many as --n
    #[arg(long, short, value_delimiter = ',', default_value = "4096,4096")]
    k: Vec<usize>,
    /// Rows of activations (tokens) in a call
    #[arg(long, short, value_delimiter = ',', default_value = "1,16,128")]
    m: Vec<usize>,
    /// What happens to the activations
    #[arg(long, value_enum, value_delimiter = ',', default_value = "w4a16,w4a4")]
    scheme: Vec<SchemeArgument>,
    /// Element type of activations and outputs
    #[arg(long, value_enum, default_value_t = DTypeArgument::Bf16)]
    dtype: DTypeArgument,
    /// How often each is timed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    backend: BackendArguments,
}

const EXAMPLES: &str = "\
Examples:
  nvfp4 bench
  nvfp4 bench --n 14336,4096 --k 4096,14336 --m 1,8,64 --json";

#[derive(Debug, Serialize)]
struct Report {
    device: String,
    threads: usize,
    /// Best rate at which memory was read, in the whole run.
    read_bytes_per_second: f64,
    results: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    n: usize,
    k: usize,
    m: usize,
    scheme: String,
    backend: &'static str,
    seconds: f64,
    /// The f32 product of the same shape, timed in turns with the layer.
    f32_seconds: f64,
    /// `f32_seconds / seconds`.
    speedup: f64,
    /// 2 m n k operations in `seconds`.
    gflops: f64,
    /// Bytes of the layer's weights.
    weight_bytes: usize,
    /// Rate at which they are read, as a part of the rate of memory in the same turns. Above 1 if they fit a cache.
    of_memory: f64,
    /// ‖y − f32‖ / ‖f32‖.
    relative_error: f64,
}

pub(crate) fn run(arguments: &Arguments, session: &mut Session) -> CommandResult {
    let shapes = shapes(arguments)?;
    let registry = Registry::installed();
    let dtype = arguments.dtype.dtype();
    // What is timed is what was asked for.
    let policy = Policy { numerics: Numerics::Checkpoint, ..arguments.backend.policy(&registry)? };
    let options = LinearOptions::new().with_policy(policy).with_dtypes(dtype, dtype);
    let mut report = Report {
        device: nvfp4::host_device().to_string(),
        threads: rayon::current_num_threads(),
        read_bytes_per_second: 0.0,
        results: Vec::new(),
    };
    let memory = MemoryProbe::new();
    let bar = Bar::steps(session, (shapes.len() * arguments.m.len()) as u64);
    for (n, k) in shapes {
        let subject = Subject::new(n, k, &arguments.scheme, &options)?;
        for &m in &arguments.m {
            bar.step(format!("n = {n}, k = {k}, m = {m}"));
            let (bytes_per_second, rows) = subject.measure(m, dtype, arguments.rounds as usize, &memory)?;
            report.read_bytes_per_second = report.read_bytes_per_second.max(bytes_per_second);
            report.results.extend(rows);
        }
    }
    drop(bar);
    if session.json {
        session.out.json(&report)?;
    } else {
        write_text(&report, session)?;
    }
    Ok(Outcome::Yes)
}

/// Pairs of `n` and `k`.
fn shapes(arguments: &Arguments) -> Result<Vec<(usize, usize)>, Failure> {
    let (n, k) = (&arguments.n, &arguments.k);
    if n.len() != k.len() {
        return Err(Failure::Usage(anyhow!("--n has {} values, --k has {}: expected as many", n.len(), k.len())));
    }
    if let Some(zero) = n.iter().chain(&arguments.m).find(|&&size| size == 0) {
        return Err(Failure::Usage(anyhow!("--n and --m must not be {zero}")));
    }
    if let Some(odd) = k.iter().find(|&&k| k == 0 || !k.is_multiple_of(nvfp4::BLOCK_SIZE)) {
        return Err(Failure::Usage(anyhow!("--k must be a multiple of {}, found {odd}", nvfp4::BLOCK_SIZE)));
    }
    Ok(n.iter().copied().zip(k.iter().copied()).collect())
}

/// One weight, dense and in layers.
struct Subject {
    n: usize,
    k: usize,
    dense: Vec<f32>,
    weight_bytes: usize,
    layers: Vec<(ActivationScheme, Linear)>,
}

/// Standard deviation of the random weights; that of the activations is 1.
const WEIGHT_DEVIATION: f32 = 0.02;

impl Subject {
    fn new(n: usize, k: usize, schemes: &[SchemeArgument], options: &LinearOptions) -> Result<Self, Failure> {
        let elements = n.checked_mul(k).filter(|elements| elements.checked_mul(size_of::<f32>()).is_some());
        let Some(elements) = elements else {
            return Err(Failure::Usage(anyhow!("n = {n}, k = {k} is too large")));
        };
        let mut dense = random_values(elements, 1);
        dense.par_iter_mut().for_each(|value| *value *= WEIGHT_DEVIATION);
        let weights = quantize_weight(MatrixRef::new(&dense[..], n, k)?, WeightQuantizer::ModelOpt, None)?;
        let weight_bytes = weights.bytes();
        // What a calibration with activations like the ones used here would give.
        let sample = random_values(1 << 16, 2);
        let amax = weight_amax(MatrixRef::new(&sample[..], 1, sample.len())?)?;
        let input_scale = global_scale_of(amax, DType::F32, WeightQuantizer::ModelOpt)?;
        let layers = schemes.iter().map(|scheme| {
            let activation = scheme.activation();
            let layer = NvFp4LinearLayer {
                name: format!("random [{n}, {k}]"),
                weights: weights.clone(),
                activation,
                input_scale: (activation == ActivationScheme::Nvfp4Static).then_some(input_scale),
                bias: None,
            };
            Ok((activation, Linear::load(&layer, options).map_err(Failure::loading)?))
        });
        Ok(Self { n, k, weight_bytes, layers: layers.collect::<Result<_, Failure>>()?, dense })
    }

    /// Times the f32 product, every layer and the memory in turns. Returns the rate of memory, and a row a layer.
    fn measure(
        &self,
        m: usize,
        dtype: DType,
        rounds: usize,
        memory: &MemoryProbe,
    ) -> Result<(f64, Vec<Row>), Failure> {
        let (n, k) = (self.n, self.k);
        let too_large = || Failure::Usage(anyhow!("m = {m} is too large for n = {n}, k = {k}"));
        let inputs = m.checked_mul(k).ok_or_else(too_large)?;
        let outputs = m.checked_mul(n).ok_or_else(too_large)?;
        let x = Values::rounded(&random_values(inputs, 3), dtype);
        let wide_x = x.widened();
        let mut wide_y = vec![0.0; outputs];
        let mut y: Vec<Values> = self.layers.iter().map(|_| Values::rounded(&vec![0.0; outputs], dtype)).collect();
        let best = timing::best_of(rounds, self.layers.len() + 2, |piece| -> Result<(), nvfp4::Error> {
            match piece {
                0 => memory.read(),
                1 => f32_gemm::multiply(&wide_x, &self.dense, &mut wide_y, m, n, k),
                _ => {
                    let ((_, linear), y) = (&self.layers[piece - 2], &mut y[piece - 2]);
                    linear.forward(MatrixRef::new(x.slice(), m, k)?, MatrixMut::new(y.slice_mut(), m, n)?)?;
                }
            }
            Ok(())
        })?;
        let bytes_per_second = memory.bytes() as f64 / best[0];
        let rows = self.layers.iter().zip(&y).zip(&best[2..]).map(|(((scheme, linear), y), &seconds)| Row {
            n,
            k,
            m,
            scheme: scheme.to_string(),
            backend: linear.decision().chosen.as_str(),
            seconds,
            f32_seconds: best[1],
            speedup: best[1] / seconds,
            gflops: 2.0 * m as f64 * n as f64 * k as f64 / seconds / 1e9,
            weight_bytes: self.weight_bytes,
            of_memory: self.weight_bytes as f64 / seconds / bytes_per_second,
            relative_error: relative_error(&wide_y, &y.widened()),
        });
        Ok((bytes_per_second, rows.collect()))
    }
}

fn relative_error(exact: &[f32], found: &[f32]) -> f64 {
    let mut sums = ErrorSums::default();
    sums.add(exact, found);
    sums.measures().relative_error
}

/// Elements of a type that is chosen at run time.
enum Values {
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
    F32(Vec<f32>),
}

impl Values {
    fn rounded(values: &[f32], dtype: DType) -> Self {
        match dtype {
            DType::Bf16 => Self::Bf16(values.iter().map(|&v| bf16::from_f32(v)).collect()),
            DType::F16 => Self::F16(values.iter().map(|&v| f16::from_f32(v)).collect()),
            _ => Self::F32(values.to_vec()),
        }
    }
    fn slice(&self) -> FloatSlice<'_> {
        match self {
            Self::Bf16(v) => FloatSlice::Bf16(v),
            Self::F16(v) => FloatSlice::F16(v),
            Self::F32(v) => FloatSlice::F32(v),
        }
    }
    fn slice_mut(&mut self) -> FloatSliceMut<'_> {
        match self {
            Self::Bf16(v) => FloatSliceMut::Bf16(v),
            Self::F16(v) => FloatSliceMut::F16(v),
            Self::F32(v) => FloatSliceMut::F32(v),
        }
    }
    fn widened(&self) -> Vec<f32> {
        let mut wide = vec![0.0; self.slice().len()];
        self.slice().widen_into(&mut wide);
        wide
    }
}

/// Values of about normal distribution with deviation 1, the same for the same seed.
fn random_values(len: usize, seed: u64) -> Vec<f32> {
    // SplitMix64 of the index: any piece can be made on any thread.
    let value = |i: usize| {
        let mut z = (seed << 48).wrapping_add(i as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        // The sum of four uniform numbers of 16 bits has mean 2 · 65535 and variance (65536² - 1) / 3.
        let sum: u64 = (0..4).map(|part| (z >> (16 * part)) & 0xffff).sum();
        (sum as f32 - 131_070.0) / 37_837.2
    };
    (0..len).into_par_iter().map(value).collect()
}

/// Reads a buffer that is larger than the caches of most machines, with all threads.
struct MemoryProbe(Vec<u64>);

impl MemoryProbe {
    const BYTES: usize = 256 << 20;

    fn new() -> Self {
        Self(vec![1; Self::BYTES / size_of::<u64>()])
    }
    fn bytes(&self) -> usize {
        Self::BYTES
    }
    fn read(&self) {
        let sum: u64 =
            self.0.par_chunks(1 << 17).map(|part| part.iter().fold(0, |sum: u64, v| sum.wrapping_add(*v))).sum();
        black_box(sum);
    }
}

fn write_text(report: &Report, session: &mut Session) -> Result<(), Failure> {
    let out = &mut session.out;
    writeln!(
        out,
        "{}, {}, memory is read at {:.1} GB/s\n",
        report.device,
        quantities::count(report.threads, "thread"),
        report.read_bytes_per_second / 1e9
    )?;
    let right = |name| (name, Align::Right);
    let mut table = Table::new([
        right("n"),
        right("k"),
        right("m"),
        ("scheme", Align::Left),
        ("backend", Align::Left),
        right("time"),
        right("f32 time"),
        right("speedup"),
        right("GFLOP/s"),
        right("of memory"),
        right("rel. error"),
    ]);
    for row in &report.results {
        table.row([
            row.n.to_string(),
            row.k.to_string(),
            row.m.to_string(),
            row.scheme.clone(),
            row.backend.to_string(),
            quantities::seconds(row.seconds),
            quantities::seconds(row.f32_seconds),
            quantities::factor(row.speedup),
            format!("{:.0}", row.gflops),
            format!("{:.0} %", 100.0 * row.of_memory),
            format!("{:.4}", row.relative_error),
        ]);
    }
    table.write(out)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_values_look_normal_and_are_the_same_again() {
        let values = random_values(100_000, 1);
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let variance = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        assert_eq!(values[..10], random_values(10, 1)[..]);
        assert_ne!(values[..10], random_values(10, 2)[..]);
    }
}
