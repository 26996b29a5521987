//! Every code of the narrow formats, and rounding in every mode against a search through all values.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use blackwell_sim::number::float_format::{decode_ue8m0, encode_ue8m0};
use blackwell_sim::number::{FloatFormat, Overflow, Rounding};
use half::{bf16, f16};

const NARROW: [FloatFormat; 5] =
    [FloatFormat::E4M3, FloatFormat::E5M2, FloatFormat::E2M3, FloatFormat::E3M2, FloatFormat::E2M1];
const MODES: [Rounding; 5] =
    [Rounding::NearestEven, Rounding::NearestAway, Rounding::TowardZero, Rounding::Down, Rounding::Up];

/// Finite codes of a format by value, −0 left out.
fn finite_values(format: FloatFormat) -> Vec<(f64, u32)> {
    let mut values: Vec<(f64, u32)> = (0..1u32 << format.bits())
        .map(|code| (format.decode(code), code))
        .filter(|(value, _)| value.is_finite() && !(*value == 0.0 && value.is_sign_negative()))
        .collect();
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    values
}

/// The saturating conversion by its definition: the neighbours of `x` among all values, chosen by the mode.
fn by_search(values: &[(f64, u32)], x: f64, mode: Rounding) -> f64 {
    let (first, last) = (values[0].0, values[values.len() - 1].0);
    let x = x.clamp(first, last);
    let above = values.partition_point(|(value, _)| *value < x);
    let (high, high_code) = values[above];
    if high == x {
        return high;
    }
    let (low, low_code) = values[above - 1];
    let nearest_or = |tie: f64| match (x - low).total_cmp(&(high - x)) {
        std::cmp::Ordering::Less => low,
        std::cmp::Ordering::Greater => high,
        std::cmp::Ordering::Equal => tie,
    };
    match mode {
        Rounding::NearestEven => nearest_or(if low_code & 1 == 0 { low } else { high }),
        Rounding::NearestAway => nearest_or(if x < 0.0 { low } else { high }),
        Rounding::TowardZero => {
            if x < 0.0 {
                high
            } else {
                low
            }
        }
        Rounding::Down => low,
        Rounding::Up => {
            assert!(high_code < 1 << 8);
            high
        }
    }
}

/// Values, midpoints, their neighbours and points between.
fn probes(values: &[(f64, u32)]) -> Vec<f64> {
    let mut probes = vec![1e-30, -1e-30, 1e30, -1e30];
    for pair in values.windows(2) {
        let middle = (pair[0].0 + pair[1].0) / 2.0;
        for point in [pair[0].0, middle, (pair[0].0 + middle) / 2.0] {
            probes.extend([point, f64::from_bits(point.to_bits() + 1), f64::from_bits(point.to_bits().max(1) - 1)]);
        }
    }
    probes
}

