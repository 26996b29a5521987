//! Tensor maps: the bits of maps that a driver and the CuTe DSL made, and the bytes of tiles.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use blackwell_sim::tensor_map::{
    Generation, Interleave, Piece, Swizzle, TensorElement, TensorMap, TiledParameters,
};

/// Names and bytes of a data file's maps.
fn recorded(file: &str) -> Vec<(&str, [u8; 128])> {
    let lines = file.lines().filter(|line| !line.starts_with('#'));
    let maps: Vec<_> = lines
        .map(|line| {
            let (name, words) = line.split_once(' ').unwrap();
            let mut bytes = [0; 128];
            for (bytes, word) in bytes.chunks_exact_mut(4).zip(words.split_whitespace()) {
                bytes.copy_from_slice(&u32::from_str_radix(word, 16).unwrap().to_le_bytes());
            }
            (name, bytes)
        })
        .collect();
    assert!(!maps.is_empty());
    maps
}

fn base() -> TiledParameters {
    TiledParameters {
        element: TensorElement::U8,
        address: 0x7fcd_7400_0000,
        dims: vec![256, 64],
        strides: vec![256],
        box_dims: vec![64, 8],
        element_strides: vec![1, 1],
        interleave: Interleave::None,
        swizzle: Swizzle::None,
        l2_promotion: 0,
        nan_fill: false,
    }
}

/// The parameters that each recorded map was made from.
fn parameters(name: &str) -> TiledParameters {
    let with_element = |element, bytes: u64, inner| TiledParameters {
        element,
        strides: vec![256 * bytes],
        box_dims: vec![inner, 8],
        ..base()
    };
    let swizzled = |swizzle, inner| TiledParameters { swizzle, box_dims: vec![inner, 8], ..base() };
    let shaped = |dims: &[u64], strides: &[u64], boxes: &[u32], l2_promotion| TiledParameters {
        dims: dims.to_vec(),
        strides: strides.to_vec(),
        box_dims: boxes.to_vec(),
        element_strides: vec![1; dims.len()],
        l2_promotion,
        ..base()
    };
    match name {
        "u8_2d" => base(),
        "u8_2d_dim0" => TiledParameters { dims: vec![512, 64], strides: vec![512], ..base() },
        "u8_2d_dim1" => TiledParameters { dims: vec![256, 128], ..base() },
        "u8_2d_str" => TiledParameters { strides: vec![1024], ..base() },
        "u8_2d_box0" => TiledParameters { box_dims: vec![128, 8], ..base() },
        "u8_2d_box1" => TiledParameters { box_dims: vec![64, 16], ..base() },
        "u8_2d_sw32" => swizzled(Swizzle::Bytes32, 32),
        "u8_2d_sw64" => swizzled(Swizzle::Bytes64, 64),
        "u8_2d_sw128" => swizzled(Swizzle::Bytes128, 128),
        "u8_2d_l2_64" => TiledParameters { l2_promotion: 1, ..base() },
        "u8_2d_l2_128" => TiledParameters { l2_promotion: 2, ..base() },
        "u8_2d_l2_256" => TiledParameters { l2_promotion: 3, ..base() },
        "u8_2d_es0" => TiledParameters { element_strides: vec![2, 1], ..base() },
        "u8_2d_es1" => TiledParameters { element_strides: vec![1, 2], ..base() },
        "bf16_2d" => with_element(TensorElement::Bf16, 2, 64),
        "bf16_2d_nan" => TiledParameters { nan_fill: true, ..with_element(TensorElement::Bf16, 2, 64) },
        "f16_2d" => with_element(TensorElement::F16, 2, 64),
        "f32_2d" => with_element(TensorElement::F32, 4, 32),
        "u16_2d" => with_element(TensorElement::U16, 2, 64),
        "u32_2d" => with_element(TensorElement::U32, 4, 32),
        "u8_3d" => shaped(&[256, 64, 3], &[256, 16384], &[64, 8, 1], 0),
        "u8_4d" => shaped(&[256, 2, 16, 4], &[256, 512, 8192], &[256, 2, 4, 1], 2),
        "u8_5d" => shaped(&[64, 4, 8, 4, 2], &[64, 256, 2048, 8192], &[64, 4, 2, 1, 1], 0),
        "u16_4d" => {
            let map = shaped(&[128, 2, 16, 4], &[256, 512, 8192], &[128, 2, 4, 1], 0);
            TiledParameters { element: TensorElement::U16, ..map }
        }
        _ => panic!("no parameters for {name}"),
    }
}

