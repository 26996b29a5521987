//! `tcgen05.ld` and `tcgen05.st`: between a warp's registers and tensor memory.
//!
//! Lane and column of register r of a lane L, relative to the address; n is the repetition count (PTX ISA 9.7.16.2.3 and CuTe's copy
//! traits for SM100):
//!
//! | shape | registers | lane | column |
//! | --- | --- | --- | --- |
//! | 32x32b | n | L | r |
//! | 16x64b | n | L / 4 + 8·(L mod 2) | 2r + L / 2 mod 2 |
//! | 16x128b | 2n | L / 4 + 8·(r mod 2) | 4·(r / 2) + L mod 4 |
//! | 16x256b | 4n | L / 4 + 8·(r / 2 mod 2) | 8·(r / 4) + 2·(L mod 4) + r mod 2 |
//! | 16x32bx2 | n | L mod 16 | r, for lanes 16–31 + the split offset |
//!
//! With `.pack::16b` (`.unpack::16b` in a store) a register holds the low halves of columns 2c and 2c + 1 where the table says c.

use super::LaneRegister;
use super::tensor_memory::{Cell, TensorMemory};
use crate::tensor_fault::TensorFault;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Lanes32x32,
    Lanes16x64,
    Lanes16x128,
    Lanes16x256,
    Lanes16x32x2,
}

/// A decoded `tcgen05.ld` or `tcgen05.st` instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    shape: Shape,
    repetitions: usize,
    packed: bool,
}

impl Transfer {
    /// Decodes the modifiers of a `tcgen05.ld` or `tcgen05.st` (`["sync", "aligned", "32x32b", "x32", "b32"]`). `None` if PTX has no such form;
    /// `.red` forms are not modelled.
    pub fn parse(modifiers: &[&str]) -> Option<Self> {
        let (mut shape, mut repetitions, mut packed) = (None, None, false);
        for &modifier in modifiers {
            match modifier {
                "sync" | "aligned" | "b32" => {}
                "32x32b" => shape = Some(Shape::Lanes32x32),
                "16x64b" => shape = Some(Shape::Lanes16x64),
                "16x128b" => shape = Some(Shape::Lanes16x128),
                "16x256b" => shape = Some(Shape::Lanes16x256),
                "16x32bx2" => shape = Some(Shape::Lanes16x32x2),
                "pack::16b" | "unpack::16b" => packed = true,
                _ => repetitions = Some(modifier.strip_prefix('x')?.parse::<usize>().ok()?),
            }
        }
        let transfer = Self { shape: shape?, repetitions: repetitions?, packed };
        (transfer.repetitions.is_power_of_two() && transfer.registers() <= 128).then_some(transfer)
    }

    /// Registers of each lane.
    pub fn registers(&self) -> usize {
        self.repetitions
            * match self.shape {
                Shape::Lanes16x128 => 2,
                Shape::Lanes16x256 => 4,
                _ => 1,
            }
    }

    /// Whether the instruction has an immediate split offset.
    pub fn has_split_offset(&self) -> bool {
        self.shape == Shape::Lanes16x32x2
    }

    /// Loads [`Self::registers`] registers. `warp` is the warp's index in the CTA; `split` the immediate of 16x32bx2, else 0.
    ///
    /// # Errors
    /// The address is not in the quarter of the lanes that the warp may access, or misaligned; a cell is not allocated or
    /// nothing wrote it.
    pub fn load(
        &self,
        memory: &TensorMemory,
        address: u32,
        split: u32,
        warp: u32,
    ) -> Result<Vec<LaneRegister>, TensorFault> {
        let base = self.check_address(address, warp)?;
        let mut registers = vec![[0; 32]; self.registers()];
        for (index, register) in registers.iter_mut().enumerate() {
            for (lane, word) in register.iter_mut().enumerate() {
                let cell = self.cell(base, split, index, lane);
                *word = match self.packed {
                    false => memory.read(cell, 1)?[0],
                    true => {
                        let pair = memory.read(cell, 2)?;
                        (pair[0] & 0xffff) | pair[1] << 16
                    }
                };
            }
        }
        Ok(registers)
    }

    /// Stores `registers`, as many as [`Self::registers`] (more are ignored).
    ///
    /// # Errors
    /// As [`Self::load`], but for unwritten cells; or too few registers.
    pub fn store(
        &self,
        memory: &mut TensorMemory,
        address: u32,
        split: u32,
        warp: u32,
        registers: &[LaneRegister],
    ) -> Result<(), TensorFault> {
        let base = self.check_address(address, warp)?;
        if registers.len() < self.registers() {
            let (given, needed) = (registers.len(), self.registers());
            return Err(TensorFault::TensorMemory(format!("tcgen05.st has {given} registers and needs {needed}")));
        }
        for (index, register) in registers.iter().take(self.registers()).enumerate() {
            for (lane, &word) in register.iter().enumerate() {
                let cell = self.cell(base, split, index, lane);
                match self.packed {
                    false => memory.write(cell, &[word])?,
                    true => memory.write(cell, &[word & 0xffff, word >> 16])?,
                }
            }
        }
        Ok(())
    }

    /// A warp reaches the 32 lanes of its number modulo 4; an access of 16 lanes begins at the first or the middle of them.
    fn check_address(&self, address: u32, warp: u32) -> Result<Cell, TensorFault> {
        let base = Cell::from_address(address);
        let first = warp as usize % 4 * 32;
        let allowed = if self.shape == Shape::Lanes32x32 { vec![first] } else { vec![first, first + 16] };
        if !allowed.contains(&base.lane) {
            return Err(TensorFault::TensorMemory(format!(
                "address {address:#010x} begins at lane {}; warp {warp} may begin at {allowed:?}",
                base.lane
            )));
        }
        Ok(base)
    }

    /// The (first) cell of a lane's register.
    fn cell(&self, base: Cell, split: u32, register: usize, lane: usize) -> Cell {
        let (row, column, split) = match self.shape {
            Shape::Lanes32x32 => (lane, register, 0),
            Shape::Lanes16x64 => (lane / 4 + 8 * (lane % 2), 2 * register + lane / 2 % 2, 0),
            Shape::Lanes16x128 => (lane / 4 + 8 * (register % 2), 4 * (register / 2) + lane % 4, 0),
            Shape::Lanes16x256 => {
                (lane / 4 + 8 * (register / 2 % 2), 8 * (register / 4) + 2 * (lane % 4) + register % 2, 0)
            }
            Shape::Lanes16x32x2 => (lane % 16, register, lane / 16 * split as usize),
        };
        base.offset(row, if self.packed { 2 * column } else { column } + split)
    }
}
