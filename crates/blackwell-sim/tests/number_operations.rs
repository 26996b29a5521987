//! Arithmetic and conversions against exact integer arithmetic, the host's own, and documented results.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use blackwell_sim::number::approximate::{self, Function};
use blackwell_sim::number::arithmetic::{self, Extremum, Modifiers};
use blackwell_sim::number::convert::Conversion;
use blackwell_sim::number::{FloatFormat, Rounding, packed};
use half::{bf16, f16};

const MODES: [Rounding; 4] = [Rounding::NearestEven, Rounding::TowardZero, Rounding::Down, Rounding::Up];

fn with(rounding: Rounding) -> Modifiers {
    Modifiers { rounding, ..Modifiers::PLAIN }
}

/// A deterministic stream of 32-bit words (splitmix64).
struct Words(u64);

impl Words {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) as u32
    }

    /// An f32 whose exponent is within ±`spread` of 1's.
    fn near_one(&mut self, spread: u32) -> f32 {
        let word = self.next();
        f32::from_bits((word & 0x807f_ffff) | (127 - spread + self.next() % (2 * spread)) << 23)
    }
}

/// Rounds `numerator · 2^exponent`, given exactly, to 24 significant bits.
fn round_exactly(value: i128, exponent: i32, mode: Rounding) -> f64 {
    let magnitude = value.unsigned_abs();
    let excess = (128 - magnitude.leading_zeros()).saturating_sub(24);
    let (kept, rest) = (magnitude >> excess, magnitude & ((1 << excess) - 1));
    let half = (1u128 << excess) / 2;
    let up = match mode {
        Rounding::NearestEven => rest > half || (rest == half && half > 0 && kept & 1 == 1),
        Rounding::NearestAway => rest >= half && half > 0,
        Rounding::TowardZero => false,
        Rounding::Down => value < 0 && rest > 0,
        Rounding::Up => value > 0 && rest > 0,
    };
    let rounded = ((kept + u128::from(up)) << excess) as f64 * 2f64.powi(exponent);
    if value < 0 { -rounded } else { rounded }
}

/// An f32 as an integer of 2^-60ths.
fn fixed(value: f32) -> i128 {
    (f64::from(value) * 2f64.powi(60)) as i128
}

#[test]
fn f32_sums_and_products_round_exactly_in_every_mode() {
    let mut words = Words(1);
    for _ in 0..20_000 {
        let (a, b) = (words.near_one(30), words.near_one(30));
        let c = words.near_one(20);
        for mode in MODES {
            let f32_of = |bits: u32| f64::from(f32::from_bits(bits));
            let [x, y, z] = [a, b, c].map(f32::to_bits);
            let sum = arithmetic::add(FloatFormat::F32, x, y, with(mode));
            assert_eq!(f32_of(sum), round_exactly(fixed(a) + fixed(b), -60, mode), "{a} + {b} {mode:?}");
            let difference = arithmetic::subtract(FloatFormat::F32, x, y, with(mode));
            assert_eq!(f32_of(difference), round_exactly(fixed(a) - fixed(b), -60, mode), "{a} - {b} {mode:?}");
            // 24-bit significands as integers; the products and the addend fit an i128 at 2^-106.
            let (p, q) = ((f64::from(a) * 2f64.powi(53)) as i128, (f64::from(b) * 2f64.powi(53)) as i128);
            let product = arithmetic::multiply(FloatFormat::F32, x, y, with(mode));
            if let Some(exact) = p.checked_mul(q) {
                assert_eq!(f32_of(product), round_exactly(exact, -106, mode), "{a} · {b} {mode:?}");
                let addend = (f64::from(c) * 2f64.powi(53)) as i128;
                if let Some(exact) = addend.checked_mul(1 << 53).and_then(|addend| exact.checked_add(addend)) {
                    let fma = arithmetic::fused_multiply_add(FloatFormat::F32, x, y, z, with(mode));
                    assert_eq!(f32_of(fma), round_exactly(exact, -106, mode), "{a} · {b} + {c} {mode:?}");
                }
            }
        }
    }
}

