//! Streams.
//!
//! Work is done when it is given, in the calling thread, one operation at a time: every order that streams and events promise holds. Only a
//! stream that is being captured keeps its work, as nodes of a graph.

use super::{
    boundary::{Failure, call},
    capture::{self, StreamCapture},
    context::{Context, current},
    device::DEVICE,
    handle::{Handle, fresh},
    operation::{HostCall, Operation},
    pointer::{Host, Out},
    state::{Driver, driver, lock},
    status::Status,
};
use std::sync::{Arc, Mutex};

/// Priorities, as data-centre devices report them.
pub(super) const LEAST_PRIORITY: i32 = 0;
/// See [`LEAST_PRIORITY`].
pub(super) const GREATEST_PRIORITY: i32 = -5;
/// `CU_STREAM_NON_BLOCKING`: does not wait for the legacy default stream, nor it for this.
const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_LEGACY`.
const LEGACY: Handle = 1;
/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: Handle = 2;

/// A stream.
pub(super) struct Stream {
    /// A number that no other stream has.
    pub(super) id: u64,
    pub(super) context: Handle,
    flags: u32,
    priority: i32,
    /// The legacy default stream: it cannot be captured.
    pub(super) legacy: bool,
    /// The capture that the stream takes part in.
    pub(super) capture: Mutex<Option<StreamCapture>>,
}

impl Stream {
    fn new(context: Handle, flags: u32, priority: i32, legacy: bool) -> Self {
        Self { id: fresh() as u64, context, flags, priority, legacy, capture: Mutex::new(None) }
    }

    /// The default stream of a context.
    pub(super) fn legacy(context: Handle) -> Self {
        Self::new(context, 0, LEAST_PRIORITY, true)
    }

    /// A thread's default stream in a context.
    pub(super) fn per_thread(context: Handle) -> Self {
        Self::new(context, 0, LEAST_PRIORITY, false)
    }

    /// True if the legacy default stream and this wait for each other.
    pub(super) const fn blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }
}

/// The stream of a handle, and its context, healthy.
pub(super) fn resolve(handle: Handle) -> Result<(Arc<Context>, Arc<Stream>), Failure> {
    match handle {
        0 | LEGACY => {
            let context = current()?;
            let stream = context.legacy.clone();
            Ok((context, stream))
        }
        PER_THREAD => {
            let context = current()?;
            let stream = context.per_thread_stream();
            Ok((context, stream))
        }
        _ => {
            let driver = driver()?;
            let stream = driver.streams.get(handle)?;
            let context = driver.contexts.get(stream.context)?;
            context.healthy()?;
            Ok((context, stream))
        }
    }
}

/// Gives work to a stream: it is done at once, or becomes a node of the graph that is being captured.
pub(super) fn enqueue(handle: Handle, operation: Operation) -> Result<(), Failure> {
    let (context, stream) = resolve(handle)?;
    let driver = driver()?;
    if capture::add(driver, &stream, &operation)? {
        return Ok(());
    }
    capture::refuse_implicit(driver, &stream)?;
    operation.execute(driver, &context)
}

super::entries! {
    cuStreamCreate, cuStreamCreateWithPriority, cuStreamDestroy_v2, cuStreamSynchronize, cuStreamQuery, cuStreamGetFlags,
    cuStreamGetPriority, cuStreamGetCtx, cuStreamGetCtx_v2, cuStreamGetDevice, cuStreamGetId, cuStreamAttachMemAsync,
    cuStreamAddCallback, cuLaunchHostFunc, cuLaunchHostFunc_v2,
}

fn create(stream: Out<Handle>, flags: u32, priority: i32) -> Result<(), Failure> {
    let context = current()?;
    if flags & !NON_BLOCKING != 0 {
        return Err(Failure::loud(Status::INVALID_VALUE, format!("unknown flags {:#x}", flags & !NON_BLOCKING)));
    }
    let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
    let handle = fresh();
    stream.set("phStream", handle)?;
    driver()?.streams.insert(handle, Arc::new(Stream::new(context.handle, flags, priority, false)));
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: Out<Handle>, flags: u32) -> Status {
    call("cuStreamCreate", || create(stream, flags, LEAST_PRIORITY))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: u32, priority: i32) -> Status {
    call("cuStreamCreateWithPriority", || create(stream, flags, priority))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Status {
    call("cuStreamDestroy_v2", || {
        let driver = driver()?;
        let stream = driver.streams.remove(stream)?;
        capture::abandon(driver, &stream);
        Ok(())
    })
}

/// The stream and its context, unless it is being captured, which asking for its progress makes invalid.
fn idle(handle: Handle) -> Result<(), Failure> {
    let (context, stream) = resolve(handle)?;
    let driver = driver()?;
    capture::refuse_progress(driver, &stream)?;
    wait(driver);
    context.healthy()
}

/// Waits until no thread has the device at work.
fn wait(driver: &Driver) {
    drop(driver.occupy());
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: Handle) -> Status {
    call("cuStreamSynchronize", || idle(stream))
}

/// Work that was given is done: the answer is never `CUDA_ERROR_NOT_READY`.
#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: Handle) -> Status {
    call("cuStreamQuery", || idle(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetFlags(stream: Handle, flags: Out<u32>) -> Status {
    call("cuStreamGetFlags", || flags.set("flags", resolve(stream)?.1.flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetPriority(stream: Handle, priority: Out<i32>) -> Status {
    call("cuStreamGetPriority", || priority.set("priority", resolve(stream)?.1.priority))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) -> Status {
    call("cuStreamGetCtx", || context.set("pctx", resolve(stream)?.0.handle))
}

/// No stream belongs to a green context.
#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx_v2(stream: Handle, context: Out<Handle>, green: Out<Handle>) -> Status {
    call("cuStreamGetCtx_v2", || {
        green.set_if_wanted(0);
        context.set("pCtx", resolve(stream)?.0.handle)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetDevice(stream: Handle, device: Out<i32>) -> Status {
    call("cuStreamGetDevice", || {
        resolve(stream)?;
        device.set("device", DEVICE)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetId(stream: Handle, id: Out<u64>) -> Status {
    call("cuStreamGetId", || id.set("streamId", resolve(stream)?.1.id))
}

/// Managed memory is visible to every stream at all times.
#[unsafe(no_mangle)]
extern "C" fn cuStreamAttachMemAsync(stream: Handle, _address: u64, _bytes: usize, _flags: u32) -> Status {
    call("cuStreamAttachMemAsync", || resolve(stream).map(drop))
}

type Callback = unsafe extern "C" fn(Handle, Status, usize);

/// Calls the function at once, since what it would wait for is done.
#[unsafe(no_mangle)]
extern "C" fn cuStreamAddCallback(stream: Handle, function: Option<Callback>, data: Host, flags: u32) -> Status {
    call("cuStreamAddCallback", || {
        let (_, resolved) = resolve(stream)?;
        let function = function.filter(|_| flags == 0).ok_or(Failure::quiet(Status::INVALID_VALUE))?;
        if lock(&resolved.capture).is_some() {
            return Err(Failure::quiet(Status::STREAM_CAPTURE_UNSUPPORTED));
        }
        // SAFETY: the caller gave function and data for exactly this call.
        unsafe { function(stream, Status::SUCCESS, data.0) };
        Ok(())
    })
}

fn host_call(stream: Handle, function: Option<unsafe extern "C" fn(usize)>, data: Host) -> Result<(), Failure> {
    let function = function.ok_or(Failure::quiet(Status::INVALID_VALUE))?;
    enqueue(stream, Operation::Host(HostCall { function, data }))
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(
    stream: Handle,
    function: Option<unsafe extern "C" fn(usize)>,
    data: Host,
) -> Status {
    call("cuLaunchHostFunc", || host_call(stream, function, data))
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc_v2(
    stream: Handle,
    function: Option<unsafe extern "C" fn(usize)>,
    data: Host,
    _mode: u32,
) -> Status {
    call("cuLaunchHostFunc_v2", || host_call(stream, function, data))
}
