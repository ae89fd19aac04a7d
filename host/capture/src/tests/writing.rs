//! Round trips, limits, full disks, and what is left of captures that fail.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::*;
use crate::{Captured, Error, LEFT_OUT};

#[test]
fn a_capture_comes_back_as_it_was_written() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("capture");
    write(Settings { prompts: true, ..settings(&folder) }).unwrap();
    assert_eq!(names(place.path()), ["capture"]);
    let captured = Captured::open(&folder).unwrap();
    let [text, denoise] = captured.stages() else { panic!("{:?}", captured.stages()) };
    assert_eq!((text.stage, &*text.folder, text.elapsed_ms, text.withheld), (Stage::Text, "1-text", 20.0, 0));
    assert_eq!((denoise.stage, denoise.index, denoise.elapsed_ms), (Stage::Denoise, 2, 1.5));
    assert_eq!(captured.inputs(text).unwrap()["tokens"].dtype, Dtype::I64);
    let inputs = captured.inputs(denoise).unwrap();
    assert_eq!(inputs.keys().collect::<Vec<_>>(), ["noise", "states"]);
    assert_eq!((&inputs["noise"].shape, &inputs["noise"].bytes), (&vec![4, 4], &ELEMENTS.to_vec()));
    assert!(captured.outputs(denoise).unwrap().contains_key("latent"));
    let layers: Vec<_> = captured.layers(denoise).map(Result::unwrap).collect();
    let facts: Vec<_> = layers.iter().map(|found| (&*found.layer, found.call, found.end)).collect();
    assert_eq!(facts, [("blocks.0.attn", 3, End::In), ("blocks.0.attn", 3, End::Out), ("blocks.1.attn", 4, End::Out)]);
    assert_eq!(captured.layers(text).count(), 1);
    assert_eq!(captured.facts(text).unwrap().unwrap()["prompt"], "a purple fox");
    assert_eq!(captured.record(text).unwrap(), None);
    assert_eq!(captured.manifest().layers.as_deref(), Some("blocks.*.attn"));
    assert_eq!(captured.manifest().left_out, 0);
}

#[test]
fn everything_is_its_users_alone() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("capture");
    // An empty folder gives way.
    fs::create_dir(&folder).unwrap();
    write(settings(&folder)).unwrap();
    let mode = |path: &str| fs::metadata(folder.join(path)).unwrap().permissions().mode() & 0o777;
    for path in ["", "1-text", "2-denoise", "2-denoise/layers"] {
        assert_eq!(mode(path), 0o700, "{path}");
    }
    for path in ["capture.json", "2-denoise/inputs.safetensors", "2-denoise/layers/000000.safetensors"] {
        assert_eq!(mode(path), 0o600, "{path}");
    }
}

#[test]
fn prompts_are_left_out_and_files_that_a_replay_takes_stay() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("capture");
    write(settings(&folder)).unwrap();
    let captured = Captured::open(&folder).unwrap();
    let [text, denoise] = captured.stages() else { panic!("{:?}", captured.stages()) };
    assert_eq!((captured.inputs(text).unwrap().len(), captured.layers(text).count(), text.withheld), (0, 0, 2));
    assert_eq!(captured.outputs(text).unwrap().len(), 1);
    let model = "/home/someone/purple.safetensors";
    assert_eq!(captured.facts(text).unwrap().unwrap(), json!({"prompt": LEFT_OUT, "model": model}));
    assert_eq!(captured.record(denoise).unwrap().unwrap()["hints"][0]["value"], LEFT_OUT);
    for file in &captured.manifest().files {
        let bytes = fs::read(folder.join(&file.path)).unwrap();
        let text = String::from_utf8_lossy(&bytes).replace(model, "");
        assert!(!text.contains("purple"), "{}", file.path);
    }
}

#[test]
fn layers_give_way_to_the_limit_and_the_rest_does_not() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("capture");
    let size = |folder: &Path| {
        let captured = Captured::open(folder).unwrap();
        captured.manifest().bytes + fs::metadata(folder.join("capture.json")).unwrap().len()
    };
    write(settings(&folder)).unwrap();
    let whole = size(&folder);
    let (mut last, mut seen) = (None, [false; 4]);
    for limit in (0..=whole + 4096).step_by(256) {
        let folder = place.path().join(limit.to_string());
        match write(Settings { limit, ..settings(&folder) }) {
            Ok(()) => {
                assert!(size(&folder) <= limit);
                let captured = Captured::open(&folder).unwrap();
                let left_out = captured.manifest().left_out;
                assert_eq!(left_out + captured.layers(&captured.stages()[1]).count() as u64, 3);
                assert!(last.is_none_or(|last| left_out <= last), "more room, less left out");
                last = Some(left_out);
                seen[left_out as usize] = true;
            }
            Err(error) => {
                let Error::Limit { needed, .. } = &error else { panic!("{error}") };
                assert!(*needed > limit && last.is_none());
                assert!(error.to_string().contains(&format!("give --capture-limit {needed}")), "{error}");
                assert!(!folder.exists());
            }
        }
    }
    assert!(seen[0] && seen[3], "{seen:?}");
    assert!(names(place.path()).iter().all(|name| !name.starts_with('.')), "nothing hidden stays");
}

