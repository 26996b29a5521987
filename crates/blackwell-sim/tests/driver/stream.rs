//! Streams, events, functions of the host.

use cudarc::driver::{
    CudaContext,
    sys::{self, CUresult},
};
use std::{ffi::c_void, ptr::null_mut};

pub(crate) const TESTS: &[crate::Test] = &[
    ("stream::events_measure_and_order", events_measure_and_order),
    ("stream::has_what_it_was_made_with", has_what_it_was_made_with),
    ("stream::host_functions_run", host_functions_run),
    ("stream::handles_die", handles_die),
];

fn events_measure_and_order() {
    let context = CudaContext::new(0).unwrap();
    let (first, second) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let start = first.record_event(timed).unwrap();
    let data = first.clone_htod(&vec![1u8; 1 << 16]).unwrap();
    let end = first.record_event(timed).unwrap();
    second.wait(&end).unwrap();
    assert_eq!(second.clone_dtoh(&data).unwrap(), vec![1; 1 << 16]);
    end.synchronize().unwrap();
    assert!(end.is_complete());
    assert!(start.elapsed_ms(&end).unwrap() > 0.0);
    assert!(end.elapsed_ms(&start).unwrap() < 0.0);
    let untimed = first.record_event(None).unwrap();
    assert_eq!(start.elapsed_ms(&untimed).unwrap_err().0, CUresult::CUDA_ERROR_INVALID_HANDLE);
}

fn has_what_it_was_made_with() {
    let context = CudaContext::new(0).unwrap();
    let (mut stream, mut priority, mut flags, mut owner) = (null_mut(), 0, 0, null_mut());
    let (mut id, mut other) = (0, 0);
    // SAFETY: the pointers are valid for writes; the stream is destroyed once.
    unsafe {
        sys::cuStreamCreateWithPriority(&mut stream, 1, -100).result().unwrap();
        sys::cuStreamGetPriority(stream, &mut priority).result().unwrap();
        sys::cuStreamGetFlags(stream, &mut flags).result().unwrap();
        sys::cuStreamGetCtx(stream, &mut owner).result().unwrap();
        sys::cuStreamGetId(stream, &mut id).result().unwrap();
        sys::cuStreamGetId(null_mut(), &mut other).result().unwrap();
        sys::cuStreamDestroy_v2(stream).result().unwrap();
    }
    assert_eq!((priority, flags, owner), (-5, 1, context.cu_ctx()));
    assert_ne!(id, other);
}

fn host_functions_run() {
    unsafe extern "C" fn add_seven(data: *mut c_void) {
        // SAFETY: the test gives a pointer to a number that outlives the call.
        unsafe { *data.cast::<u32>() += 7 };
    }
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let mut number = 1u32;
    // SAFETY: the function takes a pointer to a number.
    let code = unsafe { sys::cuLaunchHostFunc(stream.cu_stream(), Some(add_seven), (&raw mut number).cast()) };
    code.result().unwrap();
    stream.synchronize().unwrap();
    assert_eq!(number, 8);
}

/// A handle that was destroyed, and one of another kind, are errors, never crashes.
fn handles_die() {
    let _context = CudaContext::new(0).unwrap();
    let (mut stream, mut event) = (null_mut(), null_mut());
    // SAFETY: that wrong handles are refused is what is tested.
    unsafe {
        sys::cuStreamCreate(&mut stream, 0).result().unwrap();
        sys::cuEventCreate(&mut event, 0).result().unwrap();
        sys::cuStreamDestroy_v2(stream).result().unwrap();
        for code in [
            sys::cuStreamDestroy_v2(stream),
            sys::cuStreamSynchronize(stream),
            sys::cuEventRecord(event, stream),
            sys::cuStreamSynchronize(event.cast()),
            sys::cuModuleUnload(0x1234 as *mut _),
            sys::cuFuncSetCacheConfig(null_mut(), sys::CUfunc_cache::CU_FUNC_CACHE_PREFER_L1),
        ] {
            assert_eq!(code, CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        sys::cuEventDestroy_v2(event).result().unwrap();
    }
}
