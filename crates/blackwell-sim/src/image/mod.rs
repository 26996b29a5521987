//! Module images: what a program hands the driver to load, and the PTX in it.
//!
//! An image is PTX text, a fat binary with PTX in it, or machine code. The simulator runs PTX only. For machine code it looks for the
//! PTX from which it was assembled: in the folders of kernel packs, through the manifest that has the machine code's hash.

pub mod cubin;
pub mod extent;
pub mod fat_binary;
pub mod packs;

pub use packs::PackFolders;

use crate::profile::Profile;
use fat_binary::{Entry, EntryKind};
use std::fmt;

/// The PTX of an image, ready to be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The PTX.
    pub ptx: String,
    /// Its target, e.g. `sm_100a`.
    pub target: String,
    /// Where it was found.
    pub origin: Origin,
}

/// Where the PTX of an image was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The image is PTX.
    Text,
    /// In a fat binary.
    FatBinary,
    /// In this file, beside the machine code that was loaded.
    Pack(std::path::PathBuf),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("PTX text"),
            Self::FatBinary => f.write_str("a fat binary"),
            Self::Pack(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Why an image cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// It is neither PTX nor a fat binary nor machine code.
    #[error("the image starts with {start:02x?}; it is neither PTX text nor a fat binary nor a cubin")]
    Unknown {
        /// Its first bytes.
        start: Vec<u8>,
    },
    /// It ends too early, or its numbers contradict each other.
    #[error("{what} of the image: {reason}")]
    Damaged {
        /// The part.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// It holds no PTX that the device runs.
    #[error("the image holds {}, which {device} does not run", found.join(", "))]
    OtherDevice {
        /// What it holds.
        found: Vec<String>,
        /// The device.
        device: String,
    },
    /// It is machine code, and its PTX was not found.
    #[error(
        "the image is machine code ({description}, sha256 {hash}); the simulator runs PTX and found no pack manifest with that hash \
         in {folders}; build the kernels as a pack, or name its folder in NVFP4_KERNELS"
    )]
    NoPtx {
        /// Its target and its kernels.
        description: String,
        /// Its hash.
        hash: String,
        /// Where was looked.
        folders: PackFolders,
    },
    /// A pack has the machine code, but not its PTX.
    #[error("{}: {reason}", path.display())]
    Pack {
        /// The manifest or the PTX file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// The PTX of an image that `profile` runs, the closest to the device first. `bytes` may go on after the image's end.
///
/// # Errors
/// See [`ImageError`].
pub fn read(bytes: &[u8], profile: &Profile, packs: &PackFolders) -> Result<Image, ImageError> {
    let image = match extent::Form::of(bytes)? {
        extent::Form::Ptx => {
            let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
            from_text(text, Origin::Text)?
        }
        extent::Form::Cubin => from_cubin(bytes, packs)?,
        extent::Form::FatBinary => return from_fat_binary(bytes, profile, packs),
    };
    match profile.runs_ptx(&image.target) {
        true => Ok(image),
        false => Err(other_device(vec![format!("PTX for {}", image.target)], profile)),
    }
}

fn other_device(found: Vec<String>, profile: &Profile) -> ImageError {
    ImageError::OtherDevice { found, device: format!("{} ({})", profile.name, profile.target) }
}

fn from_text(text: &[u8], origin: Origin) -> Result<Image, ImageError> {
    let damaged = |reason: String| ImageError::Damaged { what: "the PTX", reason };
    let ptx = std::str::from_utf8(text).map_err(|e| damaged(e.to_string()))?;
    let target = target_of(ptx).ok_or_else(|| damaged("it has no `.target` directive".into()))?.to_string();
    Ok(Image { ptx: ptx.into(), target, origin })
}

/// The first target of PTX text's `.target` directive.
fn target_of(ptx: &str) -> Option<&str> {
    let line = ptx.lines().map(str::trim_start).find_map(|line| line.strip_prefix(".target"))?;
    let target = line.trim_start().split([',', ' ', '\t', '/']).next()?.trim_end();
    (!target.is_empty()).then_some(target)
}

fn from_cubin(bytes: &[u8], packs: &PackFolders) -> Result<Image, ImageError> {
    let length = extent::cubin_length(bytes)?;
    let cubin = bytes.get(..length).ok_or_else(|| ImageError::Damaged {
        what: "the cubin",
        reason: format!("its headers speak of {length} bytes, there are {}", bytes.len()),
    })?;
    let hash = packs::sha256_hex(cubin);
    match packs.ptx_of(&hash)? {
        Some((path, text)) => from_text(text.as_bytes(), Origin::Pack(path)),
        None => Err(ImageError::NoPtx { description: cubin::describe(cubin)?, hash, folders: packs.clone() }),
    }
}

/// The best PTX of a fat binary; if it has none for the device, the PTX beside its machine code.
fn from_fat_binary(bytes: &[u8], profile: &Profile, packs: &PackFolders) -> Result<Image, ImageError> {
    let entries = fat_binary::entries(bytes)?;
    let mut texts = Vec::new();
    for entry in entries.iter().filter(|entry| entry.kind == EntryKind::Ptx) {
        let text = entry.contents()?;
        let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
        texts.push(from_text(text, Origin::FatBinary)?);
    }
    let found: Vec<_> = texts
        .iter()
        .map(|image| format!("PTX for {}", image.target))
        .chain(entries.iter().filter(|entry| entry.kind == EntryKind::Cubin).map(Entry::describe))
        .collect();
    let best = texts
        .into_iter()
        .filter(|image| profile.runs_ptx(&image.target))
        .max_by_key(|image| closeness(&image.target));
    if let Some(image) = best {
        return Ok(image);
    }
    for entry in entries.iter().filter(|entry| entry.kind == EntryKind::Cubin) {
        match from_cubin(&entry.contents()?, packs) {
            Ok(image) if profile.runs_ptx(&image.target) => return Ok(image),
            // Machine code for another device; whether any is left says the error below.
            Ok(_) => {}
            Err(error) if entry.runs_on(profile) => return Err(error),
            Err(_) => {}
        }
    }
    Err(other_device(found, profile))
}

/// Order of targets that one device runs: the latest architecture, then `a` before `f` before plain.
fn closeness(target: &str) -> (u32, u32) {
    let text = target.trim_start_matches("sm_");
    let digits = text.trim_end_matches(['a', 'f']);
    let feature = match &text[digits.len()..] {
        "a" => 2,
        "f" => 1,
        _ => 0,
    };
    (digits.parse().unwrap_or(0), feature)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        assert_eq!(target_of("// .target sm_1\n.version 9.0\n  .target sm_100a, debug\n"), Some("sm_100a"));
        assert_eq!(target_of(".target\tsm_90 // x"), Some("sm_90"));
        assert_eq!(target_of(".target\n"), None);
        assert_eq!(target_of(".version 9.0"), None);
    }

    #[test]
    fn the_closest_target_wins() {
        let order = ["sm_80", "sm_90", "sm_100", "sm_100f", "sm_100a", "sm_103f"];
        assert!(order.is_sorted_by_key(|target| closeness(target)));
    }
}
