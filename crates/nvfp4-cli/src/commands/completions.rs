//! `nvfp4 completions`: what a shell needs to complete commands and options.

use crate::{
    exit::{CommandResult, Outcome},
    session::Session,
};
use clap::CommandFactory;
use std::io::Write;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

pub(crate) fn run(arguments: &Arguments, session: &mut Session) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut crate::arguments::Nvfp4::command(), "nvfp4", &mut script);
    session.out.write_all(&script)?;
    Ok(Outcome::Yes)
}
