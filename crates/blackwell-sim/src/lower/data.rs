//! `mov`, `cvt`, and what changes an address's space.

use super::{
    Entry, Lowerer, Result,
    code::{Destination, Source, Special},
    lanes,
    modifiers::Modifiers,
};
use crate::{
    exec::address::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES},
    number::convert::Conversion,
    ptx::{Instruction, Operand, ScalarType},
};

/// Bits of a shared address below the rank of its CTA.
const RANK_SHIFT: u32 = crate::exec::address::RANK_SHIFT;

impl Lowerer<'_> {
    /// Lowers a move or conversion; false if the instruction is none.
    pub(super) fn data(&mut self, instruction: &Instruction) -> Result<bool> {
        let mods = Modifiers::new(instruction);
        let line = instruction.line;
        match instruction.opcode.as_str() {
            "mov" => {
                let ty = mods.ty().ok_or_else(|| self.unsupported(instruction, "type"))?;
                self.move_values(instruction, ty)?;
            }
            "cvt" if mods.first() == Some("pack") => self.pack_integers(instruction, &mods)?,
            "cvt" => self.convert(instruction, &mods)?,
            "cvta" => {
                let window = match mods.all() {
                    all if all.iter().any(|name| name.starts_with("shared")) => SHARED_WINDOW,
                    all if all.contains(&"local") => LOCAL_WINDOW,
                    all if all.iter().any(|name| name.starts_with("param")) => self.param_window(instruction)?,
                    _ => 0,
                };
                let window = if mods.has("to") { window.wrapping_neg() } else { window };
                let value = self.source(instruction, 1, ScalarType::B64)?;
                if let Some(destination) = self.destination(instruction, 0)? {
                    self.compute(line, destination, vec![value], lanes::one(move |a| a.wrapping_add(window)));
                }
            }
            "isspacep" => {
                let base = match mods.first() {
                    Some("shared" | "shared::cta" | "shared::cluster") => Some(SHARED_WINDOW),
                    Some("local") => Some(LOCAL_WINDOW),
                    Some("param" | "param::entry") => Some(PARAM_WINDOW),
                    Some("global" | "const") => None,
                    _ => return Err(self.unsupported(instruction, "space")),
                };
                let own = mods.first() != Some("shared::cluster") && base == Some(SHARED_WINDOW);
                let within = |a: u64, base: u64| a.wrapping_sub(base) < WINDOW_BYTES;
                let value = self.source(instruction, 1, ScalarType::B64)?;
                let test = lanes::two(move |a, rank| {
                    u64::from(match base {
                        Some(base) => within(a, base) && (!own || (a - base) >> RANK_SHIFT == rank),
                        None => ![SHARED_WINDOW, LOCAL_WINDOW].into_iter().any(|base| within(a, base)),
                    })
                });
                if let Some(destination) = self.destination(instruction, 0)? {
                    self.compute(line, destination, vec![value, Source::Special(Special::CtaRank)], test);
                }
            }
            "mapa" => {
                let shared = mods.has("shared::cluster");
                let window = if shared { 0 } else { SHARED_WINDOW };
                let address = self.source(instruction, 1, ScalarType::B64)?;
                let rank = self.source(instruction, 2, ScalarType::U32)?;
                let map = lanes::two(move |a, rank| {
                    let offset = a.wrapping_sub(window) & ((1 << RANK_SHIFT) - 1);
                    window + (offset | rank << RANK_SHIFT)
                });
                if let Some(destination) = self.destination(instruction, 0)? {
                    self.compute(line, destination, vec![address, rank], map);
                }
            }
            "getctarank" => {
                let window = if mods.has("shared::cluster") { 0 } else { SHARED_WINDOW };
                let rank = lanes::one(move |a| a.wrapping_sub(window) >> RANK_SHIFT);
                self.elementwise(instruction, ScalarType::B64, 1, rank)?;
            }
            // A cache policy is a number that nothing here looks at.
            "createpolicy" => {
                if let Some(destination) = self.destination(instruction, 0)? {
                    self.compute(line, destination, vec![Source::Immediate(0)], lanes::one(|a| a));
                }
            }
            "activemask" => return Ok(false),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The generic address of a parameter that is in local memory is in the local window.
    fn param_window(&self, instruction: &Instruction) -> Result<u64> {
        Ok(match self.operand(instruction, 1)? {
            Operand::Name(name) if matches!(self.find(name), Some(Entry::Local(_))) => LOCAL_WINDOW,
            _ => PARAM_WINDOW,
        })
    }

    fn move_values(&mut self, instruction: &Instruction, ty: ScalarType) -> Result<()> {
        let line = instruction.line;
        let to = self.operand(instruction, 0)?;
        let from = self.operand(instruction, 1)?;
        match (to, from) {
            (Operand::Vector(parts), Operand::Vector(values)) if parts.len() == values.len() => {
                let values =
                    values.iter().map(|value| self.lower_source(line, value, ty)).collect::<Result<Vec<_>>>()?;
                for (part, value) in parts.iter().zip(values) {
                    if let Some(destination) = self.lower_destination(line, part)? {
                        self.compute(line, destination, vec![value], lanes::one(|a| a));
                    }
                }
            }
            (Operand::Vector(parts), _) if ty.bits() == 128 => {
                let values = self.wide_sources(instruction, 1, ty)?;
                if parts.len() != values.len() {
                    return Err(self.unsupported(instruction, "128 bits in more than two parts"));
                }
                for (part, value) in parts.iter().zip(values) {
                    if let Some(destination) = self.lower_destination(line, part)? {
                        self.compute(line, destination, vec![value], lanes::one(|a| a));
                    }
                }
            }
            (Operand::Vector(parts), _) => {
                let value = self.source(instruction, 1, ty)?;
                let width = ty.bits() / parts.len().max(1) as u32;
                for (index, part) in parts.iter().enumerate() {
                    let shift = width * index as u32;
                    if let Some(destination) = self.lower_destination(line, part)? {
                        self.compute(line, destination, vec![value], lanes::one(move |a| a >> shift));
                    }
                }
            }
            (_, Operand::Vector(values)) => {
                let values = values.iter().map(|value| {
                    let part = self.register_type(value).unwrap_or(ty);
                    self.lower_source(line, value, part)
                });
                let values = values.collect::<Result<Vec<_>>>()?;
                if ty.bits() == 128 {
                    let halves = self.wide_destination(instruction, to, ty)?;
                    if values.len() != halves.len() {
                        return Err(self.unsupported(instruction, "128 bits in more than two parts"));
                    }
                    for (half, value) in halves.into_iter().zip(values) {
                        if let Some(destination) = half {
                            self.compute(line, destination, vec![value], lanes::one(|a| a));
                        }
                    }
                    return Ok(());
                }
                let (count, width) = (values.len(), ty.bits() / values.len().max(1) as u32);
                if count > 4 {
                    return Err(self.unsupported(instruction, "more than four parts"));
                }
                let low = u64::MAX >> (64 - width);
                let pack = lanes::four(move |parts| {
                    parts.into_iter().take(count).rev().fold(0, |out, part| out << (width % 64) | (part & low))
                });
                if let Some(destination) = self.lower_destination(line, to)? {
                    self.compute(line, destination, values, pack);
                }
            }
            _ => {
                let values = self.wide_sources(instruction, 1, ty)?;
                for (destination, value) in self.wide_destination(instruction, to, ty)?.into_iter().zip(values) {
                    if let Some(destination) = destination {
                        self.compute(line, destination, vec![value], lanes::one(|a| a));
                    }
                }
            }
        }
        Ok(())
    }

    fn convert(&mut self, instruction: &Instruction, mods: &Modifiers<'_>) -> Result<()> {
        let conversion =
            Conversion::parse(mods.all()).ok_or_else(|| self.unsupported(instruction, "conversion"))?;
        let from = mods.ty().ok_or_else(|| self.unsupported(instruction, "type"))?;
        let count = conversion.operands();
        let sources = match self.operand(instruction, 1)? {
            Operand::Vector(_) => {
                let mut sources = self.vector_sources(instruction, 1, from)?;
                if instruction.operands.len() > 2 {
                    sources.push(self.source(instruction, 2, ScalarType::B32)?);
                }
                sources
            }
            _ => (1..=count)
                .map(|index| {
                    let random = count == 3 && index == 3;
                    self.source(instruction, index, if random { ScalarType::B32 } else { from })
                })
                .collect::<Result<Vec<_>>>()?,
        };
        if sources.len() != count {
            return Err(self.unsupported(instruction, "number of operands"));
        }
        if let Some(destination) = self.destination(instruction, 0)? {
            let convert = lanes::four(move |operands| conversion.apply(&operands[..count]));
            self.compute(instruction.line, destination, sources, convert);
        }
        Ok(())
    }

    /// `cvt.pack.sat`: two s32 into a narrow pair, in front of which an optional third operand is moved.
    fn pack_integers(&mut self, instruction: &Instruction, mods: &Modifiers<'_>) -> Result<()> {
        let Some(&to) = mods.types().first() else { return Err(self.unsupported(instruction, "types")) };
        let (bits, signed) = match mods.all().get(2) {
            Some(&("u2" | "s2")) => (2, mods.has("s2")),
            Some(&("u4" | "s4")) => (4, mods.has("s4")),
            _ => (to.bits(), to.is_signed()),
        };
        let (low, high) =
            if signed { (-(1i64 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
        let count = instruction.operands.len() - 1;
        let pack = lanes::three(move |a, b, c| {
            let clamp = |value: u64| i64::from(value as u32 as i32).clamp(low, high) as u64 & ((1 << bits) - 1);
            let above = if count == 3 { c << (2 * bits) } else { 0 };
            above | clamp(a) << bits | clamp(b)
        });
        let sources = (1..=count)
            .map(|index| self.source(instruction, index, ScalarType::B32))
            .collect::<Result<Vec<_>>>()?;
        if let Some(destination) = self.destination(instruction, 0)? {
            self.compute(instruction.line, Destination { ..destination }, sources, pack);
        }
        Ok(())
    }
}
