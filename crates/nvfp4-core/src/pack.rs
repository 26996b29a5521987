//! Two e2m1 codes a byte, and the orders in which producers put them there.

use crate::{
    e2m1,
    error::{Error, check_size},
};

/// Which of a byte's two codes comes first along `k`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum NibbleOrder {
    /// The low nibble: ModelOpt, compressed-tensors, torchao, and every kernel.
    #[default]
    LowFirst,
    /// The high nibble: some image-model exporters.
    HighFirst,
}

/// The two values of a byte, in the order of `k`.
///
/// ```
/// use nvfp4_core::pack::{NibbleOrder, unpack_byte};
/// assert_eq!(unpack_byte(0x21, NibbleOrder::LowFirst), [0.5, 1.0]);
/// assert_eq!(unpack_byte(0x21, NibbleOrder::HighFirst), [1.0, 0.5]);
/// ```
pub const fn unpack_byte(byte: u8, order: NibbleOrder) -> [f32; 2] {
    let (low, high) = (e2m1::decode(byte & 15), e2m1::decode(byte >> 4));
    match order {
        NibbleOrder::LowFirst => [low, high],
        NibbleOrder::HighFirst => [high, low],
    }
}

/// Packs codes (one a byte, values 0..16) two a byte, low nibble first. `packed` must be half as long as `codes`.
pub fn pack_codes(codes: &[u8], packed: &mut [u8]) -> Result<(), Error> {
    check_size("codes to pack", 2 * packed.len(), codes.len())?;
    for (byte, pair) in packed.iter_mut().zip(codes.chunks_exact(2)) {
        *byte = pair[0] & 15 | pair[1] << 4;
    }
    Ok(())
}

/// Unpacks to one code a byte. `codes` must be twice as long as `packed`.
pub fn unpack_codes(packed: &[u8], codes: &mut [u8]) -> Result<(), Error> {
    check_size("unpacked codes", 2 * packed.len(), codes.len())?;
    for (pair, byte) in codes.chunks_exact_mut(2).zip(packed) {
        pair[0] = byte & 15;
        pair[1] = byte >> 4;
    }
    Ok(())
}

/// Rounds values to e2m1 and packs them, low nibble first. `packed` must be half as long as `values`.
pub fn pack_values(values: &[f32], packed: &mut [u8]) -> Result<(), Error> {
    check_size("values to pack", 2 * packed.len(), values.len())?;
    for (byte, pair) in packed.iter_mut().zip(values.chunks_exact(2)) {
        *byte = e2m1::encode(pair[0]) | e2m1::encode(pair[1]) << 4;
    }
    Ok(())
}

/// Brings bytes whose high nibble comes first into the order of checkpoints, or back.
pub fn swap_nibbles(packed: &mut [u8]) {
    for byte in packed {
        *byte = byte.rotate_left(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders() {
        assert_eq!(unpack_byte(0xf0, NibbleOrder::LowFirst), [0.0, -6.0]);
        assert_eq!(unpack_byte(0xff, NibbleOrder::LowFirst), [-6.0, -6.0]);
        for byte in 0..=255u8 {
            let [a, b] = unpack_byte(byte, NibbleOrder::LowFirst);
            let mut swapped = [byte];
            swap_nibbles(&mut swapped);
            assert_eq!(unpack_byte(swapped[0], NibbleOrder::HighFirst), [a, b]);
            let (mut codes, mut packed) = ([0; 2], [0; 1]);
            unpack_codes(&[byte], &mut codes).unwrap();
            pack_codes(&codes, &mut packed).unwrap();
            assert_eq!(packed, [byte]);
            pack_values(&[a, b], &mut packed).unwrap();
            assert_eq!(packed, [byte]);
        }
        assert!(pack_codes(&[1, 2, 3], &mut [0]).is_err());
        assert!(unpack_codes(&[1], &mut [0; 3]).is_err());
    }
}
