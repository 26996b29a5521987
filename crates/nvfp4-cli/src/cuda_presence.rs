//! Whether this machine has an NVIDIA GPU and its driver, told from files: nothing is loaded and no device is opened.

use serde::Serialize;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct CudaPresence {
    /// Files of the driver library (`libcuda.so.1`, `nvcuda.dll`).
    pub(crate) driver_libraries: Vec<PathBuf>,
    /// Device nodes, e.g. `/dev/nvidia0`.
    pub(crate) device_nodes: Vec<PathBuf>,
    /// Version of the kernel module, if it is loaded and tells.
    pub(crate) kernel_module: Option<String>,
    /// Names of GPUs that the kernel module knows, or PCI addresses of NVIDIA display devices.
    pub(crate) gpus: Vec<String>,
}

impl CudaPresence {
    /// Looks at this machine.
    pub(crate) fn detect() -> Self {
        Self::in_root(Path::new("/"), std::env::var_os(LIBRARY_PATH))
    }

    /// Looks at the machine whose file system is at `root`, with this value of the variable [`LIBRARY_PATH`].
    fn in_root(root: &Path, library_path: Option<OsString>) -> Self {
        let kernel_module = std::fs::read_to_string(root.join("proc/driver/nvidia/version"))
            .ok()
            .and_then(|text| text.lines().next().map(|line| line.trim().to_string()));
        let mut gpus = gpus_of_kernel_module(root);
        if gpus.is_empty() {
            gpus = gpus_on_pci(root);
        }
        Self {
            driver_libraries: driver_libraries(root, library_path),
            device_nodes: device_nodes(root),
            kernel_module,
            gpus,
        }
    }

    /// What this means for the user; `None` if there is nothing of NVIDIA's.
    pub(crate) fn summary(&self) -> Option<&'static str> {
        match (!self.gpus.is_empty() || !self.device_nodes.is_empty(), !self.driver_libraries.is_empty()) {
            (true, true) => Some("an NVIDIA GPU and its driver are here"),
            (true, false) => Some(
                "an NVIDIA GPU is here, its driver library is not; install NVIDIA's driver (in a container: --gpus all)",
            ),
            (false, true) => Some(
                "the driver library is here, but no NVIDIA GPU; in a container, start it with access to the GPU",
            ),
            (false, false) => None,
        }
    }
}

#[cfg(windows)]
const LIBRARY_PATH: &str = "PATH";
#[cfg(not(windows))]
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

#[cfg(windows)]
const DRIVER_LIBRARY: &str = "nvcuda.dll";
#[cfg(not(windows))]
const DRIVER_LIBRARY: &str = "libcuda.so.1";

/// Directories in which drivers and container runtimes put the driver library, relative to the root.
const LIBRARY_DIRECTORIES: &[&str] = &[
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/aarch64-linux-gnu/tegra",
    "usr/lib/aarch64-linux-gnu/nvidia",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "usr/local/cuda/compat",
    "run/opengl-driver/lib",
    "Windows/System32",
];

fn driver_libraries(root: &Path, library_path: Option<OsString>) -> Vec<PathBuf> {
    let named: Vec<PathBuf> = library_path.map(|value| std::env::split_paths(&value).collect()).unwrap_or_default();
    let usual = LIBRARY_DIRECTORIES.iter().map(|directory| root.join(directory));
    let mut found: Vec<PathBuf> = Vec::new();
    let mut seen: Vec<PathBuf> = Vec::new();
    let candidates = named.into_iter().chain(usual).map(|directory| directory.join(DRIVER_LIBRARY));
    for file in candidates.chain(in_loader_cache(root)) {
        // The same file is reached by several paths where /lib is a link to /usr/lib.
        let Ok(real) = file.canonicalize() else { continue };
        if real.is_file() && !seen.contains(&real) {
            seen.push(real);
            found.push(file);
        }
    }
    found
}

/// Paths of the driver library in the cache of the dynamic loader, which lists them as NUL-terminated text.
fn in_loader_cache(root: &Path) -> Vec<PathBuf> {
    let cache = std::fs::read(root.join("etc/ld.so.cache")).unwrap_or_default();
    let paths = cache.split(|&byte| byte == 0).filter_map(|text| std::str::from_utf8(text).ok());
    let paths = paths.filter(|path| path.starts_with('/') && path.ends_with(&format!("/{DRIVER_LIBRARY}")));
    paths.map(|path| root.join(path.trim_start_matches('/'))).collect()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(directory)
        .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
        .unwrap_or_default();
    found.sort();
    found
}

