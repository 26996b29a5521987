//! Streams, events and captured graphs.

use crate::{
    device::Device,
    error::{CudaError, driver},
};
use cudarc::driver::{result, sys};
use std::{ffi::c_void, fmt, marker::PhantomData};

/// A borrowed stream: the caller's, never created, synchronized or compared here. Handle 0 (legacy default stream)
/// and handle 2 (per-thread default stream) are passed on unchanged; since handle 2 means another stream on each
/// thread, a handle is never used as an identity.
#[derive(Clone, Copy)]
pub struct StreamRef<'a> {
    device: &'a Device,
    raw: sys::CUstream,
    owner: PhantomData<&'a ()>,
}

// SAFETY: a CUDA stream may be used from any thread (driver API, "Stream Management"); the handle is only passed on.
unsafe impl Send for StreamRef<'_> {}
// SAFETY: as above; nothing here is mutated through a shared reference.
unsafe impl Sync for StreamRef<'_> {}

impl fmt::Debug for StreamRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamRef({:?} on {})", self.raw, self.device.describe())
    }
}

impl<'a> StreamRef<'a> {
    /// A stream of another library.
    ///
    /// # Safety
    /// `raw` is a `CUstream` (or 0, 1 or 2 for the default streams) of `device`'s primary context and stays valid
    /// for `'a`.
    pub const unsafe fn from_raw(device: &'a Device, raw: *mut c_void) -> Self {
        Self { device, raw: raw.cast(), owner: PhantomData }
    }

    /// The device of the stream.
    pub const fn device(self) -> &'a Device {
        self.device
    }

    /// The handle.
    pub const fn as_raw(self) -> *mut c_void {
        self.raw.cast()
    }

    pub(crate) const fn cu_stream(self) -> sys::CUstream {
        self.raw
    }

    /// True while the stream is being captured into a graph.
    pub fn is_capturing(self) -> Result<bool, CudaError> {
        self.device.bind()?;
        // SAFETY: the handle is valid by the contract of `from_raw`.
        let status = driver("cuStreamIsCapturing", unsafe { result::stream::is_capturing(self.raw) })?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// `Ok` unless the stream is being captured; `what` names the operation that must not be.
    pub fn refuse_capture(self, what: &'static str) -> Result<(), CudaError> {
        if self.is_capturing()? { Err(CudaError::Capturing { what }) } else { Ok(()) }
    }

    /// Waits for the work of the stream.
    pub fn synchronize(self) -> Result<(), CudaError> {
        self.device.bind()?;
        // SAFETY: as in `is_capturing`.
        driver("cuStreamSynchronize", unsafe { result::stream::synchronize(self.raw) })
    }

    /// Records `enqueue`'s work into a graph instead of running it. `enqueue` must not allocate, copy from pageable
    /// memory or synchronize; if it fails, the capture is ended, its graph dropped, and the stream usable.
    ///
    /// The graph keeps the addresses of every operand: they must stay allocated as long as it may be launched.
    pub fn capture(self, enqueue: impl FnOnce(Self) -> Result<(), CudaError>) -> Result<Graph, CudaError> {
        self.refuse_capture("capturing a graph")?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        // SAFETY: as in `is_capturing`.
        driver("cuStreamBeginCapture", unsafe { result::stream::begin_capture(self.raw, mode) })?;
        let outcome = enqueue(self);
        // SAFETY: the stream is being captured; ending it gives ownership of the graph.
        let ended = driver("cuStreamEndCapture", unsafe { result::stream::end_capture(self.raw) });
        let graph = ended.map(|raw| RawGraph { device: self.device.clone(), raw });
        outcome?;
        let graph = graph?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph is valid; `exec` is valid for a write.
        let status = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph.raw, 0) };
        driver("cuGraphInstantiate", status.result())?;
        Ok(Graph { graph, exec })
    }
}

/// A stream of our own, for tests, benchmarks and tools. Layers take the caller's.
pub struct Stream {
    device: Device,
    raw: sys::CUstream,
}

// SAFETY: as for `StreamRef`.
unsafe impl Send for Stream {}
// SAFETY: as for `StreamRef`.
unsafe impl Sync for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(f)
    }
}

