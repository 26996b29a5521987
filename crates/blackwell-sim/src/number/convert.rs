//! `cvt`: between integers, floats and packed narrow floats.

use super::arithmetic::{Modifiers, flush, result};
use super::float_format::{decode_ue8m0, encode_ue8m0};
use super::packed::{element_width, pack, unpack};
use super::{FloatFormat, Overflow, Rounding};

/// A type that `cvt` reads or writes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Type {
    Integer {
        bits: u32,
        signed: bool,
    },
    Float(FloatFormat),
    Double,
    /// `count` elements of a format in one register, the first operand uppermost.
    Packed {
        format: FloatFormat,
        count: u32,
    },
    /// Two power-of-two scales.
    Ue8m0x2,
}

impl Type {
    fn parse(name: &str) -> Option<Self> {
        if name == "f64" {
            return Some(Self::Double);
        }
        if name == "ue8m0x2" {
            return Some(Self::Ue8m0x2);
        }
        if let Some(format) = FloatFormat::from_name(name) {
            return Some(Self::Float(format));
        }
        if let Some((element, count @ ("2" | "4"))) = name.rsplit_once('x') {
            let format = FloatFormat::from_name(element)?;
            return Some(Self::Packed { format, count: if count == "2" { 2 } else { 4 } });
        }
        let (signed, bits) = match name.split_at_checked(1)? {
            ("s", bits) => (true, bits),
            ("u", bits) => (false, bits),
            _ => return None,
        };
        match bits.parse() {
            Ok(bits @ (8 | 16 | 32 | 64)) => Some(Self::Integer { bits, signed }),
            _ => None,
        }
    }
}

/// How the source becomes the destination.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    IntegerToInteger,
    IntegerToFloat,
    FloatToInteger,
    FloatToFloat,
    /// f32 or f64 operands, or the elements of one packed register, into a packed register.
    Pack {
        count: u32,
    },
    Unpack,
    /// `.rs`: as [`Step::Pack`], with random bits in the last operand.
    Stochastic,
}

/// A decoded `cvt` instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conversion {
    to: Type,
    from: Type,
    step: Step,
    rounding: Rounding,
    /// `.rni` and its like between floats: round to an integral value.
    integral: bool,
    flush: bool,
    saturate: bool,
    finite: bool,
    relu: bool,
}

impl Conversion {
    /// Decodes the modifiers of a `cvt` (all that follows the opcode, types last: `["rn", "satfinite", "e2m1x2", "f32"]`).
    /// `None` if this is no conversion of PTX, or one that is not modelled: the four-element `.rs` forms, whose use of the
    /// random bits the PTX ISA shows only in a figure, and `s2f6x2`.
    pub fn parse(modifiers: &[&str]) -> Option<Self> {
        let [options @ .., to, from] = modifiers else { return None };
        let (to, from) = (Type::parse(to)?, Type::parse(from)?);
        let (mut rounding, mut integral, mut stochastic) = (None, false, false);
        let (mut flush, mut saturate, mut finite, mut relu) = (false, false, false, false);
        for &option in options {
            match option {
                "ftz" => flush = true,
                "sat" => saturate = true,
                "satfinite" => finite = true,
                "relu" => relu = true,
                "rs" => stochastic = true,
                _ => {
                    rounding = Some(Rounding::from_modifier(option)?);
                    integral = option.ends_with('i');
                }
            }
        }
        let step = match (from, to) {
            _ if stochastic => match (from, to) {
                (Type::Float(FloatFormat::F32), Type::Packed { format, count: 2 }) if format.bits() == 16 => {
                    Step::Stochastic
                }
                _ => return None,
            },
            (Type::Integer { .. }, Type::Integer { .. }) => Step::IntegerToInteger,
            (Type::Integer { .. }, Type::Float(_) | Type::Double) => Step::IntegerToFloat,
            (Type::Float(_) | Type::Double, Type::Integer { .. }) => Step::FloatToInteger,
            (Type::Float(_) | Type::Double, Type::Float(_) | Type::Double) => Step::FloatToFloat,
            (Type::Float(_), Type::Packed { count, .. }) => Step::Pack { count },
            (Type::Float(_), Type::Ue8m0x2) => Step::Pack { count: 2 },
            // f16x2 → e4m3x2 narrows, e4m3x2 → f16x2 widens; both go element by element.
            (Type::Packed { count: 2, .. } | Type::Ue8m0x2, Type::Packed { count: 2, .. })
            | (Type::Packed { count: 2, .. }, Type::Ue8m0x2) => Step::Unpack,
            _ => return None,
        };
        let rounding = rounding.unwrap_or(Rounding::NearestEven);
        Some(Self { to, from, step, rounding, integral, flush, saturate, finite, relu })
    }

