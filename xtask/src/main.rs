//! `cargo xtask`: the workspace's own tasks. `cargo xtask --help` lists them.
//!
//! Everything that is fetched is pinned in `third_party/pins.toml`, verified by hash, and kept in a cache outside
//! the checkout (`$NVFP4_CACHE`, else `nvfp4` in the user's cache folder), so a second run works offline.

mod cache;
mod cute_dsl;
mod features;
mod kernels;
mod minilm;
mod minilm_example;
mod nvcc;
mod nvfp4_program;
mod pins;
mod python;
mod sim_folder;
mod test;
#[cfg(test)]
mod tidy;
mod trtllm;
mod upstream;
mod whole_model;
mod workspace;

use clap::{Parser, Subcommand, ValueEnum};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The workspace's own tasks")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Fetch pinned artefacts into the cache, verify them, and print where they are
    Fetch {
        /// Models to fetch
        #[arg(long, value_enum)]
        model: Vec<Model>,
        /// The Python environment with the upstream libraries (about 3 GB on x86-64 Linux)
        #[arg(long)]
        upstream: bool,
        /// The pinned CUDA compiler and disassembler (about 300 MB)
        #[arg(long)]
        nvcc: bool,
        /// Backends whose kernels come ready made
        #[arg(long, value_enum)]
        backend: Vec<ReadyMade>,
        /// The pinned CuTe DSL and FlashInfer's kernel sources (about 300 MB)
        #[arg(long)]
        cute_dsl: bool,
        /// Everything that `cargo xtask test` can use
        #[arg(long)]
        all: bool,
    },
    /// Make the data of `nvfp4 demo` anew: block 0 of MiniLM with the inputs of its linear layers
    DemoData {
        /// Change nothing; fail if the data in the repository is not what would be made
        #[arg(long)]
        check: bool,
    },
    /// Record anew what the vendor's host functions launch, for the tests of the CuTe DSL backends
    LaunchRecords {
        /// Change nothing; fail if the records in the repository are not what would be made
        #[arg(long)]
        check: bool,
    },
    /// Check that every package compiles with no features and with each feature alone
    Features,
    /// List every foreign artefact with its version, hash and licence
    Pins,
    /// Build kernel packs ahead of time, with the compiler in `CUDA_HOME` or the pinned one; needs no GPU
    BuildKernels(kernels::Options),
    /// Build the simulator and print a folder that holds it as libcuda.so.1, to be first in LD_LIBRARY_PATH (Linux)
    SimFolder,
    /// Run every test of the workspace; those that need fetched artefacts run if these are in the cache
    Test(test::Options),
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Model {
    /// all-MiniLM-L6-v2, 91 MB, and the largest input of each of its linear layers
    Minilm,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReadyMade {
    /// NVIDIA's TensorRT-LLM-gen cubins, 2 MB out of a wheel of 458 MB
    Trtllm,
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Fetch { model, upstream, nvcc, backend, cute_dsl, all } => {
            anyhow::ensure!(
                all || upstream || nvcc || cute_dsl || !model.is_empty() || !backend.is_empty(),
                "fetch what? --model minilm, --backend trtllm, --upstream, --nvcc, --cute-dsl or --all"
            );
            if all || model.contains(&Model::Minilm) {
                let minilm = minilm::fetch()?;
                println!("model        {}", minilm.model.display());
                println!("calibration  {}", minilm.calibration.display());
            }
            if all || upstream {
                println!("upstream     {}", upstream::fetch()?.path().display());
            }
            if all || backend.contains(&ReadyMade::Trtllm) {
                println!("trtllm       {}", trtllm::fetch(None)?.display());
            }
            if all || nvcc {
                println!("nvcc         {}", nvcc::Nvcc::find(&cache::Cache::open()?)?.version);
            }
            if all || cute_dsl {
                println!("cute-dsl     {}", cute_dsl::fetch()?.path().display());
            }
            Ok(())
        }
        Command::BuildKernels(options) => {
            println!("kernels      {}", kernels::build(&options)?.display());
            Ok(())
        }
        Command::DemoData { check } => minilm::demo_data(check),
        Command::LaunchRecords { check } => cute_dsl::launch_records(check),
        Command::Features => features::check(),
        Command::Pins => pins::list(),
        Command::SimFolder => {
            println!("{}", sim_folder::make()?.display());
            Ok(())
        }
        Command::Test(options) => test::run(&options),
    }
}
