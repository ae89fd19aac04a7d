//! Tokens in their files: each file holds one, and no two hold the same.

use std::{io::ErrorKind, path::Path};

use crate::{Config, origin::Fault};

/// Characters of the shortest token.
const SHORTEST: usize = 16;
/// Bytes of the longest token's file.
const LONGEST_FILE: u64 = 4096;

/// Reports the first file without a token of its own.
pub(crate) fn check(config: &Config) -> Result<(), Fault> {
    let server = &config.server;
    let operator = server.token_file.iter().map(|file| ("server/token-file".to_owned(), "token-file", file));
    let named = server.tokens.iter().enumerate();
    let named = named.map(|(place, token)| (format!("server/tokens/{place}/file"), token.name.as_str(), &token.file));
    let mut known: Vec<(&str, String)> = Vec::new();
    for (at, name, file) in operator.chain(named) {
        let wrong = |reason: String| Fault { at: at.clone(), detail: format!("{}: {reason}", file.display()) };
        let token = read(file).map_err(wrong)?;
        if let Some((other, _)) = known.iter().find(|(_, same)| *same == token) {
            return Err(wrong(format!("holds the token of '{other}', too: give each its own")));
        }
        known.push((name, token));
    }
    Ok(())
}

/// Reads a token.
///
/// # Errors
/// The fault of the file, and the value that is expected.
fn read(path: &Path) -> Result<String, String> {
    let text = tilewright_files::read_text(path, LONGEST_FILE).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::PermissionDenied => format!("can't be read: {error}"),
        _ => "expected a file with a token in one line".to_owned(),
    })?;
    let token = text.trim();
    if token.len() < SHORTEST || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("expected a token of at least {SHORTEST} printable ASCII characters without blanks"));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::Config;

    #[test]
    fn a_file_without_a_token_of_its_own_is_told_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tilewright.toml");
        for (name, text) in [
            ("good", "0123456789abcdef\n"),
            ("other", "fedcba9876543210"),
            ("same", "\t0123456789abcdef"),
            ("short", "0123456789"),
            ("two-lines", "0123456789abcdef\nfedcba9876543210"),
            ("empty", ""),
        ] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        fs::write(folder.path().join("long"), [b'a'; 4097]).unwrap();
        let told = |operator: &str, named: &str| {
            let named = format!("[[server.tokens]]\nname = \"ci\"\nrole = \"read\"\nfile = \"{named}\"\n");
            let text = format!("[server]\ntoken-file = \"{operator}\"\n{named}");
            Config::parse(&text, &path).unwrap().check_tokens().map_err(|error| error.to_string())
        };
        assert_eq!(told("good", "other"), Ok(()));
        for (operator, named, line, words) in [
            ("short", "other", 2, "short: expected a token of at least 16 printable ASCII characters"),
            ("empty", "other", 2, "empty: expected a token of at least 16"),
            ("two-lines", "other", 2, "expected a token of at least 16"),
            ("missing", "other", 2, "missing: can't be read: No such file"),
            ("long", "other", 2, "long: expected a file with a token in one line"),
            ("good", "same", 6, "same: holds the token of 'token-file', too: give each its own"),
        ] {
            let message = told(operator, named).unwrap_err();
            assert!(message.starts_with(&format!("{}:{line}: ", path.display())), "{message}");
            assert!(message.contains(words) && !message.contains("0123456789"), "{message}");
        }
    }
}
