//! Copies.

use super::{
    boundary::{Failure, call},
    handle::Handle,
    memory::current_outside_captures,
    operation::Operation,
    pointer::{Host, In},
    state::{Driver, driver},
    status::Status,
    stream::enqueue,
};
use crate::fault::Cause;

/// Bytes that are copied at a time.
const CHUNK: usize = 16 << 20;

/// A copy of a box: `width` bytes, `height` rows, `depth` layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    from: Place,
    to: Place,
    width: usize,
    height: usize,
    depth: usize,
}

/// One side of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    side: Side,
    /// Bytes from row to row, from layer to layer.
    pitch: usize,
    layer: usize,
}

/// Where bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Host(Host),
    Device(u64),
}

impl Side {
    /// What an address is that may be of either side.
    fn of(driver: &Driver, address: u64) -> Self {
        match driver.memory.range(address) {
            Some(_) => Self::Device(address),
            None => Self::Host(Host(address as usize)),
        }
    }

    fn plus(self, bytes: usize) -> Self {
        match self {
            Self::Host(host) => Self::Host(Host(host.0.wrapping_add(bytes))),
            Self::Device(address) => Self::Device(address.wrapping_add(bytes as u64)),
        }
    }

    const fn is_null(self) -> bool {
        matches!(self, Self::Host(Host(0)) | Self::Device(0))
    }
}

impl Transfer {
    /// A copy of bytes that lie together.
    fn line(from: Side, to: Side, bytes: usize) -> Self {
        let place = |side| Place { side, pitch: bytes, layer: bytes };
        Self { from: place(from), to: place(to), width: bytes, height: 1, depth: 1 }
    }

    /// Does it.
    pub(super) fn execute(&self, driver: &Driver) -> Result<(), Failure> {
        if self.width == 0 || self.height == 0 || self.depth == 0 {
            return Ok(());
        }
        if self.from.side.is_null() || self.to.side.is_null() {
            return Err(Failure::loud(Status::INVALID_VALUE, "null is copied from or to"));
        }
        let _busy = driver.occupy();
        for layer in 0..self.depth {
            for row in 0..self.height {
                let start = |place: &Place| place.side.plus(layer * place.layer + row * place.pitch);
                self.row(driver, start(&self.from), start(&self.to))?;
            }
        }
        Ok(())
    }

    fn row(&self, driver: &Driver, from: Side, to: Side) -> Result<(), Failure> {
        let wrong = |side: &str, cause: Cause| {
            Failure::loud(Status::INVALID_VALUE, format!("the {side} of the copy: {cause}"))
        };
        for start in (0..self.width).step_by(CHUNK) {
            let length = CHUNK.min(self.width - start);
            let bytes = match from.plus(start) {
                Side::Host(host) => host.read(length),
                Side::Device(address) => {
                    let mut bytes = vec![0; length];
                    driver.memory.read(address, &mut bytes).map_err(|cause| wrong("source", cause))?;
                    bytes
                }
            };
            match to.plus(start) {
                Side::Host(host) => host.write(&bytes),
                Side::Device(address) => {
                    driver.memory.write(address, &bytes).map_err(|cause| wrong("destination", cause))?;
                }
            }
        }
        Ok(())
    }
}

/// A copy that is done when the call returns, in order with the legacy default stream.
fn now(copy: impl FnOnce(&Driver) -> Result<Transfer, Failure>) -> Result<(), Failure> {
    current_outside_captures()?;
    enqueue(0, Operation::Copy(copy(driver()?)?))
}

/// A copy in stream order.
fn in_order(stream: Handle, copy: impl FnOnce(&Driver) -> Result<Transfer, Failure>) -> Result<(), Failure> {
    enqueue(stream, Operation::Copy(copy(driver()?)?))
}

super::entries! {
    cuMemcpy, cuMemcpyAsync, cuMemcpyPeer, cuMemcpyPeerAsync, cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2, cuMemcpyDtoH_v2,
    cuMemcpyDtoHAsync_v2, cuMemcpyDtoD_v2, cuMemcpyDtoDAsync_v2, cuMemcpy2D_v2, cuMemcpy2DUnaligned_v2, cuMemcpy2DAsync_v2,
    cuMemcpy3D_v2, cuMemcpy3DAsync_v2,
}

fn unified(to: u64, from: u64, bytes: usize) -> impl FnOnce(&Driver) -> Result<Transfer, Failure> {
    move |driver| Ok(Transfer::line(Side::of(driver, from), Side::of(driver, to), bytes))
}

fn upload(to: u64, from: Host, bytes: usize) -> impl FnOnce(&Driver) -> Result<Transfer, Failure> {
    move |driver| Ok(Transfer::line(Side::of(driver, from.0 as u64), Side::Device(to), bytes))
}

fn download(to: Host, from: u64, bytes: usize) -> impl FnOnce(&Driver) -> Result<Transfer, Failure> {
    move |driver| Ok(Transfer::line(Side::Device(from), Side::of(driver, to.0 as u64), bytes))
}

