use super::{extents, linear, pattern};
use nvfp4_core::{
    Error, LinearScales, ScaleLayout, SwizzledScales,
    block_scale::{MmaScaleView, swizzle_blockscale_batched},
    swizzle_blockscale,
};
use nvfp4_testkit::golden::{File, Tensor};
use proptest::prelude::*;
use std::collections::HashSet;

const LAYOUTS: [ScaleLayout; 3] = [ScaleLayout::Linear, ScaleLayout::Swizzled128x4, ScaleLayout::Swizzled8x4];
const TILED: [ScaleLayout; 2] = [ScaleLayout::Swizzled128x4, ScaleLayout::Swizzled8x4];

#[test]
fn swizzle_matches_vllm() {
    let golden = File::open("swizzle.safetensors");
    for name in golden.suffixes("in_") {
        let input = linear(golden.get(&format!("in_{name}")));
        let out = golden.get(&format!("out_{name}"));
        let swizzled = swizzle_blockscale(&input).unwrap();
        assert_eq!(ScaleLayout::Swizzled128x4.padded_shape(input.rows(), input.cols()), Ok(extents(out)), "{name}");
        assert_eq!(swizzled.bytes(), out.bytes, "{name}");
        assert_eq!(swizzled.unswizzle().unwrap(), input, "{name}");

        // Upstream's way back keeps the padding columns; ours are the columns before them.
        let back = linear(golden.get(&format!("back_{name}")));
        for r in 0..input.rows() {
            let upstream = &back.bytes()[r * back.cols()..(r + 1) * back.cols()];
            let (kept, padding) = upstream.split_at(input.cols());
            assert_eq!(kept, &input.bytes()[r * input.cols()..(r + 1) * input.cols()], "{name} row {r}");
            assert!(padding.iter().all(|&b| b == 0), "{name} row {r}");
        }
    }
}

fn assert_batch(input: &Tensor, expected: &[u8], name: &str) {
    let [batch, rows, cols] = input.shape[..] else { panic!("{name}: {:?}", input.shape) };
    let scales = LinearScales::new(batch * rows, cols, &input.bytes[..]).unwrap();
    let swizzled = swizzle_blockscale_batched(&scales, batch).unwrap();
    assert_eq!(swizzled.len(), batch, "{name}");
    assert_eq!(swizzled.iter().flat_map(|s| s.bytes()).copied().collect::<Vec<_>>(), expected, "{name}");
}

#[test]
fn batched_swizzle_matches_vllm() {
    let golden = File::open("swizzle.safetensors");
    for name in golden.suffixes("in3d_") {
        let expected = &golden.get(&format!("out3d_{name}")).bytes;
        assert_batch(golden.get(&format!("in3d_{name}")), expected, &name);
    }
    let scales = LinearScales::new(6, 1, vec![1; 6]).unwrap();
    assert!(matches!(
        swizzle_blockscale_batched(&scales, 4),
        Err(Error::NotMultiple { multiple: 4, found: 6, .. })
    ));
    assert!(matches!(swizzle_blockscale_batched(&scales, 0), Err(Error::Zero { .. })));
}

#[test]
fn offsets_match_flashinfer() {
    let golden = File::open("sf_layout.safetensors");
    for (layout, prefix) in LAYOUTS.into_iter().zip(["idx_linear_", "idx_128x4_", "idx_8x4_"]) {
        for name in golden.suffixes(prefix) {
            let expected = golden.get(&format!("{prefix}{name}"));
            let (rows, cols) = extents(expected);
            let offsets: Vec<i64> =
                (0..rows).flat_map(|r| (0..cols).map(move |c| layout.offset(r, c, cols) as i64)).collect();
            assert_eq!(offsets, expected.integers(), "{prefix}{name}");
        }
    }
}

#[test]
fn interleave_and_padding_match_flashinfer() {
    let golden = File::open("sf_layout.safetensors");
    let (mut matrices, mut batches) = (0, 0);
    for name in golden.suffixes("interleave_in_") {
        let input = golden.get(&format!("interleave_in_{name}"));
        let expected = &golden.get(&format!("interleave_out_{name}")).bytes;
        if input.shape.len() == 3 {
            assert_batch(input, expected, &name);
            batches += 1;
        } else {
            assert_eq!(swizzle_blockscale(&linear(input)).unwrap().bytes(), expected, "{name}");
            matrices += 1;
        }
    }
    assert!(matrices > 0 && batches > 0);

    for name in golden.suffixes("pad_sf_") {
        let scales = linear(golden.get(&format!("interleave_in_{name}")));
        let padded = golden.get(&format!("pad_sf_{name}"));
        let (rows, cols) = extents(padded);
        assert_eq!(ScaleLayout::Swizzled128x4.padded_shape(scales.rows(), scales.cols()), Ok((rows, cols)));
        // The padded scales swizzle to the same bytes: padding is part of the swizzle.
        let swizzled = swizzle_blockscale(&linear(padded)).unwrap();
        assert_eq!(swizzled.bytes(), swizzle_blockscale(&scales).unwrap().bytes(), "{name}");
    }
}

