use std::{path::PathBuf, process::Command};

use image::{AnimationDecoder, codecs::webp::WebPDecoder};

use super::*;
use crate::{format::Kind, journal::Journal, picture::read_picture, reader::ClipReader, samples};

const SHAPE: Shape = Shape { samples: 1, frames: 5, width: 18, height: 10, channels: 3 };

fn rate() -> Rate {
    "16".parse().unwrap()
}

fn frames(shape: &Shape, sample: usize) -> Vec<Frame> {
    let number = |index| sample * 7 + index;
    (0..shape.frames).map(|index| samples::frame(shape.width, shape.height, shape.channels, number(index))).collect()
}

fn write(path: &Path, shape: Shape, texts: &Texts) -> (Vec<PathBuf>, Vec<String>) {
    let output = Output::new(path, Kind::Clip).unwrap();
    let mut writer = ClipWriter::begin(&output, shape, rate(), texts).unwrap();
    let samples: Vec<_> = (0..shape.samples).map(|sample| frames(&shape, sample)).collect();
    for index in 0..shape.frames {
        for (sample, frames) in samples.iter().enumerate() {
            writer.frame(sample, index, &frames[index]).unwrap();
        }
    }
    assert!(samples::is_empty(folder_of(path)) || format_of(path) != Format::Safetensors || !path.exists());
    let notes = writer.notes().to_vec();
    (writer.finish().unwrap(), notes)
}

fn format_of(path: &Path) -> Format {
    Output::new(path, Kind::Clip).unwrap().format
}

fn read(path: &Path) -> (Vec<Frame>, ClipReader) {
    let mut reader = ClipReader::open(path).unwrap();
    let frames = std::iter::from_fn(|| reader.next_frame().unwrap()).collect();
    (frames, reader)
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// The largest mean difference of a frame, in 8-bit steps.
fn difference(a: &[Frame], b: &[Frame]) -> f32 {
    assert_eq!(a.len(), b.len());
    let mean = |(a, b): (&Frame, &Frame)| {
        assert_eq!((a.width, a.height), (b.width, b.height));
        let sum: f32 = a.values.iter().zip(&b.values).map(|(a, b)| (a - b).abs() * 127.5).sum();
        sum / a.values.len() as f32
    };
    a.iter().zip(b).map(mean).fold(0.0, f32::max)
}

#[test]
fn lossless_formats_give_back_every_frame() {
    let folder = tempfile::tempdir().unwrap();
    for (name, shape) in [
        ("a.webp", SHAPE),
        ("frames/", SHAPE),
        ("a.safetensors", Shape { channels: 4, ..SHAPE }),
        ("b.webp", Shape { width: 7, height: 5, ..SHAPE }),
    ] {
        let path = folder.path().join(name);
        let (written, notes) = write(&path, shape, &Vec::new());
        assert_eq!((written.as_slice(), notes.len()), ([path.clone()].as_slice(), 0));
        let (read, reader) = read(&path);
        assert_eq!(reader.shape(), shape, "{name}");
        assert_eq!(read, frames(&shape, 0), "{name}");
    }
    assert_eq!(names(folder.path()), ["a.safetensors", "a.webp", "b.webp", "frames"]);
    let frames: Vec<_> = (1..=5).map(|number| format!("frame-{number:06}.png")).collect();
    assert_eq!(names(&folder.path().join("frames")), frames);
}

#[test]
fn raw_values_are_kept_whatever_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let shape = Shape { samples: 2, frames: 3, width: 2, height: 1, channels: 3 };
    let output = Output::new(&path, Kind::Clip).unwrap();
    let mut writer = ClipWriter::begin(&output, shape, rate(), &Vec::new()).unwrap();
    let value = |sample, index, at| (sample * 100 + index * 10 + at) as f32 * 1.1 - 7.0;
    for sample in 0..2 {
        for index in 0..3 {
            let values = (0..6).map(|at| value(sample, index, at)).collect();
            writer.frame(sample, index, &Frame { width: 2, height: 1, channels: 3, values }).unwrap();
        }
    }
    writer.finish().unwrap();
    let bytes = fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor("sample").unwrap();
    assert_eq!(tensor.shape(), [2, 3, 3, 1, 2], "[N, C, T, H, W]");
    let flat: Vec<_> = tensor.data().as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect();
    // Sample 1, channel 2, frame 0.
    assert_eq!(flat[18 + 12..][..2], [value(1, 0, 4), value(1, 0, 5)]);
    assert_eq!(read(&path).0[5].values, (0..6).map(|at| value(1, 2, at)).collect::<Vec<_>>());
}

