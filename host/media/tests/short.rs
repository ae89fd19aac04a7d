//! Pictures and clips that were cut short: each is refused, or is what the whole file is.

use std::{fs, path::PathBuf};

use tilewright_fixtures::fixture;
use tilewright_media::{ClipReader, Error, read_picture};

fn whole(name: &str) -> Vec<u8> {
    fs::read(fixture("cut").join(name)).unwrap()
}

fn names(ending: &str) -> Vec<String> {
    let names = fs::read_dir(fixture("cut")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(ending)).collect()
}

/// An error with its cause, as the program prints it.
fn line(error: &Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}

/// A file that is written again and again.
struct Place {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Place {
    fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        Self { _folder: folder, path }
    }

    fn picture(&self, bytes: &[u8]) -> Result<Vec<f32>, String> {
        fs::write(&self.path, bytes).unwrap();
        read_picture(&self.path).map(|(frame, _)| frame.values).map_err(|error| line(&error))
    }

    /// All frames of a clip; it may be opened and fail later.
    fn frames(&self, bytes: &[u8]) -> Result<Vec<Vec<f32>>, String> {
        fs::write(&self.path, bytes).unwrap();
        let mut frames = Vec::new();
        let mut reader = ClipReader::open(&self.path).map_err(|error| line(&error))?;
        while let Some(frame) = reader.next_frame().map_err(|error| line(&error))? {
            frames.push(frame.values);
        }
        Ok(frames)
    }
}

#[test]
fn a_picture_that_is_cut_anywhere_is_refused_or_whole() {
    for name in [names(".png"), names(".gif"), names(".webp")].concat() {
        let (place, bytes) = (Place::new(&name), whole(&name));
        let whole = place.picture(&bytes).unwrap();
        let mut refused = 0;
        for length in 0..bytes.len() {
            match place.picture(&bytes[..length]) {
                Ok(found) => assert!(found == whole, "{name}: {length} of {} bytes make another picture", bytes.len()),
                Err(line) => {
                    assert!(line.starts_with(&place.path.display().to_string()) && !line.contains('\n'), "{line}");
                    refused += 1;
                }
            }
        }
        // The first frame of an animation is the picture.
        assert!(refused > bytes.len() / 4, "{name}: {refused} of {} are refused", bytes.len());
    }
}

#[test]
fn an_animation_that_is_cut_anywhere_is_refused_or_whole() {
    for name in ["moving.gif", "moving.webp"] {
        let (place, bytes) = (Place::new(name), whole(name));
        let whole = place.frames(&bytes).unwrap();
        assert_eq!(whole.len(), 3);
        for length in 0..bytes.len() {
            if let Ok(found) = place.frames(&bytes[..length]) {
                assert!(found == whole, "{name}: {length} of {} bytes make {} frames", bytes.len(), found.len());
                // A missing end marker, and no more.
                assert!(length + 2 > bytes.len(), "{name}: {length} of {}", bytes.len());
            }
        }
    }
}

#[test]
fn a_webp_whose_rest_is_zero_is_refused() {
    for name in names(".webp") {
        let (place, mut bytes) = (Place::new(&name), whole(&name));
        let half = bytes.len() / 2;
        bytes[half..].fill(0);
        assert!(place.picture(&bytes).is_err_and(|line| line.contains("zeros: the download broke off")), "{name}");
    }
}

