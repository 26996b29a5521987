//! `tcgen05.mma`: the fifth-generation tensor core, D in tensor memory, A in tensor or shared memory, B in shared memory.
//!
//! Where D lies (PTX ISA 9.7.16.10.5; CuTe's tensor memory fragments for SM100), row r and column c of a CTA's part of it:
//!
//! | M | CTAs | lane | column |
//! | --- | --- | --- | --- |
//! | 128 (256 with two CTAs) | 1 (2) | r | c |
//! | 64 | 1 | r mod 16 + 32·(r / 16), 16 further if the address is | c |
//! | 128 | 2 | r + 64·(c / (N/2)) | c mod N/2 |
//! | 64, 32 with `.ws` | 1 | r + M·(c / (N·M/128)) | c mod (N·M/128) |
//!
//! A in tensor memory lies in the lanes that D's first columns have, its elements packed along the columns.
//!
//! Block scales (9.7.16.10.7): scale s of row or column i is byte (id + s) mod 4 of lane i mod 32, column i / 32, in each of the four 32-lane
//! partitions; from byte 4 on, so many columns further as the scales of a multiple of 128 rows take (CUTLASS's scale-factor fragments
//! imply it for K = 96; the PTX ISA shows it in figures only). With M = 128 over two CTAs, the partitions of lanes 64–127 hold the scales of B's second half.

use super::SharedRead;
use super::accumulate::multiply_accumulate;
use super::element::{Decoder, Packing, ScaleFormat};
use super::instruction_descriptor::{InstructionDescriptor, Kind};
use super::shared_matrix::{Major, SharedMatrix, shared_decoder, transposed};
use super::tensor_memory::{Cell, TensorMemory};
use crate::tensor_fault::TensorFault;

/// A decoded `tcgen05.mma` instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcgen05Mma {
    kind: Kind,
    ctas: usize,
    /// Elements along k that share a scale.
    block: Option<usize>,
    weight_stationary: bool,
}

/// Where A comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandA {
    /// A matrix descriptor, for the shared memory of each CTA.
    Shared(u64),
    /// An address in the tensor memory of each CTA.
    Tensor(u32),
}

/// The operands of a `tcgen05.mma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operands {
    /// D's address.
    pub d: u32,
    /// A.
    pub a: OperandA,
    /// B's matrix descriptor.
    pub b: u64,
    /// The instruction descriptor.
    pub instruction: u32,
    /// The addresses of the scales of A and B, of a block-scaled instruction.
    pub scales: Option<[u32; 2]>,
    /// `enable-input-d`: whether D is added; if not, its old value is not read.
    pub enable_input_d: bool,
    /// `scale-input-d`: D's old value is multiplied by 2 to the minus this.
    pub scale_input_d: u32,
    /// Lanes of D that stay as they are: one bit a lane, four words a CTA.
    pub disable_output_lane: [u32; 8],
}

/// A CTA that takes part.
pub struct Cta<'a> {
    /// Its shared memory.
    pub shared: &'a dyn SharedRead,
    /// Its tensor memory.
    pub memory: &'a mut TensorMemory,
}

/// How D's rows and columns lie in a CTA's lanes and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DataPath {
    Full,
    /// 64 rows in the first or second half of each partition.
    Half,
    /// The columns in so many parts, stacked in lanes.
    Stacked(usize),
}

impl DataPath {
    fn lane(self, row: usize) -> usize {
        match self {
            Self::Full | Self::Stacked(_) => row,
            Self::Half => row % 16 + row / 16 * 32,
        }
    }

    fn parts(self) -> usize {
        if let Self::Stacked(parts) = self { parts } else { 1 }
    }
}

