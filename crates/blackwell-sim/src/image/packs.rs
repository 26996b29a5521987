//! Finding the PTX beside machine code, through the manifests of kernel packs.
//!
//! A manifest lists images; each has the sha256 of its machine code and the name and sha256 of the PTX that it was assembled from. Packs lie
//! a few folders below those that are searched.

use super::ImageError;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::{
    fmt,
    path::{Path, PathBuf},
};

/// Environment variable with folders that hold packs, separated like `PATH`.
pub const KERNELS_VARIABLE: &str = "NVFP4_KERNELS";
/// Environment variable with folders that hold packs for the simulator alone, separated like `PATH`; searched first.
pub const SIMULATOR_VARIABLE: &str = "NVFP4_SIM_PTX";
/// Name of a manifest.
const MANIFEST: &str = "manifest.json";
/// Folders below a searched one in which packs are looked for: `<folder>/<backend>/<target>/`, and one more.
const DEPTH: usize = 3;

/// Folders in which packs are looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackFolders(pub Vec<PathBuf>);

impl fmt::Display for PackFolders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no folder");
        }
        let folders: Vec<_> = self.0.iter().map(|folder| folder.display().to_string()).collect();
        f.write_str(&folders.join(", "))
    }
}

/// What is read of a manifest.
#[derive(Deserialize)]
struct Manifest {
    images: Vec<ManifestImage>,
}

#[derive(Deserialize)]
struct ManifestImage {
    sha256: String,
    ptx: Option<ManifestPtx>,
}

#[derive(Deserialize)]
struct ManifestPtx {
    file: String,
    sha256: String,
}

impl PackFolders {
    /// The folders of `NVFP4_SIM_PTX`, then those of `NVFP4_KERNELS`, or `kernels` beside the executable if that is not set.
    pub fn from_environment() -> Self {
        let listed = |variable| {
            let folders = std::env::var_os(variable)?;
            let folders = std::env::split_paths(&folders).filter(|path| !path.as_os_str().is_empty());
            Some(folders.collect::<Vec<_>>())
        };
        let beside = || std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("kernels")));
        let own = listed(SIMULATOR_VARIABLE).unwrap_or_default();
        let packs = listed(KERNELS_VARIABLE).unwrap_or_else(|| beside().into_iter().collect());
        Self([own, packs].concat())
    }

    /// These folders, and `folder` before them.
    pub fn with(&self, folder: &Path) -> Self {
        Self(std::iter::once(folder.to_path_buf()).chain(self.0.iter().cloned()).collect())
    }

    /// File and text of the PTX of the machine code with this sha256 (lower-case hexadecimal). `None` if no manifest has it.
    ///
    /// # Errors
    /// A manifest has it, but its PTX is missing or not the one that the manifest describes; or a manifest cannot be read.
    pub fn ptx_of(&self, hash: &str) -> Result<Option<(PathBuf, String)>, ImageError> {
        for folder in &self.0 {
            for path in manifests(folder, DEPTH) {
                if let Some(found) = ptx_in(&path, hash)? {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }
}

/// Every manifest in `folder` and in `depth` levels of folders below it, in order of their names.
fn manifests(folder: &Path, depth: usize) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let own = folder.join(MANIFEST);
    if own.is_file() {
        found.push(own);
    }
    if depth > 0
        && let Ok(entries) = std::fs::read_dir(folder)
    {
        let mut below: Vec<_> = entries.flatten().map(|e| e.path()).filter(|path| path.is_dir()).collect();
        below.sort();
        found.extend(below.iter().flat_map(|path| manifests(path, depth - 1)));
    }
    found
}

/// The PTX of the machine code with this hash, if the manifest has it.
fn ptx_in(path: &Path, hash: &str) -> Result<Option<(PathBuf, String)>, ImageError> {
    let pack = |path: &Path, reason: String| ImageError::Pack { path: path.into(), reason };
    let text = std::fs::read_to_string(path).map_err(|e| pack(path, e.to_string()))?;
    // The cheap question first: most manifests are of other kernels, and some folders hold files of that name that are no packs.
    if !text.contains(hash) {
        return Ok(None);
    }
    let manifest: Manifest =
        serde_json::from_str(&text).map_err(|e| pack(path, format!("not a pack manifest: {e}")))?;
    let Some(image) = manifest.images.into_iter().find(|image| image.sha256 == hash) else { return Ok(None) };
    let ptx = image.ptx.ok_or_else(|| {
        pack(path, "this pack has machine code only; the simulator needs the PTX it was assembled from".into())
    })?;
    let file = path.with_file_name(&ptx.file);
    let text = std::fs::read_to_string(&file).map_err(|e| pack(&file, e.to_string()))?;
    let found = sha256_hex(text.as_bytes());
    if found != ptx.sha256 {
        return Err(pack(&file, format!("sha256 is {found}, the manifest says {}", ptx.sha256)));
    }
    Ok(Some((file, text)))
}

/// sha256 in lower-case hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
