//! NVFP4 products on random data: operands as kernels take them, and the exact result.

use crate::random::Random;
use blackwell_sim::matrix::{Element, ScaleFormat};

/// One operand: codes, and block scales in 128×4 tiles.
pub struct Operand {
    pub rows: usize,
    pub k: usize,
    pub codes: Vec<u8>,
    pub scales: Vec<u8>,
}

/// Where the scale of a row's block lies among the tiles of 512 bytes.
pub fn scale_position(row: usize, block: usize, k: usize) -> usize {
    let tiles = (k / 16).div_ceil(4);
    (row / 128 * tiles + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4
}

impl Operand {
    pub fn random(rows: usize, k: usize, random: &mut Random) -> Self {
        let codes = (0..rows * k / 2).map(|_| random.below(256) as u8).collect();
        let bytes = rows.div_ceil(128) * (k / 16).div_ceil(4) * 512;
        // Positive e4m3 scales from 2⁻³ to 7.5, padding included: it must not show.
        let scales = (0..bytes).map(|_| (0x20 + random.below(0x2f)) as u8).collect();
        Self { rows, k, codes, scales }
    }

    /// Row-major values.
    pub fn values(&self) -> Vec<f64> {
        let mut values = Vec::with_capacity(self.rows * self.k);
        for row in 0..self.rows {
            for column in 0..self.k {
                let index = row * self.k + column;
                let code = self.codes[index / 2] >> (4 * (index % 2));
                let scale = self.scales[scale_position(row, column / 16, self.k)];
                values.push(Element::E2m1.decode(u32::from(code)) * ScaleFormat::Ue4m3.decode(scale));
            }
        }
        values
    }
}

/// A result, and the sum of the magnitudes of what was added up.
pub struct Exact {
    pub value: f64,
    pub magnitude: f64,
}

/// `alpha · A · Bᵀ`, row-major.
pub fn exact(a: &Operand, b: &Operand, alpha: f64) -> Vec<Exact> {
    let (left, right) = (a.values(), b.values());
    let mut out = Vec::with_capacity(a.rows * b.rows);
    for row in left.chunks_exact(a.k) {
        for column in right.chunks_exact(a.k) {
            let products = row.iter().zip(column).map(|(x, y)| alpha * x * y);
            let (value, magnitude) =
                products.fold((0.0, 0.0), |(sum, magnitude), product| (sum + product, magnitude + product.abs()));
            out.push(Exact { value, magnitude });
        }
    }
    out
}

/// Whether a result is the exact one but for the f32 accumulator and the rounding to `fraction_bits` bits.
pub fn agrees(found: f64, exact: &Exact, fraction_bits: i32) -> bool {
    let accumulation = exact.magnitude * 2f64.powi(-20);
    let rounding = exact.value.abs() * 2f64.powi(-fraction_bits - 1) * 1.01;
    (found - exact.value).abs() <= accumulation + rounding
}
