//! Integer arithmetic.

use super::{
    Lowerer, Result,
    code::{Compute, Destination, Source},
    lanes,
    modifiers::Modifiers,
    operand::mask,
};
use crate::ptx::{Instruction, Operand, ScalarType};

/// How a register's bits are an integer.
#[derive(Clone, Copy)]
struct Integer {
    bits: u32,
    signed: bool,
}

impl Integer {
    fn of(ty: ScalarType) -> Option<Self> {
        use ScalarType as T;
        matches!(ty, T::U8 | T::U16 | T::U32 | T::U64 | T::S8 | T::S16 | T::S32 | T::S64 | T::B16 | T::B32 | T::B64)
            .then_some(Self { bits: ty.bits(), signed: ty.is_signed() })
    }

    fn wide(self, value: u64) -> i128 {
        let shift = 64 - self.bits;
        if self.signed { i128::from((value << shift) as i64 >> shift) } else { i128::from(value << shift >> shift) }
    }

    fn clamp(self, value: i128) -> i128 {
        if self.signed {
            value.clamp(-(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1)
        } else {
            value.clamp(0, (1 << self.bits) - 1)
        }
    }
}

/// A function of operands as integers.
fn wide2(ty: Integer, function: impl Fn(i128, i128) -> i128 + Send + Sync + 'static) -> Compute {
    lanes::two(move |a, b| function(ty.wide(a), ty.wide(b)) as u64)
}

fn wide1(ty: Integer, function: impl Fn(i128) -> i128 + Send + Sync + 'static) -> Compute {
    lanes::one(move |a| function(ty.wide(a)) as u64)
}

/// The half of a product that an instruction keeps, as a right shift.
fn product_shift(mods: &Modifiers<'_>, ty: Integer) -> u32 {
    if mods.has("hi") { ty.bits } else { 0 }
}

impl Lowerer<'_> {
    /// Lowers integer arithmetic; false if the instruction is none.
    pub(super) fn integer(&mut self, instruction: &Instruction) -> Result<bool> {
        let mods = Modifiers::new(instruction);
        let Some(name) = mods.ty() else { return Ok(false) };
        if let ("add" | "sub" | "min" | "max", ScalarType::U16x2 | ScalarType::S16x2) =
            (instruction.opcode.as_str(), name)
        {
            return self.packed(instruction, name);
        }
        if matches!(instruction.opcode.as_str(), "dp4a" | "dp2a") {
            return self.dot_product(instruction, &mods);
        }
        let Some(ty) = Integer::of(name) else { return Ok(false) };
        let saturate = mods.has("sat");
        let plain = !mods.has("cc") && !saturate;
        let shift = product_shift(&mods, ty);
        let (operands, compute) = match instruction.opcode.as_str() {
            "add" if plain => (2, lanes::two(u64::wrapping_add)),
            "sub" if plain => (2, lanes::two(u64::wrapping_sub)),
            "add" if saturate => (2, wide2(ty, move |a, b| ty.clamp(a + b))),
            "sub" if saturate => (2, wide2(ty, move |a, b| ty.clamp(a - b))),
            "add" | "addc" | "sub" | "subc" | "madc" => return self.with_carry(instruction, &mods, ty),
            "mad" if mods.has("cc") => return self.with_carry(instruction, &mods, ty),
            "mul" if mods.has("wide") || shift > 0 => (2, wide2(ty, move |a, b| (a * b) >> shift)),
            "mul" => (2, lanes::two(u64::wrapping_mul)),
            "mad" if shift > 0 && saturate => {
                (3, lanes::three(move |a, b, c| ty.clamp(((ty.wide(a) * ty.wide(b)) >> shift) + ty.wide(c)) as u64))
            }
            "mad" if mods.has("wide") || shift > 0 => {
                (3, lanes::three(move |a, b, c| (((ty.wide(a) * ty.wide(b)) >> shift) as u64).wrapping_add(c)))
            }
            "mad" => (3, lanes::three(|a, b, c| a.wrapping_mul(b).wrapping_add(c))),
            "mul24" | "mad24" => {
                let narrow = Integer { bits: 24, ..ty };
                let shift = if mods.has("hi") { 16 } else { 0 };
                let add = instruction.opcode == "mad24";
                let compute = lanes::three(move |a, b, c| {
                    (((narrow.wide(a) * narrow.wide(b)) >> shift) as u64).wrapping_add(if add { c } else { 0 })
                });
                (if add { 3 } else { 2 }, compute)
            }
            "sad" => {
                (3, lanes::three(move |a, b, c| c.wrapping_add((ty.wide(a) - ty.wide(b)).unsigned_abs() as u64)))
            }
            // Division by zero gives an unspecified value: all ones, as GPUs do.
            "div" => (2, wide2(ty, |a, b| if b == 0 { -1 } else { a / b })),
            "rem" => (2, wide2(ty, |a, b| if b == 0 { -1 } else { a % b })),
            "abs" => (1, wide1(ty, i128::abs)),
            "neg" => (1, lanes::one(u64::wrapping_neg)),
            "min" if mods.has("relu") => (2, wide2(ty, |a, b| a.min(b).max(0))),
            "max" if mods.has("relu") => (2, wide2(ty, |a, b| a.max(b).max(0))),
            "min" => (2, wide2(ty, i128::min)),
            "max" => (2, wide2(ty, i128::max)),
            _ => return Ok(false),
        };
        self.elementwise(instruction, name, operands, compute)?;
        Ok(true)
    }

