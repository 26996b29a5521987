//! The 8-bit e4m3fn code of block scales: no infinity, `0x7F` and `0xFF` are NaN, largest value 448 (`0x7E`).

/// The value of each code.
pub const VALUES: [f32; 256] = values();

const fn values() -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (exponent, mantissa) = ((code as u32 >> 3) & 15, code as u32 & 7);
        let magnitude = if code & 0x7f == 0x7f {
            f32::NAN
        } else if exponent == 0 {
            mantissa as f32 / 512.0
        } else {
            f32::from_bits((exponent + 120) << 23 | mantissa << 20)
        };
        table[code] = if code & 0x80 == 0 { magnitude } else { -magnitude };
        code += 1;
    }
    table
}

/// Value of a code.
pub const fn decode(code: u8) -> f32 {
    VALUES[code as usize]
}

/// Nearest code: ties to even, saturating at ±448 (infinity included), NaN gives `0x7F`.
pub const fn encode(value: f32) -> u8 {
    if value.is_nan() {
        return 0x7f;
    }
    let bits = value.to_bits();
    let sign = (bits >> 24) as u8 & 0x80;
    let magnitude = bits & 0x7fff_ffff;
    let code = if magnitude < 0x3c80_0000 {
        // Below 2^-6 the step is 2^-9, which is the last place of 2^14: the addition rounds, ties to even.
        (f32::from_bits(magnitude) + 16384.0).to_bits() - 16384f32.to_bits()
    } else if magnitude >= 0x43e8_0000 {
        0x7e // >= 464, half way between 448 and the 480 that does not exist
    } else {
        ((magnitude + 0x7_ffff + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    };
    sign | if code > 0x7e { 0x7e } else { code as u8 }
}

/// The S0E5M3 byte of FlashInfer's W4A16 kernel for SM12x: bits 7..14 of the value as f16; the sign is lost.
pub const fn to_s0e5m3(code: u8) -> u8 {
    let (exponent, mantissa) = ((code >> 3) & 15, code & 7);
    if code & 0x7f == 0x7f {
        return 0xff;
    }
    if exponent > 0 {
        return (exponent + 8) << 3 | mantissa;
    }
    // Subnormal e4m3 values are normal f16 values: m * 2^-9 = 2^(top - 9) * (1 + rest).
    if mantissa == 0 {
        return 0;
    }
    let top = 7 - mantissa.leading_zeros() as u8;
    (top + 6) << 3 | (mantissa << (3 - top) & 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_round_trips_and_midpoints_go_to_even() {
        for code in 0..=0x7eu8 {
            assert_eq!(encode(decode(code)), code);
            assert_eq!(encode(-decode(code)), code | 0x80);
            if code < 0x7e {
                let middle = (decode(code) + decode(code + 1)) / 2.0;
                assert_eq!(encode(middle), code + (code & 1), "{middle}");
                assert_eq!(encode(middle.next_up()), code + 1);
                assert_eq!(encode(middle.next_down()), code);
            }
        }
        for big in [448.0, 449.0, 464.0, 480.0, 1e30, f32::INFINITY] {
            assert_eq!((encode(big), encode(-big)), (0x7e, 0xfe));
        }
        assert_eq!(encode(f32::NAN), 0x7f);
    }

    #[test]
    fn s0e5m3_of_subnormals() {
        let expected = [0x00, 0x30, 0x38, 0x3c, 0x40, 0x42, 0x44, 0x46, 0x48];
        for (code, byte) in expected.into_iter().enumerate() {
            assert_eq!(to_s0e5m3(code as u8), byte);
        }
        assert_eq!((to_s0e5m3(0x7f), to_s0e5m3(0xb8)), (0xff, 0x78));
    }
}
