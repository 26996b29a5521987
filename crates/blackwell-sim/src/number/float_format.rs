//! The float formats: what bits mean, and which bits a value gets.

use super::Rounding;

/// What the top of the exponent range means in a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Specials {
    /// All exponent bits set: infinity (zero fraction) or NaN.
    Ieee,
    /// Only all exponent and all fraction bits set is NaN; there is no infinity.
    NanOnly,
    /// Every code is a number.
    None,
}

/// What becomes of a value beyond the largest finite one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// IEEE: infinity, or the largest finite value where the rounding mode points toward zero. A format without
    /// infinity gives NaN; one without NaN, its largest value.
    Infinity,
    /// `.satfinite`: the largest finite value with the sign of the input, for an infinite input too.
    Saturate,
}

/// A binary floating-point format of at most 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloatFormat {
    /// PTX's name of the format.
    pub name: &'static str,
    exponent_bits: u32,
    fraction_bits: u32,
    specials: Specials,
    /// Bits below the format's own in its container (13 for tf32, which lives at the top of an f32).
    padding: u32,
    nan: u32,
}

impl FloatFormat {
    /// IEEE binary32.
    pub const F32: Self = Self::new("f32", 8, 23, Specials::Ieee, 0, 0x7fff_ffff);
    /// IEEE binary16.
    pub const F16: Self = Self::new("f16", 5, 10, Specials::Ieee, 0, 0x7fff);
    /// bfloat16: the upper half of an f32.
    pub const BF16: Self = Self::new("bf16", 8, 7, Specials::Ieee, 0, 0x7fff);
    /// tf32: an f32 whose 13 lowest bits are zero.
    pub const TF32: Self = Self::new("tf32", 8, 10, Specials::Ieee, 13, 0x7fff_e000);
    /// OCP FP8 e4m3: largest 448, no infinity.
    pub const E4M3: Self = Self::new("e4m3", 4, 3, Specials::NanOnly, 0, 0x7f);
    /// OCP FP8 e5m2.
    pub const E5M2: Self = Self::new("e5m2", 5, 2, Specials::Ieee, 0, 0x7f);
    /// OCP FP6 e2m3: largest 7.5.
    pub const E2M3: Self = Self::new("e2m3", 2, 3, Specials::None, 0, 0x1f);
    /// OCP FP6 e3m2: largest 28.
    pub const E3M2: Self = Self::new("e3m2", 3, 2, Specials::None, 0, 0x1f);
    /// OCP FP4 e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
    pub const E2M1: Self = Self::new("e2m1", 2, 1, Specials::None, 0, 0x7);

    const fn new(
        name: &'static str,
        exponent_bits: u32,
        fraction_bits: u32,
        specials: Specials,
        padding: u32,
        nan: u32,
    ) -> Self {
        Self { name, exponent_bits, fraction_bits, specials, padding, nan }
    }

    /// The format that PTX names `name`, without a `x2` or `x4` suffix.
    pub fn from_name(name: &str) -> Option<Self> {
        const ALL: [FloatFormat; 9] = [
            FloatFormat::F32,
            FloatFormat::F16,
            FloatFormat::BF16,
            FloatFormat::TF32,
            FloatFormat::E4M3,
            FloatFormat::E5M2,
            FloatFormat::E2M3,
            FloatFormat::E3M2,
            FloatFormat::E2M1,
        ];
        ALL.into_iter().find(|format| format.name == name)
    }

    /// Bits of a code, sign included, padding not.
    pub const fn bits(&self) -> u32 {
        1 + self.exponent_bits + self.fraction_bits
    }

    /// Explicit bits of the significand.
    pub const fn fraction_bits(&self) -> u32 {
        self.fraction_bits
    }

