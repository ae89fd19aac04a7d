//! `tilewright policy new`: begins a policy's project.

use std::{io::Write, path::Path};

use tilewright_kit::project::{self, Language};

use crate::{failure::Outcome, printer};

/// The first steps in a new project before it is built, by language; none if its tool-chain is
/// outside of it.
const FIRST: [(Language, &str); 2] =
    [(Language::Python, "pip install -r requirements.txt"), (Language::Js, "npm install")];

/// Creates a project and prints the next steps.
pub fn run(name: &str, language: Language, into: &Path, json: bool) -> Outcome {
    let created = project::create(name, language, into)?;
    if json {
        return printer::json(&created);
    }
    let mut stdout = printer::summary();
    writeln!(stdout, "{}: a policy in {}", created.path.display(), language.title())?;
    for file in &created.files {
        writeln!(stdout, "  {file}")?;
    }
    let first = FIRST.iter().find(|(known, _)| *known == language).map(|(_, command)| format!("{command} && "));
    let first = first.unwrap_or_default();
    Ok(writeln!(stdout, "next: cd {} && {first}tilewright policy build", created.path.display())?)
}
