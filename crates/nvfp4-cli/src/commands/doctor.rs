//! `nvfp4 doctor`: what this machine has, which backends run on it, and why the others do not.

use crate::{
    cuda_presence::CudaPresence,
    decision_report::Refusal,
    exit::{CommandResult, Failure, Outcome},
    quantities,
    session::Session,
    table::{Align, Table},
};
use nvfp4::{
    ActivationScheme, BACKEND_VARIABLE, DISABLE_VARIABLE, DType, DeviceFacts, GlobalScale, GlobalScales, KernelId,
    Linear, LinearOptions, LinearScales, MatrixMut, MatrixRef, NvFp4LinearLayer, NvFp4Weights, Policy, Registry,
    requirements::Requirements,
    select::{Choice, Numerics},
};
use serde::Serialize;
use std::io::Write;

/// Show this machine's devices and drivers, which backends run here, and why the others do not
///
/// No GPU driver is loaded and no GPU is touched. Backends that run here compute a small layer whose result is known.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {}

const EXAMPLES: &str = "\
Examples:
  nvfp4 doctor
  nvfp4 doctor --json";

/// Variables that change what this program or a CUDA program does.
const VARIABLES: &[&str] = &[
    BACKEND_VARIABLE,
    DISABLE_VARIABLE,
    "RAYON_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "NO_COLOR",
];

#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    cpu: Cpu,
    cuda: Cuda,
    environment: Vec<Variable>,
    /// Why the environment variables cannot be obeyed.
    environment_error: Option<String>,
    backends: Vec<Backend>,
    /// True if at least one backend works and the environment leaves one to be used.
    usable: bool,
}

#[derive(Debug, Serialize)]
struct Cpu {
    name: String,
    architecture: &'static str,
    /// Extensions that the kernels use.
    features: Vec<String>,
    threads: usize,
    memory_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Cuda {
    #[serde(flatten)]
    presence: CudaPresence,
    summary: Option<&'static str>,
    /// What this build does with it.
    note: &'static str,
}

const NO_GPU_BACKENDS: &str =
    "this program computes on the CPU only; ask what would run on a GPU with `nvfp4 explain --gpu`";

#[derive(Debug, Serialize)]
struct Variable {
    name: &'static str,
    value: String,
}

#[derive(Debug, Serialize)]
struct Backend {
    name: &'static str,
    /// What it needs.
    needs: String,
    /// True if it runs here and computed the known layer.
    works: bool,
    #[serde(flatten)]
    refusal: Option<Refusal>,
    /// What was wrong with the known layer.
    self_test: Option<String>,
}

pub(crate) fn run(_: &Arguments, session: &mut Session) -> CommandResult {
    let registry = Registry::installed();
    let facts = nvfp4::host_cpu();
    let policy = registry.policy_from_env();
    let backends: Vec<Backend> = registry.ids().filter_map(|id| examine(&registry, id)).collect();
    let presence = CudaPresence::detect();
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        usable: policy.as_ref().is_ok_and(|policy| backends.iter().any(|b| b.works && allows(policy, b.name))),
        environment_error: policy.err().map(|error| error.to_string()),
        cpu: Cpu {
            name: facts.name,
            architecture: std::env::consts::ARCH,
            features: facts.features,
            threads: facts.threads,
            memory_bytes: memory_bytes(),
        },
        cuda: Cuda { summary: presence.summary(), presence, note: NO_GPU_BACKENDS },
        environment: VARIABLES
            .iter()
            .filter_map(|&name| Some(Variable { name, value: std::env::var_os(name)?.to_string_lossy().into() }))
            .collect(),
        backends,
    };
    if session.json {
        session.out.json(&report)?;
    } else {
        write_text(&report, session)?;
    }
    Ok(if report.usable { Outcome::Yes } else { Outcome::No })
}

/// Whether a policy leaves a backend to be used.
fn allows(policy: &Policy, name: &str) -> bool {
    let forced_other = matches!(&policy.choice, Choice::Force(forced) if forced != name);
    !forced_other && policy.disabled.iter().all(|disabled| disabled.name != name)
}

fn examine(registry: &Registry, id: KernelId) -> Option<Backend> {
    let device = nvfp4::host_device();
    let support = registry.support(id)?;
    let refusal = support.is_supported(&device).err();
    let self_test = match refusal {
        None => self_test(registry, &device, id).err().map(|error| error.to_string()),
        Some(_) => None,
    };
    let needs = match Requirements::of(id) {
        None => "any CPU".to_string(),
        Some(row) => {
            let list: Vec<String> = row.compute_capabilities.iter().map(|number| format!("sm_{number}")).collect();
            list.join(", ")
        }
    };
    Some(Backend {
        name: id.as_str(),
        needs,
        works: refusal.is_none() && self_test.is_none(),
        // A backend that is missing from this release is missing whatever the device is.
        refusal: refusal.map(|_| released(id, registry)).map(|reason| (&reason).into()),
        self_test,
    })
}

/// Why a backend does not run here: rather «not in this release» than «not on a CPU», which hides it.
fn released(id: KernelId, registry: &Registry) -> nvfp4::Unsupported {
    let on_its_own_gpu = Requirements::of(id).and_then(|row| {
        let number = row.compute_capabilities.first()?;
        let gpu = nvfp4::gpu(&number.to_string()).ok()?;
        registry.support(id)?.is_supported(&gpu).err()
    });
    let here = || registry.support(id).and_then(|support| support.is_supported(&nvfp4::host_device()).err());
    on_its_own_gpu.or_else(here).unwrap_or(nvfp4::Unsupported::NotReleased)
}

