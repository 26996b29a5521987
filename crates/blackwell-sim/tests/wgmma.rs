//! `wgmma` on every swizzle, major and type against a plain matrix product.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use blackwell_sim::matrix::wgmma::{OperandA, Operands, Wgmma};
use blackwell_sim::matrix::{Element, LaneRegister};
use support::canonical_layout::CanonicalLayout;
use support::random::Random;
use support::shared_memory::SharedMemory;
use support::{code, product};

fn parse(modifiers: &str) -> Wgmma {
    Wgmma::parse(&modifiers.split('.').collect::<Vec<_>>()).unwrap_or_else(|| panic!("wgmma.{modifiers}"))
}

/// A descriptor of `wgmma`: start, offsets and swizzle (PTX ISA, matrix descriptor format).
fn descriptor(start: usize, layout: &CanonicalLayout) -> u64 {
    let mode = [0u64, 3, 2, 1][layout.swizzle as usize];
    (start as u64 >> 4) | (layout.leading as u64 >> 4) << 16 | (layout.stride as u64 >> 4) << 32 | mode << 62
}

fn fill(shared: &mut SharedMemory, start: usize, layout: &CanonicalLayout, codes: &[u32], k: usize, bits: usize) {
    for (index, &code) in codes.iter().enumerate() {
        shared.put(start * 8 + layout.bit(index / k, index % k, bits), bits, code);
    }
}

/// Element i of lane's D: row and column within the warpgroup's tile.
fn d_position(warp: usize, lane: usize, i: usize) -> (usize, usize) {
    (16 * warp + lane / 4 + if i % 4 < 2 { 0 } else { 8 }, i / 4 * 8 + lane % 4 * 2 + i % 2)
}

struct Case<'a> {
    modifiers: &'a str,
    a: &'a str,
    b: &'a str,
    n: usize,
    k: usize,
    swizzle: u32,
    k_major: [bool; 2],
}

