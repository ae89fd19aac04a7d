use std::process::Command;

use super::*;
use crate::{frame::Pixels, samples};

/// A video that ffmpeg makes.
fn make(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let path = folder.join(name);
    let source = ["-f", "lavfi", "-i", "testsrc=size=64x48:rate=30000/1001:duration=0.5"];
    let mut command = Command::new("ffmpeg");
    let status = command.args(["-v", "error", "-y"]).args(source).args(options).arg(&path).status().unwrap();
    assert!(status.success());
    path
}

fn count(reader: &mut ClipReader) -> usize {
    std::iter::from_fn(|| reader.next_frame().unwrap()).count()
}

#[test]
fn videos_of_other_programs_are_read() {
    if !samples::ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let audio = &["-f", "lavfi", "-i", "sine=duration=0.5", "-c:v", "libx264"][..];
    for (name, options) in [("a.mov", audio), ("a.avi", &[]), ("a.webm", &[]), ("a.mkv", &["-bf", "2"])] {
        let path = make(folder.path(), name, options);
        let mut reader = ClipReader::open(&path).unwrap();
        let expected = Shape { samples: 1, frames: 15, width: 64, height: 48, channels: 3 };
        assert_eq!(reader.shape(), expected, "{name}");
        let rate = reader.rate().unwrap().per_second();
        assert!((rate - 29.97).abs() < 0.1, "{name}: {rate}");
        assert_eq!(count(&mut reader), 15, "{name}");
        assert_eq!(reader.notes(), [""; 0]);
    }
}

#[test]
fn each_frame_is_read_once_whatever_its_time() {
    if !samples::ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Every frame lasts longer than the one before.
    let uneven = ["-vf", "setpts=N*N*0.01/TB", "-vsync", "vfr", "-c:v", "libx264"];
    let path = make(folder.path(), "a.mkv", &uneven);
    let mut reader = ClipReader::open(&path).unwrap();
    assert_eq!((reader.shape().frames, count(&mut reader)), (15, 15));
}

#[test]
fn turned_videos_are_read_upright() {
    if !samples::ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = make(folder.path(), "a.mp4", &[]);
    let turned = folder.path().join("turned.mp4");
    let mut command = Command::new("ffmpeg");
    command.args(["-v", "error", "-i"]).arg(&path).args(["-c", "copy", "-metadata:s:v:0", "rotate=90"]).arg(&turned);
    assert!(command.status().unwrap().success());
    let mut reader = ClipReader::open(&turned).unwrap();
    // ffmpeg 6 and later write no such tag; then there is nothing to turn.
    let found = Command::new("ffprobe").args(["-v", "error", "-show_streams"]).arg(&turned).output().unwrap();
    let size = if String::from_utf8_lossy(&found.stdout).contains("rotation=") { (48, 64) } else { (64, 48) };
    assert_eq!((reader.shape().width, reader.shape().height), size);
    assert_eq!(count(&mut reader), 15);
}

#[test]
fn damaged_and_hostile_videos_give_errors_or_notes() {
    if !samples::ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read(make(folder.path(), "whole.mkv", &["-c:v", "libx264", "-g", "1"])).unwrap();
    let secret = folder.path().join("secret.png");
    image::RgbImage::new(8, 8).save(&secret).unwrap();
    let playlist = format!("#EXTM3U\n#EXTINF:1,\nfile://{}\n#EXT-X-ENDLIST\n", secret.display());
    let script = format!("ffconcat version 1.0\nfile '{}'\n", secret.display());
    let picture = fs::read(&secret).unwrap();
    let path = folder.path().join("a.mp4");
    for bytes in [b"", b"not a video".as_slice(), playlist.as_bytes(), script.as_bytes(), &picture, &whole[..100]] {
        fs::write(&path, bytes).unwrap();
        let error = ClipReader::open(&path).err().expect("no video").to_string();
        assert!(error.starts_with(&path.display().to_string()) && !error.contains('\n'), "{error}");
    }
    assert!(ClipReader::open(&folder.path().join("missing.mp4")).err().unwrap().is_input());
    // One with a hole gives what can be read.
    let mut holed = whole.clone();
    let middle = holed.len() / 2;
    holed[middle..middle + 500].fill(0xaa);
    fs::write(&path, &holed).unwrap();
    let mut reader = ClipReader::open(&path).unwrap();
    let frames = count(&mut reader);
    assert!(frames > 0 && (frames < 15 || !reader.notes().is_empty()), "{frames}");
}

