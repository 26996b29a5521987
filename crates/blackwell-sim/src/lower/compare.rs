//! Comparisons and selections.

use super::{
    Lowerer, Result,
    code::{Destination, Source},
    lanes,
    modifiers::Modifiers,
};
use crate::{
    number::FloatFormat,
    ptx::{Instruction, ScalarType},
};
use std::cmp::Ordering;

/// A comparison of two values of one type.
type Comparison = Box<dyn Fn(u64, u64) -> bool + Send + Sync>;

/// Which orderings a comparison accepts, and NaN.
fn accepted(name: &str) -> Option<([bool; 3], bool)> {
    Some(match name {
        "eq" => ([false, true, false], false),
        "ne" => ([true, false, true], false),
        "lt" | "lo" => ([true, false, false], false),
        "le" | "ls" => ([true, true, false], false),
        "gt" | "hi" => ([false, false, true], false),
        "ge" | "hs" => ([false, true, true], false),
        "equ" => ([false, true, false], true),
        "neu" => ([true, false, true], true),
        "ltu" => ([true, false, false], true),
        "leu" => ([true, true, false], true),
        "gtu" => ([false, false, true], true),
        "geu" => ([false, true, true], true),
        "num" => ([true, true, true], false),
        "nan" => ([false, false, false], true),
        _ => return None,
    })
}

fn comparison(name: &str, ty: ScalarType, flush: bool) -> Option<Comparison> {
    let (orders, unordered) = accepted(name)?;
    let decide = move |ordering: Option<Ordering>| match ordering {
        Some(Ordering::Less) => orders[0],
        Some(Ordering::Equal) => orders[1],
        Some(Ordering::Greater) => orders[2],
        None => unordered,
    };
    let format = match ty {
        ScalarType::F64 => {
            return Some(Box::new(move |a, b| decide(f64::from_bits(a).partial_cmp(&f64::from_bits(b)))));
        }
        ScalarType::F32 => FloatFormat::F32,
        ScalarType::F16 | ScalarType::F16x2 => FloatFormat::F16,
        ScalarType::BF16 | ScalarType::BF16x2 => FloatFormat::BF16,
        _ => {
            let shift = 64 - ty.bits();
            return Some(if ty.is_signed() {
                Box::new(move |a, b| decide(Some(((a << shift) as i64).cmp(&((b << shift) as i64)))))
            } else {
                Box::new(move |a, b| decide(Some((a << shift).cmp(&(b << shift)))))
            });
        }
    };
    let value = move |bits: u64| {
        let value = format.decode(bits as u32);
        if flush && value.abs() < format.smallest_normal() { 0.0 } else { value }
    };
    Some(Box::new(move |a, b| decide(value(a).partial_cmp(&value(b)))))
}

/// `.and`, `.or`, `.xor` of a comparison and a third operand.
fn combination(mods: &Modifiers<'_>) -> Option<fn(bool, bool) -> bool> {
    mods.all().iter().find_map(|&name| {
        let function: fn(bool, bool) -> bool = match name {
            "and" => |a, b| a && b,
            "or" => |a, b| a || b,
            "xor" => |a, b| a != b,
            _ => return None,
        };
        Some(function)
    })
}

