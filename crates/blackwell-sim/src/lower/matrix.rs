//! `mma.sync`, `wgmma.mma_async`, `movmatrix`.

use super::{
    Lowerer, Result,
    code::{Destination, Operation, Source},
    modifiers::Modifiers,
};
use crate::{
    matrix::{mma_sync::MmaSync, wgmma::Wgmma},
    ptx::{Instruction, Operand, ScalarType},
};

/// A matrix instruction of a warp or warpgroup.
pub(crate) enum Matrix {
    Sync {
        form: MmaSync,
        d: Vec<Destination>,
        a: Vec<Source>,
        b: Vec<Source>,
        c: Vec<Source>,
        scales: Option<[Scale; 2]>,
    },
    Warpgroup {
        form: Wgmma,
        d: Vec<Destination>,
        a: WarpgroupA,
        b: Source,
        scale_d: Source,
        negate: [bool; 2],
        transpose: [bool; 2],
    },
    Transpose {
        destination: Destination,
        value: Source,
    },
}

/// A `wgmma`'s A.
pub(crate) enum WarpgroupA {
    Descriptor(Source),
    Registers(Vec<Source>),
}

/// A scale operand of `mma.sync`: data, byte and thread selectors.
pub(crate) struct Scale {
    pub(crate) data: Source,
    pub(crate) byte: Source,
    pub(crate) thread: Source,
}

impl Lowerer<'_> {
    /// Lowers a matrix instruction; `None` if it is none.
    pub(super) fn matrix(&mut self, instruction: &Instruction) -> Result<Option<Operation>> {
        let mods = Modifiers::new(instruction);
        let b32 = ScalarType::B32;
        let matrix = match (instruction.opcode.as_str(), mods.first()) {
            ("mma", _) => {
                let form = MmaSync::parse(mods.all()).ok_or_else(|| self.unsupported(instruction, "form"))?;
                let d = self.vector_destinations(instruction, 0, b32)?;
                let [a, b, c] = [1, 2, 3].map(|index| self.vector_sources(instruction, index, b32));
                let (a, b, c) = (a?, b?, c?);
                let counts = form.registers();
                if [a.len(), b.len(), c.len(), d.len()] != [counts.a, counts.b, counts.c, counts.c] {
                    return Err(self.invalid(instruction.line, "an `mma` with the wrong number of registers"));
                }
                let scales = match form.is_block_scaled() {
                    true => Some([self.scale(instruction, 4)?, self.scale(instruction, 6)?]),
                    false => None,
                };
                Matrix::Sync { form, d, a, b, c, scales }
            }
            ("wgmma", Some("mma_async")) => self.warpgroup(instruction, &mods)?,
            ("movmatrix", _) => {
                let Some(destination) = self.destination(instruction, 0)? else { return Ok(None) };
                Matrix::Transpose { destination, value: self.source(instruction, 1, b32)? }
            }
            _ => return Ok(None),
        };
        Ok(Some(Operation::Matrix(matrix)))
    }

    /// `data, {byte, thread}`.
    fn scale(&mut self, instruction: &Instruction, index: usize) -> Result<Scale> {
        let data = self.vector_sources(instruction, index, ScalarType::B32)?;
        let selectors = self.vector_sources(instruction, index + 1, ScalarType::U32)?;
        match (data[..].first(), selectors[..].first_chunk()) {
            (Some(&data), Some(&[byte, thread])) => Ok(Scale { data, byte, thread }),
            _ => Err(self.invalid(instruction.line, "a scale without its selectors")),
        }
    }

    fn warpgroup(&mut self, instruction: &Instruction, mods: &Modifiers<'_>) -> Result<Matrix> {
        let form =
            mods.all().get(1..).and_then(Wgmma::parse).ok_or_else(|| self.unsupported(instruction, "form"))?;
        let d = self.vector_destinations(instruction, 0, ScalarType::B32)?;
        let in_registers = matches!(self.operand(instruction, 1)?, Operand::Vector(_));
        let a = if in_registers {
            WarpgroupA::Registers(self.vector_sources(instruction, 1, ScalarType::B32)?)
        } else {
            WarpgroupA::Descriptor(self.source(instruction, 1, ScalarType::B64)?)
        };
        if d.len() != form.d_registers() || matches!(&a, WarpgroupA::Registers(a) if a.len() != 4) {
            return Err(self.invalid(instruction.line, "a `wgmma` with the wrong number of registers"));
        }
        let b = self.source(instruction, 2, ScalarType::B64)?;
        let scale_d = self.source(instruction, 3, ScalarType::Pred)?;
        let immediate = |index: usize| match instruction.operands.get(index) {
            Some(&Operand::Integer(value)) => value,
            _ => 0,
        };
        let negate = [immediate(4) == -1, immediate(5) == -1];
        let transpose = match (form.can_transpose(), in_registers) {
            (true, false) => [immediate(6) == 1, immediate(7) == 1],
            (true, true) => [false, immediate(6) == 1],
            (false, _) => [false; 2],
        };
        Ok(Matrix::Warpgroup { form, d, a, b, scale_d, negate, transpose })
    }
}
