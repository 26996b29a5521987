//! `ld`, `st`, `atom`, `red`, `cp.async`, `ldmatrix`, `stmatrix`, `prefetch`.

use super::{
    Lowerer, Result,
    code::{Address, Destination, Operation, Source, Space},
    modifiers::Modifiers,
};
use crate::{
    matrix::ldmatrix::LdMatrix,
    number::FloatFormat,
    ptx::{Instruction, Operand, ScalarType},
};

/// An access to memory.
pub(crate) enum MemoryOperation {
    Load {
        space: Space,
        address: Address,
        /// Bytes of an element; the destinations are elements next to each other. An element of 16 bytes has two.
        bytes: u32,
        /// Sign-extends elements from that many bits.
        sign: bool,
        destinations: Vec<Option<Destination>>,
    },
    Store {
        space: Space,
        address: Address,
        bytes: u32,
        values: Vec<Source>,
    },
    Atomic {
        space: Space,
        address: Address,
        bytes: u32,
        destinations: Vec<Option<Destination>>,
        /// Operands; a wide operand has two.
        values: Vec<Source>,
        change: AtomicChange,
    },
    /// `cp.async`, done at once.
    Copy {
        to: Address,
        from: Address,
        bytes: u32,
        /// Bytes that are read; the rest is zero.
        source_bytes: Option<Source>,
    },
    LoadMatrix {
        form: LdMatrix,
        address: Address,
        destinations: Vec<Destination>,
    },
    StoreMatrix {
        form: LdMatrix,
        address: Address,
        values: Vec<Source>,
    },
}

/// What an atomic operation makes of the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtomicChange {
    pub(crate) operation: AtomicOperation,
    pub(crate) ty: ScalarType,
    pub(crate) vector: u32,
}

/// The operation of an `atom` or `red`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are PTX's")]
pub(crate) enum AtomicOperation {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Inc,
    Dec,
    Exch,
    Cas,
}

impl AtomicChange {
    /// The new value of one element.
    pub(crate) fn apply(&self, old: u128, operand: u128, second: u128) -> u128 {
        use crate::number::arithmetic::{Extremum, Modifiers, add, extremum};
        let float = |format: FloatFormat, old: u32, new: u32| match self.operation {
            AtomicOperation::Add => add(format, old, new, Modifiers::PLAIN),
            operation => {
                let larger = operation == AtomicOperation::Max;
                let kind = Extremum { larger, propagate_nan: false, xor_sign: false, flush: false };
                extremum(format, old, new, kind)
            }
        };
        let pair = |format| {
            let (old, new) = (old as u32, operand as u32);
            u128::from(
                float(format, old & 0xffff, new & 0xffff) & 0xffff | float(format, old >> 16, new >> 16) << 16,
            )
        };
        let simple = |format| u128::from(float(format, old as u32, operand as u32));
        match (self.operation, self.ty) {
            (AtomicOperation::Exch, _) => return operand,
            (AtomicOperation::Cas, _) => return if old == operand { second } else { old },
            (_, ScalarType::F32) => return simple(FloatFormat::F32),
            (_, ScalarType::F16) => return simple(FloatFormat::F16),
            (_, ScalarType::BF16) => return simple(FloatFormat::BF16),
            (_, ScalarType::F16x2) => return pair(FloatFormat::F16),
            (_, ScalarType::BF16x2) => return pair(FloatFormat::BF16),
            (_, ScalarType::F64) => {
                return u128::from((f64::from_bits(old as u64) + f64::from_bits(operand as u64)).to_bits());
            }
            _ => {}
        }
        let signed =
            |value: u128| if self.ty.bits() == 32 { i64::from(value as u32 as i32) } else { value as u64 as i64 };
        let smaller = if self.ty.is_signed() { signed(operand) < signed(old) } else { operand < old };
        match self.operation {
            AtomicOperation::Add => old.wrapping_add(operand),
            AtomicOperation::Min => {
                if smaller {
                    operand
                } else {
                    old
                }
            }
            AtomicOperation::Max => {
                if smaller {
                    old
                } else {
                    operand
                }
            }
            AtomicOperation::And => old & operand,
            AtomicOperation::Or => old | operand,
            AtomicOperation::Xor => old ^ operand,
            AtomicOperation::Inc => {
                if old >= operand {
                    0
                } else {
                    old + 1
                }
            }
            AtomicOperation::Dec => {
                if old == 0 || old > operand {
                    operand
                } else {
                    old - 1
                }
            }
            AtomicOperation::Exch | AtomicOperation::Cas => operand,
        }
    }
}

