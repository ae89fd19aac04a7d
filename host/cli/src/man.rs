//! `tilewright man`: manual pages, from the same declarations as --help.

use std::{io::Write, path::Path};

use clap::CommandFactory;
use clap_mangen::Man;

use crate::{
    args::Arguments,
    failure::{Failure, Outcome},
    printer,
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
    clap_mangen::generate_to(Arguments::command(), folder)
        .map_err(|error| Failure::work(format!("{}: can't be written: {error}", folder.display())))?;
    Ok(writeln!(printer::summary(), "wrote  {}", folder.join("tilewright*.1").display())?)
}