#[test]
fn a_jpeg_needs_all_of_its_data_and_nothing_else() {
    for name in names(".jpg") {
        let (place, bytes) = (Place::new(&name), whole(&name));
        let whole = place.picture(&bytes).unwrap();
        let data = bytes.len() - 2;
        // Each length near the end, and many of the others.
        for length in (3..data - 30).step_by(5).chain(data - 30..bytes.len()) {
            let found = place.picture(&bytes[..length]);
            if length >= data {
                assert!(found.unwrap() == whole, "{name}: {length} of {} bytes make another picture", bytes.len());
            } else {
                let line = found.expect_err(&name);
                assert!(line.ends_with(": it ends too early: copy or download it again"), "{name}, {length}: {line}");
                // An end marker behind the rest mends nothing, unless scans of a progressive one
                // are whole: such a picture may be meant.
                if !name.contains("progressive") {
                    assert!(place.picture(&[&bytes[..length], &[0xff, 0xd9]].concat()).is_err(), "{name}: {length}");
                }
            }
        }
        // A full length with zeros for the rest, and a trailer behind a half: what is missing is
        // read from them.
        if !name.contains("progressive") {
            let half = &bytes[..bytes.len() / 2];
            let zeros = vec![0; bytes.len() - half.len()];
            for behind in [&zeros[..], b"\0\0\0\x18ftypmp42\0\0\0\0", &[0x11; 20_000]] {
                assert!(place.picture(&[half, behind].concat()).is_err(), "{name}: {} bytes behind half", behind.len());
            }
        }
        // As phones do it: a second picture or a video behind the first.
        for behind in [&bytes[..], b"\0\0\0\x18ftypmp42\0\0\0\0", &[0; 5000], &[0xff; 9]] {
            assert!(place.picture(&[&bytes, behind].concat()).unwrap() == whole, "{name}");
        }
    }
}

#[test]
fn an_animation_with_zeros_in_it_is_no_shorter_clip() {
    for name in ["moving.webp"] {
        let (place, bytes) = (Place::new(name), whole(name));
        let count = place.frames(&bytes).unwrap().len();
        for from in [bytes.len() * 2 / 5, bytes.len() * 3 / 5] {
            for to in [bytes.len(), bytes.len() * 4 / 5] {
                let mut holed = bytes.clone();
                holed[from..to].fill(0);
                if let Ok(frames) = place.frames(&holed) {
                    assert_eq!(frames.len(), count, "{name}: {from} to {to}");
                }
            }
        }
    }
}

#[test]
fn an_animated_png_is_not_taken_for_its_first_frame() {
    let name = names(".png").remove(0);
    let (place, bytes) = (Place::new("a.png"), whole(&name));
    let with = |frames: u32| {
        let chunk = [&b"acTL"[..], &frames.to_be_bytes(), &[0; 4]].concat();
        let sum = crc32(&chunk).to_be_bytes();
        let whole = [&8_u32.to_be_bytes()[..], &chunk, &sum].concat();
        [&bytes[..33], &whole, &bytes[33..]].concat()
    };
    assert!(place.picture(&with(1)).is_ok(), "a still picture may say that it has one frame");
    let line = place.picture(&with(9)).unwrap_err();
    assert!(line.contains("an animated PNG, of which the frames are not read: convert it"), "{line}");
}

/// The checksum of a PNG's chunk (ISO 3309).
fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 })
    };
    !bytes.iter().fold(u32::MAX, step)
}

#[test]
fn data_that_are_no_codes_are_said() {
    let (place, mut bytes) = (Place::new("a.jpg"), whole("baseline-444.jpg"));
    let scan = bytes.windows(2).position(|pair| pair == [0xff, 0xda]).unwrap() + 14;
    // Ones alone are a prefix of no code.
    for place in (scan + 20..scan + 60).step_by(2) {
        bytes[place] = 0xff;
        bytes[place + 1] = 0;
    }
    let line = place.picture(&bytes).unwrap_err();
    assert!(line.ends_with("its data are damaged: copy or download it again"), "{line}");
    // A second size behind the one that was checked, and scans without end.
    let bytes = whole("progressive-444.jpg");
    let segment = |marker: u8| {
        let start = bytes.windows(2).position(|pair| pair == [0xff, marker]).unwrap();
        let length = usize::from(u16::from_be_bytes([bytes[start + 2], bytes[start + 3]]));
        (start, bytes[start..start + 2 + length].to_vec())
    };
    let (_, mut frame) = segment(0xc2);
    frame[5..9].fill(0xff);
    let scans: Vec<usize> =
        bytes.windows(2).enumerate().filter(|(_, pair)| *pair == [0xff, 0xda]).map(|(at, _)| at).collect();
    let [first, second] = [scans[0], scans[1]];
    let two_sizes = [&bytes[..second], &frame, &bytes[second..]].concat();
    let many_scans = [&bytes[..second], &bytes[first..second].repeat(600), &bytes[second..]].concat();
    for bytes in [two_sizes, many_scans] {
        let line = place.picture(&bytes).unwrap_err();
        assert!(line.ends_with("its data are damaged: copy or download it again"), "{line}");
    }
}