#[test]
fn encoding_gives_the_bytes_that_the_driver_gives() {
    let maps = recorded(include_str!("data/tensor_maps_h200.txt"));
    assert_eq!(maps.len(), 24);
    for (name, bytes) in maps {
        assert_eq!(parameters(name).encode(Generation::Hopper).unwrap(), bytes, "{name}");
    }
}

#[test]
fn decoding_gives_the_parameters_back() {
    for (name, bytes) in recorded(include_str!("data/tensor_maps_h200.txt")) {
        let (map, made) = (TensorMap::decode(&bytes).unwrap(), parameters(name));
        let rank = made.dims.len();
        assert_eq!((map.rank, map.element, map.address), (rank, made.element, made.address), "{name}");
        assert_eq!((&map.dims[..rank], &map.strides[..rank - 1]), (&*made.dims, &*made.strides), "{name}");
        assert_eq!(
            (&map.box_dims[..rank], &map.element_strides[..rank]),
            (&*made.box_dims, &*made.element_strides),
            "{name}"
        );
        assert_eq!(
            (map.swizzle, map.interleave, map.nan_fill),
            (made.swizzle, made.interleave, made.nan_fill),
            "{name}"
        );
        assert_eq!(map.box_bytes(), u32::from_le_bytes(bytes[64..68].try_into().unwrap()), "{name}");
    }
}

#[test]
fn maps_that_the_cute_dsl_packs_decode_and_encode_alike() {
    let maps = recorded(include_str!("data/tensor_maps_cute.txt"));
    assert_eq!(maps.len(), 20);
    for (name, bytes) in maps {
        let map = TensorMap::decode(&bytes).unwrap_or_else(|fault| panic!("{name}: {fault:?}"));
        let rank = map.rank;
        let again = TiledParameters {
            element: map.element,
            address: map.address,
            dims: map.dims[..rank].to_vec(),
            strides: map.strides[..rank - 1].to_vec(),
            box_dims: map.box_dims[..rank].to_vec(),
            element_strides: map.element_strides[..rank].to_vec(),
            interleave: map.interleave,
            swizzle: map.swizzle,
            l2_promotion: 2,
            nan_fill: map.nan_fill,
        };
        let encoded = again.encode(Generation::Blackwell).unwrap_or_else(|fault| panic!("{name}: {fault:?}"));
        assert_eq!(encoded[..64], bytes[..64], "{name}");
    }
}

#[test]
fn the_nvfp4_operands_of_the_sm100_kernel_are_what_its_launch_says() {
    let maps = recorded(include_str!("data/tensor_maps_cute.txt"));
    let map = |name: &str| TensorMap::decode(&maps.iter().find(|(found, _)| *found == name).unwrap().1).unwrap();
    let a = map("nvfp4_sm100_256x128_2x1.2");
    assert_eq!((a.element, a.swizzle), (TensorElement::U4, Swizzle::Bytes128));
    assert_eq!((&a.dims[..2], a.strides[0], &a.box_dims[..2]), (&[512, 300][..], 256, &[256, 128][..]));
    assert_eq!(a.box_bytes(), 128 * 128);
    // Block scales: 512-byte atoms of 128 rows by 4 scales; here as 256 16-bit elements.
    let scales = map("nvfp4_sm100_256x128_2x1.6");
    assert_eq!((scales.element, scales.rank, scales.box_dims[0]), (TensorElement::U16, 3, 256));
}

#[test]
fn every_rule_of_the_driver_is_checked() {
    let bad = [
        (
            "rank 0",
            TiledParameters { dims: vec![], strides: vec![], box_dims: vec![], element_strides: vec![], ..base() },
        ),
        ("strides missing", TiledParameters { strides: vec![], ..base() }),
        ("address", TiledParameters { address: 0x1008, ..base() }),
        ("null address", TiledParameters { address: 0, ..base() }),
        ("stride", TiledParameters { strides: vec![264], ..base() }),
        ("large stride", TiledParameters { strides: vec![1 << 40], ..base() }),
        ("zero dim", TiledParameters { dims: vec![256, 0], ..base() }),
        ("large dim", TiledParameters { dims: vec![256, (1 << 32) + 1], ..base() }),
        ("zero box", TiledParameters { box_dims: vec![64, 0], ..base() }),
        ("large box", TiledParameters { box_dims: vec![64, 257], ..base() }),
        ("inner box", TiledParameters { box_dims: vec![24, 8], ..base() }),
        ("element stride", TiledParameters { element_strides: vec![1, 9], ..base() }),
        ("swizzle span", TiledParameters { box_dims: vec![64, 8], swizzle: Swizzle::Bytes32, ..base() }),
        ("NaN fill", TiledParameters { nan_fill: true, ..base() }),
        ("l2 promotion", TiledParameters { l2_promotion: 4, ..base() }),
        ("interleave rank", TiledParameters { interleave: Interleave::Bytes16, ..base() }),
        (
            "odd 4-bit dim",
            TiledParameters { element: TensorElement::U4, dims: vec![257, 64], box_dims: vec![128, 8], ..base() },
        ),
        (
            "padded dim",
            TiledParameters {
                element: TensorElement::U4Padded,
                dims: vec![64, 64],
                box_dims: vec![128, 8],
                ..base()
            },
        ),
        ("padded box", TiledParameters { element: TensorElement::U6Padded, ..base() }),
    ];
    for (what, parameters) in bad {
        assert!(parameters.encode(Generation::Blackwell).is_err(), "{what}");
    }
    let four_bit = TiledParameters { element: TensorElement::U4, box_dims: vec![128, 8], ..base() };
    assert!(four_bit.encode(Generation::Blackwell).is_ok());
    assert!(four_bit.encode(Generation::Hopper).is_err());
}

