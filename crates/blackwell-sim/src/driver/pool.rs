//! Memory in stream order, and its pools.
//!
//! Since work is done when it is given, allocating and freeing in stream order are done at once too. A stream that is being captured
//! allocates when it is captured: the graph keeps the memory until it is destroyed.

use super::{
    boundary::{Failure, call},
    capture,
    context::current,
    device::{DEVICE, check},
    handle::{Handle, fresh},
    memory::{Kind, allocate},
    operation::Operation,
    pointer::{In, Out},
    state::{driver, lock},
    status::Status,
    stream::resolve,
};
use std::sync::{Arc, Mutex};

/// A pool.
pub(super) struct Pool {
    /// The threshold and the reuse switches, which change nothing, as they were set; by `CUmemPool_attribute`.
    settings: Mutex<[u64; 5]>,
    /// Most bytes that were in use since this was last reset.
    high: Mutex<u64>,
}

impl Pool {
    fn new() -> Arc<Self> {
        Arc::new(Self { settings: Mutex::new([0, 1, 1, 1, 0]), high: Mutex::new(0) })
    }
}

/// The pool from which streams allocate by default: made when it is first asked for.
fn default_pool() -> Result<Handle, Failure> {
    static DEFAULT: Mutex<Handle> = Mutex::new(0);
    let driver = driver()?;
    let mut handle = lock(&DEFAULT);
    if *handle == 0 {
        *handle = fresh();
        driver.pools.insert(*handle, Pool::new());
    }
    Ok(*handle)
}

/// The pool that `cuDeviceSetMemPool` has chosen; 0 for the default.
static CURRENT: Mutex<Handle> = Mutex::new(0);

fn current_pool() -> Result<Handle, Failure> {
    match *lock(&CURRENT) {
        0 => default_pool(),
        pool => Ok(pool),
    }
}

super::entries! {
    cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync, cuMemPoolCreate, cuMemPoolDestroy, cuMemPoolTrimTo,
    cuMemPoolSetAttribute, cuMemPoolGetAttribute, cuMemPoolSetAccess, cuMemPoolGetAccess, cuDeviceGetDefaultMemPool,
    cuDeviceGetMemPool, cuDeviceSetMemPool,
}

