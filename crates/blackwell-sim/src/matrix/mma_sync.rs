//! `mma.sync`: a warp's matrix multiplication on register fragments.
//!
//! Fragments (PTX ISA 9.7.14.5, one layout for all types). With g = lane / 4, t = lane mod 4 and p elements in a 32-bit register:
//! A's register r holds row g + 8·(r mod 2), columns p·t + 4p·(r / 2) and the p − 1 after it; B's register r holds column g, rows
//! p·t + 4p·r and the p − 1 after it; C and D hold rows g and g + 8, columns 2t and 2t + 1.
//!
//! Block scales (9.7.14.3): a quad's lanes hold the scales of A's rows g and g + 8 and of B's column g. For A, thread selector 0
//! takes them from the quad's lanes 0 (row g) and 1 (row g + 8), selector 1 from lanes 2 and 3. For B, the selector is the lane of the quad. The
//! byte selector names the first byte of the scales within the register.

use super::LaneRegister;
use super::accumulate::multiply_accumulate;
use super::element::{Accumulator, Decoder, Element, Packing, ScaleFormat};
use crate::tensor_fault::TensorFault;

/// A decoded `mma.sync` instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmaSync {
    m: usize,
    n: usize,
    k: usize,
    a: Element,
    b: Element,
    accumulator: Accumulator,
    saturate: bool,
    /// Elements narrower than a byte lie in bytes (kinds `f8f6f4`, `mxf8f6f4`).
    packing: Packing,
    scales: Option<BlockScales>,
}

/// The scale of a block-scaled `mma.sync`: its format and how many each row of A and column of B has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockScales {
    format: ScaleFormat,
    count: usize,
}

/// A scale operand: data and selectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleOperand {
    /// The register that holds up to four scales a lane.
    pub data: LaneRegister,
    /// First byte of the scales in `data`.
    pub byte: u32,
    /// Which lanes of each quad hold the scales.
    pub thread: u32,
}

/// What an `mma.sync` reads. Registers beyond those that the shape has are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operands {
    /// A's registers.
    pub a: [LaneRegister; 4],
    /// B's registers.
    pub b: [LaneRegister; 2],
    /// C's registers.
    pub c: [LaneRegister; 4],
    /// The scales of A and B, for a block-scaled instruction.
    pub scales: Option<[ScaleOperand; 2]>,
}

/// How many registers each operand of an instruction has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterCounts {
    /// Registers of A.
    pub a: usize,
    /// Registers of B.
    pub b: usize,
    /// Registers of C and of D.
    pub c: usize,
}

impl MmaSync {
    /// Decodes the modifiers of an `mma` (all that follows the opcode, in any order that PTX allows). `None` if the combination is not
    /// one of PTX's, or not modelled (f64, int4, b1, m8n8k4 and sparse forms).
    pub fn parse(modifiers: &[&str]) -> Option<Self> {
        let (mut shape, mut kind, mut block_scale, mut count, mut saturate) = (None, None, false, None, false);
        let mut types = Vec::new();
        for &modifier in modifiers {
            match modifier {
                "sync" | "aligned" | "row" | "col" => {}
                "satfinite" => saturate = true,
                "block_scale" => block_scale = true,
                _ if modifier.starts_with("kind::") => kind = modifier.strip_prefix("kind::"),
                _ if modifier.starts_with("scale_vec::") => {
                    count = Some(modifier.strip_prefix("scale_vec::")?.strip_suffix('X')?.parse().ok()?);
                }
                _ if modifier.starts_with('m') => shape = Some(parse_shape(modifier)?),
                name => types.push(name),
            }
        }
        let (m, n, k) = shape?;
        let (&[d, a, b, c], scale) = types.split_first_chunk::<4>()?;
        let (a, b) = (Element::from_name(a)?, Element::from_name(b)?);
        let accumulator = Accumulator::from_name(d)?;
        if Accumulator::from_name(c)? != accumulator {
            return None;
        }
        let scales = match (block_scale, scale) {
            (false, []) => None,
            (true, [format]) => {
                let default = match kind? {
                    "mxf8f6f4" => Some(1),
                    "mxf4" => Some(2),
                    _ => None,
                };
                Some(BlockScales { format: ScaleFormat::from_name(format)?, count: count.or(default)? })
            }
            _ => return None,
        };
        let packing = if matches!(kind, Some("f8f6f4" | "mxf8f6f4")) { Packing::Bytes } else { Packing::Dense };
        let mma = Self { m, n, k, a, b, accumulator, saturate, packing, scales };
        mma.is_valid(kind).then_some(mma)
    }

