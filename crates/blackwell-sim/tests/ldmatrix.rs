//! Matrix loads and stores against the PTX ISA's fragment descriptions and a published measurement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use blackwell_sim::matrix::ldmatrix::{LdMatrix, Row, transpose};

fn load(modifiers: &str) -> LdMatrix {
    LdMatrix::parse(&modifiers.split('.').collect::<Vec<_>>()).unwrap_or_else(|| panic!("ldmatrix.{modifiers}"))
}

fn store(modifiers: &str) -> LdMatrix {
    LdMatrix::parse_store(&modifiers.split('.').collect::<Vec<_>>())
        .unwrap_or_else(|| panic!("stmatrix.{modifiers}"))
}

/// Row r holds bytes 16·r … 16·r + 15 (mod 256, from row 16 on with another pattern).
fn rows() -> Vec<Row> {
    (0..32u32).map(|row| core::array::from_fn(|column| (row * 16 + column as u32 + row / 16 * 7) as u8)).collect()
}

#[test]
fn a_quad_of_lanes_gets_a_row() {
    let form = load("sync.aligned.m8n8.x4.shared.b16");
    assert_eq!((form.rows(), form.registers(), form.row_bytes()), (32, 4, 16));
    let registers = form.load(&rows());
    for (matrix, register) in registers.iter().enumerate() {
        for (lane, word) in register.iter().enumerate() {
            let row = rows()[matrix * 8 + lane / 4];
            assert_eq!(word.to_le_bytes(), row[lane % 4 * 4..][..4], "matrix {matrix} lane {lane}");
        }
    }
}

#[test]
fn a_transposed_load_gives_each_lane_two_rows_of_a_column() {
    let registers = load("sync.aligned.m8n8.x2.trans.shared::cta.b16").load(&rows());
    let element = |matrix: usize, row: usize, column: usize| {
        let row = rows()[matrix * 8 + row];
        u32::from(u16::from_le_bytes([row[2 * column], row[2 * column + 1]]))
    };
    for (matrix, register) in registers.iter().enumerate().take(2) {
        for (lane, &word) in register.iter().enumerate() {
            let column = lane / 4;
            let expected = element(matrix, lane % 4 * 2, column) | element(matrix, lane % 4 * 2 + 1, column) << 16;
            assert_eq!(word, expected, "matrix {matrix} lane {lane}");
        }
    }
    assert_eq!(registers[2], [0; 32]);
}

#[test]
fn a_transposed_byte_load_gives_each_lane_four_rows_of_two_columns() {
    // Measured on sm_120a and published: r0 = column L / 4, rows 4·(L mod 4) … + 3; r1 = column L / 4 + 8; r2, r3 the second matrix.
    let form = load("sync.aligned.m16n16.x2.trans.shared.b8");
    assert_eq!((form.rows(), form.registers()), (32, 4));
    let registers = form.load(&rows());
    for (index, register) in registers.iter().enumerate() {
        for (lane, word) in register.iter().enumerate() {
            let column = lane / 4 + 8 * (index % 2);
            let expected: [u8; 4] =
                core::array::from_fn(|byte| rows()[index / 2 * 16 + lane % 4 * 4 + byte][column]);
            assert_eq!(word.to_le_bytes(), expected, "register {index} lane {lane}");
        }
    }
}

#[test]
fn packed_sources_widen_to_bytes() {
    let four = load("sync.aligned.m8n16.x1.shared.b8x16.b4x16_p64");
    assert_eq!(four.row_bytes(), 8);
    let row: Row = [0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    let registers = four.load(&[row]);
    assert_eq!(registers[0][..4], [0x0302_0100, 0x0706_0504, 0x0b0a_0908, 0x0f0e_0d0c]);
    let six = load("sync.aligned.m8n16.x4.shared::cta.b8x16.b6x16_p32");
    assert_eq!(six.row_bytes(), 12);
    let packed = (0..16u128).fold(0, |bits, element| bits | (element * 3 + 1) << (6 * element));
    let registers = six.load(&[packed.to_le_bytes()]);
    let bytes: Vec<u8> = registers[0][..4].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(bytes, (0..16).map(|element| element * 3 + 1).collect::<Vec<u8>>());
}

#[test]
fn stores_undo_loads() {
    for form in ["m8n8.x1", "m8n8.x2", "m8n8.x4", "m8n8.x1.trans", "m8n8.x2.trans", "m8n8.x4.trans"] {
        let modifiers = format!("sync.aligned.{form}.shared.b16");
        let (load, store) = (load(&modifiers), store(&modifiers));
        let back = store.store(&load.load(&rows()));
        assert_eq!(back[..load.rows()], rows()[..load.rows()], "{form}");
        assert!(back[load.rows()..].iter().flatten().all(|&byte| byte == 0), "{form}");
    }
}

#[test]
fn a_transposed_byte_store_writes_columns_of_an_accumulator() {
    // Byte 0 … 3 of register r are the elements (g, 2q), (g, 2q + 1), (g + 8, 2q), (g + 8, 2q + 1) of a 16×8 accumulator.
    let form = store("sync.aligned.m16n8.x2.trans.shared.b8");
    let element = |matrix: usize, row: usize, column: usize| (matrix * 128 + row * 8 + column) as u8;
    let mut registers = [[0; 32]; 4];
    for (matrix, register) in registers.iter_mut().take(2).enumerate() {
        for (lane, word) in register.iter_mut().enumerate() {
            let (group, pair) = (lane / 4, lane % 4 * 2);
            let places = [(group, pair), (group, pair + 1), (group + 8, pair), (group + 8, pair + 1)];
            *word = u32::from_le_bytes(places.map(|(row, column)| element(matrix, row, column)));
        }
    }
    let stored = form.store(&registers);
    for (index, row) in stored[..16].iter().enumerate() {
        let expected: Row = core::array::from_fn(|m| element(index / 8, m, index % 8));
        assert_eq!(*row, expected, "row {index}");
    }
}

#[test]
fn movmatrix_transposes_eight_by_eight() {
    let register: [u32; 32] = core::array::from_fn(|lane| {
        let element = (lane / 4 * 8 + lane % 4 * 2) as u32;
        element | (element + 1) << 16
    });
    let transposed = transpose(&register);
    for (lane, &word) in transposed.iter().enumerate() {
        let (row, column) = (lane / 4, lane % 4 * 2);
        let expected =
            (column * 8 + row) as u32 | ((column + 1) * 8 + row) as u32 | (((column + 1) * 8 + row) as u32) << 16;
        let low = (column * 8 + row) as u32;
        assert_eq!(word, low | ((column as u32 + 1) * 8 + row as u32) << 16, "lane {lane} {expected:#x}");
    }
    assert_eq!(transpose(&transposed), register);
}

#[test]
fn forms_that_ptx_lacks_are_not_parsed() {
    for modifiers in [
        "sync.aligned.m16n16.x1.shared.b8",
        "sync.aligned.m16n16.x4.trans.shared.b8",
        "sync.aligned.m8n8.shared.b16",
        "sync.aligned.m8n8.x1.b8",
    ] {
        assert_eq!(LdMatrix::parse(&modifiers.split('.').collect::<Vec<_>>()), None, "{modifiers}");
    }
    assert_eq!(LdMatrix::parse_store(&["sync", "aligned", "m16n8", "x1", "shared", "b8"]), None);
}