    /// How many registers [`Self::apply`] reads: operands `a`, `b` … in their order, random bits last.
    pub fn operands(&self) -> usize {
        match self.step {
            Step::Pack { count } => count as usize,
            Step::Stochastic => 3,
            _ => 1,
        }
    }

    /// The destination register's bits. Sources narrower than 64 bits are read from the low bits; a signed integer result
    /// is sign-extended to 64 bits, so that a wider destination register holds what PTX says. Missing operands read as 0.
    pub fn apply(&self, operands: &[u64]) -> u64 {
        let operand = |index: usize| operands.get(index).copied().unwrap_or(0);
        match self.step {
            Step::IntegerToInteger => self.integer_result(self.integer_source(operand(0))),
            Step::IntegerToFloat => {
                let value = self.integer_source(operand(0));
                self.float_result(match self.to {
                    Type::Double => integer_to_double(value, self.rounding),
                    _ => integer_to_odd_double(value),
                })
            }
            Step::FloatToInteger => self.float_to_integer(operand(0)),
            Step::FloatToFloat => {
                let value = self.float_source(operand(0));
                self.float_result(if self.integral { round_to_integral(value, self.rounding) } else { value })
            }
            Step::Pack { count } => {
                let codes: [u32; 4] = core::array::from_fn(|index| self.element(self.float_source(operand(index))));
                pack(&codes[..count as usize], self.destination_width())
            }
            Step::Unpack => {
                let mut codes = [0; 2];
                for (code, value) in codes.iter_mut().zip(self.elements(operand(0))) {
                    *code = self.element(value);
                }
                pack(&codes, self.destination_width())
            }
            Step::Stochastic => {
                let random = operand(2) as u32;
                let a = self.stochastic_element(self.float_source(operand(0)), random >> 16);
                let b = self.stochastic_element(self.float_source(operand(1)), random & 0xffff);
                pack(&[a, b], 16)
            }
        }
    }

    fn integer_source(&self, register: u64) -> i128 {
        match self.from {
            Type::Integer { bits, signed } => extend(register, bits, signed),
            _ => 0,
        }
    }

    fn float_source(&self, register: u64) -> f64 {
        match self.from {
            Type::Double => f64::from_bits(register),
            Type::Float(format) => {
                flush(format, format.decode(register as u32), self.flush && format == FloatFormat::F32)
            }
            _ => 0.0,
        }
    }

    fn integer_result(&self, value: i128) -> u64 {
        match self.to {
            Type::Integer { bits, signed } => {
                let value = if self.saturate { clamp_to(value, bits, signed) } else { value };
                extend(value as u64, bits, signed) as u64
            }
            _ => 0,
        }
    }

    fn float_to_integer(&self, register: u64) -> u64 {
        let (Type::Integer { bits, signed }, value) = (self.to, self.float_source(register)) else { return 0 };
        if value.is_nan() {
            // PTX ISA, cvt: zero, unless the source is f64 or the destination has 64 bits.
            let code = if bits == 64 || self.from == Type::Double { 1 << (bits - 1) } else { 0 };
            return extend(code, bits, signed) as u64;
        }
        let rounding = if self.integral { self.rounding } else { Rounding::TowardZero };
        // Float to integer always saturates; a cast from f64 saturates at i128's far wider range.
        clamp_to(round_to_integral(value, rounding) as i128, bits, signed) as u64
    }

