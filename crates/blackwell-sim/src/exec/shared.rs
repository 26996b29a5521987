//! A CTA's shared memory.

use super::{address::RESERVED_SHARED, mbarrier::Mbarrier};
use crate::{
    fault::{Cause, FaultKind},
    matrix::SharedRead,
    tensor_fault::TensorFault,
};
use std::collections::BTreeMap;

/// Bytes, which of them were written, and the mbarriers among them.
pub(super) struct SharedMemory {
    bytes: Vec<u8>,
    written: Vec<bool>,
    pub(super) barriers: BTreeMap<u32, Mbarrier>,
}

impl SharedMemory {
    /// Shared memory of `bytes` bytes behind the reserved ones.
    pub(super) fn new(bytes: u32) -> Self {
        let size = (bytes + RESERVED_SHARED) as usize;
        Self { bytes: vec![0; size], written: vec![false; size], barriers: BTreeMap::new() }
    }

    fn check(&self, offset: u32, count: usize) -> Result<std::ops::Range<usize>, Cause> {
        let begin = offset as usize;
        if offset < RESERVED_SHARED || begin + count > self.bytes.len() {
            return Err(Cause::new(
                FaultKind::OutOfBounds,
                format!(
                    "{count} bytes at shared offset {offset:#x}; the CTA's shared memory is {RESERVED_SHARED:#x}..{:#x}",
                    self.bytes.len()
                ),
            ));
        }
        Ok(begin..begin + count)
    }

    pub(super) fn read(&self, offset: u32, bytes: &mut [u8]) -> Result<(), Cause> {
        let range = self.check(offset, bytes.len())?;
        if let Some(index) = self.written[range.clone()].iter().position(|written| !written) {
            return Err(Cause::new(
                FaultKind::Uninitialised,
                format!(
                    "read of {} bytes at shared offset {offset:#x}; nothing wrote byte {index} of them",
                    bytes.len()
                ),
            ));
        }
        bytes.copy_from_slice(&self.bytes[range]);
        Ok(())
    }

    pub(super) fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Cause> {
        let range = self.check(offset, bytes.len())?;
        self.bytes[range.clone()].copy_from_slice(bytes);
        self.written[range].fill(true);
        Ok(())
    }
}

impl SharedRead for SharedMemory {
    fn read(&self, offset: u32, bytes: &mut [u8]) -> Result<(), TensorFault> {
        SharedMemory::read(self, offset, bytes).map_err(|cause| match cause.kind {
            FaultKind::Uninitialised => TensorFault::Uninitialised(cause.message),
            _ => TensorFault::OutOfBounds(cause.message),
        })
    }
}
