//! Where the workspace is, and its cargo.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The root of the checkout.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// The cargo that runs us, in the root of the checkout.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// A path of the checkout, from its parts relative to the root with `/` between them.
pub(crate) fn path(relative: &str) -> PathBuf {
    root().join(relative)
}