    fn float_result(&self, value: f64) -> u64 {
        match self.to {
            Type::Float(format) => u64::from(self.encode(format, value)),
            Type::Double if self.saturate => {
                if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) + 0.0 }.to_bits()
            }
            Type::Double => value.to_bits(),
            _ => 0,
        }
    }

    fn elements(&self, register: u64) -> impl Iterator<Item = f64> {
        let (width, from) = match self.from {
            Type::Packed { format, .. } => (element_width(format), Some(format)),
            _ => (8, None),
        };
        unpack(register, width, 2)
            .map(move |code| from.map_or_else(|| decode_ue8m0(code as u8), |format| format.decode(code)))
    }

    fn destination_width(&self) -> u32 {
        match self.to {
            Type::Packed { format, .. } => element_width(format),
            _ => 8,
        }
    }

    fn element(&self, value: f64) -> u32 {
        match self.to {
            Type::Packed { format, .. } => self.encode(format, value),
            _ => u32::from(encode_ue8m0(value, self.rounding, self.overflow())),
        }
    }

    fn overflow(&self) -> Overflow {
        if self.finite { Overflow::Saturate } else { Overflow::Infinity }
    }

    fn encode(&self, format: FloatFormat, value: f64) -> u32 {
        if !self.finite {
            // `.ftz` flushes f32 only.
            let flush = self.flush && format == FloatFormat::F32;
            let modifiers = Modifiers { rounding: self.rounding, flush, saturate: self.saturate, relu: self.relu };
            return result(format, value, modifiers);
        }
        let value = if self.relu && value.is_sign_negative() && !value.is_nan() { 0.0 } else { value };
        format.encode(value, self.rounding, Overflow::Saturate)
    }

    /// `.rs`: `random` is added to the bits that the format drops; the carry rounds away from zero.
    fn stochastic_element(&self, value: f64, random: u32) -> u32 {
        let Type::Packed { format, .. } = self.to else { return 0 };
        if !value.is_finite() {
            return self.encode(format, value);
        }
        let dropped = FloatFormat::F32.fraction_bits() - format.fraction_bits();
        let scale = f64::from(1u32 << dropped);
        let random = f64::from(random & ((1 << dropped) - 1));
        let code = format
            .round_magnitude(value.abs(), |scaled| ((scaled * scale).floor() + random).div_euclid(scale) as u64);
        let rounded = if code > u64::from(format.largest()) { f64::INFINITY } else { format.decode(code as u32) };
        self.encode(format, f64::copysign(rounded, value))
    }
}

/// The low `bits` of a register as a number.
fn extend(register: u64, bits: u32, signed: bool) -> i128 {
    let shift = 64 - bits;
    let aligned = register << shift;
    if signed { i128::from(aligned as i64 >> shift) } else { i128::from(aligned >> shift) }
}

fn clamp_to(value: i128, bits: u32, signed: bool) -> i128 {
    let (low, high) = if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
    value.clamp(low, high)
}

/// The value rounded to an integral one, of any size.
fn round_to_integral(value: f64, rounding: Rounding) -> f64 {
    if value.is_nan() || value.abs() >= 2f64.powi(52) {
        return value;
    }
    f64::copysign(rounding.integer(value.abs(), value.is_sign_negative()) as f64, value)
}

/// An integer of at most 65 bits in units of 2^`excess`, the last of 53 bits, and whether bits below that were lost.
fn leading_53_bits(magnitude: u128) -> (u64, u32, bool) {
    let excess = (128 - magnitude.leading_zeros()).saturating_sub(53);
    let kept = magnitude >> excess;
    (kept as u64, excess, kept << excess != magnitude)
}

/// An integer as the `f64` next to it, rounded to odd (see [`super::exact`]).
fn integer_to_odd_double(value: i128) -> f64 {
    let (kept, excess, lost) = leading_53_bits(value.unsigned_abs());
    let odd = (u128::from(kept | u64::from(lost)) << excess) as f64;
    if value < 0 { -odd } else { odd }
}

/// An integer as an `f64`, rounded as `rounding` says.
fn integer_to_double(value: i128, rounding: Rounding) -> f64 {
    let magnitude = value.unsigned_abs();
    let (kept, excess, lost) = leading_53_bits(magnitude);
    let up = lost
        && match rounding {
            // The cast from i128 rounds to nearest even.
            Rounding::NearestEven | Rounding::NearestAway => return value as f64,
            Rounding::TowardZero => false,
            Rounding::Down => value < 0,
            Rounding::Up => value > 0,
        };
    let rounded = ((u128::from(kept) + u128::from(up)) << excess) as f64;
    if value < 0 { -rounded } else { rounded }
}
