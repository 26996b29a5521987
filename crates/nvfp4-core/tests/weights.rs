//! Weights are cut into shards and put together again without a byte changing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use nvfp4_core::{Error, GlobalScale, GlobalScales, LinearScales, NvFp4Weights};
use proptest::prelude::*;

fn scale(decode: f32) -> GlobalScale {
    GlobalScale::from_decode(decode).unwrap()
}

/// Weights with parts of the given rows, each with a scale of its own.
fn weights(parts: &[usize], blocks: usize, seed: u8) -> NvFp4Weights<'static> {
    let n: usize = parts.iter().sum();
    let bytes = |len: usize| (0..len).map(|i| (i * 31 + i / 256) as u8 ^ seed).collect::<Vec<_>>();
    let global = GlobalScales::from_parts(parts.iter().enumerate().map(|(i, &rows)| (rows, scale(0.5 + i as f32))));
    let scales = LinearScales::new(n, blocks, bytes(n * blocks)).unwrap();
    NvFp4Weights::new(n, blocks * 16, bytes(n * blocks * 8), scales, global).unwrap()
}

#[test]
fn shapes_are_checked() {
    let scales = |rows, cols| LinearScales::new(rows, cols, vec![0x38; rows * cols]).unwrap();
    let one = |rows| GlobalScales::per_tensor(rows, GlobalScale::ONE);
    let new = |n, k, bytes: usize, scales, global| NvFp4Weights::new(n, k, vec![0; bytes], scales, global);
    assert!(new(4, 32, 64, scales(4, 2), one(4)).is_ok());
    assert_eq!(new(0, 32, 0, scales(0, 2), one(0)), Err(Error::Zero { what: "n (output features)" }));
    assert_eq!(new(4, 0, 0, scales(4, 0), one(4)), Err(Error::Zero { what: "k (input features)" }));
    let size = |what, expected, found| Err(Error::Size { what, expected, found });
    assert_eq!(
        new(4, 24, 48, scales(4, 1), one(4)),
        Err(Error::NotMultiple { what: "k (input features)", multiple: 16, found: 24 })
    );
    assert_eq!(new(4, 32, 63, scales(4, 2), one(4)), size("packed weight bytes", 64, 63));
    assert_eq!(new(4, 32, 64, scales(3, 2), one(4)), size("rows of block scales", 4, 3));
    assert_eq!(new(4, 32, 64, scales(4, 3), one(4)), size("columns of block scales", 2, 3));
    assert_eq!(new(4, 32, 64, scales(4, 2), one(5)), size("rows of global scales", 4, 5));
    assert_eq!(new(usize::MAX, 32, 64, scales(4, 2), one(4)), Err(Error::Overflow { what: "packed weight bytes" }));
}

#[test]
fn illegal_shards_are_errors() {
    let whole = weights(&[4], 3, 0);
    for range in [0..0, 0..5, 4..5, std::ops::Range { start: 3, end: 2 }] {
        let found = whole.slice_rows(range.clone()).map(drop);
        assert!(matches!(found, Err(Error::Range { len: 4, multiple: 1, .. })), "{range:?}");
    }
    for range in [0..0, 0..64, 8..48, 0..24, std::ops::Range { start: 32, end: 16 }] {
        let found = whole.slice_columns(range.clone()).map(drop);
        assert!(matches!(found, Err(Error::Range { len: 48, multiple: 16, .. })), "{range:?}");
    }
    assert_eq!(NvFp4Weights::concat_rows(&[]), Err(Error::Zero { what: "parts to concatenate" }));
    let other = weights(&[4], 2, 0);
    assert!(matches!(NvFp4Weights::concat_rows(&[whole, other]), Err(Error::Size { expected: 48, found: 32, .. })));
}

/// Block scales of a fused tensor go with their rows, and unlike global scales stay apart.
#[test]
fn parts_of_a_fused_tensor() {
    let fused = weights(&[4, 2, 2], 3, 7);
    assert_eq!(fused.global().as_per_tensor(), None);
    for (rows, decode) in [(0..4, 0.5), (4..6, 1.5), (6..8, 2.5)] {
        let part = fused.slice_rows(rows.clone()).unwrap();
        assert_eq!(part.global().as_per_tensor(), Some(scale(decode)));
        assert_eq!(part.scales().bytes(), &fused.scales().bytes()[rows.start * 3..rows.end * 3]);
        assert_eq!(part.packed().as_ptr(), fused.packed()[rows.start * 24..].as_ptr(), "borrowed");
    }
}