/// Loads a layer of two outputs and 32 inputs on the backend and compares the output with what is known.
fn self_test(registry: &Registry, device: &DeviceFacts, id: KernelId) -> anyhow::Result<()> {
    for activation in [ActivationScheme::Unquantized, ActivationScheme::Nvfp4Static] {
        let layer = known_layer(activation)?;
        let policy =
            Policy { choice: Choice::Force(id.to_string()), numerics: Numerics::Checkpoint, ..Policy::default() };
        let options = LinearOptions::new()
            .with_registry(registry.clone())
            .with_device(device.clone())
            .with_policy(policy)
            .with_dtypes(DType::F32, DType::F32);
        let linear = Linear::load(&layer, &options)?;
        // Every value is a code of NVFP4 with these scales, so that W4A4 is as exact as W4A16.
        let x: Vec<f32> = (0..32).map(|i| [6.0, -3.0, 0.5, 1.0][i % 4]).collect();
        let mut y = [f32::NAN; 2];
        linear.forward(MatrixRef::new(&x[..], 1, 32)?, MatrixMut::new(&mut y[..], 1, 2)?)?;
        // The sum of x is 8 · 4.5 = 36; weights are 1.0 · 0.5 and 1.0 · 0.25; the bias is 0 and 1.
        anyhow::ensure!(y == [18.0, 10.0], "{activation}: a known layer gave {y:?}, expected [18.0, 10.0]");
    }
    Ok(())
}

fn known_layer(activation: ActivationScheme) -> Result<NvFp4LinearLayer<'static>, nvfp4::Error> {
    // Codes 2 (1.0), block scales 0x38 (1.0).
    let scales = LinearScales::new(2, 2, vec![0x38; 4])?;
    let global =
        GlobalScales::from_parts([(1, GlobalScale::from_decode(0.5)?), (1, GlobalScale::from_decode(0.25)?)]);
    Ok(NvFp4LinearLayer {
        name: "self-test".into(),
        weights: NvFp4Weights::new(2, 32, vec![0x22; 32], scales, global)?,
        activation,
        input_scale: (activation == ActivationScheme::Nvfp4Static).then_some(GlobalScale::ONE),
        bias: Some(vec![0.0, 1.0]),
    })
}

fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn write_text(report: &Report, session: &mut Session) -> Result<(), Failure> {
    let out = &mut session.out;
    writeln!(out, "nvfp4 {}\n", report.version)?;
    let cpu = &report.cpu;
    let features = if cpu.features.is_empty() { "no extensions used".into() } else { cpu.features.join(", ") };
    writeln!(out, "CPU: {} ({})", cpu.name, cpu.architecture)?;
    let memory = cpu.memory_bytes.map(|bytes| format!(", {} of memory", quantities::bytes(bytes)));
    writeln!(out, "  {features}; {}{}", quantities::count(cpu.threads, "thread"), memory.unwrap_or_default())?;

    let presence = &report.cuda.presence;
    writeln!(out, "\nCUDA: {}", report.cuda.summary.unwrap_or("no NVIDIA GPU and no driver library are here"))?;
    for gpu in &presence.gpus {
        writeln!(out, "  GPU: {gpu}")?;
    }
    for node in &presence.device_nodes {
        writeln!(out, "  device node: {}", node.display())?;
    }
    for library in &presence.driver_libraries {
        writeln!(out, "  driver library: {}", library.display())?;
    }
    if let Some(module) = &presence.kernel_module {
        writeln!(out, "  kernel module: {module}")?;
    }
    writeln!(out, "  {}", report.cuda.note)?;

    writeln!(out, "\nEnvironment:")?;
    if report.environment.is_empty() {
        writeln!(out, "  none of {} is set", VARIABLES.join(", "))?;
    }
    for variable in &report.environment {
        writeln!(out, "  {}={}", variable.name, variable.value)?;
    }
    if let Some(error) = &report.environment_error {
        writeln!(out, "  wrong: {error}")?;
    }

    writeln!(out, "\nBackends:")?;
    let mut table = Table::new([("backend", Align::Left), ("needs", Align::Left), ("answer", Align::Left)]);
    for backend in &report.backends {
        let answer = match (&backend.refusal, &backend.self_test) {
            (Some(refusal), _) => refusal.text(),
            (None, Some(fault)) => format!("does not work: {fault}"),
            (None, None) => "works: a known layer gave the known result".into(),
        };
        table.row([backend.name, &backend.needs, &answer]);
    }
    table.write(out)?;
    if !report.usable {
        writeln!(out, "\nNo backend can be used.")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_decides_what_is_usable() {
        let registry = Registry::installed();
        let policy = |variable: &str, value: &str| {
            registry.policy_from(|name| (name == variable).then(|| value.into())).unwrap()
        };
        assert!(allows(&Policy::default(), "cpu"));
        assert!(allows(&policy(BACKEND_VARIABLE, "cpu"), "cpu"));
        assert!(!allows(&policy(BACKEND_VARIABLE, "cutlass"), "cpu"));
        assert!(!allows(&policy(DISABLE_VARIABLE, "b12x,cpu"), "cpu"));
        assert!(allows(&policy(DISABLE_VARIABLE, "b12x"), "cpu"));
    }
}
