//! Every file of the golden data is compared with by a test.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use nvfp4_testkit::{coverage::COVERAGE, golden};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Files below `dir`, relative to it.
fn files(dir: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![PathBuf::new()];
    while let Some(relative) = open.pop() {
        for entry in fs::read_dir(dir.join(&relative)).unwrap() {
            let entry = entry.unwrap();
            let path = relative.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                open.push(path);
            } else {
                found.insert(path.to_str().unwrap().replace('\\', "/"));
            }
        }
    }
    found
}

#[test]
fn every_file_is_covered() {
    let mut present = files(&golden::dir());
    assert!(present.remove("MANIFEST.md"), "the description of the golden data is missing");
    let covered: BTreeSet<String> = COVERAGE.iter().map(|row| row.0.to_string()).collect();
    let uncovered: Vec<_> = present.difference(&covered).collect();
    assert!(uncovered.is_empty(), "no test covers {uncovered:?}; write one and name it in COVERAGE");
    let missing: Vec<_> = covered.difference(&present).collect();
    assert!(missing.is_empty(), "the golden data lacks {missing:?}");
}

/// The tests that the table names exist and open the files. A checkpoint is opened by its directory, or as one of
/// all directories whose names start alike.
#[test]
fn every_named_test_opens_its_file() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    for (file, test) in COVERAGE {
        let source = fs::read_to_string(workspace.join(test)).unwrap_or_else(|e| panic!("{test}: {e}"));
        let opens = |name: &str| source.contains(&format!("\"{name}\""));
        let opened = match file.split_once('/') {
            Some((directory, _)) => {
                let prefix = directory.split_inclusive('_').next().unwrap();
                opens(directory) || opens(prefix)
            }
            None => opens(file),
        };
        assert!(opened, "{test} does not open {file}");
        assert!(source.contains("#[test]"), "{test} has no test");
    }
}

#[test]
fn the_manifest_names_every_file() {
    let manifest = fs::read_to_string(golden::dir().join("MANIFEST.md")).unwrap();
    for (file, _) in COVERAGE {
        let name = file.split('/').next().unwrap();
        let stem = name.split('.').next().unwrap();
        // `compressed_tensors_0_17 / _0_20` share a row.
        let stem = stem.strip_suffix("_0_20").map_or(stem.to_string(), |s| format!("{s}_0_17"));
        assert!(manifest.contains(&stem), "MANIFEST.md does not describe {name}");
    }
}
