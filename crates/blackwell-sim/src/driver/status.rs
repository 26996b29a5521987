//! `CUresult`: the driver's status codes, with names and descriptions.

use super::{
    boundary::{Failure, call},
    pointer::Out,
};
use std::ffi::{CStr, c_char};

/// A `CUresult`, as functions return it.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status(pub(super) u32);

/// Declares every code as a constant, and the table of names and descriptions.
macro_rules! codes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        #[allow(dead_code, reason = "the table is the API's, whole")]
        impl Status {
            $(pub(super) const $name: Self = Self($code);)*
        }

        /// Code, name without its prefix, description.
        const CODES: &[(u32, &CStr, &CStr)] = &[$(($code, name!($name), text!($text))),*];
    };
}

/// A C string of a literal.
macro_rules! text {
    ($text:expr) => {
        match CStr::from_bytes_with_nul(concat!($text, "\0").as_bytes()) {
            Ok(text) => text,
            Err(_) => c"",
        }
    };
}

/// A code's name as C spells it.
macro_rules! name {
    (SUCCESS) => {
        c"CUDA_SUCCESS"
    };
    ($name:ident) => {
        text!(concat!("CUDA_ERROR_", stringify!($name)))
    };
}

codes! {
    SUCCESS = 0, "no error";
    INVALID_VALUE = 1, "a parameter has a value that is not allowed";
    OUT_OF_MEMORY = 2, "not enough memory";
    NOT_INITIALIZED = 3, "cuInit has not been called, or has failed";
    DEINITIALIZED = 4, "the driver is shutting down";
    PROFILER_DISABLED = 5, "no profiler is attached";
    PROFILER_NOT_INITIALIZED = 6, "the profiler was not initialized";
    PROFILER_ALREADY_STARTED = 7, "the profiler has been started";
    PROFILER_ALREADY_STOPPED = 8, "the profiler has been stopped";
    STUB_LIBRARY = 34, "this library is a stub";
    CALL_REQUIRES_NEWER_DRIVER = 36, "the call needs a newer driver";
    DEVICE_UNAVAILABLE = 46, "the device cannot be used now";
    MULTICAST_RESOURCE_FULL = 47, "no multicast resources are left";
    NO_DEVICE = 100, "there is no device";
    INVALID_DEVICE = 101, "there is no device with that number";
    DEVICE_NOT_LICENSED = 102, "the device has no licence";
    INVALID_IMAGE = 200, "the image of the module is not one";
    INVALID_CONTEXT = 201, "no context is current, or the handle is no context";
    CONTEXT_ALREADY_CURRENT = 202, "the context is current already";
    MAP_FAILED = 205, "mapping failed";
    UNMAP_FAILED = 206, "unmapping failed";
    ARRAY_IS_MAPPED = 207, "the array is mapped";
    ALREADY_MAPPED = 208, "the resource is mapped already";
    NO_BINARY_FOR_GPU = 209, "the image holds no code for the device";
    ALREADY_ACQUIRED = 210, "the resource has been acquired";
    NOT_MAPPED = 211, "the resource is not mapped";
    NOT_MAPPED_AS_ARRAY = 212, "the resource is not mapped as an array";
    NOT_MAPPED_AS_POINTER = 213, "the resource is not mapped as a pointer";
    ECC_UNCORRECTABLE = 214, "memory had an error that could not be corrected";
    UNSUPPORTED_LIMIT = 215, "the device does not have that limit";
    CONTEXT_ALREADY_IN_USE = 216, "the context is in use by another thread";
    PEER_ACCESS_UNSUPPORTED = 217, "the devices cannot access each other";
    INVALID_PTX = 218, "the PTX cannot be compiled";
    INVALID_GRAPHICS_CONTEXT = 219, "the graphics context is not valid";
    NVLINK_UNCORRECTABLE = 220, "NVLink had an error that could not be corrected";
    JIT_COMPILER_NOT_FOUND = 221, "there is no compiler for PTX";
    UNSUPPORTED_PTX_VERSION = 222, "the PTX is of a version that is not supported";
    JIT_COMPILATION_DISABLED = 223, "compiling PTX is disabled";
    UNSUPPORTED_EXEC_AFFINITY = 224, "the device does not have that execution affinity";
    UNSUPPORTED_DEVSIDE_SYNC = 225, "the code synchronizes on the device in a way that is not supported";
    CONTAINED = 226, "an error that was contained to the context";
    INSUFFICIENT_LOADER_VERSION = 227, "the code needs a newer loader";
    INVALID_SOURCE = 300, "the source is not valid";
    FILE_NOT_FOUND = 301, "the file was not found";
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302, "a shared library lacks a symbol";
    SHARED_OBJECT_INIT_FAILED = 303, "a shared library failed to start";
    OPERATING_SYSTEM = 304, "a call of the operating system failed";
    INVALID_HANDLE = 400, "the handle is not valid";
    ILLEGAL_STATE = 401, "the object is in a state that does not allow this";
    LOSSY_QUERY = 402, "the query would lose information";
    NOT_FOUND = 500, "no symbol of that name";
    NOT_READY = 600, "the work has not finished";
    ILLEGAL_ADDRESS = 700, "a kernel accessed memory that it may not access";
    LAUNCH_OUT_OF_RESOURCES = 701, "the launch needs more resources than there are";
    LAUNCH_TIMEOUT = 702, "a kernel ran too long";
    LAUNCH_INCOMPATIBLE_TEXTURING = 703, "the launch uses textures in an incompatible way";
    PEER_ACCESS_ALREADY_ENABLED = 704, "access to the other device is enabled already";
    PEER_ACCESS_NOT_ENABLED = 705, "access to the other device is not enabled";
    PRIMARY_CONTEXT_ACTIVE = 708, "the primary context has been made already";
    CONTEXT_IS_DESTROYED = 709, "the context has been destroyed";
    ASSERT = 710, "an assertion in a kernel failed";
    TOO_MANY_PEERS = 711, "too many devices that access each other";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "the host memory is registered already";
    HOST_MEMORY_NOT_REGISTERED = 713, "the host memory is not registered";
    HARDWARE_STACK_ERROR = 714, "a kernel's stack is corrupt";
    ILLEGAL_INSTRUCTION = 715, "a kernel executed an instruction that is not allowed";
    MISALIGNED_ADDRESS = 716, "a kernel accessed an address that is not aligned";
    INVALID_ADDRESS_SPACE = 717, "a kernel accessed an address of another space than the instruction's";
    INVALID_PC = 718, "a kernel jumped to where there is no code";
    LAUNCH_FAILED = 719, "a kernel failed";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, "a cooperative launch of more CTAs than can be resident at once";
    TENSOR_MEMORY_LEAK = 721, "a kernel ended without freeing its tensor memory";
    NOT_PERMITTED = 800, "the operation is not permitted";
    NOT_SUPPORTED = 801, "the operation is not supported";
    SYSTEM_NOT_READY = 802, "the system is not ready";
    SYSTEM_DRIVER_MISMATCH = 803, "the driver does not match the system";
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, "the device does not allow forward compatibility";
    MPS_CONNECTION_FAILED = 805, "no connection to MPS";
    MPS_RPC_FAILURE = 806, "a call of MPS failed";
    MPS_SERVER_NOT_READY = 807, "the MPS server is not ready";
    MPS_MAX_CLIENTS_REACHED = 808, "MPS has too many clients";
    MPS_MAX_CONNECTIONS_REACHED = 809, "MPS has too many connections";
    MPS_CLIENT_TERMINATED = 810, "MPS ended the client";
    CDP_NOT_SUPPORTED = 811, "kernels cannot launch kernels on this device";
    CDP_VERSION_MISMATCH = 812, "kernels that launch kernels are of a version that does not match";
    STREAM_CAPTURE_UNSUPPORTED = 900, "not allowed while a stream is being captured";
    STREAM_CAPTURE_INVALIDATED = 901, "the capture was made invalid by an earlier error";
    STREAM_CAPTURE_MERGE = 902, "two captures cannot be merged";
    STREAM_CAPTURE_UNMATCHED = 903, "the stream did not begin this capture";
    STREAM_CAPTURE_UNJOINED = 904, "the capture has work that its first stream does not wait for";
    STREAM_CAPTURE_ISOLATION = 905, "the capture would depend on work outside it";
    STREAM_CAPTURE_IMPLICIT = 906, "the legacy default stream would wait for a stream that is being captured";
    CAPTURED_EVENT = 907, "the event was recorded in a capture";
    STREAM_CAPTURE_WRONG_THREAD = 908, "another thread began the capture";
    TIMEOUT = 909, "a wait took too long";
    GRAPH_EXEC_UPDATE_FAILURE = 910, "the executable graph cannot be updated with this graph";
    EXTERNAL_DEVICE = 911, "an error of another device";
    INVALID_CLUSTER_SIZE = 912, "the cluster is too large, or has a size that the kernel does not allow";
    FUNCTION_NOT_LOADED = 913, "the function is not loaded";
    INVALID_RESOURCE_TYPE = 914, "the resource is of a type that does not fit";
    INVALID_RESOURCE_CONFIGURATION = 915, "the resources do not fit together";
    KEY_ROTATION = 916, "a key is being changed";
    STREAM_DETACHED = 917, "the stream is detached";
    GRAPH_RECAPTURE_FAILURE = 918, "the graph cannot be captured again";
    FABRIC_NOT_READY = 919, "the fabric is not ready";
    UNKNOWN = 999, "an internal error";
}

