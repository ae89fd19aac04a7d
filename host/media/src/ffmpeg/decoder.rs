//! Frames out of a video file, by ffmpeg. The file may be hostile: ffmpeg opens only these
//! containers and no file that they refer to, and sizes are checked before memory is allocated.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{ErrorKind, Read},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::process::Resource;
use serde::Deserialize;
use serde_json::Value;

use super::{Process, find, is_of_cut, quiet};
use crate::{
    budget,
    error::{Error, Result},
    frame::{Frame, Pixels, Rate, Shape},
    picture::{self, TOO_SHORT, Texts},
};

/// Options that restrict ffmpeg: no playlists and nothing from the network.
const GUARD: [&str; 4] = ["-protocol_whitelist", "file,pipe", "-format_whitelist", "mov,matroska,avi"];

/// The name by which ffmpeg opens its standard input: the very file that was examined, wherever its
/// path leads by now.
const INPUT: &str = "file:/proc/self/fd/0";

/// Limits for ffprobe and ffmpeg: memory in bytes, of which a frame of the largest size takes a few
/// hundredths, and seconds of processor time, which have no bound if a whole video is read.
const PROBING: [(Resource, u64); 2] = [(Resource::As, 4 << 30), (Resource::Cpu, 20)];
const DECODING: [(Resource, u64); 1] = [(Resource::As, 16 << 30)];

/// The purpose of ffmpeg, in the message if it is missing.
const NEED: &str = "to read videos";

/// A running ffmpeg, a frame at a time.
pub(crate) struct Decoder {
    process: Process,
    path: PathBuf,
    /// The shape by the file's header; a damaged file may hold fewer frames.
    pub shape: Shape,
    pub rate: Rate,
    read: usize,
    ended: bool,
}

#[derive(Deserialize)]
struct Probe {
    streams: Vec<Stream>,
}

#[derive(Deserialize)]
struct Stream {
    width: u32,
    height: u32,
    #[serde(default)]
    avg_frame_rate: String,
    #[serde(default)]
    r_frame_rate: String,
    nb_read_packets: Option<String>,
    #[serde(default)]
    side_data_list: Vec<SideData>,
}

#[derive(Deserialize)]
struct SideData {
    rotation: Option<f64>,
}

impl Decoder {
    /// Looks into the file and starts decoding it. A file that lacks its end is refused.
    pub fn open(path: &Path) -> Result<Self> {
        let input = picture::open(path)?.into_inner();
        let again = |file: &File| file.try_clone().map_err(|error| Error::read(path, error));
        let (shape, rate) = probe(path, again(&input)?)?;
        let mut command = quiet(&find("ffmpeg", NEED)?);
        let most_pixels = budget::most_pixels(3 + budget::FRAME).to_string();
        command.arg("-nostdin").args(GUARD).args(["-max_pixels", &most_pixels, "-i", INPUT]).stdin(input);
        command.args(["-map", "0:v:0"]);
        // Each frame once, in the file's order and all of one size. The rate's own time base keeps
        // ffmpeg from dropping or doubling frames.
        let filter = format!(
            "scale={}:{}:flags=bicubic+accurate_rnd+full_chroma_int+full_chroma_inp,settb={},setpts=N",
            shape.width,
            shape.height,
            rate.interval()
        );
        command.args(["-vf", &filter, "-r", &rate.to_string()]);
        command.args(["-f", "rawvideo", "-pix_fmt", "rgb24", "pipe:1"]).stdout(Stdio::piped());
        let process = Process::spawn_limited(&mut command, path, &DECODING)?;
        Ok(Self { process, path: path.to_owned(), shape, rate, read: 0, ended: false })
    }

    /// The next frame; notes on faults that ffmpeg found are added at the end.
    pub fn next_frame(&mut self, notes: &mut Vec<String>) -> Result<Option<Frame>> {
        if self.ended {
            return Ok(None);
        }
        let Shape { width, height, .. } = self.shape;
        let mut values = vec![0; width as usize * height as usize * 3];
        let whole = match self.process.child.stdout.as_mut().map(|pipe| pipe.read_exact(&mut values)) {
            Some(Ok(())) => true,
            Some(Err(error)) if error.kind() != ErrorKind::UnexpectedEof => return Err(Error::read(&self.path, error)),
            _ => false,
        };
        if whole {
            self.read += 1;
            return Ok(Some(Pixels { width, height, channels: 3, values }.frame()));
        }
        self.ended = true;
        let failed = |reason| Error::Ffmpeg { path: self.path.clone(), reason, reading: true };
        let said = self.process.end().map_err(strip_name).map_err(failed)?.map(strip_name);
        let shown = self.path.display();
        match said {
            _ if self.read == 0 => return Err(failed(said.unwrap_or_else(|| "there are no frames".to_owned()))),
            Some(said) => notes.push(format!("{shown}: ffmpeg found it damaged: {said}")),
            None => {}
        }
        if self.read != self.shape.frames {
            notes.push(format!("{shown}: {} frames were read, {} expected", self.read, self.shape.frames));
        }
        Ok(None)
    }
}