impl Stream {
    /// A new stream that does not wait for the legacy default stream.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        device.bind()?;
        let raw = driver("cuStreamCreate", result::stream::create(result::stream::StreamKind::NonBlocking))?;
        Ok(Self { device: device.clone(), raw })
    }

    /// The stream, borrowed.
    pub fn as_ref(&self) -> StreamRef<'_> {
        StreamRef { device: &self.device, raw: self.raw, owner: PhantomData }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: the stream is ours and not used after this. A failure cannot be reported from here.
            let _ = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

struct RawGraph {
    device: Device,
    raw: sys::CUgraph,
}

impl Drop for RawGraph {
    fn drop(&mut self) {
        if !self.raw.is_null() && self.device.bind().is_ok() {
            // SAFETY: the graph is ours and not used after this. A failure cannot be reported from here.
            let _ = unsafe { result::graph::destroy(self.raw) };
        }
    }
}

/// A captured graph, ready to launch. It is not `Sync`: CUDA does not serialize calls on one graph.
pub struct Graph {
    graph: RawGraph,
    exec: sys::CUgraphExec,
}

// SAFETY: a graph may be used from any thread, one at a time (driver API, "Graph object thread safety").
unsafe impl Send for Graph {}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({:?})", self.exec)
    }
}

impl Graph {
    /// Enqueues the graph's work.
    pub fn launch(&self, stream: StreamRef<'_>) -> Result<(), CudaError> {
        self.graph.device.bind()?;
        // SAFETY: both handles are valid.
        driver("cuGraphLaunch", unsafe { result::graph::launch(self.exec, stream.cu_stream()) })
    }

    /// How many nodes the graph has, and how many of them are kernels. The difference is copies, sets, allocations.
    pub fn node_counts(&self) -> Result<(usize, usize), CudaError> {
        self.graph.device.bind()?;
        let mut count = 0;
        // SAFETY: with a null array, only the count is written.
        let status = unsafe { sys::cuGraphGetNodes(self.graph.raw, std::ptr::null_mut(), &mut count) };
        driver("cuGraphGetNodes", status.result())?;
        let mut nodes = vec![std::ptr::null_mut(); count];
        // SAFETY: the array holds `count` nodes.
        let status = unsafe { sys::cuGraphGetNodes(self.graph.raw, nodes.as_mut_ptr(), &mut count) };
        driver("cuGraphGetNodes", status.result())?;
        let mut kernels = 0;
        for node in nodes {
            let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
            // SAFETY: the node belongs to the graph; `kind` is valid for a write.
            driver("cuGraphNodeGetType", unsafe { sys::cuGraphNodeGetType(node, &mut kind) }.result())?;
            kernels += usize::from(kind == sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL);
        }
        Ok((count, kernels))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.graph.device.bind().is_ok() {
            // SAFETY: the executable graph is ours and not used after this. A failure cannot be reported from here.
            let _ = unsafe { result::graph::exec_destroy(self.exec) };
        }
    }
}

/// A point in a stream's work, for timing and ordering.
pub struct Event {
    device: Device,
    raw: sys::CUevent,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:?})", self.raw)
    }
}

impl Event {
    /// A new event that measures time.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        device.bind()?;
        let raw = driver("cuEventCreate", result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT))?;
        Ok(Self { device: device.clone(), raw })
    }

    /// Marks the end of what the stream has been given so far.
    pub fn record(&self, stream: StreamRef<'_>) -> Result<(), CudaError> {
        self.device.bind()?;
        // SAFETY: both handles are valid.
        driver("cuEventRecord", unsafe { result::event::record(self.raw, stream.cu_stream()) })
    }

    /// Waits until the event has happened.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.device.bind()?;
        // SAFETY: the event is valid.
        driver("cuEventSynchronize", unsafe { result::event::synchronize(self.raw) })
    }

    /// Milliseconds from this event to `end`; both must have happened.
    pub fn elapsed_ms(&self, end: &Self) -> Result<f32, CudaError> {
        self.device.bind()?;
        // SAFETY: both events are valid.
        driver("cuEventElapsedTime", unsafe { result::event::elapsed(self.raw, end.raw) })
    }

    /// Makes the stream's later work wait for the event.
    pub fn wait(&self, stream: StreamRef<'_>) -> Result<(), CudaError> {
        self.device.bind()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both handles are valid.
        driver("cuStreamWaitEvent", unsafe { result::stream::wait_event(stream.cu_stream(), self.raw, flags) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: the event is ours and not used after this. A failure cannot be reported from here.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}
