//! The book: each of its commands is run as a reader would run it, page by page, in a folder of its
//! own with `examples/` in it.
//!
//! A page's ```` ```console ```` blocks hold the commands, after `$ `; `# ends with N` behind one
//! says its exit status. A block after `<!-- file: PATH -->` is a file that the reader writes.
//! `<!-- needs: WHAT -->` names tools that `TILEWRIGHT_WITHOUT_WHAT` leaves out.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    program::{Place, root},
    projects::{kept_target, with_tools},
};

/// A step of a page.
#[derive(Debug, PartialEq)]
enum Step {
    File { path: String, contents: String },
    Command { line: String, status: i32 },
}

/// The steps of a page, and the tools that it needs.
#[derive(Debug, Default, PartialEq)]
struct Page {
    needs: Vec<String>,
    steps: Vec<Step>,
}

fn comment<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let inside = line.trim().strip_prefix("<!--")?.strip_suffix("-->")?.trim();
    Some(inside.strip_prefix(name)?.strip_prefix(':')?.trim())
}

fn read(text: &str) -> Page {
    let mut page = Page::default();
    let mut file: Option<String> = None;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(what) = comment(line, "needs") {
            page.needs.push(what.to_owned());
        } else if let Some(path) = comment(line, "file") {
            file = Some(path.to_owned());
        } else if let Some(language) = line.strip_prefix("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            match file.take() {
                Some(path) => page.steps.push(Step::File { path, contents: block.join("\n") + "\n" }),
                None if language == "console" => page.steps.extend(commands(&block)),
                None => {}
            }
        }
    }
    page
}

fn commands(block: &[&str]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = block.iter();
    while let Some(line) = lines.next() {
        let Some(first) = line.strip_prefix("$ ") else { continue };
        let mut whole = first.to_owned();
        while let Some(open) = whole.strip_suffix('\\') {
            let next = lines.next().unwrap_or_else(|| panic!("{first} ends in a backslash"));
            whole = format!("{open}{}", next.trim_start());
        }
        let (line, status) = match whole.rsplit_once("# ends with ") {
            Some((line, status)) => (line.trim().to_owned(), status.trim().parse().unwrap()),
            None => (whole, 0),
        };
        steps.push(Step::Command { line, status });
    }
    steps
}

/// One script for the page, so that `cd` and variables hold from one command to the next. The Rust
/// projects that it begins get a `target` that lasts: the crates which the SDK needs are compiled
/// once for all pages and test runs.
fn script(page: &Page, place: &Path) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_tilewright")).parent().unwrap().display();
    let mut script = format!("set -uo pipefail\nexport PATH='{program}':\"$PATH\"\n");
    let keep_targets = format!(
        "for manifest in */Cargo.toml; do mine=${{manifest%/*}}\n\
         [ -e \"$manifest\" ] && [ ! -e $mine/target ] && ln -s '{}' $mine/target\ndone\n",
        kept_target("projects-rust-book").display()
    );
    for step in &page.steps {
        match step {
            Step::File { path, contents } => {
                let path = place.join(path);
                let _ =
                    write!(script, "cat > {} <<'THE_END_OF_THE_FILE'\n{contents}THE_END_OF_THE_FILE\n", path.display());
            }
            Step::Command { line, status } => {
                let said = line.replace('\'', r"'\''");
                let _ = write!(
                    script,
                    "echo \"$SECONDS s in:\" '$ {said}'\n{line}\nstatus=$?\nif [ $status != {status} ]; then echo \"ended with $status, not {status}\"; exit 99; fi\n"
                );
                if line.starts_with("tilewright policy new") {
                    script.push_str(&keep_targets);
                }
            }
        }
    }
    script
}

fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "md") {
            found.push(path);
        }
    }
    found.sort();
}

#[test]
fn steps_are_read_off_a_page() {
    let text = "<!-- needs: ZIG -->\n```console\n$ one \\\n    two\nits output\n$ three # ends with 2\n```\n\
                <!-- file: a/b.rs -->\n```rust\nfn main() {}\n```\n```rust\nnot a file\n```\n";
    let command = |line: &str, status| Step::Command { line: line.into(), status };
    let file = Step::File { path: "a/b.rs".into(), contents: "fn main() {}\n".into() };
    let page = Page { needs: vec!["ZIG".into()], steps: vec![command("one two", 0), command("three", 2), file] };
    assert_eq!(read(text), page);
}

