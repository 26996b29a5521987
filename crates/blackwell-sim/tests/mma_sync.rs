//! `mma.sync` against a plain matrix product; fragments are packed by the PTX ISA's formulas, element by element.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use blackwell_sim::matrix::mma_sync::{MmaSync, Operands, ScaleOperand};
use blackwell_sim::matrix::{Element, ScaleFormat};
use support::code;
use support::random::Random;

/// Matrix position of element `i` of a lane's fragment of A, by the tables of PTX ISA 9.7.14.5 for each element width.
fn a_position(bits: u32, m: usize, lane: usize, i: usize) -> (usize, usize) {
    let (group, thread) = (lane / 4, lane % 4);
    let per = 32 / bits as usize;
    if m == 8 {
        return (group, thread * per + i % per);
    }
    let row = if (i / per).is_multiple_of(2) { group } else { group + 8 };
    let column = thread * per + i % per + if i < 2 * per { 0 } else { 4 * per };
    (row, column)
}

fn b_position(bits: u32, lane: usize, i: usize) -> (usize, usize) {
    let (group, thread) = (lane / 4, lane % 4);
    let per = 32 / bits as usize;
    (thread * per + i % per + if i < per { 0 } else { 4 * per }, group)
}

fn c_position(lane: usize, i: usize) -> (usize, usize) {
    (if i < 2 { lane / 4 } else { lane / 4 + 8 }, lane % 4 * 2 + (i & 1))
}

/// Runs an instruction on random data and compares with the product of the matrices, summed in f64.
fn check(
    modifiers: &str,
    m: usize,
    k: usize,
    a_type: &str,
    b_type: &str,
    d_type: &str,
    scaled: Option<(&str, usize)>,
) {
    let parts: Vec<&str> = modifiers.split('.').collect();
    let mma = MmaSync::parse(&parts).unwrap_or_else(|| panic!("mma.{modifiers}"));
    let (a_element, b_element) = (Element::from_name(a_type).unwrap(), Element::from_name(b_type).unwrap());
    let in_bytes = modifiers.contains("f8f6f4");
    let width = |element: Element| if in_bytes { 8 } else { element.bits() };
    let shift = |element: Element| if in_bytes && element == Element::E2m1 { 2 } else { 0 };
    let mut random = Random(modifiers.bytes().map(u64::from).sum());
    let a: Vec<u32> = (0..m * k).map(|_| code(a_element, &mut random)).collect();
    let b: Vec<u32> = (0..k * 8).map(|_| code(b_element, &mut random)).collect();
    let integer = d_type == "s32";
    let c: Vec<f64> = (0..m * 8).map(|_| f64::from(random.below(64)) - 32.0).collect();

    let mut operands = Operands { a: [[0; 32]; 4], b: [[0; 32]; 2], c: [[0; 32]; 4], scales: None };
    for lane in 0..32 {
        let per = 32 / width(a_element) as usize;
        for i in 0..m * k / 32 {
            let (row, column) = a_position(width(a_element), m, lane, i);
            operands.a[i / per][lane] |=
                a[row * k + column] << (i % per * width(a_element) as usize + shift(a_element));
        }
        let per = 32 / width(b_element) as usize;
        for i in 0..k * 8 / 32 {
            let (row, column) = b_position(width(b_element), lane, i);
            operands.b[i / per][lane] |=
                b[row * 8 + column] << (i % per * width(b_element) as usize + shift(b_element));
        }
        for i in 0..m * 8 / 32 {
            let (row, column) = c_position(lane, i);
            let value = c[row * 8 + column];
            match d_type {
                "f32" => operands.c[i][lane] = (value as f32).to_bits(),
                "s32" => operands.c[i][lane] = value as i32 as u32,
                _ => operands.c[i / 2][lane] |= u32::from(half::f16::from_f64(value).to_bits()) << (16 * (i % 2)),
            }
        }
    }
    let (mut scale_a, mut scale_b) = (vec![1.0; m * k], vec![1.0; k * 8]);
    if let Some((format_name, count)) = scaled {
        let format = ScaleFormat::from_name(format_name).unwrap();
        let mut code = |_| match format {
            ScaleFormat::Ue8m0 => 120 + random.below(14) as u8,
            ScaleFormat::Ue4m3 => 1 + random.below(0x7d) as u8,
        };
        let codes_a: Vec<u8> = (0..m * count).map(&mut code).collect();
        let codes_b: Vec<u8> = (0..8 * count).map(&mut code).collect();
        let (thread_a, thread_b, byte) = (1, 3, if count == 4 { 0 } else { 2 });
        let mut data = [[0u32; 32]; 2];
        for row in 0..m {
            // The pair of lanes 2·selector and 2·selector + 1 of the quad of row mod 8; the second has the row + 8.
            let lane = row % 8 * 4 + 2 * thread_a + row / 8;
            for index in 0..count {
                data[0][lane] |= u32::from(codes_a[row * count + index]) << (8 * (byte + index));
            }
        }
        for column in 0..8 {
            for index in 0..count {
                data[1][column * 4 + thread_b] |=
                    u32::from(codes_b[column * count + index]) << (8 * (byte + index));
            }
        }
        let selectors = [(thread_a as u32, byte as u32), (thread_b as u32, byte as u32)];
        let [first, second] =
            [0, 1].map(|i| ScaleOperand { data: data[i], byte: selectors[i].1, thread: selectors[i].0 });
        operands.scales = Some([first, second]);
        let block = k / count;
        for row in 0..m {
            for column in 0..k {
                scale_a[row * k + column] = format.decode(codes_a[row * count + column / block]);
            }
        }
        for row in 0..k {
            for column in 0..8 {
                scale_b[row * 8 + column] = format.decode(codes_b[column * count + row / block]);
            }
        }
    }
    let d = mma.execute(&operands).unwrap();
    let counts = mma.registers();
    assert_eq!(counts.a, m * k * width(a_element) as usize / 1024, "mma.{modifiers}: registers of A");
    assert_eq!(counts.b, k * 8 * width(b_element) as usize / 1024, "mma.{modifiers}: registers of B");
    for i in 0..m * 8 / 32 {
        let (register, shift) = if d_type == "f16" { (i / 2, 16 * (i % 2)) } else { (i, 0) };
        for (lane, word) in d[register].iter().map(|word| word >> shift).enumerate() {
            let (row, column) = c_position(lane, i);
            let mut sum = 0.0;
            for index in 0..k {
                let x = a_element.decode(a[row * k + index]) * scale_a[row * k + index];
                let y = b_element.decode(b[index * 8 + column]) * scale_b[index * 8 + column];
                sum += x * y;
            }
            sum += c[row * 8 + column];
            let got = match d_type {
                "f32" => f64::from(f32::from_bits(word)),
                "s32" => f64::from(word as i32),
                _ => half::f16::from_bits(word as u16).to_f64(),
            };
            let expected = match d_type {
                "f32" => f64::from(sum as f32),
                "s32" => sum,
                _ => half::f16::from_f32(sum as f32).to_f64(),
            };
            assert_eq!(got, expected, "mma.{modifiers}: row {row} column {column}");
        }
    }
    assert!(!integer || d.iter().flatten().any(|&word| word != 0));
}

