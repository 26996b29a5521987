//! Standard output.

use serde::Serialize;
use std::io::{self, ErrorKind, Stdout, Write};

/// Standard output that goes on quietly when nobody reads it any more (`nvfp4 inspect … | head`), so that the
/// command still ends with its own exit code.
pub(crate) struct Output {
    stdout: io::BufWriter<Stdout>,
    unread: bool,
}

impl Output {
    pub(crate) fn new() -> Self {
        Self { stdout: io::BufWriter::new(io::stdout()), unread: false }
    }

    /// Writes one JSON document.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string_pretty(value)?;
        writeln!(self, "{text}")
    }

    fn note_broken_pipe<T>(&mut self, result: io::Result<T>, if_broken: T) -> io::Result<T> {
        match result {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.unread = true;
                Ok(if_broken)
            }
            other => other,
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.unread {
            return Ok(bytes.len());
        }
        let written = self.stdout.write(bytes);
        self.note_broken_pipe(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.unread {
            return Ok(());
        }
        let flushed = self.stdout.flush();
        self.note_broken_pipe(flushed, ())
    }
}
