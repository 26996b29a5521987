//! Device memory: allocating, freeing, asking.

use super::{
    boundary::{Failure, call},
    capture,
    context::current,
    handle::{Handle, fresh},
    host::Pinned,
    pointer::Out,
    state::{Driver, driver, lock},
    status::Status,
    stream::resolve,
};
use std::{collections::BTreeMap, sync::Mutex};

/// Every live allocation, by its address.
#[derive(Default)]
pub(super) struct Allocations(Mutex<BTreeMap<u64, Allocation>>);

/// An allocation.
#[derive(Clone)]
pub(super) struct Allocation {
    pub(super) bytes: u64,
    pub(super) context: Handle,
    pub(super) kind: Kind,
    /// A number that no other allocation had.
    pub(super) id: u64,
}

/// Where an allocation lies.
#[derive(Clone)]
pub(super) enum Kind {
    /// Device memory.
    Device,
    /// Device memory of a pool.
    Pool(Handle),
    /// Host memory, made by the driver; managed memory is host memory that both sides use at all times.
    Host {
        /// The memory, freed when the last owner drops it.
        #[expect(dead_code, reason = "held to be dropped")]
        memory: std::sync::Arc<Pinned>,
        /// Flags that it was made with.
        flags: u32,
        /// Whether it is managed memory.
        managed: bool,
    },
    /// The caller's host memory.
    Registered,
}

impl Allocations {
    pub(super) fn insert(&self, address: u64, bytes: u64, context: Handle, kind: Kind) {
        let id = fresh() as u64;
        lock(&self.0).insert(address, Allocation { bytes, context, kind, id });
    }

    /// The allocation that holds the address, and its base.
    pub(super) fn holding(&self, address: u64) -> Option<(u64, Allocation)> {
        let allocations = lock(&self.0);
        let (&base, allocation) = allocations.range(..=address).next_back()?;
        (address - base < allocation.bytes).then(|| (base, allocation.clone()))
    }

    /// The allocation that starts at the address.
    pub(super) fn at(&self, address: u64) -> Result<Allocation, Failure> {
        let found = lock(&self.0).get(&address).cloned();
        found.ok_or_else(|| self.unknown(address))
    }

    fn unknown(&self, address: u64) -> Failure {
        let message = match self.holding(address) {
            Some((base, allocation)) => format!(
                "{address:#x} lies {} bytes into an allocation of {} at {base:#x}; its start is wanted",
                address - base,
                allocation.bytes
            ),
            None => format!("{address:#x} is no allocation, or one that was freed"),
        };
        Failure::loud(Status::INVALID_VALUE, message)
    }

    /// Frees an allocation of any kind.
    pub(super) fn free(&self, driver: &Driver, address: u64) -> Result<(), Failure> {
        let removed = lock(&self.0).remove(&address);
        let allocation = removed.ok_or_else(|| self.unknown(address))?;
        release(driver, address, &allocation)
    }

    /// Frees what belongs to a context.
    pub(super) fn free_all(&self, driver: &Driver, context: Handle) {
        let doomed: Vec<_> = {
            let mut allocations = lock(&self.0);
            let addresses: Vec<_> =
                allocations.iter().filter(|(_, a)| a.context == context).map(|(&at, _)| at).collect();
            addresses.into_iter().filter_map(|at| Some((at, allocations.remove(&at)?))).collect()
        };
        for (address, allocation) in doomed {
            // The tables agree, so this cannot fail; and nobody would be told.
            let _ = release(driver, address, &allocation);
        }
    }

    /// Bytes that pool `pool` holds.
    pub(super) fn of_pool(&self, pool: Handle) -> u64 {
        let of_pool = |allocation: &&Allocation| matches!(allocation.kind, Kind::Pool(owner) if owner == pool);
        lock(&self.0).values().filter(of_pool).map(|allocation| allocation.bytes).sum()
    }
}

fn release(driver: &Driver, address: u64, allocation: &Allocation) -> Result<(), Failure> {
    let released = match allocation.kind {
        Kind::Device | Kind::Pool(_) => driver.memory.free(address),
        Kind::Host { .. } | Kind::Registered => driver.memory.unmap_host(address as *mut u8),
    };
    released.map_err(|cause| Failure::loud(Status::INVALID_VALUE, cause.to_string()))
}