#[test]
fn gif_keeps_few_colours_exactly_and_many_nearly() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gif");
    // 180 pixels have at most 180 colours; 3,600 have more than 256.
    for (shape, most) in [(SHAPE, 0.0), (Shape { width: 60, height: 60, ..SHAPE }, 6.0)] {
        write(&path, shape, &Vec::new());
        let (read, reader) = read(&path);
        let difference = difference(&read, &frames(&shape, 0));
        assert!(difference <= most, "{difference}");
        assert_eq!(reader.rate(), Some(rate()));
    }
}

#[test]
fn animations_keep_their_time() {
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape { frames: 24, width: 4, height: 4, ..SHAPE };
    for (name, rate) in [("a.gif", "23.976"), ("a.webp", "23.976"), ("a.gif", "60")] {
        let output = Output::new(&folder.path().join(name), Kind::Clip).unwrap();
        let mut writer = ClipWriter::begin(&output, shape, rate.parse().unwrap(), &Vec::new()).unwrap();
        assert_eq!(writer.notes().len(), usize::from(rate == "60"));
        for (index, frame) in frames(&shape, 0).iter().enumerate() {
            writer.frame(0, index, frame).unwrap();
        }
        let path = writer.finish().unwrap().remove(0);
        let expected = if rate == "60" { 50.0 } else { 23.976 };
        let found = ClipReader::open(&path).unwrap().rate().unwrap().per_second();
        assert!((found - expected).abs() < 0.03, "{name}: {found}");
    }
    let file = std::io::BufReader::new(File::open(folder.path().join("a.webp")).unwrap());
    let frames = WebPDecoder::new(file).unwrap().into_frames().collect_frames().unwrap();
    let delays: Vec<_> = frames.iter().map(|frame| frame.delay().numer_denom_ms().0).collect();
    assert_eq!((delays[..3].to_vec(), delays.iter().sum::<u32>()), (vec![42, 41, 42], 1001));
}

#[test]
fn transparency_survives_where_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape { channels: 4, ..SHAPE };
    let path = folder.path().join("a.webp");
    write(&path, shape, &Vec::new());
    let file = std::io::BufReader::new(File::open(&path).unwrap());
    let read = WebPDecoder::new(file).unwrap().into_frames().collect_frames().unwrap();
    for (read, frame) in read.iter().zip(frames(&shape, 0)) {
        assert_eq!(read.buffer().as_raw(), &Pixels::from(&frame).values);
    }
}

#[test]
fn one_frame_becomes_a_picture() {
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape { frames: 1, samples: 2, ..SHAPE };
    for ending in ["png", "webp", "jpg", "gif"] {
        let (written, _) = write(&folder.path().join(format!("a.{ending}")), shape, &Vec::new());
        let expected = [1, 2].map(|number| folder.path().join(format!("a-0{number}.{ending}")));
        assert_eq!(written, expected);
        let read: Vec<_> = written.iter().map(|path| read_picture(path).unwrap().0).collect();
        let frames = [frames(&shape, 0), frames(&shape, 1)].concat();
        assert!(difference(&read, &frames) <= if ending == "jpg" { 8.0 } else { 0.0 }, "{ending}");
    }
}

#[test]
fn texts_are_in_the_first_frame_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("frames");
    write(&path, SHAPE, &vec![("tilewright".into(), "a record".into())]);
    for index in 0..2 {
        let file = std::io::BufReader::new(File::open(path.join(frame_name(index))).unwrap());
        let reader = png::Decoder::new(file).read_info().unwrap();
        let texts: Vec<_> = reader.info().uncompressed_latin1_text.iter().map(|text| text.text.as_str()).collect();
        assert_eq!(texts, ["a record"][..1 - index]);
    }
}

#[test]
fn a_folder_that_is_there_is_filled_and_nothing_else_in_it_is_touched() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("notes.txt"), "").unwrap();
    fs::write(folder.path().join("frame-000002.png"), "of an earlier decode").unwrap();
    write(folder.path(), Shape { frames: 2, ..SHAPE }, &Vec::new());
    assert_eq!(names(folder.path()), ["frame-000001.png", "frame-000002.png", "notes.txt"]);
    assert!(read_picture(&folder.path().join("frame-000002.png")).is_ok());
}

