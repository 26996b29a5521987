//! `ldmatrix`, `stmatrix` and `movmatrix`: small matrices between rows in shared memory and a warp's registers.
//!
//! A matrix row is 16 bytes whose address one lane supplies; [`LdMatrix::rows`] says how many lanes do. With q = lane mod 4 and g = lane / 4:
//!
//! | form | register r of a lane holds |
//! | --- | --- |
//! | m8n8 b16, m8n16 | bytes 4q … 4q + 3 of row g of matrix r |
//! | m8n8 b16 `.trans` | 16-bit elements g of rows 2q and 2q + 1 of matrix r |
//! | m16n16 `.trans` | byte elements g + 8·(r mod 2) of rows 4q … 4q + 3 of matrix r / 2 |
//! | stmatrix m16n8 `.trans` | byte elements g of rows 2q, 2q + 1, then g + 8 of the same rows, of matrix r |
//!
//! Packed sources (`b4x16_p64`, `b6x16_p32`) widen to bytes first, each element in the low bits.
//! Sources: PTX ISA 9.7.14.5.15–17; the order of m16n16 and m16n8 from CuTe's copy traits for SM100.

use super::LaneRegister;

/// 16 bytes of shared memory: one row of a matrix.
pub type Row = [u8; 16];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrangement {
    /// A row to a quad of lanes.
    Rows,
    /// 8×8 of 16 bits, transposed.
    TransposedHalves,
    /// 16×16 bytes, transposed: two registers a matrix.
    Transposed16x16,
    /// 16×8 bytes, transposed.
    Transposed16x8,
}

/// A decoded `ldmatrix` or `stmatrix` instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LdMatrix {
    arrangement: Arrangement,
    matrices: usize,
    /// Bits of an element in memory that becomes a byte in the register.
    packed_bits: Option<u32>,
}

impl LdMatrix {
    /// Decodes the modifiers of an `ldmatrix` (all that follows the opcode). `None` if PTX has no such form.
    pub fn parse(modifiers: &[&str]) -> Option<Self> {
        let form = Form::parse(modifiers)?;
        let arrangement = match (form.shape, form.transposed, form.types.as_slice()) {
            ("m8n8", false, ["b16"]) => Arrangement::Rows,
            ("m8n8", true, ["b16"]) => Arrangement::TransposedHalves,
            ("m8n16", false, ["b8x16", "b4x16_p64" | "b6x16_p32"]) => Arrangement::Rows,
            ("m16n16", true, ["b8"] | ["b8x16", "b4x16_p64" | "b6x16_p32"]) if form.matrices < 4 => {
                Arrangement::Transposed16x16
            }
            _ => return None,
        };
        let packed_bits = match *form.types.last()? {
            "b4x16_p64" => Some(4),
            "b6x16_p32" => Some(6),
            _ => None,
        };
        Some(Self { arrangement, matrices: form.matrices, packed_bits })
    }

    /// Decodes the modifiers of an `stmatrix`. `None` if PTX has no such form.
    pub fn parse_store(modifiers: &[&str]) -> Option<Self> {
        let form = Form::parse(modifiers)?;
        let arrangement = match (form.shape, form.transposed, form.types.as_slice()) {
            ("m8n8", false, ["b16"]) => Arrangement::Rows,
            ("m8n8", true, ["b16"]) => Arrangement::TransposedHalves,
            ("m16n8", true, ["b8"]) => Arrangement::Transposed16x8,
            _ => return None,
        };
        Some(Self { arrangement, matrices: form.matrices, packed_bits: None })
    }

    /// Rows that the instruction moves, and so lanes, from lane 0 on, whose addresses it uses.
    pub fn rows(&self) -> usize {
        self.matrices * if self.arrangement == Arrangement::Transposed16x16 { 16 } else { 8 }
    }

    /// Registers that each lane loads or stores.
    pub fn registers(&self) -> usize {
        self.matrices * if self.arrangement == Arrangement::Transposed16x16 { 2 } else { 1 }
    }