#[test]
fn garbage_is_no_tensor_map() {
    assert!(TensorMap::decode(&[0; 128]).is_err());
    assert!(TensorMap::decode(&[0xff; 128]).is_err());
    let good = base().encode(Generation::Blackwell).unwrap();
    for (byte, value) in [(8, 0x11), (8, 0x72), (9, 0x07), (10, 0x80), (0, 1)] {
        let mut bytes = good;
        bytes[byte] = value;
        assert!(TensorMap::decode(&bytes).is_err(), "byte {byte} = {value:#x}");
    }
}

/// Shared memory after a load: each byte the low byte of a pattern of its global offset, or 0xee outside the tensor.
fn load(map: &TensorMap, coordinates: &[i32], shared: u32) -> Vec<Option<u64>> {
    let mut bytes = vec![None; map.box_bytes() as usize];
    let mut put = vec![false; bytes.len()];
    for Piece { shared: place, bytes: length, global } in map.tile(coordinates, shared).unwrap() {
        for offset in 0..length {
            let at = (place - shared + offset) as usize;
            assert!(!put[at], "byte {at} is in two pieces");
            put[at] = true;
            bytes[at] = global.map(|global| global + u64::from(offset) - map.address);
        }
    }
    if map.element.bits() == map.element.shared_bits() {
        assert!(put.iter().all(|&put| put), "a byte is in no piece");
    }
    bytes
}

fn decode(parameters: &TiledParameters) -> TensorMap {
    TensorMap::decode(&parameters.encode(Generation::Blackwell).unwrap()).unwrap()
}

#[test]
fn a_tile_has_the_bytes_of_its_box_and_fill_around_the_tensor() {
    let map = decode(&TiledParameters { dims: vec![100, 20], strides: vec![112], box_dims: vec![32, 8], ..base() });
    for (x, y) in [(0, 0), (64, 8), (90, 15), (-5, -3), (200, 0), (-40, 0), (0, 20), (69, 19)] {
        let bytes = load(&map, &[x, y], 1024);
        for row in 0..8i64 {
            for column in 0..32i64 {
                let (global_x, global_y) = (i64::from(x) + column, i64::from(y) + row);
                let inside = (0..100).contains(&global_x) && (0..20).contains(&global_y);
                let expected = inside.then_some((global_y * 112 + global_x) as u64);
                assert_eq!(bytes[(row * 32 + column) as usize], expected, "tile {x},{y} at {column},{row}");
            }
        }
    }
}

#[test]
fn swizzles_exchange_chunks_by_the_row() {
    for (swizzle, span) in [(Swizzle::Bytes32, 32u32), (Swizzle::Bytes64, 64), (Swizzle::Bytes128, 128)] {
        let map = decode(&TiledParameters { swizzle, box_dims: vec![span, 16], ..base() });
        let bytes = load(&map, &[0, 0], 0);
        for row in 0..16u32 {
            for column in 0..span {
                // The chunk's index within the span, exclusive-or'd with the index of the 128-byte line within the pattern.
                let line = (row * span + column) / 128 % (span / 16);
                let chunk = (column / 16) ^ line;
                let place = row * span + chunk * 16 + column % 16;
                assert_eq!(
                    bytes[place as usize],
                    Some(u64::from(row * 256 + column)),
                    "{swizzle:?} {row},{column}"
                );
            }
        }
    }
}

