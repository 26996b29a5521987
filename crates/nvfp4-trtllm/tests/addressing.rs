//! The shuffled weights and the launches together, without a GPU: a GEMM that reads and writes memory only through a launch's
//! tensor maps, in the kernel's tile coordinates, must give the product of the original matrices.
//!
//! What the kernels do with a tile is written here from the vendor's description, not with this project's layout functions:
//! scale tiles, and which output feature an accumulator row is.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use nvfp4_core::{BLOCK_SIZE, GlobalScale, GlobalScales, LinearScales, NvFp4Weights, ScaleLayout};
use nvfp4_cuda::{
    TensorMapSpec,
    tensor_map::{ElementType, MAX_RANK},
};
use nvfp4_testkit::{
    oracle::{e2m1, e4m3},
    random::{Rng, seed},
};
use nvfp4_trtllm::{
    choice::{Problem, valid_tactics},
    launch::{LaunchRecord, Operands, launch_record},
    weights::shuffle_weights,
};

/// Elements of a box, contiguous dimension first; zero outside the tensor. Codes come one a byte.
fn read_box(memory: &[u8], map: &TensorMapSpec, corner: &[u64]) -> Vec<u8> {
    let mut elements = Vec::new();
    let shape: Vec<u64> = map.tile[..map.rank].iter().map(|&extent| u64::from(extent)).collect();
    for index in 0..shape.iter().product::<u64>() {
        let mut rest = index;
        let mut at = [0; MAX_RANK];
        for (dimension, extent) in shape.iter().enumerate() {
            at[dimension] = corner[dimension] + rest % extent;
            rest /= extent;
        }
        if (0..map.rank).any(|dimension| at[dimension] >= map.dims[dimension]) {
            elements.push(0);
            continue;
        }
        let row: u64 = (1..map.rank).map(|dimension| at[dimension] * map.strides[dimension - 1]).sum();
        elements.push(match map.element {
            ElementType::U4Align8B => {
                let byte = memory[(row + at[0] / 2) as usize];
                if at[0].is_multiple_of(2) { byte & 15 } else { byte >> 4 }
            }
            ElementType::U8 => memory[(row + at[0]) as usize],
            other => panic!("no operand has {other:?}"),
        });
    }
    elements
}

/// Operands in host memory.
struct Memory<'a> {
    weight: &'a [u8],
    weight_scales: &'a [u8],
    activation: &'a [u8],
    activation_scales: &'a [u8],
}

/// Runs a launch tile by tile. Returns the output `[m, n]`; what no tile writes is NaN.
fn run(record: &LaunchRecord, memory: &Memory<'_>) -> Vec<f64> {
    let [weight, activation, output, weight_scales, activation_scales] = &record.maps;
    let (tile_k, tile_n) = (u64::from(record.tactic.tile_k), u64::from(record.tactic.tile_n));
    let (n, m) = (output.dims[0], output.dims[1]);
    let row_elements = output.strides[0] / 2;
    let mut out = vec![f64::NAN; (m * row_elements) as usize];
    for tile_column in 0..u64::from(record.config.grid[0]) {
        for tile_row in 0..u64::from(record.config.grid[1]) {
            let mut sums = vec![0.0; (128 * tile_n) as usize];
            for k in (0..record.words.k as u64).step_by(tile_k as usize) {
                let sfa = read_box(memory.weight_scales, weight_scales, &[0, 0, k / 64, tile_column]);
                let sfb = match activation_scales.rank {
                    4 => [0, 0, k / 64, tile_row].to_vec(),
                    _ => [0, k / 64, tile_row * tile_n / 8].to_vec(),
                };
                let sfb = read_box(memory.activation_scales, activation_scales, &sfb);
                // Place of the scale of (row, k) in a tile: 512 bytes hold 128 rows of 64 values; or 32 bytes 8 rows.
                let rows_128 = |row: u64, k: u64| k / 64 * 512 + row % 32 * 16 + row / 32 * 4 + k / 16 % 4;
                let boxes_k = u64::from(activation_scales.tile[1]);
                let rows_8 = |row: u64, k: u64| row / 8 * boxes_k * 32 + k / 64 * 32 + row % 8 * 4 + k / 16 % 4;
                let wide = u64::from(weight.tile[0]);
                for from in (0..tile_k).step_by(wide as usize) {
                    let a = read_box(memory.weight, weight, &[k + from, tile_column * 128]);
                    let b = read_box(memory.activation, activation, &[k + from, tile_row * tile_n]);
                    let values = |codes: &[u8], scales: &[u8], place: &dyn Fn(u64, u64) -> u64| -> Vec<f64> {
                        let at = |i: usize| (i as u64 / wide, from + i as u64 % wide);
                        let scale = |i: usize| e4m3(scales[place(at(i).0, at(i).1) as usize]);
                        codes.iter().enumerate().map(|(i, &code)| e2m1(code) * scale(i)).collect()
                    };
                    let a = values(&a, &sfa, &rows_128);
                    let b = values(&b, &sfb, if activation_scales.rank == 4 { &rows_128 } else { &rows_8 });
                    for (a, sums) in a.chunks_exact(wide as usize).zip(sums.chunks_exact_mut(tile_n as usize)) {
                        for (b, sum) in b.chunks_exact(wide as usize).zip(sums) {
                            *sum += a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                        }
                    }
                }
            }
            // Accumulator row r holds output feature 4 (r mod 8) + r / 8 of its 32; two boxes of 64 features are stored.
            for row in 0..128 {
                let feature = tile_column * 128 + row / 32 * 32 + row % 8 * 4 + row % 32 / 8;
                for token in 0..tile_n {
                    let token_row = tile_row * tile_n + token;
                    if feature < n && token_row < m {
                        out[(token_row * row_elements + feature) as usize] = sums[(row * tile_n + token) as usize];
                    }
                }
            }
        }
    }
    out
}

