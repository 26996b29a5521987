//! Device memory: allocations at synthetic addresses that are never used twice, with a record of what has been written.
//!
//! Host code and the threads that run kernels share it. Bytes are kept in atomic words, so kernels may race on them as they may on a
//! GPU: a racing read sees some value, never undefined behaviour.

mod allocation;

use crate::fault::{Cause, FaultKind};
use allocation::Allocation;
use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

/// Where allocations begin: below where any host maps a program or its heap, so no host pointer is taken for a device address.
const FIRST_ADDRESS: u64 = 1 << 44;
/// Alignment of allocations, the CUDA driver's.
const ALIGNMENT: u64 = 256;
/// Unused bytes behind every allocation, so that an overrun ends in no other.
const GUARD: u64 = 4096;

/// The memory of a device.
#[derive(Debug)]
pub struct DeviceMemory {
    capacity: u64,
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By their first address.
    live: BTreeMap<u64, Arc<Allocation>>,
    /// Sizes of freed allocations by first address.
    freed: BTreeMap<u64, u64>,
    next: u64,
    used: u64,
}

impl State {
    fn find(&self, address: u64) -> Option<&Arc<Allocation>> {
        let (_, allocation) = self.live.range(..=address).next_back()?;
        (address - allocation.base() < allocation.bytes()).then_some(allocation)
    }

    /// Why `bytes` bytes at `address` cannot be accessed.
    fn refuse(&self, address: u64, bytes: u64) -> Cause {
        let touches =
            |base: u64, size: u64| address < base + size.max(1) && base < address.saturating_add(bytes.max(1));
        if let Some((&base, &size)) =
            self.freed.range(..=address).next_back().filter(|&(&base, &size)| touches(base, size))
        {
            return Cause::new(
                FaultKind::UseAfterFree,
                format!("{bytes} bytes at {address:#x}, within {size} bytes at {base:#x} that were freed"),
            );
        }
        let nearest = self.live.range(..=address).next_back().map_or_else(
            || "no allocation is below it".to_owned(),
            |(base, allocation)| {
                let size = allocation.bytes();
                let end = base + size;
                match address.checked_sub(end) {
                    Some(0) => format!("the end of the {size} bytes at {base:#x}"),
                    Some(behind) => format!("{behind} bytes behind the end of the {size} bytes at {base:#x}"),
                    None => format!("the {size} bytes at {base:#x} end {} bytes further", end - address),
                }
            },
        );
        Cause::new(FaultKind::OutOfBounds, format!("{bytes} bytes at {address:#x}: {nearest}"))
    }
}

impl DeviceMemory {
    /// Memory of `bytes` bytes, none of them allocated.
    pub fn new(bytes: u64) -> Self {
        Self { capacity: bytes, state: RwLock::new(State { next: FIRST_ADDRESS, ..State::default() }) }
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates `bytes` bytes, aligned to 256 bytes; nothing counts as having written them.
    ///
    /// # Errors
    /// [`FaultKind::OutOfBounds`] if there is not so much memory left, or for no bytes at all.
    pub fn allocate(&self, bytes: u64) -> Result<u64, Cause> {
        let mut state = self.state_mut();
        let left = self.capacity - state.used;
        if bytes == 0 || bytes > left {
            return Err(Cause::new(
                FaultKind::OutOfBounds,
                format!("an allocation of {bytes} bytes; {left} of {} bytes are free", self.capacity),
            ));
        }
        let base = state.next;
        state.live.insert(base, Arc::new(Allocation::new(base, bytes)));
        state.next += bytes.next_multiple_of(ALIGNMENT) + GUARD;
        state.used += bytes;
        Ok(base)
    }

    /// Frees the allocation that begins at `address`; its addresses are never used again.
    ///
    /// # Errors
    /// [`FaultKind::UseAfterFree`] if it has been freed already, [`FaultKind::OutOfBounds`] if none begins there.
    pub fn free(&self, address: u64) -> Result<(), Cause> {
        let mut state = self.state_mut();
        match state.live.get(&address) {
            Some(allocation) if !allocation.is_host() => {}
            _ => return Err(state.refuse(address, 0)),
        }
        if let Some(allocation) = state.live.remove(&address) {
            state.used -= allocation.bytes();
            state.freed.insert(address, allocation.bytes());
        }
        Ok(())
    }

    /// Copies from device memory to the host. Bytes that nothing wrote read as zero.
    ///
    /// # Errors
    /// The range is not within one allocation.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Cause> {
        let allocation = self.allocation(address, bytes.len() as u64)?;
        allocation.read(address - allocation.base(), bytes);
        Ok(())
    }

