//! A CTA's shared memory that a test fills byte by byte.

use blackwell_sim::matrix::SharedRead;
use blackwell_sim::tensor_fault::TensorFault;

/// 228 KiB, none of it written.
pub struct SharedMemory {
    bytes: Vec<Option<u8>>,
}

impl SharedMemory {
    pub fn new() -> Self {
        Self { bytes: vec![None; 228 << 10] }
    }

    /// Writes `bits` bits of `value` at bit `position`; whole bytes count as written.
    pub fn put(&mut self, position: usize, bits: usize, value: u32) {
        for bit in 0..bits {
            let byte = &mut self.bytes[(position + bit) / 8];
            let mask = 1 << ((position + bit) % 8);
            let old = byte.unwrap_or(0);
            *byte = Some(if value >> bit & 1 == 1 { old | mask } else { old & !mask });
        }
    }

    pub fn put_bytes(&mut self, address: usize, bytes: &[u8]) {
        for (index, &byte) in bytes.iter().enumerate() {
            self.bytes[address + index] = Some(byte);
        }
    }
}

impl SharedRead for SharedMemory {
    fn read(&self, offset: u32, bytes: &mut [u8]) -> Result<(), TensorFault> {
        for (index, byte) in bytes.iter_mut().enumerate() {
            let at = offset as usize + index;
            let found =
                self.bytes.get(at).ok_or_else(|| TensorFault::OutOfBounds(format!("shared memory {at:#x}")))?;
            *byte = found.ok_or_else(|| TensorFault::Uninitialised(format!("shared memory {at:#x}")))?;
        }
        Ok(())
    }
}
