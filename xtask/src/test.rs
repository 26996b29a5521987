//! `cargo xtask test`: the workspace's tests, then those that need fetched artefacts.

use crate::{cute_dsl, kernels, minilm, trtllm, upstream, whole_model, workspace};
use anyhow::{Result, ensure};
use std::time::Instant;

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Fetch MiniLM if it is not in the cache, so that the whole-model test runs
    #[arg(long)]
    minilm: bool,
    /// Fetch the upstream Python libraries if they are not in the cache, so that the test against them runs
    #[arg(long)]
    upstream: bool,
    /// Fetch the CuTe DSL if it is not in the cache, so that launches are compared with the vendor's
    #[arg(long)]
    cute_dsl: bool,
    /// Fetch everything that a test can use
    #[arg(long)]
    all: bool,
    /// Fail if a test was skipped
    #[arg(long)]
    no_skips: bool,
    /// Run this suite alone
    #[arg(long, value_enum, value_name = "SUITE")]
    only: Option<Name>,
}

/// Names of the suites.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    /// Unit, integration and documentation tests
    Workspace,
    /// The program over the whole MiniLM
    Minilm,
    /// Checkpoints read by the upstream libraries
    Upstream,
    /// TensorRT-LLM's host code and cubins
    Trtllm,
    /// Launches of CuTe DSL kernels, compared with the vendor's host functions
    Launches,
    /// CuTe DSL kernels, run by blackwell-sim
    Simulator,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Workspace => "workspace",
            Self::Minilm => "whole MiniLM",
            Self::Upstream => "upstream libraries",
            Self::Trtllm => "TensorRT-LLM host code and cubins",
            Self::Launches => "launches of CuTe DSL kernels",
            Self::Simulator => "blackwell-sim kernels",
        })
    }
}

/// One test suite.
struct Suite {
    name: Name,
    /// What to do to have it run, if it would be skipped.
    missing: Option<&'static str>,
    run: fn() -> Result<()>,
}

/// Runs every suite; the error, if any, comes after all of them have run.
pub(crate) fn run(options: &Options) -> Result<()> {
    let upstream = options.upstream || options.all;
    let minilm = options.minilm || upstream || options.all;
    let minilm_missing = !minilm && !minilm::is_cached()?;
    let upstream_missing = !upstream && (minilm_missing || !upstream::is_cached()?);
    let trtllm_missing = !options.all && !trtllm::is_cached()?;
    let cute_dsl_missing = !(options.cute_dsl || options.all || cute_dsl::is_cached()?);
    let suites = [
        Suite { name: Name::Workspace, missing: None, run: workspace_tests },
        Suite {
            name: Name::Minilm,
            missing: minilm_missing.then_some("`cargo xtask fetch --model minilm`, or --minilm here"),
            run: whole_model::test,
        },
        Suite {
            name: Name::Upstream,
            missing: upstream_missing.then_some("`cargo xtask fetch --all`, or --upstream here"),
            run: upstream::test,
        },
        Suite {
            name: Name::Trtllm,
            missing: trtllm_missing.then_some("`cargo xtask fetch --backend trtllm --nvcc`, or --all here"),
            run: trtllm::test,
        },
        Suite {
            name: Name::Launches,
            missing: cute_dsl_missing.then_some("`cargo xtask fetch --all`, or --cute-dsl here"),
            run: cute_dsl::test,
        },
        Suite {
            name: Name::Simulator,
            missing: cute_dsl_missing.then_some("`cargo xtask fetch --all`, or --cute-dsl here"),
            run: simulator_tests,
        },
    ];

    let (mut passed, mut failed, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
    for suite in suites.iter().filter(|suite| options.only.is_none_or(|only| only == suite.name)) {
        if let Some(remedy) = suite.missing {
            println!("== {}: SKIPPED, its artefacts are not in the cache (to run it: {remedy})", suite.name);
            skipped.push(suite.name.to_string());
            continue;
        }
        println!("== {}", suite.name);
        let start = Instant::now();
        let result = (suite.run)();
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                println!("== {}: passed in {seconds:.1} s", suite.name);
                passed.push(suite.name.to_string());
            }
            Err(error) => {
                println!("== {}: FAILED after {seconds:.1} s: {error:#}", suite.name);
                failed.push(suite.name.to_string());
            }
        }
    }
    for (what, suites) in [("failed", &failed), ("skipped", &skipped)] {
        if !suites.is_empty() {
            println!("{what}: {}", suites.join(", "));
        }
    }
    println!("suites: {} passed, {} failed, {} skipped", passed.len(), failed.len(), skipped.len());
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    ensure!(!options.no_skips || skipped.is_empty(), "skipped, which --no-skips forbids: {}", skipped.join(", "));
    Ok(())
}

/// Unit, integration and documentation tests of every package.
fn workspace_tests() -> Result<()> {
    let status = workspace::cargo().args(["test", "--workspace", "--no-fail-fast"]).status()?;
    ensure!(status.success(), "cargo test --workspace: {status}");
    Ok(())
}

/// Kernels of packs in the simulator, against the exact product.
fn simulator_tests() -> Result<()> {
    let packs = kernels::build(&kernels::Options::packs(&["b12x", "cutedsl"], &["sm_120a", "sm_100a"]))?;
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--package", "blackwell-sim", "--features", "kernel-tests", "--test", "kernels"]);
    let status = cargo.env("NVFP4_SIM_PACKS", packs).status()?;
    ensure!(status.success(), "{cargo:?}: {status}");
    Ok(())
}