#[test]
fn a_writer_that_is_dropped_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let videos: &[&str] = if samples::ffmpeg() { &["a.mp4", "a.webm"] } else { &[] };
    for name in ["a.gif", "a.webp", "a", "a.safetensors"].iter().chain(videos) {
        let path = folder.path().join(name);
        fs::write(folder.path().join("earlier"), "").unwrap();
        let output = Output::new(&path, Kind::Clip).unwrap();
        let mut writer = ClipWriter::begin(&output, SHAPE, rate(), &vec![("comment".into(), "x".into())]).unwrap();
        for (index, frame) in frames(&SHAPE, 0).iter().enumerate().take(3) {
            writer.frame(0, index, frame).unwrap();
        }
        assert!(!path.exists() && names(folder.path()).len() > 1, "{name} is under way");
        drop(writer);
        assert_eq!(names(folder.path()), ["earlier"], "{name}");
    }
}

#[test]
fn frames_that_do_not_fit_or_are_missing_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let output = Output::new(&folder.path().join("a.gif"), Kind::Clip).unwrap();
    let begin = || ClipWriter::begin(&output, SHAPE, rate(), &Vec::new()).unwrap();
    let good = samples::frame(18, 10, 3, 0);
    let short = Frame { values: vec![0.0; 3], ..good.clone() };
    let cases = [
        (0, 1, &good, "frame 0 is due"),
        (1, 0, &good, "1 samples of 5 frames"),
        (0, 5, &good, "1 samples of 5 frames"),
        (0, 0, &samples::frame(18, 11, 3, 0), "3×11×18 with 594 values, 3×10×18 expected"),
        (0, 0, &short, "with 3 values"),
    ];
    for (sample, index, frame, reason) in cases {
        let error = begin().frame(sample, index, frame).unwrap_err();
        assert!(error.to_string().contains(reason) && !error.is_input(), "{error}");
    }
    let mut writer = begin();
    writer.frame(0, 0, &good).unwrap();
    assert!(writer.finish().unwrap_err().to_string().ends_with("frame 1 of sample 0: it never came"));
    assert!(samples::is_empty(folder.path()));
}

fn probe(path: &Path, entries: &str) -> String {
    let mut command = Command::new("ffprobe");
    command.args(["-v", "error", "-count_frames", "-of", "csv=p=0", "-show_entries", entries]).arg(path);
    String::from_utf8(command.output().unwrap().stdout).unwrap().trim().to_owned()
}

#[test]
fn videos_have_the_frames_the_size_and_the_rate() {
    if !samples::ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.mp4", "a.mkv", "a.webm"] {
        for (width, height) in [(64, 48), (63, 47)] {
            let shape = Shape { width, height, frames: 9, ..SHAPE };
            let path = folder.path().join(name);
            let (written, notes) = write(&path, shape, &Vec::new());
            let grown = name != "a.webm" && width % 2 == 1;
            let (w, h) = if grown { (64, 48) } else { (width, height) };
            assert_eq!((written.as_slice(), notes.len()), ([path.clone()].as_slice(), usize::from(grown)), "{notes:?}");
            let facts = "stream=width,height,pix_fmt,color_range,color_space,r_frame_rate,nb_read_frames";
            assert_eq!(probe(&path, facts), format!("{w},{h},yuv420p,tv,bt709,16/1,9"), "{name}");
            let (read, reader) = read(&path);
            assert_eq!((reader.rate(), reader.notes().len()), (Some(rate()), 0));
            let even = |frame| Pixels::from(&frame).even().frame();
            let expected: Vec<_> =
                frames(&shape, 0).into_iter().map(|frame| if grown { even(frame) } else { frame }).collect();
            let difference = difference(&read, &expected);
            assert!(difference < 3.0, "{name}: {difference}");
        }
    }
}

#[test]
fn the_same_frames_give_the_same_video() {
    if !samples::ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for ending in ["mp4", "mkv", "webm"] {
        let twice = ["a", "b"].map(|name| folder.path().join(format!("{name}.{ending}")));
        let [first, second] = twice.map(|path| {
            write(&path, SHAPE, &vec![("comment".into(), "x".into())]);
            fs::read(path).unwrap()
        });
        assert!(first == second, "{ending}");
    }
}

