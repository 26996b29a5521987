//! The `.approx` functions.
//!
//! The hardware's tables are not public. Each function here is the true value (from the host's f64 function) rounded to
//! the nearest f32, f16 or bf16, so it lies within the error that the PTX ISA allows the hardware, and differs from it by no more:
//!
//! | instruction | the hardware's largest error |
//! | --- | --- |
//! | `ex2.approx.f32` | 2 ulp |
//! | `lg2.approx.f32` | 2⁻²² absolute in [0.5, 2], else 2⁻²² relative |
//! | `rcp.approx.f32`, `sqrt.approx.f32` | 1 ulp |
//! | `rsqrt.approx.f32` | 2⁻²²·⁹ relative |
//! | `sin.approx.f32`, `cos.approx.f32` | 2⁻²⁰·⁵ absolute in [−π, π] |
//! | `tanh.approx.f32` | 2⁻¹¹ relative |
//! | `div.approx.f32`, `div.full.f32` | 2 ulp |
//! | `ex2.approx.f16`, `tanh.approx.f16` | 2⁻⁹·⁹, 2⁻¹⁰·⁹⁸⁷ |
//! | `ex2.approx.bf16`, `tanh.approx.bf16` | 2⁻⁷, 2⁻⁸ |

use super::FloatFormat;
use super::arithmetic::{Modifiers, flush, result};

/// An approximate function of one variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// `ex2`: 2^a.
    Exp2,
    /// `lg2`: log₂ a.
    Log2,
    /// `rcp`: 1 / a.
    Reciprocal,
    /// `sqrt`: √a.
    SquareRoot,
    /// `rsqrt`: 1 / √a.
    ReciprocalSquareRoot,
    /// `sin`.
    Sine,
    /// `cos`.
    Cosine,
    /// `tanh`.
    HyperbolicTangent,
}

impl Function {
    /// The function that a PTX opcode names.
    pub fn from_opcode(opcode: &str) -> Option<Self> {
        Some(match opcode {
            "ex2" => Self::Exp2,
            "lg2" => Self::Log2,
            "rcp" => Self::Reciprocal,
            "sqrt" => Self::SquareRoot,
            "rsqrt" => Self::ReciprocalSquareRoot,
            "sin" => Self::Sine,
            "cos" => Self::Cosine,
            "tanh" => Self::HyperbolicTangent,
            _ => return None,
        })
    }

    /// The function of the value with these `bits` of `format`; `flush_subnormals` is `.ftz`.
    pub fn apply(self, format: FloatFormat, bits: u32, flush_subnormals: bool) -> u32 {
        let a = flush(format, format.decode(bits), flush_subnormals);
        let value = match self {
            Self::Exp2 => a.exp2(),
            Self::Log2 => a.log2(),
            Self::Reciprocal => 1.0 / a,
            Self::SquareRoot => a.sqrt(),
            // √−0 is −0, and so is its reciprocal's infinity.
            Self::ReciprocalSquareRoot => 1.0 / a.sqrt(),
            Self::Sine => a.sin(),
            Self::Cosine => a.cos(),
            Self::HyperbolicTangent => a.tanh(),
        };
        result(format, value, Modifiers { flush: flush_subnormals, ..Modifiers::PLAIN })
    }
}

/// `div.approx.f32` and `div.full.f32`. `full` covers the whole range; without it a divisor whose magnitude is between
/// 2¹²⁶ and 2¹²⁸ gives zero (NaN for an infinite dividend), as the PTX ISA says.
pub fn divide(a: u32, b: u32, full: bool, flush_subnormals: bool) -> u32 {
    let format = FloatFormat::F32;
    let a = flush(format, format.decode(a), flush_subnormals);
    let b = flush(format, format.decode(b), flush_subnormals);
    let huge = b.is_finite() && b.abs() > 2f64.powi(126);
    let value = match huge && !full {
        false => a / b,
        true if a.is_finite() => f64::copysign(0.0, a) * b.signum(),
        true => f64::NAN,
    };
    result(format, value, Modifiers { flush: flush_subnormals, ..Modifiers::PLAIN })
}
