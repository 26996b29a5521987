//! A directory that is either complete or absent.

use super::WriteError;
use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// Attempts at finding a free name for the temporary directory.
const ATTEMPTS: usize = 64;

/// A directory under construction. Its files are written to a hidden directory beside the target, which
/// [`commit`](Self::commit) flushes to disk and renames; dropping it uncommitted removes everything.
#[derive(Debug)]
pub(crate) struct OutputDirectory {
    target: PathBuf,
    temporary: PathBuf,
    replace: bool,
    committed: bool,
}

impl OutputDirectory {
    /// Begins a directory that will appear as `target`, whose parent must exist.
    ///
    /// A target that exists is refused, unless `replace` is set and it is a directory that is empty or holds a
    /// safetensors or GGUF file: what is not a model is never deleted.
    pub(crate) fn create(target: &Path, replace: bool) -> Result<Self, WriteError> {
        check_target(target, replace)?;
        let temporary = create_beside(target, "partial")?;
        Ok(Self { target: target.to_path_buf(), temporary, replace, committed: false })
    }

    /// Where the files are until [`commit`](Self::commit).
    pub(crate) fn path(&self) -> &Path {
        &self.temporary
    }

    /// Creates `file` (a relative path) and the folders that it lies in.
    pub(crate) fn create_file(&self, file: &Path) -> Result<File, WriteError> {
        let path = self.temporary.join(file);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(WriteError::io("create the directory", folder))?;
        }
        File::create_new(&path).map_err(WriteError::io("create", &path))
    }

    /// Flushes everything to disk and gives the directory its name.
    pub(crate) fn commit(mut self) -> Result<(), WriteError> {
        sync_tree(&self.temporary)?;
        check_target(&self.target, self.replace)?;
        let previous = match self.replace && self.target.symlink_metadata().is_ok() {
            true => Some(self.move_away()?),
            false => None,
        };
        if let Err(error) = fs::rename(&self.temporary, &self.target) {
            if let Some(previous) = previous {
                // The old checkpoint gets its name back; if even this fails it stays under the hidden name.
                fs::rename(&previous, &self.target).map_err(WriteError::io("restore", &self.target))?;
            }
            return Err(WriteError::io("rename the finished output to", &self.target)(error));
        }
        self.committed = true;
        sync_directory(parent(&self.target))?;
        match previous {
            Some(previous) => fs::remove_dir_all(&previous).map_err(WriteError::io("remove", &previous)),
            None => Ok(()),
        }
    }

    /// Renames the existing target to a hidden name beside it.
    fn move_away(&self) -> Result<PathBuf, WriteError> {
        let name = create_beside(&self.target, "old")?;
        // Renaming over an empty directory replaces it on Unix and fails on Windows.
        fs::remove_dir(&name).map_err(WriteError::io("remove", &name))?;
        fs::rename(&self.target, &name).map_err(WriteError::io("rename", &self.target))?;
        Ok(name)
    }
}

impl Drop for OutputDirectory {
    fn drop(&mut self) {
        if !self.committed {
            // Nobody is left to tell; what cannot be removed stays under a name that says what it is.
            let _ = fs::remove_dir_all(&self.temporary);
        }
    }
}

/// Makes a new hidden directory beside `target`.
fn create_beside(target: &Path, purpose: &str) -> Result<PathBuf, WriteError> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let name = target.file_name().ok_or_else(|| WriteError::NoName { path: target.to_path_buf() })?;
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let mut hidden = OsString::from(".");
        hidden.push(name);
        let unique = COUNTER.fetch_add(1, Ordering::Relaxed);
        hidden.push(format!(".{purpose}-{}-{unique}", std::process::id()));
        let path = target.with_file_name(hidden);
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => last = Some((path, e)),
            Err(e) => return Err(WriteError::io("create the directory", &path)(e)),
        }
    }
    let (path, e) = last.unwrap_or_else(|| (target.to_path_buf(), io::ErrorKind::AlreadyExists.into()));
    Err(WriteError::io("create the directory", &path)(e))
}

/// `Ok` if an output may appear as `target`.
fn check_target(target: &Path, replace: bool) -> Result<(), WriteError> {
    let metadata = match target.symlink_metadata() {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(WriteError::io("look at", target)(e)),
    };
    if !replace {
        return Err(WriteError::Exists { path: target.to_path_buf() });
    }
    let mut empty = true;
    let mut model = false;
    if metadata.is_dir() {
        for entry in fs::read_dir(target).map_err(WriteError::io("list", target))? {
            let entry = entry.map_err(WriteError::io("list", target))?;
            empty = false;
            model |= Path::new(&entry.file_name()).extension().is_some_and(|e| e == "safetensors" || e == "gguf");
        }
    }
    match metadata.is_dir() && (empty || model) {
        true => Ok(()),
        false => Err(WriteError::NotACheckpoint { path: target.to_path_buf() }),
    }
}

