//! Captures that somebody or something changed.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use super::*;
use crate::{Captured, Error, Manifest, verify::parse_manifest};

/// A change of a capture's folder.
type Change = fn(&Path);

fn captured() -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("capture");
    write(settings(&folder)).unwrap();
    (place, folder)
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn every_change_is_refused_in_one_line() {
    let changes: [(&str, Change); 14] = [
        ("other contents", |folder| flip(&folder.join("2-denoise/inputs.safetensors"), 200)),
        ("other contents", |folder| flip(&folder.join("2-denoise/layers/000001.safetensors"), 99)),
        ("other contents", |folder| flip(&folder.join("2-denoise/record.json"), 9)),
        ("0 bytes", |folder| fs::write(folder.join("2-denoise/outputs.safetensors"), "").unwrap()),
        ("missing", |folder| fs::remove_file(folder.join("2-denoise/stage.json")).unwrap()),
        ("missing", |folder| fs::remove_dir_all(folder.join("1-text")).unwrap()),
        ("no part", |folder| fs::write(folder.join("2-denoise/layers/a"), "").unwrap()),
        ("no part", |folder| fs::write(folder.join("notes.txt"), "").unwrap()),
        ("no part", |folder| fs::create_dir(folder.join("3-decode")).unwrap()),
        ("no part", |folder| fs::create_dir(folder.join("2-denoise/layers/b")).unwrap()),
        ("link", |folder| {
            let (file, other) = (folder.join("2-denoise/stage.json"), folder.with_file_name("other"));
            fs::rename(&file, &other).unwrap();
            symlink(&other, &file).unwrap();
        }),
        ("link", |folder| {
            let (inner, other) = (folder.join("2-denoise"), folder.with_file_name("other"));
            fs::rename(&inner, &other).unwrap();
            symlink(&other, &inner).unwrap();
        }),
        ("link", |folder| {
            let (inner, other) = (folder.join("2-denoise/layers"), folder.with_file_name("other"));
            fs::rename(&inner, &other).unwrap();
            symlink(&other, &inner).unwrap();
        }),
        ("no capture", |folder| fs::remove_file(folder.join("capture.json")).unwrap()),
    ];
    for (words, change) in changes {
        let (_place, folder) = captured();
        Captured::open(&folder).unwrap();
        change(&folder);
        let error = Captured::open(&folder).unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn no_byte_of_the_manifest_can_change() {
    let (_place, folder) = captured();
    let text = fs::read(folder.join("capture.json")).unwrap();
    let parse = |bytes: &[u8]| parse_manifest(&folder, bytes);
    parse(&text).unwrap();
    for at in 0..text.len() {
        let mut changed = text.clone();
        changed[at] ^= 1;
        let error = parse(&changed).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
        assert!(parse(&text[..at]).is_err(), "cut at {at}");
    }
    assert!(matches!(parse(&[&*text, b"\n"].concat()), Err(Error::NoCapture { .. } | Error::Changed { .. })));
}

#[test]
fn a_forged_manifest_leads_nowhere() {
    let forge = |change: fn(&mut Manifest)| {
        let (_place, folder) = captured();
        let path = folder.join("capture.json");
        let mut manifest: Manifest = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut manifest);
        fs::write(&path, manifest.sealed()).unwrap();
        Captured::open(&folder).unwrap_err()
    };
    for change in [
        (|manifest| manifest.files[0].path = "../../etc/passwd".into()) as fn(&mut Manifest),
        |manifest| manifest.files[0].path = "/etc/passwd".into(),
        |manifest| manifest.files[0].path = "1-text/../../a".into(),
        |manifest| manifest.stages[0].folder = "..".into(),
        |manifest| manifest.stages[1] = manifest.stages[0].clone(),
        |manifest| manifest.files[1] = manifest.files[0].clone(),
        |manifest| manifest.files[0].bytes = u64::MAX,
        |manifest| manifest.files[0].sha256 = "sha256:0".into(),
        |manifest| manifest.bytes += 1,
    ] {
        assert!(matches!(forge(change), Error::Changed { .. }));
    }
    let error = forge(|manifest| manifest.version = 2).to_string();
    assert!(error.contains("of format 2, and this program reads format 1"), "{error}");
    let error = forge(|manifest| manifest.tilewright = "9.8.7".into()).to_string();
    assert!(error.contains("of Tilewright 9.8.7, and this is "), "{error}");
    let error = forge(|manifest| manifest.tilewright = "9\nx".into()).to_string();
    assert!(!error.contains('\n'), "{error}");
    assert!(matches!(forge(|manifest| manifest.format = "other".into()), Error::NoCapture { .. }));
}

#[test]
fn a_file_that_changes_after_it_was_checked_is_not_read() {
    let (_place, folder) = captured();
    let captured = Captured::open(&folder).unwrap();
    let stage = &captured.stages()[1];
    flip(&folder.join("2-denoise/inputs.safetensors"), 200);
    flip(&folder.join("2-denoise/layers/000000.safetensors"), 90);
    fs::write(folder.join("2-denoise/stage.json"), "1".repeat(1 << 20)).unwrap();
    assert!(matches!(captured.inputs(stage), Err(Error::Changed { .. })));
    assert!(captured.facts(stage).is_err());
    let layers: Vec<bool> = captured.layers(stage).map(|layer| layer.is_ok()).collect();
    assert_eq!(layers, [false, true, true]);
}

#[test]
fn what_is_no_capture_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    fs::create_dir(at("empty")).unwrap();
    fs::write(at("file"), "").unwrap();
    fs::create_dir(at("folder")).unwrap();
    for name in ["empty", "file", "missing"] {
        assert!(matches!(Captured::open(&at(name)), Err(Error::NoCapture { .. })), "{name}");
    }
    for text in ["", "{}", "[1]", r#"{"format": "x", "version": 1, "tilewright": "0"}"#] {
        fs::write(at("folder/capture.json"), text).unwrap();
        assert!(matches!(Captured::open(&at("folder")), Err(Error::NoCapture { .. })), "{text}");
    }
    // A sparse file: it is never read.
    fs::File::create(at("folder/capture.json")).unwrap().set_len(1 << 40).unwrap();
    assert!(matches!(Captured::open(&at("folder")), Err(Error::Io { .. })));
}
