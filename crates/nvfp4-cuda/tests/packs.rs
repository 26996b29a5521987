//! Packs that are damaged, foreign or for other devices are refused with a reason; good ones are found and verified.
//! The binaries here are ELF headers of CUDA code: enough for everything but running.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use nvfp4_core::ComputeCapability;
use nvfp4_cuda::pack::{
    Image, Manifest, PackError, Ptx, find_images, find_pack,
    manifest::{SCHEMA, sha256_hex},
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The start of a cubin for an architecture, in the older or the newer form of the flags.
fn cubin(number: u8, abi: u8) -> Vec<u8> {
    let mut elf = vec![0u8; 256];
    elf[..5].copy_from_slice(b"\x7fELF\x02");
    elf[8] = abi;
    elf[18] = 190;
    elf[if abi >= 8 { 49 } else { 48 }] = number;
    elf
}

/// Writes a pack with one image and returns its folder.
fn write(root: &Path, backend: &str, target: &str, binary: &[u8], change: impl FnOnce(&mut Manifest)) -> PathBuf {
    let folder = root.join(backend).join(target);
    fs::create_dir_all(&folder).unwrap();
    let ptx = b"// ptx";
    let mut manifest = Manifest {
        schema: SCHEMA,
        backend: backend.into(),
        revision: 1,
        licence: "MIT OR Apache-2.0".into(),
        tools: BTreeMap::new(),
        flags: Vec::new(),
        sources: BTreeMap::new(),
        images: vec![Image {
            target: target.into(),
            file: "k.cubin".into(),
            sha256: sha256_hex(binary),
            bytes: binary.len() as u64,
            ptx: Some(Ptx { file: "k.ptx".into(), sha256: sha256_hex(ptx) }),
            kernels: vec!["kernel".into()],
            facts: None,
        }],
    };
    change(&mut manifest);
    fs::write(folder.join("k.cubin"), binary).unwrap();
    fs::write(folder.join("k.ptx"), ptx).unwrap();
    fs::write(folder.join("manifest.json"), serde_json::to_string(&manifest).unwrap()).unwrap();
    folder
}

fn find(root: &Path, device: ComputeCapability) -> Result<String, PackError> {
    find_pack(&[root.to_path_buf()], "quantize", 1, device).map(|(_, image, bytes)| {
        assert!(!bytes.is_empty());
        image.target
    })
}

#[test]
fn the_best_image_for_a_device_is_taken() {
    let root = tempfile::tempdir().unwrap();
    for (target, number) in [("sm_80", 80), ("sm_90a", 90), ("sm_100f", 100), ("sm_103a", 103), ("sm_120a", 120)] {
        write(root.path(), "quantize", target, &cubin(number, if number < 100 { 7 } else { 8 }), |_| {});
    }
    for (device, image) in [
        (ComputeCapability::SM80, "sm_80"),
        (ComputeCapability::SM89, "sm_80"),
        (ComputeCapability::SM90, "sm_90a"),
        (ComputeCapability::SM100, "sm_100f"),
        (ComputeCapability::SM103, "sm_103a"),
        (ComputeCapability::SM120, "sm_120a"),
    ] {
        assert_eq!(find(root.path(), device).as_deref(), Ok(image), "{device}");
    }
    // 120a on 12.1 is refused, and the images that are there are named.
    let error = find(root.path(), ComputeCapability::SM121).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, PackError::NotFound { .. }));
    for part in ["sm_121", "sm_120a", "sm_90a", "build-kernels", "NVFP4_KERNELS"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_pack_may_have_several_images_of_a_target_and_no_ptx() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "quantize", "sm_100f", &cubin(100, 8), |manifest| {
        let image = manifest.images[0].clone();
        let named = |target: &str| Image { target: target.into(), ptx: None, ..image.clone() };
        manifest.images = vec![named("sm_100f"), named("sm_100f"), named("sm_103f")];
    });
    for (device, count) in [("10.0", 2), ("10.3", 1)] {
        let roots = [root.path().to_path_buf()];
        let (pack, images) = find_images(&roots, "quantize", 1, device.parse().unwrap()).unwrap();
        assert_eq!(images.len(), count, "{device}");
        assert_eq!(pack.read_ptx(&images[0]), Ok(None));
    }
}

