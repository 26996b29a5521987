//! What a device needs to run these kernels, loaded once for each device: the quantizer, the epilogue and, one by one as
//! plans ask for them, the GEMM kernels.

use crate::tactic::Tactic;
use nvfp4_core::{ComputeCapability, Error, KernelId};
use nvfp4_cuda::{
    CudaError, Device, Epilogue, Kernel, Module, Quantizer, epilogue,
    pack::{self, Image, Pack, PackError, manifest::sha256_hex},
    quantize,
};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

/// Revision of the kernels' interface.
pub const REVISION: u32 = 1;
/// Name of the pack.
pub const BACKEND: &str = KernelId::TRTLLM.as_str();
/// Target of the cubins: 10.0 and later members of its family, such as 10.3.
pub const TARGET: &str = "sm_100f";

/// `Ok` if every pack that the backend needs on such a device is there, by manifest.
pub(crate) fn check_packs(roots: &[PathBuf], device: ComputeCapability) -> Result<(), PackError> {
    pack::find_images(roots, BACKEND, REVISION, device)?;
    pack::find_images(roots, quantize::BACKEND, quantize::REVISION, device)?;
    pack::find_images(roots, epilogue::BACKEND, epilogue::REVISION, device)?;
    Ok(())
}

/// The kernels of one device.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) device: Device,
    pub(crate) quantizer: Quantizer,
    pub(crate) epilogue: Epilogue,
    /// Hash of the pack's manifest.
    pub(crate) pack_hash: String,
    pack: Pack,
    images: Vec<Image>,
    /// GEMM kernels that have been loaded, by index.
    kernels: Mutex<Vec<(u16, Kernel)>>,
}

impl Loaded {
    fn new(device: &Device, roots: &[PathBuf]) -> Result<Self, CudaError> {
        let (pack, images) = pack::find_images(roots, BACKEND, REVISION, device.compute_capability())?;
        let manifest = pack.folder.join("manifest.json");
        let text = std::fs::read(&manifest).map_err(|e| PackError::Io { path: manifest, reason: e.to_string() })?;
        Ok(Self {
            pack_hash: sha256_hex(&text),
            device: device.clone(),
            quantizer: Quantizer::load(device, roots)?,
            epilogue: Epilogue::load(device, roots)?,
            pack,
            images,
            kernels: Mutex::default(),
        })
    }

    /// A GEMM kernel, verified and loaded at its first use.
    pub(crate) fn kernel(&self, tactic: &Tactic) -> Result<Kernel, Error> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, kernel)) = kernels.iter().find(|(index, _)| *index == tactic.index) {
            return Ok(kernel.clone());
        }
        let kernel = self.load(tactic)?;
        kernels.push((tactic.index, kernel.clone()));
        Ok(kernel)
    }

    fn load(&self, tactic: &Tactic) -> Result<Kernel, CudaError> {
        let image = self.images.iter().find(|image| image.kernels.iter().any(|name| name == tactic.kernel));
        let image = image.ok_or_else(|| PackError::Manifest {
            path: self.pack.folder.join("manifest.json"),
            reason: format!("no image holds the kernel `{}`", tactic.kernel),
        })?;
        // The table's hash, not only the manifest's: the launch is computed for exactly this cubin.
        if image.sha256 != tactic.sha256 {
            let (path, expected) = (self.pack.folder.join(&image.file), tactic.sha256.into());
            return Err(PackError::Hash { path, expected, found: image.sha256.clone() }.into());
        }
        let kernel = Module::load(&self.device, &self.pack.read_image(image)?)?.kernel(tactic.kernel)?;
        kernel.allow_shared_memory(tactic.shared_memory)?;
        Ok(kernel)
    }
}

/// The devices that have been loaded.
#[derive(Debug, Default)]
pub(crate) struct Devices(Mutex<Vec<Arc<Loaded>>>);

impl Devices {
    /// The kernels of a device, loaded at its first use.
    pub(crate) fn get(&self, device: &Device, roots: &[PathBuf]) -> Result<Arc<Loaded>, CudaError> {
        let mut devices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = devices.iter().find(|loaded| loaded.device.ordinal() == device.ordinal()) {
            return Ok(loaded.clone());
        }
        let loaded = Arc::new(Loaded::new(device, roots)?);
        devices.push(loaded.clone());
        Ok(loaded)
    }
}
