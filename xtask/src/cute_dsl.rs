//! Packs of CuTe DSL kernels: a pinned Python environment imports the vendor's kernel classes and compiles each
//! configuration; the launches of the vendor's host functions are held against ours.

use crate::{cache::Cache, kernels::install, python::Environment, workspace};
use anyhow::{Context, Result, ensure};
use nvfp4_cuda::{
    cute_dsl::{Configuration, KernelFacts, Launch, Output, Program, Recipe, record},
    pack::{
        Image, Manifest, Pack, Ptx,
        manifest::{SCHEMA, sha256_hex},
    },
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

/// The recipes.
pub(crate) const RECIPES: &[Recipe] = &[nvfp4_cutedsl::RECIPE, nvfp4_b12x::RECIPE];

/// Memory that the DSL takes for one kernel after the other, MiB.
pub(crate) const MEMORY_MIB: u64 = 700;

const SCRIPT: &str = "xtask/python/cutedsl.py";
const RECORDER: &str = "xtask/python/cutedsl_recorder.c";
const LOCK: &str = "xtask/python/cutedsl.lock";
const LICENCE: &str = "BSD-3-Clause AND Apache-2.0 AND LicenseRef-NVIDIA-CuTe-DSL";

/// One pack to build.
#[derive(Clone, Copy)]
pub(crate) struct Job {
    pub(crate) recipe: &'static Recipe,
    pub(crate) target: &'static str,
    /// Everything that a tuner may measure, instead of the default choice.
    pub(crate) all: bool,
}

#[derive(Serialize)]
struct Request {
    recorder: PathBuf,
    kernels: Vec<Named>,
}

#[derive(Serialize)]
struct Named {
    name: String,
    #[serde(flatten)]
    configuration: Configuration,
    shapes: Vec<[u32; 4]>,
}

/// What the script says that it did.
#[derive(Deserialize)]
struct Report {
    versions: BTreeMap<String, String>,
    sources: BTreeMap<String, String>,
    kernels: Vec<Compiled>,
}

#[derive(Deserialize)]
struct Compiled {
    name: String,
    symbol: String,
    parameters: Vec<u32>,
}

/// Shapes whose launches of a kernel are compared: `[m, n, k, clusters]` in the kernel's own orientation, pseudo-random
/// by `seed`, from one row to large models.
fn shapes(configuration: &Configuration, seed: u64, count: usize) -> Vec<[u32; 4]> {
    let mut state = seed ^ u64::from_le_bytes(digest(&configuration.name()));
    let mut random = |most: u64| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % most) as u32
    };
    let narrow = configuration.program != Program::B12x && configuration.tile[1] < 64;
    let mut shape = || {
        // As many small numbers as large ones; outputs and k are padded to 32.
        let bits = 15 - random(15);
        let tokens = 1 + random(if narrow && configuration.swap_ab { 32 } else { 1 << bits });
        let bits = 11 - random(11);
        let outputs = 32 * if narrow && !configuration.swap_ab { 1 } else { 1 + random(1 << bits) };
        let bits = 10 - random(10);
        let k = (32 * (1 + random(1 << bits))).next_multiple_of(configuration.tile_k / 8 * configuration.split_k);
        let (m, n) = if configuration.transposed() { (outputs, tokens) } else { (tokens, outputs) };
        [m, n, k, 1 + random(160)]
    };
    (0..count).map(|_| shape()).collect()
}

/// Eight bytes that a name gives.
fn digest(name: &str) -> [u8; 8] {
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(sha256_hex(name.as_bytes()).bytes()) {
        *to = from;
    }
    bytes
}

/// Launches of each kernel that are compared while a pack is built.
const SHAPES_OF_PACK: usize = 16;
/// Launches of each kernel that the test compares, and that are kept in the repository.
const SHAPES_OF_TEST: usize = 200;
const SHAPES_KEPT: usize = 3;

