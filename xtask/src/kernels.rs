//! `cargo xtask build-kernels`: kernel packs from the recipes of the backend crates.
//!
//! Each target of a recipe becomes one pack: CUDA C++ to PTX, PTX to a cubin, checks (symbols, fingerprint in the
//! disassembly), manifest. Packs that are up to date are left alone; a pack appears whole or not at all.

use crate::{cache::Cache, cute_dsl, nvcc::Nvcc, trtllm, workspace};
use anyhow::{Context, Result, bail, ensure};
use nvfp4_cuda::pack::{
    Image, Manifest, Ptx, RECIPES, Recipe,
    manifest::{SCHEMA, sha256_hex},
};
use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    time::Instant,
};

/// Compiler flags, the target aside.
const FLAGS: &[&str] = &["-std=c++17", "-O3"];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Backends to build, e.g. `quantize`; all if none is named
    #[arg(long, value_delimiter = ',')]
    backend: Vec<String>,
    /// Targets to build, e.g. `sm_90a,sm_100a`; all if none is named
    #[arg(long, value_delimiter = ',')]
    arch: Vec<String>,
    /// Folder for the packs; the cache's `kernels` if it is not given
    #[arg(long)]
    out: Option<PathBuf>,
    /// Build even what is up to date
    #[arg(long)]
    force: bool,
    /// For CuTe DSL kernels, build every configuration that a tuner may measure (about 15 minutes a target)
    #[arg(long)]
    all_configurations: bool,
}

impl Options {
    /// Those packs, in the cache.
    pub(crate) fn packs(backends: &[&str], targets: &[&str]) -> Self {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Self { backend: owned(backends), arch: owned(targets), out: None, force: false, all_configurations: false }
    }
}

/// One pack to build.
#[derive(Clone, Copy)]
enum Job {
    Nvcc(NvccJob),
    CuteDsl(cute_dsl::Job),
    /// Comes ready made.
    Trtllm,
}

impl Job {
    fn name(&self) -> String {
        match self {
            Self::Nvcc(job) => job.name(),
            Self::CuteDsl(job) => job.name(),
            Self::Trtllm => format!("{} {}", nvfp4_trtllm::BACKEND, nvfp4_trtllm::TARGET),
        }
    }
    fn backend(&self) -> &'static str {
        match self {
            Self::Nvcc(job) => job.recipe.backend,
            Self::CuteDsl(job) => job.recipe.backend,
            Self::Trtllm => nvfp4_trtllm::BACKEND,
        }
    }
    fn target(&self) -> &'static str {
        match self {
            Self::Nvcc(job) => job.target,
            Self::CuteDsl(job) => job.target,
            Self::Trtllm => nvfp4_trtllm::TARGET,
        }
    }
    fn memory_mib(&self) -> u64 {
        match self {
            Self::Nvcc(job) => job.recipe.memory_mib,
            Self::CuteDsl(_) => cute_dsl::MEMORY_MIB,
            Self::Trtllm => 0,
        }
    }
    fn is_up_to_date(&self, nvcc: Option<&Nvcc>, out: &Path) -> bool {
        match self {
            Self::Nvcc(job) => nvcc.is_some_and(|nvcc| job.is_up_to_date(nvcc, out)),
            Self::CuteDsl(job) => job.is_up_to_date(out),
            Self::Trtllm => trtllm::is_packed(out).unwrap_or(false),
        }
    }
    fn build(&self, nvcc: Option<&Nvcc>, cache: &Cache, out: &Path) -> Result<u64> {
        match self {
            Self::Nvcc(job) => job.build(nvcc.context("no CUDA compiler")?, out),
            Self::CuteDsl(job) => job.build(cache, out),
            Self::Trtllm => {
                let sizes = fs::read_dir(trtllm::fetch(Some(out))?)?.map(|file| Ok(file?.metadata()?.len()));
                sizes.sum::<Result<u64>>()
            }
        }
    }
}

/// A pack that the CUDA compiler makes.
#[derive(Clone, Copy)]
struct NvccJob {
    recipe: &'static Recipe,
    target: &'static str,
}

/// Where packs are kept when no folder is named.
pub(crate) fn default_folder(cache: &Cache) -> PathBuf {
    cache.path("kernels")
}