#[test]
fn narrow_formats_have_the_ranges_of_the_ocp_specifications() {
    let largest: Vec<f64> = NARROW.iter().map(FloatFormat::max).collect();
    assert_eq!(largest, [448.0, 57344.0, 7.5, 28.0, 6.0]);
    let e2m1: Vec<f64> = (0..16).map(|code| FloatFormat::E2M1.decode(code)).collect();
    assert_eq!(e2m1[..8], [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
    assert_eq!(e2m1[9..], [-0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]);
    assert!(FloatFormat::E4M3.decode(0x7f).is_nan() && FloatFormat::E4M3.decode(0xff).is_nan());
    assert_eq!(FloatFormat::E5M2.decode(0x7c), f64::INFINITY);
    assert_eq!(FloatFormat::E2M3.decode(0x01), 0.125);
    assert_eq!(FloatFormat::E3M2.decode(0x01), 0.0625);
}

#[test]
fn narrow_formats_round_as_a_search_through_their_values() {
    for format in NARROW {
        let values = finite_values(format);
        for x in probes(&values) {
            for mode in MODES {
                let code = format.encode(x, mode, Overflow::Saturate);
                assert_eq!(format.decode(code), by_search(&values, x, mode), "{} of {x:e}, {mode:?}", format.name);
                assert_eq!(
                    format.decode(code).is_sign_negative(),
                    x.is_sign_negative(),
                    "{} of {x:e}",
                    format.name
                );
            }
        }
    }
}

#[test]
fn every_code_survives_a_round_trip() {
    for format in NARROW.into_iter().chain([FloatFormat::F16, FloatFormat::BF16]) {
        for code in 0..1u32 << format.bits() {
            let value = format.decode(code);
            for mode in MODES {
                let again = format.encode(value, mode, Overflow::Infinity);
                if value.is_nan() {
                    assert_eq!(again, format.nan_bits(), "{} {code:#x}", format.name);
                } else {
                    assert_eq!(again, code, "{} {code:#x} {mode:?}", format.name);
                }
            }
        }
    }
}

#[test]
fn nan_becomes_the_code_that_cvt_gives() {
    let nan_of = |format: FloatFormat| format.encode(f64::NAN, Rounding::NearestEven, Overflow::Saturate);
    assert_eq!(NARROW.map(nan_of), [0x7f, 0x7f, 0x1f, 0x1f, 0x7]);
    assert_eq!([FloatFormat::F16, FloatFormat::BF16, FloatFormat::F32].map(nan_of), [0x7fff, 0x7fff, 0x7fff_ffff]);
}

#[test]
fn half_formats_agree_with_the_half_crate_on_many_inputs() {
    for step in 0..2_000_000u32 {
        let x = f32::from_bits(step.wrapping_mul(2_147_483_647 / 997).wrapping_add(step << 13));
        if x.is_nan() {
            continue;
        }
        let value = f64::from(x);
        let nearest = |format: FloatFormat| format.encode(value, Rounding::NearestEven, Overflow::Infinity);
        assert_eq!(nearest(FloatFormat::F16), u32::from(f16::from_f32(x).to_bits()), "{x:e}");
        assert_eq!(nearest(FloatFormat::BF16), u32::from(bf16::from_f32(x).to_bits()), "{x:e}");
        assert_eq!(nearest(FloatFormat::F32), x.to_bits(), "{x:e}");
    }
}

#[test]
fn directed_rounding_brackets_the_value_with_adjacent_halves() {
    for step in 0..200_000u32 {
        let x = f64::from(f32::from_bits(step.wrapping_mul(0x9e37_79b9)));
        if x.is_nan() || x.abs() > 60000.0 {
            continue;
        }
        let code = |mode| FloatFormat::F16.encode(x, mode, Overflow::Infinity);
        let (down, up) =
            (FloatFormat::F16.decode(code(Rounding::Down)), FloatFormat::F16.decode(code(Rounding::Up)));
        assert!(down <= x && x <= up, "{down} {x} {up}");
        let zero = code(Rounding::TowardZero);
        assert_eq!(zero, if x.is_sign_negative() { code(Rounding::Up) } else { code(Rounding::Down) });
        let step_up =
            if x.is_sign_negative() { code(Rounding::Down).wrapping_sub(1) } else { code(Rounding::Down) + 1 };
        assert!(
            down == x || step_up == code(Rounding::Up),
            "{x}: {:#x} {:#x}",
            code(Rounding::Down),
            code(Rounding::Up)
        );
    }
}

#[test]
fn overflow_follows_the_rounding_mode() {
    let f16 = |x: f64, mode| FloatFormat::F16.encode(x, mode, Overflow::Infinity);
    assert_eq!(MODES.map(|mode| f16(1e6, mode)), [0x7c00, 0x7c00, 0x7bff, 0x7bff, 0x7c00]);
    assert_eq!(MODES.map(|mode| f16(-1e6, mode)), [0xfc00, 0xfc00, 0xfbff, 0xfc00, 0xfbff]);
    assert_eq!(f16(65519.996, Rounding::NearestEven), 0x7bff);
    assert_eq!(f16(65520.0, Rounding::NearestEven), 0x7c00);
    assert_eq!(FloatFormat::F16.encode(f64::INFINITY, Rounding::TowardZero, Overflow::Saturate), 0x7bff);
    assert_eq!(FloatFormat::E4M3.encode(449.0, Rounding::NearestEven, Overflow::Saturate), 0x7e);
    assert_eq!(FloatFormat::E4M3.encode(-1e9, Rounding::NearestEven, Overflow::Saturate), 0xfe);
}

#[test]
fn tf32_keeps_ten_fraction_bits_of_an_f32() {
    let x = f32::from_bits(0x3f80_1000);
    let code = |mode| FloatFormat::TF32.encode(f64::from(x), mode, Overflow::Infinity);
    assert_eq!(code(Rounding::NearestAway), 0x3f80_2000);
    assert_eq!(code(Rounding::NearestEven), 0x3f80_0000);
    assert_eq!(code(Rounding::TowardZero), 0x3f80_0000);
    assert_eq!(FloatFormat::TF32.decode(0x3f80_3fff), f64::from(f32::from_bits(0x3f80_2000)));
}

#[test]
fn ue8m0_is_the_power_of_two_next_to_the_magnitude() {
    for code in 0..=254u8 {
        let value = decode_ue8m0(code);
        assert_eq!(value.log2(), f64::from(code) - 127.0);
        for mode in [Rounding::TowardZero, Rounding::Up] {
            assert_eq!(encode_ue8m0(value, mode, Overflow::Infinity), code);
            assert_eq!(encode_ue8m0(-value, mode, Overflow::Infinity), code);
        }
        if code > 0 {
            assert_eq!(encode_ue8m0(value * 1.001, Rounding::TowardZero, Overflow::Infinity), code);
            assert_eq!(encode_ue8m0(value * 1.001, Rounding::Up, Overflow::Infinity), code + 1);
        }
    }
    assert!(decode_ue8m0(255).is_nan());
    assert_eq!(encode_ue8m0(f64::NAN, Rounding::Up, Overflow::Saturate), 255);
    assert_eq!(encode_ue8m0(f64::INFINITY, Rounding::Up, Overflow::Saturate), 254);
    assert_eq!(encode_ue8m0(f64::INFINITY, Rounding::Up, Overflow::Infinity), 255);
    assert_eq!(encode_ue8m0(0.0, Rounding::Up, Overflow::Infinity), 0);
    assert_eq!(encode_ue8m0(f64::from(f32::from_bits(1)), Rounding::TowardZero, Overflow::Infinity), 0);
}