impl Status {
    /// Name and description; `None` for a code that does not exist.
    pub(super) fn texts(self) -> Option<(&'static CStr, &'static CStr)> {
        CODES.iter().find(|(code, ..)| *code == self.0).map(|&(_, name, text)| (name, text))
    }

    /// The code's name, for messages.
    pub(super) fn name(self) -> &'static str {
        self.texts().and_then(|(name, _)| name.to_str().ok()).unwrap_or("an unknown code")
    }
}

super::entries! { cuGetErrorName, cuGetErrorString }

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(error: Status, text: Out<*const c_char>) -> Status {
    call("cuGetErrorName", || describe(error, text, |(name, _)| name))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(error: Status, text: Out<*const c_char>) -> Status {
    call("cuGetErrorString", || describe(error, text, |(_, text)| text))
}

fn describe(
    error: Status,
    text: Out<*const c_char>,
    choose: fn((&'static CStr, &'static CStr)) -> &'static CStr,
) -> Result<(), Failure> {
    match error.texts() {
        Some(texts) => text.set("pStr", choose(texts).as_ptr()),
        None => {
            text.set("pStr", std::ptr::null())?;
            Err(Failure::quiet(Status::INVALID_VALUE))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_name_and_a_text() {
        assert!(CODES.is_sorted_by_key(|(code, ..)| *code));
        for &(code, name, text) in CODES {
            assert!(name.to_str().unwrap().starts_with("CUDA_") && !text.is_empty(), "{code}");
        }
        assert_eq!(Status::ILLEGAL_ADDRESS.name(), "CUDA_ERROR_ILLEGAL_ADDRESS");
        assert_eq!(Status(12345).texts(), None);
    }
}
