//! `wgmma.mma_async`: a warpgroup's multiplication, B (and A, or not) in shared memory, D in registers.
//!
//! Fragments (PTX ISA 9.7.15.5.1): warp w of the group has rows 16w … 16w + 15. With g = lane / 4 and t = lane mod 4, element i of a
//! lane of D is row 16w + g + 8·(i / 2 mod 2), column 8·(i / 4) + 2t + i mod 2; A in registers is laid out as for `mma.sync` of a 16-row tile.

use super::accumulate::multiply_accumulate;
use super::element::{Accumulator, Decoder, Element, Packing};
use super::shared_matrix::{Major, SharedMatrix, shared_decoder, transposed};
use super::{LaneRegister, SharedRead};
use crate::tensor_fault::TensorFault;

/// Rows of every `wgmma`.
const M: usize = 64;

/// A decoded `wgmma.mma_async` instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wgmma {
    n: usize,
    k: usize,
    a: Element,
    b: Element,
    d: Accumulator,
    saturate: bool,
}

/// Where A comes from.
#[derive(Clone, Copy, Debug)]
pub enum OperandA<'a> {
    /// A matrix descriptor.
    Shared(u64),
    /// Four registers of each of the group's four warps.
    Registers(&'a [[LaneRegister; 4]; 4]),
}

/// The other operands of a `wgmma`.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// A.
    pub a: OperandA<'a>,
    /// B's matrix descriptor.
    pub b: u64,
    /// `scale-d`: whether D is added; if not, its old value is not read.
    pub scale_d: bool,
    /// `imm-scale-a` and `imm-scale-b`: whether A and B are negated.
    pub negate: [bool; 2],
    /// `imm-trans-a` and `imm-trans-b`: whether A and B are M- and N-major in shared memory.
    pub transpose: [bool; 2],
}

impl Wgmma {
    /// Decodes the modifiers of a `wgmma.mma_async` (all that follows it: `["sync", "aligned", "m64n128k16", "f32", "bf16", "bf16"]`). `None` if
    /// PTX has no such form, or for sparse and one-bit forms.
    pub fn parse(modifiers: &[&str]) -> Option<Self> {
        let (mut shape, mut saturate, mut types) = (None, false, Vec::new());
        for &modifier in modifiers {
            match modifier {
                "sync" | "aligned" => {}
                "satfinite" => saturate = true,
                _ if modifier.starts_with("m64n") => shape = modifier.strip_prefix("m64n")?.split_once('k'),
                name => types.push(name),
            }
        }
        let &[d, a, b] = types.as_slice() else { return None };
        let (n, k) = shape?;
        let (n, k) = (n.parse().ok()?, k.parse().ok()?);
        let (d, a, b) = (Accumulator::from_name(d)?, Element::from_name(a)?, Element::from_name(b)?);
        let float = d != Accumulator::S32;
        let types_and_k = match (a, b) {
            (Element::F16, Element::F16) => float && k == 16,
            (Element::Bf16, Element::Bf16) => d == Accumulator::F32 && k == 16,
            (Element::Tf32, Element::Tf32) => d == Accumulator::F32 && k == 8,
            (Element::E4m3 | Element::E5m2, Element::E4m3 | Element::E5m2) => float && k == 32,
            (Element::S8 | Element::U8, Element::S8 | Element::U8) => !float && k == 32,
            _ => false,
        };
        // N in steps of 8; integers beyond 32 only in steps of 16, with 8 and 24 below.
        let n_fits = (8..=256).contains(&n) && n % 8 == 0 && (float || n % 16 == 0 || n == 8 || n == 24);
        (types_and_k && n_fits && (!saturate || !float)).then_some(Self { n, k, a, b, d, saturate })
    }

    /// Registers of D in each lane.
    pub fn d_registers(&self) -> usize {
        if self.d == Accumulator::F16 { self.n / 4 } else { self.n / 2 }
    }

    /// Whether the instruction has transpose operands: 16-bit elements alone may be M- or N-major.
    pub fn can_transpose(&self) -> bool {
        self.a.bits() == 16
    }

    /// Computes D in place: for each warp of the group, [`Self::d_registers`] registers.
    ///
    /// # Errors
    /// A descriptor is malformed, an operand lies outside shared memory or on bytes that nothing wrote, a transposition that the
    /// type does not allow, or too few registers for D.
    pub fn execute(
        &self,
        operands: &Operands<'_>,
        shared: &dyn SharedRead,
        d: [&mut [LaneRegister]; 4],
    ) -> Result<(), TensorFault> {
        if operands.transpose.contains(&true) && !self.can_transpose() {
            return Err(TensorFault::BadDescriptor(format!("wgmma cannot transpose {:?} operands", self.a)));
        }
        let [major_a, major_b] =
            operands.transpose.map(|transpose| if transpose { Major::MatrixRow } else { Major::K });
        let mut a = match operands.a {
            OperandA::Shared(descriptor) => {
                let matrix = SharedMatrix::from_wgmma(descriptor)?;
                matrix.read(shared, &shared_decoder(self.a, false), major_a, M, self.k)?
            }
            OperandA::Registers(registers) => self.a_from_registers(registers),
        };
        let matrix = SharedMatrix::from_wgmma(operands.b)?;
        let b = matrix.read(shared, &shared_decoder(self.b, false), major_b, self.n, self.k)?;
        if operands.negate[0] != operands.negate[1] {
            a.iter_mut().for_each(|value| *value = -*value);
        }
        let mut products = vec![0.0; M * self.n];
        multiply_accumulate(&a, &transposed(&b, self.n, self.k), &mut products, self.k, self.n);
        for (warp, registers) in d.into_iter().enumerate() {
            if registers.len() < self.d_registers() {
                let (given, needed) = (registers.len(), self.d_registers());
                return Err(TensorFault::BadDescriptor(format!(
                    "wgmma has {given} registers for D and needs {needed}"
                )));
            }
            self.accumulate(&products[warp * 16 * self.n..], operands.scale_d, registers);
        }
        Ok(())
    }

    /// Adds a warp's 16 rows of products to its registers.
    fn accumulate(&self, products: &[f64], scale_d: bool, registers: &mut [LaneRegister]) {
        let packed = self.d == Accumulator::F16;
        for i in 0..self.n / 2 {
            let (index, shift) = if packed { (i / 2, 16 * (i % 2)) } else { (i, 0) };
            for (lane, word) in registers[index].iter_mut().enumerate() {
                let (row, column) = (lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + lane % 4 * 2 + i % 2);
                let old = if scale_d { self.d.decode(*word >> shift) } else { 0.0 };
                let new = self.d.encode(products[row * self.n + column] + old, self.saturate);
                *word = if packed { (*word & !(0xffff << shift)) | new << shift } else { new };
            }
        }
    }

    fn a_from_registers(&self, warps: &[[LaneRegister; 4]; 4]) -> Vec<f64> {
        let decoder = Decoder::new(self.a, Packing::Dense);
        let per_register = 32 / self.a.bits() as usize;
        let mut values = vec![0.0; M * self.k];
        for (warp, registers) in warps.iter().enumerate() {
            for (index, register) in registers.iter().enumerate() {
                for (lane, &word) in register.iter().enumerate() {
                    let row = warp * 16 + lane / 4 + 8 * (index % 2);
                    let column = lane % 4 * per_register + index / 2 * 4 * per_register;
                    let values = &mut values[row * self.k + column..][..per_register];
                    decoder.chunk(&u128::from(word).to_le_bytes(), values);
                }
            }
        }
        values
    }
}
