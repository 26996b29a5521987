//! Where cuDNN may be.

use std::path::{Path, PathBuf};

/// Environment variable that names the library's file or its folder. If it is set, nothing else is tried.
pub const CUDNN_VARIABLE: &str = "NVFP4_CUDNN";

/// Name of the library: any cuDNN 9.
pub const SONAME: &str = if cfg!(windows) { "cudnn64_9.dll" } else { "libcudnn.so.9" };

/// Files and names to try, in this order: what `NVFP4_CUDNN` says (then nothing else); beside the executable; what the
/// system's loader finds by name; the pip wheel in the active virtual or conda environment; the CUDA toolkit's and the
/// system's folders.
pub fn search_path() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(given) = variable(CUDNN_VARIABLE) {
        return vec![if given.is_dir() { given.join(SONAME) } else { given }];
    }
    let mut candidates = Vec::new();
    if let Some(folder) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
        candidates.extend([folder.join(SONAME)].into_iter().filter(|file| file.is_file()));
    }
    candidates.push(SONAME.into());
    for environment in ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| variable(name)) {
        candidates.extend(wheel_files(&environment));
        candidates.push(environment.join("lib").join(SONAME));
    }
    for toolkit in ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| variable(name)) {
        candidates.push(toolkit.join("lib64").join(SONAME));
    }
    if cfg!(unix) {
        let system =
            ["/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];
        candidates.extend(system.iter().map(|folder| Path::new(folder).join(SONAME)));
    }
    candidates
}

/// The library as pip installs it into an environment, for every Python there.
fn wheel_files(environment: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(environment.join("lib")) else { return Vec::new() };
    let mut files: Vec<_> = entries
        .flatten()
        .map(|entry| entry.path().join("site-packages/nvidia/cudnn/lib").join(SONAME))
        .filter(|file| file.is_file())
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheels_of_an_environment_are_found() {
        let environment = tempfile::tempdir().unwrap();
        assert!(wheel_files(environment.path()).is_empty());
        let folder = environment.path().join("lib/python3.12/site-packages/nvidia/cudnn/lib");
        std::fs::create_dir_all(&folder).unwrap();
        assert!(wheel_files(environment.path()).is_empty());
        std::fs::write(folder.join(SONAME), b"").unwrap();
        assert_eq!(wheel_files(environment.path()), [folder.join(SONAME)]);
    }

    /// The loader is asked for the name that every cuDNN 9 has, not for a version's file.
    #[test]
    fn found_by_soname() {
        assert!(search_path().contains(&PathBuf::from(SONAME)) || std::env::var_os(CUDNN_VARIABLE).is_some());
        assert!(cfg!(windows) || SONAME == "libcudnn.so.9");
    }
}
