//! Outputs that cannot be finished: nothing is left behind.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(unix)]

mod models;

use models::{contents, llama, names};
use nvfp4_checkpoint::{
    CheckpointFormat, ModelError, convert,
    convert::ConvertOptions,
    dequantize,
    dequantize::DequantizeOptions,
    quantize,
    quantize::QuantizeOptions,
    write::{WriteError, WriteOptions},
};
use safetensors::Dtype;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A dense model, and a checkpoint made of it.
fn inputs(folder: &Path) -> (PathBuf, PathBuf) {
    let (dense, checkpoint) = (folder.join("dense"), folder.join("checkpoint"));
    fs::create_dir(&dense).unwrap();
    models::write(&dense, &llama(Dtype::BF16, 5, |_| 1.0));
    fs::write(dense.join("tokenizer.json"), vec![b' '; 3000]).unwrap();
    quantize(&dense, &checkpoint, &QuantizeOptions::new(CheckpointFormat::ModelOpt), &()).unwrap();
    (dense, checkpoint)
}

/// The operations that write.
const OPERATIONS: [&str; 3] = ["quantize", "convert", "dequantize"];

/// Runs an operation on the inputs in `folder`.
fn run(operation: &str, folder: &Path, target: &Path, write: &WriteOptions) -> Result<(), ModelError> {
    let (dense, checkpoint) = (folder.join("dense"), folder.join("checkpoint"));
    match operation {
        "quantize" => {
            let mut options = QuantizeOptions::new(CheckpointFormat::ModelOpt);
            options.write = write.clone();
            quantize(dense, target, &options, &()).map(drop)
        }
        "convert" => {
            let mut options = ConvertOptions::new(CheckpointFormat::CompressedTensors);
            options.write = write.clone();
            convert(checkpoint, target, &options, &()).map(drop)
        }
        _ => {
            let mut options = DequantizeOptions::default();
            options.write = write.clone();
            dequantize(checkpoint, target, &options, &()).map(drop)
        }
    }
}