    /// Bytes of each row that hold data; the rest of the 16 is padding, which need not be initialised.
    pub fn row_bytes(&self) -> usize {
        self.packed_bits.map_or(16, |bits| bits as usize * 2)
    }

    /// Registers of every lane from the rows at the lanes' addresses (missing rows are zeros; registers beyond
    /// [`Self::registers`] too).
    pub fn load(&self, rows: &[Row]) -> [LaneRegister; 4] {
        let rows: [Row; 32] = core::array::from_fn(|row| self.widen(rows.get(row).copied().unwrap_or_default()));
        let mut registers = [[0; 32]; 4];
        for (index, register) in registers.iter_mut().take(self.registers()).enumerate() {
            for (lane, word) in register.iter_mut().enumerate() {
                *word = u32::from_le_bytes(core::array::from_fn(|byte| {
                    let (row, column) = self.position(index, lane, byte);
                    rows[row][column]
                }));
            }
        }
        registers
    }

    /// The rows that a store writes at the lanes' addresses, as many as [`Self::rows`]; the rest are zeros.
    pub fn store(&self, registers: &[LaneRegister; 4]) -> [Row; 32] {
        let mut rows = [[0; 16]; 32];
        for (index, register) in registers.iter().take(self.registers()).enumerate() {
            for (lane, word) in register.iter().enumerate() {
                for (byte, value) in word.to_le_bytes().into_iter().enumerate() {
                    let (row, column) = self.position(index, lane, byte);
                    rows[row][column] = value;
                }
            }
        }
        rows
    }

    /// Row (below 32) and byte in it (below 16) of a byte of a lane's register.
    fn position(&self, register: usize, lane: usize, byte: usize) -> (usize, usize) {
        let (quad, member) = (lane / 4, lane % 4);
        match self.arrangement {
            Arrangement::Rows => (8 * register + quad, 4 * member + byte),
            Arrangement::TransposedHalves => (8 * register + 2 * member + byte / 2, 2 * quad + byte % 2),
            Arrangement::Transposed16x16 => (register / 2 * 16 + 4 * member + byte, quad + 8 * (register % 2)),
            Arrangement::Transposed16x8 => (8 * register + 2 * member + byte % 2, quad + 8 * (byte / 2)),
        }
    }

    /// A row of packed elements as bytes.
    fn widen(&self, row: Row) -> Row {
        let Some(bits) = self.packed_bits else { return row };
        let packed = u128::from_le_bytes(row);
        core::array::from_fn(|element| (packed >> (element as u32 * bits)) as u8 & ((1 << bits) - 1))
    }
}

/// `movmatrix.sync.aligned.m8n8.trans.b16`: an 8×8 matrix of 16-bit elements, transposed across the warp.
pub fn transpose(register: &LaneRegister) -> LaneRegister {
    let rows = LdMatrix { arrangement: Arrangement::Rows, matrices: 1, packed_bits: None };
    let columns = LdMatrix { arrangement: Arrangement::TransposedHalves, ..rows };
    let [transposed, ..] = columns.load(&rows.store(&[*register, [0; 32], [0; 32], [0; 32]]));
    transposed
}

/// The modifiers that loads and stores share.
struct Form<'a> {
    shape: &'a str,
    matrices: usize,
    transposed: bool,
    types: Vec<&'a str>,
}

impl<'a> Form<'a> {
    fn parse(modifiers: &[&'a str]) -> Option<Self> {
        let (mut shape, mut matrices, mut transposed, mut types) = (None, None, false, Vec::new());
        for &modifier in modifiers {
            match modifier {
                "sync" | "aligned" | "shared" | "shared::cta" => {}
                "trans" => transposed = true,
                "x1" => matrices = Some(1),
                "x2" => matrices = Some(2),
                "x4" => matrices = Some(4),
                "m8n8" | "m8n16" | "m16n16" | "m16n8" => shape = Some(modifier),
                _ => types.push(modifier),
            }
        }
        Some(Self { shape: shape?, matrices: matrices?, transposed, types })
    }
}