#[test]
fn f32_quotients_and_roots_bracket_the_exact_result() {
    let mut words = Words(2);
    for _ in 0..20_000 {
        let (a, b) = (words.near_one(100), words.near_one(20));
        let (x, y) = (a.to_bits(), b.to_bits());
        let divide = |mode| f32::from_bits(arithmetic::divide(FloatFormat::F32, x, y, with(mode)));
        assert_eq!(divide(Rounding::NearestEven), a / b);
        let (down, up) = (f64::from(divide(Rounding::Down)), f64::from(divide(Rounding::Up)));
        // f32 products are exact in f64, so these comparisons are too.
        let (low, high) = (down * f64::from(b), up * f64::from(b));
        assert!(if b > 0.0 {
            low <= f64::from(a) && f64::from(a) <= high
        } else {
            high <= f64::from(a) && f64::from(a) <= low
        });
        let zero = divide(Rounding::TowardZero);
        assert_eq!(f64::from(zero), if a / b > 0.0 { down } else { up });

        let root = |mode| f32::from_bits(arithmetic::square_root(FloatFormat::F32, a.abs().to_bits(), with(mode)));
        assert_eq!(root(Rounding::NearestEven), a.abs().sqrt());
        let (down, up) = (f64::from(root(Rounding::Down)), f64::from(root(Rounding::Up)));
        assert!(down * down <= f64::from(a.abs()) && f64::from(a.abs()) <= up * up);
        assert_eq!(
            f32::from_bits(arithmetic::reciprocal(FloatFormat::F32, y, with(Rounding::NearestEven))),
            1.0 / b
        );
    }
}

#[test]
fn subnormal_results_round_once_and_flush_when_asked() {
    let smallest = f32::MIN_POSITIVE;
    let product =
        |modifiers| arithmetic::multiply(FloatFormat::F32, smallest.to_bits(), 0.75f32.to_bits(), modifiers);
    assert_eq!(f32::from_bits(product(Modifiers::PLAIN)), smallest * 0.75);
    assert_eq!(f32::from_bits(product(with(Rounding::Up))), smallest * 0.75);
    assert_eq!(product(Modifiers { flush: true, ..Modifiers::PLAIN }), 0);
    let flushed =
        arithmetic::add(FloatFormat::F32, 0x8000_0001, 0x8000_0001, Modifiers { flush: true, ..Modifiers::PLAIN });
    assert_eq!(flushed, 0x8000_0000);
    assert_eq!(arithmetic::add(FloatFormat::F32, 1, 1, Modifiers::PLAIN), 2);
}

#[test]
fn signs_of_zero_nan_and_clamps_are_as_documented() {
    let one = 1f32.to_bits();
    let minus_one = (-1f32).to_bits();
    assert_eq!(arithmetic::add(FloatFormat::F32, one, minus_one, Modifiers::PLAIN), 0);
    assert_eq!(arithmetic::add(FloatFormat::F32, one, minus_one, with(Rounding::Down)), 0x8000_0000);
    assert_eq!(arithmetic::add(FloatFormat::F32, 0x8000_0000, 0x8000_0000, with(Rounding::Up)), 0x8000_0000);
    assert_eq!(arithmetic::add(FloatFormat::F32, 0x7fc0_1234, one, Modifiers::PLAIN), 0x7fff_ffff);
    let infinity = f32::INFINITY.to_bits();
    assert_eq!(arithmetic::subtract(FloatFormat::F32, infinity, infinity, Modifiers::PLAIN), 0x7fff_ffff);
    assert_eq!(arithmetic::multiply(FloatFormat::BF16, 0x7f80, 0, Modifiers::PLAIN), 0x7fff);
    let saturated = Modifiers { saturate: true, ..Modifiers::PLAIN };
    assert_eq!(arithmetic::add(FloatFormat::F32, one, one, saturated), one);
    assert_eq!(arithmetic::add(FloatFormat::F32, minus_one, minus_one, saturated), 0);
    assert_eq!(arithmetic::add(FloatFormat::F32, 0x7fff_ffff, one, saturated), 0);
    let relu = Modifiers { relu: true, ..Modifiers::PLAIN };
    assert_eq!(arithmetic::fused_multiply_add(FloatFormat::F16, 0x3c00, 0xbc00, 0, relu), 0);
    assert_eq!(arithmetic::fused_multiply_add(FloatFormat::F16, 0x7e00, 0xbc00, 0, relu), 0x7fff);
}

