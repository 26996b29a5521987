//! Values that a block scale must not have.

use super::LinearScales;
use crate::error::{Error, check_size, checked_mul};

/// Bytes of packed codes that share one scale.
const BLOCK_BYTES: usize = crate::BLOCK_SIZE / 2;
/// Bytes looked at together; a piece without fault costs one vector maximum a register.
const PIECE: usize = 4096;
/// NaN without sign. It and everything above (the sign bit) is a fault.
const NAN: u8 = 0x7f;
/// 448, the largest value.
const MAX: u8 = 0x7e;

/// What [`LinearScales::repair_nan`] changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ScaleRepair {
    /// NaN scales of blocks whose codes are all zero: nothing is lost, such a block is zero with any scale.
    pub zero_blocks: usize,
    /// NaN scales of other blocks: the producer's scale was too large for e4m3, the block's values are clamped to
    /// what the largest scale, 448, gives. The user should be told.
    pub clamped_blocks: usize,
    /// Row and column of the first clamped block.
    pub first_clamped: Option<(usize, usize)>,
}

impl LinearScales<'_> {
    /// `Ok` if no byte is NaN or negative; otherwise [`Error::BlockScale`] with the first bad byte and the count.
    ///
    /// Some exporters write NaN (`0x7F`) as the scale of blocks that are all zero (Model-Optimizer issue 1633); one
    /// such byte turns a whole output feature into NaN. Negative scales are read as positive by tensor cores.
    ///
    /// Costs one pass over the bytes, or nothing if they come from [`checked`](Self::checked).
    pub fn check_values(&self) -> Result<(), Error> {
        if self.sound { Ok(()) } else { self.check_bytes(|byte| byte >= NAN) }
    }

    /// The same scales, examined as by [`check_values`](Self::check_values) once and for all: what is cut out of them or
    /// stacked from them is sound, too.
    pub fn checked(self) -> Result<Self, Error> {
        self.check_values()?;
        Ok(Self { sound: true, ..self })
    }

    /// Whether [`check_values`](Self::check_values) knows the answer without looking.
    pub const fn is_checked(&self) -> bool {
        self.sound
    }

    /// [`Error::BlockScale`] with the first byte that is `bad` and the number of them, if there are any. `bad` must
    /// not hold below [`NAN`].
    fn check_bytes(&self, bad: impl Fn(u8) -> bool) -> Result<(), Error> {
        let mut first = None;
        let mut count = 0;
        for (i, piece) in self.bytes.chunks(PIECE).enumerate() {
            if piece.iter().fold(0, |max, &byte| byte.max(max)) < NAN {
                continue;
            }
            let mut faults = piece.iter().enumerate().filter(|&(_, &byte)| bad(byte));
            if let Some((j, &byte)) = faults.next() {
                first.get_or_insert((i * PIECE + j, byte));
                count += 1 + faults.count();
            }
        }
        match first {
            None => Ok(()),
            Some((at, byte)) => Err(Error::BlockScale { row: at / self.cols, column: at % self.cols, byte, count }),
        }
    }

    /// Replaces NaN scales (`0x7F`) by the largest scale, 448 (`0x7E`), and tells what that meant. `packed` are the
    /// codes that the scales belong to, `[rows, cols * 8]` bytes.
    ///
    /// Bytes with the sign bit (`0xFF` too) cannot be repaired: [`Error::BlockScale`], and nothing is changed.
    pub fn repair_nan(&mut self, packed: &[u8]) -> Result<ScaleRepair, Error> {
        let blocks = self.bytes.len();
        check_size("packed weight bytes", checked_mul("packed weight bytes", blocks, BLOCK_BYTES)?, packed.len())?;
        self.check_bytes(|byte| byte > NAN)?;
        let mut repair = ScaleRepair::default();
        if self.check_values().is_ok() {
            self.sound = true;
            return Ok(repair);
        }
        let cols = self.cols;
        let blocks = self.bytes.to_mut().iter_mut().zip(packed.as_chunks::<BLOCK_BYTES>().0).enumerate();
        for (i, (scale, codes)) in blocks.filter(|(_, (scale, _))| **scale == NAN) {
            *scale = MAX;
            // The sign of a zero does not matter.
            if codes.iter().all(|pair| pair & 0x77 == 0) {
                repair.zero_blocks += 1;
            } else {
                repair.clamped_blocks += 1;
                repair.first_clamped.get_or_insert((i / cols, i % cols));
            }
        }
        self.sound = true;
        Ok(repair)
    }
}
