//! Contexts: the primary one, others, and each thread's stack of them.

use super::{
    boundary::{Failure, call},
    capture,
    device::{DEVICE, check},
    handle::{Handle, fresh},
    pointer::{Host, In, Out},
    state::{Driver, driver, lock},
    status::Status,
    stream::Stream,
};
use std::{
    cell::RefCell,
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread::ThreadId,
};

/// Limits that have a value (`CUlimit`): stack, printf buffer, heap, synchronization depth, pending launches, L2 fetch, persisting L2.
const LIMITS: [usize; 7] = [1024, 1 << 20, 8 << 20, 2, 2048, 128, 0];
/// Flags that a context can have (`CUctx_flags`).
const FLAGS: u32 = 0xff;

/// A context.
pub(super) struct Context {
    pub(super) handle: Handle,
    pub(super) flags: AtomicU32,
    limits: Mutex<[usize; LIMITS.len()]>,
    cache_preference: AtomicU32,
    /// What every call returns once a kernel has failed.
    fault: Mutex<Option<Status>>,
    /// The default stream that all threads share.
    pub(super) legacy: Arc<Stream>,
    /// The default streams of threads.
    per_thread: Mutex<HashMap<ThreadId, Arc<Stream>>>,
}

thread_local! {
    /// The thread's stack of contexts; its last is current.
    static STACK: RefCell<Vec<Arc<Context>>> = const { RefCell::new(Vec::new()) };
}

impl Context {
    fn new(driver: &Driver, flags: u32) -> Arc<Self> {
        let handle = fresh();
        let context = Arc::new(Self {
            handle,
            flags: AtomicU32::new(flags),
            limits: Mutex::new(LIMITS),
            cache_preference: AtomicU32::new(0),
            fault: Mutex::new(None),
            legacy: Arc::new(Stream::legacy(handle)),
            per_thread: Mutex::default(),
        });
        driver.contexts.insert(handle, context.clone());
        context
    }

    /// Fails if a kernel has failed in this context.
    pub(super) fn healthy(&self) -> Result<(), Failure> {
        lock(&self.fault).map_or(Ok(()), |status| Err(Failure::quiet(status)))
    }

    /// Makes every later call fail.
    pub(super) fn spoil(&self, status: Status) {
        lock(&self.fault).get_or_insert(status);
    }

    /// The calling thread's default stream.
    pub(super) fn per_thread_stream(&self) -> Arc<Stream> {
        let mut streams = lock(&self.per_thread);
        streams
            .entry(std::thread::current().id())
            .or_insert_with(|| Arc::new(Stream::per_thread(self.handle)))
            .clone()
    }

    /// Frees what was made in the context.
    fn destroy(&self, driver: &Driver) {
        let _idle = driver.occupy();
        driver.streams.remove_all(|stream| stream.context == self.handle);
        driver.events.remove_all(|event| event.context == self.handle);
        driver.functions.remove_all(|function| function.context == self.handle);
        for module in driver.modules.remove_all(|module| module.context == self.handle) {
            // Freeing memory that the context owns cannot fail, and nobody would be told.
            let _ = module.unload(driver);
        }
        driver.allocations.free_all(driver, self.handle);
    }
}

/// The current context, healthy.
pub(super) fn current() -> Result<Arc<Context>, Failure> {
    let driver = driver()?;
    let context = top().ok_or(Failure::quiet(Status::INVALID_CONTEXT))?;
    driver.contexts.get(context.handle).map_err(|_| Failure::quiet(Status::CONTEXT_IS_DESTROYED))?;
    context.healthy()?;
    Ok(context)
}

fn top() -> Option<Arc<Context>> {
    STACK.with_borrow(|stack| stack.last().cloned())
}

