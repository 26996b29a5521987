//! Setting memory to a value.

use super::{
    boundary::{Failure, call},
    handle::Handle,
    memory::current_outside_captures,
    operation::Operation,
    state::{Driver, driver},
    status::Status,
    stream::enqueue,
};

/// Bytes that are written at a time.
const CHUNK: usize = 1 << 20;

/// Rows of elements that are set to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Set {
    address: u64,
    /// Bytes from row to row.
    pitch: usize,
    /// The value's bytes: 1, 2 or 4.
    element: Vec<u8>,
    /// Elements of a row.
    width: usize,
    height: usize,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SetParameters {
    address: u64,
    pitch: usize,
    value: u32,
    element: u32,
    width: usize,
    height: usize,
}

impl Set {
    fn line(address: u64, element: &[u8], count: usize) -> Result<Self, Failure> {
        Self::rows(address, 0, element, count, 1)
    }

    fn rows(address: u64, pitch: usize, element: &[u8], width: usize, height: usize) -> Result<Self, Failure> {
        let bytes = element.len();
        if !address.is_multiple_of(bytes as u64) || (height > 1 && !pitch.is_multiple_of(bytes)) {
            let message = format!("address {address:#x} and pitch {pitch} must be multiples of {bytes}");
            return Err(Failure::loud(Status::INVALID_VALUE, message));
        }
        if height > 1 && width.checked_mul(bytes).is_none_or(|row| row > pitch) {
            let message = format!("a pitch of {pitch} bytes for rows of {width} elements of {bytes}");
            return Err(Failure::loud(Status::INVALID_VALUE, message));
        }
        Ok(Self { address, pitch, element: element.to_vec(), width, height })
    }

    /// What a graph's node says.
    pub(super) fn of_node(parameters: &SetParameters) -> Result<Self, Failure> {
        let SetParameters { address, pitch, value, element, width, height } = *parameters;
        if !matches!(element, 1 | 2 | 4) {
            return Err(Failure::loud(Status::INVALID_VALUE, format!("elements of {element} bytes")));
        }
        Self::rows(address, pitch, &value.to_le_bytes()[..element as usize], width, height)
    }

    /// Does it.
    pub(super) fn execute(&self, driver: &Driver) -> Result<(), Failure> {
        let bytes = self.width * self.element.len();
        if bytes == 0 || self.height == 0 {
            return Ok(());
        }
        let _busy = driver.occupy();
        let pattern = self.element.repeat(bytes.min(CHUNK) / self.element.len());
        for row in 0..self.height {
            let start = self.address + (row * self.pitch) as u64;
            for offset in (0..bytes).step_by(pattern.len()) {
                let length = pattern.len().min(bytes - offset);
                let written = driver.memory.write(start + offset as u64, &pattern[..length]);
                written.map_err(|cause| Failure::loud(Status::INVALID_VALUE, cause.to_string()))?;
            }
        }
        Ok(())
    }
}

super::entries! {
    cuMemsetD8_v2, cuMemsetD8Async, cuMemsetD16_v2, cuMemsetD16Async, cuMemsetD32_v2, cuMemsetD32Async, cuMemsetD2D8_v2,
    cuMemsetD2D8Async, cuMemsetD2D16_v2, cuMemsetD2D16Async, cuMemsetD2D32_v2, cuMemsetD2D32Async,
}

/// Sets memory before the call returns, in order with the legacy default stream.
fn now(set: Result<Set, Failure>) -> Result<(), Failure> {
    current_outside_captures()?;
    enqueue(0, Operation::Set(set?))
}

fn in_order(stream: Handle, set: Result<Set, Failure>) -> Result<(), Failure> {
    driver()?;
    enqueue(stream, Operation::Set(set?))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(address: u64, value: u8, count: usize) -> Status {
    call("cuMemsetD8_v2", || now(Set::line(address, &[value], count)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(address: u64, value: u8, count: usize, stream: Handle) -> Status {
    call("cuMemsetD8Async", || in_order(stream, Set::line(address, &[value], count)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD16_v2(address: u64, value: u16, count: usize) -> Status {
    call("cuMemsetD16_v2", || now(Set::line(address, &value.to_le_bytes(), count)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD16Async(address: u64, value: u16, count: usize, stream: Handle) -> Status {
    call("cuMemsetD16Async", || in_order(stream, Set::line(address, &value.to_le_bytes(), count)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD32_v2(address: u64, value: u32, count: usize) -> Status {
    call("cuMemsetD32_v2", || now(Set::line(address, &value.to_le_bytes(), count)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD32Async(address: u64, value: u32, count: usize, stream: Handle) -> Status {
    call("cuMemsetD32Async", || in_order(stream, Set::line(address, &value.to_le_bytes(), count)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD2D8_v2(address: u64, pitch: usize, value: u8, width: usize, height: usize) -> Status {
    call("cuMemsetD2D8_v2", || now(Set::rows(address, pitch, &[value], width, height)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD2D8Async(
    address: u64,
    pitch: usize,
    value: u8,
    width: usize,
    height: usize,
    stream: Handle,
) -> Status {
    call("cuMemsetD2D8Async", || in_order(stream, Set::rows(address, pitch, &[value], width, height)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD2D16_v2(address: u64, pitch: usize, value: u16, width: usize, height: usize) -> Status {
    call("cuMemsetD2D16_v2", || now(Set::rows(address, pitch, &value.to_le_bytes(), width, height)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD2D16Async(
    address: u64,
    pitch: usize,
    value: u16,
    width: usize,
    height: usize,
    stream: Handle,
) -> Status {
    call("cuMemsetD2D16Async", || in_order(stream, Set::rows(address, pitch, &value.to_le_bytes(), width, height)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD2D32_v2(address: u64, pitch: usize, value: u32, width: usize, height: usize) -> Status {
    call("cuMemsetD2D32_v2", || now(Set::rows(address, pitch, &value.to_le_bytes(), width, height)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD2D32Async(
    address: u64,
    pitch: usize,
    value: u32,
    width: usize,
    height: usize,
    stream: Handle,
) -> Status {
    call("cuMemsetD2D32Async", || in_order(stream, Set::rows(address, pitch, &value.to_le_bytes(), width, height)))
}