#[test]
fn swizzled_scales_of_torchao_are_read() {
    let golden = File::open("torchao.safetensors");
    for name in golden.prefixes("_tensor_scale_sw1") {
        let expected = linear(golden.get(&format!("{name}_tensor_scale_sw0")));
        let foreign = &golden.get(&format!("{name}_tensor_scale_sw1")).bytes;
        let (rows, cols) = (expected.rows(), expected.cols());
        let read = SwizzledScales::from_bytes(ScaleLayout::Swizzled128x4, rows, cols, &foreign[..]).unwrap();
        assert_eq!(read.unswizzle().unwrap(), expected, "{name}");
        assert_eq!(read, swizzle_blockscale(&expected).unwrap(), "{name}");
    }
    for name in golden.suffixes("blk_in") {
        let input = linear(golden.get(&format!("blk_in{name}")));
        assert_eq!(swizzle_blockscale(&input).unwrap().bytes(), golden.get(&format!("blk_out{name}")).bytes);
        assert_eq!(golden.get(&format!("blk_back{name}")).bytes, input.bytes());
    }
}

#[test]
fn sizes_of_known_failures() {
    let sizes = [
        ((1, 3696), 29_696),
        ((129, 3696), 59_392),
        ((128, 80), 1_024),
        ((17, 512), 4_096),
        ((7, 128), 1_024),
        ((1, 16), 512),
    ];
    for ((m, k), bytes) in sizes {
        assert_eq!(ScaleLayout::Swizzled128x4.len(m, k / 16), Ok(bytes), "{m} x {k}");
    }
    assert_eq!(ScaleLayout::Swizzled8x4.len(9, 231), Ok(3_712));
    // A vocabulary of 248,320, and more rows and columns than 32 bits can address.
    assert_eq!(ScaleLayout::Swizzled128x4.len(248_320, 4), Ok(993_280));
    for layout in LAYOUTS {
        assert_eq!(layout.len(0, 231), Ok(0), "{layout:?}");
        for (rows, cols) in [(usize::MAX, 2), (usize::MAX / 2 + 1, 2), (2, usize::MAX)] {
            assert!(matches!(layout.len(rows, cols), Err(Error::Overflow { .. })), "{layout:?} {rows} x {cols}");
        }
    }
}

#[cfg(target_pointer_width = "64")]
#[test]
fn sizes_beyond_32_bits() {
    for (m, n) in [(1, 248_320), (262_141, 16), (23_491, 128_256), (799_040, 2_688)] {
        let (rows, cols) = ScaleLayout::Swizzled128x4.padded_shape(m, n).unwrap();
        assert_eq!(ScaleLayout::Swizzled128x4.len(m, n).unwrap() as u128, rows as u128 * cols as u128);
        let (row, col) = (m - 1, n - 1);
        let tile = (row as u128 / 128) * (cols as u128 / 4) + col as u128 / 4;
        let in_tile = (row % 32 * 16 + row % 128 / 32 * 4 + col % 4) as u128;
        assert_eq!(ScaleLayout::Swizzled128x4.offset(row, col, n) as u128, tile * 512 + in_tile);
    }
}

#[test]
fn offsets_of_known_failures() {
    let offsets = [
        ((33, 5, 8), 533),
        ((127, 230, 231), 29_694),
        ((128, 0, 231), 29_696),
        ((1, 0, 4), 16),
        ((32, 0, 4), 4),
        ((0, 1, 4), 1),
    ];
    for ((row, col, cols), offset) in offsets {
        assert_eq!(ScaleLayout::Swizzled128x4.offset(row, col, cols), offset, "{row}, {col} of {cols}");
    }
    assert_eq!(ScaleLayout::Swizzled8x4.offset(9, 5, 8), 101);
}

