//! The binding of a signed policy to the reference that was asked for. A signature says who made a
//! file, but a registry may hand out any file that was ever signed by the same key, under any name
//! and version. The signer's words about the file, which are signed as well, are therefore compared
//! with the reference.

use crate::Reference;
use tilewright_wording::Setting;

/// A signer's words about a file: the parts of minisign's trusted comment, as `tilewright policy
/// sign` writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statement {
    /// `reference:`, a name in a registry with its tag, if the signer gave one.
    pub reference: Option<String>,
    /// `policy:`, the name that the policy gives itself.
    pub name: Option<String>,
    /// `version:`
    pub version: Option<String>,
}

/// The relation of a signed policy to the reference that it was pulled by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// It is the policy that was asked for: by its digest, or as its signer says.
    Bound,
    /// Nothing binds it to the reference; one line on what is lacking.
    Loose(String),
    /// It is another policy or version; the difference, to be followed by what to do.
    Other(String),
}

impl Statement {
    /// Reads a trusted comment: parts `name:value` separated by tabs. Other parts are ignored.
    pub fn read(comment: &str) -> Self {
        let part = |name: &str| {
            comment
                .split('\t')
                .find_map(|part| part.strip_prefix(name)?.strip_prefix(':'))
                .map(|text| text.trim().to_owned())
        };
        Self { reference: part("reference"), name: part("policy"), version: part("version") }
    }
}

impl Reference {
    /// The relation of a signed policy, by its signer's words, to this reference.
    pub fn binding(&self, statement: &Statement) -> Binding {
        // A digest names these bytes and no others.
        if self.digest().is_some() {
            return Binding::Bound;
        }
        let tag = self.tag().unwrap_or("latest");
        if let Some(said) = &statement.reference {
            let Ok(signed) = said.parse::<Reference>() else {
                return Binding::Other(format!("its signature is for '{}', which is no reference", quote(said)));
            };
            let is_same = signed.registry() == self.registry() && signed.repository() == self.repository();
            return match is_same && signed.tag().is_none_or(|signed| signed == tag) {
                true if signed.tag().is_some() => Binding::Bound,
                true => self.version(statement, tag),
                false => Binding::Other(format!("it was signed as {signed}, and not as {self}")),
            };
        }
        self.version(statement, tag)
    }

    /// A tag that is a version has to be the signed version.
    fn version(&self, statement: &Statement, tag: &str) -> Binding {
        let Some(version) = statement.version.as_deref().filter(|version| is_version(version)) else {
            return Binding::Loose(format!(
                "its signature says no version, so that nothing binds it to {self}: pin it with @sha256:…"
            ));
        };
        let plain = tag.strip_prefix('v').unwrap_or(tag);
        if is_version(plain) && plain != version {
            return Binding::Other(format!("it was signed as version {}, and {self} says {tag}", quote(version)));
        }
        if !is_version(plain) {
            return Binding::Loose(format!(
                "it was signed as version {}, and nothing binds that to the tag {tag}: pin it with @sha256:…",
                quote(version)
            ));
        }
        match (&statement.reference, &statement.name) {
            (Some(_), _) => Binding::Bound,
            (None, Some(name)) if name == self.name() => Binding::Bound,
            (None, name) => Binding::Loose(format!(
                "it was signed as {} {}, and nothing binds that to the name {}: pin it with @sha256:…, or have it signed with {}",
                name.as_deref().map_or_else(|| "version".into(), quote),
                quote(version),
                self.repository(),
                Setting::Reference
            )),
        }
    }
}

/// True if the text is three numbers separated by dots, with any suffix after `-` or `+`.
fn is_version(text: &str) -> bool {
    let core = text.split(['-', '+']).next().unwrap_or_default();
    let numbers: Vec<&str> = core.split('.').collect();
    numbers.len() == 3
        && numbers.iter().all(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn quote(text: &str) -> String {
    text.chars().take(100).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(reference: &str, comment: &str) -> Binding {
        reference.parse::<Reference>().unwrap().binding(&Statement::read(comment))
    }

    #[test]
    fn a_comment_has_parts() {
        let read = Statement::read(
            "timestamp:1\tpolicy:wide\tversion:1.0.0\tdigest:sha256:00\treference:ghcr.io/ada/wide:1.0.0\tmore",
        );
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(
            read,
            Statement { reference: text("ghcr.io/ada/wide:1.0.0"), name: text("wide"), version: text("1.0.0") }
        );
        assert_eq!(Statement::read("timestamp:1 file:wide.wasm"), Statement::default());
    }

    #[test]
    fn what_was_signed_as_something_else_is_told_from_what_was_not_said() {
        let signed = "policy:wide\tversion:1.0.0";
        let named = "policy:wide\tversion:1.0.0\treference:ghcr.io/ada/wide:1.0.0";
        let pinned = format!("ghcr.io/ada/other@sha256:{}", "a1".repeat(32));
        for (reference, comment) in [
            ("ghcr.io/ada/wide:1.0.0", signed),
            ("ghcr.io/ada/wide:v1.0.0", signed),
            ("ghcr.io/ada/wide:1.0.0", named),
            ("ghcr.io/ada/fast:1.0.0", "policy:wide\tversion:1.0.0\treference:ghcr.io/ada/fast"),
            (&pinned, signed),
            (&pinned, ""),
        ] {
            assert_eq!(binding(reference, comment), Binding::Bound, "{reference} {comment}");
        }
        for (reference, comment, words) in [
            ("ghcr.io/ada/wide:1.1.0", signed, "it was signed as version 1.0.0, and ghcr.io/ada/wide:1.1.0 says 1.1.0"),
            (
                "ghcr.io/ada/wide:latest",
                named,
                "it was signed as ghcr.io/ada/wide:1.0.0, and not as ghcr.io/ada/wide:latest",
            ),
            ("ghcr.io/eve/wide:1.0.0", named, "it was signed as ghcr.io/ada/wide:1.0.0"),
            ("ghcr.io/ada/wide:1.0.0", "reference:nonsense", "is no reference"),
        ] {
            let Binding::Other(told) = binding(reference, comment) else { panic!("{reference} {comment}") };
            assert!(told.contains(words), "{told}");
        }
        for (reference, comment, words) in [
            ("ghcr.io/ada/wide", signed, "nothing binds that to the tag latest"),
            ("ghcr.io/ada/wide:stable", signed, "nothing binds that to the tag stable"),
            ("ghcr.io/ada/wide:1.0.0", "", "says no version"),
            ("ghcr.io/ada/fast:1.0.0", signed, "nothing binds that to the name ada/fast"),
        ] {
            let Binding::Loose(told) = binding(reference, comment) else { panic!("{reference} {comment}") };
            assert!(told.contains(words), "{told}");
        }
    }
}
