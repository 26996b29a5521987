//! Stream capture: work that becomes a graph.
//!
//! The rules are those of the CUDA C++ Programming Guide, "Prohibited and Unhandled Operations": an operation that breaks one makes the
//! capture invalid, and ending it says so.

use super::{
    boundary::{Failure, call},
    graph::Graph,
    handle::{Handle, fresh},
    operation::Operation,
    pointer::{In, Out},
    state::{Driver, driver, lock},
    status::Status,
    stream::{Stream, resolve},
};
use std::{
    cell::Cell,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::ThreadId,
};

/// How strictly calls that could disturb a capture are refused (`CUstreamCaptureMode`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

impl Mode {
    fn of(value: u32) -> Result<Self, Failure> {
        [Self::Global, Self::ThreadLocal, Self::Relaxed]
            .get(value as usize)
            .copied()
            .ok_or(Failure::quiet(Status::INVALID_VALUE))
    }
}

/// A capture that goes on.
pub(super) struct Capture {
    pub(super) id: u64,
    graph: Arc<Graph>,
    mode: Mode,
    thread: ThreadId,
    context: Handle,
    /// The stream that began it.
    origin: u64,
    invalid: AtomicBool,
    /// The streams that take part.
    members: Mutex<Vec<Arc<Stream>>>,
}

/// A stream's part in a capture.
pub(super) struct StreamCapture {
    capture: Arc<Capture>,
    /// The nodes that its next operation depends on.
    last: Vec<Handle>,
}

