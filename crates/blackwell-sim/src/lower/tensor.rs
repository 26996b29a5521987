//! The `tcgen05` family.

use super::{
    Lowerer, Result,
    code::{Address, Destination, Operation, Source, Space},
    modifiers::Modifiers,
};
use crate::{
    matrix::{tcgen05_mma::Tcgen05Mma, tmem_copy::Copy, tmem_transfer::Transfer},
    ptx::{Instruction, Operand, ScalarType},
};

/// A `tcgen05` instruction.
pub(crate) enum Tensor {
    Allocate { space: Space, address: Address, columns: Source },
    Deallocate { address: Source, columns: Source },
    Relinquish,
    Load { form: Transfer, destinations: Vec<Destination>, address: Address, split: u32 },
    Store { form: Transfer, values: Vec<Source>, address: Address, split: u32 },
    Copy { form: Copy, both: bool, address: Address, descriptor: Source },
    Multiply(Box<Multiply>),
    Commit { space: Space, address: Address, ctas: Option<Source> },
}

/// `tcgen05.mma`.
pub(crate) struct Multiply {
    pub(crate) form: Tcgen05Mma,
    pub(crate) d: Address,
    pub(crate) a: TensorA,
    pub(crate) b: Source,
    pub(crate) instruction: Source,
    pub(crate) scales: Option<[Address; 2]>,
    pub(crate) disable_output_lane: Vec<Source>,
    pub(crate) enable_input_d: Source,
    pub(crate) scale_input_d: u32,
}

/// A of a `tcgen05.mma`.
pub(crate) enum TensorA {
    Shared(Source),
    Tensor(Address),
}

impl Lowerer<'_> {
    /// Lowers a `tcgen05` instruction; `None` if it is none.
    pub(super) fn tensor(&mut self, instruction: &Instruction) -> Result<Option<Operation>> {
        if instruction.opcode != "tcgen05" {
            return Ok(None);
        }
        let mods = Modifiers::new(instruction);
        let (u32, b32, b64) = (ScalarType::U32, ScalarType::B32, ScalarType::B64);
        let rest = mods.all().get(1..).unwrap_or_default();
        let tensor = match mods.first().unwrap_or_default() {
            "alloc" => Tensor::Allocate {
                space: mods.space(),
                address: self.address(instruction, 0)?,
                columns: self.source(instruction, 1, u32)?,
            },
            "dealloc" => Tensor::Deallocate {
                address: self.source(instruction, 0, b32)?,
                columns: self.source(instruction, 1, u32)?,
            },
            "relinquish_alloc_permit" => Tensor::Relinquish,
            form @ ("ld" | "st") => {
                let load = form == "ld";
                let form = Transfer::parse(rest).ok_or_else(|| self.unsupported(instruction, "form"))?;
                let split = match (form.has_split_offset(), instruction.operands.get(if load { 2 } else { 1 })) {
                    (true, Some(&Operand::Integer(split))) => split as u32,
                    _ => 0,
                };
                let count = if load {
                    let destinations = self.vector_destinations(instruction, 0, b32)?;
                    let count = destinations.len();
                    let address = self.address(instruction, 1)?;
                    if count == form.registers() {
                        return Ok(Some(Operation::Tensor(Tensor::Load { form, destinations, address, split })));
                    }
                    count
                } else {
                    let last = instruction.operands.len() - 1;
                    let values = self.vector_sources(instruction, last, b32)?;
                    let count = values.len();
                    let address = self.address(instruction, 0)?;
                    if count == form.registers() {
                        return Ok(Some(Operation::Tensor(Tensor::Store { form, values, address, split })));
                    }
                    count
                };
                let needed = form.registers();
                return Err(self.invalid(instruction.line, format!("{count} registers; the form has {needed}")));
            }
            "cp" => {
                let form = Copy::parse(rest).ok_or_else(|| self.unsupported(instruction, "form"))?;
                let both = mods.has("cta_group::2");
                let descriptor = self.source(instruction, 1, b64)?;
                Tensor::Copy { form, both, address: self.address(instruction, 0)?, descriptor }
            }
            "mma" => self.multiply(instruction, &mods)?,
            "commit" => {
                let ctas = match mods.has("multicast::cluster") {
                    true => Some(self.source(instruction, 1, ScalarType::U16)?),
                    false => None,
                };
                Tensor::Commit { space: mods.space(), address: self.address(instruction, 0)?, ctas }
            }
            _ => return Err(self.unsupported(instruction, "form")),
        };
        Ok(Some(Operation::Tensor(tensor)))
    }

    fn multiply(&mut self, instruction: &Instruction, mods: &Modifiers<'_>) -> Result<Tensor> {
        let rest = mods.all().get(1..).unwrap_or_default();
        let form = Tcgen05Mma::parse(rest).ok_or_else(|| self.unsupported(instruction, "form"))?;
        let b64 = ScalarType::B64;
        let a = match self.operand(instruction, 1)? {
            Operand::Address { .. } => TensorA::Tensor(self.address(instruction, 1)?),
            _ => TensorA::Shared(self.source(instruction, 1, b64)?),
        };
        let b = self.source(instruction, 2, b64)?;
        let descriptor = self.source(instruction, 3, ScalarType::B32)?;
        let mut next = 4;
        let mut scales = None;
        if mods.has("block_scale") {
            scales = Some([self.address(instruction, 4)?, self.address(instruction, 5)?]);
            next = 6;
        }
        let mut disable_output_lane = Vec::new();
        if matches!(self.operand(instruction, next)?, Operand::Vector(_)) {
            disable_output_lane = self.vector_sources(instruction, next, ScalarType::B32)?;
            next += 1;
        }
        let enable_input_d = self.source(instruction, next, ScalarType::Pred)?;
        let weight_stationary = mods.has("ws");
        let scale_input_d = match instruction.operands.get(next + 1) {
            None => 0,
            Some(&Operand::Integer(scale)) if !weight_stationary => scale as u32,
            Some(_) => return Err(self.unsupported(instruction, "zero-column mask or scale of D")),
        };
        let d = self.address(instruction, 0)?;
        Ok(Tensor::Multiply(Box::new(Multiply {
            form,
            d,
            a,
            b,
            instruction: descriptor,
            scales,
            disable_output_lane,
            enable_input_d,
            scale_input_d,
        })))
    }
}
