//! Processes of ffmpeg: found, started, watched and ended. They run in a process group of their
//! own, so that the terminal's Ctrl-C reaches this program alone, which then ends them.

use std::{
    env,
    ffi::{OsStr, OsString},
    io::Read,
    os::unix::{
        fs::PermissionsExt,
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    thread::{self, JoinHandle},
};
use tilewright_wording::Remedy;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::{
    error::{Error, Result},
    format::Format,
};

mod decoder;
mod encoder;

pub(crate) use decoder::{Decoder, probe_file, tags};
pub(crate) use encoder::Encoder;

/// The encoder settings of a format.
pub(crate) struct EncoderSettings {
    pub format: Format,
    /// ffmpeg's encoder.
    codec: &'static str,
    /// Chroma has half the resolution, and the encoder wants an even count of pixels.
    pub even: bool,
    options: &'static [&'static str],
    /// The constant rate factors of the lowest and the highest quality; a larger one means a worse
    /// picture.
    factors: (f64, f64),
}

/// The encoders' default effort or a little less.
const X264: &[&str] = &["-preset", "medium"];
const VP9: &[&str] = &["-b:v", "0", "-deadline", "good", "-cpu-used", "3", "-row-mt", "1"];

/// The default: constant quality that is hard to tell from the source, CRF 16 of H.264 and 20 of
/// VP9.
const QUALITY: u8 = 70;

/// H.264 would be lossless at 0, in a profile that few players have.
const H264: EncoderSettings =
    EncoderSettings { format: Format::Mp4, codec: "libx264", even: true, options: X264, factors: (51.0, 1.0) };

impl EncoderSettings {
    /// The constant rate factor of a quality from 1 to 100.
    pub fn crf(&self, quality: Option<u8>) -> u32 {
        let (worst, best) = self.factors;
        let share = f64::from(quality.unwrap_or(QUALITY).clamp(1, 100)) / 100.0;
        (worst + (best - worst) * share).round() as u32
    }
}

const RECIPES: [EncoderSettings; 3] = [
    H264,
    EncoderSettings { format: Format::Mkv, ..H264 },
    EncoderSettings { format: Format::WebM, codec: "libvpx-vp9", even: false, options: VP9, factors: (63.0, 1.0) },
];

/// The encoder settings of a format that ffmpeg writes; none for other formats.
pub(crate) fn recipe(format: Format) -> Option<&'static EncoderSettings> {
    RECIPES.iter().find(|recipe| recipe.format == format)
}

/// Checks that ffmpeg is installed and can encode the format, if the format needs it.
pub(crate) fn check(format: Format) -> Result<()> {
    check_in(format, env::var_os("PATH").as_deref())
}

fn check_in(format: Format, path: Option<&OsStr>) -> Result<()> {
    let Some(EncoderSettings { codec, .. }) = recipe(format) else { return Ok(()) };
    let ending = format.ending();
    let Some(ffmpeg) = find_in("ffmpeg", path) else { return Err(missing(&format!("for .{ending}"))) };
    let output = quiet(&ffmpeg).args(["-h", &format!("encoder={codec}")]).output();
    if output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(&format!("Encoder {codec}"))) {
        return Ok(());
    }
    let reason = format!(
        "{} lacks {codec}, which .{ending} needs: install a whole ffmpeg, or write .gif, .webp{}",
        ffmpeg.display(),
        Remedy::OtherOutputs
    );
    Err(Error::Tool { reason })
}

fn missing(what: &str) -> Error {
    let instead = match what.contains('.') {
        true => format!(", or write .gif, .webp{}", Remedy::OtherOutputs),
        false => String::new(),
    };
    Error::Tool { reason: format!("ffmpeg is needed {what}: apt install ffmpeg (or brew install ffmpeg){instead}") }
}

/// Finds a program of ffmpeg's in PATH.
fn find(name: &str, what: &str) -> Result<PathBuf> {
    find_in(name, env::var_os("PATH").as_deref()).ok_or_else(|| missing(what))
}

fn find_in(name: &str, path: Option<&OsStr>) -> Option<PathBuf> {
    env::split_paths(path?).map(|folder| folder.join(name)).find(|program| {
        program.metadata().is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
    })
}

/// A program of ffmpeg's that prints errors only.
fn quiet(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["-hide_banner", "-loglevel", "error"]).stdin(Stdio::null()).process_group(0);
    command
}

/// A file's name as ffmpeg takes it, so that no name is read as an option or another protocol.
fn file(path: &Path) -> OsString {
    let mut name = OsString::from("file:");
    name.push(path);
    name
}

/// A child process that does not outlive this value.
pub(crate) struct Process {
    child: Child,
    errors: Option<JoinHandle<String>>,
}

impl Process {
    fn start(command: &mut Command, what: &Path) -> Result<Self> {
        Self::spawn_limited(command, what, &[])
    }

