//! Bad input, and outputs that cannot be written.

use crate::{
    model::{self, Tensor},
    run::{command, finish, nvfp4},
};
use std::{fs, path::Path, process::Stdio};

fn names_in(directory: &Path) -> Vec<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_missing_path_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let nowhere = directory.path().join("nowhere");
    let (nowhere, to) = (nowhere.to_str().unwrap(), directory.path().join("to"));
    let to = to.to_str().unwrap();
    for arguments in [
        &["inspect", nowhere][..],
        &["verify", nowhere],
        &["quantize", nowhere, to],
        &["convert", nowhere, to, "--format", "modelopt"],
        &["dequantize", nowhere, to],
    ] {
        nvfp4(arguments).ended(3).says(&["nowhere"]);
        nvfp4(arguments.iter().chain(&["--json"])).ended(3).says(&["nowhere"]);
    }
    assert_eq!(names_in(directory.path()), [""; 0]);
}

#[test]
fn an_empty_directory_is_no_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    nvfp4(["inspect".as_ref(), directory.path().as_os_str()]).ended(3).says(&["no checkpoint here"]);
}

#[test]
fn values_that_cannot_be_quantized_are_named_and_leave_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let dense = directory.path().join("dense");
    let mut tensors = model::llama(&dense, 21);
    let name = "model.layers.1.mlp.up_proj.weight";
    let mut values = tensors[name].floats();
    values[3 * 64 + 17] = f32::INFINITY;
    tensors.insert(name.into(), Tensor::bf16(&[112, 64], &values));
    model::write(&tensors, &dense.join("model.safetensors"));
    let to = directory.path().join("to");
    let run = nvfp4(["quantize".as_ref(), dense.as_os_str(), to.as_os_str()]).ended(3);
    run.says(&[name, "row 3", "column 17"]);
    assert_eq!(names_in(directory.path()), ["dense"]);
}

#[test]
fn an_output_that_cannot_be_created_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let dense = directory.path().join("dense");
    model::llama(&dense, 22);
    let file = directory.path().join("file");
    fs::write(&file, "no directory").unwrap();
    let mut targets = vec![file.join("to")];
    // Nobody can create anything there, not even root.
    if cfg!(target_os = "linux") {
        targets.push("/proc/to".into());
    }
    for to in targets {
        let run = nvfp4(["quantize".as_ref(), dense.as_os_str(), to.as_os_str()]).ended(3);
        run.says(&[to.parent().unwrap().to_str().unwrap()]);
        assert!(!to.exists());
    }
    let mut names = names_in(directory.path());
    names.sort();
    assert_eq!(names, ["dense", "file"]);
}

/// A directory without write permission, for whoever heeds permissions (root does not, and may succeed).
#[cfg(unix)]
#[test]
fn a_read_only_directory_is_refused_or_root_writes_it_whole() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let dense = directory.path().join("dense");
    model::llama(&dense, 23);
    let locked = directory.path().join("locked");
    fs::create_dir(&locked).unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o555)).unwrap();
    let heeded = fs::write(locked.join("probe"), "").is_err();
    let to = locked.join("to");
    let run = nvfp4(["quantize".as_ref(), dense.as_os_str(), to.as_os_str()]);
    if heeded {
        run.ended(3).says(&["locked"]);
        assert_eq!(names_in(&locked), [""; 0]);
    } else {
        run.ended(0);
        nvfp4(["verify".as_ref(), to.as_os_str()]).ended(0);
    }
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn in_features_that_are_no_multiple_of_16_are_left_dense_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("model.safetensors");
    let mut random = model::Random::new(5);
    let tensors = [("good.weight", [8, 32]), ("odd.weight", [8, 24])]
        .map(|(name, shape)| (name.to_string(), Tensor::bf16(&shape, &random.values(shape[0] * shape[1], 1.0))));
    model::write(&tensors.into(), &file);
    let quantize = |to: &str, more: &[&str]| {
        let to = directory.path().join(to);
        nvfp4(["quantize", file.to_str().unwrap(), to.to_str().unwrap(), "--json"].iter().chain(more))
    };
    let report = quantize("a", &[]).ended(0).json();
    assert_eq!(report["dense"][0]["name"], "odd");
    assert_eq!(report["dense"][0]["reason"], "in_features");
    quantize("b", &["--include", "odd"]).ended(3).says(&["odd", "24", "16"]);
    assert!(!directory.path().join("b").exists());
}

#[test]
fn wrong_command_lines_are_usage_errors() {
    for arguments in [
        &[][..],
        &["quantise"],
        &["inspect"],
        &["inspect", "a", "b"],
        &["quantize", "a"],
        &["quantize", "a", "b", "--format", "gguf"],
        &["convert", "a", "b"],
        &["dequantize", "a", "b", "--dtype", "int8"],
        &["verify", "a", "--rename", "x"],
        &["demo", "--rounds", "0"],
        &["--threads", "many", "doctor"],
    ] {
        let run = nvfp4(arguments).ended(2);
        assert!(run.stdout.is_empty() && !run.stderr.is_empty(), "{arguments:?}");
    }
}

/// `nvfp4 … | head`: the program goes on quietly and ends with its own exit code.
#[test]
fn a_closed_pipe_is_no_failure() {
    let golden = nvfp4_testkit::golden::dir().join("ckpt_modelopt");
    let golden = golden.to_str().unwrap();
    for (arguments, code) in [
        (&["inspect", golden][..], 0),
        (&["inspect", golden, "--json"], 0),
        (&["doctor"], 0),
        (&["explain", "--gpu", "B200", "--n", "16", "--k", "16"], 1),
        (&["completions", "bash"], 0),
        (&["--help"], 0),
    ] {
        let mut child = command().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{arguments:?}");
    }
}

/// A report that cannot be written is a failure, unlike one that nobody reads.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_under_standard_output_is_a_failure() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let run = finish(command().arg("doctor").stdout(full)).ended(3);
    assert!(run.stderr.starts_with("error: "), "{}", run.stderr);
}

#[test]
fn closed_standard_streams_do_not_panic() {
    let run = finish(command().args(["inspect", "nowhere"]).stdout(Stdio::null()).stderr(Stdio::null()));
    run.ended(3);
}
