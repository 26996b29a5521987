//! The tensor cores, as functions on values: fragments of a warp, matrices in shared memory, tensor memory.
//!
//! Nothing here knows registers' names, the scheduler or device memory. A caller hands over what the instruction's
//! operands hold and gets what it writes; shared memory is read through [`SharedRead`].
//!
//! | instruction | module |
//! | --- | --- |
//! | `mma.sync` | [`mma_sync`] |
//! | `ldmatrix`, `stmatrix`, `movmatrix` | [`ldmatrix`] |
//! | `wgmma.mma_async` | [`wgmma`] |
//! | `tcgen05.alloc`, `dealloc`, `relinquish_alloc_permit` | [`tensor_memory`] |
//! | `tcgen05.ld`, `tcgen05.st` | [`tmem_transfer`] |
//! | `tcgen05.cp`, `tcgen05.shift` | [`tmem_copy`] |
//! | `tcgen05.mma` | [`tcgen05_mma`] |
//!
//! # Arithmetic
//! A product of two elements (scales included) has at most 24 significant bits and is exact in `f64`. The dot products of
//! one instruction are summed in `f64`, from low k to high, the accumulator's old value is added last, and the sum is rounded once to
//! the accumulator's format, to nearest even. The hardware keeps fewer bits while it adds (it aligns the addends of a group to
//! the largest exponent and drops what is below), so its results may differ by a few units in the last place of the largest
//! partial sum. Integers are exact.

mod accumulate;
pub mod element;
pub mod instruction_descriptor;
pub mod ldmatrix;
pub mod mma_sync;
pub mod shared_matrix;
pub mod tcgen05_mma;
pub mod tensor_memory;
pub mod tmem_copy;
pub mod tmem_transfer;
pub mod wgmma;

pub use element::{Element, ScaleFormat};

use crate::tensor_fault::TensorFault;

/// A warp's registers: one value a lane.
pub type LaneRegister = [u32; 32];

/// Reads a CTA's shared memory on behalf of a tensor core.
pub trait SharedRead {
    /// Fills `bytes` from byte `offset` of the CTA's shared memory.
    ///
    /// # Errors
    /// The range is outside the CTA's shared memory, or holds bytes that nothing wrote.
    fn read(&self, offset: u32, bytes: &mut [u8]) -> Result<(), TensorFault>;
}