fn check(case: &Case<'_>, a_in_registers: bool, scale_d: bool, negate: [bool; 2]) {
    let wgmma = parse(case.modifiers);
    let (a_type, b_type) = (Element::from_name(case.a).unwrap(), Element::from_name(case.b).unwrap());
    let bits = a_type.bits() as usize;
    let (n, k) = (case.n, case.k);
    let mut random = Random(case.modifiers.bytes().map(u64::from).sum::<u64>() + u64::from(case.swizzle));
    let a: Vec<u32> = (0..64 * k).map(|_| code(a_type, &mut random)).collect();
    let b: Vec<u32> = (0..n * k).map(|_| code(b_type, &mut random)).collect();
    let layout_a = CanonicalLayout::dense(case.swizzle, case.k_major[0], 64, k, bits);
    let layout_b = CanonicalLayout::dense(case.swizzle, case.k_major[1], n, k, bits);
    let (start_a, start_b) = (4096, 65536);
    let mut shared = SharedMemory::new();
    fill(&mut shared, start_b, &layout_b, &b, k, bits);
    let mut registers = [[[0; 32]; 4]; 4];
    if a_in_registers {
        let per = 32 / bits;
        for (index, &code) in a.iter().enumerate() {
            let (row, column) = (index / k, index % k);
            let lane = row % 8 * 4 + column / per % 4;
            let register = row / 8 % 2 + 2 * (column / (4 * per));
            registers[row / 16][register][lane] |= code << (column % per * bits);
        }
    } else {
        fill(&mut shared, start_a, &layout_a, &a, k, bits);
    }
    let old = |row: usize, column: usize| (row * 3 + column) as i32 % 32 - 16;
    let packed = wgmma.d_registers() == n / 4;
    let integer = a_type.format().is_none();
    let encode = |value: f64| match (packed, integer) {
        (true, _) => u32::from(half::f16::from_f32(value as f32).to_bits()),
        (_, true) => value as i32 as u32,
        _ => (value as f32).to_bits(),
    };
    let mut d: Vec<Vec<LaneRegister>> = vec![vec![[0; 32]; wgmma.d_registers()]; 4];
    for (warp, registers) in d.iter_mut().enumerate() {
        for i in 0..n / 2 {
            let (index, shift) = if packed { (i / 2, 16 * (i % 2)) } else { (i, 0) };
            for (lane, word) in registers[index].iter_mut().enumerate() {
                let (row, column) = d_position(warp, lane, i);
                *word |= encode(f64::from(old(row, column))) << shift;
            }
        }
    }
    let operands = Operands {
        a: if a_in_registers {
            OperandA::Registers(&registers)
        } else {
            OperandA::Shared(descriptor(start_a, &layout_a))
        },
        b: descriptor(start_b, &layout_b),
        scale_d,
        negate,
        transpose: case.k_major.map(|k_major| !k_major),
    };
    let mut warps = d.iter_mut();
    let mut next = || warps.next().unwrap().as_mut_slice();
    wgmma.execute(&operands, &shared, [next(), next(), next(), next()]).unwrap();

    let values =
        |codes: &[u32], element: Element| codes.iter().map(|&code| element.decode(code)).collect::<Vec<_>>();
    let products = product(&values(&a, a_type), &values(&b, b_type), 64, n, k);
    for (warp, registers) in d.iter().enumerate() {
        for i in 0..n / 2 {
            let (index, shift) = if packed { (i / 2, 16 * (i % 2)) } else { (i, 0) };
            for (lane, word) in registers[index].iter().enumerate() {
                let (row, column) = d_position(warp, lane, i);
                let sign = if negate[0] != negate[1] { -1.0 } else { 1.0 };
                let sum =
                    sign * products[row * n + column] + if scale_d { f64::from(old(row, column)) } else { 0.0 };
                let got = word >> shift & if packed { 0xffff } else { u32::MAX };
                assert_eq!(
                    got,
                    encode(sum),
                    "wgmma.{} swizzle {} row {row} column {column}",
                    case.modifiers,
                    case.swizzle
                );
            }
        }
    }
}

#[test]
fn k_major_operands_in_every_swizzle() {
    for swizzle in 1..4 {
        for (a, b, d, k) in [
            ("bf16", "bf16", "f32", 16),
            ("f16", "f16", "f32", 16),
            ("f16", "f16", "f16", 16),
            ("tf32", "tf32", "f32", 8),
            ("e4m3", "e5m2", "f32", 32),
            ("e5m2", "e4m3", "f32", 32),
            ("s8", "u8", "s32", 32),
        ] {
            let modifiers = format!("sync.aligned.m64n32k{k}.{d}.{a}.{b}");
            check(
                &Case { modifiers: &modifiers, a, b, n: 32, k, swizzle, k_major: [true; 2] },
                false,
                true,
                [false; 2],
            );
        }
    }
    let case = Case {
        modifiers: "sync.aligned.m64n256k16.f32.bf16.bf16",
        a: "bf16",
        b: "bf16",
        n: 256,
        k: 16,
        swizzle: 0,
        k_major: [true; 2],
    };
    check(&case, false, true, [false; 2]);
}

#[test]
fn transposed_operands_in_every_swizzle() {
    for swizzle in 0..4 {
        for k_major in [[false, true], [true, false], [false, false]] {
            let modifiers = "sync.aligned.m64n64k16.f32.f16.f16";
            check(&Case { modifiers, a: "f16", b: "f16", n: 64, k: 16, swizzle, k_major }, false, true, [false; 2]);
        }
    }
}

