use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::{picture, samples};

#[test]
fn endings_are_known_whatever_their_case() {
    let folder = tempfile::tempdir().unwrap();
    for (name, format) in [("a.PNG", Format::Png), ("a.jpeg", Format::Jpeg), ("a.webp", Format::WebP)] {
        assert_eq!(Output::new(&folder.path().join(name), Kind::Picture).unwrap().format, format);
    }
    for (name, format) in [("a.GIF", Format::Gif), ("a", Format::Folder), ("a.b/", Format::Folder)] {
        assert_eq!(Output::new(&folder.path().join(name), Kind::Clip).unwrap().format, format);
    }
    for (name, kind) in [("a", Kind::Picture), ("a.bmp", Kind::Picture), ("png", Kind::Picture), ("a.b", Kind::Clip)] {
        let error = Output::new(&folder.path().join(name), kind).unwrap_err();
        assert!(error.is_input() && error.to_string().contains("unknown output ending: expected ."), "{error}");
    }
    let error = Output::new(&folder.path().join("a.mp4"), Kind::Picture).unwrap_err();
    assert!(
        error.to_string().ends_with("a picture can't be written as video: expected .png, .jpg, .webp or .safetensors")
    );
    assert!(samples::is_empty(folder.path()), "nothing is left behind");
}

#[test]
fn a_place_that_does_not_serve_is_told_before_any_work() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Output::new(&folder.path().join("no/a.gif"), Kind::Clip).unwrap_err();
    assert!(matches!(missing, Error::Folder { .. }) && missing.is_input());
    // Even root can't write here.
    let system = Output::new(Path::new("/proc/a.png"), Kind::Picture).unwrap_err();
    assert!(system.to_string().ends_with(": choose another folder with -o"), "{system}");

    fs::create_dir(folder.path().join("b.png")).unwrap();
    assert!(Output::new(&folder.path().join("b.png"), Kind::Picture).is_err());
    fs::write(folder.path().join("file"), "").unwrap();
    assert!(Output::new(&folder.path().join("file"), Kind::Clip).is_err());
}

#[test]
fn a_batch_becomes_numbered_files_and_folders() {
    let output = |path: &str, format| Output { path: path.into(), format, options: Options::default() };
    let cat = output("out/cat.png", Format::Png);
    assert_eq!(cat.names(1), [PathBuf::from("out/cat.png")]);
    assert_eq!(cat.names(2), [PathBuf::from("out/cat-01.png"), PathBuf::from("out/cat-02.png")]);
    assert_eq!(output("out/v1.5/", Format::Folder).names(2)[1], PathBuf::from("out/v1.5-02"));
    assert_eq!(output("a.safetensors", Format::Safetensors).names(3), [PathBuf::from("a.safetensors")]);
}

#[test]
fn names_that_are_not_utf_8_are_numbered_as_they_are() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let odd = |text: &[u8]| PathBuf::from(OsStr::from_bytes(text));
    let output = |path: &[u8], format| Output { path: odd(path), format, options: Options::default() };
    assert_eq!(output(b"\xff.png", Format::Png).names(2)[1], odd(b"\xff-02.png"));
    assert_eq!(output(b"\xff/", Format::Folder).names(2)[1], odd(b"\xff-02"));
    assert_eq!(output(b"nowhere/\xff-{n}.png", Format::Png).names(1), [odd(b"nowhere/\xff-1.png")]);
}

#[test]
fn what_a_format_cannot_hold_is_told_with_what_can() {
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape { samples: 1, frames: 2, width: 8, height: 8, channels: 3 };
    let check = |name: &str, shape: Shape| {
        let error = Output::new(&folder.path().join(name), Kind::Clip).unwrap().check(&shape).unwrap_err();
        format!("{error}: {}", std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default())
    };
    assert!(check("a.png", shape).contains("holds one frame, the clip has 2"));
    assert!(check("a.gif", Shape { channels: 4, ..shape }).contains("transparency"));
    assert!(check("a.webp", Shape { width: 16_384, ..shape }).contains("16384 pixels are more than the 16383"));
    assert!(check("a.webp", Shape { frames: 0, ..shape }).contains("no shape"));
    fs::create_dir(folder.path().join("frames")).unwrap();
    fs::write(folder.path().join("frames/frame-000003.png"), "").unwrap();
    assert!(check("frames", shape).contains("frame-000003.png of a longer clip"));
}

#[test]
fn pictures_come_back_as_they_went() {
    let folder = tempfile::tempdir().unwrap();
    let pictures = [samples::frame(7, 5, 3, 0), samples::frame(7, 5, 3, 1)];
    for name in ["a.png", "a.webp"] {
        let output = Output::new(&folder.path().join(name), Kind::Picture).unwrap();
        let names = output.write(&pictures, &vec![("prompt".into(), "日本".into())]).unwrap();
        for (name, picture) in names.iter().zip(&pictures) {
            let (read, notes) = picture::read_picture(name).unwrap();
            assert_eq!((Pixels::from(&read), notes.len()), (Pixels::from(picture), 0));
            assert_eq!(fs::metadata(name).unwrap().permissions().mode() & 0o600, 0o600);
        }
    }
    let raw = Output::new(&folder.path().join("a.safetensors"), Kind::Picture).unwrap();
    let bytes = fs::read(&raw.write(&pictures, &Vec::new()).unwrap()[0]).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor("sample").unwrap();
    assert_eq!(tensor.shape(), [2, 3, 5, 7]);
    let second = pictures[1].values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    assert_eq!(tensor.data()[second.len()..], second);
}

