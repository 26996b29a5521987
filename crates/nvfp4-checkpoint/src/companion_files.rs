//! The files of a model directory that are neither weights nor rewritten: tokenizer, generation settings, licence,
//! the folders of sentence-transformers.

use crate::write::WriteError;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Extensions of files that hold weights, in any framework's format.
const WEIGHTS: &[&str] = &[
    "safetensors",
    "bin",
    "pt",
    "pth",
    "ckpt",
    "onnx",
    "onnx_data",
    "gguf",
    "ggml",
    "h5",
    "msgpack",
    "ot",
    "npz",
    "tflite",
    "mlmodel",
    "xml",
];
/// Files that the output gets anew.
const REWRITTEN: &[&str] = &["config.json", "hf_quant_config.json"];
/// Folders are searched to this depth.
const DEPTH: usize = 4;

/// Paths, relative to `folder`, of the files that belong to the model beside its weights. Hidden files, weight files
/// and their indices are left out, except the weights of the folders that sentence-transformers' modules.json lists
/// (`2_Dense/model.safetensors`). Links to files are followed, links to folders are not.
pub(crate) fn companion_files(folder: &Path) -> Result<Vec<PathBuf>, WriteError> {
    let mut files = Vec::new();
    let modules = module_folders(folder);
    visit(folder, Path::new(""), &modules, 0, &mut files)?;
    files.sort();
    Ok(files)
}

fn visit(
    root: &Path,
    relative: &Path,
    modules: &[PathBuf],
    depth: usize,
    files: &mut Vec<PathBuf>,
) -> Result<(), WriteError> {
    let folder = root.join(relative);
    for entry in fs::read_dir(&folder).map_err(WriteError::io("list", &folder))? {
        let entry = entry.map_err(WriteError::io("list", &folder))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let path = relative.join(entry.file_name());
        if name.starts_with('.') {
            continue;
        }
        let kind = entry.file_type().map_err(WriteError::io("look at", &entry.path()))?;
        if kind.is_dir() {
            if depth < DEPTH {
                visit(root, &path, modules, depth + 1, files)?;
            }
            continue;
        }
        // Hugging Face's cache holds links to files. What else a link or a special file leads to is not copied.
        if !fs::metadata(entry.path()).is_ok_and(|m| m.is_file()) {
            continue;
        }
        let weights =
            Path::new(name.as_ref()).extension().is_some_and(|e| WEIGHTS.iter().any(|w| e.eq_ignore_ascii_case(w)));
        let rewritten = depth == 0 && (REWRITTEN.contains(&name.as_ref()) || name.ends_with(".index.json"));
        if !rewritten && (!weights || modules.iter().any(|m| m == relative)) {
            files.push(path);
        }
    }
    Ok(())
}

/// The folders that sentence-transformers' modules.json lists, other than the model's own.
fn module_folders(root: &Path) -> Vec<PathBuf> {
    let list = fs::read(root.join("modules.json")).ok().and_then(|t| serde_json::from_slice(&t).ok());
    let list: Vec<serde_json::Value> = list.unwrap_or_default();
    list.iter()
        .filter_map(|module| module.get("path")?.as_str())
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_belongs_to_the_model() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for path in [
            "config.json",
            "hf_quant_config.json",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "pytorch_model.bin",
            "onnx/model.onnx",
            "original/consolidated.00.PTH",
            ".git/config",
            ".out.partial-1-0/tokenizer.json",
        ] {
            write(path, "");
        }
        let kept = [
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "LICENSE",
            "tokenizer.json",
        ];
        kept.iter().for_each(|p| write(p, ""));
        write("modules.json", r#"[{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}]"#);
        let mut expected: Vec<PathBuf> = kept.iter().chain(&["modules.json"]).map(PathBuf::from).collect();
        expected.sort();
        assert_eq!(companion_files(folder.path()).unwrap(), expected);
        write("modules.json", "not json");
        expected.retain(|p| p != Path::new("2_Dense/model.safetensors"));
        assert_eq!(companion_files(folder.path()).unwrap(), expected);
    }
}
