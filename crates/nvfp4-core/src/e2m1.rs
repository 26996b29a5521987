//! The 4-bit e2m1 code: bit 3 is the sign, bits 2..0 index the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6.

/// The value of each code. Code 8 is negative zero.
pub const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Value of a code; the upper four bits are ignored.
pub const fn decode(code: u8) -> f32 {
    VALUES[(code & 0xf) as usize]
}

/// Nearest code: ties to even, saturating at ±6, the sign kept (-0.0 is code 8), NaN gives +6 (code 7).
pub const fn encode(value: f32) -> u8 {
    let _ = value;
    todo!()
}