thread_local! {
    /// What `cuThreadExchangeStreamCaptureMode` has set.
    static THREAD_MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

impl Capture {
    fn check(&self) -> Result<(), Failure> {
        match self.invalid.load(Ordering::Relaxed) {
            true => Err(Failure::quiet(Status::STREAM_CAPTURE_INVALIDATED)),
            false => Ok(()),
        }
    }

    fn invalidate(&self) {
        self.invalid.store(true, Ordering::Relaxed);
    }

    /// Frees the streams and forgets the capture.
    fn finish(&self, driver: &Driver) {
        // Taken out first: a stream that joins holds its own lock and waits for the members'.
        let members = std::mem::take(&mut *lock(&self.members));
        for stream in members {
            *lock(&stream.capture) = None;
        }
        lock(&driver.captures).retain(|capture| capture.id != self.id);
    }
}

/// Adds the operation to the capture that the stream takes part in. False if there is none.
pub(super) fn add(driver: &Driver, stream: &Stream, operation: &Operation) -> Result<bool, Failure> {
    let mut state = lock(&stream.capture);
    let Some(state) = state.as_mut() else { return Ok(false) };
    state.capture.check()?;
    let node = state.capture.graph.add(driver, operation.clone(), std::mem::take(&mut state.last));
    state.last = vec![node];
    Ok(true)
}

/// Where in a capture the stream is: the capture's id and the nodes that come next to last.
pub(super) fn position(stream: &Stream) -> Result<Option<(u64, Vec<Handle>)>, Failure> {
    let state = lock(&stream.capture);
    let Some(state) = state.as_ref() else { return Ok(None) };
    state.capture.check()?;
    Ok(Some((state.capture.id, state.last.clone())))
}

/// The stream waits for nodes of a capture, and so takes part in it.
pub(super) fn join(driver: &Driver, stream: &Arc<Stream>, id: u64, nodes: &[Handle]) -> Result<(), Failure> {
    let capture = lock(&driver.captures).iter().find(|capture| capture.id == id).cloned();
    // The capture that the event was recorded in is over: there is nothing to wait for.
    let Some(capture) = capture else { return Err(Failure::quiet(Status::CAPTURED_EVENT)) };
    capture.check()?;
    if stream.legacy {
        capture.invalidate();
        return Err(Failure::quiet(Status::STREAM_CAPTURE_IMPLICIT));
    }
    let mut state = lock(&stream.capture);
    match state.as_mut() {
        Some(state) if state.capture.id == id => {
            state.last.extend(nodes.iter().filter(|node| !state.last.contains(node)).copied().collect::<Vec<_>>());
        }
        Some(state) => {
            state.capture.invalidate();
            capture.invalidate();
            return Err(Failure::quiet(Status::STREAM_CAPTURE_MERGE));
        }
        None => {
            lock(&capture.members).push(stream.clone());
            *state = Some(StreamCapture { capture, last: nodes.to_vec() });
        }
    }
    Ok(())
}

/// Makes a capture invalid.
pub(super) fn invalidate(driver: &Driver, id: u64) {
    lock(&driver.captures).iter().filter(|capture| capture.id == id).for_each(|capture| capture.invalidate());
}

/// Ends the capture of a stream that is destroyed.
pub(super) fn abandon(driver: &Driver, stream: &Stream) {
    let capture = lock(&stream.capture).as_ref().map(|state| state.capture.clone());
    if let Some(capture) = capture {
        capture.invalidate();
        if capture.origin == stream.id {
            capture.finish(driver);
            capture.graph.destroy(driver);
        }
    }
}

/// Refuses what would tell how far a stream that is being captured has come.
pub(super) fn refuse_progress(driver: &Driver, stream: &Stream) -> Result<(), Failure> {
    let capture = lock(&stream.capture).as_ref().map(|state| state.capture.clone());
    if let Some(capture) = capture {
        capture.invalidate();
        return Err(Failure::quiet(Status::STREAM_CAPTURE_UNSUPPORTED));
    }
    // The legacy stream would wait for every blocking stream.
    refuse_implicit(driver, stream)
}

/// Refuses work of the legacy default stream while a stream that waits for it is being captured.
pub(super) fn refuse_implicit(driver: &Driver, stream: &Stream) -> Result<(), Failure> {
    if !stream.legacy {
        return Ok(());
    }
    let captures = lock(&driver.captures).clone();
    for capture in captures {
        let blocking =
            lock(&capture.members).iter().any(|member| member.context == stream.context && member.blocking());
        if blocking {
            capture.invalidate();
            return Err(Failure::quiet(Status::STREAM_CAPTURE_IMPLICIT));
        }
    }
    Ok(())
}

/// Refuses to wait for a context that has a stream that is being captured.
pub(super) fn refuse_wait_for_context(driver: &Driver, context: Handle) -> Result<(), Failure> {
    let captures = lock(&driver.captures).clone();
    for capture in captures {
        if capture.context == context {
            capture.invalidate();
            return Err(Failure::quiet(Status::STREAM_CAPTURE_UNSUPPORTED));
        }
    }
    Ok(())
}

/// Refuses calls that could wait for a capture or disturb it (allocating, freeing, copying at once), as the modes of captures and of
/// the calling thread have it.
pub(super) fn refuse_unsafe(driver: &Driver) -> Result<(), Failure> {
    let (mode, thread) = (THREAD_MODE.get(), std::thread::current().id());
    let captures = lock(&driver.captures).clone();
    for capture in captures {
        let own = capture.thread == thread;
        let forbidden = match (mode, capture.mode) {
            (Mode::Relaxed, _) | (_, Mode::Relaxed) => false,
            (Mode::Global, Mode::Global) => true,
            (Mode::ThreadLocal, _) | (_, Mode::ThreadLocal) => own,
        };
        if forbidden {
            capture.invalidate();
            return Err(Failure::quiet(Status::STREAM_CAPTURE_UNSUPPORTED));
        }
    }
    Ok(())
}

super::entries! {
    cuStreamBeginCapture, cuStreamBeginCapture_v2, cuStreamEndCapture, cuStreamIsCapturing, cuStreamGetCaptureInfo,
    cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v3, cuStreamUpdateCaptureDependencies,
    cuStreamUpdateCaptureDependencies_v2, cuThreadExchangeStreamCaptureMode,
}

fn begin(stream: Handle, mode: u32) -> Result<(), Failure> {
    let driver = driver()?;
    let mode = Mode::of(mode)?;
    let (context, stream) = resolve(stream)?;
    if stream.legacy {
        return Err(Failure::loud(
            Status::STREAM_CAPTURE_UNSUPPORTED,
            "the legacy default stream cannot be captured",
        ));
    }
    let mut state = lock(&stream.capture);
    if let Some(state) = state.as_ref() {
        state.capture.invalidate();
        return Err(Failure::quiet(Status::ILLEGAL_STATE));
    }
    let capture = Arc::new(Capture {
        id: fresh() as u64,
        graph: Graph::new(driver),
        mode,
        thread: std::thread::current().id(),
        context: context.handle,
        origin: stream.id,
        invalid: AtomicBool::new(false),
        members: Mutex::new(vec![stream.clone()]),
    });
    lock(&driver.captures).push(capture.clone());
    *state = Some(StreamCapture { capture, last: Vec::new() });
    Ok(())
}

/// The function before modes: global.
#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture(stream: Handle) -> Status {
    call("cuStreamBeginCapture", || begin(stream, 0))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) -> Status {
    call("cuStreamBeginCapture_v2", || begin(stream, mode))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) -> Status {
    call("cuStreamEndCapture", || {
        let driver = driver()?;
        let (_, stream) = resolve(stream)?;
        let found = lock(&stream.capture).as_ref().map(|state| (state.capture.clone(), state.last.clone()));
        let (capture, last) = found.ok_or(Failure::quiet(Status::ILLEGAL_STATE))?;
        if capture.origin != stream.id {
            capture.invalidate();
            return Err(Failure::quiet(Status::STREAM_CAPTURE_UNMATCHED));
        }
        if capture.mode != Mode::Relaxed && capture.thread != std::thread::current().id() {
            return Err(Failure::quiet(Status::STREAM_CAPTURE_WRONG_THREAD));
        }
        let others: Vec<_> =
            lock(&capture.members).iter().filter(|member| member.id != stream.id).cloned().collect();
        let forked: Vec<_> = others
            .iter()
            .filter_map(|member| lock(&member.capture).as_ref().map(|state| state.last.clone()))
            .flatten()
            .collect();
        let joined = capture.graph.reach(&forked, &last);
        capture.finish(driver);
        let ended = capture.check().and(match joined {
            true => Ok(()),
            false => Err(Failure::quiet(Status::STREAM_CAPTURE_UNJOINED)),
        });
        let ended = ended.and_then(|()| graph.set("phGraph", capture.graph.handle));
        if ended.is_err() {
            capture.graph.destroy(driver);
            graph.set_if_wanted(0);
        }
        ended
    })
}