#[test]
fn dense_shapes_of_every_type_give_the_product() {
    for d in ["f32", "f16"] {
        for k in [8, 16] {
            check(&format!("sync.aligned.m16n8k{k}.row.col.{d}.f16.f16.{d}"), 16, k, "f16", "f16", d, None);
        }
    }
    for k in [8, 16] {
        check(&format!("sync.aligned.m16n8k{k}.row.col.f32.bf16.bf16.f32"), 16, k, "bf16", "bf16", "f32", None);
    }
    for k in [4, 8] {
        check(&format!("sync.aligned.m16n8k{k}.row.col.f32.tf32.tf32.f32"), 16, k, "tf32", "tf32", "f32", None);
    }
    for (a, b) in [("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e4m3", "e4m3")] {
        for k in [16, 32] {
            check(&format!("sync.aligned.m16n8k{k}.row.col.f32.{a}.{b}.f32"), 16, k, a, b, "f32", None);
        }
    }
    for (a, b) in [("s8", "u8"), ("u8", "u8"), ("s8", "s8")] {
        for (m, k) in [(8, 16), (16, 16), (16, 32)] {
            let modifiers = format!("sync.aligned.m{m}n8k{k}.row.col.s32.{a}.{b}.s32");
            check(&modifiers, m, k, a, b, "s32", None);
        }
    }
}

#[test]
fn mixed_narrow_floats_lie_in_bytes() {
    let types = ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"];
    for a in types {
        for b in types {
            let plain = format!("sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.{a}.{b}.f32");
            check(&plain, 16, 32, a, b, "f32", None);
            let scaled = format!(
                "sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.{a}.{b}.f32.ue8m0"
            );
            check(&scaled, 16, 32, a, b, "f32", Some(("ue8m0", 1)));
        }
    }
}

#[test]
fn four_bit_block_scaled_shapes_give_the_scaled_product() {
    let modifiers = |kind: &str, vector: &str, scale: &str| {
        format!("sync.aligned.m16n8k64.row.col.kind::{kind}.block_scale{vector}.f32.e2m1.e2m1.f32.{scale}")
    };
    check(&modifiers("mxf4nvf4", ".scale_vec::4X", "ue4m3"), 16, 64, "e2m1", "e2m1", "f32", Some(("ue4m3", 4)));
    check(&modifiers("mxf4nvf4", ".scale_vec::4X", "ue8m0"), 16, 64, "e2m1", "e2m1", "f32", Some(("ue8m0", 4)));
    check(&modifiers("mxf4nvf4", ".scale_vec::2X", "ue8m0"), 16, 64, "e2m1", "e2m1", "f32", Some(("ue8m0", 2)));
    check(&modifiers("mxf4", "", "ue8m0"), 16, 64, "e2m1", "e2m1", "f32", Some(("ue8m0", 2)));
}