    /// Starts a program under these resource limits.
    fn spawn_limited(command: &mut Command, what: &Path, limits: &[(Resource, u64)]) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.stderr(Stdio::piped()).spawn().map_err(|error| Error::Tool {
            reason: format!("{}: {program} can't be started: {error}", what.display()),
        })?;
        for (resource, most) in limits {
            let limit = Rlimit { current: Some(*most), maximum: Some(*most) };
            // Fails if the program has ended, or if the system allows less already.
            let _ = prlimit(Some(Pid::from_child(&child)), *resource, limit);
        }
        let errors = child.stderr.take().map(|pipe| thread::spawn(move || last_lines(pipe)));
        Ok(Self { child, errors })
    }

    /// Waits for its end; returns its status, and its last message or the one that says most.
    fn wait(&mut self) -> (Option<ExitStatus>, Option<String>) {
        drop(self.child.stdin.take());
        let status = self.child.wait().ok();
        let said = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        // That the file lacks its end says more than what followed from it.
        let mut lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
        let line = lines.clone().find(|line| is_of_cut(line)).or_else(|| lines.next_back());
        (status, line.map(str::to_owned))
    }

    /// Waits for its end; returns a failed one as a reason.
    fn end(&mut self) -> std::result::Result<Option<String>, String> {
        let (status, said) = self.wait();
        match status {
            Some(status) if status.success() => Ok(said),
            _ => Err(said.unwrap_or_else(|| describe_status(status))),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Killing a process that has ended fails, which is harmless.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Phrases of ffmpeg's for a file that lacks its end.
const CUT_SHORT: [&str; 4] = ["partial file", "ended prematurely", "moov atom not found", "error reading header"];

fn is_of_cut(said: &str) -> bool {
    CUT_SHORT.iter().any(|words| said.contains(words))
}

fn describe_status(status: Option<ExitStatus>) -> String {
    /// SIGXCPU, by which the system ends a process that has used up its processor time.
    const TIME_IS_UP: i32 = 24;
    match (status.and_then(|status| status.signal()), status.and_then(|status| status.code())) {
        (Some(TIME_IS_UP), _) => "it took more time than any sound video does".to_owned(),
        (Some(signal), _) => format!("it was ended by signal {signal}"),
        (None, Some(code)) => format!("it ended with status {code}"),
        (None, None) => "it is gone".to_owned(),
    }
}

/// The end of a program's messages: a damaged video can cause a great many.
fn last_lines(mut pipe: ChildStderr) -> String {
    const KEPT: usize = 4096;
    let (mut said, mut part) = (Vec::new(), [0; 1024]);
    while let Ok(count @ 1..) = pipe.read(&mut part) {
        said.extend_from_slice(&part[..count]);
        said.drain(..said.len().saturating_sub(KEPT));
    }
    String::from_utf8_lossy(&said).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn a_missing_ffmpeg_is_told_with_what_works_without() {
        let folder = tempfile::tempdir().unwrap();
        let path = Some(folder.path().as_os_str());
        let error = check_in(Format::Mp4, path).unwrap_err();
        let expected = "ffmpeg is needed for .mp4: apt install ffmpeg (or brew install ffmpeg), or write .gif, .webp, a folder \
                        or .safetensors";
        assert_eq!(error.to_string(), expected);
        assert!(error.is_input() && check_in(Format::Gif, path).is_ok());

        // An ffmpeg that is installed, but can't encode.
        let program = folder.path().join("ffmpeg");
        std::fs::write(&program, "#!/bin/sh\n").unwrap();
        assert_eq!(check_in(Format::WebM, path).unwrap_err().to_string(), expected.replace("mp4", "webm"));
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(check_in(Format::WebM, path).unwrap_err().to_string().contains("lacks libvpx-vp9, which .webm needs"));
    }

    #[test]
    fn quality_spans_what_the_encoders_have() {
        let factors = |format, quality| recipe(format).unwrap().crf(quality);
        assert_eq!([None, Some(70), Some(100), Some(1)].map(|quality| factors(Format::Mp4, quality)), [16, 16, 1, 51]);
        assert_eq!([None, Some(100), Some(1)].map(|quality| factors(Format::WebM, quality)), [20, 1, 62]);
    }

    #[test]
    fn a_child_is_out_of_the_terminals_reach_and_ends_with_its_owner() {
        if !samples::ffmpeg() {
            return;
        }
        // A process that waits for input that never comes.
        let mut command = quiet(&find("ffmpeg", "").unwrap());
        command.args(["-f", "rawvideo", "-video_size", "2x2", "-i", "pipe:0", "-f", "null", "-"]).stdin(Stdio::piped());
        let process = Process::start(&mut command, Path::new("a")).unwrap();
        let stat = PathBuf::from(format!("/proc/{}/stat", process.child.id()));
        let facts = std::fs::read_to_string(&stat).unwrap();
        // After the name in brackets: state, parent, process group.
        let group = facts.rsplit_once(") ").unwrap().1.split(' ').nth(2).unwrap();
        assert_eq!(group, process.child.id().to_string());
        drop(process);
        assert!(!stat.exists());
    }

    #[test]
    fn this_ffmpeg_has_the_encoders() {
        if samples::ffmpeg() {
            RECIPES.iter().for_each(|recipe| check(recipe.format).unwrap());
        }
    }
}
