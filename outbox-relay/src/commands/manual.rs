//! `outbox completions` and `outbox man`: what packages and shells want of the help, made from `cli.rs`.

use std::path::PathBuf;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::failure::Failure;
use crate::terminal;

#[derive(Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

#[derive(Args)]
pub(crate) struct Man {
    /// Where to write the pages of all commands, such as /usr/local/share/man/man1; it must be there
    folder: Option<PathBuf>,
}

pub(crate) fn completions(arguments: Completions) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "outbox", &mut text);
    terminal::print_bytes(&text)
}

pub(crate) fn man(arguments: Man) -> Result<(), Failure> {
    if let Some(folder) = arguments.folder {
        let written = clap_mangen::generate_to(Cli::command(), &folder);
        return written.map_err(|error| Failure::new(format!("{}: {error}", folder.display())));
    }
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(Cli::command()).render(&mut page);
    rendered.map_err(Failure::of)?;
    terminal::print_bytes(&page)
}