    /// Copies from the host to device memory.
    ///
    /// # Errors
    /// The range is not within one allocation.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Cause> {
        let allocation = self.allocation(address, bytes.len() as u64)?;
        allocation.write(address - allocation.base(), bytes);
        Ok(())
    }

    /// Base and size of the live allocation that holds `address`.
    pub fn range(&self, address: u64) -> Option<(u64, u64)> {
        self.state().find(address).map(|allocation| (allocation.base(), allocation.bytes()))
    }

    /// Bytes that are allocated.
    pub fn used(&self) -> u64 {
        self.state().used
    }

    /// Makes `bytes` bytes of the host at `pointer` readable and writable by kernels at the same numeric address (pinned or registered
    /// host memory). They count as written.
    ///
    /// # Safety
    /// The memory stays valid for reads and writes until [`Self::unmap_host`], and is accessed elsewhere only in ways that may race with
    /// a GPU's accesses.
    ///
    /// # Errors
    /// [`FaultKind::OutOfBounds`] if it overlaps what is mapped already, or if it is empty.
    pub unsafe fn map_host(&self, pointer: *mut u8, bytes: u64) -> Result<(), Cause> {
        let mut state = self.state_mut();
        let base = pointer as u64;
        let overlaps = state
            .live
            .range(..base.saturating_add(bytes))
            .next_back()
            .is_some_and(|(_, allocation)| allocation.base() + allocation.bytes() > base);
        if pointer.is_null() || bytes == 0 || overlaps {
            let why = if overlaps { "it overlaps memory that is mapped already" } else { "it is empty" };
            return Err(Cause::new(FaultKind::OutOfBounds, format!("mapping {bytes} bytes at {base:#x}: {why}")));
        }
        state.freed.retain(|&freed, size| freed + *size <= base || freed >= base + bytes);
        // SAFETY: the caller upholds what `Allocation::host` asks for until `unmap_host` removes it.
        let allocation = unsafe { Allocation::host(pointer, bytes) };
        state.live.insert(base, Arc::new(allocation));
        Ok(())
    }

    /// Undoes [`Self::map_host`].
    ///
    /// # Errors
    /// [`FaultKind::OutOfBounds`] if nothing is mapped there.
    pub fn unmap_host(&self, pointer: *mut u8) -> Result<(), Cause> {
        let mut state = self.state_mut();
        let base = pointer as u64;
        if !state.live.get(&base).is_some_and(|allocation| allocation.is_host()) {
            return Err(state.refuse(base, 0));
        }
        if let Some(allocation) = state.live.remove(&base) {
            state.freed.insert(base, allocation.bytes());
        }
        Ok(())
    }

    /// The allocation that holds `bytes` bytes at `address`.
    fn allocation(&self, address: u64, bytes: u64) -> Result<Arc<Allocation>, Cause> {
        let state = self.state();
        match state.find(address) {
            Some(found) if bytes <= found.bytes() - (address - found.base()) => Ok(found.clone()),
            _ => Err(state.refuse(address, bytes)),
        }
    }
}

/// A thread's view of device memory, which remembers the allocation that it used last.
pub(crate) struct DeviceView<'a> {
    memory: &'a DeviceMemory,
    last: [Option<Arc<Allocation>>; 4],
    turn: usize,
}

impl<'a> DeviceView<'a> {
    pub(crate) fn new(memory: &'a DeviceMemory) -> Self {
        Self { memory, last: [const { None }; 4], turn: 0 }
    }

    /// The allocation that holds `bytes` bytes at `address`, and the offset in it.
    fn find(&mut self, address: u64, bytes: u64) -> Result<(&Allocation, u64), Cause> {
        let holds = |allocation: &Allocation| {
            address >= allocation.base() && address.saturating_add(bytes) <= allocation.base() + allocation.bytes()
        };
        let place = match self.last.iter().position(|last| last.as_deref().is_some_and(holds)) {
            Some(place) => place,
            None => {
                let found = self.memory.allocation(address, bytes)?;
                self.turn = (self.turn + 1) % self.last.len();
                self.last[self.turn] = Some(found);
                self.turn
            }
        };
        match &self.last[place] {
            Some(allocation) => Ok((allocation, address - allocation.base())),
            None => Err(Cause::new(FaultKind::OutOfBounds, format!("{bytes} bytes at {address:#x}"))),
        }
    }

    /// Reads for a kernel.
    ///
    /// # Errors
    /// The range is not within one allocation, or nothing wrote one of its bytes.
    pub(crate) fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Cause> {
        let (allocation, offset) = self.find(address, bytes.len() as u64)?;
        if let Some(unwritten) = allocation.first_unwritten(offset, bytes.len() as u64) {
            return Err(Cause::new(
                FaultKind::Uninitialised,
                format!(
                    "read of {} bytes at {address:#x}; nothing wrote byte {} of the {} bytes at {:#x}",
                    bytes.len(),
                    unwritten,
                    allocation.bytes(),
                    allocation.base()
                ),
            ));
        }
        allocation.read(offset, bytes);
        Ok(())
    }

    /// Writes for a kernel.
    ///
    /// # Errors
    /// The range is not within one allocation.
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Cause> {
        let (allocation, offset) = self.find(address, bytes.len() as u64)?;
        allocation.write(offset, bytes);
        Ok(())
    }

    /// Replaces `N` bytes (at most 16, aligned to their number) by `change` of them; returns the old ones.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn update(
        &mut self,
        address: u64,
        bytes: usize,
        change: &mut dyn FnMut(u128) -> u128,
    ) -> Result<u128, Cause> {
        let mut old = [0; 16];
        self.read(address, old.get_mut(..bytes).unwrap_or_default())?;
        let (allocation, offset) = self.find(address, bytes as u64)?;
        Ok(allocation.update(offset, bytes, change))
    }
}

#[cfg(test)]
mod tests;