/// No rows of any width are nothing, not a panic.
#[test]
fn empty_scales_of_any_shape() {
    for (rows, cols) in [(0, 0), (5, 0), (0, 231), (0, usize::MAX / 4 + 1), (usize::MAX / 4 + 1, 0), (0, 1 << 57)] {
        let linear = LinearScales::new(rows, cols, vec![]).unwrap();
        assert_eq!(linear.check_values(), Ok(()));
        for layout in TILED {
            let swizzled = linear.swizzle(layout).unwrap();
            assert_eq!(swizzled.bytes().len(), 0);
            assert_eq!(swizzled.unswizzle().unwrap(), linear, "{layout:?} {rows} x {cols}");
            assert_eq!(SwizzledScales::from_bytes(layout, rows, cols, vec![]).unwrap(), swizzled);
        }
    }
}

#[test]
fn trtllm_layout_changes_after_32_rows() {
    for m in [0, 1, 31, 32] {
        assert_eq!(ScaleLayout::for_trtllm(m), ScaleLayout::Swizzled8x4, "{m}");
    }
    for m in [33, 128, 2001] {
        assert_eq!(ScaleLayout::for_trtllm(m), ScaleLayout::Swizzled128x4, "{m}");
    }
}

/// Whatever a buffer held, all of it is written.
#[test]
fn padding_is_zero_whatever_was_there() {
    for (m, cols) in [(1, 231), (9, 231), (129, 5), (127, 4), (8, 4), (128, 64), (130, 130)] {
        let scales = LinearScales::new(m, cols, pattern(m * cols)).unwrap();
        for layout in LAYOUTS {
            let len = layout.len(m, cols).unwrap();
            let mut buffers = [0xff, 0x00, 0x7e, 0x7f].map(|poison| vec![poison; len]);
            for buffer in &mut buffers {
                scales.write_into(layout, buffer).unwrap();
            }
            assert!(buffers.iter().all(|buffer| buffer == &buffers[0]), "{layout:?} {m} x {cols}");
            assert_eq!(buffers[0].iter().filter(|&&b| b != 0).count(), m * cols, "{layout:?} {m} x {cols}");
            assert!(matches!(
                scales.write_into(layout, &mut vec![0; len + 1]),
                Err(Error::Size { expected, found, .. }) if expected == len && found == len + 1
            ));
        }
    }
    // The row of the report: 231 bytes are scales, the other 29,465 are zero.
    let row = swizzle_blockscale(&LinearScales::new(1, 231, pattern(231)).unwrap()).unwrap();
    assert_eq!(row.bytes().iter().filter(|&&b| b == 0).count(), 29_465);
}

#[test]
fn padding_of_foreign_scales_is_cleared() {
    for layout in TILED {
        for (rows, cols) in [(1, 231), (130, 5), (9, 9), (128, 4), (8, 4)] {
            let expected = LinearScales::new(rows, cols, pattern(rows * cols)).unwrap().swizzle(layout).unwrap();
            let mut dirty = vec![0x7f; expected.bytes().len()];
            for r in 0..rows {
                for c in 0..cols {
                    let at = layout.offset(r, c, cols);
                    dirty[at] = expected.bytes()[at];
                }
            }
            assert_eq!(SwizzledScales::from_bytes(layout, rows, cols, dirty).unwrap(), expected, "{layout:?}");
        }
    }
    let wrong = SwizzledScales::from_bytes(ScaleLayout::Swizzled128x4, 128, 5, vec![0; 1_020]);
    assert!(matches!(wrong, Err(Error::Size { expected: 1_024, found: 1_020, .. })));
    assert!(SwizzledScales::from_bytes(ScaleLayout::Linear, 1, 1, vec![0]).is_err());
    assert!(LinearScales::new(1, 1, vec![0]).unwrap().swizzle(ScaleLayout::Linear).is_err());
}

/// Linear and swizzled scales are different types because a second swizzle would be another permutation.
#[test]
fn swizzling_twice_would_differ() {
    let linear = LinearScales::new(128, 4, (0..512).map(|i| (i / 2) as u8).collect::<Vec<_>>()).unwrap();
    let once = swizzle_blockscale(&linear).unwrap();
    let twice = swizzle_blockscale(&LinearScales::new(128, 4, once.bytes()).unwrap()).unwrap();
    assert_eq!(once.unswizzle().unwrap(), linear);
    assert_ne!(twice.bytes(), once.bytes());
    assert_ne!(once.bytes(), linear.bytes());
}