fn inside(to: u64, from: u64, bytes: usize) -> impl FnOnce(&Driver) -> Result<Transfer, Failure> {
    move |_| Ok(Transfer::line(Side::Device(from), Side::Device(to), bytes))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy(to: u64, from: u64, bytes: usize) -> Status {
    call("cuMemcpy", || now(unified(to, from, bytes)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) -> Status {
    call("cuMemcpyAsync", || in_order(stream, unified(to, from, bytes)))
}

/// Both contexts are of the one device.
#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeer(to: u64, _to_context: Handle, from: u64, _from_context: Handle, bytes: usize) -> Status {
    call("cuMemcpyPeer", || now(inside(to, from, bytes)))
}

/// Both contexts are of the one device.
#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    _to_context: Handle,
    from: u64,
    _from_context: Handle,
    bytes: usize,
    stream: Handle,
) -> Status {
    call("cuMemcpyPeerAsync", || in_order(stream, inside(to, from, bytes)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: u64, from: Host, bytes: usize) -> Status {
    call("cuMemcpyHtoD_v2", || now(upload(to, from, bytes)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: Host, bytes: usize, stream: Handle) -> Status {
    call("cuMemcpyHtoDAsync_v2", || in_order(stream, upload(to, from, bytes)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: Host, from: u64, bytes: usize) -> Status {
    call("cuMemcpyDtoH_v2", || now(download(to, from, bytes)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: Host, from: u64, bytes: usize, stream: Handle) -> Status {
    call("cuMemcpyDtoHAsync_v2", || in_order(stream, download(to, from, bytes)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) -> Status {
    call("cuMemcpyDtoD_v2", || now(inside(to, from, bytes)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) -> Status {
    call("cuMemcpyDtoDAsync_v2", || in_order(stream, inside(to, from, bytes)))
}

/// One side of `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Side2D {
    x: usize,
    y: usize,
    kind: u32,
    host: Host,
    device: u64,
    array: usize,
    pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Copy2D {
    from: Side2D,
    to: Side2D,
    width: usize,
    height: usize,
}

/// One side of `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Side3D {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: u32,
    host: Host,
    device: u64,
    array: usize,
    reserved: usize,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Copy3D {
    from: Side3D,
    to: Side3D,
    width: usize,
    height: usize,
    depth: usize,
}

impl Side2D {
    fn deep(self, rows: usize) -> Side3D {
        let Self { x, y, kind, host, device, array, pitch } = self;
        Side3D { x, y, z: 0, level: 0, kind, host, device, array, reserved: 0, pitch, height: rows }
    }
}

impl Side3D {
    /// Start and pitches; a pitch of zero stands for rows that lie together.
    fn place(&self, driver: &Driver, width: usize, height: usize, depth: usize) -> Result<Place, Failure> {
        const HOST: u32 = 1;
        const DEVICE: u32 = 2;
        const UNIFIED: u32 = 4;
        let side = match self.kind {
            HOST => Side::Host(self.host),
            DEVICE => Side::Device(self.device),
            UNIFIED => Side::of(driver, self.device),
            kind => {
                let message = format!("memory of kind {kind}: arrays are not modelled");
                return Err(Failure::loud(Status::NOT_SUPPORTED, message));
            }
        };
        let row = self.x.saturating_add(width);
        let pitch = if self.pitch == 0 { row } else { self.pitch };
        if pitch < row && (height > 1 || depth > 1 || self.y > 0) {
            let message = format!("a pitch of {pitch} bytes for rows of {row}");
            return Err(Failure::loud(Status::INVALID_VALUE, message));
        }
        let rows = self.height.max(self.y.saturating_add(height));
        let layer = pitch.saturating_mul(rows);
        let start = self.z.saturating_mul(layer) + self.y * pitch + self.x;
        Ok(Place { side: side.plus(start), pitch, layer })
    }
}

impl Copy3D {
    fn copy(self, driver: &Driver) -> Result<Transfer, Failure> {
        let Self { from, to, width, height, depth } = self;
        let place = |side: Side3D| side.place(driver, width, height, depth);
        Ok(Transfer { from: place(from)?, to: place(to)?, width, height, depth })
    }
}

fn flat(copy: In<Copy2D>) -> impl FnOnce(&Driver) -> Result<Transfer, Failure> {
    move |driver| {
        let Copy2D { from, to, width, height } = copy.read("pCopy")?;
        Copy3D { from: from.deep(height), to: to.deep(height), width, height, depth: 1 }.copy(driver)
    }
}

fn deep(copy: In<Copy3D>) -> impl FnOnce(&Driver) -> Result<Transfer, Failure> {
    move |driver| copy.read("pCopy")?.copy(driver)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy2D_v2(copy: In<Copy2D>) -> Status {
    call("cuMemcpy2D_v2", || now(flat(copy)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy2DUnaligned_v2(copy: In<Copy2D>) -> Status {
    call("cuMemcpy2DUnaligned_v2", || now(flat(copy)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy2DAsync_v2(copy: In<Copy2D>, stream: Handle) -> Status {
    call("cuMemcpy2DAsync_v2", || in_order(stream, flat(copy)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy3D_v2(copy: In<Copy3D>) -> Status {
    call("cuMemcpy3D_v2", || now(deep(copy)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy3DAsync_v2(copy: In<Copy3D>, stream: Handle) -> Status {
    call("cuMemcpy3DAsync_v2", || in_order(stream, deep(copy)))
}
