//! Kernel packs: the native kernels of a backend for one architecture, built ahead of time.
//!
//! A pack is a folder with `manifest.json`, the binaries (cubins) and, beside each, the PTX it was assembled from.
//! Nothing is compiled or downloaded at run time: a pack is found ([`find`]), verified against its manifest, and the
//! very bytes that were verified are loaded.

pub mod find;
pub mod flavour;
pub mod manifest;
pub mod recipe;

pub use find::{Pack, find_images, find_pack, search_path};
pub use flavour::Flavour;
pub use manifest::{Image, Manifest, Ptx};
pub use recipe::{RECIPES, Recipe};

use std::path::PathBuf;

/// Why a pack cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// No pack of the backend was found.
    #[error(
        "no kernel pack `{backend}` for {device}; looked for {backend}/<target>/manifest.json in {}; {}; build one with \
         `cargo xtask build-kernels --backend {backend}`, or name its folder in NVFP4_KERNELS",
        looked_in.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", "),
        if present.is_empty() { "found no images".into() } else { format!("found images for {}", present.join(", ")) }
    )]
    NotFound {
        /// The backend.
        backend: String,
        /// The device.
        device: String,
        /// Folders that were looked in.
        looked_in: Vec<PathBuf>,
        /// Images of the backend that are there, for other devices.
        present: Vec<String>,
    },
    /// A file of the pack cannot be read.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The manifest is not one.
    #[error("{}: {reason}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file is not the one that the manifest describes.
    #[error("{}: sha256 is {found}, the manifest says {expected}; build or download the pack again", path.display())]
    Hash {
        /// The file.
        path: PathBuf,
        /// Hash in the manifest.
        expected: String,
        /// Hash of the file.
        found: String,
    },
    /// A binary is not an image for the architecture that the manifest gives.
    #[error("{}: {reason}", path.display())]
    Image {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The pack was made for another version of the crate.
    #[error("{}: made for `{backend}` revision {found}, this build reads revision {expected}", path.display())]
    Revision {
        /// The manifest.
        path: PathBuf,
        /// The backend.
        backend: String,
        /// Revision that this build reads.
        expected: u32,
        /// Revision of the pack.
        found: u32,
    },
}
