//! Divisions of a clip in time: chunks that are worth pricing, and the order of preference if
//! prices are equal.
//!
//! Every chunk gives the whole clip's output, so they differ only in time and memory. A latent
//! frame's output frames are the natural chunk: frames are delivered as soon as possible. Longer
//! ones have to save time, shorter ones memory.

use tilewright_sdk::{Backend, Request, Time};

/// Chunks of less than a latent frame, in output frames: the leanest, since fewer run through the
/// largest layers at once.
const SHORT: [u32; 2] = [1, 2];

/// Chunks of more, in latent frames.
const LONG: [u32; 2] = [2, 4];

/// Divisions of a clip, those with the least memory first. Only one if the user asks for it, and
/// only those that can go on after the plan that has `begun`.
pub fn times(request: &Request, wish: u32, begun: Option<Time>) -> Vec<Time> {
    let mut times = Vec::with_capacity(6);
    if matches!(begun, Some(Time::Whole)) {
        times.push(Time::Whole);
        return times;
    }
    if wish > 0 {
        times.push(Time::Carried(round_chunk(request, wish)));
        return times;
    }
    let latent_frame = latent_frame(request);
    let mut last = 0;
    let short = SHORT.into_iter().filter(|frames| *frames < latent_frame);
    let long = LONG.into_iter().map(|count| even(request, count * latent_frame));
    for frames in short.chain([latent_frame]).chain(long) {
        if frames > last && frames < request.frames {
            times.push(Time::Carried(frames));
            last = frames;
        }
    }
    if begun.is_none() {
        times.push(Time::Whole);
    }
    times
}

/// The natural chunk: what one latent frame gives.
pub fn natural(request: &Request) -> Time {
    Time::Carried(latent_frame(request))
}

/// The order of preference if prices are equal, lowest first: the natural chunk, shorter ones,
/// longer ones, all frames together.
pub fn preference(request: &Request, time: Time) -> u32 {
    match time {
        Time::Carried(frames) if frames <= latent_frame(request) => latent_frame(request) - frames,
        Time::Carried(frames) => frames,
        Time::Whole | Time::Blended(_) => u32::MAX,
    }
}

fn latent_frame(request: &Request) -> u32 {
    request.temporal_scale.max(1)
}

/// The longest chunk up to `most` that divides the frames after the first evenly, if a ragged last
/// chunk costs a kernel search.
fn even(request: &Request, most: u32) -> u32 {
    let latent_frame = latent_frame(request);
    let mut frames = most;
    if request.device.backend == Backend::Rocm {
        while frames > latent_frame && !(request.frames - 1).is_multiple_of(frames) {
            frames -= latent_frame;
        }
    }
    frames
}

/// A chunk as the host would round it, so that failed plans are recognised: whole latent frames, a
/// power of two of less, or the clip.
fn round_chunk(request: &Request, frames: u32) -> u32 {
    let latent_frame = latent_frame(request);
    if frames >= request.frames {
        request.frames
    } else if frames >= latent_frame {
        frames - frames % latent_frame
    } else {
        1 << frames.ilog2()
    }
}
