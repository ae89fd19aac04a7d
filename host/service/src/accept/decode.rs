//! The inspection of a latent before its job is accepted: size and format of the output, and the
//! least memory for it.

use std::path::Path;

use tilewright_media::{Format, Kind, Rate, Shape};
use tilewright_pipeline::{Decode, Model};
use tilewright_plan::{Loss, Stage};
use tilewright_service_api::{JobRequest, JobStage, OutputFormat};

use super::{Inspection, Refusal, Work, internal, invalid, rate};
use crate::{
    device::DeviceState,
    error::one_line,
    jobs::inputs::{Input, Uploads},
    models::{OpenModel, OpenVae},
};

/// Reads the latent of a request.
///
/// # Errors
/// It can't be decoded as the request asks.
pub fn inspect(
    model: &OpenModel,
    device: &DeviceState,
    request: &JobRequest,
    uploads: &Uploads,
) -> Result<Inspection<'static>, Refusal> {
    if let Some(input) = uploads.keys().find(|input| **input != Input::Latent) {
        return Err(invalid(format!("{}: is for samples: leave it out of a decode", input.name())));
    }
    if Loss::reuse(&request.allow).is_some() {
        return Err(invalid("allow: reuse is for samples and prompts: leave it out of a decode"));
    }
    let Some(path) = uploads.get(&Input::Latent).map(|upload| upload.path()) else {
        return Err(invalid("latent: expected a file: send it in a part of that name, or give its path"));
    };
    let refused = |error: &dyn std::error::Error| invalid(describe_error(error, path));
    let Some(OpenVae { model, .. }) = model.vae.as_deref() else {
        return Err(invalid(format!("model: {} has no vae: it only samples: give sample", model.name)));
    };
    let name = Path::new(&request.model);
    let file = model.open_latent(path, request.tensor.as_deref()).map_err(|error| refused(&error))?;
    let latent = file.read().map_err(|error| refused(&error))?;
    if request.scaled {
        // The path of the model's file on the server stays on the server.
        model.known_scaling(&latent, name).map_err(|error| refused(&error))?;
    }
    let shape = model.shape(&latent);
    let facts = model.facts();
    let (format, _) = choose_format(request, model, &shape)?;
    let latents = model.tensor(&latent).map_err(internal)?;
    let counts_weights = device.counts_weights || request.count_weights;
    let size = latents.size();
    let least_bytes = Decode::least_bytes(&device.machine, model, &size, counts_weights).map_err(internal)?;
    let expected = Decode::shortest(&device.machine, model, &size).map_err(internal)?;
    let work = Work {
        stage: Stage::Decode,
        job: JobStage::Decode,
        family: facts.family.clone(),
        quantized: facts.quantized,
        samples: shape.samples as u32,
        frames: shape.frames as u32,
        height: shape.height,
        width: shape.width,
        steps: None,
        around: None,
    };
    let check_values = Box::new(|| Ok(()));
    let latent = Some(latent);
    Ok(Inspection { work, settings: None, latent, format, least_bytes, counts_weights, expected, check_values })
}

/// An error of a latent's file, in a line for callers. The file's path on the server is left out.
fn describe_error(error: &dyn std::error::Error, path: &Path) -> String {
    let path = path.display().to_string();
    one_line(error).replace(&format!("{path}: "), "latent: ").replace(&path, "latent")
}

/// The format of pictures or a clip, which has to hold them, and the frames per second.
pub fn choose_format(request: &JobRequest, vae: &Model, shape: &Shape) -> Result<(OutputFormat, Rate), Refusal> {
    let is_clip = shape.frames > 1;
    let format = request.format.unwrap_or(if is_clip { OutputFormat::Mp4 } else { OutputFormat::Png });
    let rate = rate(request.fps.as_deref(), &vae.facts().family).map_err(Refusal::Invalid)?;
    check_format(format, vae.kind(), shape.frames)?;
    let media: Format = format.ending().parse().map_err(Refusal::Internal)?;
    media.check(vae.kind(), shape).map_err(|line| invalid(format!("format: {line}")))?;
    Ok((format, rate))
}

/// Refuses a format that can't hold the output, by the formats' names in requests.
fn check_format(format: OutputFormat, kind: Kind, frames: usize) -> Result<(), Refusal> {
    use OutputFormat::{Gif, Jpg, Latent, Mkv, Mp4, Png, Webm};
    match (kind, format) {
        (_, Latent) => Err(invalid("format: latent is for samples and encodes: a decode makes pictures and clips")),
        (Kind::Picture, Mp4 | Webm | Mkv | Gif) => {
            Err(invalid("format: a picture can't be written as video: expected png, jpg, webp or safetensors"))
        }
        (Kind::Clip, Png | Jpg) if frames > 1 => Err(invalid(format!(
            "format: {} holds one frame, and the clip has {frames}: expected mp4, webm, mkv, gif, webp or safetensors",
            format.ending()
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tilewright_models::Latent;

    use super::*;

    #[test]
    fn what_is_no_latent_is_refused_without_options_of_the_command_line() {
        tilewright_wording::speak(crate::WORDS);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("upload");
        let tensor = |start: u64| format!(r#"{{"dtype":"F32","shape":[1],"data_offsets":[{start},{}]}}"#, start + 4);
        let header = format!(r#"{{"a":{},"b":{}}}"#, tensor(0), tensor(4));
        let two = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 8]].concat();
        for (bytes, words) in [
            (&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], "a PNG picture, not a safetensors file: send a latent"),
            (b"\0asm\x01\0\0\0", "modules go to /v1/modules"),
            (b"SQLite format 3\0", "send a latent"),
            (&two, "2 tensors in it: name one by tensor: a, b"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let line = describe_error(&Latent::read(&path, None).err().unwrap(), &path);
            assert!(line.starts_with("latent: ") && line.contains(words), "{line}");
            assert!(!line.contains("tilewright") && !line.contains("--"), "{line}");
        }
    }

    #[test]
    fn formats_are_called_what_requests_call_them() {
        use OutputFormat::{Gif, Mp4, Png, Webp};
        for (format, kind, frames, words) in [
            (Gif, Kind::Picture, 1, Some("a picture can't be written as video: expected png, jpg,")),
            (Png, Kind::Clip, 17, Some("png holds one frame, and the clip has 17: expected mp4,")),
            (Png, Kind::Clip, 1, None),
            (Mp4, Kind::Clip, 17, None),
            (Webp, Kind::Picture, 1, None),
        ] {
            match (check_format(format, kind, frames), words) {
                (Ok(()), None) => {}
                (Err(Refusal::Invalid(line)), Some(words)) => assert!(line.contains(words), "{line}"),
                (found, _) => panic!("{format:?}: {found:?}"),
            }
        }
    }
}
