//! Reports, and what must not be in them.

use std::{collections::BTreeMap, fs, io::Read, os::unix::fs::PermissionsExt};

use super::*;
use crate::{Captured, Entry, Error, Keep, Report, Result};

const CONFIG: &str = r#"
# a note about purple things
[server]
listen = "127.0.0.1:7590"
token-file = "/etc/purple/token"
tokens = [
    { name = "ci", role = "read", token = "purple-token-of-many-characters" },
]
[server.tls]
key = "purple-key"
[models.mine]
vae = "purple.safetensors"
[upstream]
url = "https://purple:purple@example.org/a"
password = "purple"
"#;

/// A capture with prompts, and its place.
fn captured() -> (tempfile::TempDir, Captured) {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("purple-capture");
    write(Settings { prompts: true, ..settings(&folder) }).unwrap();
    let captured = Captured::open(&folder).unwrap();
    (place, captured)
}

fn pack(captured: &Captured, keep: Keep, output: &Path) -> Result<Vec<Entry>> {
    let log = "device: cpu\nread /home/purple/a.png\nHF_TOKEN=purple\n";
    let extra: [(&str, &[u8]); 3] = [
        ("config.toml", CONFIG.as_bytes()),
        ("device.json", br#"{"name": "AMD Radeon", "prompt": "a purple fox"}"#),
        ("run.log", log.as_bytes()),
    ];
    Report::pack(captured, &extra, output, keep)
}

/// The files of a tar file.
fn unpack(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut archive = tar::Archive::new(fs::File::open(path).unwrap());
    let mut files = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let header = entry.header();
        let facts = (header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap());
        assert_eq!((facts, header.username().unwrap()), ((0, 0, 0), Some("")));
        let path = entry.path().unwrap().display().to_string();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        files.insert(path, bytes);
    }
    files
}

#[test]
fn a_report_has_no_prompt_no_name_and_no_secret() {
    let (place, captured) = captured();
    let output = place.path().join("report.tar");
    let entries = pack(&captured, Keep::default(), &output).unwrap();
    let packed = fs::read(&output).unwrap();
    let folder = place.path().to_str().unwrap();
    for word in ["purple", "fox", folder] {
        assert!(!packed.windows(word.len()).any(|part| part == word.as_bytes()), "{word}");
    }
    let files = unpack(&output);
    let listed: BTreeMap<String, u64> = entries.into_iter().map(|entry| (entry.path, entry.bytes)).collect();
    let found: BTreeMap<String, u64> = files.iter().map(|(path, bytes)| (path.clone(), bytes.len() as u64)).collect();
    assert_eq!(listed, found);
    assert!(!files.contains_key("report/capture/1-text/inputs.safetensors"));
    assert!(files.contains_key("report/capture/2-denoise/layers/000000.safetensors"));
    let text = |path: &str| str::from_utf8(&files[path]).unwrap();
    assert!(text("report/config.toml.json").contains("127.0.0.1:7590"));
    assert!(text("report/device.json").contains("AMD Radeon"));
    assert_eq!(text("report/run.log"), "device: cpu\nread left out\nHF_TOKEN: left out\n");
    assert_eq!(fs::metadata(&output).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(names(place.path()), ["purple-capture", "report.tar"]);
}

#[test]
fn the_capture_in_a_report_is_a_capture() {
    for keep in [Keep::default(), Keep { prompts: true, names: true }] {
        let (place, captured) = captured();
        let output = place.path().join("report.tar");
        pack(&captured, keep, &output).unwrap();
        for (path, bytes) in unpack(&output) {
            let path = place.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let unpacked = Captured::open(&place.path().join("report/capture")).unwrap();
        let [text, denoise] = unpacked.stages() else { panic!("{:?}", unpacked.stages()) };
        assert_eq!(text.withheld, if keep.prompts { 0 } else { 2 });
        assert_eq!(unpacked.manifest().prompts, keep.prompts);
        assert_eq!(unpacked.inputs(text).unwrap().len(), usize::from(keep.prompts));
        assert_eq!(unpacked.inputs(denoise).unwrap().len(), 2);
        let prompt = &unpacked.facts(text).unwrap().unwrap()["prompt"];
        assert_eq!(prompt == "a purple fox", keep.prompts);
    }
}

#[test]
fn secrets_are_left_out_even_if_all_else_is_kept() {
    let (place, captured) = captured();
    let output = place.path().join("report.tar");
    pack(&captured, Keep { prompts: true, names: true }, &output).unwrap();
    let files = unpack(&output);
    let config = str::from_utf8(&files["report/config.toml.json"]).unwrap();
    assert!(config.contains("purple.safetensors"), "{config}");
    for secret in ["purple-token", "purple-key", "purple:purple", "\"purple\"", "/etc/purple"] {
        assert!(!config.contains(secret), "{secret}: {config}");
    }
    assert!(!str::from_utf8(&files["report/run.log"]).unwrap().contains("TOKEN=purple"));
}

#[test]
fn the_same_contents_make_the_same_report() {
    let (place, captured) = captured();
    let outputs = ["a.tar", "b.tar"].map(|name| place.path().join(name));
    for output in &outputs {
        pack(&captured, Keep::default(), output).unwrap();
    }
    let [first, second] = outputs.map(|output| fs::read(output).unwrap());
    assert!(first == second);
}

#[test]
fn what_can_not_be_packed_is_refused_and_nothing_is_written() {
    let (place, captured) = captured();
    let output = place.path().join("report.tar");
    for (name, bytes) in [
        ("../a.json", &b"{}"[..]),
        ("a/b.json", b"{}"),
        (".json", b"{}"),
        ("a", b""),
        ("a.bin", b""),
        ("a.json", b"{"),
        ("a.toml", b"purple"),
        ("a.txt", b"\xff"),
    ] {
        let error = Report::pack(&captured, &[(name, bytes)], &output, Keep::default()).unwrap_err();
        assert!(matches!(error, Error::Extra { .. }), "{name}: {error}");
        assert!(!error.to_string().contains("purple"));
    }
    let twice: [(&str, &[u8]); 2] = [("a.toml", b""), ("a.toml.json", b"{}")];
    assert!(matches!(Report::pack(&captured, &twice, &output, Keep::default()), Err(Error::Extra { .. })));
    fs::create_dir(place.path().join("folder")).unwrap();
    assert!(matches!(pack(&captured, Keep::default(), &place.path().join("folder")), Err(Error::Io { .. })));
    let within = captured.folder().join("2-denoise/report.tar");
    assert!(matches!(pack(&captured, Keep::default(), &within), Err(Error::Folder { .. })));
    let path = captured.folder().join("2-denoise/outputs.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(matches!(pack(&captured, Keep::default(), &output), Err(Error::Changed { .. })));
    assert_eq!(names(place.path()), ["folder", "purple-capture"]);
}
