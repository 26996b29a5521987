//! The command line.

use crate::commands;
use std::num::NonZeroUsize;

/// NVFP4 checkpoints and linear layers: make, check, convert and run them.
///
/// NVFP4 stores a weight in 4.5 bits: a 4-bit number, and one 8-bit scale for 16 of them. W4A16 layers multiply such
/// weights with 16-bit activations; W4A4 layers quantize the activations too.
#[derive(Debug, clap::Parser)]
#[command(name = "nvfp4", version, about, long_about, after_long_help = AFTER_LONG_HELP, after_help = AFTER_HELP)]
#[command(propagate_version = true, max_term_width = 116)]
pub(crate) struct Nvfp4 {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print the report as one JSON document
    #[arg(long, global = true, help_heading = "Common options")]
    pub(crate) json: bool,
    /// Show no progress bars
    #[arg(long, short, global = true, help_heading = "Common options")]
    pub(crate) quiet: bool,
    /// Threads to use [default: one for each core; environment: RAYON_NUM_THREADS]
    #[arg(long, global = true, value_name = "NUMBER", help_heading = "Common options")]
    pub(crate) threads: Option<NonZeroUsize>,
}

const AFTER_HELP: &str = "\
`nvfp4 demo` is a good start. `nvfp4 --help` also lists exit codes and environment variables; \
`nvfp4 COMMAND --help` explains a command and shows an example.";

const AFTER_LONG_HELP: &str = "\
Exit codes:
  0  done, or the answer is yes
  1  the answer is no: `verify` found faults, or no backend can run the layer
  2  the command line, or an environment variable that stands for an option, is wrong
  3  an input is bad or missing, or an output cannot be written

Environment:
  NVFP4_BACKEND      the one backend to use, as --backend
  NVFP4_DISABLE      backends that must not be used (`a,b`), as --disable
  RAYON_NUM_THREADS  threads to use, as --threads
  NO_COLOR           no colors

Reports go to standard output; errors and progress go to standard error, progress only if that is a terminal.

Examples:
  nvfp4 demo
  nvfp4 quantize my-model my-model-nvfp4 --format modelopt
  nvfp4 verify my-model-nvfp4 --original my-model
  nvfp4 explain --gpu 'RTX 5090' --n 4096 --k 14336";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Demo(commands::demo::Arguments),
    Inspect(commands::inspect::Arguments),
    Quantize(commands::quantize::Arguments),
    Convert(commands::convert::Arguments),
    Dequantize(commands::dequantize::Arguments),
    Verify(commands::verify::Arguments),
    Doctor(commands::doctor::Arguments),
    Explain(commands::explain::Arguments),
    Bench(commands::bench::Arguments),
    /// Print a script that completes `nvfp4` commands in a shell
    ///
    /// Example: nvfp4 completions bash > ~/.local/share/bash-completion/completions/nvfp4
    Completions(commands::completions::Arguments),
}
