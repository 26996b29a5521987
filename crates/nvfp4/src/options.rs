//! How to load a layer.

use crate::{Registry, WorkspacePool, host_device};
use nvfp4_core::{DType, DeviceFacts, Policy};
use std::sync::Arc;

/// Options of [`Linear::load`](crate::Linear::load). Make them once and load every layer of a model with them: the
/// layers then share scratch memory.
///
/// ```
/// use nvfp4::{DType, LinearOptions};
/// let options = LinearOptions::new().with_dtypes(DType::F32, DType::F32).with_batch_invariant(true);
/// ```
#[derive(Clone, Debug)]
pub struct LinearOptions {
    pub(crate) registry: Arc<Registry>,
    pub(crate) policy: Option<Policy>,
    pub(crate) device: DeviceFacts,
    pub(crate) cpu_fallback: bool,
    pub(crate) input_dtype: DType,
    pub(crate) output_dtype: DType,
    pub(crate) batch_invariant: bool,
    pub(crate) keep_checkpoint: bool,
    pub(crate) workspaces: Arc<WorkspacePool>,
}

impl Default for LinearOptions {
    /// [`Registry::installed`], this machine's CPU, bf16 in and out, the policy of the environment.
    fn default() -> Self {
        Self {
            registry: Arc::new(Registry::installed()),
            policy: None,
            device: host_device(),
            cpu_fallback: false,
            input_dtype: DType::Bf16,
            output_dtype: DType::Bf16,
            batch_invariant: false,
            keep_checkpoint: false,
            workspaces: Arc::new(WorkspacePool::new()),
        }
    }
}

impl LinearOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses among these backends.
    pub fn with_registry(mut self, registry: impl Into<Arc<Registry>>) -> Self {
        self.registry = registry.into();
        self
    }

    /// Chooses by this policy; the environment variables `NVFP4_BACKEND` and `NVFP4_DISABLE` are then not read.
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Runs on this device.
    pub fn with_device(mut self, device: DeviceFacts) -> Self {
        self.device = device;
        self
    }

    /// Allows the layer to run on this machine's CPU if nothing can run it on the device. Off by default: then it
    /// is an error that gives every backend's reason. [`Linear::placement`](crate::Linear::placement) tells.
    pub fn with_cpu_fallback(mut self, allowed: bool) -> Self {
        self.cpu_fallback = allowed;
        self
    }

    /// Chooses for activations and outputs of these types (bf16 by default). Calls with other types work if the
    /// backend can.
    pub fn with_dtypes(mut self, input: DType, output: DType) -> Self {
        self.input_dtype = input;
        self.output_dtype = output;
        self
    }

    /// Only backends for which row `i` of the output does not depend, to the bit, on how many rows the call has.
    ///
    /// A W4A4 layer whose activations get one scale computed from all rows of a call
    /// ([`Nvfp4DynamicPerTensor`](nvfp4_core::ActivationScheme::Nvfp4DynamicPerTensor)) cannot be so anywhere. It then runs
    /// weight-only, which the decision notes, or is refused if the policy asks for the checkpoint's numerics.
    pub fn with_batch_invariant(mut self, yes: bool) -> Self {
        self.batch_invariant = yes;
        self
    }

    /// Keeps the checkpoint's tensors beside the prepared ones ([`Linear::checkpoint`](crate::Linear::checkpoint)),
    /// at the cost of their memory: for adapters (LoRA) that are merged later, or to write the layer back.
    pub fn with_checkpoint_kept(mut self, yes: bool) -> Self {
        self.keep_checkpoint = yes;
        self
    }

    /// Shares scratch memory with everything else that uses this pool.
    pub fn with_workspaces(mut self, pool: impl Into<Arc<WorkspacePool>>) -> Self {
        self.workspaces = pool.into();
        self
    }
}