#[test]
fn an_empty_folder_names_what_to_do() {
    let root = tempfile::tempdir().unwrap();
    let text = find(root.path(), ComputeCapability::SM90).unwrap_err().to_string();
    assert!(text.contains("found no images") && text.contains(&root.path().display().to_string()), "{text}");
    let nowhere = root.path().join("nowhere");
    assert!(matches!(find(&nowhere, ComputeCapability::SM90), Err(PackError::NotFound { .. })));
}

#[test]
fn what_is_not_what_it_says_is_refused() {
    type Damage = fn(&Path);
    let cases: [(&str, Damage); 8] = [
        ("sha256", |f| {
            let mut bytes = fs::read(f.join("k.cubin")).unwrap();
            bytes[200] ^= 1;
            fs::write(f.join("k.cubin"), bytes).unwrap();
        }),
        ("sha256", |f| fs::write(f.join("k.cubin"), &cubin(90, 8)[..100]).unwrap()),
        ("k.cubin", |f| fs::remove_file(f.join("k.cubin")).unwrap()),
        ("not a pack manifest", |f| fs::write(f.join("manifest.json"), "{").unwrap()),
        ("schema 1", |f| change_manifest(f, |m| m["schema"] = 1.into())),
        ("revision 2", |f| change_manifest(f, |m| m["revision"] = 2.into())),
        ("plain file name", |f| change_manifest(f, |m| m["images"][0]["file"] = "../k.cubin".into())),
        ("compute capability", |f| change_manifest(f, |m| m["images"][0]["target"] = "gfx942".into())),
    ];
    for (text, damage) in cases {
        let root = tempfile::tempdir().unwrap();
        let folder = write(root.path(), "quantize", "sm_90a", &cubin(90, 8), |_| {});
        assert_eq!(find(root.path(), ComputeCapability::SM90).as_deref(), Ok("sm_90a"));
        damage(&folder);
        let error = find(root.path(), ComputeCapability::SM90).unwrap_err().to_string();
        assert!(error.contains(text) && error.contains(&root.path().display().to_string()), "{text}: {error}");
    }
}

fn change_manifest(folder: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    let path = folder.join("manifest.json");
    let mut manifest = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut manifest);
    fs::write(path, manifest.to_string()).unwrap();
}

#[test]
fn binaries_of_other_kinds_are_refused() {
    for (binary, text) in [
        (cubin(80, 8), "code for sm_80"),
        (b"MZ not an ELF file, but long enough to look like one: 0123456789abcdef".to_vec(), "not a 64-bit ELF"),
        (
            {
                let mut elf = cubin(90, 8);
                elf[18] = 62; // x86-64
                elf
            },
            "CUDA code",
        ),
    ] {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "quantize", "sm_90a", &binary, |_| {});
        let error = find(root.path(), ComputeCapability::SM90).unwrap_err();
        assert!(matches!(error, PackError::Image { .. }) && error.to_string().contains(text), "{error}");
    }
    // A pack of another backend in the folder is not ours.
    let root = tempfile::tempdir().unwrap();
    let folder = write(root.path(), "quantize", "sm_90a", &cubin(90, 8), |m| m.backend = "cutlass".into());
    assert!(matches!(find(root.path(), ComputeCapability::SM90), Err(PackError::NotFound { .. })), "{folder:?}");
    // The PTX is verified like the binary.
    let root = tempfile::tempdir().unwrap();
    let folder = write(root.path(), "quantize", "sm_90a", &cubin(90, 8), |_| {});
    let (pack, image, _) = find_pack(&[root.path().to_path_buf()], "quantize", 1, ComputeCapability::SM90).unwrap();
    assert_eq!(pack.read_ptx(&image).unwrap().unwrap(), b"// ptx");
    fs::write(folder.join("k.ptx"), b"// other").unwrap();
    assert!(matches!(pack.read_ptx(&image), Err(PackError::Hash { .. })));
}

/// Without a driver every question has an answer, and none panics.
#[test]
fn machines_without_a_driver_get_reasons() {
    match nvfp4_cuda::driver_version() {
        Ok(version) => assert!(version >= nvfp4_cuda::probe::OLDEST_DRIVER),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("CUDA driver"), "{text}");
            assert!(nvfp4_cuda::device_count().is_err());
            assert_eq!(nvfp4_cuda::Device::new(0).map(|_| ()).unwrap_err().to_string(), text);
        }
    }
}
