//! Weights as the cutlass, cudnn, cutedsl and b12x kernels read them: codes and block scales padded to multiples of 32 along
//! `n` and `k`, block scales in 128x4 tiles ([`WeightLayout::SWIZZLED_128X4`]). Kernels that read this layout share one copy.

use crate::{
    device::Device,
    epilogue::column_scales,
    memory::{DeviceBuffer, DeviceVector},
};
use nvfp4_core::{
    Error, GlobalScale, NvFp4LinearLayerConfig, NvFp4Weights, PreparedWeights,
    kernel::WeightLayout,
    padding::{CUTLASS_ALIGNMENT, PaddingPlan},
    swizzle_blockscale,
};
use std::{any::Any, sync::Arc};

/// The layout in host memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwizzledBytes {
    /// Codes `[n, k / 2]`.
    pub codes: Vec<u8>,
    /// Block scales of `[n, k / 16]` in 128x4 tiles; what the tiles have beyond that is zero.
    pub scales: Vec<u8>,
    /// Output features, padded to a multiple of 32.
    pub n: usize,
    /// Input features, padded to a multiple of 32.
    pub k: usize,
}

impl SwizzledBytes {
    /// Pads and swizzles, byte for byte as vLLM's `process_weights_after_loading` of these kernel classes does
    /// (`pad_nvfp4_weight_for_cutlass` with alignment 32, `swizzle_blockscale`).
    pub fn new(weights: &NvFp4Weights<'_>) -> Result<Self, Error> {
        let padding = PaddingPlan::new(weights.out_features(), weights.in_features(), CUTLASS_ALIGNMENT)?;
        let padded = padding.pad_weights(weights.clone())?;
        Ok(Self {
            scales: swizzle_blockscale(padded.scales())?.into_bytes(),
            codes: padded.packed().to_vec(),
            n: padding.padded_n(),
            k: padding.padded_k(),
        })
    }
}

/// Weights on a device.
#[derive(Debug)]
pub struct SwizzledWeights {
    device: Device,
    codes: DeviceBuffer,
    scales: DeviceBuffer,
    global: GlobalScale,
    column_scale: Option<DeviceBuffer>,
    padded_n: usize,
    padded_k: usize,
    n: usize,
    k: usize,
}

impl SwizzledWeights {
    /// Checks shapes and block scales against the layer, pads, swizzles and uploads.
    pub fn upload(
        device: &Device,
        config: &NvFp4LinearLayerConfig,
        weights: &NvFp4Weights<'_>,
    ) -> Result<Self, Error> {
        config.check_weights(weights)?;
        let SwizzledBytes { codes, scales, n: padded_n, k: padded_k } = SwizzledBytes::new(weights)?;
        let (global, column_scale) = column_scales(device, weights.global())?;
        Ok(Self {
            codes: DeviceBuffer::from_host(device, &codes)?,
            scales: DeviceBuffer::from_host(device, &scales)?,
            device: device.clone(),
            global,
            column_scale,
            padded_n,
            padded_k,
            n: config.out_features,
            k: config.in_features,
        })
    }

    /// The type behind prepared weights, if it is this one and of the layer's shape.
    ///
    /// # Errors
    /// [`Error::Layout`] with what was found.
    pub fn of(config: &NvFp4LinearLayerConfig, weights: &Arc<dyn PreparedWeights>) -> Result<Arc<Self>, Error> {
        let (n, k) = (config.out_features, config.in_features);
        let any: Arc<dyn Any + Send + Sync> = weights.clone();
        let found = match any.downcast::<Self>() {
            Ok(weights) if (weights.n, weights.k) == (n, k) => return Ok(weights),
            Ok(weights) => format!("{} [{}, {}] on the device", weights.layout(), weights.n, weights.k),
            Err(_) => weights.layout().to_string(),
        };
        Err(Error::Layout { expected: format!("{} [{n}, {k}] on the device", WeightLayout::SWIZZLED_128X4), found })
    }

    /// Where they are.
    pub const fn device(&self) -> &Device {
        &self.device
    }
    /// Codes `[padded_n, padded_k / 2]`, dense.
    pub const fn codes(&self) -> &DeviceBuffer {
        &self.codes
    }
    /// Block scales in 128x4 tiles.
    pub const fn scales(&self) -> &DeviceBuffer {
        &self.scales
    }
    /// The global scale that is part of `alpha`.
    pub const fn global(&self) -> GlobalScale {
        self.global
    }
    /// For each of the `n` output features, the ratio of its own global scale to [`global`](Self::global), f32; `None` if all are 1.
    pub fn column_scale(&self) -> Option<DeviceVector<'_>> {
        // SAFETY: one f32 an output feature was uploaded, nothing writes it, and it lives as long as `self`.
        self.column_scale.as_ref().map(|buffer| unsafe { DeviceVector::from_raw(buffer.address(), self.n) })
    }
    /// Output features with padding.
    pub const fn padded_n(&self) -> usize {
        self.padded_n
    }
    /// Input features with padding.
    pub const fn padded_k(&self) -> usize {
        self.padded_k
    }
}

impl PreparedWeights for SwizzledWeights {
    fn layout(&self) -> WeightLayout {
        WeightLayout::SWIZZLED_128X4
    }
    fn bytes(&self) -> usize {
        self.codes.len() + self.scales.len() + self.column_scale.as_ref().map_or(0, DeviceBuffer::len)
    }
}
