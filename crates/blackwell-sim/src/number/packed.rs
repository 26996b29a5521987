//! The arithmetic of packed registers: the same operation on each half.

use super::FloatFormat;

/// The two 16-bit halves of a packed f16x2 or bf16x2 register, low half first.
pub fn halves(register: u32) -> [u32; 2] {
    [register & 0xffff, register >> 16]
}

/// The two 32-bit halves of an f32x2 register, low half first.
pub fn words(register: u64) -> [u32; 2] {
    [register as u32, (register >> 32) as u32]
}

/// Applies `operation` to each half of f16x2 or bf16x2 registers.
///
/// ```
/// use blackwell_sim::number::{FloatFormat, arithmetic, packed};
/// let add = |[a, b]: [u32; 2]| arithmetic::add(FloatFormat::F16, a, b, arithmetic::Modifiers::PLAIN);
/// // (2.0, 1.0) + (1.0, 1.0), low half last in the literal
/// assert_eq!(packed::map_halves([0x4000_3c00, 0x3c00_3c00], add), 0x4200_4000);
/// ```
pub fn map_halves<const N: usize>(registers: [u32; N], operation: impl Fn([u32; N]) -> u32) -> u32 {
    let low = operation(registers.map(|register| halves(register)[0]));
    let high = operation(registers.map(|register| halves(register)[1]));
    (low & 0xffff) | high << 16
}

/// Applies `operation` to each half of f32x2 registers.
pub fn map_words<const N: usize>(registers: [u64; N], operation: impl Fn([u32; N]) -> u32) -> u64 {
    let low = operation(registers.map(|register| words(register)[0]));
    let high = operation(registers.map(|register| words(register)[1]));
    u64::from(low) | u64::from(high) << 32
}

/// Bits that one element of a packed narrow register takes: its own, except that 6-bit formats lie in bytes.
pub fn element_width(format: FloatFormat) -> u32 {
    match format.bits() {
        6 => 8,
        bits => bits,
    }
}

/// Packs `codes`, the first (PTX operand `a`) uppermost, each in `width` bits.
pub fn pack(codes: &[u32], width: u32) -> u64 {
    codes.iter().fold(0, |register, &code| register << width | u64::from(code))
}

/// The `count` elements of a packed register, uppermost first.
pub fn unpack(register: u64, width: u32, count: u32) -> impl Iterator<Item = u32> {
    let mask = (1u64 << width) - 1;
    (0..count).rev().map(move |element| (register >> (element * width) & mask) as u32)
}
