//! Events.

use super::{
    boundary::{Failure, call},
    capture,
    context::current,
    handle::{Handle, fresh},
    operation::Operation,
    pointer::Out,
    state::{driver, lock},
    status::Status,
    stream::{enqueue, resolve},
};
use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: u32 = 2;
/// Flags of events: blocking, no timing, for other processes. The last is not modelled.
const FLAGS: u32 = 1 | NO_TIMING;
/// `CU_EVENT_RECORD_EXTERNAL`, `CU_EVENT_WAIT_EXTERNAL`: a node of a graph rather than a dependency in it.
const EXTERNAL: u32 = 1;

/// An event.
pub(super) struct Event {
    pub(super) context: Handle,
    flags: u32,
    pub(super) mark: Mutex<Mark>,
}

/// What an event marks.
#[derive(Clone, Default)]
pub(super) enum Mark {
    /// Nothing yet: waiting for it waits for nothing.
    #[default]
    Nothing,
    /// The end of work that was done then.
    Done(Instant),
    /// Nodes of a graph that is being captured: the id of the capture, and the nodes.
    Captured(u64, Vec<Handle>),
}

impl Event {
    /// Marks the present.
    pub(super) fn happen(&self) {
        *lock(&self.mark) = Mark::Done(Instant::now());
    }
}

super::entries! {
    cuEventCreate, cuEventDestroy_v2, cuEventRecord, cuEventRecordWithFlags, cuEventQuery, cuEventSynchronize,
    cuEventElapsedTime, cuEventElapsedTime_v2, cuStreamWaitEvent,
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: Out<Handle>, flags: u32) -> Status {
    call("cuEventCreate", || {
        let context = current()?;
        if flags & !FLAGS != 0 {
            return Err(Failure::loud(
                Status::INVALID_VALUE,
                format!("flags {:#x} are not modelled", flags & !FLAGS),
            ));
        }
        let handle = fresh();
        event.set("phEvent", handle)?;
        let new = Event { context: context.handle, flags, mark: Mutex::default() };
        driver()?.events.insert(handle, Arc::new(new));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: Handle) -> Status {
    call("cuEventDestroy_v2", || driver()?.events.remove(event).map(drop))
}

fn record(event: Handle, stream: Handle, flags: u32) -> Result<(), Failure> {
    let event = driver()?.events.get(event)?;
    let (_, resolved) = resolve(stream)?;
    if flags & !EXTERNAL != 0 {
        return Err(Failure::quiet(Status::INVALID_VALUE));
    }
    if flags & EXTERNAL == 0
        && let Some((capture, nodes)) = capture::position(&resolved)?
    {
        *lock(&event.mark) = Mark::Captured(capture, nodes);
        return Ok(());
    }
    enqueue(stream, Operation::Record(event))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> Status {
    call("cuEventRecord", || record(event, stream, 0))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: u32) -> Status {
    call("cuEventRecordWithFlags", || record(event, stream, flags))
}

/// The event's mark, unless it lies in a capture.
fn happened(event: Handle) -> Result<Mark, Failure> {
    let driver = driver()?;
    let event = driver.events.get(event)?;
    driver.contexts.get(event.context)?.healthy()?;
    drop(driver.occupy());
    let mark = lock(&event.mark).clone();
    match mark {
        Mark::Captured(id, _) => {
            capture::invalidate(driver, id);
            Err(Failure::quiet(Status::CAPTURED_EVENT))
        }
        mark => Ok(mark),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: Handle) -> Status {
    call("cuEventQuery", || happened(event).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: Handle) -> Status {
    call("cuEventSynchronize", || happened(event).map(drop))
}

/// Time that the simulator took, on this machine.
fn elapsed(milliseconds: Out<f32>, start: Handle, end: Handle) -> Result<(), Failure> {
    let driver = driver()?;
    let timed = |event: Handle| -> Result<Instant, Failure> {
        if driver.events.get(event)?.flags & NO_TIMING != 0 {
            return Err(Failure::loud(Status::INVALID_HANDLE, "the event was made with CU_EVENT_DISABLE_TIMING"));
        }
        match happened(event)? {
            Mark::Done(time) => Ok(time),
            _ => Err(Failure::loud(Status::INVALID_HANDLE, "the event was not recorded")),
        }
    };
    let (start, end) = (timed(start)?, timed(end)?);
    let seconds = match end.checked_duration_since(start) {
        Some(duration) => duration.as_secs_f64(),
        None => -start.duration_since(end).as_secs_f64(),
    };
    milliseconds.set("pMilliseconds", (seconds * 1000.0) as f32)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) -> Status {
    call("cuEventElapsedTime", || elapsed(milliseconds, start, end))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle, end: Handle) -> Status {
    call("cuEventElapsedTime_v2", || elapsed(milliseconds, start, end))
}

/// What the event marks is done, or part of a capture, which the stream then joins.
#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32) -> Status {
    call("cuStreamWaitEvent", || {
        let driver = driver()?;
        let event = driver.events.get(event)?;
        let (_, resolved) = resolve(stream)?;
        if flags & !EXTERNAL != 0 {
            return Err(Failure::quiet(Status::INVALID_VALUE));
        }
        let mark = lock(&event.mark).clone();
        match mark {
            Mark::Captured(id, nodes) if flags & EXTERNAL == 0 => capture::join(driver, &resolved, id, &nodes),
            _ if flags & EXTERNAL != 0 => enqueue(stream, Operation::Wait),
            // A capture may not depend on work outside it.
            _ => match capture::position(&resolved)? {
                Some((id, _)) => {
                    capture::invalidate(driver, id);
                    Err(Failure::quiet(Status::STREAM_CAPTURE_ISOLATION))
                }
                None => Ok(()),
            },
        }
    })
}
