//! Clips, and single frames of video VAEs.

use std::{
    io::{self, Read},
    path::Path,
};

use sha2::{Digest, Sha256};
use tch::Tensor;
use tilewright_decode::{published_rate, texts, unscale};
use tilewright_engine::{ClipJob, Overrides, VideoVae};
use tilewright_media::{ClipWriter, Journal, Kind, Pixels, Preview, Rate, Shape};
use tilewright_plan::{Planner, PolicyIdentity, Recorder, Request};

use super::{
    CLIP, PICTURE, Plan,
    delivery::{Delivery, Writing},
    limit,
    picture::drawing,
    pinned::Pinned,
    say_doubt,
};
use crate::{
    args::Decode,
    batch::Work,
    failure::{Failure, Outcome},
    inputs::Input,
    overlay, policy,
    progress::Progress,
    report::{keep, print_json, report},
    tell::tell,
    workplace::Workplace,
};

/// Decodes with a video VAE, whose weights stay loaded.
pub struct Clips<'a> {
    arguments: &'a Decode,
    plan: &'a Plan,
    writing: Writing,
    progress: Progress,
    planner: Recorder,
    vae: VideoVae,
    workplace: Workplace,
}

impl<'a> Clips<'a> {
    /// Checks all arguments before any step that takes time.
    pub fn open(arguments: &'a Decode, plan: &'a Plan) -> Outcome<Self> {
        let writing = Writing::default();
        let progress = Progress::abandoning({
            let writing = writing.clone();
            move || writing.abandon()
        });
        let planner = policy::configured(&arguments.policy, &arguments.set, arguments.grants, &arguments.record)?;
        if arguments.family.is_some() || arguments.scaling_factor.is_some() || arguments.shift_factor.is_some() {
            return Err(Failure::input(
                "--family, --scaling-factor and --shift-factor are for image VAEs: a video VAE's scaling is one per channel, from its config.json or as published",
            ));
        }
        let vae = VideoVae::open(&arguments.vae, Overrides::default())?;
        let workplace = Workplace::find(arguments.device, arguments.no_history, arguments.dry_run)?;
        Ok(Self { arguments, plan, writing, progress, planner, vae, workplace })
    }
}