/// What was stacked is known after stacking and cutting, and never guessed.
#[test]
fn stacked_rows_are_carried() {
    let parts = [weights(&[4], 3, 0), weights(&[2], 3, 1), weights(&[2], 3, 2)];
    assert_eq!(parts[0].stacked_rows(), None);
    let fused = NvFp4Weights::concat_rows(&parts).unwrap();
    assert_eq!(fused.stacked_rows(), Some(&[4, 2, 2][..]));
    let again = NvFp4Weights::concat_rows(&[fused.clone(), weights(&[5], 3, 3)]).unwrap();
    assert_eq!(again.stacked_rows(), Some(&[4, 2, 2, 5][..]));
    assert_eq!(fused.slice_rows(1..5).unwrap().stacked_rows(), Some(&[3, 1][..]));
    assert_eq!(fused.slice_columns(16..48).unwrap().stacked_rows(), fused.stacked_rows());
    assert_eq!(fused.clone().into_owned().stacked_rows(), fused.stacked_rows());
    let (folded, _) =
        nvfp4_core::fold::requantize_block_scales(&sound(&[4, 4]).with_stacked_rows([4, 4]).unwrap()).unwrap();
    assert_eq!(folded.stacked_rows(), Some(&[4, 4][..]));

    // Global scales alone do not tell.
    assert_eq!(weights(&[4, 4], 3, 0).stacked_rows(), None);
    assert_eq!(
        weights(&[8], 3, 0).with_stacked_rows([4, 0, 4]),
        Err(Error::Zero { what: "rows of a stacked matrix" })
    );
    for wrong in [&[4, 3][..], &[], &[usize::MAX, 9]] {
        assert!(
            matches!(weights(&[8], 3, 0).with_stacked_rows(wrong), Err(Error::Size { expected: 8, .. })),
            "{wrong:?}"
        );
    }
}

/// Weights whose block scales are all 1.
fn sound(parts: &[usize]) -> NvFp4Weights<'static> {
    let (packed, scales, global) = weights(parts, 3, 0).into_parts();
    let scales = LinearScales::new(scales.rows(), 3, vec![0x38; scales.bytes().len()]).unwrap();
    NvFp4Weights::new(scales.rows(), 48, packed, scales, global).unwrap()
}

proptest! {
    #[test]
    fn rows_concatenated_after_cutting(
        parts in prop::collection::vec(1..9usize, 1..4),
        blocks in 1..5usize,
        seed: u8,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let whole = weights(&parts, blocks, seed);
        let n = whole.out_features();
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(n)).chain([0, n]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let shards: Vec<_> = cuts.windows(2).map(|w| whole.slice_rows(w[0]..w[1]).unwrap()).collect();
        prop_assert_eq!(shards.iter().map(|s| s.out_features()).sum::<usize>(), n);
        prop_assert_eq!(&NvFp4Weights::concat_rows(&shards).unwrap(), &whole);
        prop_assert_eq!(&whole.clone().into_owned(), &whole);
    }

    #[test]
    fn columns_of_a_shard_are_those_of_the_whole(
        parts in prop::collection::vec(1..9usize, 1..4),
        blocks in 1..6usize,
        seed: u8,
        at: prop::sample::Index,
    ) {
        let whole = weights(&parts, blocks, seed);
        let cut = at.index(blocks + 1) * 16;
        let k = whole.in_features();
        let shards: Vec<_> = [0..cut, cut..k]
            .into_iter()
            .filter(|range| !range.is_empty())
            .map(|range| whole.slice_columns(range).unwrap())
            .collect();
        for row in 0..whole.out_features() {
            let join = |bytes: &dyn Fn(&NvFp4Weights<'_>) -> Vec<u8>| shards.iter().flat_map(bytes).collect::<Vec<_>>();
            let codes = |w: &NvFp4Weights<'_>| w.packed()[row * w.in_features() / 2..][..w.in_features() / 2].to_vec();
            let scales = |w: &NvFp4Weights<'_>| w.scales().bytes()[row * w.scales().cols()..][..w.scales().cols()].to_vec();
            prop_assert_eq!(join(&codes), codes(&whole));
            prop_assert_eq!(join(&scales), scales(&whole));
        }
        for shard in &shards {
            prop_assert_eq!(shard.global(), whole.global());
            prop_assert_eq!(shard.bytes(), shard.packed().len() + shard.scales().bytes().len() + 4 * shard.global().parts().len());
        }
    }
}