#[test]
fn a_full_disk_ends_a_capture_and_nothing_stays() {
    let place = tempfile::tempdir().unwrap();
    let free = Arc::new(AtomicU64::new(1 << 30));
    let begin = || {
        let free = Arc::clone(&free);
        let measure = move |_: &Path| Some(Space { free: free.load(Relaxed), total: 1 << 30 });
        Capture::begin_with(settings(&place.path().join("capture")), Box::new(measure))
    };
    let capture = begin().unwrap();
    let mut stage = capture.stage(Stage::Decode, 1).unwrap();
    stage.inputs(&[("latent", tensor())]).unwrap();
    free.store(64 << 20, Relaxed);
    let error = stage.layer("blocks.0.attn", 0, End::In, tensor()).unwrap_err();
    assert!(matches!(error, Error::NoRoom { reserve: 67_108_864, .. }), "{error}");
    assert!(!error.to_string().contains('\n') && !error.to_string().contains(".tilewright"), "{error}");
    assert!(names(place.path()).is_empty(), "it is gone before it is dropped");
    assert!(matches!(stage.outputs(&[("a", tensor())]), Err(Error::Ended)));
    assert!(matches!(capture.finish(), Err(Error::Ended)));
    free.store(0, Relaxed);
    assert!(matches!(begin(), Err(Error::NoRoom { .. })));
    // Full at the very end.
    free.store(1 << 30, Relaxed);
    let capture = begin().unwrap();
    free.store(1, Relaxed);
    assert!(matches!(capture.finish(), Err(Error::NoRoom { .. })));
    assert!(names(place.path()).is_empty());
}

#[test]
fn what_stands_in_the_way_is_kept() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    fs::create_dir(at("full")).unwrap();
    fs::write(at("full/a"), "precious").unwrap();
    fs::write(at("file"), "precious").unwrap();
    fs::create_dir(at("empty")).unwrap();
    symlink("empty", at("link")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    for (name, words) in [
        ("full", "is not empty"),
        ("file", "is a file"),
        ("link", "is a link"),
        ("link/", "is a link"),
        ("dangling", "is a link"),
        ("..", "no name"),
    ] {
        let error = begin(settings(&at(name))).unwrap_err().to_string();
        assert!(error.contains(words), "{name}: {error}");
    }
    let error = begin(settings(&at("missing/capture"))).unwrap_err();
    assert_eq!(error.to_string(), format!("{}: can't be written to", at("missing").display()));
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "No such file or directory (os error 2)");

    // Something appears while the capture is written.
    let capture = begin(settings(&at("late"))).unwrap();
    fs::create_dir(at("late")).unwrap();
    fs::write(at("late/a"), "precious").unwrap();
    assert!(matches!(capture.finish(), Err(Error::Io { .. })));
    assert_eq!(fs::read_to_string(at("late/a")).unwrap(), "precious");
    assert!(names(place.path()).iter().all(|name| !name.starts_with('.')));
}

#[test]
fn an_unfinished_capture_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("capture");
    let capture = begin(settings(&folder)).unwrap();
    let mut stage = capture.stage(Stage::Decode, 1).unwrap();
    assert!(matches!(capture.stage(Stage::Decode, 1), Err(Error::Twice { .. })));
    assert!(!folder.exists() && names(place.path()).len() == 1);
    drop(capture);
    assert!(names(place.path()).is_empty());
    assert!(matches!(stage.inputs(&[("a", tensor())]), Err(Error::Ended)));

    let capture = begin(settings(&folder)).unwrap();
    let stage = capture.stage(Stage::Decode, 1).unwrap();
    assert!(matches!(capture.finish(), Err(Error::Unfinished { .. })));
    assert!(stage.finish(Duration::ZERO).is_err() && names(place.path()).is_empty());
}

#[test]
fn only_layers_of_the_pattern_are_wanted() {
    let place = tempfile::tempdir().unwrap();
    let capture = begin(settings(&place.path().join("a"))).unwrap();
    let mut stage = capture.stage(Stage::Denoise, 1).unwrap();
    assert!(stage.wants("blocks.7.attn") && !stage.wants("blocks.7.mlp"));
    assert!(!stage.layer("blocks.7.mlp", 0, End::In, tensor()).unwrap());
    assert!(!capture.stage(Stage::Text, 2).unwrap().wants("blocks.7.attn"), "prompts are not asked for");
    let capture = begin(Settings { layers: None, ..settings(&place.path().join("b")) }).unwrap();
    assert!(!capture.stage(Stage::Denoise, 1).unwrap().wants("blocks.7.attn"));
}
