//! Every quantization variant, bit for bit.

use crate::{
    oracle::Oracles,
    setup::{Activation, Gpu, Random, round, seed},
};
use nvfp4_core::{DType, GlobalScale, ScaleLayout, quantize::QuantizeOptions};
use nvfp4_cuda::{
    DeviceBuffer, Stream,
    quantize::{InputScale, QuantizeOutput},
};

pub(crate) const TESTS: &[crate::Test] = &[
    ("quantize::every_variant_bit_for_bit", every_variant),
    ("quantize::edge_inputs", edge_inputs),
    ("quantize::strided_and_misaligned", strided_and_misaligned),
    ("quantize::rows_do_not_mix", rows_do_not_mix),
    ("quantize::padded_n", padded_n),
    ("quantize::per_token", per_token),
    ("quantize::dynamic_tensor_scale", dynamic_tensor_scale),
    ("quantize::silu_and_mul", silu_and_mul),
    ("quantize::onto_the_grid", onto_the_grid),
    ("quantize::no_rows", no_rows),
    ("quantize::many_rows", many_rows),
    ("quantize::no_scale_row_is_zero", no_scale_row_is_zero),
    ("quantize::refuses_bad_operands", refuses_bad_operands),
];

const LAYOUTS: [ScaleLayout; 3] = [ScaleLayout::Linear, ScaleLayout::Swizzled128x4, ScaleLayout::Swizzled8x4];
const DTYPES: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];
const POISON: [u8; 4] = [0xff, 0x00, 0x7e, 0x7f];

fn options(layout: ScaleLayout, padded_n: Option<usize>, exact: bool) -> QuantizeOptions {
    QuantizeOptions { layout, padded_n, exact }
}

/// Codes and scales of the device, from buffers filled with `poison` before.
fn run(gpu: &Gpu, x: &Activation, scale: InputScale, options: QuantizeOptions, poison: u8) -> (Vec<u8>, Vec<u8>) {
    let stream = Stream::new(&gpu.device).unwrap();
    let mut out = gpu.quantizer.allocate(x.dtype, x.rows, x.cols, options).unwrap();
    out.data.fill(stream.as_ref(), poison).unwrap();
    out.scale.fill(stream.as_ref(), poison).unwrap();
    let output = QuantizeOutput { codes: out.data.as_bytes_mut(), scales: out.scale.as_bytes_mut() };
    gpu.quantizer.quantize(stream.as_ref(), x.matrix(), scale, options, output).unwrap();
    stream.as_ref().synchronize().unwrap();
    (out.data.to_host().unwrap(), out.scale.to_host().unwrap())
}

/// What the device must write, padding included. `encode` gives the scale of a row.
fn expected(
    x: &Activation,
    options: QuantizeOptions,
    mut block: impl FnMut(usize, &[f32]) -> (u8, [u8; 8]),
) -> (Vec<u8>, Vec<u8>) {
    let padded = options.padded_n.unwrap_or(x.cols);
    let columns = padded / 16;
    let mut codes = vec![0; x.rows * padded / 2];
    let mut scales = vec![0; options.layout.len(x.rows, columns).unwrap()];
    for row in 0..x.rows {
        for column in 0..x.cols / 16 {
            let at = row * x.cols + column * 16;
            let (byte, packed) = block(row, &x.values[at..at + 16]);
            let to = row * padded / 2 + column * 8;
            codes[to..to + 8].copy_from_slice(&packed);
            scales[options.layout.offset(row, column, columns)] = byte;
        }
    }
    (codes, scales)
}

#[track_caller]
fn assert_equal(found: &(Vec<u8>, Vec<u8>), expected: &(Vec<u8>, Vec<u8>), what: &str) {
    for (name, found, expected) in [("scales", &found.1, &expected.1), ("codes", &found.0, &expected.0)] {
        assert_eq!(found.len(), expected.len(), "{what}: bytes of {name}");
        let wrong: Vec<_> = (0..found.len()).filter(|&i| found[i] != expected[i]).collect();
        if let Some(&at) = wrong.first() {
            panic!(
                "{what}: {} of {} {name} bytes differ, first at {at}: found {:02x?}, expected {:02x?}",
                wrong.len(),
                found.len(),
                &found[at..(at + 8).min(found.len())],
                &expected[at..(at + 8).min(found.len())]
            );
        }
    }
}

