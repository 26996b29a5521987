use nvfp4_core::{Error, LinearScales};
use proptest::prelude::*;

const NAN: u8 = 0x7f;

/// Scales 1.0 with some bytes replaced.
fn scales(rows: usize, cols: usize, replaced: &[((usize, usize), u8)]) -> LinearScales<'static> {
    let mut bytes = vec![0x38; rows * cols];
    for &((row, col), byte) in replaced {
        bytes[row * cols + col] = byte;
    }
    LinearScales::new(rows, cols, bytes).unwrap()
}

#[test]
fn nan_is_located_and_counted() {
    let found = scales(8, 4, &[((3, 2), NAN), ((7, 3), NAN), ((5, 0), 0xff)]).check_values();
    assert_eq!(found, Err(Error::BlockScale { row: 3, column: 2, byte: NAN, count: 3 }));
    let text = found.map_err(|e| e.in_tensor("mlp.down_proj.weight_scale")).unwrap_err().to_string();
    for part in ["mlp.down_proj.weight_scale", "row 3", "column 2", "0x7f (NaN)", "3 such bytes"] {
        assert!(text.contains(part), "{text}");
    }
}

/// The hardware reads scales as unsigned.
#[test]
fn every_byte_with_the_sign_bit_is_refused() {
    for byte in 0..=0xffu8 {
        let found = scales(2, 2, &[((1, 0), byte)]).check_values();
        match byte {
            0..=0x7e => assert_eq!(found, Ok(())),
            _ => assert_eq!(found, Err(Error::BlockScale { row: 1, column: 0, byte, count: 1 })),
        }
    }
}

#[test]
fn nan_of_a_zero_block_is_repaired_silently() {
    let mut repaired = scales(8, 4, &[((3, 2), NAN)]);
    let mut codes = vec![0x22; 8 * 4 * 8];
    codes[(3 * 4 + 2) * 8..][..8].fill(0x80); // zeros, some of them negative
    let repair = repaired.repair_nan(&codes).unwrap();
    assert_eq!((repair.zero_blocks, repair.clamped_blocks, repair.first_clamped), (1, 0, None));
    assert_eq!(repaired, scales(8, 4, &[((3, 2), 0x7e)]));
}

#[test]
fn nan_of_another_block_is_clamped_and_reported() {
    let mut repaired = scales(8, 4, &[((3, 2), NAN), ((6, 1), NAN), ((6, 2), NAN)]);
    let mut codes = vec![0; 8 * 4 * 8];
    for block in [3 * 4 + 2, 6 * 4 + 2] {
        codes[block * 8 + 7] = 0x10;
    }
    let repair = repaired.repair_nan(&codes).unwrap();
    assert_eq!((repair.zero_blocks, repair.clamped_blocks, repair.first_clamped), (1, 2, Some((3, 2))));
    assert_eq!(repaired, scales(8, 4, &[((3, 2), 0x7e), ((6, 1), 0x7e), ((6, 2), 0x7e)]));
}

#[test]
fn negative_scales_are_not_repaired() {
    for byte in [0x80, 0xb8, 0xff] {
        let before = scales(8, 4, &[((0, 0), NAN), ((3, 2), byte)]);
        let mut after = before.clone();
        let found = after.repair_nan(&[0; 8 * 4 * 8]);
        assert_eq!(found, Err(Error::BlockScale { row: 3, column: 2, byte, count: 1 }));
        assert_eq!(after, before, "nothing may change");
    }
}

#[test]
fn repair_wants_the_codes_of_the_scales() {
    let found = scales(8, 4, &[]).repair_nan(&[0; 255]);
    assert_eq!(found, Err(Error::Size { what: "packed weight bytes", expected: 256, found: 255 }));
}

#[test]
fn borrowed_scales_without_fault_stay_borrowed() {
    let bytes = [0x38; 8];
    let mut borrowed = LinearScales::new(2, 4, &bytes[..]).unwrap();
    assert_eq!(borrowed.repair_nan(&[0; 64]).unwrap(), Default::default());
    assert_eq!(borrowed.bytes().as_ptr(), bytes.as_ptr());
}

/// Scales that were examined stay examined when they are cut, stacked or repaired; one part that was not taints the whole.
#[test]
fn scales_are_examined_once() {
    assert!(scales(2, 2, &[((1, 1), NAN)]).checked().is_err());
    assert!(!scales(2, 2, &[]).is_checked());
    let sound = scales(3, 4, &[]).checked().unwrap();
    let (mut clean, mut repaired) = (scales(2, 2, &[]), scales(2, 2, &[((1, 1), NAN)]));
    for scales in [&mut clean, &mut repaired] {
        scales.repair_nan(&[0; 32]).unwrap();
    }
    for derived in [
        sound.slice_rows(1..3).unwrap().into_owned(),
        sound.slice_columns(1..3).unwrap(),
        LinearScales::concat_rows([&sound, &sound]).unwrap(),
        sound.clone(),
        clean,
        repaired,
    ] {
        assert!(derived.is_checked() && derived.check_values().is_ok(), "{derived:?}");
    }
    let unknown = scales(1, 2, &[((0, 1), NAN)]);
    let known = scales(1, 2, &[]).checked().unwrap();
    assert!(LinearScales::concat_rows([&known, &unknown]).unwrap().check_values().is_err());
    assert_eq!(known, scales(1, 2, &[]), "equal by value");
    let other = scales(1, 3, &[]);
    assert!(matches!(LinearScales::concat_rows([&known, &other]), Err(Error::Size { expected: 2, found: 3, .. })));
    assert!(known.slice_columns(1..3).is_err());
}

proptest! {
    /// The fast scan finds what a plain loop finds, at every place.
    #[test]
    fn scan_equals_a_plain_loop(
        rows in 1..40usize,
        cols in 1..300usize,
        faults in prop::collection::vec((any::<prop::sample::Index>(), 0x7f..=0xffu8), 0..4),
    ) {
        let mut bytes: Vec<u8> = (0..rows * cols).map(|i| (i % 0x7f) as u8).collect();
        for (at, byte) in faults {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let bad: Vec<_> = bytes.iter().enumerate().filter(|&(_, &b)| b == 0x7f || b >= 0x80).collect();
        let expected = match bad.first() {
            None => Ok(()),
            Some(&(at, &byte)) =>
                Err(Error::BlockScale { row: at / cols, column: at % cols, byte, count: bad.len() }),
        };
        prop_assert_eq!(LinearScales::new(rows, cols, bytes.clone()).unwrap().check_values(), expected);
    }
}