#[test]
fn a_in_registers_negation_and_a_fresh_accumulator() {
    for (modifiers, element, k) in [
        ("sync.aligned.m64n8k16.f32.bf16.bf16", "bf16", 16),
        ("sync.aligned.m64n8k8.f32.tf32.tf32", "tf32", 8),
        ("sync.aligned.m64n8k32.f32.e4m3.e4m3", "e4m3", 32),
        ("sync.aligned.m64n8k32.s32.s8.s8", "s8", 32),
    ] {
        for negate in [[false, false], [true, false], [true, true]] {
            let case = Case { modifiers, a: element, b: element, n: 8, k, swizzle: 3, k_major: [true; 2] };
            check(&case, true, false, negate);
        }
    }
}

#[test]
fn a_start_inside_the_swizzled_span_moves_along_k() {
    // Four k-steps of 16 bf16 in one 128-byte span: the descriptor's start advances by 32 bytes.
    let layout = CanonicalLayout::dense(3, true, 64, 64, 16);
    let mut random = Random(5);
    let codes: Vec<u32> = (0..64 * 64).map(|_| code(Element::Bf16, &mut random)).collect();
    let mut shared = SharedMemory::new();
    fill(&mut shared, 1024, &layout, &codes, 64, 16);
    let wgmma = parse("sync.aligned.m64n64k16.f32.bf16.bf16");
    let mut d = vec![vec![[0; 32]; 32]; 4];
    for step in 0..4 {
        let both = descriptor(1024 + 32 * step, &layout);
        let operands = Operands {
            a: OperandA::Shared(both),
            b: both,
            scale_d: step > 0,
            negate: [false; 2],
            transpose: [false; 2],
        };
        let mut warps = d.iter_mut();
        let mut next = || warps.next().unwrap().as_mut_slice();
        wgmma.execute(&operands, &shared, [next(), next(), next(), next()]).unwrap();
    }
    let values: Vec<f64> = codes.iter().map(|&code| Element::Bf16.decode(code)).collect();
    let products = product(&values, &values, 64, 64, 64);
    for (warp, registers) in d.iter().enumerate() {
        for lane in 0..32 {
            for (i, register) in registers.iter().enumerate() {
                let (row, column) = d_position(warp, lane, i);
                let (got, want) = (f64::from(f32::from_bits(register[lane])), products[row * 64 + column]);
                assert!(
                    (got - want).abs() <= 64.0 * 2f64.powi(-22),
                    "row {row} column {column}: {got} rather than {want}"
                );
            }
        }
    }
}

#[test]
fn faults_name_the_operand() {
    let wgmma = parse("sync.aligned.m64n8k32.f32.e4m3.e4m3");
    let shared = SharedMemory::new();
    let mut d = vec![vec![[0; 32]; 4]; 4];
    let mut run = |a: u64, transpose: [bool; 2]| {
        let operands = Operands { a: OperandA::Shared(a), b: 0, scale_d: false, negate: [false; 2], transpose };
        let mut warps = d.iter_mut();
        let mut next = || warps.next().unwrap().as_mut_slice();
        wgmma.execute(&operands, &shared, [next(), next(), next(), next()])
    };
    assert!(run(0, [false, true]).is_err(), "8-bit operands cannot be transposed");
    assert!(run(1 << 49, [false; 2]).is_err(), "a base offset");
    assert!(run(0, [false; 2]).is_err(), "unwritten shared memory");
}

#[test]
fn forms_that_ptx_lacks_are_not_parsed() {
    for modifiers in [
        "sync.aligned.m64n12k16.f32.bf16.bf16",
        "sync.aligned.m64n264k16.f32.bf16.bf16",
        "sync.aligned.m64n8k8.f32.bf16.bf16",
        "sync.aligned.m64n8k16.f16.bf16.bf16",
        "sync.aligned.m64n40k32.s32.s8.s8",
        "sync.aligned.m64n8k16.satfinite.f32.bf16.bf16",
        "sync.aligned.f32.bf16.bf16",
    ] {
        assert_eq!(Wgmma::parse(&modifiers.split('.').collect::<Vec<_>>()), None, "wgmma.{modifiers}");
    }
}
