//! Capture and replay.

use crate::{
    memory::{allocate, bytes_at, free},
    module::{kernel, load},
};
use cudarc::driver::{
    CudaContext,
    sys::{self, CUresult, CUstreamCaptureMode, CUstreamCaptureStatus},
};
use std::{ffi::c_void, ptr::null_mut};

pub(crate) const TESTS: &[crate::Test] = &[
    ("capture::replays_with_the_values_of_then", replays_with_the_values_of_then),
    ("capture::forks_join", forks_join),
    ("capture::forbidden_calls_end_it", forbidden_calls_end_it),
    ("capture::dependencies_can_be_read_and_set", dependencies_can_be_read_and_set),
    ("capture::memory_of_a_graph", memory_of_a_graph),
    ("capture::graphs_made_by_hand", graphs_made_by_hand),
];

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;

/// Adds a number to the one at an address.
const ADD: &str = r"
.version 8.0
.target sm_90
.address_size 64
.visible .entry add(.param .u64 at, .param .u32 by)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<4>;
    ld.param.u64 %rd1, [at];
    ld.param.u32 %r1, [by];
    cvta.to.global.u64 %rd2, %rd1;
    ld.global.u32 %r2, [%rd2];
    add.s32 %r3, %r2, %r1;
    st.global.u32 [%rd2], %r3;
    ret;
}
";

fn add(function: sys::CUfunction, stream: sys::CUstream, at: u64, by: u32) {
    let (mut at, mut by) = (at, by);
    let mut parameters = [(&raw mut at).cast(), (&raw mut by).cast()];
    // SAFETY: the parameters are those of the kernel.
    let code =
        unsafe { sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters.as_mut_ptr(), null_mut()) };
    code.result().unwrap();
}

fn number_at(at: u64) -> u32 {
    u32::from_le_bytes(bytes_at(at, 4).try_into().unwrap())
}

fn new_stream() -> sys::CUstream {
    let mut stream = null_mut();
    // SAFETY: the pointer is valid for a write.
    unsafe { sys::cuStreamCreate(&mut stream, 1) }.result().unwrap();
    stream
}

fn begin(stream: sys::CUstream) {
    // SAFETY: the stream lives.
    unsafe { sys::cuStreamBeginCapture_v2(stream, GLOBAL) }.result().unwrap();
}

fn end(stream: sys::CUstream) -> Result<sys::CUgraph, CUresult> {
    let mut graph = null_mut();
    // SAFETY: the pointer is valid for a write.
    unsafe { sys::cuStreamEndCapture(stream, &mut graph) }.result().map(|()| graph).map_err(|error| error.0)
}

fn instantiate(graph: sys::CUgraph) -> sys::CUgraphExec {
    let mut executable = null_mut();
    // SAFETY: the pointer is valid for a write.
    unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0) }.result().unwrap();
    executable
}

fn launch(executable: sys::CUgraphExec, stream: sys::CUstream) {
    // SAFETY: both live.
    unsafe { sys::cuGraphLaunch(executable, stream) }.result().unwrap();
}

fn nodes(graph: sys::CUgraph) -> Vec<sys::CUgraphNode> {
    let mut count = 0;
    // SAFETY: with no array the count is written, then the array has that length.
    unsafe {
        sys::cuGraphGetNodes(graph, null_mut(), &mut count).result().unwrap();
        let mut nodes = vec![null_mut(); count];
        sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count).result().unwrap();
        nodes
    }
}

fn kinds(graph: sys::CUgraph) -> Vec<u32> {
    let kind = |node| {
        let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
        // SAFETY: the pointer is valid for a write.
        unsafe { sys::cuGraphNodeGetType(node, &mut kind) }.result().unwrap();
        kind as u32
    };
    nodes(graph).into_iter().map(kind).collect()
}

unsafe extern "C" fn count_up(data: *mut c_void) {
    // SAFETY: the tests give a pointer to a number that outlives the graph.
    unsafe { *data.cast::<u32>() += 1 };
}

