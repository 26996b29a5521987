//! `add`, `sub`, `mul`, `fma`, `div`, `rcp`, `sqrt`, `min`, `max` of f32, f16 and bf16 registers, with every modifier.
//!
//! Operands and results are bits. A NaN result is the format's canonical NaN (0x7fffffff, 0x7fff), as the PTX ISA says of
//! single- and half-precision instructions.

use super::{FloatFormat, Overflow, Rounding, exact};

/// What an arithmetic instruction's modifiers ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modifiers {
    /// `.rn` unless another is named.
    pub rounding: Rounding,
    /// `.ftz`: subnormal operands and results become zeros of their sign.
    pub flush: bool,
    /// `.sat`: the result is clamped to [0, 1]; NaN becomes +0.
    pub saturate: bool,
    /// `.relu`: a negative result becomes +0; NaN stays NaN.
    pub relu: bool,
}

impl Modifiers {
    /// Round to nearest even, nothing else.
    pub const PLAIN: Self = Self { rounding: Rounding::NearestEven, flush: false, saturate: false, relu: false };

    fn are_plain(&self) -> bool {
        *self == Self::PLAIN
    }
}

/// Whether operands are f32 and the host's own f32 operation is the device's, but for NaN.
fn native(format: FloatFormat, modifiers: Modifiers) -> bool {
    format.fraction_bits() == 23 && modifiers.are_plain()
}

fn native_result(value: f32) -> u32 {
    if value.is_nan() { FloatFormat::F32.nan_bits() } else { value.to_bits() }
}

/// `a + b`.
pub fn add(format: FloatFormat, a: u32, b: u32, modifiers: Modifiers) -> u32 {
    if native(format, modifiers) {
        return native_result(f32::from_bits(a) + f32::from_bits(b));
    }
    let (a, b) = (operand(format, a, modifiers), operand(format, b, modifiers));
    result(format, signed_sum(a, b, modifiers.rounding), modifiers)
}

/// `a − b`.
pub fn subtract(format: FloatFormat, a: u32, b: u32, modifiers: Modifiers) -> u32 {
    add(format, a, negate(format, b), modifiers)
}

/// `a · b`.
pub fn multiply(format: FloatFormat, a: u32, b: u32, modifiers: Modifiers) -> u32 {
    if native(format, modifiers) {
        return native_result(f32::from_bits(a) * f32::from_bits(b));
    }
    result(format, operand(format, a, modifiers) * operand(format, b, modifiers), modifiers)
}

/// `a · b + c`, rounded once.
pub fn fused_multiply_add(format: FloatFormat, a: u32, b: u32, c: u32, modifiers: Modifiers) -> u32 {
    if native(format, modifiers) {
        return native_result(f32::from_bits(a).mul_add(f32::from_bits(b), f32::from_bits(c)));
    }
    let product = operand(format, a, modifiers) * operand(format, b, modifiers);
    result(format, signed_sum(product, operand(format, c, modifiers), modifiers.rounding), modifiers)
}

/// `a / b`, rounded once (`div.rn` and its like).
pub fn divide(format: FloatFormat, a: u32, b: u32, modifiers: Modifiers) -> u32 {
    result(format, exact::quotient(operand(format, a, modifiers), operand(format, b, modifiers)), modifiers)
}

/// `1 / a`, rounded once (`rcp.rn` and its like).
pub fn reciprocal(format: FloatFormat, a: u32, modifiers: Modifiers) -> u32 {
    result(format, exact::quotient(1.0, operand(format, a, modifiers)), modifiers)
}

/// `√a`, rounded once (`sqrt.rn` and its like).
pub fn square_root(format: FloatFormat, a: u32, modifiers: Modifiers) -> u32 {
    result(format, exact::root(operand(format, a, modifiers)), modifiers)
}

/// Which of two values `min` and `max` keep, and how they treat NaN and signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extremum {
    /// `max` rather than `min`.
    pub larger: bool,
    /// `.NaN`: NaN if either operand is; without it, the operand that is a number.
    pub propagate_nan: bool,
    /// `.xorsign.abs`: compares magnitudes; the result's sign is the exclusive or of the operands'.
    pub xor_sign: bool,
    /// `.ftz`.
    pub flush: bool,
}

/// `min` or `max` of two values; −0 is less than +0.
pub fn extremum(format: FloatFormat, a: u32, b: u32, kind: Extremum) -> u32 {
    let modifiers = Modifiers { flush: kind.flush, ..Modifiers::PLAIN };
    let (mut x, mut y) = (operand(format, a, modifiers), operand(format, b, modifiers));
    let negative = kind.xor_sign && (x.is_sign_negative() != y.is_sign_negative());
    if kind.xor_sign {
        (x, y) = (x.abs(), y.abs());
    }
    let kept = match (x.is_nan(), y.is_nan()) {
        (true, true) => f64::NAN,
        (true, false) | (false, true) if kind.propagate_nan => f64::NAN,
        (true, false) => y,
        (false, true) => x,
        (false, false) => {
            let x_is_larger = x.total_cmp(&y).is_gt();
            if x_is_larger == kind.larger { x } else { y }
        }
    };
    result(format, if negative { -kept } else { kept }, Modifiers::PLAIN)
}

/// `−a`; only the sign changes, of NaN too.
pub fn negate(format: FloatFormat, a: u32) -> u32 {
    a ^ (1 << (format.bits() - 1))
}

/// `a + b` rounded to odd, with IEEE's sign of an exact zero: −0 only when rounding down or when both are −0.
fn signed_sum(a: f64, b: f64, rounding: Rounding) -> f64 {
    let sum = exact::sum(a, b);
    let cancelled = sum == 0.0 && (a != 0.0 || a.is_sign_negative() != b.is_sign_negative());
    if cancelled && rounding == Rounding::Down { -0.0 } else { sum }
}

fn operand(format: FloatFormat, bits: u32, modifiers: Modifiers) -> f64 {
    flush(format, format.decode(bits), modifiers.flush)
}

/// `value` as the format has it after rounding, clamping and flushing.
pub(super) fn result(format: FloatFormat, value: f64, modifiers: Modifiers) -> u32 {
    let value = match value {
        nan if nan.is_nan() => return if modifiers.saturate { 0 } else { format.nan_bits() },
        value if modifiers.saturate => value.clamp(0.0, 1.0) + 0.0,
        value if modifiers.relu && value.is_sign_negative() => 0.0,
        value => value,
    };
    let bits = format.encode(value, modifiers.rounding, Overflow::Infinity);
    if modifiers.flush && flush(format, format.decode(bits), true) == 0.0 {
        return bits & (1 << (format.bits() - 1));
    }
    bits
}

/// A zero with the sign of `value` if `value` is subnormal in `format` and flushing is asked for.
pub(super) fn flush(format: FloatFormat, value: f64, asked: bool) -> f64 {
    if asked && value.abs() < format.smallest_normal() { f64::copysign(0.0, value) } else { value }
}