#[test]
fn what_fails_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let output = Output::new(&folder.path().join("a.jpg"), Kind::Picture).unwrap();
    let pictures = [samples::frame(4, 4, 3, 0), samples::frame(4, 4, 4, 0)];
    let error = output.write(&pictures, &Vec::new()).unwrap_err();
    assert!(!error.is_input());
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "JPEG has no transparency: write .png or .webp");
    assert!(samples::is_empty(folder.path()));
}

#[test]
fn a_number_counts_on_from_the_largest_that_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out-{n}.png");
    for name in ["out-7.png", "out-0003.png", "out-x.png", "out-8.jpg", "out-99999999999999999999.png", "out-.png"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let output = Output::new(&path, Kind::Picture).unwrap();
    assert_eq!(output.names(2), ["out-8.png", "out-9.png"].map(|name| folder.path().join(name)));
    let pictures = [samples::frame(4, 4, 3, 0), samples::frame(4, 4, 3, 1)];
    assert_eq!(
        output.write(&pictures, &Vec::new()).unwrap(),
        output
            .names(2)
            .iter()
            .enumerate()
            .map(|(index, _)| { folder.path().join(format!("out-{}.png", index + 8)) })
            .collect::<Vec<_>>()
    );
    assert_eq!(fs::read(folder.path().join("out-7.png")).unwrap(), b"");
}

#[test]
fn a_name_that_holds_the_letters_of_a_number_without_one_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a{n}-{n}.png");
    let of = |at| {
        let options = Options { numbering: Numbering::At(at), ..Options::default() };
        Output::with(&path, Kind::Picture, options).unwrap()
    };
    let pictures = [samples::frame(4, 4, 3, 0)];
    for (at, names) in [(None, ["a{n}-{n}.png"; 2]), (Some(5), ["a{n}-1.png", "a{n}-2.png"])] {
        for name in names {
            assert_eq!(of(at).write(&pictures, &Vec::new()).unwrap(), [folder.path().join(name)]);
        }
    }
}

#[test]
fn numbers_are_taken_once_however_many_ask() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out-{n}.png");
    let write = |number: usize| {
        let output = Output::new(&path, Kind::Picture).unwrap();
        output.write(&[samples::frame(4, 4, 3, number)], &Vec::new()).unwrap().remove(0)
    };
    let names = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8).map(|number| scope.spawn(move || write(number))).collect();
        let names = writers.into_iter().map(|writer| writer.join().unwrap());
        names.collect::<std::collections::BTreeSet<_>>()
    });
    assert_eq!(names.len(), 8);
    assert!(names.contains(&folder.path().join("out-8.png")));
}

#[test]
fn what_is_there_is_left_where_that_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (path, frames) = (folder.path().join("a.png"), folder.path().join("frames"));
    let options = Options { no_clobber: true, ..Options::default() };
    let output = Output::with(&path, Kind::Picture, options).unwrap();
    let into_folder = Output::with(&frames, Kind::Clip, options).unwrap();
    // Both came while the picture was decoded.
    fs::write(&path, "precious").unwrap();
    fs::create_dir(&frames).unwrap();
    let error = output.write(&[samples::frame(4, 4, 3, 0)], &Vec::new()).unwrap_err();
    assert!(error.is_input() && error.to_string().contains("no-clobber"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    let whole = tilewright_outputs::temporary_folder(folder.path()).unwrap();
    assert!(into_folder.place_folder(whole, &frames).unwrap_err().to_string().contains("no-clobber"));
    assert!(Output::with(&path, Kind::Picture, options).is_err() && Output::new(&path, Kind::Picture).is_ok());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn what_may_not_be_replaced_is_told_before_any_work() {
    let folder = tempfile::tempdir().unwrap();
    let (path, frames) = (folder.path().join("a.png"), folder.path().join("frames"));
    fs::create_dir(&frames).unwrap();
    for file in [&path, &frames.join("frame-000002.png")] {
        fs::write(file, "").unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o400)).unwrap();
    }
    let error = Output::new(&path, Kind::Picture).unwrap_err();
    assert!(error.is_input() && error.to_string().contains("write-protected"), "{error}");
    let shape = Shape { samples: 1, frames: 2, width: 8, height: 8, channels: 3 };
    let output = Output::new(&frames, Kind::Clip).unwrap();
    assert!(output.check(&shape).unwrap_err().to_string().contains("write-protected"));
    output.check(&Shape { frames: 1, ..shape }).unwrap_err();
}

#[test]
fn quality_and_bits_are_for_the_formats_that_have_them() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |name: &str, options: Options| {
        Output::with(&folder.path().join(name), Kind::Clip, options).err().map(|error| error.to_string())
    };
    let quality = Options { quality: Some(50), ..Options::default() };
    let bits = Options { depth: Depth::Sixteen, ..Options::default() };
    assert!(refused("a.jpg", quality).is_none() && refused("a.png", bits).is_none() && refused("a", bits).is_none());
    for name in ["a.png", "a.webp", "a.gif", "a.safetensors", "a"] {
        assert!(refused(name, quality).unwrap().contains("quality is for .jpg"), "{name}");
    }
    for name in ["a.jpg", "a.webp", "a.gif", "a.safetensors"] {
        assert!(refused(name, bits).unwrap().contains("bits 16 is for .png"), "{name}");
    }
}

#[test]
fn texts_that_have_no_place_are_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let texts = vec![("workflow".to_owned(), "x".repeat(70_000)), ("prompt".to_owned(), "{}".to_owned())];
    let notes = |name: &str| Output::new(&folder.path().join(name), Kind::Clip).unwrap().notes(&texts).join("");
    assert!(notes("a.jpg").contains("a.jpg is written without workflow: a JPEG has room"), "{}", notes("a.jpg"));
    assert!(notes("a.gif").contains("without workflow, prompt: a GIF"), "{}", notes("a.gif"));
    assert_eq!(notes("a.png") + &notes("a.webp") + &notes("a.safetensors"), "");
}
