//! The commit that a release is made of.

use std::{
    path::{self, Path},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

use super::{Refused, refuse};

/// The number of files that a refusal names.
const NAMED: usize = 5;

/// A commit, and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The commit's name, 40 hexadecimal digits.
    pub id: String,
    /// The time of the commit in seconds since 1970.
    pub seconds: u64,
    /// The time of the commit in UTC, as RFC 3339 has it.
    pub time: String,
}

impl Commit {
    /// The commit of a tree that has no other files than the commit and ignored ones.
    ///
    /// # Errors
    /// [`Refused`] with the files that differ.
    pub fn clean(root: &Path) -> Result<Self> {
        let status = git(root, &["status", "--porcelain", "--untracked-files=all"])?;
        let differing: Vec<&str> = status.lines().collect();
        if !differing.is_empty() {
            let mut named: Vec<String> = differing.iter().take(NAMED).map(|line| line.trim().to_owned()).collect();
            if differing.len() > NAMED {
                named.push(format!("{} more", differing.len() - NAMED));
            }
            return refuse(format!(
                "the tree is not clean ({}): commit, stash or remove what differs, since a release is made from a commit",
                named.join(", ")
            ));
        }
        let format = ["log", "-1", "--format=%H %ct %cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ"];
        let line = git(root, &format)?;
        let mut words = line.split_whitespace().map(str::to_owned);
        let parts = (words.next(), words.next().and_then(|seconds| seconds.parse().ok()), words.next());
        let (Some(id), Some(seconds), Some(time)) = parts else {
            return refuse("git says nothing of the last commit: a release is made in a checkout");
        };
        Ok(Self { id, seconds, time })
    }
}

/// Fails if what is written to a path makes the tree unclean: the wheels would be built in vain.
///
/// # Errors
/// [`Refused`], for the folder that the user knows.
pub fn check_ignored(root: &Path, path: &Path, out: &Path) -> Result<()> {
    let path = path::absolute(path)?;
    let mut git = Command::new("git");
    let ended = git.args(["check-ignore", "--quiet", "--"]).arg(path).current_dir(root).stderr(Stdio::null()).status();
    // For a path outside the checkout git says neither yes nor no.
    if ended.context("git can't be started")?.code() == Some(1) {
        return refuse(format!(
            "{}: lies where git ignores nothing, so that the tree is not clean any more: name a folder in target, or elsewhere, \
             by --out",
            out.display()
        ));
    }
    Ok(())
}

/// The output of git in a folder.
fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    let output = git.args(arguments).env("TZ", "UTC").current_dir(root).output().context("git can't be started")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said.lines().next().unwrap_or_default();
        return Err(Refused(format!("git: {line}: a release is made in a checkout")).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_a_clean_tree_has_a_commit_to_release() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let why = |root: &Path| Commit::clean(root).unwrap_err().downcast::<Refused>().unwrap().0;
        assert!(why(root).ends_with(": a release is made in a checkout"), "{}", why(root));
        git(root, &["init", "--quiet"]).unwrap();
        fs::write(root.join(".gitignore"), "/target\n").unwrap();
        fs::write(root.join("a"), "a").unwrap();
        git(root, &["add", "."]).unwrap();
        let author = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"];
        git(root, &[&author[..], &["commit", "--quiet", "-m", "a", "--date", "2026-01-02T03:04:05Z"]].concat())
            .unwrap();
        fs::create_dir(root.join("target")).unwrap();
        fs::write(root.join("target/b"), "b").unwrap();
        let commit = Commit::clean(root).unwrap();
        assert!(commit.id.len() == 40 && commit.time.ends_with('Z') && commit.seconds > 1_700_000_000, "{commit:?}");
        let ignored = |path: &Path| check_ignored(root, path, path).is_ok();
        assert!(ignored(&root.join("target/new")) && ignored(&root.join("../new")) && !ignored(&root.join("new")));
        fs::write(root.join("a"), "other").unwrap();
        (0..6).for_each(|number| fs::write(root.join(format!("new{number}")), "b").unwrap());
        assert_eq!(
            why(root),
            "the tree is not clean (M a, ?? new0, ?? new1, ?? new2, ?? new3, 2 more): commit, stash or remove what differs, \
             since a release is made from a commit"
        );
    }
}