/// Sizes that meet every tile edge.
const ROWS: [usize; 16] = [1, 2, 7, 8, 9, 16, 31, 32, 33, 64, 65, 127, 128, 129, 257, 512];
const COLUMNS: [usize; 10] = [16, 48, 64, 80, 112, 128, 240, 464, 1856, 3696];

fn every_variant(gpu: &Gpu) {
    let seed = seed();
    let mut random = Random(seed);
    for exact in [false, true] {
        let mut oracles = Oracles::new(gpu, exact);
        for dtype in DTYPES {
            for layout in LAYOUTS {
                for (i, &m) in ROWS.iter().enumerate() {
                    let k = COLUMNS[(i + random.below(COLUMNS.len() as u64) as usize) % COLUMNS.len()];
                    // A scale that fits, or one that saturates or underflows many blocks.
                    let magnitude = [1.0, 1.0, 300.0, 3e-4][random.below(4) as usize];
                    let encode =
                        2688.0 / 5.0 * (0.5 + random.uniform()) / [1.0, magnitude][random.below(2) as usize];
                    let x = Activation::dense(gpu, dtype, m, k, |_, c| {
                        random.normal() * magnitude * 2f32.powi((c / 16 % 7) as i32 - 3)
                    });
                    let scale = GlobalScale::from_encode(encode).unwrap();
                    let options = options(layout, None, exact);
                    let oracle = oracles.encode(encode);
                    let expected = expected(&x, options, |_, v| oracle.block(v));
                    let poison = POISON[i % 4];
                    let found = run(gpu, &x, InputScale::Static(scale.encode()), options, poison);
                    let what = format!(
                        "{dtype} {layout:?} m={m} k={k} G={encode} exact={exact} poison={poison:#04x} NVFP4_SEED={seed}"
                    );
                    assert_equal(&found, &expected, &what);
                }
            }
        }
    }
}

/// Zeros of both signs, ties, subnormals, the largest numbers, infinities, NaN (one, and a whole block).
fn edge_inputs(gpu: &Gpu) {
    let ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0];
    let k = 16 * 12;
    let value = |row: usize, c: usize| -> f32 {
        let (block, i) = (c / 16, c % 16);
        let sign = if i % 2 == 0 { 1.0 } else { -1.0 };
        match block {
            0 => 0.0 * sign,
            1 => sign * ties[i / 2],
            2 => sign * ties[i / 2] * 1.007_812_5,
            3 => sign * f32::from_bits(i as u32 + 1),
            4 => sign * 1e-30 * i as f32,
            5 => sign * 6e4,
            6 if i == 3 => f32::INFINITY,
            7 if i == 5 => f32::NEG_INFINITY,
            8 if i == 7 => f32::NAN,
            9 => f32::NAN,
            10 => i as f32,
            _ => sign * (row as f32 + 1.0) * (i as f32 + 0.5) * 2f32.powi(row as i32 % 40 - 20),
        }
    };
    for exact in [false, true] {
        let mut oracles = Oracles::new(gpu, exact);
        for encode in [1.0, 2688.0, 0.37, 448.0, 0.001, 1e6, 179.2, 1e30, 1e-30] {
            for dtype in DTYPES {
                for layout in LAYOUTS {
                    let x = Activation::dense(gpu, dtype, 40, k, value);
                    let options = options(layout, None, exact);
                    let oracle = oracles.encode(encode);
                    let expected = expected(&x, options, |_, v| oracle.block(v));
                    let scale = GlobalScale::from_encode(encode).unwrap();
                    let found = run(gpu, &x, InputScale::Static(scale.encode()), options, 0xff);
                    assert_equal(&found, &expected, &format!("{dtype} {layout:?} G={encode} exact={exact}"));
                }
            }
        }
    }
}

