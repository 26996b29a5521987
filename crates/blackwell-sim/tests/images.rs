//! Images as programs hand them to the driver: text, fat binaries as nvcc writes them, machine code with its PTX in a pack.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use blackwell_sim::{
    image::{
        self, ImageError, Origin, PackFolders,
        extent::{self, Extent, Form},
        fat_binary, packs,
    },
    profile::Profile,
};
use std::path::Path;

const PTX: &str = ".version 9.0\n.target sm_100a\n.address_size 64\n.visible .entry f() { ret; }\n";

fn b200() -> &'static Profile {
    Profile::named("sm_100a").unwrap()
}

fn nowhere() -> PackFolders {
    PackFolders::default()
}

/// Fat binaries that nvcc wrote: compression mode and bytes.
fn fat_binaries() -> Vec<(String, Vec<u8>)> {
    let mut found: Vec<(String, Vec<u8>)> = Vec::new();
    for line in include_str!("data/fat_binaries.txt").lines().filter(|line| !line.starts_with('#')) {
        let bytes: Result<Vec<u8>, _> =
            (0..line.len() / 2).map(|i| u8::from_str_radix(&line[2 * i..2 * i + 2], 16)).collect();
        match bytes {
            Ok(bytes) if line.len() % 2 == 0 => found.last_mut().unwrap().1.extend(bytes),
            _ => found.push((line.into(), Vec::new())),
        }
    }
    found
}

#[test]
fn text_ends_at_its_zero_byte() {
    let bytes = [PTX.as_bytes(), b"\0\xff\xff"].concat();
    let image = image::read(&bytes, b200(), &nowhere()).unwrap();
    assert_eq!((image.ptx.as_str(), image.target.as_str(), image.origin), (PTX, "sm_100a", Origin::Text));
}

#[test]
fn another_devices_text_is_refused() {
    let error = image::read(PTX.as_bytes(), Profile::named("sm_120a").unwrap(), &nowhere()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the image holds PTX for sm_100a, which NVIDIA GeForce RTX 5090 (sm_120a) does not run"
    );
}

#[test]
fn fat_binaries_of_every_compression() {
    let all = fat_binaries();
    assert_eq!(all.iter().map(|(mode, _)| mode.as_str()).collect::<Vec<_>>(), ["none", "speed", "size"]);
    for (mode, bytes) in all {
        assert_eq!(extent::extent(&bytes).unwrap(), Extent::Whole(bytes.len()), "{mode}");
        let image = image::read(&bytes, b200(), &nowhere()).unwrap();
        assert_eq!((image.target.as_str(), image.origin), ("sm_100a", Origin::FatBinary));
        assert!(image.ptx.contains(".visible .entry store("), "{mode}: {}", image.ptx);
        assert!(image.ptx.trim_end().ends_with('}'), "{mode}: {}", image.ptx);
        let error = image::read(&bytes, Profile::named("sm_90a").unwrap(), &nowhere()).unwrap_err();
        assert!(error.to_string().contains("PTX for sm_100a"), "{error}");
    }
}

/// Every truncation and every changed byte gives an error or PTX, never a panic.
#[test]
fn damaged_fat_binaries() {
    for (mode, bytes) in fat_binaries() {
        for length in 0..bytes.len() {
            assert!(image::read(&bytes[..length], b200(), &nowhere()).is_err(), "{mode} cut to {length}");
        }
        for at in 0..bytes.len() {
            for change in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= change;
                let _ = image::read(&damaged, b200(), &nowhere());
            }
        }
    }
    let (_, bytes) = &fat_binaries()[0];
    let entry = &fat_binary::entries(bytes).unwrap()[0];
    assert_eq!(entry.describe(), "PTX for 100");
}