    const fn bias(&self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    const fn sign_bit(&self) -> u32 {
        1 << (self.exponent_bits + self.fraction_bits)
    }

    /// Code of the largest finite value, without padding.
    pub(super) const fn largest(&self) -> u32 {
        let all = self.sign_bit() - 1;
        match self.specials {
            Specials::Ieee => all - (1 << self.fraction_bits),
            Specials::NanOnly => all - 1,
            Specials::None => all,
        }
    }

    /// The bits that a NaN input becomes: the canonical NaN, or the largest value where the format has no NaN.
    pub const fn nan_bits(&self) -> u32 {
        self.nan
    }

    /// The largest finite value.
    pub fn max(&self) -> f64 {
        self.decode(self.largest() << self.padding)
    }

    /// The smallest positive value that is not subnormal.
    pub fn smallest_normal(&self) -> f64 {
        power_of_two(1 - self.bias())
    }

    /// The value of `bits`; bits above the format's own and tf32's padding are ignored.
    pub fn decode(&self, bits: u32) -> f64 {
        let code = (bits >> self.padding) & (self.sign_bit() | (self.sign_bit() - 1));
        let magnitude = code & (self.sign_bit() - 1);
        let sign = if code & self.sign_bit() == 0 { 1.0 } else { -1.0 };
        if magnitude > self.largest() {
            let infinity = self.specials == Specials::Ieee && magnitude == self.largest() + 1;
            return if infinity { sign * f64::INFINITY } else { f64::NAN };
        }
        let exponent = (magnitude >> self.fraction_bits) as i32;
        let fraction = magnitude & ((1 << self.fraction_bits) - 1);
        let (significand, exponent) = match exponent {
            0 => (fraction, 1),
            normal => (fraction | 1 << self.fraction_bits, normal),
        };
        sign * f64::from(significand) * power_of_two(exponent - self.bias() - self.fraction_bits as i32)
    }

    /// The bits of `value` rounded to this format.
    pub fn encode(&self, value: f64, rounding: Rounding, overflow: Overflow) -> u32 {
        if value.is_nan() {
            return self.nan;
        }
        let negative = value.is_sign_negative();
        let magnitude = value.abs();
        let code = if magnitude.is_infinite() {
            self.overflowed(Rounding::NearestEven, negative, overflow)
        } else {
            let code = self.round_magnitude(magnitude, |scaled| rounding.integer(scaled, negative));
            if code > u64::from(self.largest()) {
                self.overflowed(rounding, negative, overflow)
            } else {
                code as u32
            }
        };
        (code | if negative { self.sign_bit() } else { 0 }) << self.padding
    }

    /// The code of a finite `magnitude`, larger than [`Self::largest`] if it overflows. `round` makes an integer of the
    /// magnitude in units of its last place; a carry runs into the exponent by itself.
    pub(super) fn round_magnitude(&self, magnitude: f64, round: impl FnOnce(f64) -> u64) -> u64 {
        let smallest_normal = 1 - self.bias();
        let exponent = exponent_of(magnitude).max(smallest_normal);
        let scaled = magnitude * power_of_two(self.fraction_bits as i32 - exponent);
        let biased_less_one = (exponent - smallest_normal) as u64;
        (biased_less_one << self.fraction_bits) + round(scaled)
    }

    fn overflowed(&self, rounding: Rounding, negative: bool, overflow: Overflow) -> u32 {
        let to_largest = match rounding {
            Rounding::NearestEven | Rounding::NearestAway => false,
            Rounding::TowardZero => true,
            Rounding::Down => !negative,
            Rounding::Up => negative,
        };
        match (overflow, self.specials) {
            (Overflow::Saturate, _) | (_, Specials::None) => self.largest(),
            (Overflow::Infinity, _) if to_largest => self.largest(),
            (Overflow::Infinity, _) => self.largest() + 1,
        }
    }

    /// The values of all codes of a format of at most 8 bits, at the index of the code; of a shorter format, over and
    /// over, since bits above the code are ignored.
    pub fn table(&self) -> [f64; 256] {
        core::array::from_fn(|code| self.decode(code as u32))
    }
}

/// The value of a ue8m0 scale: 2^(code − 127), NaN for 255.
pub fn decode_ue8m0(code: u8) -> f64 {
    if code == 0xff { f64::NAN } else { power_of_two(i32::from(code) - 127) }
}

/// The ue8m0 code of |`value`|: the power of two next to it, toward zero or (`Rounding::Up`) away from it. Magnitudes
/// beyond 2^127 give NaN (255), or 254 with [`Overflow::Saturate`]; those below 2^-127 give 2^-127. The sign is dropped.
/// Rounding modes other than up act as toward zero: `cvt` has only `.rz` and `.rp`.
pub fn encode_ue8m0(value: f64, rounding: Rounding, overflow: Overflow) -> u8 {
    if value.is_nan() {
        return 0xff;
    }
    let magnitude = value.abs();
    let exponent = if magnitude.is_infinite() { 128 } else { exponent_of(magnitude) };
    let above = rounding == Rounding::Up && magnitude.is_finite() && magnitude > power_of_two(exponent.max(-127));
    match (exponent.max(-127) + i32::from(above) + 127, overflow) {
        (255.., Overflow::Saturate) => 0xfe,
        (255.., Overflow::Infinity) => 0xff,
        (code, _) => code as u8,
    }
}

/// ⌊log₂ |value|⌋ of a finite value; far below every format's range for zero.
fn exponent_of(value: f64) -> i32 {
    let biased = (value.to_bits() >> 52 & 0x7ff) as i32;
    // An f64 subnormal is below every format here, whatever its exponent.
    biased - 1023
}

/// 2^exponent, for exponents of normal f64 values.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}
