//! What must hold for every tracked file of the repository, whoever wrote it.

use crate::workspace;
use std::{collections::BTreeSet, fs, path::PathBuf, process::Command};

/// Tracked files, and new ones that git does not ignore, that are still there.
fn files() -> Vec<PathBuf> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(arguments).current_dir(workspace::root()).output().unwrap();
    assert!(output.status.success(), "git ls-files: {}", output.status);
    let files: Vec<_> = String::from_utf8(output.stdout)
        .unwrap()
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(PathBuf::from)
        .filter(|name| workspace::root().join(name).is_file())
        .collect();
    assert!(files.len() > 50, "{files:?}");
    files
}

/// Text files with their content.
fn texts() -> Vec<(PathBuf, String)> {
    let read = |name: PathBuf| Some((name.clone(), fs::read_to_string(workspace::root().join(name)).ok()?));
    files().into_iter().filter_map(read).collect()
}

/// Lines that hold one of the needles, as `file:line: text`.
fn lines_with(needles: &[String], extensions: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut searched = 0;
    for (name, text) in texts() {
        let extension = name.extension().and_then(|e| e.to_str()).unwrap_or("");
        if !extensions.is_empty() && !extensions.contains(&extension) {
            continue;
        }
        searched += 1;
        for (number, line) in text.lines().enumerate() {
            if needles.iter().any(|needle| line.contains(needle.as_str())) {
                found.push(format!("{}:{}: {}", name.display(), number + 1, line.trim()));
            }
        }
    }
    assert!(searched > 0, "no file searched");
    found
}

/// Joins parts, so that this file does not hold what it looks for.
fn needles(parts: &[[&str; 2]]) -> Vec<String> {
    parts.iter().map(|parts| parts.concat()).collect()
}

#[test]
fn no_path_of_one_machine() {
    let found = lines_with(&needles(&[["/wo", "rk/"], ["/ro", "ot/"], ["/ho", "me/"], ["C:\\", "Users"]]), &[]);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn no_host_of_a_package_registry() {
    let hosts = [
        ["files.python", "hosted"],
        ["pypi.", "org/simple"],
        ["index.", "crates.io"],
        ["static.", "crates.io"],
        ["deb.", "debian.org"],
        ["registry.", "npmjs"],
    ];
    let found = lines_with(&needles(&hosts), &[]);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn no_unfinished_code_and_no_test_that_does_not_run() {
    let unfinished = [
        ["to", "do!("],
        ["unimple", "mented!("],
        ["#[ig", "nore"],
        ["FIX", "ME"],
        ["assert!(", "true)"],
        ["db", "g!("],
    ];
    let found = lines_with(&needles(&unfinished), &["rs"]);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn python_and_shell_have_no_unfinished_code() {
    let found = lines_with(&needles(&[["TO", "DO"], ["FIX", "ME"], ["NotImpl", "ementedError"]]), &["py", "sh"]);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn every_package_says_what_it_is() {
    for package in workspace::packages().unwrap() {
        let name = package["name"].as_str().unwrap();
        for field in ["description", "license", "rust_version", "edition"] {
            assert!(package[field].is_string(), "{name}: no `{field}` in Cargo.toml");
        }
    }
}

#[test]
fn every_published_package_has_readme_and_licences_beside_it() {
    let mut published = 0;
    for package in workspace::packages().unwrap() {
        if package["publish"].as_array().is_some_and(Vec::is_empty) {
            continue;
        }
        published += 1;
        let name = package["name"].as_str().unwrap();
        let folder = PathBuf::from(package["manifest_path"].as_str().unwrap()).parent().unwrap().to_path_buf();
        let readme = package["readme"].as_str().unwrap_or_else(|| panic!("{name}: no `readme` in Cargo.toml"));
        let text = fs::read_to_string(folder.join(readme)).unwrap_or_else(|e| panic!("{name}: {readme}: {e}"));
        assert!(text.lines().count() > 5, "{name}: {readme} says too little");
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let beside =
                fs::read_to_string(folder.join(licence)).unwrap_or_else(|e| panic!("{name}: {licence}: {e}"));
            let here = fs::read_to_string(workspace::path(licence)).unwrap();
            assert_eq!(beside, here, "{name}: {licence} is not the workspace's");
        }
        for field in ["keywords", "categories"] {
            let value = &package[field];
            let says = value.is_string() || value.as_array().is_some_and(|list| !list.is_empty());
            assert!(says, "{name}: no `{field}` in Cargo.toml");
        }
    }
    assert!(published >= 5, "{published}");
}

#[test]
fn dependencies_come_from_the_public_registry_alone() {
    let lock = fs::read_to_string(workspace::path("Cargo.lock")).unwrap();
    let sources: BTreeSet<_> = lock.lines().filter_map(|line| line.strip_prefix("source = ")).collect();
    let public = ["\"registry+https://github.com/rust-lang/", "crates.io-index\""].concat();
    assert_eq!(sources, BTreeSet::from([public.as_str()]));
}

#[test]
fn the_facade_pulls_in_few_crates() {
    let arguments =
        ["tree", "--package", "nvfp4", "--edges", "normal", "--prefix", "none", "--no-dedupe", "--locked"];
    let output = workspace::cargo().args(arguments).output().unwrap();
    assert!(output.status.success(), "cargo tree: {}", output.status);
    let tree = String::from_utf8(output.stdout).unwrap();
    let crates: BTreeSet<_> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(crates.contains("nvfp4-core"), "{crates:?}");
    assert!(
        crates.len() <= 40,
        "{} crates, so that `cargo build` no longer takes seconds: {crates:?}",
        crates.len()
    );
}
