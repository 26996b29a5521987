use super::{extents, linear, pattern};
use nvfp4_core::{
    Error, LinearScales,
    shuffle::{
        shuffle_matrix_a, shuffle_matrix_a_row_indices, shuffle_matrix_sf_a, unshuffle_matrix_a,
        unshuffle_matrix_sf_a,
    },
};
use nvfp4_testkit::golden::File;
use proptest::prelude::*;

/// The tile of the `a_*` and `sf_*` tensors: the one that vLLM uses.
const TILE: usize = 128;

#[test]
fn row_indices_match_flashinfer() {
    let golden = File::open("shuffle.safetensors");
    for name in golden.suffixes("rowidx_M") {
        let (rows, tile) = name.split_once("_tile").unwrap();
        let found = shuffle_matrix_a_row_indices(rows.parse().unwrap(), tile.parse().unwrap()).unwrap();
        let expected = golden.get(&format!("rowidx_M{name}")).integers();
        assert_eq!(found.iter().map(|&r| r as i64).collect::<Vec<_>>(), expected, "{name}");
    }
}

#[test]
fn matrices_match_flashinfer() {
    let golden = File::open("shuffle.safetensors");
    for name in golden.suffixes("a_in_") {
        let input = golden.get(&format!("a_in_{name}"));
        let (rows, row_bytes) = extents(input);
        let shuffled = shuffle_matrix_a(&input.bytes, rows, row_bytes, TILE).unwrap();
        assert_eq!(shuffled, golden.get(&format!("a_out_{name}")).bytes, "{name}");
        assert_eq!(unshuffle_matrix_a(&shuffled, rows, row_bytes, TILE).unwrap(), input.bytes, "{name}");
    }
    for name in golden.suffixes("sf_in_") {
        let input = linear(golden.get(&format!("sf_in_{name}")));
        let shuffled = shuffle_matrix_sf_a(&input, TILE).unwrap();
        assert_eq!(shuffled.bytes(), golden.get(&format!("sf_out_{name}")).bytes, "{name}");
        assert_eq!(unshuffle_matrix_sf_a(&shuffled, TILE).unwrap(), input, "{name}");
    }
}

/// Every case that upstream refuses is refused, with the multiple that it wants.
#[test]
fn conditions_match_flashinfer() {
    let golden = File::open("shuffle.safetensors");
    let errors: serde_json::Value = serde_json::from_str(&golden.metadata["errors"]).unwrap();
    let errors = errors.as_object().unwrap();
    assert!(!errors.is_empty());
    for name in errors.keys() {
        let (function, rows) = name.rsplit_once("_M").unwrap();
        let rows: usize = rows.parse().unwrap();
        let (found, multiple) = match function {
            "shuffle_matrix_a" => (shuffle_matrix_a(&pattern(rows), rows, 1, TILE).map(drop), 32),
            "shuffle_matrix_sf_a" => {
                let scales = LinearScales::new(rows, 1, pattern(rows)).unwrap();
                (shuffle_matrix_sf_a(&scales, TILE).map(drop), 128)
            }
            other => panic!("{other}"),
        };
        assert!(
            matches!(found, Err(Error::NotMultiple { multiple: m, found: f, .. }) if m == multiple && f == rows),
            "{name}: {found:?}"
        );
    }
    assert!(matches!(shuffle_matrix_a(&[0; 31], 32, 1, TILE), Err(Error::Size { .. })));
    assert!(matches!(shuffle_matrix_a_row_indices(24, 64), Err(Error::NotMultiple { multiple: 16, .. })));
    assert!(matches!(shuffle_matrix_a(&[], 1 << 40, usize::MAX / 2, TILE), Err(Error::Overflow { .. })));
}

#[test]
fn nothing_to_shuffle() {
    for (rows, row_bytes) in [(0, 0), (0, usize::MAX / 8), (64, 0)] {
        assert_eq!(shuffle_matrix_a(&[], rows, row_bytes, TILE), Ok(vec![]));
        assert_eq!(unshuffle_matrix_a(&[], rows, row_bytes, TILE), Ok(vec![]));
    }
}

#[test]
fn unshuffle_undoes_shuffle() {
    for rows in [128, 256, 384] {
        let data = pattern(rows * 24);
        let shuffled = shuffle_matrix_a(&data, rows, 24, TILE).unwrap();
        assert_ne!(shuffled, data);
        assert_eq!(unshuffle_matrix_a(&shuffled, rows, 24, TILE).unwrap(), data);
    }
}

proptest! {
    #[test]
    fn shuffles_are_permutations_of_rows(
        blocks in 0..9usize,
        row_bytes in 0..50usize,
        tile in prop::sample::select(vec![64usize, 128, 192, 256]),
    ) {
        let rows = blocks * if tile.is_multiple_of(128) { 32 } else { 16 };
        let data = pattern(rows * row_bytes);
        let shuffled = shuffle_matrix_a(&data, rows, row_bytes, tile).unwrap();
        prop_assert_eq!(unshuffle_matrix_a(&shuffled, rows, row_bytes, tile).unwrap(), data.clone());
        let indices = shuffle_matrix_a_row_indices(rows, tile).unwrap();
        for (to, &from) in indices.iter().enumerate() {
            prop_assert_eq!(&shuffled[to * row_bytes..][..row_bytes], &data[from * row_bytes..][..row_bytes]);
        }
        let mut sorted = indices;
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..rows).collect::<Vec<_>>());
    }

    #[test]
    fn scales_come_back(tiles in 1..4usize, cols in 1..20usize, tile in prop::sample::select(vec![64usize, 128])) {
        let scales = LinearScales::new(tiles * 128, cols, pattern(tiles * 128 * cols)).unwrap();
        let shuffled = shuffle_matrix_sf_a(&scales, tile).unwrap();
        prop_assert_eq!(unshuffle_matrix_sf_a(&shuffled, tile).unwrap(), scales);
    }
}