#[test]
fn the_swizzle_follows_the_address_rather_than_the_tile() {
    let map = decode(&TiledParameters { swizzle: Swizzle::Bytes128, box_dims: vec![128, 4], ..base() });
    let piece = map.tile(&[0, 0], 1024 + 3 * 128).unwrap()[0];
    assert_eq!(piece, Piece { shared: 1024 + 3 * 128 + 3 * 16, bytes: 16, global: Some(map.address) });
}

#[test]
fn five_dimensions_and_element_strides() {
    let map = decode(&TiledParameters {
        dims: vec![32, 5, 6, 3, 4],
        strides: vec![32, 160, 960, 2880],
        box_dims: vec![16, 4, 3, 2, 2],
        element_strides: vec![1, 2, 3, 1, 1],
        ..base()
    });
    assert_eq!(map.box_bytes(), 16 * 2 * 2 * 2);
    let first = [16, 2, 4, 1, 3];
    let bytes = load(&map, &first, 0);
    let mut place = 0;
    for d4 in 0..2u64 {
        for d3 in 0..2u64 {
            for d1 in 0..2u64 {
                for x in 0..16u64 {
                    let position = [16 + x, 2 + 2 * d1, 4, 1 + d3, 3 + d4];
                    let inside = position[1] < 5 && position[2] < 6 && position[3] < 3 && position[4] < 4;
                    let offset =
                        position[0] + position[1] * 32 + position[2] * 160 + position[3] * 960 + position[4] * 2880;
                    assert_eq!(bytes[place], inside.then_some(offset), "{position:?}");
                    place += 1;
                }
            }
        }
    }
}

#[test]
fn four_bit_tiles_cut_the_last_chunk_at_the_tensors_edge() {
    let map = decode(&TiledParameters {
        element: TensorElement::U4,
        dims: vec![300, 8],
        strides: vec![160],
        box_dims: vec![256, 8],
        swizzle: Swizzle::Bytes128,
        ..base()
    });
    let bytes = load(&map, &[256, 2], 0);
    for row in 0..8u32 {
        for byte in 0..128u32 {
            let place = row * 128 + (byte ^ (row % 8) << 4);
            // 300 elements are 150 bytes: 22 of the row's tail are inside.
            let inside = byte < 22 && row < 6;
            let expected = inside.then_some(u64::from((row + 2) * 160 + 128 + byte));
            assert_eq!(bytes[place as usize], expected, "row {row} byte {byte}");
        }
    }
    assert!(map.tile(&[1, 0], 0).is_err(), "half a byte");
}

#[test]
fn padded_types_spread_groups_of_sixteen_elements() {
    for (element, bytes_per_group) in [(TensorElement::U4Padded, 8u32), (TensorElement::U6Padded, 12)] {
        let map = decode(&TiledParameters {
            element,
            dims: vec![256, 4],
            strides: vec![256],
            box_dims: vec![128, 4],
            ..base()
        });
        assert_eq!(map.box_bytes(), 128 * 4);
        let bytes = load(&map, &[128, 1], 0);
        for row in 0..4u32 {
            for byte in 0..128u32 {
                let (group, within) = (byte / 16, byte % 16);
                let offset = (row + 1) * 256 + 8 * bytes_per_group + group * bytes_per_group + within;
                let expected = (within < bytes_per_group && row < 3).then_some(u64::from(offset));
                assert_eq!(bytes[(row * 128 + byte) as usize], expected, "{element:?} row {row} byte {byte}");
            }
        }
        assert!(map.tile(&[16, 0], 0).is_err());
    }
}

#[test]
fn gathered_rows_come_from_four_places() {
    let map = decode(&TiledParameters { box_dims: vec![64, 1], ..base() });
    let pieces = map.gathered_rows(16, [5, 0, 63, 64], 128).unwrap();
    assert_eq!(pieces.len(), 16);
    for (index, row) in [Some(5), Some(0), Some(63), None].into_iter().enumerate() {
        for chunk in 0..4u32 {
            let piece = pieces[index * 4 + chunk as usize];
            let global = row.map(|row: u64| map.address + row * 256 + 16 + u64::from(chunk) * 16);
            assert_eq!(piece, Piece { shared: 128 + index as u32 * 64 + chunk * 16, bytes: 16, global });
        }
    }
    assert!(decode(&base()).gathered_rows(0, [0; 4], 0).is_err());
}

#[test]
fn operands_of_a_copy_are_checked() {
    let map = decode(&base());
    assert!(map.tile(&[0], 0).is_err(), "one coordinate for two dimensions");
    assert!(map.tile(&[0, 0], 64).is_err(), "64-byte aligned shared memory");
    let mut interleaved = map;
    interleaved.interleave = Interleave::Bytes16;
    assert!(interleaved.tile(&[0, 0], 0).is_err());
}