/// Rows further apart than they are long, and starting off any vector boundary; what lies between is NaN.
fn strided_and_misaligned(gpu: &Gpu) {
    let seed = seed();
    let mut random = Random(seed);
    let mut oracles = Oracles::new(gpu, false);
    let scale = GlobalScale::from_encode(500.0).unwrap();
    for dtype in DTYPES {
        for (stride, offset) in [(64, 0), (64, 1), (49, 0), (48, 3), (72, 8), (56, 4)] {
            for layout in LAYOUTS {
                let x = Activation::new(gpu, dtype, (37, 48), (stride, offset), |_, _| random.normal());
                let options = options(layout, None, false);
                let oracle = oracles.encode(500.0);
                let expected = expected(&x, options, |_, v| oracle.block(v));
                let found = run(gpu, &x, InputScale::Static(scale.encode()), options, 0x7f);
                let what = format!("{dtype} {layout:?} stride={stride} offset={offset} NVFP4_SEED={seed}");
                assert_equal(&found, &expected, &what);
            }
        }
    }
}

/// Rows of NaN, infinity, 1e38 or zeros behind eight real rows leave those as they are alone.
fn rows_do_not_mix(gpu: &Gpu) {
    let seed = seed();
    let scale = InputScale::Static(GlobalScale::from_encode(300.0).unwrap().encode());
    for layout in LAYOUTS {
        let options = options(layout, None, false);
        let real = |r: usize, c: usize| Random(seed ^ (r * 4096 + c) as u64).normal();
        let alone = run(gpu, &Activation::dense(gpu, DType::Bf16, 8, 256, real), scale, options, 0);
        for junk in [f32::NAN, f32::INFINITY, 1e38, 0.0] {
            let x = Activation::dense(gpu, DType::Bf16, 64, 256, |r, c| if r < 8 { real(r, c) } else { junk });
            let found = run(gpu, &x, scale, options, 0);
            assert_eq!(found.0[..8 * 128], alone.0[..], "codes beside rows of {junk}, {layout:?}");
            for (row, column) in (0..8).flat_map(|r| (0..16).map(move |c| (r, c))) {
                let at = layout.offset(row, column, 16);
                assert_eq!(found.1[at], alone.1[at], "scale ({row}, {column}) beside rows of {junk}, {layout:?}");
            }
        }
    }
}

fn padded_n(gpu: &Gpu) {
    let mut random = Random(seed());
    let mut oracles = Oracles::new(gpu, false);
    let scale = GlobalScale::from_encode(400.0).unwrap();
    for (k, padded) in [(80, 96), (3696, 3712), (48, 64), (16, 512)] {
        for layout in [ScaleLayout::Linear, ScaleLayout::Swizzled128x4] {
            for poison in POISON {
                let x = Activation::dense(gpu, DType::F16, 33, k, |_, _| random.normal());
                let options = options(layout, Some(padded), false);
                let oracle = oracles.encode(400.0);
                let expected = expected(&x, options, |_, v| oracle.block(v));
                let found = run(gpu, &x, InputScale::Static(scale.encode()), options, poison);
                assert_equal(
                    &found,
                    &expected,
                    &format!("{layout:?} k={k} padded_n={padded} poison={poison:#04x}"),
                );
            }
        }
    }
}

