//! One allocation: its bytes and which of them were written.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU8, AtomicU64, Ordering},
};

/// Serializes atomic operations that one word cannot hold or that go to host memory.
static WIDE_ATOMICS: Mutex<()> = Mutex::new(());

#[derive(Debug)]
enum Storage {
    Device {
        words: Box<[AtomicU64]>,
        /// One bit a byte.
        written: Box<[AtomicU64]>,
    },
    Host(HostBytes),
}

/// Host memory that is mapped into the device.
#[derive(Debug)]
struct HostBytes(*mut u8);

// SAFETY: the pointer is only used for atomic accesses to memory that `Allocation::host`'s caller keeps valid for every thread.
unsafe impl Send for HostBytes {}
// SAFETY: as above.
unsafe impl Sync for HostBytes {}

impl HostBytes {
    fn byte(&self, offset: u64) -> &AtomicU8 {
        // SAFETY: `offset` is within the memory that the caller of `Allocation::host` vouches for; an atomic byte needs no alignment.
        unsafe { AtomicU8::from_ptr(self.0.add(offset as usize)) }
    }
}

/// An allocation.
#[derive(Debug)]
pub(super) struct Allocation {
    base: u64,
    bytes: u64,
    storage: Storage,
}

/// Zeroed words; pages that are never touched cost nothing.
fn zeroed(count: usize) -> Box<[AtomicU64]> {
    let words = Box::into_raw(vec![0u64; count].into_boxed_slice());
    // SAFETY: `AtomicU64` has the size, alignment (on every 64-bit target) and bit validity of `u64`, and the box is owned here.
    unsafe { Box::from_raw(words as *mut [AtomicU64]) }
}

const _: () = assert!(align_of::<AtomicU64>() == align_of::<u64>());

/// The `bytes` lowest bytes (1 to 8) of a word as a mask.
fn mask(bytes: u64) -> u64 {
    u64::MAX >> (64 - 8 * bytes)
}

impl Allocation {
    pub(super) fn new(base: u64, bytes: u64) -> Self {
        let words = zeroed(bytes.div_ceil(8) as usize);
        let written = zeroed(bytes.div_ceil(64) as usize);
        Self { base, bytes, storage: Storage::Device { words, written } }
    }

    /// # Safety
    /// The memory is valid for atomic reads and writes by any thread as long as the allocation lives.
    pub(super) unsafe fn host(pointer: *mut u8, bytes: u64) -> Self {
        Self { base: pointer as u64, bytes, storage: Storage::Host(HostBytes(pointer)) }
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_host(&self) -> bool {
        matches!(self.storage, Storage::Host(_))
    }

    /// The first of `count` bytes from `offset` on that nothing wrote.
    pub(super) fn first_unwritten(&self, offset: u64, count: u64) -> Option<u64> {
        let Storage::Device { written, .. } = &self.storage else { return None };
        let mut position = offset;
        while position < offset + count {
            let bits = (64 - position % 64).min(offset + count - position);
            let wanted = u64::MAX >> (64 - bits) << (position % 64);
            let missing = wanted & !written[(position / 64) as usize].load(Ordering::Relaxed);
            if missing != 0 {
                return Some(position - position % 64 + u64::from(missing.trailing_zeros()));
            }
            position += bits;
        }
        None
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) {
        match &self.storage {
            Storage::Device { words, .. } => {
                let mut rest = bytes;
                let mut position = offset;
                while !rest.is_empty() {
                    let within = (position % 8) as usize;
                    let count = (8 - within).min(rest.len());
                    let word = words[(position / 8) as usize].load(Ordering::Acquire).to_le_bytes();
                    let (now, later) = rest.split_at_mut(count);
                    now.copy_from_slice(&word[within..within + count]);
                    rest = later;
                    position += count as u64;
                }
            }
            Storage::Host(host) => {
                for (index, byte) in bytes.iter_mut().enumerate() {
                    *byte = host.byte(offset + index as u64).load(Ordering::Acquire);
                }
            }
        }
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) {
        match &self.storage {
            Storage::Device { words, .. } => {
                let mut rest = bytes;
                let mut position = offset;
                while !rest.is_empty() {
                    let within = position % 8;
                    let count = (8 - within).min(rest.len() as u64);
                    let (now, later) = rest.split_at(count as usize);
                    let mut value = [0; 8];
                    value[..now.len()].copy_from_slice(now);
                    let (value, keep) = (u64::from_le_bytes(value) << (8 * within), !(mask(count) << (8 * within)));
                    let word = &words[(position / 8) as usize];
                    if keep == 0 {
                        word.store(value, Ordering::Release);
                    } else {
                        change(word, |old| (old & keep) | value);
                    }
                    rest = later;
                    position += count;
                }
                self.mark_written(offset, bytes.len() as u64);
            }
            Storage::Host(host) => {
                for (index, &byte) in bytes.iter().enumerate() {
                    host.byte(offset + index as u64).store(byte, Ordering::Release);
                }
            }
        }
    }

    fn mark_written(&self, offset: u64, count: u64) {
        let Storage::Device { written, .. } = &self.storage else { return };
        let mut position = offset;
        while position < offset + count {
            let bits = (64 - position % 64).min(offset + count - position);
            let wanted = u64::MAX >> (64 - bits) << (position % 64);
            let word = &written[(position / 64) as usize];
            if word.load(Ordering::Relaxed) & wanted != wanted {
                word.fetch_or(wanted, Ordering::Relaxed);
            }
            position += bits;
        }
    }

    /// Replaces `bytes` bytes at `offset`, a multiple of their number, by `replace` of them, atomically; returns the old ones.
    pub(super) fn update(&self, offset: u64, bytes: usize, replace: &mut dyn FnMut(u128) -> u128) -> u128 {
        if let (Storage::Device { words, .. }, true) = (&self.storage, bytes <= 8) {
            let shift = 8 * (offset % 8);
            let mask = mask(bytes as u64);
            let old = change(&words[(offset / 8) as usize], |word| {
                let new = replace(u128::from(word >> shift & mask)) as u64 & mask;
                (word & !(mask << shift)) | new << shift
            });
            return u128::from(old >> shift & mask);
        }
        let _guard = WIDE_ATOMICS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = [0; 16];
        let bytes = bytes.min(buffer.len());
        self.read(offset, &mut buffer[..bytes]);
        let old = u128::from_le_bytes(buffer);
        let new = replace(old).to_le_bytes();
        self.write(offset, &new[..bytes]);
        old
    }
}

/// Changes a word atomically; returns the old one.
fn change(word: &AtomicU64, mut new: impl FnMut(u64) -> u64) -> u64 {
    let mut old = word.load(Ordering::Relaxed);
    loop {
        match word.compare_exchange_weak(old, new(old), Ordering::AcqRel, Ordering::Relaxed) {
            Ok(old) => return old,
            Err(found) => old = found,
        }
    }
}
