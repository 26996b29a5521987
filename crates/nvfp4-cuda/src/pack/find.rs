//! Finding a pack and reading verified images from it.

use super::{Flavour, Image, Manifest, PackError, manifest::sha256_hex};
use nvfp4_core::ComputeCapability;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Environment variable with folders that hold packs, separated like `PATH`.
pub const KERNELS_VARIABLE: &str = "NVFP4_KERNELS";

/// ELF machine number of CUDA code.
const EM_CUDA: u16 = 190;

/// A pack that was found. Its images are verified when they are read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pack {
    /// The manifest.
    pub manifest: Manifest,
    /// The pack's folder.
    pub folder: PathBuf,
}

/// Folders in which packs are looked for, in this order: those in `NVFP4_KERNELS` (if it is set, no others), `kernels`
/// beside the executable, and `nvfp4/kernels` in the user's data folder. A pack lies in `<folder>/<backend>/<target>/`
/// or, for a single pack, `<folder>/` itself.
pub fn search_path() -> Vec<PathBuf> {
    if let Some(folders) = std::env::var_os(KERNELS_VARIABLE) {
        return std::env::split_paths(&folders).filter(|p| !p.as_os_str().is_empty()).collect();
    }
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("kernels")));
    beside.into_iter().chain(user_data_folder().map(|data| data.join("nvfp4").join("kernels"))).collect()
}

/// The folder where the user's programs keep data, by each system's convention.
fn user_data_folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if cfg!(windows) {
        return variable("LOCALAPPDATA");
    }
    let home = variable("HOME")?;
    if cfg!(target_os = "macos") {
        return Some(home.join("Library").join("Application Support"));
    }
    Some(variable("XDG_DATA_HOME").unwrap_or_else(|| home.join(".local").join("share")))
}

/// Folders below `root` that may hold a manifest of `backend`.
fn pack_folders(root: &Path, backend: &str) -> Vec<PathBuf> {
    let mut folders = vec![root.to_path_buf()];
    if let Ok(entries) = std::fs::read_dir(root.join(backend)) {
        let mut targets: Vec<_> = entries.flatten().map(|e| e.path()).filter(|p| p.is_dir()).collect();
        targets.sort();
        folders.extend(targets);
    }
    folders.retain(|folder| folder.join("manifest.json").is_file());
    folders
}

/// The pack of `backend` in `roots` that has the best image for a device, and that image's verified bytes.
///
/// Errors: see [`find_images`].
pub fn find_pack(
    roots: &[PathBuf],
    backend: &str,
    revision: u32,
    device: ComputeCapability,
) -> Result<(Pack, Image, Vec<u8>), PackError> {
    let (pack, mut images) = find_images(roots, backend, revision, device)?;
    let image = images.swap_remove(0);
    let bytes = pack.read_image(&image)?;
    Ok((pack, image, bytes))
}

/// The pack of `backend` in the first of `roots` that has images for a device, and those of its images that have the
/// best target for it: at least one. They are verified when they are [read](Pack::read_image).
///
/// A pack that is there but damaged, or of another revision, is an error, never passed over for another.
pub fn find_images(
    roots: &[PathBuf],
    backend: &str,
    revision: u32,
    device: ComputeCapability,
) -> Result<(Pack, Vec<Image>), PackError> {
    let mut present = Vec::new();
    for root in roots {
        let mut best: Option<(Flavour, Pack)> = None;
        for folder in pack_folders(root, backend) {
            let path = folder.join("manifest.json");
            let manifest = Manifest::read(&path)?;
            if manifest.backend != backend {
                continue;
            }
            if manifest.revision != revision {
                let (backend, found) = (manifest.backend, manifest.revision);
                return Err(PackError::Revision { path, backend, expected: revision, found });
            }
            let pack = Pack { manifest, folder };
            for flavour in pack.flavours()? {
                present.push(flavour.to_string());
                let better = best.as_ref().is_none_or(|(other, _)| flavour.preference() > other.preference());
                if flavour.runs_on(device) && better {
                    best = Some((flavour, pack.clone()));
                }
            }
        }
        if let Some((flavour, pack)) = best {
            let target = flavour.to_string();
            let images = pack.manifest.images.iter().filter(|image| image.target == target).cloned().collect();
            return Ok((pack, images));
        }
    }
    Err(PackError::NotFound {
        backend: backend.into(),
        device: device.to_string(),
        looked_in: roots.to_vec(),
        present,
    })
}

impl Pack {
    /// The targets of the images, each once.
    fn flavours(&self) -> Result<BTreeSet<Flavour>, PackError> {
        let path = self.folder.join("manifest.json");
        let parse = |image: &Image| {
            image.target.parse().map_err(|e| PackError::Manifest { path: path.clone(), reason: format!("{e}") })
        };
        self.manifest.images.iter().map(parse).collect()
    }

    /// The bytes of an image, verified: hash, size, and that it is an ELF file of CUDA code for the target that the
    /// manifest gives.
    pub fn read_image(&self, image: &Image) -> Result<Vec<u8>, PackError> {
        let bytes = self.read_file(&image.file, &image.sha256)?;
        check_cubin(&self.folder.join(&image.file), &bytes, image)?;
        Ok(bytes)
    }

    /// The PTX of an image, verified; `None` if it has none.
    pub fn read_ptx(&self, image: &Image) -> Result<Option<Vec<u8>>, PackError> {
        image.ptx.as_ref().map(|ptx| self.read_file(&ptx.file, &ptx.sha256)).transpose()
    }

    fn read_file(&self, name: &str, expected: &str) -> Result<Vec<u8>, PackError> {
        let path = self.folder.join(name);
        let bytes =
            std::fs::read(&path).map_err(|e| PackError::Io { path: path.clone(), reason: e.to_string() })?;
        let found = sha256_hex(&bytes);
        if found != expected {
            return Err(PackError::Hash { path, expected: expected.into(), found });
        }
        Ok(bytes)
    }
}

/// `Ok` if the bytes are an ELF file of CUDA code whose `e_flags` name the image's architecture.
///
/// The low byte of `e_flags` is the number of the architecture up to ABI 7; from ABI 8 (CUDA 13) it is bits 8..16.
fn check_cubin(path: &Path, bytes: &[u8], image: &Image) -> Result<(), PackError> {
    let wrong = |reason: String| Err(PackError::Image { path: path.into(), reason });
    if bytes.len() as u64 != image.bytes {
        return wrong(format!("{} bytes, the manifest says {}", bytes.len(), image.bytes));
    }
    let word = |at: usize, n: usize| {
        bytes.get(at..at + n).map(|b| b.iter().rev().fold(0u32, |value, &byte| value << 8 | u32::from(byte)))
    };
    if bytes.get(..5) != Some(b"\x7fELF\x02") {
        return wrong("not a 64-bit ELF file".into());
    }
    if word(18, 2) != Some(EM_CUDA.into()) {
        return wrong("not an ELF file of CUDA code".into());
    }
    let (abi, flags) = (bytes.get(8).copied().unwrap_or(0), word(48, 4).unwrap_or(0));
    let number = if abi >= 8 { flags >> 8 & 0xff } else { flags & 0xff };
    match image.target.parse::<Flavour>() {
        Ok(flavour) if flavour.compute_capability.number() == number => Ok(()),
        _ => wrong(format!("holds code for sm_{number}, the manifest says {}", image.target)),
    }
}