/// The scales of some rows can be cut out of tiles only between tiles.
#[test]
fn rows_are_cut_at_tiles() {
    let linear = LinearScales::new(300, 6, pattern(1_800)).unwrap();
    for layout in TILED {
        let all = linear.swizzle(layout).unwrap();
        let tile = layout.tile_rows();
        for range in [0..tile, tile..2 * tile, tile..300, 0..300, 2 * tile..2 * tile] {
            let alone = linear.slice_rows(range.clone()).unwrap().swizzle(layout).unwrap();
            assert_eq!(all.slice_rows(range.clone()).unwrap(), alone.bytes(), "{layout:?} {range:?}");
        }
        for range in [1..tile, 0..tile + 1, 0..299, 0..301, tile / 2..tile, 2 * tile..tile] {
            assert!(
                matches!(all.slice_rows(range.clone()), Err(Error::Range { multiple, .. }) if multiple == tile),
                "{layout:?} {range:?}"
            );
        }
    }
    assert!(linear.slice_rows(0..301).is_err());
    let backwards = std::ops::Range { start: 5, end: 4 };
    assert!(linear.slice_rows(backwards).is_err());
}

#[test]
fn mma_view_addresses_every_scale() {
    let (rows, cols) = (130, 9);
    let linear = LinearScales::new(rows, cols, pattern(rows * cols)).unwrap();
    let swizzled = swizzle_blockscale(&linear).unwrap();
    let view = swizzled.mma_view().unwrap();
    assert_eq!(view.shape, [32, 4, 2, 4, 3, 1]);
    for r in 0..rows {
        for c in 0..cols {
            let index = [r % 32, r % 128 / 32, r / 128, c % 4, c / 4, 0];
            let offset: usize = index.iter().zip(view.strides).map(|(i, stride)| i * stride).sum();
            assert_eq!(swizzled.bytes()[offset], linear.bytes()[r * cols + c], "{r}, {c}");
        }
    }
    assert!(matches!(MmaScaleView::new(rows, cols, 3_071), Err(Error::Size { expected: 3_072, found: 3_071, .. })));
    assert!(linear.swizzle(ScaleLayout::Swizzled8x4).unwrap().mma_view().is_err());
}

fn layouts() -> impl Strategy<Value = ScaleLayout> {
    prop::sample::select(&LAYOUTS[..])
}

fn extent() -> impl Strategy<Value = usize> {
    prop_oneof![0..20usize, 60..70usize, 120..140usize, 250..260usize]
}

proptest! {
    #[test]
    fn unswizzle_undoes_swizzle(rows in extent(), cols in extent(), seed: u64, layout in prop::sample::select(&TILED[..])) {
        let bytes: Vec<u8> = (0..rows * cols).map(|i| (seed.rotate_left(i as u32 % 64) as usize + i) as u8).collect();
        let linear = LinearScales::new(rows, cols, bytes).unwrap();
        let swizzled = linear.swizzle(layout).unwrap();
        prop_assert_eq!(swizzled.bytes().len(), layout.len(rows, cols).unwrap());
        prop_assert_eq!(&swizzled.unswizzle().unwrap(), &linear);
        for r in 0..rows {
            for c in 0..cols {
                prop_assert_eq!(swizzled.bytes()[layout.offset(r, c, cols)], linear.bytes()[r * cols + c]);
            }
        }
    }

    #[test]
    fn offsets_are_injective(rows in extent(), cols in extent(), layout in layouts()) {
        let len = layout.len(rows, cols).unwrap();
        let mut seen = HashSet::new();
        for r in 0..rows {
            for c in 0..cols {
                let offset = layout.offset(r, c, cols);
                prop_assert!(offset < len && seen.insert(offset), "{} {} at {}", r, c, offset);
            }
        }
    }

    /// Positions that no matrix has wrap around.
    #[test]
    fn offset_wraps(row: usize, col: usize, cols: usize) {
        let tile = (row as u128 / 128) * (cols as u128).div_ceil(4) + col as u128 / 4;
        let in_tile = row % 32 * 16 + row % 128 / 32 * 4 + col % 4;
        let expected = (tile * 512 + in_tile as u128) as usize;
        prop_assert_eq!(ScaleLayout::Swizzled128x4.offset(row, col, cols), expected);
        let linear = (row as u128 * cols as u128 + col as u128) as usize;
        prop_assert_eq!(ScaleLayout::Linear.offset(row, col, cols), linear);
    }
}
