//! `nvfp4 explain`: which backend runs a layer on a device, and why not the others.

use crate::{
    backend_arguments::BackendArguments,
    decision_report::DecisionReport,
    exit::{CommandResult, Failure, Outcome},
    layer_arguments::{DTypeArgument, SchemeArgument},
    session::Session,
};
use anyhow::anyhow;
use nvfp4::{
    DeviceFacts, Explanation, NvFp4LinearLayerConfig, Registry, WeightScaleKind, requirements, select::Numerics,
    vllm,
};
use serde::Serialize;
use std::io::Write;

/// Say which backend runs a layer on a GPU (which need not be here) or on this CPU, and why not the others
///
/// The answer comes from the same tables that choose when a layer is loaded. It has two parts: what this build of nvfp4
/// does, and what it would do with every backend installed.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    device: DeviceArguments,
    /// Output features (rows of the weight)
    #[arg(long, short)]
    n: usize,
    /// Input features (columns of the weight), a multiple of 16
    #[arg(long, short)]
    k: usize,
    /// What happens to the activations
    #[arg(long, value_enum, default_value_t = SchemeArgument::W4a4)]
    scheme: SchemeArgument,
    /// What to compute if the activations are quantized
    #[arg(long, value_enum, default_value_t = NumericsArgument::Auto)]
    numerics: NumericsArgument,
    /// Element type of the activations
    #[arg(long, value_enum, default_value_t = DTypeArgument::Bf16)]
    dtype: DTypeArgument,
    /// Element type of the output [default: that of the activations]
    #[arg(long, value_enum)]
    output_dtype: Option<DTypeArgument>,
    /// The weights have several global scales (fused layers with unlike scales)
    #[arg(long)]
    per_row: bool,
    /// A row of the output must not depend on how many rows a call has
    #[arg(long)]
    batch_invariant: bool,
    /// CUDA version of the driver, e.g. 12.8 [default: new enough]
    #[arg(long, value_name = "VERSION", value_parser = cuda_version, conflicts_with = "cpu")]
    driver_cuda: Option<u32>,
    /// cuDNN version, e.g. 9.15.0 [default: new enough, or none if --driver-cuda is given]
    #[arg(long, value_name = "VERSION", value_parser = cudnn_version, conflicts_with = "cpu")]
    cudnn: Option<u32>,
    /// Answer as if every backend were installed; the exit code then follows that answer
    #[arg(long)]
    assume_built: bool,
    /// Also say what another engine would do
    #[arg(long, value_enum)]
    compare: Option<Engine>,
    #[command(flatten)]
    backend: BackendArguments,
}

