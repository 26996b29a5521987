//! Host memory that kernels can use: pinned, registered, managed. It has the same address on both sides.

use super::{
    boundary::{Failure, call},
    context::current,
    memory::{Kind, current_outside_captures},
    pointer::{Host, Out},
    state::driver,
    status::Status,
};
use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    sync::Arc,
};

/// Alignment of host memory: a page.
const ALIGNMENT: usize = 4096;
/// Flags of host memory: portable, mapped, write-combined.
const HOST_FLAGS: u32 = 7;
/// Flags of registered memory: portable, mapped, of a device, read-only.
const REGISTER_FLAGS: u32 = 15;

/// Host memory of the driver.
pub(super) struct Pinned {
    pointer: *mut u8,
    layout: Layout,
}

// SAFETY: the pointer is owned and only used to free the memory; who reads and writes it is up to the program, as with all memory that
// the driver hands out.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, ALIGNMENT).ok()?;
        if bytes == 0 {
            return None;
        }
        // SAFETY: the layout has a size.
        let pointer = unsafe { alloc_zeroed(layout) };
        (!pointer.is_null()).then_some(Self { pointer, layout })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout, and this is its one owner.
        unsafe { dealloc(self.pointer, self.layout) };
    }
}

/// New host memory that kernels can use. Returns its address.
fn allocate(bytes: usize, flags: u32, managed: bool) -> Result<usize, Failure> {
    let context = current_outside_captures()?;
    let driver = driver()?;
    if bytes == 0 {
        return Err(Failure::loud(Status::INVALID_VALUE, "zero bytes"));
    }
    let memory = Pinned::new(bytes).ok_or(Failure::quiet(Status::OUT_OF_MEMORY))?;
    let address = memory.pointer as usize;
    map(address, bytes)?;
    let kind = Kind::Host { memory: Arc::new(memory), flags, managed };
    driver.allocations.insert(address as u64, bytes as u64, context, kind);
    Ok(address)
}

fn map(address: usize, bytes: usize) -> Result<(), Failure> {
    // SAFETY: the memory is the driver's, or the caller's who promises to keep it until it is unregistered; it stays mapped until then.
    let mapped = unsafe { driver()?.memory.map_host(address as *mut u8, bytes as u64) };
    mapped.map_err(|cause| Failure::loud(Status::INVALID_VALUE, cause.to_string()))
}

super::entries! {
    cuMemHostAlloc, cuMemAllocHost_v2, cuMemFreeHost, cuMemHostGetDevicePointer_v2, cuMemHostGetFlags, cuMemHostRegister_v2,
    cuMemHostUnregister, cuMemAllocManaged,
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(pointer: Out<usize>, bytes: usize, flags: u32) -> Status {
    call("cuMemHostAlloc", || {
        if pointer.is_null() || flags & !HOST_FLAGS != 0 {
            return Err(Failure::quiet(Status::INVALID_VALUE));
        }
        pointer.set("pp", allocate(bytes, flags, false)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocHost_v2(pointer: Out<usize>, bytes: usize) -> Status {
    call("cuMemAllocHost_v2", || {
        if pointer.is_null() {
            return Err(Failure::quiet(Status::INVALID_VALUE));
        }
        pointer.set("pp", allocate(bytes, 0, false)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocManaged(pointer: Out<usize>, bytes: usize, flags: u32) -> Status {
    call("cuMemAllocManaged", || {
        // CU_MEM_ATTACH_GLOBAL, _HOST, _SINGLE.
        if pointer.is_null() || !matches!(flags, 1 | 2 | 4) {
            return Err(Failure::quiet(Status::INVALID_VALUE));
        }
        pointer.set("dptr", allocate(bytes, flags, true)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(pointer: Host) -> Status {
    call("cuMemFreeHost", || {
        current_outside_captures()?;
        let driver = driver()?;
        let _idle = driver.occupy();
        let address = pointer.0 as u64;
        match driver.allocations.at(address)?.kind {
            Kind::Host { managed: false, .. } => driver.allocations.free(driver, address),
            _ => Err(Failure::loud(Status::INVALID_VALUE, format!("{address:#x} is not of cuMemHostAlloc"))),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetDevicePointer_v2(address: Out<u64>, pointer: Host, flags: u32) -> Status {
    call("cuMemHostGetDevicePointer_v2", || {
        current()?;
        if flags != 0 {
            return Err(Failure::quiet(Status::INVALID_VALUE));
        }
        match driver()?.allocations.holding(pointer.0 as u64) {
            Some((_, allocation)) if !matches!(allocation.kind, Kind::Device | Kind::Pool(_)) => {
                address.set("pdptr", pointer.0 as u64)
            }
            _ => Err(Failure::quiet(Status::INVALID_VALUE)),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetFlags(flags: Out<u32>, pointer: Host) -> Status {
    call("cuMemHostGetFlags", || {
        current()?;
        match driver()?.allocations.holding(pointer.0 as u64).map(|(_, allocation)| allocation.kind) {
            Some(Kind::Host { flags: made, managed: false, .. }) => flags.set("pFlags", made),
            _ => Err(Failure::quiet(Status::INVALID_VALUE)),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(pointer: Host, bytes: usize, flags: u32) -> Status {
    call("cuMemHostRegister_v2", || {
        let context = current_outside_captures()?;
        let driver = driver()?;
        if pointer.0 == 0 || bytes == 0 || flags & !REGISTER_FLAGS != 0 {
            return Err(Failure::quiet(Status::INVALID_VALUE));
        }
        let last = pointer.0 as u64 + (bytes as u64 - 1);
        if [pointer.0 as u64, last].into_iter().any(|address| driver.allocations.holding(address).is_some()) {
            return Err(Failure::quiet(Status::HOST_MEMORY_ALREADY_REGISTERED));
        }
        map(pointer.0, bytes)?;
        driver.allocations.insert(pointer.0 as u64, bytes as u64, context, Kind::Registered);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(pointer: Host) -> Status {
    call("cuMemHostUnregister", || {
        current_outside_captures()?;
        let driver = driver()?;
        let _idle = driver.occupy();
        match driver.allocations.at(pointer.0 as u64) {
            Ok(allocation) if matches!(allocation.kind, Kind::Registered) => {
                driver.allocations.free(driver, pointer.0 as u64)
            }
            _ => Err(Failure::quiet(Status::HOST_MEMORY_NOT_REGISTERED)),
        }
    })
}