/// Block scales with few significant bits, so that every sum is exact.
fn random_scales(rng: &mut Rng, count: usize) -> Vec<u8> {
    (0..count).map(|_| rng.between(0x28, 0x48) as u8).collect()
}

#[test]
fn tiles_give_the_product_of_the_original_matrices() {
    let seed = seed();
    let mut rng = Rng::new(seed);
    let mut launches = 0;
    for (m, n, k) in [(1, 32, 64), (7, 100, 80), (9, 96, 192), (32, 352, 64), (33, 130, 448), (130, 16, 528)] {
        let mut bytes = |count: usize| (0..count).map(|_| rng.bits() as u8).collect::<Vec<u8>>();
        let (packed, x) = (bytes(n * k / 2), bytes(m * k / 2));
        let scales = random_scales(&mut rng, n * k / BLOCK_SIZE);
        let scales = LinearScales::new(n, k / BLOCK_SIZE, scales).unwrap();
        let global = GlobalScales::per_tensor(n, GlobalScale::ONE);
        let weights = NvFp4Weights::new(n, k, packed, scales, global).unwrap();
        let x_scales = random_scales(&mut rng, m * k / BLOCK_SIZE);

        let shuffled = shuffle_weights(&weights).unwrap();
        assert_eq!((shuffled.n, shuffled.k), (n.next_multiple_of(32), k.next_multiple_of(64)));
        assert_eq!(shuffled.scales.len(), n.next_multiple_of(128) * shuffled.k / BLOCK_SIZE);

        let wide: Vec<u8> = x
            .chunks(k / 2)
            .flat_map(|row| {
                let mut row = row.to_vec();
                row.resize(shuffled.k / 2, 0);
                row
            })
            .collect();
        let expected = product(&x, &x_scales, &weights, m);
        for layout in [ScaleLayout::Swizzled8x4, ScaleLayout::Swizzled128x4] {
            let x_scales = LinearScales::new(m, k / BLOCK_SIZE, &x_scales[..]).unwrap();
            // Four scales a word: the columns of padding are those that the padded codes have.
            let x_scales = x_scales.swizzle(layout).unwrap().into_bytes();
            assert_eq!(x_scales.len(), layout.len(m, shuffled.k / BLOCK_SIZE).unwrap());
            let memory = Memory {
                weight: &shuffled.codes,
                weight_scales: &shuffled.scales,
                activation: &wide,
                activation_scales: &x_scales,
            };
            let problem = Problem::new(m, shuffled.n, shuffled.k).unwrap();
            for tactic in valid_tactics(problem, layout) {
                let operands = Operands {
                    activation: 0,
                    activation_scales: 0,
                    weight: 0,
                    weight_scales: 0,
                    alpha: 0,
                    output: 0,
                    output_row_bytes: shuffled.n as u64 * 2,
                };
                let found = run(&launch_record(tactic, problem, &operands), &memory);
                for row in 0..m {
                    let (found, expected) = (&found[row * shuffled.n..][..shuffled.n], &expected[row * n..][..n]);
                    assert_eq!(&found[..n], expected, "{} m={m} n={n} k={k} row {row} seed {seed}", tactic.kernel);
                    assert!(found[n..].iter().all(|&padding| padding == 0.0));
                }
                launches += 1;
            }
        }
    }
    assert!(launches > 60, "{launches}");
}

/// `x · Wᵀ` from the unpadded, unshuffled operands, in f64.
fn product(x: &[u8], x_scales: &[u8], weights: &NvFp4Weights<'_>, m: usize) -> Vec<f64> {
    let (n, k) = (weights.out_features(), weights.in_features());
    let value = |codes: &[u8], scales: &[u8], row: usize, at: usize| {
        let byte = codes[(row * k + at) / 2];
        let code = if at.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
        e2m1(code) * e4m3(scales[row * k / BLOCK_SIZE + at / BLOCK_SIZE])
    };
    let dense = |codes: &[u8], scales: &[u8], rows: usize| -> Vec<f64> {
        (0..rows * k).map(|i| value(codes, scales, i / k, i % k)).collect()
    };
    let (x, w) = (dense(x, x_scales, m), dense(weights.packed(), weights.scales().bytes(), n));
    let dot = |row: &[f64], other: &[f64]| row.iter().zip(other).map(|(a, b)| a * b).sum();
    (0..m * n).map(|i| dot(&x[i / n * k..][..k], &w[i % n * k..][..k])).collect()
}