/// Runs a test of this file again, in a process whose files may have `limit` KiB at most: writing beyond it fails half-way,
/// as on a full disk.
fn with_limited_files(test: &str, limit: usize, folder: &Path) {
    let program = std::env::current_exe().unwrap();
    // The signal that accompanies the failure is ignored, and stays so in the new process.
    let script = format!("trap '' XFSZ; ulimit -f {limit}; exec \"$0\" --exact {test} --nocapture");
    let output =
        Command::new("bash").args(["-c", &script]).arg(program).env("NVFP4_TEST_FOLDER", folder).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
fn a_disk_that_fills_up() {
    if let Some(folder) = std::env::var_os("NVFP4_TEST_FOLDER") {
        let folder = PathBuf::from(folder);
        for operation in OPERATIONS {
            let result = run(operation, &folder, &folder.join("out"), &WriteOptions::default());
            let error = result.unwrap_err();
            let ModelError::Write(WriteError::Tensor { tensor, path, source }) = &error else {
                panic!("{operation}: {error}")
            };
            assert!(!tensor.is_empty() && path.ends_with("model.safetensors"));
            assert_eq!(source.kind(), std::io::ErrorKind::FileTooLarge, "{operation}: {error}");
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    inputs(folder.path());
    let before = contents(folder.path());
    // Less than each output, more than its header.
    with_limited_files("a_disk_that_fills_up", 24, folder.path());
    assert_eq!(contents(folder.path()), before);
    // With more room they succeed: it was the limit that they failed for.
    with_limited_files("room_enough", 1000, folder.path());
    assert_eq!(contents(folder.path()), before);
}

#[test]
fn room_enough() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = match std::env::var_os("NVFP4_TEST_FOLDER") {
        Some(folder) => PathBuf::from(folder),
        None => {
            inputs(temporary.path());
            temporary.path().to_path_buf()
        }
    };
    let target = folder.join("out");
    let mut write = WriteOptions::default();
    write.replace = true;
    for operation in OPERATIONS {
        let result = run(operation, &folder, &target, &write);
        result.unwrap_or_else(|e| panic!("{operation}: {e}"));
    }
    fs::remove_dir_all(target).unwrap();
}

#[test]
fn a_full_disk_keeps_what_was_to_be_replaced() {
    if let Some(folder) = std::env::var_os("NVFP4_TEST_FOLDER") {
        let folder = PathBuf::from(folder);
        let mut write = WriteOptions::default();
        write.replace = true;
        for operation in OPERATIONS {
            let result = run(operation, &folder, &folder.join("old"), &write);
            assert!(matches!(result, Err(ModelError::Write(WriteError::Tensor { .. }))), "{operation}: {result:?}");
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (dense, _) = inputs(folder.path());
    let old = folder.path().join("old");
    quantize(&dense, &old, &QuantizeOptions::new(CheckpointFormat::CompressedTensors), &()).unwrap();
    let before = contents(folder.path());
    with_limited_files("a_full_disk_keeps_what_was_to_be_replaced", 24, folder.path());
    assert_eq!(contents(folder.path()), before);

    let mut write = WriteOptions::default();
    write.replace = true;
    for operation in OPERATIONS {
        let result = run(operation, folder.path(), &old, &write);
        result.unwrap_or_else(|e| panic!("{operation}: {e}"));
    }
    assert_ne!(
        contents(&old),
        before.iter().filter_map(|(n, b)| Some((n.strip_prefix("old/")?.to_string(), b.clone()))).collect()
    );
    assert_eq!(names(folder.path()), ["checkpoint", "dense", "old"]);
}

#[test]
fn places_that_cannot_hold_an_output() {
    let folder = tempfile::tempdir().unwrap();
    inputs(folder.path());
    fs::write(folder.path().join("file"), "x").unwrap();
    fs::create_dir(folder.path().join("existing")).unwrap();
    fs::write(folder.path().join("existing/notes.txt"), "kept").unwrap();
    let before = contents(folder.path());
    let mut replace = WriteOptions::default();
    replace.replace = true;
    for (target, write) in [
        ("existing", WriteOptions::default()),
        ("existing", replace.clone()),
        ("file", WriteOptions::default()),
        ("file", replace.clone()),
        ("file/below", WriteOptions::default()),
        ("no/such/folder", WriteOptions::default()),
    ] {
        for operation in OPERATIONS {
            let result = run(operation, folder.path(), &folder.path().join(target), &write);
            let error = result.unwrap_err();
            assert!(matches!(error, ModelError::Write(_)), "{operation}: {error}");
            let named = target.rsplit('/').next().unwrap();
            assert!(error.to_string().contains(named), "{operation}: {error}");
            assert_eq!(contents(folder.path()), before, "{operation} {target}");
        }
    }
}

#[test]
fn a_directory_that_may_not_be_written() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    inputs(folder.path());
    let locked = folder.path().join("locked");
    fs::create_dir(&locked).unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o555)).unwrap();
    // An administrator may write everywhere but where the kernel itself refuses.
    let target = match fs::create_dir(locked.join("probe")) {
        Err(_) => locked.join("out"),
        Ok(()) => {
            fs::remove_dir(locked.join("probe")).unwrap();
            PathBuf::from("/proc/nvfp4-out")
        }
    };
    for operation in OPERATIONS {
        let result = run(operation, folder.path(), &target, &WriteOptions::default());
        let error = result.unwrap_err();
        let ModelError::Write(WriteError::Io { action, path, .. }) = &error else { panic!("{operation}: {error}") };
        assert_eq!((*action, path.parent()), ("create the directory", target.parent()), "{error}");
    }
    assert!(names(&locked).is_empty());
    assert_eq!(names(folder.path()), ["checkpoint", "dense", "locked"]);
}

#[test]
fn a_fault_in_the_last_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let (_, checkpoint) = inputs(folder.path());
    let mut tensors = models::read(&checkpoint);
    let last = tensors.keys().rfind(|n| n.ends_with("weight_scale")).unwrap().clone();
    *tensors.get_mut(&last).unwrap().bytes.last_mut().unwrap() = 0x7f;
    models::write(&checkpoint, &tensors);
    let before = contents(folder.path());
    for operation in ["convert", "dequantize"] {
        let result = run(operation, folder.path(), &folder.path().join("out"), &WriteOptions::default());
        let error = result.unwrap_err();
        assert!(matches!(error, ModelError::Read(_)) && error.to_string().contains(&last), "{operation}: {error}");
        assert_eq!(contents(folder.path()), before);
    }
}

#[test]
fn a_progress_that_panics() {
    struct Panics;
    impl nvfp4_checkpoint::Progress for Panics {
        fn update(&self, update: nvfp4_checkpoint::ProgressUpdate<'_>) {
            assert!(update.bytes_done < update.bytes_total, "half-way");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let (dense, _) = inputs(folder.path());
    let before = contents(folder.path());
    let target = folder.path().join("out");
    let run = || quantize(&dense, &target, &QuantizeOptions::new(CheckpointFormat::ModelOpt), &Panics);
    assert!(std::panic::catch_unwind(run).is_err());
    assert_eq!(contents(folder.path()), before);
}
