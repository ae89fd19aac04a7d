//! Frames into a video file, by ffmpeg.

use std::{
    fmt::Write as _,
    io::{self, Write},
    path::{Path, PathBuf},
    process::Stdio,
};

use tempfile::NamedTempFile;

use super::{EncoderSettings, Process, file, find, quiet};
use crate::{
    error::{Error, Result},
    format::Format,
    frame::{Pixels, Rate},
    output::Output,
    picture::Texts,
};

/// Tags that an MP4 may have without a private namespace, which every player finds.
const PLAIN_TAGS: [&str; 3] = ["comment", "title", "description"];

/// Full-range RGB to limited-range BT.709; the conversion is coarse without these flags.
const TO_VIDEO: &str = "scale=out_color_matrix=bt709:out_range=tv:flags=bicubic+accurate_rnd+full_chroma_int,\
                        format=yuv420p,setsar=1";

/// A video that grows by a frame at a time; not placed until it is whole.
pub(crate) struct Encoder {
    // Declared first, so that it ends before the files are removed.
    process: Process,
    name: PathBuf,
    video: NamedTempFile,
    _tags: Option<NamedTempFile>,
}

impl Encoder {
    /// Starts ffmpeg for frames of this size, in pixels.
    pub fn begin(
        recipe: &EncoderSettings,
        name: &Path,
        output: &Output,
        size: (u32, u32),
        rate: Rate,
        texts: &Texts,
    ) -> Result<Self> {
        let failed = |error: io::Error| Error::write(name, error);
        let ending = recipe.format.ending();
        let video = output.temporary(name, &format!(".{ending}")).map_err(failed)?;
        let tags = write_tags(name, output, texts).map_err(failed)?;
        let mut command = quiet(&find("ffmpeg", &format!("for .{ending}"))?);
        command.args(["-nostdin", "-y", "-protocol_whitelist", "file,pipe", "-f", "rawvideo", "-pix_fmt", "rgb24"]);
        command.args(["-video_size", &format!("{}x{}", size.0, size.1), "-framerate", &rate.to_string()]);
        command.args(["-i", "pipe:0"]);
        if let Some(tags) = &tags {
            command.args(["-f", "ffmetadata", "-protocol_whitelist", "file,pipe", "-i"]).arg(file(tags.path()));
            command.args(["-map_metadata", "1"]);
        }
        command.args(["-map", "0:v", "-vf", TO_VIDEO, "-c:v", recipe.codec]);
        command.args(recipe.options).args(["-crf", &recipe.crf(output.still().quality).to_string()]);
        command.args(["-colorspace", "bt709", "-color_primaries", "bt709", "-color_trc", "bt709"]);
        command.args(["-color_range", "tv"]);
        // The same frames give the same file: no random identifiers, no versions.
        command.args(["-fflags", "+bitexact", "-flags:v", "+bitexact"]);
        if recipe.format == Format::Mp4 {
            let plain = texts.iter().all(|(keyword, _)| PLAIN_TAGS.contains(&keyword.as_str()));
            command.args(["-movflags", if plain { "+faststart" } else { "+faststart+use_metadata_tags" }]);
        }
        let container = if recipe.format == Format::Mkv { "matroska" } else { ending };
        command.args(["-f", container]).arg(file(video.path())).stdin(Stdio::piped()).stdout(Stdio::null());
        let process = Process::start(&mut command, name)?;
        Ok(Self { process, name: name.to_owned(), video, _tags: tags })
    }

    /// Adds a frame of red, green and blue.
    pub fn frame(&mut self, pixels: &Pixels) -> Result<()> {
        let written = self.process.child.stdin.as_mut().map(|pipe| pipe.write_all(&pixels.values));
        match written {
            Some(Ok(())) => Ok(()),
            // ffmpeg no longer reads: it has ended, or is about to.
            _ => {
                let reason = self.process.end().err().unwrap_or_else(|| "it ended before the last frame".to_owned());
                Err(self.describe_failure(reason))
            }
        }
    }

    /// Ends the stream and waits until the file is complete.
    pub fn end(&mut self) -> Result<()> {
        self.process.end().map_err(|reason| self.describe_failure(reason))?;
        Ok(())
    }

    /// The file, which does not have its final name yet.
    pub fn into_file(self) -> NamedTempFile {
        self.video
    }

    fn describe_failure(&self, reason: String) -> Error {
        Error::Ffmpeg { path: self.name.clone(), reason, reading: false }
    }

    #[cfg(test)]
    pub fn kill(&mut self) {
        self.process.child.kill().unwrap();
    }
}

/// Texts in ffmpeg's own format; a command's arguments could not hold a workflow. A keyword or text
/// can't hold a NUL there.
fn write_tags(name: &Path, output: &Output, texts: &Texts) -> io::Result<Option<NamedTempFile>> {
    if texts.is_empty() {
        return Ok(None);
    }
    let mut lines = String::from(";FFMETADATA1\n");
    for (keyword, text) in texts {
        let _ = writeln!(lines, "{}={}", escape(keyword), escape(text));
    }
    let mut tags = output.temporary(name, ".txt")?;
    tags.as_file_mut().write_all(lines.as_bytes())?;
    tags.as_file_mut().flush()?;
    Ok(Some(tags))
}

fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars().filter(|&character| character != '\0') {
        if matches!(character, '=' | ';' | '#' | '\\' | '\n') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}