impl Tcgen05Mma {
    /// Decodes the modifiers of a `tcgen05.mma` (all that follows it: `["cta_group::1", "kind::mxf4nvf4", "block_scale", "block16"]`, `ws` first for
    /// `tcgen05.mma.ws`). `None` if PTX has no such form, or for `.sp` and `.ashift`, which are not modelled.
    pub fn parse(modifiers: &[&str]) -> Option<Self> {
        let (mut kind, mut ctas, mut block, mut block_scale, mut weight_stationary) =
            (None, None, None, false, false);
        for &modifier in modifiers {
            match modifier {
                "ws" => weight_stationary = true,
                "cta_group::1" => ctas = Some(1),
                "cta_group::2" => ctas = Some(2),
                "block_scale" => block_scale = true,
                "block16" | "scale_vec::4X" => block = Some(16),
                "block32" | "scale_vec::1X" | "scale_vec::2X" => block = Some(32),
                _ if modifier.starts_with("collector::") => {}
                _ => kind = Some(Kind::from_modifier(modifier)?),
            }
        }
        let kind = kind?;
        let block = match (kind, block_scale) {
            (Kind::Mxf8f6f4 | Kind::Mxf4, true) => Some(block.unwrap_or(32)),
            (Kind::Mxf4nvf4, true) => Some(block?),
            (_, false) if !kind.is_block_scaled() && block.is_none() => None,
            _ => return None,
        };
        let ctas = ctas?;
        let possible =
            (block != Some(16) || kind == Kind::Mxf4nvf4) && !(weight_stationary && (ctas == 2 || block.is_some()));
        possible.then_some(Self { kind, ctas, block, weight_stationary })
    }

    /// How many CTAs take part: 1, or 2 with `.cta_group::2`.
    pub fn ctas(&self) -> usize {
        self.ctas
    }

