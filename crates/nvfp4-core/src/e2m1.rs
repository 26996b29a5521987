//! The 4-bit e2m1 code: bit 3 is the sign, bits 2..0 index the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6.

use crate::BLOCK_SIZE;

/// The value of each code. Code 8 is negative zero.
pub const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Value of a code; the upper four bits are ignored.
pub const fn decode(code: u8) -> f32 {
    VALUES[(code & 0xf) as usize]
}

/// Nearest code: ties to even, saturating at ±6, the sign kept (-0.0 is code 8), NaN gives +6 (code 7).
///
/// These are the rules of PTX `cvt.rn.satfinite.e2m1x2.f32`.
#[inline]
pub const fn encode(value: f32) -> u8 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // How many of the thresholds between neighbours are passed; a tie goes to the code whose last bit is 0. A sum of
    // comparisons has no branches, so that compilers encode several values at once.
    let code = (magnitude > 0x3e80_0000) as u32 // > 0.25
        + (magnitude >= 0x3f40_0000) as u32 // >= 0.75
        + (magnitude > 0x3fa0_0000) as u32 // > 1.25
        + (magnitude >= 0x3fe0_0000) as u32 // >= 1.75
        + (magnitude > 0x4020_0000) as u32 // > 2.5
        + (magnitude >= 0x4060_0000) as u32 // >= 3.5
        + (magnitude > 0x40a0_0000) as u32; // > 5
    let is_number = (magnitude <= f32::INFINITY.to_bits()) as u32;
    let sign = (bits >> 28 & 8) * is_number;
    (sign | code) as u8
}

/// The codes of a block, packed two a byte, low nibble first.
#[inline]
pub(crate) fn encode_block(values: &[f32; BLOCK_SIZE]) -> [u8; BLOCK_SIZE / 2] {
    let codes = values.map(encode);
    core::array::from_fn(|i| codes[2 * i] | codes[2 * i + 1] << 4)
}