impl Job {
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.recipe.backend, self.target)
    }

    fn folder(&self, out: &Path) -> PathBuf {
        out.join(self.recipe.backend).join(self.target)
    }

    fn configurations(&self) -> Vec<Configuration> {
        let (packed, tunable) = ((self.recipe.packed)(), (self.recipe.tunable)());
        let all: BTreeSet<_> =
            if self.all { packed.into_iter().chain(tunable).collect() } else { packed.into_iter().collect() };
        all.into_iter().collect()
    }

    /// The manifest that a build would write, but for what only the build knows.
    fn manifest(&self) -> Result<Manifest> {
        let sources = [SCRIPT, RECORDER, LOCK].into_iter().map(|source| {
            let path = workspace::path(source);
            let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
            Ok((source.to_string(), sha256_hex(&bytes)))
        });
        Ok(Manifest {
            schema: SCHEMA,
            backend: self.recipe.backend.into(),
            revision: self.recipe.revision,
            licence: LICENCE.into(),
            tools: BTreeMap::new(),
            flags: vec!["--opt-level 2".into()],
            sources: sources.collect::<Result<_>>()?,
            images: Vec::new(),
        })
    }

    /// True if the pack is there, made by the same script with the same packages, holds every configuration, and is
    /// whole.
    pub(crate) fn is_up_to_date(&self, out: &Path) -> bool {
        let folder = self.folder(out);
        let (Ok(expected), Ok(manifest)) = (self.manifest(), Manifest::read(&folder.join("manifest.json"))) else {
            return false;
        };
        let pack = Pack { manifest, folder };
        let found = &pack.manifest;
        let configuration = |image: &Image| {
            let facts: KernelFacts = serde_json::from_value(image.facts.clone()?).ok()?;
            Some(facts.configuration)
        };
        let present: BTreeSet<_> = found.images.iter().filter_map(configuration).collect();
        (found.revision, &found.flags) == (expected.revision, &expected.flags)
            && expected.sources.iter().all(|(name, hash)| found.sources.get(name) == Some(hash))
            && self.configurations().iter().all(|c| present.contains(c))
            && found.images.iter().all(|image| pack.read_image(image).is_ok() && pack.read_ptx(image).is_ok())
    }

    /// Builds the pack beside its place and puts it there. Returns the binaries' size.
    pub(crate) fn build(&self, cache: &Cache, out: &Path) -> Result<u64> {
        let staging = tempfile::Builder::new().prefix(".building-").tempdir_in(out)?;
        let configurations = self.configurations();
        let report = compile(cache, self.target, &configurations, (1, SHAPES_OF_PACK), staging.path())?;
        let mut manifest = self.manifest()?;
        manifest.tools = report.versions;
        manifest.sources.extend(report.sources);
        let mut bytes = 0;
        for (configuration, compiled) in configurations.iter().zip(&report.kernels) {
            let image = self.image(configuration, compiled, staging.path())?;
            bytes += image.bytes;
            manifest.images.push(image);
        }
        for leftover in ["report.json", "request.json"] {
            fs::remove_file(staging.path().join(leftover))?;
        }
        let text = serde_json::to_string_pretty(&manifest)? + "\n";
        fs::write(staging.path().join("manifest.json"), text)?;
        install(staging, &self.folder(out))?;
        Ok(bytes)
    }

    /// Checks a kernel against its launches, and describes it.
    fn image(&self, configuration: &Configuration, compiled: &Compiled, folder: &Path) -> Result<Image> {
        let name = configuration.name();
        ensure!(compiled.name == name, "the script compiled {} in the place of {name}", compiled.name);
        let file = |extension: &str| format!("{name}.{extension}");
        let read = |extension: &str| {
            let path = folder.join(file(extension));
            fs::read(&path).with_context(|| path.display().to_string())
        };
        let launches = String::from_utf8(read("launches")?)?;
        let facts = facts(configuration, &launches).with_context(|| name.clone())?;
        let sizes: Vec<u32> = facts.parameters.iter().map(|span| span[1]).collect();
        ensure!(
            sizes == compiled.parameters,
            "{name} takes {:?}, the host function sets {sizes:?}",
            compiled.parameters
        );
        fs::remove_file(folder.join(file("launches")))?;
        let (cubin, ptx) = (read("cubin")?, read("ptx")?);
        let needle = self.recipe.needs_ptx;
        ensure!(
            ptx.windows(needle.len()).any(|window| window == needle.as_bytes()),
            "{name} has no `{needle}`: compiled for the wrong family"
        );
        Ok(Image {
            target: self.target.into(),
            file: file("cubin"),
            sha256: sha256_hex(&cubin),
            bytes: cubin.len() as u64,
            ptx: Some(Ptx { file: file("ptx"), sha256: sha256_hex(&ptx) }),
            kernels: vec![compiled.symbol.clone()],
            facts: Some(serde_json::to_value(facts)?),
        })
    }
}

/// What the launches of the vendor's host function say about a kernel; an error if ours differ from one of them.
fn facts(configuration: &Configuration, launches: &str) -> Result<KernelFacts> {
    let records = record::parse(launches)?;
    let first = records.first().context("the host function was not recorded")?;
    let mut facts = KernelFacts {
        configuration: *configuration,
        threads: first.block[0],
        shared_memory: first.shared_memory,
        overlap_previous: first.overlap_previous,
        persistent: configuration.program != Program::SplitK,
        parameters: Vec::new(),
    };
    facts.parameters = Launch::new(&facts, &first.problem)?.parameters.spans().to_vec();
    for record in &records {
        record.compare(&Launch::new(&facts, &record.problem)?)?;
    }
    Ok(facts)
}

