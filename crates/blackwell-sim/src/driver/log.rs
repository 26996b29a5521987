//! What is told about failures: on the standard error stream, and through the driver's own log calls (`cuLogs…`, CUDA 12.9).

use super::{
    boundary::{Failure, call},
    handle::{Handle, fresh},
    pointer::{Host, Out, Text},
    status::Status,
};
use std::{
    collections::VecDeque,
    ffi::{c_char, c_void},
    io::Write,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Messages that are kept.
const KEPT: usize = 100;
/// `CU_LOG_LEVEL_ERROR`.
const LEVEL_ERROR: u32 = 0;

type Callback = unsafe extern "C" fn(*mut c_void, u32, *mut c_char, usize);

struct Log {
    messages: VecDeque<String>,
    /// Number of the first message that is kept.
    first: u32,
    callbacks: Vec<(Handle, Callback, usize)>,
}

static LOG: Mutex<Log> = Mutex::new(Log { messages: VecDeque::new(), first: 0, callbacks: Vec::new() });

fn lock() -> MutexGuard<'static, Log> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells that something is wrong.
pub(super) fn error(message: &str) {
    let line = format!("blackwell-sim: {message}\n");
    // There is nobody to tell if the stream is closed.
    let _ = std::io::stderr().write_all(line.as_bytes());
    let callbacks = {
        let mut log = lock();
        if log.messages.len() == KEPT {
            log.messages.pop_front();
            log.first = log.first.wrapping_add(1);
        }
        log.messages.push_back(message.into());
        log.callbacks.clone()
    };
    for (_, callback, data) in callbacks {
        let mut text = [message.as_bytes(), b"\0"].concat();
        // SAFETY: the function was registered for this, with this data; the text lives through the call.
        unsafe { callback(data as *mut c_void, LEVEL_ERROR, text.as_mut_ptr().cast(), message.len()) };
    }
}

/// The last message; empty if there is none.
#[cfg(test)]
pub(super) fn last() -> String {
    lock().messages.back().cloned().unwrap_or_default()
}

super::entries! {
    cuLogsRegisterCallback, cuLogsUnregisterCallback, cuLogsCurrent, cuLogsDumpToFile, cuLogsDumpToMemory,
}

#[unsafe(no_mangle)]
extern "C" fn cuLogsRegisterCallback(function: Option<Callback>, data: Host, handle: Out<Handle>) -> Status {
    call("cuLogsRegisterCallback", || {
        let function = function.ok_or(Failure::quiet(Status::INVALID_VALUE))?;
        let new = fresh();
        handle.set_if_wanted(new);
        lock().callbacks.push((new, function, data.0));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLogsUnregisterCallback(handle: Handle) -> Status {
    call("cuLogsUnregisterCallback", || {
        let mut log = lock();
        let count = log.callbacks.len();
        log.callbacks.retain(|(registered, ..)| *registered != handle);
        if log.callbacks.len() == count { Err(Failure::quiet(Status::INVALID_HANDLE)) } else { Ok(()) }
    })
}

/// Where the next message will be, to dump from there later.
#[unsafe(no_mangle)]
extern "C" fn cuLogsCurrent(iterator: Out<u32>, flags: u32) -> Status {
    call("cuLogsCurrent", || {
        no_flags(flags)?;
        let log = lock();
        iterator.set("iterator_out", log.first.wrapping_add(log.messages.len() as u32))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLogsDumpToFile(iterator: Out<u32>, path: Text<'_>, flags: u32) -> Status {
    call("cuLogsDumpToFile", || {
        no_flags(flags)?;
        let path = path.read("pathToFile")?;
        let text = dump(iterator, usize::MAX);
        std::fs::write(path, text).map_err(|e| Failure::loud(Status::OPERATING_SYSTEM, format!("{path}: {e}")))
    })
}

/// Fills the buffer with the messages since the iterator (or all that are kept), newest last, and a zero byte. As many of the
/// newest as fit are given.
#[unsafe(no_mangle)]
extern "C" fn cuLogsDumpToMemory(iterator: Out<u32>, buffer: Out<u8>, size: Out<usize>, flags: u32) -> Status {
    call("cuLogsDumpToMemory", || {
        no_flags(flags)?;
        let room = size.get("size")?;
        if room == 0 || buffer.is_null() {
            return Err(Failure::quiet(Status::INVALID_VALUE));
        }
        let text = dump(iterator, room - 1);
        for (index, byte) in text.bytes().chain([0]).enumerate() {
            buffer.set_at(index, byte);
        }
        size.set("size", text.len())
    })
}

fn no_flags(flags: u32) -> Result<(), Failure> {
    if flags == 0 { Ok(()) } else { Err(Failure::quiet(Status::INVALID_VALUE)) }
}

/// The messages from the iterator on, one a line, the oldest left out if there is no room; moves the iterator to the end.
fn dump(iterator: Out<u32>, room: usize) -> String {
    let log = lock();
    let from = if iterator.is_null() { log.first } else { iterator.get("iterator").unwrap_or(log.first) };
    let skipped = from.wrapping_sub(log.first) as usize;
    let mut lines: Vec<_> = log.messages.iter().skip(skipped).map(|message| format!("{message}\n")).collect();
    while lines.iter().map(String::len).sum::<usize>() > room {
        lines.remove(0);
    }
    iterator.set_if_wanted(log.first.wrapping_add(log.messages.len() as u32));
    lines.concat()
}