/// A program's message without its name for the file.
fn strip_name(said: String) -> String {
    said.replace(&format!("{INPUT}: "), "").replace("/proc/self/fd/0: ", "")
}

/// The shape and rate by a video's header.
pub(crate) fn probe_file(path: &Path) -> Result<(Shape, Rate)> {
    probe(path, picture::open(path)?.into_inner())
}

/// The tags of a video; a workflow may have megabytes.
pub(crate) fn tags(path: &Path) -> Result<Texts> {
    let mut command = quiet(&find("ffprobe", NEED)?);
    command.args(GUARD).args(["-of", "json", "-show_entries", "format_tags", INPUT]);
    let (text, _) = read_output(path, picture::open(path)?.into_inner(), &mut command, 32 << 20)?;
    let unread = |_| Error::input(path, "has no tags that can be read");
    let mut found: Value = serde_json::from_slice(&text).map_err(unread)?;
    let tags = found.pointer_mut("/format/tags").map(Value::take).unwrap_or_default();
    let tags: Option<BTreeMap<String, String>> = serde_json::from_value(tags).map_err(unread)?;
    // Matroska does not keep the case of a keyword.
    Ok(tags.unwrap_or_default().into_iter().map(|(keyword, text)| (keyword.to_lowercase(), text)).collect())
}

/// The output of ffprobe for an open file, cut off after `most` bytes, and its last message.
fn read_output(path: &Path, input: File, command: &mut Command, most: u64) -> Result<(Vec<u8>, Option<String>)> {
    let mut process = Process::spawn_limited(command.stdin(input).stdout(Stdio::piped()), path, &PROBING)?;
    let mut text = Vec::new();
    if let Some(pipe) = process.child.stdout.take() {
        pipe.take(most).read_to_end(&mut text).map_err(|error| Error::read(path, error))?;
    }
    let failed = |reason: String| match is_of_cut(&reason) {
        true => Error::read(path, TOO_SHORT),
        false => Error::Ffmpeg { path: path.to_owned(), reason: strip_name(reason), reading: true },
    };
    let said = process.end().map_err(failed)?;
    Ok((text, said))
}

/// Refuses an AVI that is shorter than it says itself: ffmpeg would read the part that exists.
fn check_riff(path: &Path, input: &File) -> Result<()> {
    let mut start = [0; 8];
    let length = input.metadata().map_err(|error| Error::read(path, error))?.len();
    let is_cut = input.read_exact_at(&mut start, 0).is_ok() && picture::riff_is_cut(&start, length);
    if is_cut { Err(Error::read(path, TOO_SHORT)) } else { Ok(()) }
}

fn probe(path: &Path, input: File) -> Result<(Shape, Rate)> {
    check_riff(path, &input)?;
    let mut command = quiet(&find("ffprobe", NEED)?);
    command.args(GUARD).args(["-select_streams", "v:0", "-count_packets", "-of", "json", "-show_entries"]);
    command.arg("stream=width,height,avg_frame_rate,r_frame_rate,nb_read_packets:stream_side_data=rotation");
    command.arg(INPUT);
    let (text, said) = read_output(path, input, &mut command, 1 << 20)?;
    if said.is_some_and(|said| is_of_cut(&said)) {
        return Err(Error::read(path, TOO_SHORT));
    }
    let found: Probe = serde_json::from_slice(&text).map_err(|_| Error::input(path, "holds no video"))?;
    let stream = found.streams.into_iter().next().ok_or_else(|| Error::input(path, "holds no video"))?;
    let (mut width, mut height) = (stream.width, stream.height);
    // ffmpeg turns it upright.
    let turned = stream.side_data_list.iter().find_map(|data| data.rotation).unwrap_or(0.0);
    if (turned.round() as i64).rem_euclid(180) == 90 {
        (width, height) = (height, width);
    }
    budget::check(path, width, height, 3 + budget::FRAME)?;
    let rates = [&stream.avg_frame_rate, &stream.r_frame_rate];
    let rate = rates.iter().find_map(|text| text.parse().ok());
    let rate = rate.ok_or_else(|| Error::input(path, "says no frame rate"))?;
    let frames = stream.nb_read_packets.and_then(|count| count.parse().ok()).filter(|&count: &usize| count > 0);
    let frames = frames.ok_or_else(|| Error::input(path, "holds no frames"))?;
    Ok((Shape { samples: 1, frames, width, height, channels: 3 }, rate))
}
