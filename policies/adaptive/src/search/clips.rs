//! The search for a clip that carries its causal cache. Chunks and bands give the whole clip's
//! output; tiles come last.

use tilewright_sdk::{Kind, Plan, Space, Tile, Time};

use super::{ALIKE_CLIP, Answer, Priced, Search};
use crate::{UserBounds, candidates::Candidate, chunks, divide};

/// The largest tiles of a clip, in pixels: they are used only if nothing else fits.
const CLIP_TILE: u32 = 512;

impl Search<'_> {
    /// The best plan of a clip that fits and was not tried before: chunks with the whole picture or
    /// with bands; tiles over the whole clip only if none of them fits.
    pub(super) fn best_clip(&mut self) -> Option<Priced> {
        let begun = self.begun;
        let mut times = chunks::times(self.request, self.wishes.chunk, begun.map(|begun| begun.time));
        let mut spaces = Vec::with_capacity(3);
        match begun.map(|begun| begun.space) {
            Some(tiles @ Space::Blended(_)) => spaces.push(tiles),
            _ => {
                let bands = divide::bands(self.request).into_iter().step_by(2).take(2);
                let band = |height| Space::Exact(Tile { height, width: self.request.width, overlap: 0 });
                spaces.push(Space::Whole);
                spaces.extend(bands.map(band));
            }
        }
        if self.bounds.leanest {
            times.truncate(1);
            spaces.truncate(2);
        }
        let mut fitting = Vec::new();
        let mut candidates = Vec::new();
        for is_first in [true, false] {
            let round = self.find_candidates(is_first);
            // Every chunk with bands, while the estimates suffice.
            let step = if round.len() > 2 { 2 } else { 1 };
            for candidate in &round {
                self.enumerate_clip(candidate, &spaces, &times, step, &mut fitting);
            }
            candidates.extend(round);
            if !self.bounds.leanest && !fitting.is_empty() {
                break;
            }
        }
        if fitting.is_empty() && self.wishes.chunk > 0 {
            self.wishes.chunk = 0;
            return self.best_clip();
        }
        if !self.may_blend() && fitting.is_empty() {
            fitting.extend(self.tight.take());
        }
        if begun.is_none() && (fitting.is_empty() || self.bounds.leanest) {
            let large = UserBounds { max_tile: self.wishes.max_tile.min(CLIP_TILE), ..self.wishes };
            for is_small in [self.bounds.leanest, true] {
                let tiles = match is_small {
                    true => divide::small_tiles(self.request, &self.wishes),
                    false => divide::tiles(self.request, &large),
                };
                for candidate in &candidates {
                    self.ascend(&candidate.at_once(), &tiles, &mut fitting);
                }
                if !fitting.is_empty() {
                    break;
                }
            }
        }
        if let (Some((space, precision)), false) = (self.bounds.last, self.bounds.leanest) {
            let is_shorter = |priced: &Priced| priced.plan.space == space && priced.plan.precision == precision;
            if fitting.iter().any(is_shorter) {
                fitting.retain(is_shorter);
            }
        }
        match self.pick(&fitting).cloned() {
            Some(best) => {
                let best = self.stream_tiles(best);
                Some(self.add_reason(best, fitting.len()))
            }
            None => self.spare.take().map(|spare| self.add_reason(spare, 1)),
        }
    }

    /// The best of the clip's tiles, or the same in chunks with the causal cache of waiting tiles
    /// in host memory: frames are delivered before the end.
    fn stream_tiles(&mut self, best: Priced) -> Priced {
        let is_free = self.begun.is_none() && !self.bounds.leanest;
        let is_offered = is_free && self.request.capabilities.offload;
        if is_offered && best.plan.kind() == Kind::Blended {
            let plan = Plan { time: self.anchor, offload: true, reason: String::new(), ..best.plan.clone() };
            if let Answer::Fits(priced) = self.price(plan)
                && self.score(&priced) <= self.score(&best) * ALIKE_CLIP
            {
                return priced;
            }
        }
        best
    }

    /// Every space with chunks from the shortest up, as far as they fit; bands with every `step`-th
    /// chunk.
    fn enumerate_clip(
        &mut self,
        candidate: &Candidate,
        spaces: &[Space],
        times: &[Time],
        step: usize,
        fitting: &mut Vec<Priced>,
    ) {
        for (index, space) in spaces.iter().enumerate() {
            for time in times.iter().step_by(if index == 0 { 1 } else { step }) {
                let offload = self.begun.is_some_and(|begun| begun.offload);
                let plan = Plan { space: *space, time: *time, offload, ..candidate.plan() };
                let is_known = *space == Space::Whole && *time == candidate.time && !offload;
                let answer = if is_known { self.judge(plan, candidate.cost) } else { self.price(plan) };
                match answer {
                    Answer::Fits(priced) => fitting.push(priced),
                    Answer::TooMuch => break,
                    Answer::Passed => {}
                }
            }
        }
    }
}
