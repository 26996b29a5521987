//! Machine code: what can be said of it without running it.

use super::{ImageError, extent::file_header};
use object::{LittleEndian, read::elf::FileHeader};

/// Name prefix of a section that holds a kernel's code.
const CODE: &[u8] = b".text.";
/// Kernels that a description names.
const NAMED: usize = 4;

/// Names of the kernels and functions that a cubin has code of.
///
/// # Errors
/// The file is damaged.
pub fn kernels(bytes: &[u8]) -> Result<Vec<String>, ImageError> {
    let damaged = |e: object::Error| ImageError::Damaged { what: "the cubin", reason: e.to_string() };
    let sections = file_header(bytes)?.sections(LittleEndian, bytes).map_err(damaged)?;
    let mut names = Vec::new();
    for section in sections.iter() {
        let name = sections.section_name(LittleEndian, section).map_err(damaged)?;
        if let Some(kernel) = name.strip_prefix(CODE) {
            names.push(String::from_utf8_lossy(kernel).into_owned());
        }
    }
    Ok(names)
}

/// A cubin's kernels, for messages.
///
/// # Errors
/// The file is damaged.
pub fn describe(bytes: &[u8]) -> Result<String, ImageError> {
    let kernels = kernels(bytes)?;
    let named = kernels.iter().take(NAMED).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    Ok(match kernels.len() {
        0 => "no kernels".into(),
        count if count > NAMED => format!("kernels {named} and {} more", count - NAMED),
        _ => format!("kernels {named}"),
    })
}