super::entries! {
    cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxGetState,
    cuDevicePrimaryCtxSetFlags_v2, cuCtxCreate_v2, cuCtxCreate_v3, cuCtxCreate_v4, cuCtxDestroy_v2, cuCtxPushCurrent_v2,
    cuCtxPopCurrent_v2, cuCtxPushCurrent, cuCtxPopCurrent, cuCtxSetCurrent, cuCtxGetCurrent, cuCtxGetDevice, cuCtxGetDevice_v2,
    cuCtxGetFlags, cuCtxSetFlags, cuCtxGetId, cuCtxSynchronize, cuCtxSynchronize_v2, cuCtxSetLimit, cuCtxGetLimit,
    cuCtxGetCacheConfig, cuCtxSetCacheConfig, cuCtxGetSharedMemConfig, cuCtxSetSharedMemConfig, cuCtxGetApiVersion,
    cuCtxGetStreamPriorityRange, cuCtxResetPersistingL2Cache,
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: i32) -> Status {
    call("cuDevicePrimaryCtxRetain", || {
        let driver = driver()?;
        check(device)?;
        let mut primary = lock(&driver.primary);
        let flags = primary.flags;
        let handle = primary.context.get_or_insert_with(|| Context::new(driver, flags)).handle;
        context.set("pctx", handle)?;
        primary.count += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> Status {
    call("cuDevicePrimaryCtxRelease_v2", || {
        let driver = driver()?;
        check(device)?;
        let mut primary = lock(&driver.primary);
        primary.count = primary.count.checked_sub(1).ok_or(Failure::quiet(Status::INVALID_CONTEXT))?;
        if primary.count == 0 {
            reset_primary(driver, primary.context.take());
        }
        Ok(())
    })
}

/// Destroys the primary context; who retains it keeps the count and gets a new one by the next call that retains.
#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxReset_v2(device: i32) -> Status {
    call("cuDevicePrimaryCtxReset_v2", || {
        let driver = driver()?;
        check(device)?;
        let context = lock(&driver.primary).context.take();
        reset_primary(driver, context);
        Ok(())
    })
}

fn reset_primary(driver: &Driver, context: Option<Arc<Context>>) {
    if let Some(context) = context
        && driver.contexts.remove(context.handle).is_ok()
    {
        context.destroy(driver);
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) -> Status {
    call("cuDevicePrimaryCtxGetState", || {
        let driver = driver()?;
        check(device)?;
        let primary = lock(&driver.primary);
        flags.set("flags", primary.flags)?;
        active.set("active", i32::from(primary.context.is_some()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) -> Status {
    call("cuDevicePrimaryCtxSetFlags_v2", || {
        let driver = driver()?;
        check(device)?;
        check_flags(flags)?;
        let mut primary = lock(&driver.primary);
        primary.flags = flags;
        if let Some(context) = &primary.context {
            context.flags.store(flags, Ordering::Relaxed);
        }
        Ok(())
    })
}

fn check_flags(flags: u32) -> Result<(), Failure> {
    match flags & !FLAGS {
        0 => Ok(()),
        unknown => Err(Failure::loud(Status::INVALID_VALUE, format!("unknown flags {unknown:#x}"))),
    }
}

fn create(context: Out<Handle>, flags: u32, device: i32) -> Result<(), Failure> {
    let driver = driver()?;
    check(device)?;
    check_flags(flags)?;
    let new = Context::new(driver, flags);
    context.set("pctx", new.handle)?;
    STACK.with_borrow_mut(|stack| stack.push(new));
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v2(context: Out<Handle>, flags: u32, device: i32) -> Status {
    call("cuCtxCreate_v2", || create(context, flags, device))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v3(context: Out<Handle>, _: Host, affinities: i32, flags: u32, device: i32) -> Status {
    call("cuCtxCreate_v3", || match affinities {
        0 => create(context, flags, device),
        _ => Err(Failure::quiet(Status::UNSUPPORTED_EXEC_AFFINITY)),
    })
}

/// `CUctxCreateParams`.
#[repr(C)]
#[derive(Clone, Copy)]
struct CreateParameters {
    affinities: Host,
    affinity_count: i32,
    graphics: Host,
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v4(
    context: Out<Handle>,
    parameters: In<CreateParameters>,
    flags: u32,
    device: i32,
) -> Status {
    call("cuCtxCreate_v4", || {
        if !parameters.is_null() {
            let CreateParameters { affinity_count, graphics, .. } = parameters.read("ctxCreateParams")?;
            if affinity_count != 0 || graphics.0 != 0 {
                return Err(Failure::quiet(Status::UNSUPPORTED_EXEC_AFFINITY));
            }
        }
        create(context, flags, device)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy_v2(context: Handle) -> Status {
    call("cuCtxDestroy_v2", || {
        let driver = driver()?;
        if lock(&driver.primary).context.as_ref().is_some_and(|primary| primary.handle == context) {
            let message = "the primary context is released, not destroyed";
            return Err(Failure::loud(Status::INVALID_CONTEXT, message));
        }
        driver.contexts.remove(context)?.destroy(driver);
        STACK.with_borrow_mut(|stack| {
            if stack.last().is_some_and(|top| top.handle == context) {
                stack.pop();
            }
        });
        Ok(())
    })
}

fn push(context: Handle) -> Result<(), Failure> {
    let context = driver()?.contexts.get(context)?;
    STACK.with_borrow_mut(|stack| stack.push(context));
    Ok(())
}

fn pop(context: Out<Handle>) -> Result<(), Failure> {
    driver()?;
    let popped = STACK.with_borrow_mut(Vec::pop).ok_or(Failure::quiet(Status::INVALID_CONTEXT))?;
    context.set_if_wanted(popped.handle);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: Handle) -> Status {
    call("cuCtxPushCurrent_v2", || push(context))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent_v2(context: Out<Handle>) -> Status {
    call("cuCtxPopCurrent_v2", || pop(context))
}

/// The name before CUDA 4.0, which some libraries still look for.
#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent(context: Handle) -> Status {
    call("cuCtxPushCurrent", || push(context))
}

/// The name before CUDA 4.0, which some libraries still look for.
#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent(context: Out<Handle>) -> Status {
    call("cuCtxPopCurrent", || pop(context))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: Handle) -> Status {
    call("cuCtxSetCurrent", || {
        let driver = driver()?;
        let new = if context == 0 { None } else { Some(driver.contexts.get(context)?) };
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            stack.extend(new);
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: Out<Handle>) -> Status {
    call("cuCtxGetCurrent", || {
        driver()?;
        context.set("pctx", top().map_or(0, |top| top.handle))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: Out<i32>) -> Status {
    call("cuCtxGetDevice", || {
        current()?;
        device.set("device", DEVICE)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice_v2(device: Out<i32>, context: Handle) -> Status {
    call("cuCtxGetDevice_v2", || {
        or_current(context)?;
        device.set("device", DEVICE)
    })
}

/// The context of a handle; the current one for null.
fn or_current(context: Handle) -> Result<Arc<Context>, Failure> {
    if context == 0 { current() } else { driver()?.contexts.get(context) }
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetFlags(flags: Out<u32>) -> Status {
    call("cuCtxGetFlags", || flags.set("flags", current()?.flags.load(Ordering::Relaxed)))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetFlags(flags: u32) -> Status {
    call("cuCtxSetFlags", || {
        check_flags(flags)?;
        current()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetId(context: Handle, id: Out<u64>) -> Status {
    call("cuCtxGetId", || id.set("ctxId", or_current(context)?.handle as u64))
}

/// Waits for the work of the context; there is none that has not been done.
fn synchronize(context: &Context) -> Result<(), Failure> {
    let driver = driver()?;
    context.healthy()?;
    capture::refuse_wait_for_context(driver, context.handle)?;
    drop(driver.occupy());
    context.healthy()
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> Status {
    call("cuCtxSynchronize", || synchronize(&*current()?))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize_v2(context: Handle) -> Status {
    call("cuCtxSynchronize_v2", || synchronize(&*or_current(context)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetLimit(limit: u32, value: usize) -> Status {
    call("cuCtxSetLimit", || {
        let context = current()?;
        let mut limits = lock(&context.limits);
        *limits.get_mut(limit as usize).ok_or(Failure::quiet(Status::UNSUPPORTED_LIMIT))? = value;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetLimit(value: Out<usize>, limit: u32) -> Status {
    call("cuCtxGetLimit", || {
        let context = current()?;
        let limits = lock(&context.limits);
        value.set("pvalue", *limits.get(limit as usize).ok_or(Failure::quiet(Status::UNSUPPORTED_LIMIT))?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCacheConfig(preference: Out<u32>) -> Status {
    call("cuCtxGetCacheConfig", || preference.set("pconfig", current()?.cache_preference.load(Ordering::Relaxed)))
}

/// A preference between L1 and shared memory; it changes nothing here.
#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCacheConfig(preference: u32) -> Status {
    call("cuCtxSetCacheConfig", || match preference {
        0..=3 => {
            current()?.cache_preference.store(preference, Ordering::Relaxed);
            Ok(())
        }
        _ => Err(Failure::quiet(Status::INVALID_VALUE)),
    })
}

/// Banks of shared memory are 4 bytes wide.
#[unsafe(no_mangle)]
extern "C" fn cuCtxGetSharedMemConfig(banks: Out<u32>) -> Status {
    const FOUR_BYTES: u32 = 1;
    call("cuCtxGetSharedMemConfig", || {
        current()?;
        banks.set("pConfig", FOUR_BYTES)
    })
}

/// No device of today can change the banks; drivers accept the wish.
#[unsafe(no_mangle)]
extern "C" fn cuCtxSetSharedMemConfig(_banks: u32) -> Status {
    call("cuCtxSetSharedMemConfig", || current().map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetApiVersion(context: Handle, version: Out<u32>) -> Status {
    const VERSION: u32 = 3020;
    call("cuCtxGetApiVersion", || {
        or_current(context)?;
        version.set("version", VERSION)
    })
}

/// Priorities are accepted, and change nothing since work is done when it is given.
#[unsafe(no_mangle)]
extern "C" fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) -> Status {
    call("cuCtxGetStreamPriorityRange", || {
        current()?;
        least.set_if_wanted(super::stream::LEAST_PRIORITY);
        greatest.set_if_wanted(super::stream::GREATEST_PRIORITY);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxResetPersistingL2Cache() -> Status {
    call("cuCtxResetPersistingL2Cache", || current().map(drop))
}
