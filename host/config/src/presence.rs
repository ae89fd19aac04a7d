//! Presence and kind of the files and folders that a service is configured with. None is opened: a
//! pipe in the place of a file would wait for a writer.

use std::{fs, io, path::Path};

use tilewright_plan::ModelPart;

use crate::{Config, Source, origin::Fault};

/// The kind of file that a path has to lead to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Folder,
}

/// Reports the first path that is missing or of another kind.
pub(crate) fn check(config: &Config) -> Result<(), Fault> {
    let server = &config.server;
    if let Some(data) = &server.data {
        // The folder and its parents are created later if they are missing.
        expect("server/data", data, Kind::Folder, true)?;
    }
    for (place, root) in server.roots.iter().enumerate() {
        expect(&format!("server/roots/{place}"), root, Kind::Folder, false)?;
    }
    if let Some(file) = &server.token_file {
        expect("server/token-file", file, Kind::File, false)?;
    }
    for (place, token) in server.tokens.iter().enumerate() {
        expect(&format!("server/tokens/{place}/file"), &token.file, Kind::File, false)?;
    }
    if let Some(audit) = &server.audit {
        expect("server/audit", audit, Kind::File, true)?;
        let folder = audit.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        expect("server/audit", folder, Kind::Folder, false)?;
    }
    if let Some(tls) = &server.tls {
        let clients = tls.clients.iter().map(|file| ("clients", file));
        for (key, file) in [("certificate", &tls.certificate), ("key", &tls.key)].into_iter().chain(clients) {
            expect(&format!("server/tls/{key}"), file, Kind::File, false)?;
        }
    }
    for (name, model) in &config.models {
        let parts = ModelPart::ALL.map(|part| (part.name(), model.paths(part)));
        let named = parts.into_iter().chain([("loras", &model.loras[..])]);
        for (key, path) in named.flat_map(|(key, paths)| paths.iter().map(move |path| (key, path))) {
            let kind = if path.is_dir() { Kind::Folder } else { Kind::File };
            expect(&format!("models/{name}/{key}"), path, kind, false)?;
        }
    }
    Ok(())
}

/// Checks policies that are files. A service with such a policy in force goes on without its file.
pub(crate) fn check_policies(config: &Config) -> Result<(), Fault> {
    for (name, policy) in &config.policies.named {
        if let Source::File(path) = &policy.source {
            expect(&format!("policies/{name}/source"), path, Kind::File, false)?;
        }
    }
    Ok(())
}

fn expect(at: &str, path: &Path, kind: Kind, may_be_missing: bool) -> Result<(), Fault> {
    let wanted = match kind {
        Kind::File => "a file",
        Kind::Folder => "a folder",
    };
    let detail = match fs::metadata(path) {
        Ok(found) if (kind == Kind::File && found.is_file()) || (kind == Kind::Folder && found.is_dir()) => {
            return Ok(());
        }
        Ok(_) => format!("{}: is not {wanted}: name one", path.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && may_be_missing => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            format!("{}: is not there: name {wanted} that is", path.display())
        }
        Err(error) => format!("{}: can't be read ({error}): name {wanted} that can", path.display()),
    };
    Err(Fault { at: at.into(), detail })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::Config;

    #[test]
    fn what_is_not_there_is_told_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tilewright.toml");
        fs::write(folder.path().join("file"), "").unwrap();
        fs::create_dir(folder.path().join("folder")).unwrap();
        let check = |text: &str| {
            let config = Config::parse(text, &path).unwrap();
            config.check_presence().and_then(|()| config.check_presence_of_policies())
        };
        for (text, line, words) in [
            ("[server]\ndata = \"file\"", 2, "file: is not a folder: name one"),
            ("[server]\nroots = [\n\"folder\",\n\"missing\"]", 4, "missing: is not there: name a folder that is"),
            ("[server]\nroots = [\"file\"]", 2, "file: is not a folder"),
            ("[server]\ntoken-file = \"missing\"", 2, "missing: is not there: name a file that is"),
            ("[server]\n[[server.tokens]]\nname = \"ci\"\nrole = \"read\"\nfile = \"missing\"", 5, "is not there"),
            ("[server]\naudit = \"missing/audit.log\"", 2, "missing: is not there: name a folder that is"),
            ("[server]\naudit = \"folder\"", 2, "folder: is not a file"),
            ("[server.tls]\ncertificate = \"file\"\nkey = \"folder\"", 3, "folder: is not a file"),
            ("[models.a]\nvae = \"missing\"", 2, "is not there: name a file that is"),
            ("[models.a]\nvae = \"file\"\ntext-encoder = [\"file\", \"none\"]", 3, "none: is not there"),
            ("[policies.own]\n\nsource = \"./missing.wasm\"", 3, "is not there: name a file that is"),
        ] {
            let message = check(text).unwrap_err().to_string();
            assert!(message.starts_with(&format!("{}:{line}: ", path.display())), "{message}");
            assert!(message.contains(words) && message.lines().count() == 1, "{message}");
        }
        let whole = "[server]\ndata = \"folder/new\"\nroots = [\"folder\"]\ntoken-file = \"file\"\naudit = \"new.log\"\n[models.a]\nvae = \"file\"\n[models.b]\nmodel = \"a-name\"\nvae = \"folder\"";
        check(whole).unwrap();
    }
}
