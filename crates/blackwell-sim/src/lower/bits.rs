//! Logic, shifts and bit fields.

use super::{Lowerer, Result, code::Compute, lanes, modifiers::Modifiers};
use crate::ptx::{Instruction, Operand, ScalarType};

impl Lowerer<'_> {
    /// Lowers a bit operation; false if the instruction is none.
    pub(super) fn bits(&mut self, instruction: &Instruction) -> Result<bool> {
        let mods = Modifiers::new(instruction);
        let Some(ty) = mods.ty() else { return Ok(false) };
        let bits = ty.bits();
        let low = super::operand::mask(ty);
        let signed = ty.is_signed();
        let (operands, compute): (usize, Compute) = match instruction.opcode.as_str() {
            "and" => (2, lanes::two(|a, b| a & b)),
            "or" => (2, lanes::two(|a, b| a | b)),
            "xor" => (2, lanes::two(|a, b| a ^ b)),
            "not" => (1, lanes::one(|a| !a)),
            "cnot" => (1, lanes::one(|a| u64::from(a == 0))),
            "shl" => (2, lanes::two(move |a, b| if b as u32 >= bits { 0 } else { a << (b as u32) })),
            "shr" if signed => (
                2,
                lanes::two(move |a, b| {
                    let value = (a << (64 - bits)) as i64 >> (64 - bits);
                    (value >> (b as u32).min(63)) as u64
                }),
            ),
            "shr" => (2, lanes::two(move |a, b| if b as u32 >= bits { 0 } else { (a & low) >> (b as u32) })),
            "shf" => {
                let (left, wrap) = (mods.has("l"), mods.has("wrap"));
                let compute = lanes::three(move |a, b, c| {
                    let n = if wrap { c & 31 } else { (c & 0xffff_ffff).min(32) };
                    let both = (b << 32) | (a & 0xffff_ffff);
                    if left { (u128::from(both) << n >> 32) as u64 } else { both >> n }
                });
                (3, compute)
            }
            "lop3" => return self.lop3(instruction, ty),
            "prmt" => (3, permute(&mods)),
            "popc" => (1, lanes::one(move |a| u64::from((a & low).count_ones()))),
            "clz" => (1, lanes::one(move |a| u64::from((a & low).leading_zeros() + bits - 64))),
            "brev" => (1, lanes::one(move |a| a.reverse_bits() >> (64 - bits))),
            "bfind" => (1, find_first(bits, signed, mods.has("shiftamt"))),
            "bfe" => (3, lanes::three(move |a, b, c| extract(a, b, c, bits, signed))),
            "bfi" => {
                let compute = lanes::four(move |[a, b, position, length]| {
                    let (position, length) = ((position & 0xff) as u32, (length & 0xff) as u32);
                    if position >= bits {
                        return b;
                    }
                    let field = field_mask(length) << position;
                    (b & !field) | ((a << position) & field)
                });
                (4, compute)
            }
            "bmsk" => {
                let clamp = mods.has("clamp");
                let compute = lanes::two(move |a, b| {
                    let (a, b) = if clamp { (a.min(32), b.min(32)) } else { (a & 31, b & 31) };
                    ((1u64 << b) - 1) << a
                });
                (2, compute)
            }
            "szext" => {
                let clamp = mods.has("clamp");
                let compute = lanes::two(move |a, b| {
                    let b = if clamp { b.min(32) } else { b & 31 } as u32;
                    if b == 0 {
                        return 0;
                    }
                    if signed { ((a << (64 - b)) as i64 >> (64 - b)) as u64 } else { a & field_mask(b) }
                });
                (2, compute)
            }
            _ => return Ok(false),
        };
        // The counts of shifts and fields are u32 whatever the type is; a mask of 64 bits keeps a literal whole.
        self.elementwise(instruction, ty, operands, compute)?;
        Ok(true)
    }

    fn lop3(&mut self, instruction: &Instruction, ty: ScalarType) -> Result<bool> {
        let Operand::Integer(table) = *self.operand(instruction, 4)? else {
            return Err(self.unsupported(instruction, "look-up table"));
        };
        let function = move |a: u64, b: u64, c: u64| {
            (0..8).filter(|index| table >> index & 1 == 1).fold(0, |out, index| {
                let pick = |value: u64, bit: i32| if index >> bit & 1 == 1 { value } else { !value };
                out | (pick(a, 2) & pick(b, 1) & pick(c, 0))
            })
        };
        if instruction.operands.len() > 5 {
            return Err(self.unsupported(instruction, "predicate result"));
        }
        self.elementwise(instruction, ty, 3, lanes::three(function))?;
        Ok(true)
    }
}

fn field_mask(length: u32) -> u64 {
    if length >= 64 { u64::MAX } else { (1 << length) - 1 }
}

fn extract(a: u64, position: u64, length: u64, bits: u32, signed: bool) -> u64 {
    let (position, length) = ((position & 0xff) as u32, (length & 0xff) as u32);
    let sign_position = (position + length).saturating_sub(1).min(bits - 1);
    let sign = if signed && length > 0 && a >> sign_position & 1 == 1 { u64::MAX } else { 0 };
    let value = if position >= bits { 0 } else { (a & field_mask(bits)) >> position };
    let available = bits.saturating_sub(position).min(length);
    (value & field_mask(available)) | (sign & !field_mask(available))
}

fn find_first(bits: u32, signed: bool, shift_amount: bool) -> Compute {
    lanes::one(move |a| {
        let negative = signed && a >> (bits - 1) & 1 == 1;
        let value = if negative { !a } else { a } & field_mask(bits);
        match value {
            0 => u64::from(u32::MAX),
            value => {
                let position = 63 - value.leading_zeros();
                u64::from(if shift_amount { bits - 1 - position } else { position })
            }
        }
    })
}

/// `prmt` with each of its modes.
fn permute(mods: &Modifiers<'_>) -> Compute {
    let mode = ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"].into_iter().position(|mode| mods.has(mode));
    lanes::three(move |a, b, c| {
        let bytes = ((b & 0xffff_ffff) << 32 | (a & 0xffff_ffff)).to_le_bytes();
        let n = (c & 3) as usize;
        let selectors: [usize; 4] = core::array::from_fn(|i| match mode {
            None => (c >> (4 * i) & 0xf) as usize,
            Some(0) => n + i,
            Some(1) => (8 + n - i) % 8,
            Some(2) => n,
            Some(3) => n.max(i),
            Some(4) => n.min(i),
            Some(_) => (n & 1) * 2 + i % 2,
        });
        let out = selectors.map(|selector| {
            let byte = bytes[selector & 7];
            if selector & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 }
        });
        u64::from(u32::from_le_bytes(out))
    })
}
