//! The whole of a release, with stand-ins for the wheels.

use std::{
    fs::File,
    io::{Cursor, Write},
    process::Command,
};

use jsonschema::{Resource, Validator};
use serde_json::{Value, json};
use tilewright_signing::{KeyPair, TrustList, Trusted, read_text, signature_path, write_pair};
use zip::{ZipArchive, ZipWriter, write::SimpleFileOptions};

use super::*;

/// Writes stand-ins for both wheels.
fn write_wheels(folder: &Path) {
    let wheel = |file: &str, name: &str, fields: &str| {
        let mut zip = ZipWriter::new(File::create(folder.join(file)).unwrap());
        zip.start_file(format!("{name}-{VERSION}.dist-info/METADATA"), SimpleFileOptions::default()).unwrap();
        let text = format!(
            "Metadata-Version: 2.4\nName: {name}\nVersion: {VERSION}\nLicense-Expression: Apache-2.0 OR MIT\n\
             Summary: A stand-in\n{fields}\nDescription-Content-Type: text/markdown\n\nRequires-Dist: no field\n"
        );
        zip.write_all(text.as_bytes()).unwrap();
        zip.finish().unwrap();
    };
    let needs = format!(
        "Requires-Dist: httpx>=0.27\nProvides-Extra: engine\nRequires-Dist: tilewright-engine=={VERSION}; extra == 'engine'"
    );
    wheel(&format!("tilewright-{VERSION}-py3-none-any.whl"), "tilewright", &needs);
    let engine = format!("tilewright_engine-{VERSION}-py3-none-manylinux_2_34_x86_64.whl");
    wheel(&engine, "tilewright-engine", "Requires-Dist: torch==2.11.*");
}

fn release(signer: Option<Signer>) -> Release {
    let commit = Commit { id: "0".repeat(40), seconds: 1_767_323_045, time: "2026-01-02T03:04:05Z".into() };
    Release { commit, changes: "# Tilewright\n\n- New.\n".into(), signer, out: PathBuf::new() }
}

/// A checkout's own crates.
fn graph() -> Graph {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    Graph::read(&Project { root: root.to_owned() }).unwrap()
}

/// A graph of one crate.
fn small_graph() -> Graph {
    let key = ("tilewright-cli".to_owned(), VERSION.to_owned());
    let mut graph = Graph::default();
    graph.crates.entry(key.clone()).or_default();
    graph.roots.entry(crate::wheel::ENGINE.into()).or_default().insert(key);
    graph
}

/// The official schema, with what it refers to.
fn schema() -> Validator {
    let mut zip = ZipArchive::new(Cursor::new(include_bytes!("schema/cyclonedx-1.6.zip"))).unwrap();
    let mut read = |name: &str| serde_json::from_reader::<_, Value>(zip.by_name(name).unwrap()).unwrap();
    let mut options = jsonschema::options();
    for name in ["spdx.schema.json", "jsf-0.82.schema.json"] {
        let resource = Resource::from_contents(read(name)).unwrap();
        options = options.with_resource(format!("http://cyclonedx.org/schema/{name}"), resource);
    }
    options.should_validate_formats(true).build(&read("bom-1.6.schema.json")).unwrap()
}

fn bytes(folder: &Path) -> Vec<(String, Vec<u8>)> {
    names(folder).unwrap().into_iter().map(|name| (name.clone(), fs::read(folder.join(name)).unwrap())).collect()
}

#[test]
fn two_runs_on_one_commit_give_the_same_bytes() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for folder in &folders {
        write_wheels(folder.path());
        release(None).complete(folder.path(), &small_graph()).unwrap();
    }
    let [one, other] = folders.each_ref().map(|folder| bytes(folder.path()));
    assert!(one == other);
    let names: Vec<&str> = one.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names.len(), 6, "{names:?}");
    let mut sums = Command::new("sha256sum");
    sums.args(["--check", "--strict", "SHA256SUMS"]).current_dir(folders[0].path());
    let checked = |sums: &mut Command| String::from_utf8(sums.output().unwrap().stdout).unwrap();
    assert_eq!(checked(&mut sums).lines().filter(|line| line.ends_with(": OK")).count(), 5);
    fs::write(folders[0].path().join(CHANGES), "other").unwrap();
    assert!(checked(&mut sums).contains("CHANGES.md: FAILED"));
}

