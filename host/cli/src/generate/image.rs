//! The encode stage: the picture that a sample begins with becomes a latent.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tilewright_engine::{Finished, Machine};
use tilewright_outputs::{folder_of, temporary_folder};
use tilewright_pipeline::{Encode, EncodeInput, EncodeSource, LatentOutput, Model, Trials};
use tilewright_plan::{Record, Recorder};

use super::pictures::limit;
use crate::{
    args::Generate,
    failure::{Failure, Outcome},
    progress::Progress,
    report::{Shown, fail, keep},
    tell::note,
};

/// A picture's latent, in a folder that is removed at the end.
pub struct Image {
    pub latent: PathBuf,
    pub record: Record,
    _folder: TempDir,
}

/// Width and height of what is encoded of a picture.
pub fn size(path: &Path, vae: &Model) -> Outcome<[u32; 2]> {
    if vae.is_video() {
        return Err(Failure::input("--image: a clip of a picture is not made; --image is for pictures"));
    }
    let mut source = EncodeSource::open(path, Some(1))?;
    source.crop(vae.spatial_scale(), &mut |_| {})?;
    let (height, width) = source.size();
    Ok([width, height])
}

/// Encodes the picture.
pub fn encode(
    arguments: &Generate,
    path: &Path,
    (machine, vae): (&Machine, &Model),
    memory_limit: u64,
    trials: &mut Trials,
    planner: &mut Recorder,
) -> Outcome<Image> {
    let shown = path.display().to_string();
    let mut source = EncodeSource::open(path, Some(1))?;
    let frames = EncodeInput::of(vae, &mut source, &shown, &mut note)?;
    let job = Encode::new(machine, vae, &frames, limit(memory_limit), arguments.objective.into())?;
    let before = trials.before(job.stage(), job.request());
    let job = job.with_history(&before);
    let mut progress = Progress::new();
    let encoded = job.run(planner, &mut progress, &mut source);
    progress.finish();
    let quiet = Shown { json: false, explain: false, several: false, aside: false };
    let Finished { output, record, .. } =
        encoded.map_err(|unfinished| fail(&arguments.record, quiet, trials, planner, unfinished))?;
    trials.keep(&record);
    keep(&arguments.record, &record, planner)?;
    let folder = temporary_folder(folder_of(&arguments.output))?;
    let place = LatentOutput::new(&folder.path().join("image.safetensors"), None, false, false)?;
    let latent = place.write(&output.latents, &Vec::new(), &record)?;
    Ok(Image { latent, record, _folder: folder })
}
