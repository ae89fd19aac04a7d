//! Frames out of a video file, by ffmpeg. The file may be hostile: only the containers named here are opened, nothing that
//! refers to other files, and sizes are checked before memory is taken.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
    process::Stdio,
};

use serde::Deserialize;

use super::{Process, file, find, quiet};
use crate::{
    error::{Error, Result},
    frame::{Frame, Pixels, Rate, Shape},
    picture::{self, Texts},
};

/// What ffmpeg may open: neither playlists nor anything from the network.
const GUARD: [&str; 4] = ["-protocol_whitelist", "file,pipe", "-format_whitelist", "mov,matroska,avi"];

/// What reading needs ffmpeg for, in the message where it is missing.
const NEED: &str = "to read videos";

/// A running ffmpeg, a frame at a time.
pub(crate) struct Decoder {
    process: Process,
    path: PathBuf,
    shape: Shape,
    rate: Rate,
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
    /// Looks into the file and starts decoding it.
    pub fn open(path: &Path) -> Result<Self> {
        drop(picture::open(path)?);
        let (shape, rate) = probe(path)?;
        let mut command = quiet(&find("ffmpeg", NEED)?);
        command.arg("-nostdin").args(GUARD).arg("-i").arg(file(path)).args(["-map", "0:v:0"]);
        // Each frame once, whatever the file says of its time, and all of one size. In turn: the rate's own time base, so that
        // ffmpeg neither drops nor doubles frames to keep the rate.
        let filter = format!(
            "scale={}:{}:flags=bicubic+accurate_rnd+full_chroma_int+full_chroma_inp,settb={},setpts=N",
            shape.width,
            shape.height,
            rate.interval()
        );
        command.args(["-vf", &filter, "-r", &rate.to_string()]);
        command.args(["-f", "rawvideo", "-pix_fmt", "rgb24", "pipe:1"]).stdout(Stdio::piped());
        let process = Process::start(&mut command, path)?;
        Ok(Self { process, path: path.to_owned(), shape, rate, read: 0, ended: false })
    }

    /// The shape that the file promises; a damaged one may hold fewer frames.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// The next frame; notes about what ffmpeg found amiss are added at the end.
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
        let said = self.process.end().map_err(failed)?;
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

#[derive(Deserialize)]
struct Tagged {
    format: Tags,
}

#[derive(Deserialize)]
struct Tags {
    #[serde(default)]
    tags: BTreeMap<String, String>,
}

/// The most bytes of tags that are read, as JSON.
const MOST_TAGS: u64 = 64 << 20;

/// A video's tags; in lower case, which Matroska does not keep. Nothing where there are none, or no ffmpeg.
pub(crate) fn tags(path: &Path) -> Option<Texts> {
    drop(picture::open(path).ok()?);
    let mut command = quiet(&find("ffprobe", NEED).ok()?);
    command.args(GUARD).args(["-of", "json", "-show_entries", "format_tags"]).arg(file(path)).stdout(Stdio::piped());
    let mut process = Process::start(&mut command, path).ok()?;
    let mut text = Vec::new();
    process.child.stdout.take()?.take(MOST_TAGS).read_to_end(&mut text).ok()?;
    process.end().ok()?;
    let found: Tagged = serde_json::from_slice(&text).ok()?;
    Some(found.format.tags.into_iter().map(|(keyword, text)| (keyword.to_lowercase(), text)).collect())
}

fn probe(path: &Path) -> Result<(Shape, Rate)> {
    let mut command = quiet(&find("ffprobe", NEED)?);
    command.args(GUARD).args(["-select_streams", "v:0", "-count_packets", "-of", "json", "-show_entries"]);
    command.arg("stream=width,height,avg_frame_rate,r_frame_rate,nb_read_packets:stream_side_data=rotation");
    command.arg(file(path)).stdout(Stdio::piped());
    let mut process = Process::start(&mut command, path)?;
    let mut text = Vec::new();
    if let Some(pipe) = process.child.stdout.take() {
        pipe.take(1 << 20).read_to_end(&mut text).map_err(|error| Error::read(path, error))?;
    }
    process.end().map_err(|reason| Error::Ffmpeg { path: path.to_owned(), reason, reading: true })?;
    let found: Probe = serde_json::from_slice(&text).map_err(|_| Error::input(path, "holds no video"))?;
    let stream = found.streams.into_iter().next().ok_or_else(|| Error::input(path, "holds no video"))?;
    let (mut width, mut height) = (stream.width, stream.height);
    // ffmpeg turns it upright.
    let turned = stream.side_data_list.iter().find_map(|data| data.rotation).unwrap_or(0.0);
    if (turned.round() as i64).rem_euclid(180) == 90 {
        (width, height) = (height, width);
    }
    picture::check_size(path, width, height)?;
    let rates = [&stream.avg_frame_rate, &stream.r_frame_rate];
    let rate = rates.iter().find_map(|text| text.parse().ok());
    let rate = rate.ok_or_else(|| Error::input(path, "says no frame rate"))?;
    let frames = stream.nb_read_packets.and_then(|count| count.parse().ok()).filter(|&count: &usize| count > 0);
    let frames = frames.ok_or_else(|| Error::input(path, "holds no frames"))?;
    Ok((Shape { samples: 1, frames, width, height, channels: 3 }, rate))
}
