//! The backends that a program knows, explicitly: no link-time collection, no order but the one written here.

use crate::explain::Explanation;
use nvfp4_core::{
    CpuFacts, Decision, DeviceFacts, Host, KernelId, KernelSupport, NvFp4LinearKernel, NvFp4LinearLayerConfig,
    Policy, Unsupported, requirements::REQUIREMENTS, select::SelectError,
};
use std::sync::Arc;

/// One backend of a [`Registry`].
#[derive(Clone, Debug)]
enum Backend {
    /// Runs layers in host memory.
    Host(Arc<dyn NvFp4LinearKernel<Host>>),
    /// Runs layers in the memory of a CUDA device.
    #[cfg(feature = "cuda")]
    Cuda(Arc<dyn NvFp4LinearKernel<nvfp4_cuda::Cuda>>),
    /// Answers questions and runs nothing here.
    Answers(Arc<dyn KernelSupport>),
}

impl Backend {
    fn support(&self) -> &dyn KernelSupport {
        match self {
            Self::Host(kernel) => kernel.as_ref(),
            #[cfg(feature = "cuda")]
            Self::Cuda(kernel) => kernel.as_ref(),
            Self::Answers(support) => support.as_ref(),
        }
    }
}

/// The backends that selection considers, in the order in which ties are broken.
///
/// [`Registry::installed`] names every backend of this project: those in this build as what they are, the others as
/// stand-ins that say why they cannot run, so that an explanation leaves none out. Add your own with
/// [`with_kernel`](Self::with_kernel).
///
/// ```
/// use nvfp4::{NvFp4LinearLayerConfig, Policy, Registry};
/// let registry = Registry::installed();
/// let layer = NvFp4LinearLayerConfig::w4a4(4096, 4096);
/// let refusal = registry.select(&nvfp4::gpu("B200")?, &layer, &Policy::default()).unwrap_err();
/// assert!(refusal.to_string().contains("trtllm"));
/// # Ok::<(), nvfp4::UnknownGpu>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Registry {
    backends: Vec<Backend>,
}

/// A choice that may have left the device that was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Placement {
    /// Where the layer runs.
    pub device: DeviceFacts,
    /// The choice on that device.
    pub decision: Decision,
    /// Why it does not run on the device that was asked for; `None` if it does.
    pub left: Option<SelectError>,
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "on {}: {}", self.device, self.decision)?;
        match &self.left {
            Some(reason) => write!(f, "\nnot on the device that was asked for: {reason}"),
            None => Ok(()),
        }
    }
}

impl Registry {
    /// A registry without backends.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Every backend of this project, as far as this build has it.
    pub fn installed() -> Self {
        REQUIREMENTS.iter().fold(Self::with_cpu(Err(Unsupported::Feature("cpu"))), |registry, row| match row.id {
            #[cfg(feature = "trtllm")]
            KernelId::TRTLLM => registry.with_cuda_kernel(Arc::new(nvfp4_trtllm::TrtllmNvFp4LinearKernel::new())),
            id => registry.with_support(Arc::new(row.support(Err(absent(id))))),
        })
    }

    /// Every backend of this project as if all were installed, with their kernels: what *would* run. The GPU
    /// backends among them answer and run nothing.
    pub fn if_all_were_installed() -> Self {
        REQUIREMENTS
            .iter()
            .fold(Self::with_cpu(Ok(())), |registry, row| registry.with_support(Arc::new(row.support(Ok(())))))
    }

    /// The CPU backend; where it is not compiled in, a stand-in that says `otherwise`.
    #[cfg(feature = "cpu")]
    fn with_cpu(_otherwise: Result<(), Unsupported>) -> Self {
        Self::empty().with_kernel(Arc::new(nvfp4_cpu::CpuNvFp4LinearKernel::new()))
    }

    /// The CPU backend; where it is not compiled in, a stand-in that says `otherwise`.
    #[cfg(not(feature = "cpu"))]
    fn with_cpu(otherwise: Result<(), Unsupported>) -> Self {
        Self::empty().with_support(Arc::new(crate::cpu_stand_in::CpuStandIn { available: otherwise }))
    }

    /// Adds a backend that runs layers in host memory. One of the same name is replaced, in its place.
    pub fn with_kernel(self, kernel: Arc<dyn NvFp4LinearKernel<Host>>) -> Self {
        self.with(Backend::Host(kernel))
    }

    /// Adds a backend that runs layers in the memory of a CUDA device. One of the same name is replaced, in its place.
    #[cfg(feature = "cuda")]
    pub fn with_cuda_kernel(self, kernel: Arc<dyn NvFp4LinearKernel<nvfp4_cuda::Cuda>>) -> Self {
        self.with(Backend::Cuda(kernel))
    }

