//! Faults of files, of which the first few are kept.

use crate::Error;

/// Faults in the order in which they were found.
#[derive(Debug)]
pub(crate) struct Faults {
    limit: usize,
    kept: Vec<Error>,
    count: usize,
}

impl Faults {
    /// Keeps `limit` of them, and counts all: a header that lies about a million tensors must not fill the memory.
    pub(crate) const fn keeping(limit: usize) -> Self {
        Self { limit, kept: Vec::new(), count: 0 }
    }

    pub(crate) fn push(&mut self, fault: Error) {
        self.count += 1;
        if self.kept.len() < self.limit {
            self.kept.push(fault);
        }
    }

    /// How many were found.
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Those that were kept.
    pub(crate) fn into_kept(self) -> Vec<Error> {
        self.kept
    }
}