    /// The combinations of PTX ISA 9.7.14.5 and, for block scaling, table 36 of 9.7.14.3.
    fn is_valid(&self, kind: Option<&str>) -> bool {
        let float = matches!(self.accumulator, Accumulator::F16 | Accumulator::F32);
        let f32 = self.accumulator == Accumulator::F32;
        let scales = self.scales.map(|scales| (scales.count, scales.format));
        let m16n8 = (self.m, self.n) == (16, 8);
        if self.saturate && self.accumulator != Accumulator::S32 {
            return false;
        }
        match (kind, self.a, self.b) {
            (None, Element::F16, Element::F16) => m16n8 && matches!(self.k, 8 | 16) && float && scales.is_none(),
            (None, Element::Bf16, Element::Bf16) => m16n8 && matches!(self.k, 8 | 16) && f32 && scales.is_none(),
            (None, Element::Tf32, Element::Tf32) => m16n8 && matches!(self.k, 4 | 8) && f32 && scales.is_none(),
            (None, Element::E4m3 | Element::E5m2, Element::E4m3 | Element::E5m2) => {
                m16n8 && matches!(self.k, 16 | 32) && float && scales.is_none()
            }
            (None, Element::S8 | Element::U8, Element::S8 | Element::U8) => {
                let shape = matches!((self.m, self.n, self.k), (8, 8, 16) | (16, 8, 16) | (16, 8, 32));
                shape && self.accumulator == Accumulator::S32 && scales.is_none()
            }
            (Some("f8f6f4"), a, b) => {
                a.is_narrow_float() && b.is_narrow_float() && m16n8 && self.k == 32 && float && scales.is_none()
            }
            (Some("mxf8f6f4"), a, b) => {
                let elements = a.is_narrow_float() && b.is_narrow_float();
                elements && m16n8 && self.k == 32 && f32 && scales == Some((1, ScaleFormat::Ue8m0))
            }
            (Some("mxf4"), Element::E2m1, Element::E2m1) => {
                m16n8 && self.k == 64 && f32 && scales == Some((2, ScaleFormat::Ue8m0))
            }
            (Some("mxf4nvf4"), Element::E2m1, Element::E2m1) => {
                let scales = matches!(scales, Some((2, ScaleFormat::Ue8m0) | (4, _)));
                m16n8 && self.k == 64 && f32 && scales
            }
            _ => false,
        }
    }

    /// How many registers each operand has.
    pub fn registers(&self) -> RegisterCounts {
        let per_register = self.per_register();
        let c = self.m * self.n / 32;
        RegisterCounts {
            a: self.m * self.k / (32 * per_register),
            b: self.n * self.k / (32 * per_register),
            c: if self.accumulator == Accumulator::F16 { c / 2 } else { c },
        }
    }

    /// Whether the instruction has scale operands.
    pub fn is_block_scaled(&self) -> bool {
        self.scales.is_some()
    }

    fn per_register(&self) -> usize {
        let stride = if self.packing == Packing::Bytes { 8 } else { self.a.bits() };
        32 / stride as usize
    }

    /// D's registers (as many as [`Self::registers`] says; the rest are zero).
    ///
    /// # Errors
    /// A scale operand is missing or superfluous, or a selector has a value that PTX leaves undefined.
    pub fn execute(&self, operands: &Operands) -> Result<[LaneRegister; 4], TensorFault> {
        let mut a = self.a_values(&operands.a);
        let mut b = self.b_values(&operands.b);
        match (self.scales, &operands.scales) {
            (None, None) => {}
            (Some(scales), Some([scale_a, scale_b])) => {
                self.apply_scales(scales, scale_a, scale_b, &mut a, &mut b)?
            }
            (scales, _) => {
                let (takes, given) =
                    if scales.is_some() { ("takes", "none are given") } else { ("takes no", "some are given") };
                return Err(TensorFault::BadDescriptor(format!("mma.sync {takes} scale operands, {given}")));
            }
        }
        let mut products = vec![0.0; self.m * self.n];
        multiply_accumulate(&a, &b, &mut products, self.k, self.n);
        let mut d = [[0; 32]; 4];
        for lane in 0..32 {
            for value in 0..self.m * self.n / 32 {
                let (row, column) = accumulator_position(lane, value);
                let sum = products[row * self.n + column] + self.accumulator_value(&operands.c, lane, value);
                self.put_accumulator(&mut d, lane, value, self.accumulator.encode(sum, self.saturate));
            }
        }
        Ok(d)
    }