/// Kernel, set, copy and host function; nothing is done before the launch, and what parameters were counts.
fn replays_with_the_values_of_then() {
    let _context = CudaContext::new(0).unwrap();
    let function = kernel(load(ADD), "add");
    let (stream, at, copy) = (new_stream(), allocate(4), allocate(4));
    let mut calls = 0u32;
    begin(stream);
    // SAFETY: the memory and the number live until the graph is gone.
    unsafe {
        sys::cuMemsetD32Async(at, 10, 1, stream).result().unwrap();
        add(function, stream, at, 5);
        sys::cuMemcpyDtoDAsync_v2(copy, at, 4, stream).result().unwrap();
        sys::cuLaunchHostFunc(stream, Some(count_up), (&raw mut calls).cast()).result().unwrap();
    }
    let graph = end(stream).unwrap();
    assert_eq!(kinds(graph), [2, 0, 1, 3]);
    let executable = instantiate(graph);
    // SAFETY: the handle is not used after this; the executable is its own.
    unsafe {
        sys::cuGraphDestroy(graph).result().unwrap();
        sys::cuMemsetD32_v2(copy, 0, 1).result().unwrap();
        sys::cuMemsetD32_v2(at, 0, 1).result().unwrap();
    }
    assert_eq!(calls, 0);
    for round in 1..=3 {
        add(function, stream, at, 1000);
        launch(executable, stream);
        assert_eq!((number_at(copy), number_at(at), calls), (15, 15, round));
    }
    // SAFETY: nothing is used after this.
    unsafe {
        sys::cuGraphExecDestroy(executable).result().unwrap();
        assert_eq!(sys::cuGraphLaunch(executable, stream), CUresult::CUDA_ERROR_INVALID_VALUE);
        sys::cuStreamDestroy_v2(stream).result().unwrap();
    }
    free(at);
    free(copy);
}