#[test]
fn nvfp4_sums_are_exact_before_they_are_rounded() {
    // Scales at both ends of e4m3 in one sum: 2^-9 · 2^-9 · 0.25 = 2^-20 beside 448 · 448 · 36.
    let modifiers = ["sync", "aligned", "m16n8k64", "row", "col", "kind::mxf4nvf4", "block_scale", "scale_vec::4X"];
    let modifiers: Vec<&str> = modifiers.into_iter().chain(["f32", "e2m1", "e2m1", "f32", "ue4m3"]).collect();
    let mma = MmaSync::parse(&modifiers).unwrap();
    let mut operands = Operands { a: [[0; 32]; 4], b: [[0; 32]; 2], c: [[0; 32]; 4], scales: None };
    // Row 0: k = 0 is 6, k = 16 is −6, k = 32 is 0.5; columns alike, so that the large products cancel.
    operands.a[0][0] = 0x7;
    operands.a[0][2] = 0xf;
    operands.a[2][0] = 0x1;
    operands.b[0][0] = 0x7;
    operands.b[0][2] = 0x7;
    operands.b[1][0] = 0x1;
    let scale = ScaleOperand { data: [0x0001_7e7e; 32], byte: 0, thread: 0 };
    operands.scales = Some([scale, scale]);
    let d = mma.execute(&operands).unwrap();
    assert_eq!(f32::from_bits(d[0][0]), 2f32.powi(-20));
}

#[test]
fn special_values_and_integer_overflow() {
    let parse = |modifiers: &str| MmaSync::parse(&modifiers.split('.').collect::<Vec<_>>()).unwrap();
    let bf16 = parse("sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32");
    let mut operands = Operands { a: [[0; 32]; 4], b: [[0; 32]; 2], c: [[0; 32]; 4], scales: None };
    operands.a[0][0] = 0x7f80;
    let d = bf16.execute(&operands).unwrap();
    assert_eq!(d[0][0], 0x7fff_ffff, "infinity times zero");
    let wrapping = parse("sync.aligned.m16n8k16.row.col.s32.s8.s8.s32");
    let clamping = parse("sync.aligned.m16n8k16.row.col.satfinite.s32.s8.s8.s32");
    let mut operands =
        Operands { a: [[0x7f7f_7f7f; 32]; 4], b: [[0x7f7f_7f7f; 32]; 2], c: [[0; 32]; 4], scales: None };
    operands.c = [[i32::MAX as u32; 32]; 4];
    let sum = 16 * 127 * 127;
    assert_eq!(wrapping.execute(&operands).unwrap()[0][0], i32::MAX.wrapping_add(sum) as u32);
    assert_eq!(clamping.execute(&operands).unwrap()[0][0], i32::MAX as u32);
}

#[test]
fn undefined_selectors_and_missing_scales_are_faults() {
    let modifiers =
        "sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3";
    let mma = MmaSync::parse(&modifiers.split('.').collect::<Vec<_>>()).unwrap();
    assert!(mma.is_block_scaled());
    let good = ScaleOperand { data: [0; 32], byte: 0, thread: 1 };
    let mut operands = Operands { a: [[0; 32]; 4], b: [[0; 32]; 2], c: [[0; 32]; 4], scales: None };
    assert!(mma.execute(&operands).is_err());
    for (a, b) in [
        (ScaleOperand { byte: 1, ..good }, good),
        (ScaleOperand { thread: 2, ..good }, good),
        (good, ScaleOperand { byte: 4, ..good }),
        (good, ScaleOperand { thread: 4, ..good }),
    ] {
        operands.scales = Some([a, b]);
        assert!(mma.execute(&operands).is_err(), "{a:?} {b:?}");
    }
    operands.scales = Some([good, ScaleOperand { thread: 3, ..good }]);
    assert!(mma.execute(&operands).is_ok());
}

#[test]
fn combinations_that_ptx_lacks_are_not_parsed() {
    for modifiers in [
        "sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
        "sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16",
        "sync.aligned.m16n8k16.row.col.f32.f16.f16.f16",
        "sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.f32.e2m1.e2m1.f32.ue4m3",
        "sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue4m3",
        "sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue8m0",
        "sync.aligned.m8n8k4.row.col.f64.f64.f64.f64",
        "sync.aligned.m16n8k16.row.col.satfinite.f32.f16.f16.f32",
        "sync.aligned.m16n8.row.col.f32.f16.f16.f32",
    ] {
        assert_eq!(MmaSync::parse(&modifiers.split('.').collect::<Vec<_>>()), None, "mma.{modifiers}");
    }
}
