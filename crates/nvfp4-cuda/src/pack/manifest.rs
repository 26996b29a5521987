//! `manifest.json`: what a pack holds and where it comes from.

use super::PackError;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, path::Path};

/// Version of the manifest's own form.
pub const SCHEMA: u32 = 2;

/// A pack's manifest. File names are relative to the pack's folder.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Backend that the pack is for, e.g. `quantize`.
    pub backend: String,
    /// Revision of the kernels' interface (parameters, symbols); the crate reads exactly one.
    pub revision: u32,
    /// Licence of the binaries (SPDX).
    pub licence: String,
    /// Tools and their versions, e.g. `nvcc` → `13.0.88`.
    pub tools: BTreeMap<String, String>,
    /// Flags given to the compiler, the target aside.
    pub flags: Vec<String>,
    /// Sources and their sha256.
    pub sources: BTreeMap<String, String>,
    /// The binaries.
    pub images: Vec<Image>,
}

/// One binary.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// Target, e.g. `sm_90a`.
    pub target: String,
    /// File of the cubin.
    pub file: String,
    /// Its sha256.
    pub sha256: String,
    /// Its size, bytes.
    pub bytes: u64,
    /// The PTX that it was assembled from; none for binaries that come as machine code only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ptx: Option<Ptx>,
    /// Kernel symbols.
    pub kernels: Vec<String>,
    /// What the backend's crate needs to know about the kernel, in its own form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<serde_json::Value>,
}

/// The PTX beside a binary.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ptx {
    /// Its file.
    pub file: String,
    /// Its sha256.
    pub sha256: String,
}

impl Manifest {
    /// Reads a manifest.
    pub fn read(path: &Path) -> Result<Self, PackError> {
        let text = std::fs::read(path).map_err(|e| PackError::Io { path: path.into(), reason: e.to_string() })?;
        let manifest = |reason: String| PackError::Manifest { path: path.into(), reason };
        let read: Self =
            serde_json::from_slice(&text).map_err(|e| manifest(format!("not a pack manifest: {e}")))?;
        if read.schema != SCHEMA {
            return Err(manifest(format!("schema {}, this build reads {SCHEMA}", read.schema)));
        }
        for image in &read.images {
            image.target.parse::<super::Flavour>().map_err(|e| manifest(e.to_string()))?;
            for file in std::iter::once(&image.file).chain(image.ptx.as_ref().map(|ptx| &ptx.file)) {
                if file.is_empty() || file.contains(['/', '\\']) || file.contains("..") {
                    return Err(manifest(format!("`{file}` is not a plain file name")));
                }
            }
        }
        Ok(read)
    }
}

/// sha256 in lower-case hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
