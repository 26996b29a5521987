//! Lists of things that the user should know.

use std::{
    fmt::Display,
    io::{self, Write},
};

/// Writes a title and the notices, one a line; nothing if there are none.
pub(crate) fn write<T: Display>(title: &str, notices: &[T], out: &mut impl Write) -> io::Result<()> {
    if notices.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}:")?;
    notices.iter().try_for_each(|notice| writeln!(out, "  {notice}"))
}