/// New device memory.
pub(super) fn allocate(bytes: usize, context: Handle, kind: Kind) -> Result<u64, Failure> {
    let driver = driver()?;
    if bytes == 0 {
        return Err(Failure::loud(Status::INVALID_VALUE, "zero bytes"));
    }
    // Out of memory is an answer that callers ask for on purpose.
    let address = driver.memory.allocate(bytes as u64).map_err(|_| Failure::quiet(Status::OUT_OF_MEMORY))?;
    driver.allocations.insert(address, bytes as u64, context, kind);
    Ok(address)
}

/// The current context, for a call that a capture forbids.
pub(super) fn current_outside_captures() -> Result<Handle, Failure> {
    let context = current()?;
    capture::refuse_unsafe(driver()?)?;
    Ok(context.handle)
}

super::entries! {
    cuMemAlloc_v2, cuMemAllocPitch_v2, cuMemFree_v2, cuMemGetInfo_v2, cuMemGetAddressRange_v2, cuMemPrefetchAsync,
    cuMemPrefetchAsync_v2, cuMemAdvise, cuMemAdvise_v2,
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) -> Status {
    call("cuMemAlloc_v2", || {
        let context = current_outside_captures()?;
        if address.is_null() {
            return Err(Failure::quiet(Status::INVALID_VALUE));
        }
        address.set("dptr", allocate(bytes, context, Kind::Device)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocPitch_v2(
    address: Out<u64>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: u32,
) -> Status {
    call("cuMemAllocPitch_v2", || {
        let context = current_outside_captures()?;
        if address.is_null() || pitch.is_null() || !matches!(element, 4 | 8 | 16) {
            return Err(Failure::quiet(Status::INVALID_VALUE));
        }
        let row = width.checked_next_multiple_of(super::attribute::PITCH_ALIGNMENT as usize);
        let bytes = row.and_then(|row| row.checked_mul(height)).ok_or(Failure::quiet(Status::OUT_OF_MEMORY))?;
        address.set("dptr", allocate(bytes, context, Kind::Device)?)?;
        pitch.set("pPitch", row.unwrap_or(0))
    })
}

/// Waits for the device and frees memory of `cuMemAlloc`, `cuMemAllocManaged`, or of a pool. Null is nothing.
#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> Status {
    call("cuMemFree_v2", || {
        current_outside_captures()?;
        if address == 0 {
            return Ok(());
        }
        let driver = driver()?;
        let _idle = driver.occupy();
        match driver.allocations.at(address)?.kind {
            Kind::Host { managed: false, .. } | Kind::Registered => {
                Err(Failure::loud(Status::INVALID_VALUE, format!("{address:#x} is host memory")))
            }
            _ => driver.allocations.free(driver, address),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> Status {
    call("cuMemGetInfo_v2", || {
        current()?;
        let driver = driver()?;
        let bytes = driver.profile.memory_bytes;
        free.set("free", bytes.saturating_sub(driver.memory.used()) as usize)?;
        total.set("total", bytes as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: u64) -> Status {
    call("cuMemGetAddressRange_v2", || {
        current()?;
        let driver = driver()?;
        let found = driver.memory.range(address).ok_or(Failure::quiet(Status::NOT_FOUND))?;
        base.set_if_wanted(found.0);
        bytes.set_if_wanted(found.1 as usize);
        Ok(())
    })
}

/// Managed memory is in one place.
#[unsafe(no_mangle)]
extern "C" fn cuMemPrefetchAsync(_address: u64, _bytes: usize, _device: i32, stream: Handle) -> Status {
    call("cuMemPrefetchAsync", || resolve(stream).map(drop))
}

/// As [`cuMemPrefetchAsync`].
#[unsafe(no_mangle)]
extern "C" fn cuMemPrefetchAsync_v2(
    _address: u64,
    _bytes: usize,
    _place: u64,
    _flags: u32,
    stream: Handle,
) -> Status {
    call("cuMemPrefetchAsync_v2", || resolve(stream).map(drop))
}

/// Advice on where managed memory should be changes nothing.
#[unsafe(no_mangle)]
extern "C" fn cuMemAdvise(_address: u64, _bytes: usize, _advice: u32, _device: i32) -> Status {
    call("cuMemAdvise", || current().map(drop))
}

/// As [`cuMemAdvise`].
#[unsafe(no_mangle)]
extern "C" fn cuMemAdvise_v2(_address: u64, _bytes: usize, _advice: u32, _place: u64) -> Status {
    call("cuMemAdvise_v2", || current().map(drop))
}
