//! What several test files share.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses a part")]

pub mod canonical_layout;
pub mod random;
pub mod shared_memory;

use blackwell_sim::matrix::Element;
use random::Random;

/// A code of `element` that is a number near one where the type is wide.
pub fn code(element: Element, random: &mut Random) -> u32 {
    loop {
        let code = match element {
            Element::F16 => (0x3800 + random.below(0x0800)) | (random.below(2) << 15),
            Element::Bf16 => (0x3f00 + random.below(0x0100)) | (random.below(2) << 15),
            Element::Tf32 => (0x3f00_0000 + (random.below(0x400) << 13)) | (random.below(2) << 31),
            _ => random.below(1 << element.bits()),
        };
        if element.decode(code).is_finite() {
            return code;
        }
    }
}

/// Dot products of rows of A (m × k) and B (n × k) in f64.
pub fn product(a: &[f64], b: &[f64], m: usize, n: usize, k: usize) -> Vec<f64> {
    let mut d = vec![0.0; m * n];
    for row in 0..m {
        for column in 0..n {
            d[row * n + column] = (0..k).map(|index| a[row * k + index] * b[column * k + index]).sum();
        }
    }
    d
}