#[test]
fn the_wheels_and_the_checksums_are_signed_and_the_rest_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (secret, public) = (folder.path().join("a.key"), folder.path().join("a.pub"));
    let pair = KeyPair::generate(None).unwrap();
    write_pair(&pair, &secret, &public, false).unwrap();
    let place = |name: &str, signer: Option<Signer>| {
        let place = folder.path().join(name);
        fs::create_dir(&place).unwrap();
        write_wheels(&place);
        release(signer).complete(&place, &small_graph()).unwrap();
        place
    };
    let (signed, unsigned) = (place("signed", Some(Signer::open(&secret).unwrap())), place("unsigned", None));
    let (signatures, rest): (Vec<_>, Vec<_>) =
        bytes(&signed).into_iter().partition(|(name, _)| name.ends_with(".minisig"));
    assert!(rest == bytes(&unsigned), "who rebuilds a release without the key gets the same files");
    assert_eq!(signatures.len(), 3);
    let trusted = TrustList::new(vec![Trusted { name: "me".into(), key: pair.public.clone() }]);
    for name in super::signed(&wheels::read(&signed).unwrap()) {
        let file = signed.join(name);
        let signature = read_text(&signature_path(&file)).unwrap();
        assert!(signature.contains(&format!("\tfile:{name}\tversion:{VERSION}\tcommit:{}", "0".repeat(40))));
        assert!(trusted.verify(&fs::read(&file).unwrap(), Some(&signature)).is_ok(), "{name}");
        assert!(trusted.verify(b"other", Some(&signature)).is_err());
    }
    let refused = Signer::open(&public).err().unwrap();
    assert!(refused.is::<Refused>(), "{refused}");
}

#[test]
fn the_bill_of_materials_is_valid_and_names_everything() {
    let folder = tempfile::tempdir().unwrap();
    write_wheels(folder.path());
    release(None).complete(folder.path(), &graph()).unwrap();
    let document: Value = serde_json::from_slice(&fs::read(folder.path().join(SBOM)).unwrap()).unwrap();
    let schema = schema();
    let faults: Vec<String> =
        schema.iter_errors(&document).map(|error| format!("{}: {error}", error.instance_path)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let mut wrong = document.clone();
    wrong["components"][0]["scope"] = json!("perhaps");
    assert!(!schema.is_valid(&wrong));

    let components = document["components"].as_array().unwrap();
    let find = |name: &str| {
        let found = components.iter().find(|component| component["name"] == name);
        found.unwrap_or_else(|| panic!("{name} is missing"))
    };
    for (name, scope) in [
        ("tilewright-cli", "required"),
        ("policy-adaptive", "required"),
        ("wit-bindgen", "required"),
        ("wasmtime", "required"),
        ("torch-sys", "required"),
        ("serde_derive", "excluded"),
        ("cc", "excluded"),
        ("torch", "required"),
        ("httpx", "required"),
    ] {
        assert_eq!(find(name)["scope"], scope, "{name}");
    }
    assert!(components.iter().all(|component| component["name"] != "proptest"), "tests' crates are in no wheel");
    assert_eq!(find("torch")["properties"][0]["value"], "torch==2.11.*");
    assert_eq!(find("wasmtime")["hashes"][0]["content"].as_str().unwrap().len(), 64);
    // A crate has the engine's name, too.
    let wheels = components.iter().filter(|component| component["bom-ref"].as_str().unwrap().contains("?file_name="));
    assert!(wheels.clone().count() == 2 && wheels.clone().all(|wheel| wheel["hashes"][0]["alg"] == "SHA-256"));
    let text = document.to_string();
    for place in [env!("CARGO_MANIFEST_DIR"), "path+file", "registry+"] {
        assert!(!text.contains(place), "{place} is this machine's");
    }

    let mut known: Vec<&str> = components.iter().map(|component| component["bom-ref"].as_str().unwrap()).collect();
    known.push(document["metadata"]["component"]["bom-ref"].as_str().unwrap());
    let edges = document["dependencies"].as_array().unwrap();
    assert_eq!(edges.len(), known.len());
    for edge in edges {
        let needed = edge["dependsOn"].as_array().unwrap().iter().chain([&edge["ref"]]);
        needed.for_each(|reference| assert!(known.contains(&reference.as_str().unwrap()), "{reference}"));
    }
}

#[test]
fn the_recipe_names_what_stands_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    write_wheels(folder.path());
    let wheels = wheels::read(folder.path()).unwrap();
    let recipe = image::recipe(&wheels, &release(None).commit).unwrap();
    let is_place = |part: &str| !part.is_empty() && part.chars().all(|letter| letter.is_ascii_uppercase());
    assert_eq!(recipe.split('@').find(|part| is_place(part)), None, "a place is left");
    assert!(recipe.contains("ARG BASE=python:3.12-slim-bookworm@sha256:"));
    assert!(recipe.contains("'torch==2.11.*'") && recipe.contains(&wheels[1].file));
    let user = recipe.lines().position(|line| line == "USER tilewright").unwrap();
    assert!(recipe.lines().skip(user).any(|line| line.starts_with("ENTRYPOINT ")));
}