    /// Computes D in the tensor memory of `ctas`: the issuing CTA, or the pair, the one of even rank first.
    ///
    /// # Errors
    /// A descriptor is malformed or does not fit the instruction, an operand lies outside its memory or on cells or bytes that nothing
    /// wrote, scales differ between partitions, or the number of CTAs or of scale addresses is wrong.
    pub fn execute(&self, operands: &Operands, ctas: &mut [Cta<'_>]) -> Result<(), TensorFault> {
        let instruction = InstructionDescriptor::decode(self.kind, operands.instruction)?;
        let path = self.check(&instruction, operands, ctas.len())?;
        let n = instruction.n;
        let b = self.b_values(&instruction, operands, ctas)?;
        for (index, cta) in ctas.iter_mut().enumerate() {
            let rows = instruction.m / self.ctas;
            let mut a = self.a_values(&instruction, operands, cta, path, rows)?;
            let mut b = b.clone();
            if let (Some(block), Some((format, ids)), Some(addresses)) =
                (self.block, instruction.scales, operands.scales)
            {
                let scales = |matrix, halves| Scales {
                    matrix,
                    block,
                    format,
                    k: instruction.k,
                    id: ids[matrix],
                    address: addresses[matrix],
                    halves,
                };
                scales(0, 1).apply(cta.memory, &mut a)?;
                scales(1, path.parts()).apply(cta.memory, &mut b)?;
            }
            let mut products = vec![0.0; rows * n];
            multiply_accumulate(&a, &transposed(&b, n, instruction.k), &mut products, instruction.k, n);
            let disabled = operands.disable_output_lane.get(4 * index..4 * index + 4).unwrap_or(&[]);
            accumulate(&instruction, operands, path, disabled, &products, cta.memory)?;
        }
        Ok(())
    }

    /// Shapes (PTX ISA 9.7.16.2.1) and operands that fit each other.
    fn check(
        &self,
        instruction: &InstructionDescriptor,
        operands: &Operands,
        ctas: usize,
    ) -> Result<DataPath, TensorFault> {
        let bad = |what: String| Err(TensorFault::BadDescriptor(format!("tcgen05.mma {:?}: {what}", self.kind)));
        let InstructionDescriptor { m, n, k, .. } = *instruction;
        if ctas != self.ctas {
            return bad(format!("{ctas} CTAs for an instruction of {}", self.ctas));
        }
        if operands.scales.is_some() != self.block.is_some() {
            return bad("scale addresses and .block_scale must come together".into());
        }
        let path = match (self.weight_stationary, self.ctas, m) {
            (false, 1, 128) | (false, 2, 256) | (true, 1, 128) => DataPath::Full,
            (false, 1, 64) if self.block.is_none() => DataPath::Half,
            (false, 2, 128) | (true, 1, 64) => DataPath::Stacked(2),
            (true, 1, 32) => DataPath::Stacked(4),
            _ => return bad(format!("M = {m} does not exist with {} CTAs", self.ctas)),
        };
        let n_fits = match self.weight_stationary {
            true => matches!(n, 64 | 128 | 256),
            false => (8 * self.ctas..=256).contains(&n) && n.is_multiple_of(8 * self.ctas),
        };
        if !n_fits {
            return bad(format!("N = {n} does not exist with M = {m} and {} CTAs", self.ctas));
        }
        if let (Some(block), Some((format, ids))) = (self.block, instruction.scales) {
            let count = k / block;
            if format == ScaleFormat::Ue4m3 && block != 16 {
                return bad("ue4m3 scales need blocks of 16".into());
            }
            let aligned = match count {
                1 | 3 => 1,
                2 | 6 => 2,
                _ => 4,
            };
            if let Some(id) = ids.into_iter().find(|id| id % aligned != 0) {
                return bad(format!(
                    "scale factor ID {id} with {count} scales a row: it must be a multiple of {aligned}"
                ));
            }
        }
        let base = Cell::from_address(operands.d);
        let lanes: &[usize] = if path == DataPath::Half { &[0, 16] } else { &[0] };
        if !lanes.contains(&base.lane) {
            return bad(format!(
                "D's address {:#010x} begins at lane {}; it may at {lanes:?}",
                operands.d, base.lane
            ));
        }
        if operands.scale_input_d > 15
            || (operands.scale_input_d > 0 && !matches!(self.kind, Kind::F16 | Kind::Tf32))
        {
            return bad(format!(
                "scale-input-d {}: it may be 0 to 15, for kinds f16 and tf32",
                operands.scale_input_d
            ));
        }
        Ok(path)
    }

    /// A's rows of one CTA, row-major.
    fn a_values(
        &self,
        instruction: &InstructionDescriptor,
        operands: &Operands,
        cta: &Cta<'_>,
        path: DataPath,
        rows: usize,
    ) -> Result<Vec<f64>, TensorFault> {
        let k = instruction.k;
        let mut values = match operands.a {
            OperandA::Shared(descriptor) => {
                let decoder = shared_decoder(instruction.a, self.kind.mixes_widths());
                read_shared(descriptor, cta.shared, &decoder, instruction, 0, rows)?
            }
            OperandA::Tensor(address) => {
                let packing = if self.kind.mixes_widths() { Packing::Bytes } else { Packing::Dense };
                let decoder = Decoder::new(instruction.a, packing);
                let base = Cell::from_address(address);
                let columns = k * decoder.stride_bits() as usize / 32;
                let mut values = vec![0.0; rows * k];
                for (row, values) in values.chunks_exact_mut(k).enumerate() {
                    let words = cta.memory.read(base.offset(path.lane(row), 0), columns)?;
                    for (words, values) in words.chunks(4).zip(values.chunks_mut(decoder.per_chunk())) {
                        let chunk = words.iter().rev().fold(0, |chunk, &word| chunk << 32 | u128::from(word));
                        decoder.chunk(&chunk.to_le_bytes(), values);
                    }
                }
                values
            }
        };
        if instruction.negate[0] {
            values.iter_mut().for_each(|value| *value = -*value);
        }
        Ok(values)
    }

    /// B's columns, each CTA's share after the other, as n × k.
    fn b_values(
        &self,
        instruction: &InstructionDescriptor,
        operands: &Operands,
        ctas: &[Cta<'_>],
    ) -> Result<Vec<f64>, TensorFault> {
        let decoder = shared_decoder(instruction.b, self.kind.mixes_widths());
        let mut values = Vec::with_capacity(instruction.n * instruction.k);
        for cta in ctas {
            let columns = instruction.n / self.ctas;
            values.extend(read_shared(operands.b, cta.shared, &decoder, instruction, 1, columns)?);
        }
        if instruction.negate[1] {
            values.iter_mut().for_each(|value| *value = -*value);
        }
        Ok(values)
    }
}

/// `rows` × k values of matrix A (`matrix` 0) or B (1) in shared memory.
fn read_shared(
    descriptor: u64,
    shared: &dyn SharedRead,
    decoder: &Decoder,
    instruction: &InstructionDescriptor,
    matrix: usize,
    rows: usize,
) -> Result<Vec<f64>, TensorFault> {
    let source = SharedMatrix::from_tcgen05(descriptor)?;
    let major = if instruction.transpose[matrix] { Major::MatrixRow } else { Major::K };
    let needs_atoms = major == Major::MatrixRow && instruction.a.bits() == 32;
    if source.has_atoms_of_32() != needs_atoms {
        return Err(TensorFault::BadDescriptor(format!(
            "shared memory descriptor {descriptor:#018x}: the 128-byte swizzle of 32-byte atoms is for transposed tf32 matrices, and they need it"
        )));
    }
    source.read(shared, decoder, major, rows, instruction.k)
}

/// The block scales of one matrix.
struct Scales {
    /// 0 for A, 1 for B.
    matrix: usize,
    block: usize,
    format: ScaleFormat,
    k: usize,
    /// First byte within the word.
    id: usize,
    address: u32,
    /// In how many parts the rows are spread over the partitions, one part in each half of the lanes.
    halves: usize,
}

impl Scales {
    /// Multiplies rows of k values by their scales.
    fn apply(&self, memory: &TensorMemory, values: &mut [f64]) -> Result<(), TensorFault> {
        let base = Cell::from_address(self.address);
        let name = ["A", "B"][self.matrix];
        if base.lane != 0 {
            return Err(TensorFault::BadDescriptor(format!(
                "the address {:#010x} of the scales of {name} begins at lane {}; it must be 0",
                self.address, base.lane
            )));
        }
        let rows = values.len() / self.k / self.halves;
        let columns_per_word = rows.next_multiple_of(128) / 32;
        let partitions = 4 / self.halves;
        for (index, values) in values.chunks_exact_mut(self.k).enumerate() {
            let (half, row) = (index / rows, index % rows);
            for (scale, values) in values.chunks_exact_mut(self.block).enumerate() {
                let (word, byte) = ((self.id + scale) / 4, (self.id + scale) % 4);
                let cell = base.offset(row % 32 + 64 * half, row / 32 + word * columns_per_word);
                let code = memory.read(cell, 1)?[0].to_le_bytes()[byte];
                for partition in 1..partitions {
                    let other = memory.read(cell.offset(32 * partition, 0), 1)?[0].to_le_bytes()[byte];
                    if other != code {
                        return Err(TensorFault::TensorMemory(format!(
                            "scale {scale} of row {index} of {name} is {code:#04x} in lane {} and {other:#04x} in lane {}, column {}: \
                             every partition of 32 lanes must hold the same scales",
                            cell.lane,
                            cell.lane + 32 * partition,
                            cell.column
                        )));
                    }
                }
                let factor = self.format.decode(code);
                values.iter_mut().for_each(|value| *value *= factor);
            }
        }
        Ok(())
    }
}

/// Adds a CTA's products to D.
fn accumulate(
    instruction: &InstructionDescriptor,
    operands: &Operands,
    path: DataPath,
    disabled: &[u32],
    products: &[f64],
    memory: &mut TensorMemory,
) -> Result<(), TensorFault> {
    let base = Cell::from_address(operands.d);
    let scale = 0.5f64.powi(operands.scale_input_d as i32);
    let columns = instruction.n / path.parts();
    let rows = products.len() / instruction.n;
    let mut words = vec![0; columns];
    for (row, products) in products.chunks_exact(instruction.n).enumerate() {
        for (part, products) in products.chunks_exact(columns).enumerate() {
            let cell = base.offset(path.lane(row) + part * rows, 0);
            if disabled.get(cell.lane / 32).is_some_and(|mask| mask >> (cell.lane % 32) & 1 == 1) {
                continue;
            }
            if operands.enable_input_d {
                words.copy_from_slice(memory.read(cell, columns)?);
            }
            for (word, &product) in words.iter_mut().zip(products) {
                let old = if operands.enable_input_d { instruction.d.decode(*word) * scale } else { 0.0 };
                *word = instruction.d.encode(product + old, instruction.saturate);
            }
            memory.write(cell, &words)?;
        }
    }
    Ok(())
}
