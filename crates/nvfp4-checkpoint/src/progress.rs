//! Progress of long work on a model.

/// Told how far the work is, from whichever thread does it.
///
/// ```
/// use nvfp4_checkpoint::{Progress, ProgressUpdate};
/// struct Print;
/// impl Progress for Print {
///     fn update(&self, update: ProgressUpdate<'_>) {
///         eprintln!("{}/{} bytes, {}", update.bytes_done, update.bytes_total, update.tensor);
///     }
/// }
/// ```
pub trait Progress: Sync {
    /// Called after each piece of work, often: an implementation should be cheap. `bytes_done` never falls, and
    /// reaches `bytes_total` when all tensors are done; flushing the output to disk comes after that.
    fn update(&self, update: ProgressUpdate<'_>);
}

/// How far the work is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ProgressUpdate<'a> {
    /// The tensor that was worked on.
    pub tensor: &'a str,
    /// Bytes that were read.
    pub bytes_done: u64,
    /// Bytes to read. Those of a tensor that is read twice count twice.
    pub bytes_total: u64,
}

/// No report.
impl Progress for () {
    fn update(&self, _: ProgressUpdate<'_>) {}
}

/// Counts bytes for a [`Progress`].
pub(crate) struct Counter<'a> {
    progress: &'a dyn Progress,
    done: std::sync::Mutex<u64>,
    total: u64,
}

impl<'a> Counter<'a> {
    pub(crate) fn new(progress: &'a dyn Progress, total: u64) -> Self {
        Self { progress, done: std::sync::Mutex::new(0), total }
    }

    /// Adds `bytes` of `tensor`.
    pub(crate) fn add(&self, tensor: &str, bytes: u64) {
        // The lock is held during the call, so that updates arrive in order.
        let mut done = self.done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *done += bytes;
        self.progress.update(ProgressUpdate { tensor, bytes_done: *done, bytes_total: self.total });
    }
}