/// What `CUstreamCaptureStatus` says.
fn state_of(stream: &Stream) -> (u32, Option<(u64, Handle)>) {
    const NONE: u32 = 0;
    const ACTIVE: u32 = 1;
    const INVALIDATED: u32 = 2;
    match lock(&stream.capture).as_ref().map(|state| &state.capture) {
        None => (NONE, None),
        Some(capture) if capture.check().is_err() => (INVALIDATED, None),
        Some(capture) => (ACTIVE, Some((capture.id, capture.graph.handle))),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(stream: Handle, state: Out<u32>) -> Status {
    call("cuStreamIsCapturing", || {
        let (_, stream) = resolve(stream)?;
        refuse_implicit_question(&stream)?;
        state.set("captureStatus", state_of(&stream).0)
    })
}

/// Asking the legacy default stream while a stream that waits for it is being captured is refused, but does no harm.
fn refuse_implicit_question(stream: &Stream) -> Result<(), Failure> {
    let captures = lock(&driver()?.captures).clone();
    let disturbs = |capture: &Arc<Capture>| {
        lock(&capture.members).iter().any(|member| member.context == stream.context && member.blocking())
    };
    match stream.legacy && captures.iter().any(disturbs) {
        true => Err(Failure::quiet(Status::STREAM_CAPTURE_IMPLICIT)),
        false => Ok(()),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCaptureInfo(stream: Handle, state: Out<u32>, id: Out<u64>) -> Status {
    call("cuStreamGetCaptureInfo", || info(stream, state, id, None, None))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: Handle,
    state: Out<u32>,
    id: Out<u64>,
    graph: Out<Handle>,
    nodes: Out<*const Handle>,
    count: Out<usize>,
) -> Status {
    call("cuStreamGetCaptureInfo_v2", || info(stream, state, id, Some(graph), Some((nodes, count))))
}

/// Edges have no data: every one is a full dependency.
#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: Handle,
    state: Out<u32>,
    id: Out<u64>,
    graph: Out<Handle>,
    nodes: Out<*const Handle>,
    edges: Out<*const u8>,
    count: Out<usize>,
) -> Status {
    call("cuStreamGetCaptureInfo_v3", || {
        edges.set_if_wanted(std::ptr::null());
        info(stream, state, id, Some(graph), Some((nodes, count)))
    })
}

fn info(
    stream: Handle,
    state: Out<u32>,
    id: Out<u64>,
    graph: Option<Out<Handle>>,
    nodes: Option<(Out<*const Handle>, Out<usize>)>,
) -> Result<(), Failure> {
    let (_, stream) = resolve(stream)?;
    refuse_implicit_question(&stream)?;
    let (status, found) = state_of(&stream);
    state.set("captureStatus_out", status)?;
    let Some((capture, its_graph)) = found else { return Ok(()) };
    id.set_if_wanted(capture);
    if let Some(graph) = graph {
        graph.set_if_wanted(its_graph);
    }
    if let Some((nodes, count)) = nodes {
        // The array stays as it is until the next call on the stream, as the API has it.
        let held = lock(&stream.capture);
        if let Some(held) = held.as_ref() {
            nodes.set_if_wanted(held.last.as_ptr());
            count.set_if_wanted(held.last.len());
        }
    }
    Ok(())
}

fn update(stream: Handle, nodes: In<Handle>, count: usize, flags: u32) -> Result<(), Failure> {
    const ADD: u32 = 0;
    const SET: u32 = 1;
    let driver = driver()?;
    let (_, stream) = resolve(stream)?;
    let nodes = nodes.array("dependencies", count)?;
    for &node in &nodes {
        driver.nodes.get(node)?;
    }
    let mut state = lock(&stream.capture);
    let state = state.as_mut().ok_or(Failure::quiet(Status::ILLEGAL_STATE))?;
    state.capture.check()?;
    match flags {
        ADD => {
            let new: Vec<_> = nodes.into_iter().filter(|node| !state.last.contains(node)).collect();
            state.last.extend(new);
        }
        SET => state.last = nodes,
        _ => return Err(Failure::quiet(Status::INVALID_VALUE)),
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamUpdateCaptureDependencies(
    stream: Handle,
    nodes: In<Handle>,
    count: usize,
    flags: u32,
) -> Status {
    call("cuStreamUpdateCaptureDependencies", || update(stream, nodes, count, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamUpdateCaptureDependencies_v2(
    stream: Handle,
    nodes: In<Handle>,
    edges: In<u64>,
    count: usize,
    flags: u32,
) -> Status {
    call("cuStreamUpdateCaptureDependencies_v2", || {
        if edges.array("dependencyData", if edges.is_null() { 0 } else { count })?.iter().any(|&edge| edge != 0) {
            return Err(Failure::loud(Status::NOT_SUPPORTED, "edges with data are not modelled"));
        }
        update(stream, nodes, count, flags)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) -> Status {
    call("cuThreadExchangeStreamCaptureMode", || {
        let new = Mode::of(mode.get("mode")?)?;
        mode.set("mode", THREAD_MODE.replace(new) as u32)
    })
}
