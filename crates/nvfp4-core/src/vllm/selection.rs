//! Which kernel class vLLM takes: its function `init_nvfp4_linear_kernel`.

use super::{Environment, Exception, KERNELS, Kernel, Platform};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

/// What the choice depends on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// The machine.
    pub environment: Environment,
    /// True for layers without activation quantization.
    pub use_a16: bool,
    /// `--linear-backend`, or the entry of `linear_backend_per_quant` for this kind of layer.
    pub linear_backend: &'a str,
    /// `VLLM_BATCH_INVARIANT=1`.
    pub batch_invariant: bool,
    /// Class names in `VLLM_DISABLED_KERNELS`.
    pub disabled_kernels: &'a [&'a str],
}

impl Request<'_> {
    /// A layer on a machine, with vLLM's defaults.
    pub const fn new(environment: Environment, use_a16: bool) -> Self {
        Self { environment, use_a16, linear_backend: "auto", batch_invariant: false, disabled_kernels: &[] }
    }
}

/// A line that vLLM logs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogLine {
    /// `INFO` or `WARNING`.
    pub level: &'static str,
    /// The text.
    pub text: String,
}

/// The outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Selection {
    /// The class, or the exception.
    pub kernel: Result<&'static Kernel, Exception>,
    /// What was logged on the way.
    pub logs: Vec<LogLine>,
}

/// Which class vLLM takes for a layer.
///
/// The line that vLLM logs when `VLLM_BATCH_INVARIANT` overrides another `--linear-backend` than `auto` is not
/// among the [logs](Selection::logs); the outcome is.
pub fn init_nvfp4_linear_kernel(request: &Request<'_>) -> Selection {
    let mut logs = Vec::new();
    let kernel = choose(request, &mut logs);
    if let Ok(kernel) = &kernel {
        logs.push(info(format!("Using {kernel} for NVFP4 GEMM")));
    }
    Selection { kernel, logs }
}

fn info(text: impl Into<String>) -> LogLine {
    LogLine { level: "INFO", text: text.into() }
}

fn warning(text: String) -> LogLine {
    LogLine { level: "WARNING", text }
}

fn value_error(message: String) -> Exception {
    Exception::new("ValueError", message)
}

fn choose(request: &Request<'_>, logs: &mut Vec<LogLine>) -> Result<&'static Kernel, Exception> {
    let backend = request.linear_backend.to_ascii_lowercase().replace('-', "_");
    match forced(request, &backend, logs) {
        Some(kernel) => take_forced(kernel, request),
        None => first_supported(candidates(request, &backend, logs), request, logs),
    }
}

fn by_name(name: &str) -> Option<&'static Kernel> {
    Kernel::of(name)
}

/// The class that the settings force, if they do.
fn forced(request: &Request<'_>, backend: &str, logs: &mut Vec<LogLine>) -> Option<&'static Kernel> {
    let environment = &request.environment;
    if request.batch_invariant {
        let cutlass = by_name("CutlassNvFp4LinearKernel")?;
        let (kernel, line) = match cutlass.is_supported(environment) {
            Ok(()) => (
                cutlass,
                "VLLM_BATCH_INVARIANT forces NVFP4 linear to use the CUTLASS backend for deterministic execution."
                    .to_string(),
            ),
            Err(reason) => (
                by_name("EmulationNvFp4LinearKernel")?,
                format!(
                    "VLLM_BATCH_INVARIANT is set but the batch-invariant NVFP4 kernel is not supported on this \
                     platform; falling back to emulation for deterministic execution. Reason: {reason}"
                ),
            ),
        };
        logs.push(info(line));
        return Some(kernel);
    }
    if backend == "auto" && request.use_a16 {
        let cute_dsl = by_name("FlashInferCuteDslNvFp4W4A16LinearKernel")?;
        let wants_cute_dsl = matches!(environment.compute_capability, Some(100 | 103));
        if wants_cute_dsl && cute_dsl.is_supported(environment).is_ok() {
            return Some(cute_dsl);
        }
        // On 9.0 Humming is tried first, from the list.
        if environment.compute_capability != Some(90) {
            return by_name("MarlinNvFp4LinearKernel");
        }
    }
    None
}

/// A forced class is taken or refused; `VLLM_DISABLED_KERNELS` is not asked.
fn take_forced(kernel: &'static Kernel, request: &Request<'_>) -> Result<&'static Kernel, Exception> {
    if request.use_a16 && !kernel.w4a16 {
        return Err(value_error(format!("{kernel} does not support W4A16")));
    }
    match kernel.is_supported(&request.environment) {
        Ok(()) => Ok(kernel),
        Err(reason) => Err(value_error(format!("Forced NVFP4 kernel {kernel} is not supported: {reason}"))),
    }
}

/// The classes to try, in order.
fn candidates(request: &Request<'_>, backend: &str, logs: &mut Vec<LogLine>) -> Vec<&'static Kernel> {
    let environment = &request.environment;
    let offered = |kernel: &&Kernel| match environment.platform {
        Platform::Cuda => true,
        Platform::Rocm => kernel.name == "EmulationNvFp4LinearKernel",
        Platform::Other => false,
    };
    let mut list: Vec<_> =
        KERNELS.iter().filter(offered).filter(|kernel| kernel.w4a16 || !request.use_a16).collect();
    if environment.compute_capability == Some(90) {
        prefer_humming_to_marlin(&mut list);
    }
    if backend == "auto" {
        return list;
    }
    let asked: Vec<_> = list.iter().copied().filter(|kernel| kernel.linear_backend == backend).collect();
    if !asked.is_empty() {
        return asked;
    }
    logs.push(warning(format!(
        "--linear-backend={backend} has no kernel for this linear layer type; using automatic selection for that \
         layer type."
    )));
    if list.is_empty() {
        logs.push(warning(format!(
            "--linear-backend={backend} was requested, but no {backend} kernel exists for NVFP4 layers; falling \
             back to normal kernel selection for this layer."
        )));
    }
    list
}

fn prefer_humming_to_marlin(list: &mut Vec<&'static Kernel>) {
    let position = |list: &[&Kernel], name: &str| list.iter().position(|kernel| kernel.name == name);
    if let Some(humming) = position(list, "HummingNvFp4LinearKernel") {
        let kernel = list.remove(humming);
        let place = position(list, "MarlinNvFp4LinearKernel").unwrap_or(humming);
        list.insert(place, kernel);
    }
}

fn first_supported(
    list: Vec<&'static Kernel>,
    request: &Request<'_>,
    logs: &mut Vec<LogLine>,
) -> Result<&'static Kernel, Exception> {
    let mut reasons = Vec::new();
    for kernel in list {
        if request.disabled_kernels.contains(&kernel.name) {
            reasons.push(format!(" {kernel} disabled by environment variable"));
        } else if let Err(reason) = kernel.is_supported(&request.environment) {
            reasons.push(format!("{kernel}: {reason}"));
        } else {
            if kernel.name == "EmulationNvFp4LinearKernel" && !reasons.is_empty() {
                logs.push(warning(format!(
                    "NVFP4 linear falling back to the slow and unoptimized emulation backend as no optimized \
                     backend is available (unavailable reasons:\n - {}\n). In case you expect one of these \
                     backends to be used, please verify your environment.",
                    reasons.join("\n - ")
                )));
            }
            return Ok(kernel);
        }
    }
    Err(value_error(format!(
        "Failed to find a kernel that can implement the NVFP4 linear layer. Reasons: \n{}",
        reasons.join("\n")
    )))
}