    /// A as m × k values.
    fn a_values(&self, registers: &[LaneRegister; 4]) -> Vec<f64> {
        let decoder = Decoder::new(self.a, self.packing);
        let per_register = self.per_register();
        let mut values = vec![0.0; self.m * self.k];
        let halves = self.m / 8;
        for (index, register) in registers.iter().take(self.registers().a).enumerate() {
            for (lane, &word) in register.iter().enumerate() {
                let row = lane / 4 + 8 * (index % halves);
                let column = lane % 4 * per_register + index / halves * 4 * per_register;
                decode_word(&decoder, word, &mut values[row * self.k + column..][..per_register]);
            }
        }
        values
    }

    /// B as k × n values.
    fn b_values(&self, registers: &[LaneRegister; 2]) -> Vec<f64> {
        let decoder = Decoder::new(self.b, self.packing);
        let per_register = self.per_register();
        let mut values = vec![0.0; self.k * self.n];
        for (index, register) in registers.iter().take(self.registers().b).enumerate() {
            for (lane, &word) in register.iter().enumerate() {
                let mut elements = [0.0; 8];
                decode_word(&decoder, word, &mut elements[..per_register]);
                let row = lane % 4 * per_register + index * 4 * per_register;
                for (offset, &element) in elements[..per_register].iter().enumerate() {
                    values[(row + offset) * self.n + lane / 4] = element;
                }
            }
        }
        values
    }

    fn apply_scales(
        &self,
        scales: BlockScales,
        scale_a: &ScaleOperand,
        scale_b: &ScaleOperand,
        a: &mut [f64],
        b: &mut [f64],
    ) -> Result<(), TensorFault> {
        check_selectors("A", scale_a, scales.count, 2)?;
        check_selectors("B", scale_b, scales.count, 4)?;
        let block = self.k / scales.count;
        let scale_of = |operand: &ScaleOperand, lane: usize, index: usize| {
            let byte = operand.data[lane].to_le_bytes()[operand.byte as usize + index];
            scales.format.decode(byte)
        };
        for (row, values) in a.chunks_exact_mut(self.k).enumerate() {
            let lane = row % 8 * 4 + 2 * scale_a.thread as usize + row / 8;
            for (index, block) in values.chunks_exact_mut(block).enumerate() {
                let scale = scale_of(scale_a, lane, index);
                block.iter_mut().for_each(|value| *value *= scale);
            }
        }
        for (row, values) in b.chunks_exact_mut(self.n).enumerate() {
            for (column, value) in values.iter_mut().enumerate() {
                *value *= scale_of(scale_b, column * 4 + scale_b.thread as usize, row / block);
            }
        }
        Ok(())
    }

    fn accumulator_value(&self, registers: &[LaneRegister; 4], lane: usize, value: usize) -> f64 {
        let word = match self.accumulator {
            Accumulator::F16 => registers[value / 2][lane] >> (16 * (value % 2)),
            _ => registers[value][lane],
        };
        self.accumulator.decode(word)
    }

    fn put_accumulator(&self, registers: &mut [LaneRegister; 4], lane: usize, value: usize, word: u32) {
        match self.accumulator {
            Accumulator::F16 => registers[value / 2][lane] |= word << (16 * (value % 2)),
            _ => registers[value][lane] = word,
        }
    }
}

/// Row and column of a lane's `value`-th accumulator element.
fn accumulator_position(lane: usize, value: usize) -> (usize, usize) {
    (lane / 4 + 8 * (value / 2), lane % 4 * 2 + value % 2)
}

fn decode_word(decoder: &Decoder, word: u32, values: &mut [f64]) {
    decoder.chunk(&u128::from(word).to_le_bytes(), values);
}

/// Selectors that PTX defines: the scales lie within the register, aligned to their number.
fn check_selectors(matrix: &str, operand: &ScaleOperand, count: usize, threads: u32) -> Result<(), TensorFault> {
    let byte = operand.byte as usize;
    if !byte.is_multiple_of(count) || byte + count > 4 {
        return Err(TensorFault::BadDescriptor(format!(
            "byte selector {byte} of the scales of {matrix}: with {count} scales it must be a multiple of {count} below 4"
        )));
    }
    if operand.thread >= threads {
        return Err(TensorFault::BadDescriptor(format!(
            "thread selector {} of the scales of {matrix}: it must be below {threads}",
            operand.thread
        )));
    }
    Ok(())
}

/// `m16n8k64` as numbers.
fn parse_shape(shape: &str) -> Option<(usize, usize, usize)> {
    let (m, rest) = shape.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some((m.parse().ok()?, n.parse().ok()?, k.parse().ok()?))
}
