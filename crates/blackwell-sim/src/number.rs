//! Numbers as the device computes them, bit for bit: every narrow float format, directed rounding, packed operations.
//!
//! A value travels as the raw bits of its format (`u32`, low bits) or, between a format and an operation, as the
//! `f64` that equals it: every finite value of every format here is an `f64`. An operation on formats of at most
//! 24 significant bits is done once in `f64`, rounded *to odd* ([`exact`]), and then rounded to the format in the
//! mode that the instruction names; since 53 ≥ 24 + 2, that second rounding is the only one that shows.
//!
//! * [`float_format`]: the formats, encoding in every rounding mode, decoding;
//! * [`exact`]: sums, products, quotients and roots as `f64` rounded to odd;
//! * [`arithmetic`]: `add`, `mul`, `fma`, `div`, `min` … of f32, f16 and bf16 with `.ftz`, `.sat`, `.relu`;
//! * [`packed`]: the same on f16x2, bf16x2 and f32x2 registers;
//! * [`convert`]: what `cvt` does, packed narrow formats and stochastic rounding included;
//! * [`approximate`]: `ex2`, `lg2`, `rcp`, `rsqrt`, `sin`, `cos`, `tanh`, and how near the hardware they are.
//!
//! Facts come from the PTX ISA (9.7.3–9.7.5 floating point and half precision, 9.7.9 `cvt`).

pub mod approximate;
pub mod arithmetic;
pub mod convert;
pub mod exact;
pub mod float_format;
pub mod packed;

pub use float_format::{FloatFormat, Overflow};

/// How an exact value becomes one that a format has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// `.rn`: to the nearest, ties to the even significand.
    NearestEven,
    /// `.rna`: to the nearest, ties away from zero.
    NearestAway,
    /// `.rz`: toward zero.
    TowardZero,
    /// `.rm`: toward minus infinity.
    Down,
    /// `.rp`: toward plus infinity.
    Up,
}

impl Rounding {
    /// The mode that a PTX modifier names (`rn`, `rna`, `rz`, `rm`, `rp`; with a trailing `i` for `cvt` to integers).
    pub fn from_modifier(modifier: &str) -> Option<Self> {
        match modifier {
            "rn" | "rni" => Some(Self::NearestEven),
            "rna" => Some(Self::NearestAway),
            "rz" | "rzi" => Some(Self::TowardZero),
            "rm" | "rmi" => Some(Self::Down),
            "rp" | "rpi" => Some(Self::Up),
            _ => None,
        }
    }

    /// Rounds `magnitude` (not negative, below 2⁶³) to an integer; `negative` is the sign of the value it belongs to.
    pub(crate) fn integer(self, magnitude: f64, negative: bool) -> u64 {
        let floor = magnitude.floor();
        let rest = magnitude - floor;
        let whole = floor as u64;
        let up = match self {
            Self::NearestEven => rest > 0.5 || (rest == 0.5 && whole & 1 == 1),
            Self::NearestAway => rest >= 0.5,
            Self::TowardZero => false,
            Self::Down => negative && rest > 0.0,
            Self::Up => !negative && rest > 0.0,
        };
        whole + u64::from(up)
    }
}
