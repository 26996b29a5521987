//! Installing the simulator where programs look for the CUDA driver.

use std::{
    io,
    path::{Path, PathBuf},
};

/// File name of the library that cargo builds of this crate, on Linux.
pub const LIBRARY: &str = "libblackwell_sim.so";

/// Names by which programs load the CUDA driver.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Makes `folder` hold the simulator as the CUDA driver: links to `library`, which is the [`LIBRARY`] that
/// `cargo build -p blackwell-sim` puts into the target folder. A program finds it with the folder first in `LD_LIBRARY_PATH`, and a
/// device with `NVFP4_SIM` set. Creates the folder; replaces links that are there. Linux only.
///
/// # Errors
/// The library is not there; the folder or a link cannot be made.
pub fn install(library: &Path, folder: &Path) -> io::Result<()> {
    let library = library.canonicalize().map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("{}: {error}; build it with `cargo build -p blackwell-sim`", library.display()),
        )
    })?;
    std::fs::create_dir_all(folder)?;
    for name in NAMES {
        let path: PathBuf = folder.join(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => link(&library, &path)?,
        }
    }
    Ok(())
}

#[cfg(unix)]
fn link(library: &Path, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(library, path)
}

#[cfg(not(unix))]
fn link(_library: &Path, _path: &Path) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "the simulator stands in for the CUDA driver on Linux only"))
}
