//! Stands for the CPU backend in builds without it.

use nvfp4_core::{
    BLOCK_SIZE, DeviceFacts, KernelId, KernelSupport, NvFp4LinearLayerConfig, Unsupported, kernel::WeightLayout,
};

/// Answers as the CPU backend does, but for `available`. It runs nothing.
#[derive(Debug)]
pub(crate) struct CpuStandIn {
    /// What is said of a CPU.
    pub(crate) available: Result<(), Unsupported>,
}

impl KernelSupport for CpuStandIn {
    fn id(&self) -> KernelId {
        KernelId::CPU
    }

    fn is_supported(&self, device: &DeviceFacts) -> Result<(), Unsupported> {
        match device {
            DeviceFacts::Cpu(_) => self.available.clone(),
            _ => Err(Unsupported::Device { needed: "a CPU".into(), found: device.to_string() }),
        }
    }

    fn can_implement(&self, _: &DeviceFacts, config: &NvFp4LinearLayerConfig) -> Result<(), Unsupported> {
        match config.in_features {
            k if k.is_multiple_of(BLOCK_SIZE) => Ok(()),
            found => Err(Unsupported::Shape { dimension: "k (input features)", multiple: BLOCK_SIZE, found }),
        }
    }

    fn weight_layout(&self, _: &DeviceFacts, _: &NvFp4LinearLayerConfig) -> WeightLayout {
        WeightLayout::new(KernelId::CPU.as_str(), 0)
    }
}

#[cfg(test)]
mod tests {
    use crate::{KernelId, NvFp4LinearLayerConfig, Policy, Registry, Unsupported, explain, gpu, host_device};
    use nvfp4_core::select::SelectError;

    #[test]
    fn a_build_without_the_cpu_backend_says_so() {
        let layer = NvFp4LinearLayerConfig::w4a4(64, 64);
        let explanation = explain(&host_device(), &layer, &Policy::default());
        let Err(SelectError::NoneEligible(reasons)) = explanation.here else { panic!("{explanation}") };
        assert!(reasons.contains(&(KernelId::CPU, Unsupported::Feature("cpu"))), "{reasons:?}");
        assert!(Registry::installed().kernel(KernelId::CPU).is_none());
        assert_eq!(explanation.if_all_were_installed.map(|d| d.chosen), Ok(KernelId::CPU));
        let b200 = gpu("B200").map(|b200| explain(&b200, &layer, &Policy::default()));
        assert_eq!(b200.map(|e| e.if_all_were_installed.map(|d| d.chosen)), Ok(Ok(KernelId::CUTEDSL)));
    }
}