#[test]
fn minima_and_maxima_treat_nan_and_signs_as_documented() {
    let plain = Extremum { larger: true, propagate_nan: false, xor_sign: false, flush: false };
    let bits = f32::to_bits;
    let of = |a, b, kind| arithmetic::extremum(FloatFormat::F32, a, b, kind);
    assert_eq!(of(bits(1.0), bits(-2.0), plain), bits(1.0));
    assert_eq!(of(bits(1.0), bits(-2.0), Extremum { larger: false, ..plain }), bits(-2.0));
    assert_eq!(of(0x8000_0000, 0, plain), 0);
    assert_eq!(of(0, 0x8000_0000, Extremum { larger: false, ..plain }), 0x8000_0000);
    assert_eq!(of(0x7fc0_0001, bits(3.0), plain), bits(3.0));
    assert_eq!(of(bits(3.0), 0x7fc0_0001, Extremum { propagate_nan: true, ..plain }), 0x7fff_ffff);
    assert_eq!(of(bits(1.0), bits(-2.0), Extremum { xor_sign: true, ..plain }), bits(-2.0));
    assert_eq!(of(bits(-1.0), bits(-2.0), Extremum { xor_sign: true, ..plain }), bits(2.0));
}

#[test]
fn half_precision_rounds_the_exact_result_once() {
    let mut words = Words(3);
    for _ in 0..200_000 {
        let [a, b, c] = [words.next(), words.next(), words.next()].map(|word| word & 0xffff);
        let exact = |decode: fn(u32) -> f64| decode(a).mul_add(decode(b), decode(c));
        let f16_value = |bits: u32| f64::from(f16::from_bits(bits as u16));
        let fma = arithmetic::fused_multiply_add(FloatFormat::F16, a, b, c, Modifiers::PLAIN);
        // Where the exact result has at most 53 bits, the f64 operation gives it; multiples of a half's last place follow.
        let value = exact(f16_value);
        let sum_is_exact = value - f16_value(c) == f16_value(a) * f16_value(b);
        if value.is_nan() {
            assert_eq!(fma, 0x7fff);
        } else if sum_is_exact && value.abs() < 65504.0 {
            let place = 2f64.powi((value.abs().log2().floor() as i32).max(-14) - 10);
            assert_eq!(f16_value(fma), (value / place).round_ties_even() * place, "{a:#x} {b:#x} {c:#x}");
        }
        let sum = arithmetic::add(FloatFormat::BF16, a, b, Modifiers::PLAIN);
        let expected = bf16::from_bits(a as u16).to_f64() + bf16::from_bits(b as u16).to_f64();
        let near = FloatFormat::BF16.decode(sum);
        assert!(expected.is_nan() == near.is_nan());
        if near.is_finite() {
            assert!((near - expected).abs() <= expected.abs() / 256.0 + 1e-40, "{a:#x} + {b:#x}");
        }
    }
}

#[test]
fn packed_registers_hold_two_independent_results() {
    let fma = |[a, b, c]: [u32; 3]| arithmetic::fused_multiply_add(FloatFormat::F32, a, b, c, Modifiers::PLAIN);
    let pair = |low: f32, high: f32| u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32;
    assert_eq!(packed::map_words([pair(1.5, -2.0), pair(2.0, 4.0), pair(0.25, 0.5)], fma), pair(3.25, -7.5));
    let multiply = |[a, b]: [u32; 2]| arithmetic::multiply(FloatFormat::BF16, a, b, Modifiers::PLAIN);
    assert_eq!(packed::map_halves([0x4000_bf80, 0x4040_4080], multiply), 0x40c0_c080);
}

fn convert(modifiers: &str, operands: &[u64]) -> u64 {
    let modifiers: Vec<&str> = modifiers.split('.').collect();
    Conversion::parse(&modifiers).unwrap_or_else(|| panic!("cvt.{modifiers:?}")).apply(operands)
}

fn bits(value: f32) -> u64 {
    u64::from(value.to_bits())
}

#[test]
fn the_first_operand_of_a_packed_conversion_is_uppermost() {
    assert_eq!(convert("rn.satfinite.e2m1x2.f32", &[bits(6.0), bits(-0.5)]), 0x79);
    assert_eq!(convert("rn.satfinite.e4m3x2.f32", &[bits(448.0), bits(1.0)]), 0x7e38);
    assert_eq!(convert("rn.satfinite.e4m3x2.f16x2", &[0x3c00_4000]), 0x3840);
    assert_eq!(convert("rn.satfinite.e2m3x2.f32", &[bits(7.5), bits(-1.0)]), 0x1f28);
    assert_eq!(convert("rn.f16x2.f32", &[bits(1.0), bits(2.0)]), 0x3c00_4000);
    assert_eq!(convert("rn.bf16x2.f32", &[bits(1.0), bits(2.0)]), 0x3f80_4000);
    assert_eq!(convert("rz.ue8m0x2.f32", &[bits(3.0), bits(1.0)]), 0x807f);
    assert_eq!(convert("rp.satfinite.ue8m0x2.bf16x2", &[0x4040_3f80]), 0x817f);
    assert_eq!(convert("rn.f16x2.e2m1x2", &[0x79]), 0x4600_b800);
    assert_eq!(convert("rn.f16x2.e4m3x2", &[0x7e38]), 0x5f00_3c00);
    assert_eq!(convert("rn.f16x2.e4m3x2", &[0x7f80]), 0x7fff_8000);
    assert_eq!(convert("rn.bf16x2.ue8m0x2", &[0x00ff]), 0x0040_7fff);
    assert_eq!(convert("rn.relu.f16x2.e2m1x2", &[0x9a]), 0);
}