/// The directory that `path` lies in.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Flushes the files and directories under `folder`, and `folder` itself.
fn sync_tree(folder: &Path) -> Result<(), WriteError> {
    for entry in fs::read_dir(folder).map_err(WriteError::io("list", folder))? {
        let entry = entry.map_err(WriteError::io("list", folder))?;
        let path = entry.path();
        if entry.file_type().map_err(WriteError::io("look at", &path))?.is_dir() {
            sync_tree(&path)?;
        } else {
            // Write access: Windows flushes no read-only handle.
            let file = File::options().append(true).open(&path).map_err(WriteError::io("open", &path))?;
            file.sync_all().map_err(WriteError::io("flush", &path))?;
        }
    }
    sync_directory(folder)
}

/// Flushes a directory's entries. Windows has no such call; its file system journals them.
fn sync_directory(folder: &Path) -> Result<(), WriteError> {
    if cfg!(windows) {
        return Ok(());
    }
    File::open(folder).and_then(|f| f.sync_all()).map_err(WriteError::io("flush the directory", folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn write(directory: &OutputDirectory, file: &str, text: &str) {
        directory.create_file(Path::new(file)).unwrap().write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn appears_complete_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        let directory = OutputDirectory::create(&target, false).unwrap();
        write(&directory, "1_Pooling/config.json", "{}");
        assert!(!target.exists());
        assert_eq!(names(folder.path()).len(), 1, "the temporary directory lies beside the target");
        directory.commit().unwrap();
        assert_eq!(names(folder.path()), ["out"]);
        assert_eq!(fs::read_to_string(target.join("1_Pooling/config.json")).unwrap(), "{}");
    }

    #[test]
    fn dropped_means_absent() {
        let folder = tempfile::tempdir().unwrap();
        let directory = OutputDirectory::create(&folder.path().join("out"), false).unwrap();
        write(&directory, "a/b/c", "x");
        drop(directory);
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn refuses_what_exists() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("model.safetensors"), "old").unwrap();
        assert!(matches!(OutputDirectory::create(&target, false), Err(WriteError::Exists { .. })));

        // It appears while the output is being written.
        let late = folder.path().join("late");
        let directory = OutputDirectory::create(&late, false).unwrap();
        fs::create_dir(&late).unwrap();
        assert!(matches!(directory.commit(), Err(WriteError::Exists { .. })));
        assert_eq!(names(folder.path()), ["late", "out"]);
        assert_eq!(fs::read_to_string(target.join("model.safetensors")).unwrap(), "old");
    }

    #[test]
    fn replaces_a_model_and_only_a_model() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("thesis.tex"), "years of work").unwrap();
        assert!(matches!(OutputDirectory::create(&target, true), Err(WriteError::NotACheckpoint { .. })));
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(matches!(OutputDirectory::create(&file, true), Err(WriteError::NotACheckpoint { .. })));

        fs::write(target.join("model.safetensors"), "old").unwrap();
        let directory = OutputDirectory::create(&target, true).unwrap();
        write(&directory, "model.safetensors", "new");
        directory.commit().unwrap();
        assert_eq!(names(folder.path()), ["file", "out"]);
        assert_eq!(names(&target), ["model.safetensors"]);
        assert_eq!(fs::read_to_string(target.join("model.safetensors")).unwrap(), "new");
    }

    #[test]
    fn says_what_is_wrong_with_the_place() {
        let folder = tempfile::tempdir().unwrap();
        let missing = OutputDirectory::create(&folder.path().join("no/such/out"), false).unwrap_err();
        assert!(missing.to_string().contains("no/such"), "{missing}");
        fs::write(folder.path().join("file"), "x").unwrap();
        assert!(OutputDirectory::create(&folder.path().join("file/out"), false).is_err());
        assert!(matches!(OutputDirectory::create(Path::new("/"), false), Err(WriteError::Exists { .. })));
        assert!(matches!(
            OutputDirectory::create(Path::new(".."), true),
            Err(WriteError::NotACheckpoint { .. }) | Err(WriteError::NoName { .. })
        ));
    }
}
