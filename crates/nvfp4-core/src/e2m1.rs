//! The 4-bit e2m1 code: bit 3 is the sign, bits 2..0 index the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6.

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
pub const fn encode(value: f32) -> u8 {
    if value.is_nan() {
        return 7;
    }
    let bits = value.to_bits();
    let sign = (bits >> 28) as u8 & 8;
    let magnitude = bits & 0x7fff_ffff;
    // Thresholds between neighbours as f32 bits; a tie goes to the code whose last bit is 0.
    let code = if magnitude <= 0x3e80_0000 {
        0 // <= 0.25
    } else if magnitude < 0x3f40_0000 {
        1 // < 0.75
    } else if magnitude <= 0x3fa0_0000 {
        2 // <= 1.25
    } else if magnitude < 0x3fe0_0000 {
        3 // < 1.75
    } else if magnitude <= 0x4020_0000 {
        4 // <= 2.5
    } else if magnitude < 0x4060_0000 {
        5 // < 3.5
    } else if magnitude <= 0x40a0_0000 {
        6 // <= 5
    } else {
        7
    };
    sign | code
}
