//! Floating-point arithmetic.

use super::{Lowerer, Result, code::Compute, lanes, modifiers::Modifiers};
use crate::{
    number::{
        FloatFormat, Rounding,
        approximate::{self, Function},
        arithmetic::{self, Extremum},
        packed,
    },
    ptx::{Instruction, ScalarType},
};

/// An operation on the elements of a format.
type Elementwise = Box<dyn Fn([u32; 3]) -> u32 + Send + Sync>;

impl Lowerer<'_> {
    /// Lowers floating-point arithmetic; false if the instruction is none.
    pub(super) fn float(&mut self, instruction: &Instruction) -> Result<bool> {
        let mods = Modifiers::new(instruction);
        let Some(ty) = mods.ty() else { return Ok(false) };
        let (format, packing) = match ty {
            ScalarType::F32 => (FloatFormat::F32, 1),
            ScalarType::F16 => (FloatFormat::F16, 1),
            ScalarType::BF16 => (FloatFormat::BF16, 1),
            ScalarType::F16x2 => (FloatFormat::F16, 2),
            ScalarType::BF16x2 => (FloatFormat::BF16, 2),
            ScalarType::F32x2 => (FloatFormat::F32, 3),
            ScalarType::F64 => return self.double(instruction, &mods),
            _ => return Ok(false),
        };
        if instruction.opcode == "cvt" || mods.types().iter().any(|&other| other != ty) {
            // A mixed-precision form, or a comparison.
            return Ok(false);
        }
        let count = instruction.operands.len().saturating_sub(1);
        let Some(operation) = element_operation(&instruction.opcode, format, &mods, count) else {
            return Ok(false);
        };
        let compute: Compute = match packing {
            1 => lanes::three(move |a, b, c| u64::from(operation([a as u32, b as u32, c as u32]))),
            2 => lanes::three(move |a, b, c| {
                u64::from(packed::map_halves([a as u32, b as u32, c as u32], &operation))
            }),
            _ => lanes::three(move |a, b, c| packed::map_words([a, b, c], &operation)),
        };
        self.elementwise(instruction, ty, count, compute)?;
        Ok(true)
    }

    fn double(&mut self, instruction: &Instruction, mods: &Modifiers<'_>) -> Result<bool> {
        if mods.types().len() > 1 || instruction.opcode == "cvt" {
            return Ok(false);
        }
        let count = instruction.operands.len().saturating_sub(1);
        if let "add" | "sub" | "mul" | "fma" | "mad" | "div" | "sqrt" = instruction.opcode.as_str()
            && ["rz", "rm", "rp"].into_iter().any(|mode| mods.has(mode))
        {
            return Err(self.unsupported(instruction, "rounding of f64"));
        }
        let float = |bits: u64| f64::from_bits(bits);
        let compute = match instruction.opcode.as_str() {
            "add" => lanes::two(move |a, b| (float(a) + float(b)).to_bits()),
            "sub" => lanes::two(move |a, b| (float(a) - float(b)).to_bits()),
            "mul" => lanes::two(move |a, b| (float(a) * float(b)).to_bits()),
            "div" => lanes::two(move |a, b| (float(a) / float(b)).to_bits()),
            "fma" | "mad" => lanes::three(move |a, b, c| float(a).mul_add(float(b), float(c)).to_bits()),
            "rcp" => lanes::one(move |a| float(a).recip().to_bits()),
            "sqrt" => lanes::one(move |a| float(a).sqrt().to_bits()),
            "rsqrt" => lanes::one(move |a| float(a).sqrt().recip().to_bits()),
            "abs" => lanes::one(|a| a & !(1 << 63)),
            "neg" => lanes::one(|a| a ^ 1 << 63),
            "min" => lanes::two(move |a, b| float(a).min(float(b)).to_bits()),
            "max" => lanes::two(move |a, b| float(a).max(float(b)).to_bits()),
            "copysign" => lanes::two(|a, b| (a & 1 << 63) | (b & !(1 << 63))),
            _ => return Ok(false),
        };
        self.elementwise(instruction, ScalarType::F64, count, compute)?;
        Ok(true)
    }
}

fn element_operation(opcode: &str, format: FloatFormat, mods: &Modifiers<'_>, count: usize) -> Option<Elementwise> {
    let flush = mods.has("ftz");
    let rounding =
        mods.all().iter().find_map(|name| Rounding::from_modifier(name)).unwrap_or(Rounding::NearestEven);
    let options = arithmetic::Modifiers { rounding, flush, saturate: mods.has("sat"), relu: mods.has("relu") };
    let full_range = mods.has("full");
    let approximate = mods.has("approx") || full_range;
    let sign = 1u32 << (format.bits() - 1);
    Some(match opcode {
        "add" => Box::new(move |[a, b, _]| arithmetic::add(format, a, b, options)),
        "sub" => Box::new(move |[a, b, _]| arithmetic::subtract(format, a, b, options)),
        "mul" => Box::new(move |[a, b, _]| arithmetic::multiply(format, a, b, options)),
        "fma" | "mad" => Box::new(move |[a, b, c]| arithmetic::fused_multiply_add(format, a, b, c, options)),
        "div" if approximate => Box::new(move |[a, b, _]| approximate::divide(a, b, full_range, flush)),
        "div" => Box::new(move |[a, b, _]| arithmetic::divide(format, a, b, options)),
        "rcp" if !approximate => Box::new(move |[a, ..]| arithmetic::reciprocal(format, a, options)),
        "sqrt" if !approximate => Box::new(move |[a, ..]| arithmetic::square_root(format, a, options)),
        "abs" => Box::new(move |[a, ..]| flushed(format, a & !sign, flush)),
        "neg" => Box::new(move |[a, ..]| flushed(format, a ^ sign, flush)),
        "copysign" => Box::new(move |[a, b, _]| (a & sign) | (b & !sign)),
        "min" | "max" => {
            let kind = Extremum {
                larger: opcode == "max",
                propagate_nan: mods.has("NaN"),
                xor_sign: mods.has("xorsign"),
                flush,
            };
            Box::new(move |[a, b, c]| {
                let first = extremum(format, a, b, kind);
                if count == 3 { extremum(format, first, c, kind) } else { first }
            })
        }
        _ => {
            let function = Function::from_opcode(opcode)?;
            Box::new(move |[a, ..]| function.apply(format, a, flush))
        }
    })
}

fn extremum(format: FloatFormat, a: u32, b: u32, kind: Extremum) -> u32 {
    arithmetic::extremum(format, a, b, kind)
}

fn flushed(format: FloatFormat, bits: u32, flush: bool) -> u32 {
    let value = format.decode(bits);
    if flush && value.abs() < format.smallest_normal() { bits & 1 << (format.bits() - 1) } else { bits }
}