fn per_token(gpu: &Gpu) {
    let seed = seed();
    let mut random = Random(seed);
    let stream = Stream::new(&gpu.device).unwrap();
    for exact in [false, true] {
        let mut oracles = Oracles::new(gpu, exact);
        for dtype in DTYPES {
            for (m, k) in [(1, 64), (9, 4112), (130, 240), (257, 16)] {
                // Row 3, where there is one, is zero: codes and scales 0, not NaN.
                let x = Activation::dense(gpu, dtype, m, k, |r, _| {
                    if r == 3 { 0.0 } else { random.normal() * (r as f32 + 0.1) }
                });
                let mut decode = DeviceBuffer::new(&gpu.device, m * 4).unwrap();
                gpu.quantizer.row_scales(stream.as_ref(), x.matrix(), decode.as_bytes_mut()).unwrap();
                let rows: Vec<f32> = decode
                    .to_host()
                    .unwrap()
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
                    .collect();
                for (row, &found) in rows.iter().enumerate() {
                    let amax = x.values[row * k..(row + 1) * k].iter().fold(0f32, |a, v| a.max(v.abs()));
                    assert_eq!(
                        found.to_bits(),
                        (amax / 2688.0).to_bits(),
                        "row {row} of {m}x{k} NVFP4_SEED={seed}"
                    );
                }
                for layout in LAYOUTS {
                    let options = options(layout, None, exact);
                    let expected = expected(&x, options, |row, v| oracles.of_decode(rows[row]).block(v));
                    let scale = InputScale::PerToken { decode: decode.address() };
                    let found = run(gpu, &x, scale, options, 0xff);
                    let what = format!("{dtype} {layout:?} m={m} k={k} exact={exact} NVFP4_SEED={seed}");
                    assert_equal(&found, &expected, &what);
                }
            }
        }
    }
}

fn dynamic_tensor_scale(gpu: &Gpu) {
    let seed = seed();
    let mut random = Random(seed);
    let stream = Stream::new(&gpu.device).unwrap();
    let mut oracles = Oracles::new(gpu, false);
    for dtype in DTYPES {
        for (m, k, factor) in [(1, 16, 1.0), (300, 240, 1e-3), (2500, 64, 40.0), (5, 3696, 0.0)] {
            let x = Activation::dense(gpu, dtype, m, k, |_, _| random.normal() * factor);
            let mut scales = DeviceBuffer::new(&gpu.device, 12).unwrap();
            scales.fill(stream.as_ref(), 0xff).unwrap();
            gpu.quantizer.tensor_scale(stream.as_ref(), x.matrix(), scales.as_bytes_mut()).unwrap();
            let options = options(ScaleLayout::Swizzled128x4, None, false);
            let mut out = gpu.quantizer.allocate(dtype, m, k, options).unwrap();
            let output = QuantizeOutput { codes: out.data.as_bytes_mut(), scales: out.scale.as_bytes_mut() };
            let scale = InputScale::Device { encode: scales.address() };
            gpu.quantizer.quantize(stream.as_ref(), x.matrix(), scale, options, output).unwrap();
            stream.as_ref().synchronize().unwrap();

            let amax = x.values.iter().fold(0f32, |a, v| a.max(v.abs()));
            let decode = if amax > 0.0 { amax / 2688.0 } else { 1.0 };
            let host = scales.to_host().unwrap();
            let word = |i: usize| f32::from_le_bytes(host[i * 4..i * 4 + 4].try_into().unwrap());
            assert_eq!((word(0), word(1)), (1.0 / decode, decode), "{dtype} {m}x{k} NVFP4_SEED={seed}");
            let oracle = oracles.encode(1.0 / decode);
            let expected = expected(&x, options, |_, v| oracle.block(v));
            let found = (out.data.to_host().unwrap(), out.scale.to_host().unwrap());
            assert_equal(&found, &expected, &format!("{dtype} {m}x{k} NVFP4_SEED={seed}"));
        }
    }
}

