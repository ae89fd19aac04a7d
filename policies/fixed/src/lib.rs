//! Every part of the plan is a setting, for decodes, encodes, samples and text encoders alike.
//! Every choice goes through a policy, so one made by hand is checked and recorded like any other.
//! A setting that is left at `auto` is that of [`denoise::Plan::plain`] and [`text::Plan::plain`]:
//! everything at once, but for the passes of guidance, and nothing kept.

use tilewright_sdk::{
    Attempt, Backend, Description, Layout, OptionChoice, Overlapped, Plan, Policy, Precision, Release, Request,
    Settings, Space, Stage, Tile, Time, denoise, text,
};

/// The longest side and the most frames that can be asked for.
const MOST: u32 = 1 << 16;

/// The plan of the settings.
pub struct Fixed {
    plan: Plan,
    /// The memory order follows the device.
    suits: bool,
    /// The parts of a sample's plan.
    sample: denoise::Choice,
    /// The parts of a text encoder's plan.
    text: text::Choice,
    options: OptionChoice,
}

impl Policy for Fixed {
    fn describe() -> Description {
        let description =
            Description::new("fixed", env!("CARGO_PKG_VERSION"), "Runs what the settings say, whatever the request.");
        let description = description
            .stages(&[Stage::Decode, Stage::Encode, Stage::Denoise, Stage::Text])
            .setting("space", "How the picture is divided: whole, blended or exact.", "whole")
            .setting("tile", "The tile in pixels: one side, or WIDTHxHEIGHT.", "512")
            .setting("overlap", "Pixels that neighbouring tiles share, when blended.", 64)
            .setting("precision", "Element types: f32, tf32, bf16, f16, mixed-bf16 or mixed-f16.", "f32")
            .setting(
                "layout",
                "Memory order: channels-first, channels-last, or auto for what suits the device.",
                "auto",
            )
            .setting("batch", "Samples, or tiles, that run together.", 1)
            .setting("release", "When unused memory is freed: keep, at-end or each-step.", "keep")
            .setting("offload", "Keep activations that wait in host memory.", false)
            .setting("prefetch", "Inputs copied to the device ahead of their turn.", 0)
            .setting("time", "How a clip is divided: whole, carried (the state goes on) or blended.", "whole")
            .setting("chunk", "Output frames of a chunk, when carried or blended.", 16)
            .setting("time-overlap", "Frames that neighbouring chunks share, when blended in time.", 2);
        OptionChoice::declare(text::Choice::declare(denoise::Choice::declare(description)))
    }

    fn configure(settings: &Settings) -> Result<Self, String> {
        let tile = tile(settings)?;
        let space = settings.word(
            "space",
            &[("whole", Space::Whole), ("blended", Space::Blended(tile)), ("exact", Space::Exact(tile))],
        )?;
        let frames = settings.count("chunk", 1, MOST)?;
        let overlap = settings.count("time-overlap", 0, MOST)?;
        let time = settings.word(
            "time",
            &[
                ("whole", Time::Whole),
                ("carried", Time::Carried(frames)),
                ("blended", Time::Blended(Overlapped { frames, overlap })),
            ],
        )?;
        if matches!(time, Time::Blended(_)) && overlap >= frames {
            return Err(below("time-overlap", overlap, "chunk", frames));
        }
        let layout = settings.word_or_auto(
            "layout",
            &[("channels-first", Layout::ChannelsFirst), ("channels-last", Layout::ChannelsLast)],
        )?;
        let plan = Plan {
            space,
            time,
            batch: settings.count("batch", 1, MOST)?,
            precision: settings.word("precision", &Precision::WORDS)?,
            layout: layout.unwrap_or(Layout::ChannelsLast),
            release: settings.word("release", &Release::WORDS)?,
            offload: settings.flag("offload")?,
            prefetch: settings.count("prefetch", 0, MOST)?,
            options: Vec::new(),
            reason: "as set".into(),
        };
        let (sample, text) = (denoise::Choice::read(settings)?, text::Choice::read(settings)?);
        let options = OptionChoice::read(settings)?;
        Ok(Self { plan, suits: layout.is_none(), sample, text, options })
    }

    fn decide(&mut self, request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
        if !attempts.is_empty() {
            return Err("only does what it is set to".into());
        }
        // MIOpen's channels-last kernels are slow on consumer cards.
        let suited = match request.device.backend {
            Backend::Cpu | Backend::Cuda => Layout::ChannelsLast,
            Backend::Rocm | Backend::Metal => Layout::ChannelsFirst,
        };
        let layout = if self.suits { suited } else { self.plan.layout };
        let options = self.options.of(&request.capabilities.options)?;
        Ok(Plan { layout, options, ..self.plan.clone() })
    }

    fn decide_denoise(
        &mut self,
        request: &denoise::Request,
        attempts: &[denoise::Attempt],
    ) -> Result<denoise::Plan, String> {
        if !attempts.is_empty() {
            return Err("only does what it is set to".into());
        }
        let plan = denoise::Plan::plain(self.plan.precision).reusing(request);
        let options = self.options.of(&request.capabilities.options)?;
        let plan = denoise::Plan { release: self.plan.release, options, ..plan };
        Ok(self.sample.apply(plan, request).because("as set"))
    }

