//! The cache outside the checkout: artefacts that were fetched or made, each used only if it verifies.

use crate::pins::sha256;
use anyhow::{Context, Result};
use etcetera::BaseStrategy;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
};

/// A cache folder.
pub(crate) struct Cache {
    root: PathBuf,
}

impl Cache {
    /// `$NVFP4_CACHE`, else `nvfp4` in the user's cache folder. Creates it.
    pub(crate) fn open() -> Result<Self> {
        let root = match std::env::var_os("NVFP4_CACHE") {
            Some(path) => PathBuf::from(path),
            None => etcetera::choose_base_strategy()
                .context("this user has no cache folder: set NVFP4_CACHE to one")?
                .cache_dir()
                .join("nvfp4"),
        };
        Self::at(&root)
    }

    /// A cache in a given folder. Creates it.
    pub(crate) fn at(root: &Path) -> Result<Self> {
        fs::create_dir_all(root).with_context(|| format!("cache folder {}", root.display()))?;
        Ok(Self { root: std::path::absolute(root).with_context(|| root.display().to_string())? })
    }

    /// A path inside the cache.
    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// Waits until no other process uses the cache; held until the returned file is dropped.
    pub(crate) fn lock(&self) -> Result<File> {
        let path = self.path("lock");
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        file.lock().with_context(|| path.display().to_string())?;
        Ok(file)
    }

    /// An empty folder on the same file system as the cache, removed when dropped, to make things in.
    pub(crate) fn staging(&self) -> Result<tempfile::TempDir> {
        tempfile::Builder::new().prefix("staging-").tempdir_in(&self.root).context("staging folder in the cache")
    }

    /// A folder of the cache that holds the given files with the given SHA-256. If it does not, what is there is
    /// removed and `make` is asked to fill a new folder, which is put in place only if it verifies.
    pub(crate) fn folder(
        &self,
        relative: &str,
        files: &BTreeMap<String, String>,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let path = self.path(relative);
        if path.exists() {
            match verify(&path, files) {
                Ok(()) => return Ok(path),
                Err(fault) => {
                    eprintln!("cache: {fault:#}; fetching it anew");
                    fs::remove_dir_all(&path).with_context(|| path.display().to_string())?;
                }
            }
        }
        let staging = self.staging()?;
        let made = staging.path().join("folder");
        fs::create_dir(&made)?;
        make(&made)?;
        verify(&made, files)?;
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::rename(&made, &path).with_context(|| format!("{} to {}", made.display(), path.display()))?;
        Ok(path)
    }

    /// Whether the folder is there with the given files and hashes.
    pub(crate) fn has_folder(&self, relative: &str, files: &BTreeMap<String, String>) -> bool {
        verify(&self.path(relative), files).is_ok()
    }
}

/// Says which file of a folder is missing or is not what its SHA-256 says.
fn verify(folder: &Path, files: &BTreeMap<String, String>) -> Result<()> {
    for (name, expected) in files {
        let path = folder.join(name);
        let found = sha256(&path)?;
        anyhow::ensure!(&found == expected, "{}: sha256 is {found}, pinned is {expected}", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pinned() -> BTreeMap<String, String> {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        BTreeMap::from([("a.bin".into(), abc.into())])
    }

    #[test]
    fn a_good_folder_is_made_once() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::at(root.path()).unwrap();
        assert!(!cache.has_folder("models/a", &pinned()));
        let make = |folder: &Path| Ok(fs::write(folder.join("a.bin"), b"abc")?);
        let path = cache.folder("models/a", &pinned(), make).unwrap();
        assert!(cache.has_folder("models/a", &pinned()));
        let again = cache.folder("models/a", &pinned(), |_| anyhow::bail!("made twice")).unwrap();
        assert_eq!(path, again);
    }

    /// Whoever comes second waits, and finds what the first has made.
    #[test]
    fn two_at_a_time_make_it_once() {
        let root = tempfile::tempdir().unwrap();
        let made = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let cache = Cache::at(root.path()).unwrap();
                    let _lock = cache.lock().unwrap();
                    let path = cache.folder("a", &pinned(), |folder| {
                        made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        Ok(fs::write(folder.join("a.bin"), b"abc")?)
                    });
                    assert_eq!(fs::read(path.unwrap().join("a.bin")).unwrap(), b"abc");
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }

    #[test]
    fn a_corrupted_folder_is_refused_and_made_anew() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::at(root.path()).unwrap();
        let make = |folder: &Path| Ok(fs::write(folder.join("a.bin"), b"abc")?);
        let path = cache.folder("a", &pinned(), make).unwrap();
        for corrupted in [&b"abd"[..], b"ab", b""] {
            fs::write(path.join("a.bin"), corrupted).unwrap();
            assert!(!cache.has_folder("a", &pinned()));
            cache.folder("a", &pinned(), make).unwrap();
            assert_eq!(fs::read(path.join("a.bin")).unwrap(), b"abc");
        }
        fs::remove_file(path.join("a.bin")).unwrap();
        cache.folder("a", &pinned(), make).unwrap();
        assert_eq!(fs::read(path.join("a.bin")).unwrap(), b"abc");
    }

    #[test]
    fn what_does_not_verify_is_never_put_in_place() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::at(root.path()).unwrap();
        let error =
            cache.folder("a", &pinned(), |folder| Ok(fs::write(folder.join("a.bin"), b"evil")?)).unwrap_err();
        assert!(error.to_string().contains("a.bin: sha256 is"), "{error:#}");
        assert!(!cache.path("a").exists());
        cache.folder("a", &pinned(), |_| Ok(())).unwrap_err();
        assert!(!cache.path("a").exists());
        let left: Vec<_> = fs::read_dir(cache.path("")).unwrap().collect();
        assert!(left.is_empty(), "staging is cleaned: {left:?}");
    }
}