/// The product is within one unit in the last place of its type of the f64 result: `exp` is not correctly rounded on
/// either side. So a block must equal the quantization of products that are: nearly all equal that of the f64 ones,
/// and where one does not, no value is further off than a step of the grid.
fn silu_and_mul(gpu: &Gpu) {
    let seed = seed();
    let mut random = Random(seed);
    let stream = Stream::new(&gpu.device).unwrap();
    let mut oracles = Oracles::new(gpu, false);
    let encode = 300.0;
    for dtype in DTYPES {
        for layout in LAYOUTS {
            let (m, k) = (67, 464);
            let x = Activation::dense(gpu, dtype, m, 2 * k, |_, _| 2.0 * random.normal());
            let product = |row: usize, c: usize| {
                let (gate, up) = (f64::from(x.values[row * 2 * k + c]), x.values[row * 2 * k + k + c]);
                round(dtype, ((gate / (1.0 + (-gate).exp())) * f64::from(up)) as f32)
            };
            let products = Activation::dense(gpu, dtype, m, k, product);
            let options = options(layout, None, false);
            let oracle = oracles.encode(encode);
            let expected = expected(&products, options, |_, v| oracle.block(v));
            let mut out = gpu.quantizer.allocate(dtype, m, k, options).unwrap();
            out.data.fill(stream.as_ref(), 0xff).unwrap();
            out.scale.fill(stream.as_ref(), 0xff).unwrap();
            let output = QuantizeOutput { codes: out.data.as_bytes_mut(), scales: out.scale.as_bytes_mut() };
            let scale = InputScale::Static(GlobalScale::from_encode(encode).unwrap().encode());
            gpu.quantizer.silu_and_mul_quantize(stream.as_ref(), x.matrix(), scale, options, output).unwrap();
            let (codes, scales) = (out.data.to_host().unwrap(), out.scale.to_host().unwrap());
            let what = format!("{dtype} {layout:?} NVFP4_SEED={seed}");
            let differing = codes.iter().zip(&expected.0).filter(|(a, b)| a != b).count()
                + scales.iter().zip(&expected.1).filter(|(a, b)| a != b).count();
            assert!(differing * 200 < codes.len(), "{what}: {differing} of {} bytes differ", codes.len());
            let step = |a: u8, b: u8| (i32::from(a & 7) - i32::from(b & 7)).abs();
            for (a, b) in codes.iter().zip(&expected.0) {
                assert!(step(*a, *b) <= 1 && step(a >> 4, b >> 4) <= 1, "{what}: codes {a:02x} and {b:02x}");
            }
            for (a, b) in scales.iter().zip(&expected.1) {
                assert!(a.abs_diff(*b) <= 1, "{what}: scales {a:02x} and {b:02x}");
            }
        }
    }
}

fn onto_the_grid(gpu: &Gpu) {
    let seed = seed();
    let mut random = Random(seed);
    let stream = Stream::new(&gpu.device).unwrap();
    for exact in [false, true] {
        let mut oracles = Oracles::new(gpu, exact);
        for dtype in DTYPES {
            for (m, k) in [(1, 4096), (33, 48), (300, 240)] {
                let x = Activation::dense(gpu, dtype, m, k, |_, _| 3.0 * random.normal());
                let mut grid = DeviceBuffer::new(&gpu.device, m * k * 2).unwrap();
                grid.fill(stream.as_ref(), 0xff).unwrap();
                let scale = InputScale::Static(GlobalScale::from_encode(200.0).unwrap().encode());
                let out = grid.as_matrix_mut(DType::Bf16, m, k).unwrap();
                gpu.quantizer.quantize_dequantize(stream.as_ref(), x.matrix(), scale, exact, out).unwrap();
                let found = grid.to_host().unwrap();
                let oracle = oracles.encode(200.0);
                for (block, values) in x.values.chunks_exact(16).enumerate() {
                    let (byte, codes) = oracle.block(values);
                    for i in 0..16 {
                        let code = codes[i / 2] >> (4 * (i % 2)) & 15;
                        let value = nvfp4_core::e2m1::decode(code) * nvfp4_core::e4m3::decode(byte);
                        let at = (block * 16 + i) * 2;
                        let bits = u16::from_le_bytes([found[at], found[at + 1]]);
                        assert_eq!(
                            bits,
                            half::bf16::from_f32(value).to_bits(),
                            "{dtype} {m}x{k} element {} NVFP4_SEED={seed}",
                            block * 16 + i
                        );
                    }
                }
            }
        }
    }
}