    /// Adds a backend that is considered and explained, but that this registry cannot run. One of the same name is
    /// replaced, in its place.
    pub fn with_support(self, support: Arc<dyn KernelSupport>) -> Self {
        self.with(Backend::Answers(support))
    }

    fn with(mut self, backend: Backend) -> Self {
        let id = backend.support().id();
        match self.backends.iter_mut().find(|b| b.support().id() == id) {
            Some(place) => *place = backend,
            None => self.backends.push(backend),
        }
        self
    }

    /// The names of the backends, in order.
    pub fn ids(&self) -> impl Iterator<Item = KernelId> + '_ {
        self.backends.iter().map(|b| b.support().id())
    }

    /// What a backend answers about itself.
    pub fn support(&self, id: KernelId) -> Option<&dyn KernelSupport> {
        self.backends.iter().map(Backend::support).find(|b| b.id() == id)
    }

    /// A backend that runs layers in host memory; `None` if there is none of this name or it only answers.
    pub fn kernel(&self, id: KernelId) -> Option<&Arc<dyn NvFp4LinearKernel<Host>>> {
        self.backends.iter().find_map(|b| match b {
            Backend::Host(kernel) if kernel.id() == id => Some(kernel),
            _ => None,
        })
    }

    /// A backend that runs layers in the memory of a CUDA device; `None` if there is none of this name or it only answers.
    #[cfg(feature = "cuda")]
    pub fn cuda_kernel(&self, id: KernelId) -> Option<&Arc<dyn NvFp4LinearKernel<nvfp4_cuda::Cuda>>> {
        self.backends.iter().find_map(|b| match b {
            Backend::Cuda(kernel) if kernel.id() == id => Some(kernel),
            _ => None,
        })
    }

    /// Chooses a backend for a layer on `device`, or says why none can run it. Never leaves `device`.
    pub fn select(
        &self,
        device: &DeviceFacts,
        config: &NvFp4LinearLayerConfig,
        policy: &Policy,
    ) -> Result<Decision, SelectError> {
        let supports: Vec<_> = self.backends.iter().map(Backend::support).collect();
        nvfp4_core::select(&supports, device, config, policy)
    }

    /// As [`select`](Self::select), but the layer may run on `cpu` if nothing can run it on `device`. A forced
    /// backend is still never replaced by another. The result says whether, and why, `device` was left.
    pub fn select_or_cpu(
        &self,
        device: &DeviceFacts,
        cpu: &CpuFacts,
        config: &NvFp4LinearLayerConfig,
        policy: &Policy,
    ) -> Result<Placement, SelectError> {
        let refusal = match self.select(device, config, policy) {
            Ok(decision) => return Ok(Placement { device: device.clone(), decision, left: None }),
            Err(refusal @ SelectError::Unknown { .. }) => return Err(refusal),
            Err(refusal) => refusal,
        };
        let device = DeviceFacts::Cpu(cpu.clone());
        match self.select(&device, config, policy) {
            Ok(decision) => Ok(Placement { device, decision, left: Some(refusal) }),
            Err(_) => Err(refusal),
        }
    }

    /// What runs a layer on a device (which need not be here), and what would if every backend were installed.
    pub fn explain(&self, device: &DeviceFacts, config: &NvFp4LinearLayerConfig, policy: &Policy) -> Explanation {
        let all = self.backends.iter().fold(Self::if_all_were_installed(), |all, backend| match backend {
            // What runs in host memory counts as it is, and so does a backend of the user's own. That a GPU backend of ours
            // is not compiled in, or lacks its kernel pack, is what this question sets aside.
            Backend::Host(_) => all.with(backend.clone()),
            other if all.support(other.support().id()).is_some() => all,
            other => all.with(other.clone()),
        });
        Explanation {
            device: device.clone(),
            config: *config,
            here: self.select(device, config, policy),
            if_all_were_installed: all.select(device, config, policy),
        }
    }
}

/// Why a backend is not in this build.
fn absent(id: KernelId) -> Unsupported {
    match id {
        KernelId::TRTLLM => Unsupported::Feature("trtllm"),
        _ => Unsupported::NotReleased,
    }
}

/// Which backend runs a layer on a device (which need not be here) and why not the others, as
/// [`Registry::explain`] of [`Registry::installed`].
///
/// ```
/// use nvfp4::{KernelId, NvFp4LinearLayerConfig, Policy};
/// let explanation =
///     nvfp4::explain(&nvfp4::gpu("RTX 5090")?, &NvFp4LinearLayerConfig::w4a4(4096, 14336), &Policy::default());
/// assert_eq!(explanation.if_all_were_installed?.chosen, KernelId::B12X);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn explain(device: &DeviceFacts, config: &NvFp4LinearLayerConfig, policy: &Policy) -> Explanation {
    Registry::installed().explain(device, config, policy)
}
