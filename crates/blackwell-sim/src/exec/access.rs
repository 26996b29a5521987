//! Loads, stores, atomic operations, `cp.async`, `ldmatrix`, `stmatrix`.

use super::{
    State,
    address::Place,
    at, lanes,
    warp::{Outcome, Warp},
};
use crate::{
    fault::{Cause, FaultKind},
    lower::{
        code::{LANES, LaneValues, Space},
        memory::{AtomicChange, MemoryOperation},
    },
};

/// Most bytes of an access of a thread.
const MAX_BYTES: usize = 64;

impl Warp {
    pub(super) fn access(
        &mut self,
        active: u32,
        operation: &MemoryOperation,
        state: &mut State<'_>,
    ) -> Outcome<()> {
        match operation {
            MemoryOperation::Load { space, address, bytes, sign, destinations } => {
                let addresses = self.addresses(state, *address);
                let width = *bytes as usize;
                let parts = width.div_ceil(8);
                let count = width * destinations.len() / parts;
                let mut values = vec![[0; LANES]; destinations.len()];
                for lane in lanes(active) {
                    let mut buffer = [0; MAX_BYTES];
                    let buffer = buffer.get_mut(..count).ok_or_else(|| too_wide(count))?;
                    at(lane, self.read(state, lane, *space, addresses[lane], buffer, count))?;
                    for (value, bytes) in values.iter_mut().zip(buffer.chunks(width.min(8))) {
                        let raw = word(bytes);
                        let shift = 64 - 8 * bytes.len() as u32;
                        value[lane] = if *sign { ((raw << shift) as i64 >> shift) as u64 } else { raw };
                    }
                }
                for (destination, values) in destinations.iter().zip(&values) {
                    self.write_some(*destination, active, values);
                }
            }
            MemoryOperation::Store { space, address, bytes, values } => {
                let addresses = self.addresses(state, *address);
                let values: Vec<LaneValues> = values.iter().map(|&value| self.values(state, value)).collect();
                let width = (*bytes as usize).min(8);
                let count = width * values.len();
                for lane in lanes(active) {
                    let mut buffer = [0; MAX_BYTES];
                    let buffer = buffer.get_mut(..count).ok_or_else(|| too_wide(count))?;
                    for (value, bytes) in values.iter().zip(buffer.chunks_mut(width)) {
                        bytes.copy_from_slice(&value[lane].to_le_bytes()[..width]);
                    }
                    at(lane, self.store(state, lane, *space, addresses[lane], buffer, count))?;
                }
            }
            MemoryOperation::Atomic { space, address, bytes, destinations, values, change } => {
                let addresses = self.addresses(state, *address);
                let values: Vec<LaneValues> = values.iter().map(|&value| self.values(state, value)).collect();
                let mut old = vec![[0; LANES]; destinations.len()];
                for lane in lanes(active) {
                    let operands: Vec<u64> = values.iter().map(|value| value[lane]).collect();
                    let result =
                        at(lane, self.atomic(state, lane, *space, addresses[lane], *bytes, change, &operands))?;
                    for (old, result) in old.iter_mut().zip(result) {
                        old[lane] = result;
                    }
                }
                for (destination, old) in destinations.iter().zip(&old) {
                    self.write_some(*destination, active, old);
                }
            }
            MemoryOperation::Copy { to, from, bytes, source_bytes } => {
                let (to, from) = (self.addresses(state, *to), self.addresses(state, *from));
                let limits = source_bytes.map(|source| self.values(state, source));
                let count = *bytes as usize;
                for lane in lanes(active) {
                    let mut buffer = [0; 16];
                    let wanted = limits.map_or(count, |limits| limits[lane] as u32 as usize).min(count);
                    let buffer = &mut buffer[..count];
                    if wanted > 0 {
                        at(lane, self.read(state, lane, Space::Global, from[lane], &mut buffer[..wanted], 1))?;
                    }
                    at(lane, self.store(state, lane, Space::SharedCta, to[lane], buffer, count))?;
                }
            }
            MemoryOperation::LoadMatrix { form, address, destinations } => {
                self.whole(active, "ldmatrix")?;
                let addresses = self.addresses(state, *address);
                let mut rows = [[0; 16]; LANES];
                let bytes = form.row_bytes();
                for (lane, row) in rows.iter_mut().enumerate().take(form.rows()) {
                    at(lane, self.read(state, lane, Space::SharedCta, addresses[lane], &mut row[..bytes], 16))?;
                }
                let registers = form.load(&rows[..form.rows()]);
                for (&destination, register) in destinations.iter().zip(&registers) {
                    self.write(destination, active, &register.map(u64::from));
                }
            }
            MemoryOperation::StoreMatrix { form, address, values } => {
                self.whole(active, "stmatrix")?;
                let addresses = self.addresses(state, *address);
                let mut registers = [[0; LANES]; 4];
                for (register, &value) in registers.iter_mut().zip(values) {
                    *register = self.values(state, value).map(|value| value as u32);
                }
                let rows = form.store(&registers);
                for (lane, row) in rows.iter().enumerate().take(form.rows()) {
                    at(lane, self.store(state, lane, Space::SharedCta, addresses[lane], row, 16))?;
                }
            }
        }
        Ok(())
    }