const EXAMPLES: &str = "\
Examples:
  nvfp4 explain --gpu sm_121 --n 4096 --k 14336
  nvfp4 explain --gpu B200 --n 4096 --k 4096 --scheme w4a16 --compare vllm
  nvfp4 explain --cpu --n 4096 --k 4096 --json";

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct DeviceArguments {
    /// A GPU by name (`RTX 5090`, `B200`, `DGX Spark`) or compute capability (`sm_121`, `12.1`)
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,
    /// This machine's CPU
    #[arg(long)]
    cpu: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum NumericsArgument {
    /// W4A4, but weight-only on GPUs without FP4 or if no backend computes W4A4
    Auto,
    /// W4A4 or nothing
    Checkpoint,
    /// Weight-only (W4A16) or nothing
    WeightOnly,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Engine {
    /// vLLM 0.33.0 with FlashInfer 0.7.2.post1, in its usual installation
    Vllm,
}

#[derive(Debug, Serialize)]
struct Report {
    device: Device,
    layer: Layer,
    this_build: DecisionReport,
    with_every_backend: DecisionReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    vllm: Option<Vllm>,
}

#[derive(Debug, Serialize)]
struct Device {
    name: String,
    /// e.g. `sm_121`; null for a CPU.
    compute_capability: Option<String>,
}

#[derive(Debug, Serialize)]
struct Layer {
    scheme: String,
    n: usize,
    k: usize,
    input_dtype: String,
    output_dtype: String,
    per_row_scale: bool,
    batch_invariant: bool,
}

/// What vLLM would do.
#[derive(Debug, Serialize)]
struct Vllm {
    /// The kernel class.
    kernel: Option<&'static str>,
    /// The backend here that stands for the class.
    backend: Option<&'static str>,
    /// The exception, if there is no kernel.
    error: Option<String>,
    /// What it would log.
    logs: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments, session: &mut Session) -> CommandResult {
    let registry = Registry::installed();
    let mut policy = arguments.backend.policy(&registry)?;
    policy.numerics = match arguments.numerics {
        NumericsArgument::Auto => Numerics::Auto,
        NumericsArgument::Checkpoint => Numerics::Checkpoint,
        NumericsArgument::WeightOnly => Numerics::WeightOnly,
    };
    let device = device(arguments)?;
    let config = config(arguments)?;
    let explanation = registry.explain(&device, &config, &policy);
    let report = report(&explanation, arguments);
    if session.json {
        session.out.json(&report)?;
    } else {
        write_text(&report, arguments.assume_built, session)?;
    }
    let answer = if arguments.assume_built { &report.with_every_backend } else { &report.this_build };
    Ok(if answer.chosen.is_some() { Outcome::Yes } else { Outcome::No })
}

fn device(arguments: &Arguments) -> Result<DeviceFacts, Failure> {
    let Some(name) = &arguments.device.gpu else { return Ok(nvfp4::host_device()) };
    let mut device = nvfp4::gpu(name).map_err(Failure::usage)?;
    if let DeviceFacts::Cuda(facts) = &mut device {
        facts.driver_cuda = arguments.driver_cuda;
        facts.cudnn = arguments.cudnn;
    }
    Ok(device)
}

fn config(arguments: &Arguments) -> Result<NvFp4LinearLayerConfig, Failure> {
    let (n, k) = (arguments.n, arguments.k);
    if n == 0 {
        return Err(Failure::Usage(anyhow!("--n must not be zero")));
    }
    if k == 0 || !k.is_multiple_of(nvfp4::BLOCK_SIZE) {
        return Err(Failure::Usage(anyhow!(
            "--k must be a multiple of {}, found {k}: one block scale covers {0} values along k",
            nvfp4::BLOCK_SIZE
        )));
    }
    let input = arguments.dtype.dtype();
    let output = arguments.output_dtype.map_or(input, DTypeArgument::dtype);
    let kind = if arguments.per_row { WeightScaleKind::PerRow } else { WeightScaleKind::PerTensor };
    Ok(NvFp4LinearLayerConfig::w4a4(n, k)
        .with_activation(arguments.scheme.activation())
        .with_dtypes(input, output)
        .with_weight_scale_kind(kind)
        .with_batch_invariant(arguments.batch_invariant))
}

fn report(explanation: &Explanation, arguments: &Arguments) -> Report {
    let config = &explanation.config;
    let name = match &explanation.device {
        DeviceFacts::Cpu(facts) => facts.name.clone(),
        DeviceFacts::Cuda(facts) => facts.name.clone(),
        other => other.to_string(),
    };
    Report {
        device: Device {
            name,
            compute_capability: explanation.device.compute_capability().map(|cc| cc.to_string()),
        },
        layer: Layer {
            scheme: config.activation.to_string(),
            n: config.out_features,
            k: config.in_features,
            input_dtype: config.input_dtype.to_string(),
            output_dtype: config.output_dtype.to_string(),
            per_row_scale: config.weight_scale_kind == WeightScaleKind::PerRow,
            batch_invariant: config.batch_invariant,
        },
        this_build: (&explanation.here).into(),
        with_every_backend: (&explanation.if_all_were_installed).into(),
        vllm: arguments.compare.map(|Engine::Vllm| ask_vllm(&explanation.device, config)),
    }
}

fn ask_vllm(device: &DeviceFacts, config: &NvFp4LinearLayerConfig) -> Vllm {
    let mut environment = vllm::Environment::cuda(device.compute_capability().map_or(0, |cc| cc.number()));
    if device.compute_capability().is_none() {
        environment.platform = vllm::Platform::Other;
        environment.compute_capability = None;
    }
    let mut request = vllm::Request::new(environment, !config.activation.is_quantized());
    request.batch_invariant = config.batch_invariant;
    let selection = vllm::init_nvfp4_linear_kernel(&request);
    let logs = selection.logs.iter().map(|line| format!("{}: {}", line.level, line.text)).collect();
    match selection.kernel {
        Ok(kernel) => Vllm {
            kernel: Some(kernel.name),
            backend: (requirements::REQUIREMENTS.iter())
                .find(|row| row.vllm_class == kernel.name)
                .map(|row| row.id.as_str()),
            error: None,
            logs,
        },
        Err(exception) => Vllm { kernel: None, backend: None, error: Some(exception.to_string()), logs },
    }
}

fn write_text(report: &Report, assume_built: bool, session: &mut Session) -> Result<(), Failure> {
    let out = &mut session.out;
    let layer = &report.layer;
    let capability = report.device.compute_capability.as_deref();
    writeln!(
        out,
        "{} layer, n = {}, k = {}, {} -> {}{}{}",
        layer.scheme,
        layer.n,
        layer.k,
        layer.input_dtype,
        layer.output_dtype,
        if layer.per_row_scale { ", several weight scales" } else { "" },
        if layer.batch_invariant { ", batch-invariant" } else { "" },
    )?;
    let name = &report.device.name;
    match capability {
        Some(capability) if !name.contains(capability) => writeln!(out, "on {name} ({capability})\n")?,
        Some(_) => writeln!(out, "on {name}\n")?,
        None => writeln!(out, "on this CPU ({name})\n")?,
    }
    if !assume_built {
        report.this_build.write("This build", out)?;
        writeln!(out)?;
    }
    if !assume_built && report.this_build == report.with_every_backend {
        report.with_every_backend.write_answer("With every backend installed, the same", out)?;
    } else {
        report.with_every_backend.write("With every backend installed", out)?;
    }
    if let Some(vllm) = &report.vllm {
        writeln!(out)?;
        match (vllm.kernel, &vllm.error) {
            (Some(kernel), _) => {
                let here = vllm.backend.map_or("which has no counterpart here".into(), |id| format!("here: {id}"));
                writeln!(out, "vLLM 0.33.0: {kernel} ({here})")?;
            }
            (None, error) => writeln!(out, "vLLM 0.33.0: {}", error.as_deref().unwrap_or("no kernel"))?,
        }
        for line in vllm.logs.iter().flat_map(|text| text.lines()) {
            writeln!(out, "  {line}")?;
        }
    }
    Ok(())
}

/// `13.0` as 13000.
fn cuda_version(text: &str) -> Result<u32, String> {
    match numbers(text).as_deref() {
        Some(&[major, minor]) => Ok(major * 1000 + minor * 10),
        _ => Err("expected a version such as 12.8".into()),
    }
}

/// `9.15.0` or `9.15` as 91500.
fn cudnn_version(text: &str) -> Result<u32, String> {
    match numbers(text).as_deref() {
        Some(&[major, minor]) => Ok(major * 10000 + minor * 100),
        Some(&[major, minor, patch]) => Ok(major * 10000 + minor * 100 + patch),
        _ => Err("expected a version such as 9.15.0".into()),
    }
}

/// Numbers below 100 between dots.
fn numbers(text: &str) -> Option<Vec<u32>> {
    text.split('.').map(|part| part.parse().ok().filter(|&number| number < 100)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_encoded_as_the_libraries_do() {
        assert_eq!(cuda_version("12.8"), Ok(12080));
        assert_eq!(cuda_version("13.0"), Ok(13000));
        assert_eq!(cudnn_version("9.15.0"), Ok(91500));
        assert_eq!(cudnn_version("9.19"), Ok(91900));
        for bad in ["", "12", "12.8.1.1", "x.1", "-1.0", "12.800", "4294967295.0"] {
            assert!(cuda_version(bad).is_err(), "{bad}");
            assert!(cudnn_version(bad).is_err(), "{bad}");
        }
    }
}
