//! Scratch memory that is kept between calls, so that a forward pass in steady state allocates nothing.

use std::sync::{Mutex, PoisonError};

/// A stock of scratch buffers, one for each call that is in flight at once. Buffers grow to the largest size that
/// was asked for and stay; [`clear`](Self::clear) gives them back.
#[derive(Debug, Default)]
pub struct WorkspacePool {
    free: Mutex<Vec<Vec<u64>>>,
}

impl WorkspacePool {
    /// An empty pool.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `f` with a buffer of at least `bytes` bytes, whose contents are unspecified.
    pub(crate) fn with<T>(&self, bytes: usize, f: impl FnOnce(&mut [u64]) -> T) -> T {
        let words = bytes.div_ceil(size_of::<u64>());
        let mut buffer = self.lock().pop().unwrap_or_default();
        if buffer.len() < words {
            buffer.resize(words, 0);
        }
        let result = f(&mut buffer[..words]);
        self.lock().push(buffer);
        result
    }

    /// Bytes held by buffers that are not in use.
    pub fn bytes(&self) -> usize {
        self.lock().iter().map(|buffer| buffer.capacity() * size_of::<u64>()).sum()
    }

    /// Frees the buffers that are not in use.
    pub fn clear(&self) {
        *self.lock() = Vec::new();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u64>>> {
        // A buffer is scratch: one left by a call that panicked is as good as any.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_reused_and_grow() {
        let pool = WorkspacePool::new();
        let first = pool.with(100, |b| (b.as_ptr(), b.len()));
        assert_eq!(first.1, 13);
        let second = pool.with(8, |b| (b.as_ptr(), b.len()));
        assert_eq!((second.0, second.1), (first.0, 1), "the buffer is kept");
        pool.with(8, |_| pool.with(8, |_| ()));
        assert!(pool.bytes() >= 13 * 8 + 8, "two calls in flight have a buffer each");
        pool.clear();
        assert_eq!(pool.bytes(), 0);
        assert!(pool.with(0, |b| b.is_empty()));
    }
}