/// The texts between backticks of a line.
fn code(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[test]
fn the_page_for_those_who_come_from_elsewhere_names_what_there_is() {
    let text = fs::read_to_string(root().join("docs/src/coming-from.md")).unwrap();
    let place = Place::new();
    let commands = ["generate", "sample", "embed", "decode", "encode", "models"];
    let helps = commands.map(|command| place.run(&[command, "--help"]).succeeded().stdout()).concat();
    let is_outside = |letter: char| !letter.is_ascii_alphanumeric() && letter != '-';
    let known: Vec<&str> = helps.split(is_outside).collect();
    let [downloads, others]: [Vec<&str>; 2] =
        [true, false].map(|is| text.lines().filter(|line| line.contains("hf download") == is).collect());
    let options = others.iter().flat_map(|line| code(line)).flat_map(str::split_whitespace);
    let options: Vec<&str> =
        options.filter(|word| word.starts_with("--") && !word.starts_with("--local-dir")).collect();
    assert!(options.len() > 40, "{options:?}");
    for option in options {
        assert!(known.contains(&option.trim_end_matches(is_outside)), "{option} is no option");
    }

    // The names of samplers and schedulers, in the second and fourth columns of their table.
    let of = |option: &str| {
        let run = place.run(&["sample", option, "nothing"]).stderr();
        run.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let (samplers, schedulers) = (of("--sampler"), of("--scheduler"));
    let rows = text.lines().skip_while(|line| !line.starts_with("| Sampling method")).skip(2);
    let rows: Vec<Vec<&str>> =
        rows.take_while(|line| line.starts_with('|')).map(|line| line.split('|').collect()).collect();
    assert!(rows.len() > 10);
    for (column, known) in [(2, &samplers), (4, &schedulers)] {
        for name in rows.iter().flat_map(|row| code(row[column])) {
            assert!(known.iter().any(|one| one == name), "{name} is not among {known:?}");
        }
    }

    // Each download is of one repository, into a folder or the cache.
    let table = downloads.iter().filter(|line| line.starts_with('|')).flat_map(|line| code(line));
    let plain = downloads.iter().filter(|line| line.starts_with("hf ")).copied();
    let lines: Vec<&str> = table.filter(|span| span.starts_with("hf download")).chain(plain).collect();
    assert!(lines.len() > 15);
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().skip(2).collect();
        assert_eq!(words[0].matches('/').count(), 1, "{line}");
        let files = words[1..].iter().position(|word| word.starts_with("--")).unwrap_or(words.len() - 1);
        let ends = [".safetensors", ".gguf"];
        assert!(words[1..=files].iter().all(|file| ends.iter().any(|end| file.ends_with(end))), "{line}");
        let rest: Vec<&str> = words[files + 1..].to_vec();
        assert!(matches!(rest[..], [] | ["--local-dir", _] | ["--exclude", _]), "{line}");
    }
}

#[test]
fn every_command_in_the_book_does_what_it_says() {
    let mut found = Vec::new();
    pages(&root().join("docs/src"), &mut found);
    let (mut run, mut wrong) = (0, Vec::new());
    for path in found {
        let page = read(&fs::read_to_string(&path).unwrap());
        let name = path.strip_prefix(root()).unwrap().display();
        if let Some(tool) =
            page.needs.iter().find(|tool| std::env::var_os(format!("TILEWRIGHT_WITHOUT_{tool}")).is_some())
        {
            println!("LEFT OUT: {name}, which needs what TILEWRIGHT_WITHOUT_{tool} says is not here");
            continue;
        }
        let place = Place::new();
        symlink(root().join("examples"), place.path("examples")).unwrap();
        let mut command = Command::new("bash");
        command.arg("-c").arg(script(&page, &place.path(""))).current_dir(place.path(""));
        // A reader has things that tests of the program leave out: a home and tool-chains.
        command.env("XDG_CONFIG_HOME", place.path(".config")).env("TILEWRIGHT_HISTORY", place.history());
        command.env("OMP_NUM_THREADS", "1");
        with_tools(&mut command);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            wrong.push(format!("{name}:\n{said}{}", String::from_utf8_lossy(&output.stderr)));
        }
        run += page.steps.iter().filter(|step| matches!(step, Step::Command { .. })).count();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(run > 30, "only {run} commands were found");
}