#[test]
fn modifiers_of_float_conversions_do_what_their_names_say() {
    assert_eq!(convert("rn.satfinite.e2m1x2.f32", &[bits(f32::NAN), bits(f32::INFINITY)]), 0x77);
    assert_eq!(convert("rn.satfinite.relu.e4m3x2.f32", &[bits(-3.0), bits(1000.0)]), 0x007e);
    assert_eq!(convert("rn.satfinite.f16.f32", &[bits(1e9)]), 0x7bff);
    assert_eq!(convert("rn.relu.bf16.f32", &[bits(-2.0)]), 0);
    assert_eq!(convert("rn.bf16.f32", &[bits(f32::NAN)]), 0x7fff);
    assert_eq!(convert("f32.bf16", &[0x3fc0]), bits(1.5));
    assert_eq!(convert("ftz.f32.f16", &[0x0001]), bits(f16::from_bits(1).to_f32()));
    assert_eq!(convert("rn.ftz.f16.f32", &[1]), 0);
    assert_eq!(convert("sat.f32.f32", &[bits(1.5)]), bits(1.0));
    assert_eq!(convert("rni.f32.f32", &[bits(2.5)]), bits(2.0));
    assert_eq!(convert("rpi.f32.f32", &[bits(-0.5)]), bits(-0.0));
    assert_eq!(convert("rna.tf32.f32", &[0x3f80_1000]), 0x3f80_2000);
    assert_eq!(convert("rz.f32.f64", &[(1.0 + f64::EPSILON).to_bits()]), bits(1.0));
    assert_eq!(convert("rp.f32.f64", &[(1.0 + f64::EPSILON).to_bits()]), u64::from(1f32.to_bits() + 1));
    assert_eq!(convert("f64.f32", &[bits(0.1)]), f64::from(0.1f32).to_bits());
}

#[test]
fn integer_conversions_extend_saturate_and_round() {
    assert_eq!(convert("s64.s32", &[0xffff_ffff]), u64::MAX);
    assert_eq!(convert("u64.u32", &[0xffff_ffff_ffff_ffff]), 0xffff_ffff);
    assert_eq!(convert("s32.s8", &[0x80]), 0xffff_ffff_ffff_ff80);
    assert_eq!(convert("sat.u8.s32", &[0xffff_fff0]), 0);
    assert_eq!(convert("sat.s8.s32", &[1000]), 127);
    assert_eq!(convert("u16.u32", &[0x1_2345]), 0x2345);
    assert_eq!(convert("rzi.s32.f32", &[bits(-2.7)]), (-2i64) as u64);
    assert_eq!(convert("rni.s32.f32", &[bits(2.5)]), 2);
    assert_eq!(convert("rmi.s32.f32", &[bits(-2.1)]), (-3i64) as u64);
    assert_eq!(convert("rzi.u32.f32", &[bits(-5.0)]), 0);
    assert_eq!(convert("rzi.s32.f32", &[bits(1e20)]), 0x7fff_ffff);
    assert_eq!(convert("rzi.s32.f32", &[bits(f32::NAN)]), 0);
    assert_eq!(convert("rzi.s64.f32", &[bits(f32::NAN)]), 1 << 63);
    assert_eq!(convert("rzi.u64.f32", &[bits(f32::INFINITY)]), u64::MAX);
    assert_eq!(convert("rn.f32.s32", &[0xffff_ffff]), bits(-1.0));
    for value in [0x0100_0001u64, 0x0100_0003, u64::MAX, 0x8000_0080_0000_0001, 0x7fff_ffff_ffff_fc00] {
        assert_eq!(convert("rn.f32.u64", &[value]), bits(value as f32), "{value:#x}");
        assert_eq!(convert("rn.f64.u64", &[value]), (value as f64).to_bits(), "{value:#x}");
        assert_eq!(convert("rn.f32.s64", &[value]), bits(value as i64 as f32), "{value:#x}");
    }
    assert_eq!(convert("rz.f32.u32", &[0x0100_0001]), bits(16_777_216.0));
    assert_eq!(convert("rp.f32.u32", &[0x0100_0001]), bits(16_777_218.0));
    assert_eq!(convert("rz.f64.u64", &[u64::MAX]), (18_446_744_073_709_549_568.0f64).to_bits());
}