impl Lowerer<'_> {
    /// Lowers a comparison or selection; false if the instruction is none.
    pub(super) fn compare(&mut self, instruction: &Instruction) -> Result<bool> {
        let mods = Modifiers::new(instruction);
        let Some(ty) = mods.ty() else { return Ok(false) };
        match instruction.opcode.as_str() {
            "setp" => self.set_predicate(instruction, &mods, ty)?,
            "set" => self.set(instruction, &mods, ty)?,
            "selp" => {
                let a = self.source(instruction, 1, ty)?;
                let b = self.source(instruction, 2, ty)?;
                let c = self.source(instruction, 3, ScalarType::Pred)?;
                let select = || lanes::three(|a, b, c| if c & 1 == 1 { a } else { b });
                let Some(destination) = self.destination(instruction, 0)? else { return Ok(true) };
                self.compute(instruction.line, destination, vec![a, b, c], select());
            }
            "slct" => {
                let Some(&data) = mods.types().first() else { return Ok(false) };
                let a = self.source(instruction, 1, data)?;
                let b = self.source(instruction, 2, data)?;
                let c = self.source(instruction, 3, ty)?;
                let not_negative: Comparison =
                    comparison("ge", ty, mods.has("ftz")).ok_or_else(|| self.unsupported(instruction, "type"))?;
                let select = lanes::three(move |a, b, c| if not_negative(c, 0) { a } else { b });
                let Some(destination) = self.destination(instruction, 0)? else { return Ok(true) };
                self.compute(instruction.line, destination, vec![a, b, c], select);
            }
            "testp" => {
                let kind = mods.first().unwrap_or_default().to_owned();
                let value = move |bits: u64| {
                    if ty == ScalarType::F64 { f64::from_bits(bits) } else { FloatFormat::F32.decode(bits as u32) }
                };
                let smallest = if ty == ScalarType::F64 { f64::MIN_POSITIVE } else { f64::from(f32::MIN_POSITIVE) };
                let test = lanes::one(move |a| {
                    let a = value(a);
                    u64::from(match kind.as_str() {
                        "finite" => a.is_finite(),
                        "infinite" => a.is_infinite(),
                        "number" => !a.is_nan(),
                        "notanumber" => a.is_nan(),
                        "normal" => a.is_finite() && a.abs() >= smallest,
                        _ => a != 0.0 && a.abs() < smallest,
                    })
                });
                self.elementwise(instruction, ty, 1, test)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn set_predicate(&mut self, instruction: &Instruction, mods: &Modifiers<'_>, ty: ScalarType) -> Result<()> {
        let compare = || {
            mods.first()
                .and_then(|name| comparison(name, ty, mods.has("ftz")))
                .ok_or_else(|| self.unsupported(instruction, "comparison"))
        };
        let (first_compare, second_compare) = (compare()?, compare()?);
        let (first, second) = self.pair(instruction, 0)?;
        let first = self.lower_destination(instruction.line, first)?;
        let second = second.map(|second| self.lower_destination(instruction.line, second)).transpose()?.flatten();
        let mut sources = vec![self.source(instruction, 1, ty)?, self.source(instruction, 2, ty)?];
        let combine = combination(mods);
        if combine.is_some() {
            sources.push(self.source(instruction, 3, ScalarType::Pred)?);
        }
        let combine = combine.unwrap_or(|a, _| a);
        let packed = matches!(ty, ScalarType::F16x2 | ScalarType::BF16x2);
        // The second result of a packed comparison is of the high halves; else it is the first one's complement.
        let value = |compare: Comparison, high: bool| {
            lanes::three(move |a, b, c| {
                let (a, b) = if packed && high { (a >> 16, b >> 16) } else { (a, b) };
                u64::from(combine(compare(a, b) != (high && !packed), c & 1 == 1))
            })
        };
        let result = self.computed(instruction.line, sources.clone(), value(first_compare, false));
        if let Some(second) = second {
            let other = self.computed(instruction.line, sources, value(second_compare, true));
            self.compute(instruction.line, second, vec![other], lanes::one(|a| a));
        }
        if let Some(first) = first {
            self.compute(instruction.line, first, vec![result], lanes::one(|a| a));
        }
        Ok(())
    }

    fn set(&mut self, instruction: &Instruction, mods: &Modifiers<'_>, ty: ScalarType) -> Result<()> {
        let [to, _] = mods.types()[..] else { return Err(self.unsupported(instruction, "types")) };
        let compare = mods
            .first()
            .and_then(|name| comparison(name, ty, mods.has("ftz")))
            .ok_or_else(|| self.unsupported(instruction, "comparison"))?;
        let mut sources: Vec<Source> = vec![self.source(instruction, 1, ty)?, self.source(instruction, 2, ty)?];
        let combine = combination(mods);
        if combine.is_some() {
            sources.push(self.source(instruction, 3, ScalarType::Pred)?);
        }
        let combine = combine.unwrap_or(|a, _| a);
        let (one, half) = match to {
            ScalarType::F32 => (0x3f80_0000, false),
            ScalarType::F16 => (0x3c00, false),
            ScalarType::BF16 => (0x3f80, false),
            ScalarType::F16x2 => (0x3c00, true),
            ScalarType::BF16x2 => (0x3f80, true),
            _ => (u64::MAX, matches!(ty, ScalarType::F16x2 | ScalarType::BF16x2)),
        };
        let value = lanes::three(move |a, b, c| {
            let of = |a, b| if combine(compare(a, b), c & 1 == 1) { one } else { 0 };
            if half { (of(a, b) & 0xffff) | (of(a >> 16, b >> 16) & 0xffff) << 16 } else { of(a, b) }
        });
        if let Some(destination) = self.destination(instruction, 0)? {
            let mask = destination.mask & super::operand::mask(to);
            self.compute(instruction.line, Destination { mask, ..destination }, sources, value);
        }
        Ok(())
    }
}