fn allocate_in_order(address: Out<u64>, bytes: usize, pool: Handle, stream: Handle) -> Result<(), Failure> {
    let driver = driver()?;
    let pool_object = driver.pools.get(pool)?;
    let (context, stream) = resolve(stream)?;
    if address.is_null() {
        return Err(Failure::quiet(Status::INVALID_VALUE));
    }
    let new = allocate(bytes, context.handle, Kind::Pool(pool))?;
    if let Err(failure) = capture::add(driver, &stream, &Operation::Allocate(new)) {
        driver.allocations.free(driver, new)?;
        return Err(failure);
    }
    let mut high = lock(&pool_object.high);
    *high = driver.allocations.of_pool(pool).max(*high);
    address.set("dptr", new)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(address: Out<u64>, bytes: usize, stream: Handle) -> Status {
    call("cuMemAllocAsync", || allocate_in_order(address, bytes, current_pool()?, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocFromPoolAsync(address: Out<u64>, bytes: usize, pool: Handle, stream: Handle) -> Status {
    call("cuMemAllocFromPoolAsync", || allocate_in_order(address, bytes, pool, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: u64, stream: Handle) -> Status {
    call("cuMemFreeAsync", || {
        let driver = driver()?;
        let (_, stream) = resolve(stream)?;
        if address == 0 {
            return Ok(());
        }
        let kind = driver.allocations.at(address)?.kind;
        if !matches!(kind, Kind::Pool(_) | Kind::Device) {
            return Err(Failure::loud(Status::INVALID_VALUE, format!("{address:#x} is host memory")));
        }
        if capture::add(driver, &stream, &Operation::Free(address))? {
            return Ok(());
        }
        let _idle = driver.occupy();
        driver.allocations.free(driver, address)
    })
}

/// The start of `CUmemPoolProps`: kind of memory, kinds of handles, kind of place, number of the place.
#[repr(C)]
#[derive(Clone, Copy)]
struct Properties {
    allocation: u32,
    handles: u32,
    place: u32,
    device: i32,
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolCreate(pool: Out<Handle>, properties: In<Properties>) -> Status {
    /// `CU_MEM_ALLOCATION_TYPE_PINNED`.
    const PINNED: u32 = 1;
    /// `CU_MEM_LOCATION_TYPE_DEVICE`.
    const ON_DEVICE: u32 = 1;
    call("cuMemPoolCreate", || {
        let driver = driver()?;
        let Properties { allocation, handles, place, device } = properties.read("poolProps")?;
        if allocation != PINNED || handles != 0 || place != ON_DEVICE {
            return Err(Failure::loud(
                Status::NOT_SUPPORTED,
                "pools of pinned device memory only, not to be shared",
            ));
        }
        check(device)?;
        let handle = fresh();
        pool.set("pool", handle)?;
        driver.pools.insert(handle, Pool::new());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolDestroy(pool: Handle) -> Status {
    call("cuMemPoolDestroy", || {
        let driver = driver()?;
        if pool == default_pool()? {
            return Err(Failure::loud(Status::INVALID_VALUE, "the default pool cannot be destroyed"));
        }
        driver.pools.remove(pool)?;
        let mut current = lock(&CURRENT);
        if *current == pool {
            *current = 0;
        }
        Ok(())
    })
}

/// Pools keep no memory that is not in use.
#[unsafe(no_mangle)]
extern "C" fn cuMemPoolTrimTo(pool: Handle, _keep: usize) -> Status {
    call("cuMemPoolTrimTo", || driver()?.pools.get(pool).map(drop))
}

/// The numbers of `CUmemPool_attribute` whose values are 64 bits wide.
const THRESHOLD: u32 = 4;
const RESERVED: u32 = 5;
const RESERVED_HIGH: u32 = 6;
const USED: u32 = 7;
const USED_HIGH: u32 = 8;

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolSetAttribute(pool: Handle, attribute: u32, value: Out<u64>) -> Status {
    call("cuMemPoolSetAttribute", || {
        let driver = driver()?;
        let pool_object = driver.pools.get(pool)?;
        match attribute {
            1..=3 => {
                let value = u64::from(value.cast::<u32>().get("value")?);
                lock(&pool_object.settings)[attribute as usize] = value;
            }
            THRESHOLD => lock(&pool_object.settings)[attribute as usize] = value.get("value")?,
            RESERVED_HIGH | USED_HIGH if value.get("value")? == 0 => {
                *lock(&pool_object.high) = driver.allocations.of_pool(pool);
            }
            _ => return Err(Failure::quiet(Status::INVALID_VALUE)),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolGetAttribute(pool: Handle, attribute: u32, value: Out<u64>) -> Status {
    call("cuMemPoolGetAttribute", || {
        let driver = driver()?;
        let pool_object = driver.pools.get(pool)?;
        match attribute {
            1..=3 => value.cast::<u32>().set("value", lock(&pool_object.settings)[attribute as usize] as u32),
            THRESHOLD => value.set("value", lock(&pool_object.settings)[attribute as usize]),
            RESERVED | USED => value.set("value", driver.allocations.of_pool(pool)),
            RESERVED_HIGH | USED_HIGH => value.set("value", *lock(&pool_object.high)),
            _ => Err(Failure::loud(Status::INVALID_VALUE, format!("attribute {attribute} is not modelled"))),
        }
    })
}

/// The one device can always read and write.
#[unsafe(no_mangle)]
extern "C" fn cuMemPoolSetAccess(pool: Handle, _access: usize, _count: usize) -> Status {
    call("cuMemPoolSetAccess", || driver()?.pools.get(pool).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolGetAccess(flags: Out<u32>, pool: Handle, _place: usize) -> Status {
    const READ_WRITE: u32 = 3;
    call("cuMemPoolGetAccess", || {
        driver()?.pools.get(pool)?;
        flags.set("flags", READ_WRITE)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: i32) -> Status {
    call("cuDeviceGetDefaultMemPool", || {
        check(device)?;
        pool.set("pool_out", default_pool()?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetMemPool(pool: Out<Handle>, device: i32) -> Status {
    call("cuDeviceGetMemPool", || {
        check(device)?;
        pool.set("pool", current_pool()?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceSetMemPool(device: i32, pool: Handle) -> Status {
    call("cuDeviceSetMemPool", || {
        if device != DEVICE {
            return Err(Failure::quiet(Status::INVALID_DEVICE));
        }
        current()?;
        driver()?.pools.get(pool)?;
        *lock(&CURRENT) = pool;
        Ok(())
    })
}