    /// Emits `destination = compute(sources)`, all operands of type `ty` (the destination as its register is).
    pub(super) fn elementwise(
        &mut self,
        instruction: &Instruction,
        ty: ScalarType,
        operands: usize,
        compute: Compute,
    ) -> Result<()> {
        let sources =
            (1..=operands).map(|index| self.source(instruction, index, ty)).collect::<Result<Vec<_>>>()?;
        if let Some(destination) = self.destination(instruction, 0)? {
            self.compute(instruction.line, destination, sources, compute);
        }
        Ok(())
    }

    /// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`.
    fn with_carry(&mut self, instruction: &Instruction, mods: &Modifiers<'_>, ty: Integer) -> Result<bool> {
        let Some(name) = mods.ty() else { return Ok(false) };
        let carry = match self.carry {
            Some(slot) => slot,
            None => {
                let slot = self.new_register(ScalarType::Pred);
                self.carry = Some(slot);
                slot
            }
        };
        let unsigned = Integer { signed: false, ..ty };
        let (opcode, shift) = (instruction.opcode.as_str(), product_shift(mods, ty));
        let carry_in = u64::from(matches!(opcode, "addc" | "subc" | "madc"));
        let subtract = opcode.starts_with("sub");
        let multiply = opcode.starts_with("mad");
        let operands = if multiply { 3 } else { 2 };
        let mut sources =
            (1..=operands).map(|index| self.source(instruction, index, name)).collect::<Result<Vec<_>>>()?;
        if multiply {
            let factors = sources.drain(..2).collect();
            let product = lanes::two(move |a, b| ((ty.wide(a) * ty.wide(b)) >> shift) as u64);
            let product = self.computed(instruction.line, factors, product);
            sources.insert(0, product);
        }
        sources.push(Source::Register(carry));
        // The sum with the carry (or borrow) above its bits.
        let sum = move |a: u64, b: u64, carry: u64| {
            let (a, b, carry) = (unsigned.wide(a), unsigned.wide(b), i128::from(carry & carry_in));
            if subtract { a - b - carry } else { a + b + carry }
        };
        let result =
            self.computed(instruction.line, sources.clone(), lanes::three(move |a, b, c| sum(a, b, c) as u64));
        if mods.has("cc") {
            let bits = ty.bits;
            let out = lanes::three(move |a, b, c| (sum(a, b, c) >> bits) as u64 & 1);
            self.compute(instruction.line, Destination { slot: carry, mask: 1 }, sources, out);
        }
        if let Some(destination) = self.destination(instruction, 0)? {
            let destination = Destination { mask: destination.mask & mask(name), ..destination };
            self.compute(instruction.line, destination, vec![result], lanes::one(|a| a));
        }
        Ok(true)
    }

    /// `add`, `min`, `max` of two 16-bit integers each.
    fn packed(&mut self, instruction: &Instruction, name: ScalarType) -> Result<bool> {
        let ty = Integer { bits: 16, signed: name == ScalarType::S16x2 };
        let opcode = instruction.opcode.clone();
        let half = move |a: u64, b: u64| -> u64 {
            let (a, b) = (ty.wide(a), ty.wide(b));
            let result = match opcode.as_str() {
                "add" => a + b,
                "sub" => a - b,
                "min" => a.min(b),
                _ => a.max(b),
            };
            result as u64 & 0xffff
        };
        self.elementwise(instruction, name, 2, lanes::two(move |a, b| half(a, b) | half(a >> 16, b >> 16) << 16))?;
        Ok(true)
    }

    /// `dp4a`, `dp2a`.
    fn dot_product(&mut self, instruction: &Instruction, mods: &Modifiers<'_>) -> Result<bool> {
        let [a, b] = mods.types()[..] else { return Err(self.unsupported(instruction, "types")) };
        let byte = |ty: ScalarType| Integer { bits: 8, signed: ty.is_signed() };
        let (byte_a, byte_b) = (byte(a), byte(b));
        let compute = if instruction.opcode == "dp4a" {
            lanes::three(move |a, b, c| {
                let sum: i128 = (0..4).map(|i| byte_a.wide(a >> (8 * i)) * byte_b.wide(b >> (8 * i))).sum();
                (sum as u64).wrapping_add(c)
            })
        } else {
            let half = Integer { bits: 16, signed: byte_a.signed };
            let first = if mods.has("hi") { 2 } else { 0 };
            lanes::three(move |a, b, c| {
                let sum: i128 =
                    (0..2).map(|i| half.wide(a >> (16 * i)) * byte_b.wide(b >> (8 * (first + i)))).sum();
                (sum as u64).wrapping_add(c)
            })
        };
        self.elementwise(instruction, ScalarType::B32, 3, compute)?;
        Ok(true)
    }

    /// The two parts of `a|b`, or the operand and nothing.
    pub(super) fn pair<'i>(
        &self,
        instruction: &'i Instruction,
        index: usize,
    ) -> Result<(&'i Operand, Option<&'i Operand>)> {
        Ok(match self.operand(instruction, index)? {
            Operand::Pair(first, second) => (first, Some(second)),
            single => (single, None),
        })
    }
}