/// A cubin with one section `.text.f`, a table of sections in the middle and a segment at the end, like ptxas writes them.
fn cubin(code: &[u8]) -> Vec<u8> {
    const NAMES: &[u8] = b"\0.shstrtab\0.text.f\0";
    let names_at = 64;
    let code_at = (names_at + NAMES.len()).next_multiple_of(8);
    let table_at = (code_at + code.len()).next_multiple_of(8);
    let segments_at = table_at + 3 * 64;
    let mut bytes = vec![0; segments_at + 56];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, b"\x7fELF\x02\x01\x01\x41\x08");
    put(16, &2u16.to_le_bytes());
    put(18, &190u16.to_le_bytes());
    put(20, &1u32.to_le_bytes());
    put(32, &(segments_at as u64).to_le_bytes());
    put(40, &(table_at as u64).to_le_bytes());
    for (at, value) in [(52, 64u16), (54, 56), (56, 1), (58, 64), (60, 3), (62, 1)] {
        put(at, &value.to_le_bytes());
    }
    put(names_at, NAMES);
    put(code_at, code);
    for (index, name, kind, offset, size) in
        [(1, 1u32, 3u32, names_at, NAMES.len()), (2, 11, 1, code_at, code.len())]
    {
        let at = table_at + 64 * index;
        put(at, &name.to_le_bytes());
        put(at + 4, &kind.to_le_bytes());
        put(at + 24, &(offset as u64).to_le_bytes());
        put(at + 32, &(size as u64).to_le_bytes());
    }
    bytes
}

fn pack(folder: &Path, cubin: &[u8], ptx: &str, ptx_hash: &str) {
    std::fs::create_dir_all(folder).unwrap();
    let hash = packs::sha256_hex(cubin);
    let manifest = format!(
        r#"{{"schema": 2, "images": [
            {{"target": "sm_100a", "file": "k.cubin", "sha256": "{hash}", "ptx": {{"file": "k.ptx", "sha256": "{ptx_hash}"}}}}]}}"#
    );
    std::fs::write(folder.join("manifest.json"), manifest).unwrap();
    std::fs::write(folder.join("k.ptx"), ptx).unwrap();
}

#[test]
fn machine_code_finds_its_ptx_in_a_pack() {
    let folder = tempfile::tempdir().unwrap();
    let image = cubin(&[7; 100]);
    assert_eq!(Form::of(&image).unwrap(), Form::Cubin);
    assert_eq!(extent::cubin_length(&image).unwrap(), image.len());
    let tables = image.len();
    assert_eq!(extent::extent(&image[..64]).unwrap(), Extent::AtLeast(tables));
    let packs = PackFolders(vec![folder.path().into()]);

    let error = image::read(&image, b200(), &packs).unwrap_err();
    assert!(matches!(error, ImageError::NoPtx { .. }), "{error}");
    for part in ["kernels `f`", &packs::sha256_hex(&image), "NVFP4_KERNELS"] {
        assert!(error.to_string().contains(part), "{error} lacks {part}");
    }

    let own = folder.path().join("backend").join("sm_100a");
    pack(&folder.path().join("backend").join("other"), &cubin(&[8; 100]), "other", "none");
    pack(&own, &image, PTX, &packs::sha256_hex(PTX.as_bytes()));
    // The driver reads from an address: what follows the image does not count.
    let followed = [&image[..], &[1, 2, 3]].concat();
    let found = image::read(&followed, b200(), &packs).unwrap();
    assert_eq!((found.ptx.as_str(), found.origin), (PTX, Origin::Pack(own.join("k.ptx"))));

    pack(&own, &image, "changed", &packs::sha256_hex(PTX.as_bytes()));
    let error = image::read(&image, b200(), &packs).unwrap_err();
    assert!(error.to_string().contains("the manifest says"), "{error}");
}

#[test]
fn damaged_machine_code() {
    let image = cubin(&[7; 10]);
    for length in 0..image.len() {
        assert!(image::read(&image[..length], b200(), &nowhere()).is_err(), "cut to {length}");
    }
    for at in 0..image.len() {
        let mut damaged = image.clone();
        damaged[at] ^= 0xff;
        assert!(image::read(&damaged, b200(), &nowhere()).is_err());
    }
    let mut other = image;
    other[18] = 62;
    let error = image::read(&other, b200(), &nowhere()).unwrap_err();
    assert!(error.to_string().contains("machine is 62"), "{error}");
}

#[test]
fn what_is_no_image() {
    for bytes in [&b""[..], b"PK\x03\x04", b"\0\0\0\0"] {
        assert!(matches!(image::read(bytes, b200(), &nowhere()), Err(ImageError::Unknown { .. })), "{bytes:?}");
    }
    let error = image::read(b".version 9.0\n", b200(), &nowhere()).unwrap_err();
    assert!(error.to_string().contains(".target"), "{error}");
}