    fn decide_text(&mut self, request: &text::Request, attempts: &[text::Attempt]) -> Result<text::Plan, String> {
        if !attempts.is_empty() {
            return Err("only does what it is set to".into());
        }
        let options = self.options.of(&request.capabilities.options)?;
        let plan = text::Plan { options, ..text::Plan::plain(self.plan.precision, request.usual_place()) };
        Ok(self.text.apply(plan).because("as set"))
    }
}

tilewright_sdk::export!(Fixed);

/// The tile, from `512` or `768x512` and the overlap.
fn tile(settings: &Settings) -> Result<Tile, String> {
    let text = settings.text("tile")?;
    let refused = || ["tile=", text, ": allowed is a side in pixels from 1 to 65536, or WIDTHxHEIGHT"].concat();
    let side =
        |text: &str| text.trim().parse::<u32>().ok().filter(|side| (1..=MOST).contains(side)).ok_or_else(refused);
    let (width, height) = match text.split_once(['x', '×']) {
        Some((width, height)) => (side(width)?, side(height)?),
        None => (side(text)?, side(text)?),
    };
    let overlap = settings.count("overlap", 0, MOST)?;
    // A whole picture has no tiles, and exact ones share nothing, so their overlap can't be wrong.
    if settings.text("space")? != "blended" {
        return Ok(Tile { height, width, overlap: 0 });
    }
    if overlap >= width.min(height) {
        return Err(below("overlap", overlap, "tile", width.min(height)));
    }
    Ok(Tile { height, width, overlap })
}

fn below(name: &str, value: u32, of: &str, most: u32) -> String {
    [name, "=", &value.to_string(), ": has to be less than the ", of, " (", &most.to_string(), ")"].concat()
}

#[cfg(test)]
mod tests {
    use tilewright_sdk::{Dtype, Value};

    use super::*;

    fn set(pairs: &[(&str, Value)]) -> Result<Plan, String> {
        let defaults = Fixed::describe().defaults();
        let settings = pairs.iter().fold(defaults, |settings, (name, value)| settings.with(name, value.clone()));
        Fixed::configure(&settings).map(|policy| policy.plan)
    }

    #[test]
    fn the_plan_is_what_is_set() {
        assert_eq!(set(&[]).unwrap().space, Space::Whole);
        let plan = set(&[("space", "blended".into()), ("tile", "768x512".into()), ("precision", "mixed-bf16".into())])
            .unwrap();
        assert_eq!(plan.space, Space::Blended(Tile { height: 512, width: 768, overlap: 64 }));
        assert_eq!(plan.precision, Precision::Mixed(Dtype::Bf16));
        let exact = set(&[("space", "exact".into()), ("tile", "64".into())]).unwrap();
        assert_eq!(exact.space, Space::Exact(Tile { height: 64, width: 64, overlap: 0 }));
    }

    #[test]
    fn clips_are_divided_as_set() {
        let time = |pairs: &[(&str, Value)]| set(pairs).unwrap().time;
        assert_eq!(time(&[("chunk", 4.into())]), Time::Whole);
        assert_eq!(time(&[("time", "carried".into())]), Time::Carried(16));
        assert_eq!(time(&[("time", "carried".into()), ("chunk", 1.into())]), Time::Carried(1));
        let blended = [("time", "blended".into()), ("chunk", 8.into()), ("time-overlap", 3.into())];
        assert_eq!(time(&blended), Time::Blended(Overlapped { frames: 8, overlap: 3 }));
        // A carried chunk shares nothing, so its overlap can't be wrong.
        assert_eq!(time(&[("time", "carried".into()), ("time-overlap", 99.into())]), Time::Carried(16));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let refused = |pairs: &[(&str, Value)]| set(pairs).unwrap_err();
        let sides = ": allowed is a side in pixels from 1 to 65536, or WIDTHxHEIGHT";
        assert_eq!(refused(&[("tile", "0".into())]), format!("tile=0{sides}"));
        assert_eq!(refused(&[("tile", "-8".into())]), format!("tile=-8{sides}"));
        assert_eq!(refused(&[("tile", "512x".into())]), format!("tile=512x{sides}"));
        assert_eq!(refused(&[("overlap", (-1).into())]), "overlap=-1: allowed is 0 to 65536");
        let overlap = refused(&[("space", "blended".into()), ("overlap", 512.into())]);
        assert_eq!(overlap, "overlap=512: has to be less than the tile (512)");
        assert_eq!(refused(&[("space", "half".into())]), "space=half: allowed is whole, blended, exact");
        assert_eq!(refused(&[("batch", 0.into())]), "batch=0: allowed is 1 to 65536");
        assert_eq!(refused(&[("time", "half".into())]), "time=half: allowed is whole, carried, blended");
        assert_eq!(refused(&[("chunk", 0.into())]), "chunk=0: allowed is 1 to 65536");
        let overlap = refused(&[("time", "blended".into()), ("chunk", 8.into()), ("time-overlap", 8.into())]);
        assert_eq!(overlap, "time-overlap=8: has to be less than the chunk (8)");
    }
}