impl Work for Clips<'_> {
    fn work(&mut self, input: &Input) -> Outcome {
        let Self { arguments, plan, writing, progress, planner, vae, workplace } = self;
        progress.resume();
        let mut latent = vae.latent(&input.path, arguments.tensor.as_deref())?;
        say_doubt(&input.shown, &latent, (vae.config.family, None), vae.scaling().as_ref(), arguments.scaled)?;
        if arguments.scaled {
            unscale(&mut latent, vae.scaling(), &arguments.vae, "put its config.json beside it")?;
        }
        let extents = latent.extents();
        let frames = vae.config.frames(extents.frames);
        let output = plan.output(input, Kind::Clip, if frames == 1 { PICTURE } else { CLIP })?;
        if arguments.clip.resume && (output.is_standard() || output.is_numbered()) {
            let path = output.path().display();
            return Err(Failure::input(format!(
                "{path}: --resume finds an earlier decode by its output's name: give one without {{n}}"
            )));
        }
        let preview = arguments.clip.preview.as_deref().map(Preview::new).transpose()?;
        let drawing = drawing(arguments, plan)?;
        let scale = vae.config.spatial_scale();
        let shape = Shape {
            samples: extents.samples as usize,
            frames: frames as usize,
            width: extents.width * scale,
            height: extents.height * scale,
            channels: vae.config.image_channels,
        };
        plan.check(&output, &shape)?;
        let (machine, history) = workplace.ready()?;
        let job = ClipJob::new(machine, vae, &latent.values, limit(arguments, machine), arguments.objective.into())?;
        let before = history.before(job.stage(), job.request());
        let job = job.with_history(&before);
        if arguments.dry_run {
            let (record, candidates) = job.decide(planner);
            plan.keep_names(&output, &shape);
            keep(&arguments.record, &record, planner)?;
            return report(plan.shown, &record, &candidates, &[]);
        }

        let rate = arguments.clip.fps.or_else(|| Rate::new(published_rate(&vae.model.family), 1));
        let rate = rate.ok_or_else(|| Failure::work("no frame rate"))?;
        let (journal, done) = match arguments.clip.resume {
            true => {
                let fingerprint = fingerprint(&latent.values, &arguments.vae, planner.identity(), job.request())?;
                let (journal, done) = Journal::open(&output, &fingerprint, shape)?;
                (Some(journal), done)
            }
            false => {
                let folder = Journal::folder_of(&output);
                if folder.exists() {
                    tell!(
                        "note: {}: frames of an interrupted decode are kept here: --resume goes on from them, and deleting the folder gives them up",
                        folder.display()
                    );
                }
                (None, vec![0; shape.samples])
            }
        };
        let folder = journal.as_ref().map(|journal| journal.folder().to_owned());
        let (writing, texts) = (writing.clone(), texts(&latent));
        let mut delivery = Delivery { writing, journal, preview, texts, first: None };
        let (begun, count): (usize, usize) = (done.iter().sum(), shape.samples * shape.frames);
        let ready =
            delivery.writing.begin(folder.as_deref(), || ClipWriter::begin(&output, shape, rate, &delivery.texts));
        let ready = ready.and_then(|()| {
            if begun > 0 {
                tell!("note: {begun} of {count} frames are there already");
            }
            delivery.replay(&done)
        });
        ready.map_err(|failure| delivery.left(failure, count))?;
        let done: Vec<u32> = done.into_iter().map(|done| done as u32).collect();
        let finished = match &folder {
            Some(folder) => {
                let mut pinned = Pinned::new(planner, folder, begun > 0)?;
                job.run(&mut pinned, progress, &mut delivery, &done)
            }
            None => job.run(planner, progress, &mut delivery, &done),
        };
        progress.finish();
        let mut finished = finished.map_err(|unfinished| {
            let mut told = || -> Outcome {
                let Some(record) = &unfinished.record else { return Ok(()) };
                // A run that the user ended says nothing about the plan.
                if !matches!(unfinished.error, tilewright_engine::Error::Interrupted) {
                    history.keep(record);
                }
                keep(&arguments.record, record, planner)?;
                if arguments.json { print_json(plan.shown, record, &[]) } else { Ok(()) }
            };
            let failure = told().err().unwrap_or_else(|| Failure::from(unfinished.error));
            delivery.left(failure, count)
        })?;
        // A resumed decode takes less time than its whole clip, so the history leaves it out.
        finished.record.resumed_frames = begun as u32;
        if begun == 0 {
            history.keep(&finished.record);
        }
        let writer = delivery.writing.take().ok_or_else(|| Failure::work("interrupted"))?;
        let mut files = writer.finish().map_err(|error| delivery.left(error.into(), count))?;
        plan.keep_names(&output, &shape);
        if let Some(journal) = delivery.journal {
            Pinned::forget(journal.folder())?;
            journal.remove()?;
        }
        if let (Some(drawing), Some(path), Some(first)) = (drawing, &arguments.explain_image, &delivery.first) {
            let mut pixels = Pixels::from(first);
            overlay::draw(&mut pixels, &finished.record.plan.space);
            drawing.write_pixels(&pixels)?;
            files.push(path.clone());
        }
        files.extend(arguments.clip.preview.clone());
        keep(&arguments.record, &finished.record, planner)?;
        report(plan.shown, &finished.record, &finished.candidates, &files)
    }
}

/// What decides the values of the frames: the latent, the weights, and who decides how.
fn fingerprint(latents: &Tensor, vae: &Path, policy: &PolicyIdentity, request: &Request) -> Outcome<String> {
    let mut digest = Sha256::new();
    let values = latents.f_contiguous().map_err(tilewright_torch::Error::from)?;
    let mut bytes = vec![0_u8; values.numel() * 4];
    values.f_copy_data_u8(&mut bytes, values.numel()).map_err(tilewright_torch::Error::from)?;
    digest.update(format!("{:?}", latents.size()));
    digest.update(&bytes);
    let read = |error: io::Error| Failure::work(format!("{}: can't be read: {error}", vae.display()));
    let mut file = tilewright_files::open(vae).map_err(read)?;
    let mut piece = vec![0_u8; 1 << 20];
    loop {
        match file.read(&mut piece).map_err(read)? {
            0 => break,
            count => digest.update(&piece[..count]),
        }
    }
    let decided = (&policy.digest, &policy.settings, request.objective);
    digest.update(serde_json::to_vec(&decided).map_err(Failure::work)?);
    Ok(format!("sha256:{:x}", digest.finalize()))
}