#[test]
fn other_wheels_make_no_release() {
    let folder = tempfile::tempdir().unwrap();
    let why = || wheels::read(folder.path()).err().unwrap().to_string();
    assert!(why().ends_with("and there are: "));
    write_wheels(folder.path());
    let engine = format!("tilewright_engine-{VERSION}-py3-none-manylinux_2_34_x86_64.whl");
    fs::rename(folder.path().join(&engine), folder.path().join("aside")).unwrap();
    assert!(why().ends_with("and there are: tilewright"), "{}", why());
}

#[test]
fn only_an_earlier_release_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (out, earlier) = (folder.path().join("out"), folder.path().join("out/SHA256SUMS"));
    let finished = || {
        let finished = tempfile::tempdir_in(folder.path()).unwrap();
        fs::write(finished.path().join("SHA256SUMS"), "new").unwrap();
        finished
    };
    replace(finished(), &out).unwrap();
    assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o755);
    fs::write(&earlier, "old").unwrap();
    replace(finished(), &out).unwrap();
    assert_eq!(fs::read_to_string(&earlier).unwrap(), "new");
    fs::rename(&earlier, folder.path().join("out/mine")).unwrap();
    assert_eq!(names(folder.path()).unwrap(), ["out"], "nothing is left over");
    let unplaced = finished();
    let place = unplaced.path().to_owned();
    let refused = replace(unplaced, &out).unwrap_err();
    let line = format!("{refused:#}");
    assert!(refused.is::<Refused>() && line.ends_with("name another folder by --out"), "{line}");
    assert!(line.contains(&place.display().to_string()) && place.join("SHA256SUMS").is_file(), "{line}");
}

#[test]
fn an_earlier_release_comes_back_where_the_new_one_does_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("SHA256SUMS"), "old").unwrap();
    let line = put(&folder.path().join("missing"), &out).unwrap_err().to_string();
    assert!(line.contains("the release can't be put there"), "{line}");
    assert_eq!(names(folder.path()).unwrap(), ["out"]);
    assert_eq!(fs::read_to_string(out.join("SHA256SUMS")).unwrap(), "old");
    for whole in [".", "..", "/", "/proc"] {
        let refused = check_replaceable(Path::new(whole)).unwrap_err();
        assert!(refused.is::<Refused>() && refused.to_string().contains("as a whole"), "{whole}: {refused}");
    }
}