/// `/dev/nvidia0` and so on; `/dev/dxg` is how WSL 2 reaches the GPUs of Windows.
fn device_nodes(root: &Path) -> Vec<PathBuf> {
    let is_gpu = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let number = name.strip_prefix("nvidia").or_else(|| name.strip_prefix("nvgpu"));
        name == "dxg" || number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    entries(&root.join("dev")).into_iter().filter(is_gpu).collect()
}

fn gpus_of_kernel_module(root: &Path) -> Vec<String> {
    let information = entries(&root.join("proc/driver/nvidia/gpus")).into_iter().map(|gpu| gpu.join("information"));
    let model = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("Model:"));
        line.map(|name| name.trim().to_string())
    };
    information.filter_map(|file| std::fs::read_to_string(file).ok().and_then(model)).collect()
}

/// NVIDIA's vendor number is 0x10de; classes 0x03…… are display controllers.
fn gpus_on_pci(root: &Path) -> Vec<String> {
    let read = |device: &Path, file: &str| std::fs::read_to_string(device.join(file)).unwrap_or_default();
    let gpus = entries(&root.join("sys/bus/pci/devices")).into_iter().filter(|device| {
        read(device, "vendor").trim() == "0x10de" && read(device, "class").trim().starts_with("0x03")
    });
    gpus.filter_map(|device| Some(format!("PCI device {}", device.file_name()?.to_string_lossy()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn put(root: &Path, file: &str, text: &str) {
        let file = root.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn an_empty_machine_has_nothing() {
        let root = tempfile::tempdir().unwrap();
        let found = CudaPresence::in_root(root.path(), None);
        assert_eq!(found, CudaPresence::default());
        assert_eq!(found.summary(), None);
    }

    #[test]
    fn a_gpu_without_a_driver_is_told_from_the_bus() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
        put(root.path(), "sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
        put(root.path(), "sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n");
        put(root.path(), "sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n");
        put(root.path(), "sys/bus/pci/devices/0000:02:00.0/vendor", "0x8086\n");
        put(root.path(), "sys/bus/pci/devices/0000:02:00.0/class", "0x030000\n");
        let found = CudaPresence::in_root(root.path(), None);
        assert_eq!(found.gpus, ["PCI device 0000:01:00.0"]);
        assert!(found.summary().unwrap().contains("install"));
    }

    #[cfg(unix)]
    #[test]
    fn a_complete_machine_is_described() {
        let root = tempfile::tempdir().unwrap();
        let extra = tempfile::tempdir().unwrap();
        put(root.path(), "usr/lib64/libcuda.so.1", "a");
        std::os::unix::fs::symlink("usr/lib64", root.path().join("lib64")).unwrap();
        put(root.path(), "opt/driver/libcuda.so.1", "b");
        put(
            root.path(),
            "etc/ld.so.cache",
            "glibc-ld.so.cache1.1\0\u{1}libcuda.so.1\0/lib64/libcuda.so.1\0/opt/driver/libcuda.so.1\0/gone/libcuda.so.1\0",
        );
        put(extra.path(), "libcuda.so.1", "c");
        for node in ["nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm", "null"] {
            put(root.path(), &format!("dev/{node}"), "");
        }
        put(root.path(), "proc/driver/nvidia/version", "NVRM version: 580.95\nGCC version: 13\n");
        put(root.path(), "proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 3\n");
        let found = CudaPresence::in_root(root.path(), Some(extra.path().as_os_str().to_owned()));
        assert_eq!(
            found.driver_libraries,
            [
                extra.path().join("libcuda.so.1"),
                root.path().join("usr/lib64/libcuda.so.1"),
                root.path().join("opt/driver/libcuda.so.1"),
            ]
        );
        assert_eq!(found.device_nodes, [root.path().join("dev/nvidia0"), root.path().join("dev/nvidia11")]);
        assert_eq!(found.kernel_module.as_deref(), Some("NVRM version: 580.95"));
        assert_eq!(found.gpus, ["NVIDIA H200"]);
        assert_eq!(found.summary(), Some("an NVIDIA GPU and its driver are here"));
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let found = CudaPresence::detect();
        assert!(found.driver_libraries.iter().all(|file| file.is_file()), "{found:?}");
    }
}