    /// Reads on behalf of a lane from an address that must be a multiple of `alignment`.
    pub(super) fn read(
        &self,
        state: &mut State<'_>,
        lane: usize,
        space: Space,
        address: u64,
        bytes: &mut [u8],
        alignment: usize,
    ) -> Result<(), Cause> {
        check_alignment("read", address, bytes.len(), alignment)?;
        match Place::resolve(space, address, self.rank)? {
            Place::Device(address) => state.view.read(address, bytes),
            Place::Shared { rank, offset } => state.cta(rank)?.shared.read(offset, bytes),
            Place::Local(offset) => {
                let range = self.local_range(lane, offset, bytes.len())?;
                if !self.local_written[range.clone()].iter().all(|&written| written) {
                    let what = format!("read of {} bytes at local offset {offset:#x}", bytes.len());
                    return Err(Cause::new(FaultKind::Uninitialised, what));
                }
                bytes.copy_from_slice(&self.local[range]);
                Ok(())
            }
            Place::Param(offset) => {
                let parameters = state.grid.launch.parameters;
                let begin = offset as usize;
                let found = parameters.get(begin..begin + bytes.len()).ok_or_else(|| {
                    let (count, size) = (bytes.len(), parameters.len());
                    Cause::new(
                        FaultKind::OutOfBounds,
                        format!("{count} bytes at offset {offset} of {size} bytes of parameters"),
                    )
                })?;
                bytes.copy_from_slice(found);
                Ok(())
            }
        }
    }

    /// Writes on behalf of a lane.
    pub(super) fn store(
        &mut self,
        state: &mut State<'_>,
        lane: usize,
        space: Space,
        address: u64,
        bytes: &[u8],
        alignment: usize,
    ) -> Result<(), Cause> {
        check_alignment("write", address, bytes.len(), alignment)?;
        match Place::resolve(space, address, self.rank)? {
            Place::Device(address) => {
                state.events += 1;
                state.view.write(address, bytes)
            }
            Place::Shared { rank, offset } => {
                state.events += 1;
                state.cta(rank)?.shared.write(offset, bytes)
            }
            Place::Local(offset) => {
                let range = self.local_range(lane, offset, bytes.len())?;
                self.local[range.clone()].copy_from_slice(bytes);
                self.local_written[range].fill(true);
                Ok(())
            }
            Place::Param(_) => Err(Cause::new(FaultKind::OutOfBounds, "a write to the kernel's parameters")),
        }
    }

    /// An atomic operation on one or more elements; the old values, two words of each wide element.
    #[allow(clippy::too_many_arguments, reason = "the operands of an atomic instruction")]
    fn atomic(
        &mut self,
        state: &mut State<'_>,
        lane: usize,
        space: Space,
        address: u64,
        bytes: u32,
        change: &AtomicChange,
        operands: &[u64],
    ) -> Result<Vec<u64>, Cause> {
        let width = bytes as usize;
        let words = width.div_ceil(8);
        check_alignment("atomic operation", address, width, width * change.vector as usize)?;
        let operand = |index: usize| {
            let low = operands.get(words * index).copied().unwrap_or(0);
            let high = if words == 2 { operands.get(words * index + 1).copied().unwrap_or(0) } else { 0 };
            let low = if width < 8 { low & ((1 << (8 * width)) - 1) } else { low };
            u128::from(high) << 64 | u128::from(low)
        };
        state.events += 1;
        let mut result = Vec::new();
        for element in 0..change.vector as usize {
            let address = address + (element * width) as u64;
            let (first, second) = (operand(element), operand(change.vector as usize + element));
            let old = match Place::resolve(space, address, self.rank)? {
                Place::Device(address) => {
                    state.view.update(address, width, &mut |old| change.apply(old, first, second))?
                }
                _ => {
                    let mut buffer = [0; 16];
                    self.read(state, lane, space, address, &mut buffer[..width], width)?;
                    let old = u128::from_le_bytes(buffer);
                    let new = change.apply(old, first, second).to_le_bytes();
                    self.store(state, lane, space, address, &new[..width], width)?;
                    old
                }
            };
            result.push(old as u64);
            if words == 2 {
                result.push((old >> 64) as u64);
            }
        }
        Ok(result)
    }
}

/// Up to 8 bytes, the first lowest.
pub(super) fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

fn too_wide(bytes: usize) -> Cause {
    Cause::new(FaultKind::Unsupported, format!("an access of {bytes} bytes"))
}

pub(super) fn check_alignment(what: &str, address: u64, bytes: usize, alignment: usize) -> Result<(), Cause> {
    if address.is_multiple_of(alignment.max(1) as u64) {
        return Ok(());
    }
    Err(Cause::new(
        FaultKind::Misaligned,
        format!("{what} of {bytes} bytes at {address:#x}, which is no multiple of {alignment}"),
    ))
}
