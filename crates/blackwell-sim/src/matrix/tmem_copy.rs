//! `tcgen05.cp`: from shared to tensor memory.
//!
//! The source is a K-major matrix of so many rows by 16 or 32 bytes ([`SharedMatrix`]); row r goes to these lanes, relative to the
//! address (PTX ISA 9.7.16.9.2 and CuTe's copy traits for SM100):
//!
//! | shape | lanes |
//! | --- | --- |
//! | 128x256b, 128x128b | r |
//! | 64x128b `.warpx2::02_13` | r, r + 64 |
//! | 64x128b `.warpx2::01_23` | r + 32·(r / 32), and 32 further |
//! | 32x128b `.warpx4` | r, r + 32, r + 64, r + 96 |
//! | 4x256b | 32·r |

use super::SharedRead;
use super::shared_matrix::SharedMatrix;
use super::tensor_memory::{Cell, TensorMemory};
use crate::tensor_fault::TensorFault;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Multicast {
    None,
    Halves,
    Pairs,
    Quarters,
}

/// A decoded `tcgen05.cp` instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    rows: u32,
    chunks: u32,
    multicast: Multicast,
}

impl Copy {
    /// Decodes the modifiers of a `tcgen05.cp` (`["cta_group::1", "32x128b", "warpx4"]`). `None` if PTX has no such form; the
    /// decompressing forms (`.b8x16.b4x16_p64`, `.b8x16.b6x16_p32`) are not modelled.
    pub fn parse(modifiers: &[&str]) -> Option<Self> {
        let (mut shape, mut multicast) = (None, Multicast::None);
        for &modifier in modifiers {
            match modifier {
                "cta_group::1" | "cta_group::2" => {}
                "warpx2::02_13" => multicast = Multicast::Halves,
                "warpx2::01_23" => multicast = Multicast::Pairs,
                "warpx4" => multicast = Multicast::Quarters,
                _ => shape = Some(modifier),
            }
        }
        let (rows, chunks) = match (shape?, multicast) {
            ("128x256b", Multicast::None) => (128, 2),
            ("128x128b", Multicast::None) => (128, 1),
            ("4x256b", Multicast::None) => (4, 2),
            ("64x128b", Multicast::Halves | Multicast::Pairs) => (64, 1),
            ("32x128b", Multicast::Quarters) => (32, 1),
            _ => return None,
        };
        Some(Self { rows, chunks, multicast })
    }

    /// Copies within one CTA; a `.cta_group::2` copy does so in both CTAs of the pair. Where nothing wrote the source, nothing counts as having
    /// written the destination: kernels copy whole tiles of scales of which they use a part.
    ///
    /// # Errors
    /// A malformed descriptor, a source outside shared memory, or a destination that is not allocated.
    pub fn execute(
        &self,
        memory: &mut TensorMemory,
        address: u32,
        descriptor: u64,
        shared: &dyn SharedRead,
    ) -> Result<(), TensorFault> {
        let source = SharedMatrix::from_tcgen05(descriptor)?;
        let base = Cell::from_address(address);
        for row in 0..self.rows {
            for chunk in 0..self.chunks {
                let mut bytes = [0; 16];
                let known = match shared.read(source.k_major_chunk(row, chunk), &mut bytes) {
                    Ok(()) => true,
                    Err(TensorFault::Uninitialised(_)) => false,
                    Err(fault) => return Err(fault),
                };
                let words: [u32; 4] = core::array::from_fn(|word| {
                    bytes.iter().skip(4 * word).take(4).rev().fold(0, |word, &byte| word << 8 | u32::from(byte))
                });
                for lane in self.lanes(row as usize) {
                    let cell = base.offset(lane, 4 * chunk as usize);
                    if known { memory.write(cell, &words)? } else { memory.forget(cell, words.len())? }
                }
            }
        }
        Ok(())
    }

    /// Destination lanes of a source row.
    fn lanes(&self, row: usize) -> Vec<usize> {
        match self.multicast {
            Multicast::None if self.rows == 4 => vec![32 * row],
            Multicast::None => vec![row],
            Multicast::Halves => vec![row, row + 64],
            Multicast::Pairs => vec![row + row / 32 * 32, row + row / 32 * 32 + 32],
            Multicast::Quarters => (0..4).map(|quarter| row + 32 * quarter).collect(),
        }
    }
}