/// No rows: nothing is launched, nothing is wrong, and the next call is as if it had never been.
fn no_rows(gpu: &Gpu) {
    let stream = Stream::new(&gpu.device).unwrap();
    let scale = InputScale::Static(GlobalScale::ONE.encode());
    for layout in LAYOUTS {
        let empty = Activation::dense(gpu, DType::Bf16, 0, 64, |_, _| 0.0);
        let options = options(layout, None, false);
        let found = run(gpu, &empty, scale, options, 0xff);
        assert!(found.0.is_empty() && found.1.is_empty(), "{layout:?}");
        let mut none = DeviceBuffer::new(&gpu.device, 0).unwrap();
        gpu.quantizer.row_scales(stream.as_ref(), empty.matrix(), none.as_bytes_mut()).unwrap();
        gpu.device.synchronize().unwrap();
        let one = Activation::dense(gpu, DType::Bf16, 1, 64, |_, c| c as f32);
        let mut oracles = Oracles::new(gpu, false);
        let oracle = oracles.encode(1.0);
        assert_equal(
            &run(gpu, &one, scale, options, 0xff),
            &expected(&one, options, |_, v| oracle.block(v)),
            "after",
        );
    }
}

/// More rows than a grid's y dimension can have, in every layout.
fn many_rows(gpu: &Gpu) {
    let mut oracles = Oracles::new(gpu, false);
    for (layout, m) in LAYOUTS.into_iter().zip([262_145, 262_145, 65_537]) {
        let x = Activation::dense(gpu, DType::Bf16, m, 16, |r, c| (r % 1000) as f32 * 0.01 + c as f32);
        let options = options(layout, None, false);
        let scale = InputScale::Static(GlobalScale::from_encode(100.0).unwrap().encode());
        let found = run(gpu, &x, scale, options, 0xff);
        let oracle = oracles.encode(100.0);
        assert_equal(&found, &expected(&x, options, |_, v| oracle.block(v)), &format!("{layout:?} m={m}"));
    }
}

/// The sweep in which images of the wrong flavour gave rows of zero scales.
fn no_scale_row_is_zero(gpu: &Gpu) {
    let mut random = Random(seed());
    let scale = InputScale::Static(GlobalScale::from_encode(500.0).unwrap().encode());
    for m in [1, 8, 32, 128, 256, 512, 1024, 1536, 2048, 3072, 4096] {
        let x = Activation::dense(gpu, DType::Bf16, m, 2048, |_, _| random.normal());
        let (_, scales) = run(gpu, &x, scale, options(ScaleLayout::Linear, None, false), 0);
        for (row, bytes) in scales.chunks_exact(128).enumerate() {
            assert!(bytes.iter().all(|&b| b != 0), "row {row} of {m} has a zero scale");
        }
    }
}

fn refuses_bad_operands(gpu: &Gpu) {
    let stream = Stream::new(&gpu.device).unwrap();
    let scale = InputScale::Static(GlobalScale::ONE.encode());
    let try_run = |cols: usize, options: QuantizeOptions, codes: usize, scales: usize| {
        let x = Activation::dense(gpu, DType::Bf16, 2, cols, |_, _| 1.0);
        let mut codes = DeviceBuffer::new(&gpu.device, codes).unwrap();
        let mut scales = DeviceBuffer::new(&gpu.device, scales).unwrap();
        let output = QuantizeOutput { codes: codes.as_bytes_mut(), scales: scales.as_bytes_mut() };
        gpu.quantizer.quantize(stream.as_ref(), x.matrix(), scale, options, output).map_err(|e| e.to_string())
    };
    let swizzled = options(ScaleLayout::Swizzled128x4, None, false);
    assert_eq!(try_run(64, swizzled, 64, 512), Ok(()));
    for (error, text) in [
        (try_run(40, swizzled, 64, 512), "k (activation columns) must be a multiple of 16, found 40"),
        (try_run(64, swizzled, 63, 512), "activation codes: expected 64, found 63"),
        (try_run(64, swizzled, 64, 511), "activation scales: expected 512, found 511"),
        (try_run(64, options(ScaleLayout::Linear, Some(48), false), 64, 512), "padded_n: expected 64, found 48"),
        (
            try_run(64, options(ScaleLayout::Swizzled8x4, Some(80), false), 128, 512),
            "padded_n is not supported with the 8x4 scale layout",
        ),
    ] {
        assert_eq!(error, Err(text.to_string()));
    }
}
