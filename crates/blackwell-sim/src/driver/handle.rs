//! Handles: what C code holds of an object.
//!
//! A handle is a number that looks like a pointer, is never followed and never given out twice, so that any number that a caller
//! passes is safe, and one of an object that was destroyed is told from a live one.

use super::{boundary::Failure, status::Status};
use std::{
    collections::HashMap,
    sync::{
        Arc, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
};

/// A handle as C passes it: a context, stream, event, module, function …
pub(super) type Handle = usize;

/// The first handle: far from the small numbers that have a meaning, and from what allocators return.
const FIRST: usize = 0x5100_0000_1000;

static NEXT: AtomicUsize = AtomicUsize::new(FIRST);

/// A handle that nobody has.
pub(super) fn fresh() -> Handle {
    NEXT.fetch_add(16, Ordering::Relaxed)
}

/// The objects of one kind.
pub(super) struct Registry<T> {
    /// What to return for a handle that is none of this kind, or no more.
    unknown: Status,
    objects: RwLock<HashMap<Handle, Arc<T>>>,
}

impl<T> Registry<T> {
    pub(super) fn new(unknown: Status) -> Self {
        Self { unknown, objects: RwLock::new(HashMap::new()) }
    }

    /// Adds an object under a handle.
    pub(super) fn insert(&self, handle: Handle, object: Arc<T>) {
        self.write().insert(handle, object);
    }

    /// The object of a handle.
    pub(super) fn get(&self, handle: Handle) -> Result<Arc<T>, Failure> {
        self.read().get(&handle).cloned().ok_or_else(|| self.unknown(handle))
    }

    /// The handle of an object that `wanted` picks.
    pub(super) fn find(&self, wanted: impl Fn(&T) -> bool) -> Option<Handle> {
        self.read().iter().find(|(_, object)| wanted(object)).map(|(&handle, _)| handle)
    }

    /// Removes an object.
    pub(super) fn remove(&self, handle: Handle) -> Result<Arc<T>, Failure> {
        self.write().remove(&handle).ok_or_else(|| self.unknown(handle))
    }

    /// Removes the objects that `doomed` picks.
    pub(super) fn remove_all(&self, doomed: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut objects = self.write();
        let handles: Vec<_> =
            objects.iter().filter(|(_, object)| doomed(object)).map(|(&handle, _)| handle).collect();
        handles.iter().filter_map(|handle| objects.remove(handle)).collect()
    }

    fn unknown(&self, handle: Handle) -> Failure {
        if handle == 0 {
            return Failure::quiet(self.unknown);
        }
        let kind = std::any::type_name::<T>().rsplit("::").next().unwrap_or_default().to_lowercase();
        Failure::loud(self.unknown, format!("{handle:#x} is no {kind}, or one that was destroyed"))
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<Handle, Arc<T>>> {
        self.objects.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<Handle, Arc<T>>> {
        self.objects.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Stream;

    #[test]
    fn handles_are_not_given_out_twice() {
        let registry = Registry::<Stream>::new(Status::INVALID_HANDLE);
        let (first, second) = (fresh(), fresh());
        assert_ne!(first, second);
        registry.insert(first, Arc::new(Stream));
        assert!(registry.get(first).is_ok());
        registry.remove(first).unwrap();
        let failure = registry.get(first).unwrap_err();
        assert_eq!(failure.status, Status::INVALID_HANDLE);
        assert!(failure.message.unwrap().contains("is no stream, or one that was destroyed"));
        assert_eq!(registry.get(0).unwrap_err(), Failure::quiet(Status::INVALID_HANDLE));
    }
}
