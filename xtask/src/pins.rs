//! `third_party/pins.toml`: every foreign artefact with its version, hash and licence.

use crate::workspace;
use anyhow::{Context, Result};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, fs::File, io::Read, path::Path};

/// The file as a whole.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pins {
    /// Wheels of the Python Package Index whose content is used as data.
    pub(crate) wheels: BTreeMap<String, Wheel>,
    /// Hash-locked Python environments.
    pub(crate) locks: BTreeMap<String, Lock>,
    /// Foreign data, or data derived from it, that is in the repository.
    pub(crate) data: BTreeMap<String, Data>,
}

/// A wheel of the Python Package Index.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wheel {
    pub(crate) package: String,
    pub(crate) version: String,
    pub(crate) file: String,
    pub(crate) sha256: String,
    pub(crate) license: String,
    pub(crate) about: String,
    /// The folder inside the wheel that is unpacked.
    pub(crate) folder: String,
    /// The files of that folder that are used, with their SHA-256.
    pub(crate) files: BTreeMap<String, String>,
}

/// A pip requirements file with exact versions and hashes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lock {
    pub(crate) file: String,
    pub(crate) about: String,
}

/// Data in the repository.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Data {
    pub(crate) path: String,
    pub(crate) sha256: String,
    pub(crate) license: String,
    pub(crate) about: String,
}

impl Pins {
    pub(crate) fn read() -> Result<Self> {
        let path = workspace::path("third_party/pins.toml");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }

    pub(crate) fn wheel(&self, name: &str) -> Result<&Wheel> {
        self.wheels.get(name).with_context(|| format!("third_party/pins.toml has no [wheels.{name}]"))
    }

    pub(crate) fn lock(&self, name: &str) -> Result<&Lock> {
        self.locks.get(name).with_context(|| format!("third_party/pins.toml has no [locks.{name}]"))
    }
}

/// Prints every artefact with its licence.
pub(crate) fn list() -> Result<()> {
    let pins = Pins::read()?;
    for (name, wheel) in &pins.wheels {
        println!("wheel {name}: {}\n  {}: {}", wheel.source(), wheel.license, wheel.about);
    }
    for (name, lock) in &pins.locks {
        println!("python environment {name}: {}\n  {}", lock.file, lock.about);
    }
    for (name, data) in &pins.data {
        println!("data {name}: {} (sha256 {})\n  {}: {}", data.path, data.sha256, data.license, data.about);
    }
    Ok(())
}

impl Wheel {
    /// One line that says where the artefact comes from.
    pub(crate) fn source(&self) -> String {
        format!("PyPI package {} {}, {} (sha256 {})", self.package, self.version, self.file, self.sha256)
    }
}

/// The SHA-256 of a file, in lower-case hexadecimal.
pub(crate) fn sha256(path: &Path) -> Result<String> {
    let mut hasher = Sha256::new();
    let mut file = File::open(path).with_context(|| path.display().to_string())?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer).with_context(|| path.display().to_string())?;
        if read == 0 {
            return Ok(hex(&hasher.finalize()));
        }
        hasher.update(&buffer[..read]);
    }
}

/// The SHA-256 of several byte strings, each preceded by its length, in lower-case hexadecimal.
pub(crate) fn sha256_of(parts: &[&[u8]]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hex(&hasher.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_sha256(text: &str) -> bool {
        text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    }

    #[test]
    fn sha256_of_known_bytes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"abc").unwrap();
        // FIPS 180-2, appendix B.1.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(file.path()).unwrap(), expected);
        assert_ne!(sha256_of(&[b"ab", b"c"]), sha256_of(&[b"a", b"bc"]), "boundaries count");
    }

    #[test]
    fn every_pin_is_complete() {
        let pins = Pins::read().unwrap();
        assert!(!pins.wheels.is_empty() && !pins.locks.is_empty() && !pins.data.is_empty());
        for (name, wheel) in &pins.wheels {
            assert!(is_sha256(&wheel.sha256), "wheels.{name}: {}", wheel.sha256);
            assert!(!wheel.files.is_empty() && wheel.files.values().all(|hash| is_sha256(hash)), "wheels.{name}");
            assert!(
                wheel.file.contains(&wheel.version) && wheel.file.ends_with(".whl"),
                "wheels.{name}: {}",
                wheel.file
            );
            assert!(!wheel.license.is_empty() && !wheel.about.is_empty(), "wheels.{name}");
        }
        for (name, lock) in &pins.locks {
            assert!(!lock.about.is_empty(), "locks.{name}");
        }
        for (name, data) in &pins.data {
            assert!(!data.license.is_empty() && !data.about.is_empty(), "data.{name}");
        }
    }

    #[test]
    fn data_in_the_repository_has_the_pinned_hash() {
        for (name, data) in Pins::read().unwrap().data {
            assert_eq!(sha256(&workspace::path(&data.path)).unwrap(), data.sha256, "data.{name}: {}", data.path);
        }
    }

    #[test]
    fn every_requirement_is_exact_and_hash_locked() {
        for (name, lock) in Pins::read().unwrap().locks {
            let text = std::fs::read_to_string(workspace::path(&lock.file)).unwrap();
            let logical = text.replace("\\\n", " ");
            let requirements: Vec<_> =
                logical.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')).collect();
            assert!(!requirements.is_empty(), "locks.{name}: empty");
            for requirement in requirements {
                assert!(requirement.contains("=="), "locks.{name}: {requirement}");
                assert!(requirement.contains("--hash=sha256:"), "locks.{name}: {requirement}");
                assert!(!requirement.contains("://"), "locks.{name}: an address instead of a name: {requirement}");
            }
        }
    }
}