#[test]
fn stochastic_rounding_adds_the_random_bits_to_those_dropped() {
    // 1 + 2^-11 lies halfway between two halves: the carry needs random bits of at least 2^12.
    let x = bits(1.0 + 2f32.powi(-11));
    assert_eq!(convert("rs.f16x2.f32", &[x, x, 0x1000_0fff]), 0x3c01_3c00);
    let y = bits(1.0 + 2f32.powi(-8));
    assert_eq!(convert("rs.bf16x2.f32", &[y, y, 0x7fff_8000]), 0x3f80_3f81);
    assert_eq!(convert("rs.satfinite.f16x2.f32", &[bits(1e9), bits(-1e9), 0]), 0x7bff_fbff);
}

#[test]
fn what_is_no_conversion_is_refused() {
    for modifiers in
        ["rn.e2m1x2", "rn.e2m1x3.f32", "rq.f16.f32", "f32", "rs.satfinite.e2m1x4.f32", "u24.f32", "rn.b16.f32"]
    {
        let modifiers: Vec<&str> = modifiers.split('.').collect();
        assert_eq!(Conversion::parse(&modifiers), None, "{modifiers:?}");
    }
}

#[test]
fn approximate_functions_are_the_true_values_rounded() {
    let of = |function: Function, x: f32| f32::from_bits(function.apply(FloatFormat::F32, x.to_bits(), true));
    let mut words = Words(4);
    for _ in 0..20_000 {
        let x = words.near_one(6);
        let near = |got: f32, want: f64, tolerance: f64| {
            assert!((f64::from(got) - want).abs() <= tolerance, "{x}: {got} rather than {want}");
        };
        let (wide, ulp) = (f64::from(x), |value: f64| value.abs() * 2f64.powi(-24) + 1e-44);
        near(of(Function::Exp2, x), wide.exp2(), ulp(wide.exp2()));
        near(of(Function::Reciprocal, x), wide.recip(), ulp(wide.recip()));
        near(of(Function::Log2, x.abs()), wide.abs().log2(), ulp(wide.abs().log2()));
        near(
            of(Function::ReciprocalSquareRoot, x.abs()),
            wide.abs().sqrt().recip(),
            ulp(wide.abs().sqrt().recip()),
        );
        near(of(Function::HyperbolicTangent, x), wide.tanh(), ulp(wide.tanh()));
        near(of(Function::Sine, x), wide.sin(), ulp(wide.sin()));
    }
    assert_eq!(of(Function::Exp2, f32::NEG_INFINITY), 0.0);
    assert_eq!(of(Function::Exp2, f32::from_bits(1)), 1.0);
    assert_eq!(of(Function::Log2, 0.0), f32::NEG_INFINITY);
    assert_eq!(of(Function::Log2, f32::from_bits(1)), f32::NEG_INFINITY);
    assert_eq!(of(Function::Reciprocal, -0.0), f32::NEG_INFINITY);
    assert_eq!(of(Function::ReciprocalSquareRoot, -0.0), f32::NEG_INFINITY);
    assert_eq!(Function::Log2.apply(FloatFormat::F32, (-1f32).to_bits(), true), 0x7fff_ffff);
    assert_eq!(Function::HyperbolicTangent.apply(FloatFormat::F16, 0x7c00, false), 0x3c00);
    let divide = |a: f32, b: f32, full| f32::from_bits(approximate::divide(a.to_bits(), b.to_bits(), full, true));
    assert_eq!(divide(1.0, 3.0, false), 1.0 / 3.0);
    assert_eq!(divide(1e38, 2f32.powi(127), false), 0.0);
    assert_eq!(divide(1e38, 2f32.powi(127), true), 1e38 / 2f32.powi(127));
    assert!(divide(f32::INFINITY, 2f32.powi(127), false).is_nan());
}
