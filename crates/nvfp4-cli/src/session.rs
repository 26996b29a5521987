//! What every command is given.

use crate::output::Output;

/// Where a command writes, and how.
pub(crate) struct Session {
    /// Standard output: reports, and nothing else.
    pub(crate) out: Output,
    /// Reports are JSON.
    pub(crate) json: bool,
    /// No progress bars.
    pub(crate) quiet: bool,
}
