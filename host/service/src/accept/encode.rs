//! The inspection of a picture or clip before its job is accepted: its size, and the least memory
//! to encode it.

use std::path::Path;

use tilewright_pipeline::{Encode, EncodeInput, EncodeSource, check_scaling};
use tilewright_plan::{Loss, Stage};
use tilewright_service_api::{EncodeFields, JobRequest, JobStage, OutputFormat};

use super::{Inspection, Refusal, Work, internal, invalid};
use crate::{
    device::DeviceState,
    error::one_line,
    jobs::inputs::{Input, Uploads},
    models::{OpenModel, OpenVae},
};

/// The name of a job's picture or clip in errors.
pub const IMAGE: &str = "image";

/// Fields that are for other jobs.
type Alone = (&'static str, fn(&JobRequest) -> bool);

const OF_OTHERS: [Alone; 5] = [
    ("tensor", |request| request.tensor.is_some()),
    ("fps", |request| request.fps.is_some()),
    ("negative_prompt", |request| request.negative_prompt.is_some()),
    ("text_tokens", |request| request.text_tokens.is_some()),
    ("allow: reuse", |request| Loss::reuse(&request.allow).is_some()),
];

/// Looks into the picture or clip of a request.
///
/// # Errors
/// It can't be encoded as the request asks.
pub fn inspect<'a>(
    model: &OpenModel,
    device: &DeviceState,
    request: &JobRequest,
    fields: &EncodeFields,
    uploads: &'a Uploads,
) -> Result<Inspection<'a>, Refusal> {
    if let Some((name, _)) = OF_OTHERS.iter().find(|(_, is_given)| is_given(request)) {
        return Err(invalid(format!("{name}: is for other jobs: leave it out of an encode")));
    }
    if let Some(input) = uploads.keys().find(|input| **input != Input::Image) {
        return Err(invalid(format!("{}: an encode takes an image alone: leave it out", input.name())));
    }
    if fields.frames == Some(0) {
        return Err(invalid("encode.frames: expected at least 1"));
    }
    let format = request.format.unwrap_or(OutputFormat::Latent);
    if !matches!(format, OutputFormat::Safetensors | OutputFormat::Latent) {
        return Err(invalid(format!(
            "format: an encode makes a latent, not {}: expected latent or safetensors",
            format.ending()
        )));
    }
    let Some(path) = uploads.get(&Input::Image).map(|upload| upload.path()) else {
        return Err(invalid("image: expected a picture or clip: send it in a part of that name, or give its path"));
    };
    let Some(OpenVae { model: vae, .. }) = model.vae.as_deref() else {
        return Err(invalid(format!("model: {} has no vae: it only samples: give sample", model.name)));
    };
    if request.scaled {
        if format == OutputFormat::Latent {
            return Err(invalid("scaled: ComfyUI's latents carry no scaling: leave it out, or ask for safetensors"));
        }
        let name = Path::new(&request.model);
        check_scaling(vae.scaling(), vae.is_video(), name).map_err(|error| invalid(one_line(&error)))?;
    }
    let refused = move |error: &tilewright_pipeline::Error| invalid(of_image(error, path));
    let mut source = EncodeSource::open(path, fields.frames).map_err(|error| refused(&error))?;
    let outline = EncodeInput::outline(vae, &mut source, IMAGE, &mut |_| {}).map_err(|error| refused(&error))?;
    let counts_weights = device.counts_weights || request.count_weights;
    let least_bytes = Encode::least_bytes(&device.machine, vae, &outline, counts_weights).map_err(internal)?;
    let expected = Encode::shortest(&device.machine, vae, &outline).map_err(internal)?;
    let facts = vae.facts();
    let (height, width) = source.size();
    let work = Work {
        stage: Stage::Encode,
        job: JobStage::Encode,
        family: facts.family.clone(),
        quantized: facts.quantized,
        samples: u32::try_from(source.samples()).unwrap_or(u32::MAX),
        frames: outline.frames(),
        height,
        width,
        steps: None,
        around: None,
    };
    let check_values = Box::new(move || source.check().map_err(|error| refused(&error)));
    Ok(Inspection { work, settings: None, latent: None, format, least_bytes, counts_weights, expected, check_values })
}

/// An error in a line for callers. The file's path on the server is left out; the frames are those
/// of an encode.
pub fn of_image(error: &tilewright_pipeline::Error, path: &Path) -> String {
    one_line(error).replace(&path.display().to_string(), IMAGE).replace("sample.frames", "encode.frames")
}
