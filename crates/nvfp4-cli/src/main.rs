//! The `nvfp4` program. A thin shell over the `nvfp4` library: `arguments` is the command line, `commands` has one file
//! for each command, the other files serve several of them.

mod arguments;
mod backend_arguments;
mod commands;
mod cuda_presence;
mod decision_report;
mod embedded_model;
mod exit;
mod f32_gemm;
mod layer_arguments;
mod notices;
mod output;
mod progress;
mod quantities;
mod reading_arguments;
mod session;
mod table;
mod timing;
mod writing_arguments;

use arguments::{Command, Nvfp4};
use clap::Parser;
use exit::{CommandResult, Failure};
use session::Session;
use std::{io::Write, process::ExitCode};

fn main() -> ExitCode {
    let nvfp4 = Nvfp4::parse();
    let mut session = Session { out: output::Output::new(), json: nvfp4.json, quiet: nvfp4.quiet };
    let result = use_threads(&nvfp4).and_then(|()| run(&nvfp4.command, &mut session));
    // What is printed last may be what cannot be written.
    let result = match session.out.flush() {
        Err(error) if result.is_ok() => Err(error.into()),
        _ => result,
    };
    if let Err(failure) = &result {
        // Nothing can be done if this cannot be written either.
        let _ = writeln!(std::io::stderr(), "error: {}", exit::chain_text(failure.error()));
    }
    exit::exit_code(&result)
}

fn run(command: &Command, session: &mut Session) -> CommandResult {
    match command {
        Command::Demo(arguments) => commands::demo::run(arguments, session),
        Command::Inspect(arguments) => commands::inspect::run(arguments, session),
        Command::Quantize(arguments) => commands::quantize::run(arguments, session),
        Command::Convert(arguments) => commands::convert::run(arguments, session),
        Command::Dequantize(arguments) => commands::dequantize::run(arguments, session),
        Command::Verify(arguments) => commands::verify::run(arguments, session),
        Command::Doctor(arguments) => commands::doctor::run(arguments, session),
        Command::Explain(arguments) => commands::explain::run(arguments, session),
        Command::Bench(arguments) => commands::bench::run(arguments, session),
        Command::Completions(arguments) => commands::completions::run(arguments, session),
    }
}

/// Sets the size of rayon's pool, from which the library takes its threads.
fn use_threads(nvfp4: &Nvfp4) -> Result<(), Failure> {
    if let Some(threads) = nvfp4.threads {
        rayon::ThreadPoolBuilder::new().num_threads(threads.get()).build_global()?;
    }
    Ok(())
}
