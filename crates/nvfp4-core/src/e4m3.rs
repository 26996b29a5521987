//! The 8-bit e4m3fn code of block scales: no infinity, `0x7F` and `0xFF` are NaN, largest value 448 (`0x7E`).

/// Value of a code.
pub const fn decode(code: u8) -> f32 {
    let _ = code;
    todo!()
}

/// Nearest code: ties to even, saturating at ±448 (infinity included), NaN gives `0x7F`.
pub const fn encode(value: f32) -> u8 {
    let _ = value;
    todo!()
}