/// Builds what the options name and is not up to date. Returns the folder of the packs.
pub(crate) fn build(options: &Options) -> Result<PathBuf> {
    let cache = Cache::open()?;
    let jobs = jobs(options)?;
    let needs_nvcc = jobs.iter().any(|job| matches!(job, Job::Nvcc(_)));
    let nvcc = if needs_nvcc { Some(Nvcc::find(&cache)?) } else { None };
    let nvcc = nvcc.as_ref();
    if jobs.iter().any(|job| matches!(job, Job::CuteDsl(_))) {
        // Here rather than in each job, since they run side by side.
        cute_dsl::fetch()?;
    }
    let out = options.out.clone().unwrap_or_else(|| default_folder(&cache));
    fs::create_dir_all(&out).with_context(|| out.display().to_string())?;

    let (fresh, stale): (Vec<_>, Vec<_>) =
        jobs.into_iter().partition(|job| !options.force && job.is_up_to_date(nvcc, &out));
    for job in &fresh {
        println!("up to date  {}", job.name());
    }
    let slots = slots(stale.iter().map(Job::memory_mib).max().unwrap_or(0));
    let total = stale.len();
    let queue = Mutex::new(VecDeque::from(stale));
    let failures = Mutex::new(Vec::new());
    let done = Mutex::new(0);
    let lock = |m: &Mutex<VecDeque<Job>>| m.lock().map(|mut q| q.pop_front()).unwrap_or(None);
    std::thread::scope(|scope| {
        for _ in 0..slots.min(total) {
            scope.spawn(|| {
                while let Some(job) = lock(&queue) {
                    let start = Instant::now();
                    let result = job.build(nvcc, &cache, &out);
                    let mut done = done.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    *done += 1;
                    let seconds = start.elapsed().as_secs_f32();
                    match result {
                        Ok(bytes) => {
                            println!("[{done}/{total}] {}  {seconds:.1} s, {} KiB", job.name(), bytes / 1024);
                        }
                        Err(error) => {
                            println!("[{done}/{total}] {}  failed", job.name());
                            failures
                                .lock()
                                .unwrap_or_else(|poisoned| poisoned.into_inner())
                                .push(format!("{}: {error:#}", job.name()));
                        }
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    ensure!(failures.is_empty(), "{} of {total} packs failed:\n{}", failures.len(), failures.join("\n"));
    Ok(out)
}

/// The packs that the options name.
fn jobs(options: &Options) -> Result<Vec<Job>> {
    let nvcc = RECIPES
        .iter()
        .flat_map(|recipe| recipe.targets.iter().map(move |&target| Job::Nvcc(NvccJob { recipe, target })));
    let cute_dsl = cute_dsl::RECIPES.iter().flat_map(|recipe| {
        let all = options.all_configurations;
        recipe.targets.iter().map(move |&target| Job::CuteDsl(cute_dsl::Job { recipe, target, all }))
    });
    let all: Vec<Job> = nvcc.chain(cute_dsl).chain([Job::Trtllm]).collect();
    let mut known: Vec<_> = all.iter().map(Job::backend).collect();
    known.dedup();
    for backend in &options.backend {
        ensure!(known.contains(&backend.as_str()), "no backend `{backend}`; there are: {}", known.join(", "));
    }
    let mut targets: Vec<_> = all.iter().map(Job::target).collect();
    targets.sort();
    targets.dedup();
    for arch in &options.arch {
        ensure!(targets.contains(&arch.as_str()), "no target `{arch}`; there are: {}", targets.join(", "));
    }
    let wanted = |list: &[String], name: &str| list.is_empty() || list.iter().any(|n| n == name);
    Ok(all
        .into_iter()
        .filter(|job| wanted(&options.backend, job.backend()) && wanted(&options.arch, job.target()))
        .collect())
}

/// How many compilers run at once: as many as there are processors, and as fit into the memory that is free.
fn slots(memory_mib: u64) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let free = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    let by_memory = free.map_or(processors, |kib| (kib / 1024 / memory_mib.max(1)) as usize);
    processors.min(by_memory).max(1)
}

impl NvccJob {
    fn name(&self) -> String {
        format!("{} {}", self.recipe.backend, self.target)
    }

    fn folder(&self, out: &Path) -> PathBuf {
        out.join(self.recipe.backend).join(self.target)
    }

    /// Sources and their hashes.
    fn sources(&self) -> Result<BTreeMap<String, String>> {
        std::iter::once(&self.recipe.source)
            .chain(self.recipe.includes)
            .map(|&source| {
                let path = workspace::path(source);
                let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
                Ok((source.to_string(), sha256_hex(&bytes)))
            })
            .collect()
    }

    /// The manifest that a build would write, its images aside.
    fn manifest(&self, nvcc: &Nvcc) -> Result<Manifest> {
        Ok(Manifest {
            schema: SCHEMA,
            backend: self.recipe.backend.into(),
            revision: self.recipe.revision,
            licence: self.recipe.licence.into(),
            tools: BTreeMap::from([("nvcc".into(), nvcc.version.clone())]),
            flags: FLAGS.iter().map(|flag| flag.to_string()).collect(),
            sources: self.sources()?,
            images: Vec::new(),
        })
    }

    /// True if the pack is there, made from the same sources by the same tools with the same flags, and whole.
    fn is_up_to_date(&self, nvcc: &Nvcc, out: &Path) -> bool {
        let folder = self.folder(out);
        let (Ok(mut expected), Ok(found)) = (self.manifest(nvcc), Manifest::read(&folder.join("manifest.json")))
        else {
            return false;
        };
        expected.images = found.images.clone();
        let pack = nvfp4_cuda::pack::Pack { manifest: found, folder };
        pack.manifest == expected
            && pack.manifest.images.len() == 1
            && pack
                .manifest
                .images
                .iter()
                .all(|image| pack.read_image(image).is_ok() && pack.read_ptx(image).is_ok())
    }

    /// Builds the pack beside its place and puts it there. Returns the binary's size.
    fn build(&self, nvcc: &Nvcc, out: &Path) -> Result<u64> {
        let staging = tempfile::Builder::new().prefix(".building-").tempdir_in(out)?;
        let name = |extension: &str| format!("{}.{}.{extension}", self.recipe.backend, self.target);
        let (ptx, cubin) = (staging.path().join(name("ptx")), staging.path().join(name("cubin")));
        let log = out.join(format!("{}.{}.log", self.recipe.backend, self.target));

        let virtual_target = self.target.replace("sm_", "compute_");
        // Relative paths, so that the outputs do not depend on where the checkout is.
        let mut compile = nvcc.tool("nvcc");
        compile.current_dir(workspace::root()).args(FLAGS).arg("--ptx");
        compile.arg(format!("--gpu-architecture={virtual_target}")).arg(self.recipe.source).arg("-o").arg(&ptx);
        logged(&mut compile, &log)?;
        let mut assemble = nvcc.tool("ptxas");
        assemble.arg("-O3").arg("--gpu-name").arg(self.target).arg(&ptx).arg("-o").arg(&cubin);
        logged(&mut assemble, &log)?;

        let bytes = fs::read(&cubin)?;
        let kernels = (self.recipe.symbols)();
        for symbol in &kernels {
            let section = format!(".text.{symbol}\0");
            let present = bytes.windows(section.len()).any(|window| window == section.as_bytes());
            ensure!(present, "the binary has no kernel `{symbol}`");
        }
        self.check_fingerprint(nvcc, &cubin)?;

        let mut manifest = self.manifest(nvcc)?;
        manifest.images.push(Image {
            target: self.target.into(),
            file: name("cubin"),
            sha256: sha256_hex(&bytes),
            bytes: bytes.len() as u64,
            ptx: Some(Ptx { file: name("ptx"), sha256: sha256_hex(&fs::read(&ptx)?) }),
            kernels,
            facts: None,
        });
        let text = serde_json::to_string_pretty(&manifest)? + "\n";
        fs::write(staging.path().join("manifest.json"), text)?;
        install(staging, &self.folder(out))?;
        fs::remove_file(&log).ok();
        Ok(bytes.len() as u64)
    }

    /// Fails if the machine code lacks an instruction that the right flavour has.
    fn check_fingerprint(&self, nvcc: &Nvcc, cubin: &Path) -> Result<()> {
        let needles: Vec<_> =
            self.recipe.needs_sass.iter().filter(|(target, _)| *target == self.target).map(|(_, n)| *n).collect();
        if needles.is_empty() {
            return Ok(());
        }
        let sass = nvcc.disassemble(cubin)?;
        for needle in needles {
            ensure!(sass.contains(needle), "the machine code has no `{needle}`: an image of the wrong flavour");
        }
        Ok(())
    }
}

/// Puts a finished pack in its place.
pub(crate) fn install(staging: tempfile::TempDir, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::rename(staging.keep(), folder).with_context(|| folder.display().to_string())
}

/// Runs a compiler; its failure names the log and shows its end.
fn logged(command: &mut Command, log: &Path) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    fs::write(log, &text).with_context(|| log.display().to_string())?;
    let text = String::from_utf8_lossy(&text);
    let last: Vec<_> = text.lines().rev().take(12).collect();
    let last: Vec<_> = last.into_iter().rev().collect();
    bail!("{command:?}: {}; log: {}\n{}", output.status, log.display(), last.join("\n"))
}
