//! The entry of a release in CHANGELOG.md, which has the form of "Keep a Changelog" 1.1.

use anyhow::Result;

use super::refuse;

/// The heading of what is in no release yet.
const UNRELEASED: &str = "Unreleased";

/// The text of CHANGES.md: the version's entry, or else that of what is unreleased.
///
/// # Errors
/// [`super::Refused`] if there is neither, or it says nothing.
pub fn entry(changelog: &str, version: &str) -> Result<String> {
    let Some((name, text)) = [version, UNRELEASED].iter().find_map(|name| Some((*name, section(changelog, name)?)))
    else {
        return refuse(format!("CHANGELOG.md: has neither '## [{version}]' nor '## [{UNRELEASED}]': write the entry"));
    };
    if !text.lines().any(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        return refuse(format!("CHANGELOG.md: '## [{name}]' says nothing: write what this release changes"));
    }
    Ok(format!("# Tilewright {version}\n\n{}\n", text.trim()))
}

/// The text below the heading `## [NAME]`, which may have a date, up to the next one.
fn section(changelog: &str, name: &str) -> Option<String> {
    let heading = format!("## [{name}]");
    let mut lines = changelog.lines().skip_while(|line| !line.starts_with(&heading));
    lines.next()?;
    let is_own = |line: &&str| !line.starts_with("## ") && !is_link(line);
    Some(lines.take_while(is_own).collect::<Vec<_>>().join("\n"))
}

/// True for a line that says where a heading's link leads; such lines end the file.
fn is_link(line: &str) -> bool {
    line.starts_with('[') && line.contains("]: ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::Refused;

    const TEXT: &str = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- New.\n\n## [0.2.0] - 2026-01-02\n\n- Old.\n\n\
        ## [0.1.0]\n### Fixed\n\n[0.1.0]: https://example.org\n";

    #[test]
    fn the_versions_entry_goes_before_what_is_unreleased() {
        assert_eq!(entry(TEXT, "0.2.0").unwrap(), "# Tilewright 0.2.0\n\n- Old.\n");
        assert_eq!(entry(TEXT, "0.3.0").unwrap(), "# Tilewright 0.3.0\n\n### Added\n\n- New.\n");
    }

    #[test]
    fn an_entry_that_says_nothing_is_refused() {
        let why = |text: &str, version: &str| entry(text, version).unwrap_err().downcast::<Refused>().unwrap().0;
        assert_eq!(why(TEXT, "0.1.0"), "CHANGELOG.md: '## [0.1.0]' says nothing: write what this release changes");
        assert_eq!(
            why("# Changelog\n", "0.1.0"),
            "CHANGELOG.md: has neither '## [0.1.0]' nor '## [Unreleased]': write the entry"
        );
    }

    #[test]
    fn the_projects_own_changelog_has_an_entry() {
        let text = include_str!("../../../../CHANGELOG.md");
        assert!(entry(text, env!("CARGO_PKG_VERSION")).unwrap().lines().count() > 10);
    }
}