/// Compiles configurations into `out` and records `count` launches of each.
fn compile(
    cache: &Cache,
    target: &str,
    configurations: &[Configuration],
    (seed, count): (u64, usize),
    out: &Path,
) -> Result<Report> {
    let python = Environment::of_lock(cache, "cutedsl")?;
    let request = Request {
        recorder: workspace::path(RECORDER),
        kernels: configurations
            .iter()
            .map(|c| Named { name: c.name(), configuration: *c, shapes: shapes(c, seed, count) })
            .collect(),
    };
    let path = out.join("request.json");
    fs::write(&path, serde_json::to_string(&request)?)?;
    let mut command = python.python();
    command.arg(workspace::path(SCRIPT)).args(["--arch", target, "--request"]).arg(&path).arg("--out").arg(out);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let last: Vec<_> = text.lines().rev().take(12).collect();
    let last: Vec<_> = last.into_iter().rev().collect();
    ensure!(output.status.success(), "{SCRIPT}: {}\n{}", output.status, last.join("\n"));
    fs::remove_dir_all(out.join("dump"))?;
    let report = out.join("report.json");
    let text = fs::read_to_string(&report).with_context(|| report.display().to_string())?;
    let report: Report = serde_json::from_str(&text)?;
    ensure!(
        report.kernels.len() == configurations.len(),
        "{SCRIPT} compiled {} of {} kernels",
        report.kernels.len(),
        configurations.len()
    );
    Ok(report)
}

/// Where the launches of a recipe are kept.
fn kept_file(recipe: &Recipe) -> PathBuf {
    workspace::path(&format!("crates/nvfp4-{}/tests/launches.txt", recipe.backend))
}

/// The kernels whose launches are kept: every configuration with bf16 output, one in eight with f16.
fn kept_configurations(recipe: &Recipe) -> Vec<Configuration> {
    let all = (recipe.packed)().into_iter().enumerate();
    all.filter(|(place, c)| c.output == Output::Bf16 || place % 16 == 1).map(|(_, c)| c).collect()
}

/// The launches that are kept, as text.
fn kept(recipe: &Recipe) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let configurations = kept_configurations(recipe);
    let target = recipe.targets.first().context("a recipe without targets")?;
    compile(&Cache::open()?, target, &configurations, (2, SHAPES_KEPT), folder.path())?;
    let mut text = String::new();
    for configuration in configurations {
        let name = configuration.name();
        let launches = fs::read_to_string(folder.path().join(format!("{name}.launches")))?;
        text += &format!("kernel {name}\n{launches}");
    }
    Ok(text)
}

/// Writes the launches that are kept in the repository anew, or only compares them.
pub(crate) fn launch_records(check: bool) -> Result<()> {
    for recipe in RECIPES {
        let (file, text) = (kept_file(recipe), kept(recipe)?);
        if check {
            let found = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            ensure!(found == text, "{} is not what the vendor's host functions launch now", file.display());
        } else {
            fs::write(&file, text).with_context(|| file.display().to_string())?;
        }
        println!("{}  {}", if check { "same" } else { "written" }, file.display());
    }
    Ok(())
}

/// The Python environment, made if it is not in the cache.
pub(crate) fn fetch() -> Result<Environment> {
    let cache = Cache::open()?;
    let _lock = cache.lock()?;
    Environment::of_lock(&cache, "cutedsl")
}

/// Whether the Python environment is in the cache.
pub(crate) fn is_cached() -> Result<bool> {
    Ok(Environment::cached(&Cache::open()?, "cutedsl")?.is_some())
}

/// The launches that are kept are still the vendor's; and ours equal the vendor's for hundreds of other shapes of every
/// kernel of every pack.
pub(crate) fn test() -> Result<()> {
    launch_records(true)?;
    let seed = std::time::UNIX_EPOCH.elapsed()?.as_secs();
    println!("seed of the shapes: {seed}");
    for recipe in RECIPES {
        let (configurations, mut launches) = ((recipe.packed)(), 0);
        for target in recipe.targets {
            let folder = tempfile::tempdir()?;
            compile(&Cache::open()?, target, &configurations, (seed, SHAPES_OF_TEST), folder.path())?;
            for configuration in &configurations {
                let name = configuration.name();
                let text = fs::read_to_string(folder.path().join(format!("{name}.launches")))?;
                facts(configuration, &text).with_context(|| format!("{target} {name}"))?;
                launches += record::parse(&text)?.len();
            }
        }
        let expected = recipe.targets.len() * configurations.len() * SHAPES_OF_TEST;
        ensure!(launches == expected, "{}: compared {launches} launches of {expected}", recipe.backend);
        println!("{}: {launches} launches are the vendor's", recipe.backend);
    }
    Ok(())
}