#[test]
fn tags_hold_whole_workflows() {
    if !samples::ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let long = format!("{{\"a;b=c#d\\e\": \"日本\"}}\n{}", "x".repeat(300_000));
    for (name, keyword) in [("a.mp4", "comment"), ("b.mp4", "workflow"), ("a.mkv", "workflow"), ("a.webm", "comment")] {
        let path = folder.path().join(name);
        write(&path, SHAPE, &vec![(keyword.into(), long.clone())]);
        let mut command = Command::new("ffprobe");
        let output = command.args(["-v", "error", "-of", "json", "-show_entries", "format_tags"]).arg(&path).output();
        let tags: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        let tags = tags["format"]["tags"].as_object().unwrap();
        let tag =
            tags.iter().find(|(name, _)| name.eq_ignore_ascii_case(keyword)).map(|(_, text)| text.as_str().unwrap());
        assert!(tag == Some(&long), "{name}: {:?}", tags.keys());
    }
    assert_eq!(names(folder.path()), ["a.mkv", "a.mp4", "a.webm", "b.mp4"]);
}

#[test]
fn an_ffmpeg_that_dies_is_an_error_and_leaves_nothing() {
    if !samples::ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Output::new(&folder.path().join("a.mp4"), Kind::Clip).unwrap();
    let shape = Shape { frames: 1000, width: 256, height: 256, ..SHAPE };
    let mut writer = ClipWriter::begin(&output, shape, rate(), &Vec::new()).unwrap();
    let frame = samples::frame(256, 256, 3, 0);
    writer.frame(0, 0, &frame).unwrap();
    let Form::Tracks(tracks) = &mut writer.form else { panic!("a video has tracks") };
    let Some(Track::Video { encoder, .. }) = &mut tracks[0] else { panic!("ffmpeg runs") };
    encoder.kill();
    let error = (1..1000).find_map(|index| writer.frame(0, index, &frame).err()).unwrap();
    assert!(
        error.to_string().ends_with("a.mp4: ffmpeg failed: it was ended by signal 9") && !error.is_input(),
        "{error}"
    );
    drop(writer);
    assert!(samples::is_empty(folder.path()));
}

#[test]
fn what_ffmpeg_says_is_in_the_error() {
    if !samples::ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Output::new(&folder.path().join("a.webm"), Kind::Clip).unwrap();
    // VP9 ends at 65,535 pixels.
    let shape = Shape { frames: 1, width: 70_000, height: 2, ..SHAPE };
    let mut writer = ClipWriter::begin(&output, shape, rate(), &Vec::new()).unwrap();
    let error = writer.frame(0, 0, &samples::frame(70_000, 2, 3, 0)).unwrap_err().to_string();
    assert!(error.contains("ffmpeg failed: ") && !error.contains("ended"), "{error}");
}

#[test]
fn names_that_look_like_something_else_are_files() {
    if !samples::ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["-y.mp4", "http:%03d 'x'.webm", "日本\n.mkv"] {
        let path = folder.path().join(name);
        write(&path, SHAPE, &vec![("comment".into(), "x".into())]);
        assert_eq!(read(&path).0.len(), 5, "{name}");
    }
}

#[test]
fn an_interrupted_clip_goes_on_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape { samples: 2, ..SHAPE };
    let videos: &[&str] = if samples::ffmpeg() { &["mp4", "webm"] } else { &[] };
    for ending in ["gif", "webp", "safetensors"].iter().chain(videos) {
        let whole = write(&folder.path().join(format!("whole.{ending}")), shape, &Vec::new()).0;
        let output = Output::new(&folder.path().join(format!("resumed.{ending}")), Kind::Clip).unwrap();
        let frames = [frames(&shape, 0), frames(&shape, 1)];

        let (mut journal, _) = Journal::open(&output, "job", shape).unwrap();
        for (sample, index) in [(0, 0), (0, 1), (1, 0), (0, 2)] {
            journal.append(sample, index, &frames[sample][index]).unwrap();
        }
        journal.commit().unwrap();
        journal.append(1, 1, &frames[1][0]).unwrap();
        drop(journal);

        let (journal, done) = Journal::open(&output, "job", shape).unwrap();
        assert_eq!(done, [3, 1]);
        let mut writer = ClipWriter::begin(&output, shape, rate(), &Vec::new()).unwrap();
        for (sample, &done) in done.iter().enumerate() {
            (0..done).for_each(|at| writer.frame(sample, at, &journal.frame(sample, at).unwrap()).unwrap());
        }
        for (sample, frames) in frames.iter().enumerate() {
            for (index, frame) in frames.iter().enumerate().skip(done[sample]) {
                writer.frame(sample, index, frame).unwrap();
            }
        }
        let resumed = writer.finish().unwrap();
        journal.remove().unwrap();
        for (whole, resumed) in whole.iter().zip(&resumed) {
            assert!(fs::read(whole).unwrap() == fs::read(resumed).unwrap(), "{ending}");
        }
    }
    assert!(names(folder.path()).iter().all(|name| !name.contains("partial")));
}