impl Lowerer<'_> {
    /// Lowers a memory instruction; `None` if it is none of them.
    pub(super) fn memory(&mut self, instruction: &Instruction) -> Result<Option<Operation>> {
        let mods = Modifiers::new(instruction);
        let operation = match (instruction.opcode.as_str(), mods.first()) {
            ("ld" | "ldu", _) => self.load(instruction, &mods)?,
            ("st", Some("async")) => return Ok(None),
            ("st", _) => self.store(instruction, &mods)?,
            ("atom" | "red", first) if first != Some("async") => self.atomic(instruction, &mods)?,
            ("cp", Some("async")) if mods.has("ca") || mods.has("cg") => self.async_copy(instruction, &mods)?,
            ("ldmatrix", _) => {
                let form = LdMatrix::parse(mods.all()).ok_or_else(|| self.unsupported(instruction, "form"))?;
                let destinations = self.vector_destinations(instruction, 0, ScalarType::B32)?;
                MemoryOperation::LoadMatrix { form, address: self.address(instruction, 1)?, destinations }
            }
            ("stmatrix", _) => {
                let form =
                    LdMatrix::parse_store(mods.all()).ok_or_else(|| self.unsupported(instruction, "form"))?;
                let values = self.vector_sources(instruction, 1, ScalarType::B32)?;
                MemoryOperation::StoreMatrix { form, address: self.address(instruction, 0)?, values }
            }
            _ => return Ok(None),
        };
        Ok(Some(Operation::Memory(operation)))
    }

    fn load(&mut self, instruction: &Instruction, mods: &Modifiers<'_>) -> Result<MemoryOperation> {
        let ty = mods.ty().ok_or_else(|| self.unsupported(instruction, "type"))?;
        let destinations = self.wide_destinations(instruction, 0, ty)?;
        let (space, address) = self.spaced_address(instruction, 1, mods)?;
        let sign = ty.is_signed();
        Ok(MemoryOperation::Load { space, address, bytes: ty.bits() / 8, sign, destinations })
    }

    fn store(&mut self, instruction: &Instruction, mods: &Modifiers<'_>) -> Result<MemoryOperation> {
        let ty = mods.ty().ok_or_else(|| self.unsupported(instruction, "type"))?;
        let (space, address) = self.spaced_address(instruction, 0, mods)?;
        let values = self.wide_sources(instruction, 1, ty)?;
        Ok(MemoryOperation::Store { space, address, bytes: ty.bits() / 8, values })
    }

    fn atomic(&mut self, instruction: &Instruction, mods: &Modifiers<'_>) -> Result<MemoryOperation> {
        let ty = mods.ty().ok_or_else(|| self.unsupported(instruction, "type"))?;
        let operation = mods.all().iter().find_map(|&name| {
            Some(match name {
                "add" => AtomicOperation::Add,
                "min" => AtomicOperation::Min,
                "max" => AtomicOperation::Max,
                "and" => AtomicOperation::And,
                "or" => AtomicOperation::Or,
                "xor" => AtomicOperation::Xor,
                "inc" => AtomicOperation::Inc,
                "dec" => AtomicOperation::Dec,
                "exch" => AtomicOperation::Exch,
                "cas" => AtomicOperation::Cas,
                _ => return None,
            })
        });
        let operation = operation.ok_or_else(|| self.unsupported(instruction, "operation"))?;
        let result = usize::from(instruction.opcode == "atom");
        let vector = mods.vector();
        let destinations = if result == 0 { Vec::new() } else { self.wide_destinations(instruction, 0, ty)? };
        let (space, address) = self.spaced_address(instruction, result, mods)?;
        let mut values = self.wide_sources(instruction, result + 1, ty)?;
        if operation == AtomicOperation::Cas {
            values.extend(self.wide_sources(instruction, result + 2, ty)?);
        }
        let change = AtomicChange { operation, ty, vector };
        Ok(MemoryOperation::Atomic { space, address, bytes: ty.bits() / 8, destinations, values, change })
    }

    fn async_copy(&mut self, instruction: &Instruction, mods: &Modifiers<'_>) -> Result<MemoryOperation> {
        let Operand::Integer(bytes @ (4 | 8 | 16)) = *self.operand(instruction, 2)? else {
            return Err(self.unsupported(instruction, "size"));
        };
        // A fourth operand is the source size, or a predicate that ignores the source; with a cache hint it may be the hint.
        let hint = usize::from(mods.has("L2::cache_hint"));
        let source_bytes = match instruction.operands.len() - hint {
            3 => None,
            _ if self.is_predicate(instruction, 3)? => {
                let ignore = self.source(instruction, 3, ScalarType::Pred)?;
                let sources = vec![ignore, Source::Immediate(bytes as u64)];
                Some(self.computed(
                    instruction.line,
                    sources,
                    super::lanes::two(|ignore, bytes| if ignore == 0 { bytes } else { 0 }),
                ))
            }
            _ => Some(self.source(instruction, 3, ScalarType::U32)?),
        };
        let (to, from) = (self.address(instruction, 0)?, self.address(instruction, 1)?);
        Ok(MemoryOperation::Copy { to, from, bytes: bytes as u32, source_bytes })
    }
}