#[test]
fn videos_that_lack_their_end_are_refused() {
    if !samples::ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let many: [(&str, &[&str]); 5] = [
        ("a.mkv", &["-c:v", "libx264"]),
        ("a.webm", &["-c:v", "libvpx-vp9"]),
        ("a.avi", &["-c:v", "mjpeg"]),
        ("a.mp4", &["-c:v", "libx264"]),
        ("fast.mp4", &["-c:v", "libx264", "-movflags", "+faststart"]),
    ];
    for (name, options) in many {
        let path = make(folder.path(), name, options);
        let whole = fs::read(&path).unwrap();
        assert_eq!(count(&mut ClipReader::open(&path).unwrap()), 15, "{name}");
        for percent in [30, 60, 90, 97] {
            fs::write(&path, &whole[..whole.len() * percent / 100]).unwrap();
            match ClipReader::open(&path) {
                // No frame is missing, but something behind them.
                Ok(mut reader) => assert!(count(&mut reader) == 15 && reader.notes().is_empty(), "{name}, {percent} %"),
                Err(error) => {
                    let reason = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                    assert!(reason.starts_with("it ends too early"), "{name}, {percent} %: {error}: {reason}");
                }
            }
        }
    }
}

#[test]
fn a_reader_that_is_dropped_ends_ffmpeg() {
    if !samples::ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = make(folder.path(), "a.mp4", &["-vf", "scale=640:480"]);
    let mut reader = ClipReader::open(&path).unwrap();
    assert!(reader.next_frame().unwrap().is_some());
    // The output of ffmpeg is not read to the end: without being ended it would wait for ever, and
    // so would this.
    drop(reader);
}

#[test]
fn folders_are_read_in_the_order_of_names() {
    let folder = tempfile::tempdir().unwrap();
    for (name, number) in [("b.png", 1), ("a.webp", 0), ("c.PNG", 2)] {
        let Pixels { width, height, values, .. } = Pixels::from(&samples::frame(6, 4, 3, number));
        let picture = image::RgbImage::from_raw(width, height, values).unwrap();
        picture.save(folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("notes.txt"), "").unwrap();
    fs::write(folder.path().join(".hidden.png"), "").unwrap();
    let mut reader = ClipReader::open(folder.path()).unwrap();
    assert_eq!(reader.shape(), Shape { samples: 1, frames: 3, width: 6, height: 4, channels: 3 });
    for number in 0..3 {
        assert_eq!(reader.next_frame().unwrap(), Some(samples::frame(6, 4, 3, number)));
    }
    assert_eq!(reader.next_frame().unwrap(), None);

    image::RgbImage::new(5, 4).save(folder.path().join("d.png")).unwrap();
    let mut reader = ClipReader::open(folder.path()).unwrap();
    let error = (0..4).find_map(|_| reader.next_frame().err()).unwrap().to_string();
    assert!(error.contains("d.png") && error.ends_with("this is 5×4, but the first is 6×4"), "{error}");
}

#[test]
fn what_is_no_clip_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let reason = |path: &Path| ClipReader::open(path).err().unwrap().to_string();
    assert!(reason(folder.path()).contains("holds no pictures"));
    let text = folder.path().join("a.txt");
    assert!(reason(&text).ends_with("can't be read"));
    fs::write(&text, "").unwrap();
    assert!(reason(&text).contains("unknown input ending"));
    // A GIF that ends within its first frame.
    let gif = folder.path().join("a.gif");
    image::RgbImage::new(60, 60).save(&gif).unwrap();
    let bytes = fs::read(&gif).unwrap();
    fs::write(&gif, &bytes[..bytes.len() / 2]).unwrap();
    assert!(reason(&gif).contains("a.gif"));
}
