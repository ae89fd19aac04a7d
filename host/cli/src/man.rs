//! `tilewright man`: manual pages, from the same declarations as --help.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use clap::CommandFactory;
use clap_mangen::Man;
use tilewright_outputs::write_whole;

use crate::{
    args::Arguments,
    failure::{Failure, Outcome},
    files, printer,
};

/// Prints the program's page, or writes a page for every command into a folder.
pub fn run(folder: Option<&Path>) -> Outcome {
    let Some(folder) = folder else {
        let mut page = Vec::new();
        Man::new(Arguments::command()).render(&mut page)?;
        return Ok(printer::raw_stdout().write_all(&page)?);
    };
    if !folder.is_dir() {
        return Err(Failure::input(format!("{}: no such folder: make it first", folder.display())));
    }
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    render(&command, folder, &mut pages)?;
    // All pages are checked before the first is written.
    pages.iter().fold(files::roles(), |roles, (path, _)| roles.writes("the page", path)).check()?;
    for (path, page) in &pages {
        write_whole(path, page).map_err(files::unwritten(path))?;
    }
    Ok(writeln!(printer::summary(), "wrote  {}", folder.join("tilewright*.1").display())?)
}

/// Adds the pages of a command and of those below it. Not `clap_mangen::generate_to`, which writes
/// through links and waits at pipes.
fn render(command: &clap::Command, folder: &Path, pages: &mut Vec<(PathBuf, Vec<u8>)>) -> Outcome {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        render(below, folder, pages)?;
    }
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render(&mut page)?;
    pages.push((folder.join(man.get_filename()), page));
    Ok(())
}