/// A second stream takes part by an event, and must be joined by another.
fn forks_join() {
    let context = CudaContext::new(0).unwrap();
    let function = kernel(load(ADD), "add");
    let (first, second, at) = (new_stream(), new_stream(), allocate(8));
    let (fork, join) = (context.new_event(None).unwrap(), context.new_event(None).unwrap());
    for joined in [true, false] {
        begin(first);
        // SAFETY: events and streams live.
        unsafe {
            sys::cuMemsetD32Async(at, 0, 2, first).result().unwrap();
            sys::cuEventRecord(fork.cu_event(), first).result().unwrap();
            sys::cuStreamWaitEvent(second, fork.cu_event(), 0).result().unwrap();
            add(function, second, at, 3);
            add(function, first, at + 4, 4);
            if joined {
                sys::cuEventRecord(join.cu_event(), second).result().unwrap();
                sys::cuStreamWaitEvent(first, join.cu_event(), 0).result().unwrap();
            }
            // A capture may not depend on what lies outside it.
        }
        let graph = end(first);
        if !joined {
            assert_eq!(graph, Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
            continue;
        }
        let graph = graph.unwrap();
        let mut edges = 0;
        // SAFETY: with no arrays only the count is written.
        unsafe { sys::cuGraphGetEdges_v2(graph, null_mut(), null_mut(), null_mut(), &mut edges) }.result().unwrap();
        assert_eq!((nodes(graph).len(), edges), (3, 2));
        launch(instantiate(graph), first);
        assert_eq!((number_at(at), number_at(at + 4)), (3, 4));
    }
    // Both streams are free again.
    add(function, second, at, 1);
    assert_eq!(number_at(at), 4);
    free(at);
}

fn forbidden_calls_end_it() {
    let context = CudaContext::new(0).unwrap();
    let stream = new_stream();
    let at = allocate(4);
    let unsupported = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    // SAFETY: that these fail is what is tested.
    let calls: [&dyn Fn() -> CUresult; 5] = unsafe {
        [
            &|| sys::cuMemAlloc_v2(&mut 0, 16),
            &|| sys::cuStreamSynchronize(stream),
            &|| sys::cuStreamQuery(stream),
            &|| sys::cuCtxSynchronize(),
            &|| sys::cuMemcpyDtoH_v2([0u8; 4].as_mut_ptr().cast(), at, 4),
        ]
    };
    for (index, call) in calls.iter().enumerate() {
        begin(stream);
        assert_eq!(call(), unsupported, "call {index}");
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the pointer is valid for a write.
        unsafe { sys::cuStreamIsCapturing(stream, &mut status) }.result().unwrap();
        assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        assert_eq!(end(stream), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED), "call {index}");
    }
    // Work from outside, and work of the legacy stream beside a stream that waits for it.
    let event = context.new_event(None).unwrap();
    let mut blocking = null_mut();
    // SAFETY: handles live; pointers are valid for writes.
    unsafe {
        sys::cuEventRecord(event.cu_event(), null_mut()).result().unwrap();
        begin(stream);
        let outside = sys::cuStreamWaitEvent(stream, event.cu_event(), 0);
        assert_eq!(outside, CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        assert!(end(stream).is_err());
        sys::cuStreamCreate(&mut blocking, 0).result().unwrap();
        begin(blocking);
        let implicit = sys::cuMemsetD8Async(at, 0, 4, null_mut());
        assert_eq!(implicit, CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        assert!(end(blocking).is_err());
        assert_eq!(sys::cuStreamBeginCapture_v2(null_mut(), GLOBAL), unsupported);
        assert_eq!(end(stream), Err(CUresult::CUDA_ERROR_ILLEGAL_STATE));
        // A relaxed capture forbids nothing of this.
        let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        sys::cuStreamBeginCapture_v2(stream, relaxed).result().unwrap();
        free(allocate(16));
        end(stream).unwrap();
    }
    free(at);
}

fn dependencies_can_be_read_and_set() {
    let _context = CudaContext::new(0).unwrap();
    let (stream, at) = (new_stream(), allocate(4));
    begin(stream);
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, mut graph, mut before, mut count) = (0, null_mut(), std::ptr::null(), 0);
    // SAFETY: the pointers are valid for writes; the array is valid until the next call on the stream.
    unsafe {
        sys::cuMemsetD32Async(at, 1, 1, stream).result().unwrap();
        sys::cuMemsetD32Async(at, 2, 1, stream).result().unwrap();
        sys::cuStreamGetCaptureInfo_v3(
            stream,
            &mut status,
            &mut id,
            &mut graph,
            &mut before,
            null_mut(),
            &mut count,
        )
        .result()
        .unwrap();
        assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        assert!(id != 0 && count == 1);
        assert_eq!(*before, nodes(graph)[1]);
        let mut root = nodes(graph)[0];
        const SET: u32 = 1;
        sys::cuStreamUpdateCaptureDependencies_v2(stream, &mut root, std::ptr::null(), 1, SET).result().unwrap();
        sys::cuMemsetD32Async(at, 3, 1, stream).result().unwrap();
        let (mut dependency, mut count) = (null_mut(), 1);
        sys::cuGraphNodeGetDependencies_v2(nodes(graph)[2], &mut dependency, null_mut(), &mut count)
            .result()
            .unwrap();
        assert_eq!((dependency, count), (root, 1));
    }
    // The second set was left to dangle: nothing joins it, and nothing forbids that on the first stream.
    assert_eq!(end(stream).unwrap(), graph);
    free(at);
}

/// A graph that allocates keeps its memory until it is destroyed.
fn memory_of_a_graph() {
    let context = CudaContext::new(0).unwrap();
    let stream = new_stream();
    let before = context.mem_get_info().unwrap().0;
    let mut at = 0;
    begin(stream);
    // SAFETY: the pointer is valid for a write; the memory is used in the capture.
    unsafe {
        sys::cuMemAllocAsync(&mut at, 64, stream).result().unwrap();
        sys::cuMemsetD8Async(at, 9, 64, stream).result().unwrap();
        sys::cuMemFreeAsync(at, stream).result().unwrap();
    }
    let graph = end(stream).unwrap();
    assert_eq!(kinds(graph), [10, 2, 11]);
    launch(instantiate(graph), stream);
    assert!(context.mem_get_info().unwrap().0 < before);
    // SAFETY: the handle is not used after this.
    unsafe { sys::cuGraphDestroy(graph) }.result().unwrap();
    assert_eq!(context.mem_get_info().unwrap().0, before);
}

fn graphs_made_by_hand() {
    let _context = CudaContext::new(0).unwrap();
    let (stream, at) = (new_stream(), allocate(4));
    let (mut graph, mut set, mut host, mut calls) = (null_mut(), null_mut(), null_mut(), 0u32);
    // SAFETY: pointers are valid; the memory and the number outlive the graph.
    unsafe {
        sys::cuGraphCreate(&mut graph, 0).result().unwrap();
        let host_parameters = sys::CUDA_HOST_NODE_PARAMS { fn_: Some(count_up), userData: (&raw mut calls).cast() };
        sys::cuGraphAddHostNode(&mut host, graph, std::ptr::null(), 0, &host_parameters).result().unwrap();
        let set_parameters =
            sys::CUDA_MEMSET_NODE_PARAMS { dst: at, pitch: 4, value: 77, elementSize: 4, width: 1, height: 1 };
        sys::cuGraphAddMemsetNode(&mut set, graph, &host, 1, &set_parameters, null_mut()).result().unwrap();
        launch(instantiate(graph), stream);
        assert_eq!((calls, number_at(at)), (1, 77));
        let (from, to) = (set, host);
        sys::cuGraphAddDependencies_v2(graph, &from, &to, std::ptr::null(), 1).result().unwrap();
        let circle = sys::cuGraphInstantiateWithFlags(&mut null_mut(), graph, 0);
        assert_eq!(circle, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    free(at);
}
