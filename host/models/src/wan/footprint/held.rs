//! What a decode holds: the clip goes through the layers without its values, and every tensor that `layers.rs`, `decoder.rs` and `clip.rs` make is
//! entered where they make it, and struck out where they let go of it. Change both.

use std::{cell::Cell, collections::VecDeque, rc::Rc};

use tilewright_plan::Layout;
use tilewright_torch::{
    probe::convolution_bytes,
    reordered::{block, padded},
    winograd::{self, TAPS},
};

use super::{
    super::{
        architecture::{Kind, Layer},
        clip::LEAST_ROWS,
    },
    Extent, Footprint,
};

/// Bytes held, and the most so far.
#[derive(Debug, Default)]
pub struct Ledger {
    held: Cell<f64>,
    peak: Cell<f64>,
}

impl Ledger {
    fn take(&self, bytes: f64) -> Entry<'_> {
        self.held.set(self.held.get() + bytes);
        self.peak.set(self.peak.get().max(self.held.get()));
        Entry { bytes, ledger: self }
    }

    /// The most held since this was asked last.
    fn take_peak(&self) -> f64 {
        self.peak.replace(self.held.get())
    }
}

/// What is held until it is dropped.
struct Entry<'a> {
    bytes: f64,
    ledger: &'a Ledger,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.ledger.held.set(self.ledger.held.get() - self.bytes);
    }
}

/// A tensor and all that share its memory.
type Shared<'a> = Rc<Entry<'a>>;

/// As in `layers.rs`.
#[derive(Default)]
struct Past<'a> {
    frames: VecDeque<Entry<'a>>,
    begun: bool,
}

impl<'a> Past<'a> {
    fn push(&mut self, frame: Entry<'a>) {
        self.frames.push_back(frame);
        if self.frames.len() >= TAPS {
            self.frames.pop_front();
        }
        self.begun = true;
    }

    /// Bytes of frames that never were.
    fn missing(&self, frame: f64) -> f64 {
        (TAPS - 1 - self.frames.len()) as f64 * frame
    }
}

/// As in `clip.rs`.
struct Piece<'a> {
    layer: usize,
    first: u32,
    count: u32,
    frames: Shared<'a>,
    hidden: Option<Shared<'a>>,
    origin: Option<Shared<'a>>,
}

impl Piece<'_> {
    fn split(&mut self, count: u32) -> Self {
        let rest = Self {
            layer: self.layer,
            first: self.first + count,
            count: self.count - count,
            frames: self.frames.clone(),
            hidden: self.hidden.clone(),
            origin: self.origin.clone(),
        };
        self.count = count;
        rest
    }
}

/// A layer where it is met.
struct Place<'p> {
    layer: &'p Layer,
    count: f64,
    /// Of a frame.
    pixels: f64,
    height: f64,
    /// Rows of a band.
    rows: f64,
}

impl Place<'_> {
    /// Values of a frame of the input, and of the output.
    fn input(&self) -> f64 {
        self.layer.into as f64 * self.pixels
    }

    fn output(&self) -> f64 {
        self.layer.out as f64 * self.pixels
    }
}

/// A clip on its way.
pub struct Pass<'a> {
    footprint: &'a Footprint,
    extent: &'a Extent,
    ledger: &'a Ledger,
    pasts: Vec<Past<'a>>,
    pieces: Vec<Piece<'a>>,
    /// Latent frames that were pushed.
    pushed: u32,
    /// Frames that came out and are kept, where they are.
    kept: Option<Vec<Entry<'a>>>,
}

impl<'a> Pass<'a> {
    pub fn new(footprint: &'a Footprint, extent: &'a Extent, ledger: &'a Ledger) -> Self {
        let pasts = footprint.layers.iter().map(|_| Past::default()).collect();
        let kept = extent.tiled.map(|_| Vec::new());
        Self { footprint, extent, ledger, pasts, pieces: Vec::new(), pushed: 0, kept }
    }

    /// The most held while the next latent frames go all the way through.
    pub fn push(&mut self, count: u32) -> f64 {
        let f = self.footprint;
        self.ledger.take_peak();
        let values = f64::from(count) * f.layers.first().map_or(0.0, |layer| layer.into as f64);
        let frames = Rc::new(self.ledger.take(values * f.pixels(self.extent, 1) * f.rest));
        let piece = Piece { layer: 0, first: self.pushed, count, frames, hidden: None, origin: None };
        self.pushed += count;
        self.pieces.push(piece);
        while let Some(mut piece) = self.pieces.pop() {
            let Some(layer) = f.layers.get(piece.layer) else {
                self.leave(piece);
                continue;
            };
            let most = (f64::from(self.extent.frames) * f64::from(layer.frames) / f.scale.time).floor().max(1.0);
            if f64::from(piece.count) > most {
                let rest = piece.split(most as u32);
                self.pieces.push(rest);
            }
            self.layer(layer, &mut piece);
            piece.layer += 1;
            self.pieces.push(piece);
        }
        self.ledger.take_peak()
    }

    /// Latent frames that cost what those before them do: only what they leave behind is counted.
    pub fn skip(&mut self, count: u32) {
        let (f, ledger) = (self.footprint, self.ledger);
        self.pushed += count;
        if let Some(kept) = &mut self.kept {
            kept.push(ledger.take(f64::from(count) * f.scale.time * f.frame_bytes(self.extent)));
        }
    }

    /// Bytes of the causal state.
    pub fn state(&self) -> f64 {
        self.pasts.iter().flat_map(|past| &past.frames).map(|frame| frame.bytes).sum()
    }

    /// Frames of this round so far.
    pub fn frames_of_round(&self) -> f64 {
        let bytes: f64 = self.kept.iter().flatten().map(|frames| frames.bytes).sum();
        bytes / self.footprint.frame_bytes(self.extent)
    }

    /// The most held while the frames of a round are weighted and added to the others; then they are gone.
    pub fn gathers(&mut self) -> f64 {
        let last = self.kept.iter().flatten().last().map_or(0.0, |frames| frames.bytes);
        let held = self.ledger.held.get() + last;
        self.kept.iter_mut().for_each(Vec::clear);
        held
    }

    fn take(&self, bytes: f64) -> Entry<'a> {
        self.ledger.take(bytes)
    }

    /// Frames in f32, clamped, and as they are delivered.
    fn leave(&mut self, piece: Piece<'a>) {
        let f = self.footprint;
        let frames = f64::from(piece.count) * f.frame_bytes(self.extent);
        let own = frames * f.rest / 4.0;
        let mut unpatched = piece.frames.clone();
        if f.scale.patch > 1.0 {
            let _squares = (f.layout == Layout::ChannelsLast).then(|| self.take(own));
            unpatched = Rc::new(self.take(own));
        }
        let wide = (f.rest < 4.0).then(|| self.take(frames));
        let clamped = self.take(frames);
        drop((wide, piece));
        match &mut self.kept {
            Some(kept) => kept.push(clamped),
            // In the order of a file's frames, in host memory.
            None if f.on_cpu && f.layout == Layout::ChannelsLast && f.scale.patch == 1.0 => drop(self.take(frames)),
            None => {}
        }
        drop(unpatched);
    }

    fn layer(&mut self, layer: &Layer, piece: &mut Piece<'a>) {
        let f = self.footprint;
        let pixels = f.pixels(self.extent, layer.side);
        let side = f64::from(layer.side) / f.scale.space;
        let height = (f64::from(self.extent.height) * side).max(1.0);
        let rows = self.extent.band.map_or(height, |band| {
            let whole = f64::from(self.extent.height.max(1));
            (f64::from(band) * height / whole).floor().max(LEAST_ROWS as f64).min(height)
        });
        let place = Place { layer, count: f64::from(piece.count), pixels, height, rows };
        let ledger = self.ledger;
        let room = |values: f64| Rc::new(ledger.take(place.count * values * f.rest));
        match layer.kind {
            Kind::Pointwise => piece.frames = self.pointwise(&place, 1.0),
            Kind::Convolve { normed } => {
                let output = room(place.output());
                self.causal(piece, &place, normed);
                piece.frames = output;
            }
            Kind::Begin => piece.origin = Some(std::mem::replace(&mut piece.frames, room(place.input()))),
            Kind::Hide { shortcut } => {
                piece.hidden = Some(room(place.output()));
                self.causal(piece, &place, true);
                if shortcut {
                    piece.frames = self.pointwise(&place, 1.0);
                }
            }
            Kind::Sum => {
                self.causal(piece, &place, true);
                piece.hidden = None;
            }
            Kind::Attention => {
                let output = room(place.input());
                self.attention(&place);
                piece.frames = output;
            }
            Kind::Double => self.double(piece, &place),
            Kind::Upsample => piece.frames = self.upsample(&place),
            Kind::End { .. } => {
                // Repeated, and laid out.
                drop(self.take(2.0 * place.output() * f.rest));
                piece.origin = None;
            }
        }
    }

    /// What `UnitNorm::forward` holds of a frame besides input and output.
    fn norm(&self, place: &Place<'_>) {
        if self.footprint.winograd.is_none() {
            let wide = if self.footprint.rest < 4.0 { 2.0 } else { 1.0 };
            drop(self.take(4.0 * (wide * place.input() + place.pixels)));
        }
    }

    fn causal(&mut self, piece: &Piece<'a>, place: &Place<'_>, normed: bool) {
        let f = self.footprint;
        if place.layer.scatters() {
            return self.scattered(piece, place);
        }
        let mut past = std::mem::take(&mut self.pasts[piece.layer]);
        let mut done = 0;
        while done < piece.count {
            if f.winograd.is_some() {
                let input = self.take(place.input() * f.rest);
                drop(self.take(winograd::causal_scratch_bytes(place.layer.into as i64) as f64));
                past.push(input);
                done += 1;
                continue;
            }
            let alone = past.frames.is_empty();
            let together = if alone || f.on_cpu { 1 } else { piece.count - done };
            let frame = place.input() * f.convolution;
            let frames = f64::from(together);
            let mut own = None;
            if normed {
                own = Some(self.take(frames * place.input() * f.rest));
                self.norm(place);
            }
            if f.converts() {
                own = Some(self.take(frames * frame));
            }
            let window = (!alone).then(|| {
                let zeros = self.take(past.missing(frame));
                if f.layout == Layout::ChannelsLast {
                    drop(self.take(zeros.bytes));
                }
                self.take((frames + 2.0) * frame)
            });
            let kept: Vec<Entry<'a>> = (0..together.min(TAPS as u32 - 1)).map(|_| self.take(frame)).collect();
            if !alone {
                own = None;
            }
            for rows in [place.rows, place.height % place.rows] {
                if rows > 0.0 {
                    let part = self.rows(place, frames, alone, rows);
                    drop(self.converted(part, place.output() * frames * rows / place.height));
                }
            }
            drop((window, own));
            kept.into_iter().for_each(|frame| past.push(frame));
            done += together;
        }
        self.pasts[piece.layer] = past;
    }

    /// `Causal::rows`.
    fn rows(&self, place: &Place<'_>, frames: f64, alone: bool, rows: f64) -> Entry<'a> {
        let f = self.footprint;
        let (into, out) = (place.layer.into as f64, place.layer.out as f64);
        let row = place.pixels / place.height;
        let taps = if alone { 1.0 } else { TAPS as f64 };
        let stack = |rows: f64| frames * taps * into * rows * row * f.convolution;
        let _weight = alone.then(|| self.take(9.0 * into * out * f.convolution));
        let banded = rows < place.height;
        let convolved = if banded { rows + 2.0 } else { rows };
        if banded && !alone {
            drop(self.take(stack(rows + 1.0) + stack(rows + 2.0)));
        }
        let copied = !alone || banded;
        let _stacked = copied.then(|| self.take(stack(convolved)));
        self.convolve(frames, taps * into, convolved * row, frames * out, rows * row, 9.0)
    }

    /// A result in the type that layers hand on.
    fn converted(&self, part: Entry<'a>, values: f64) -> Entry<'a> {
        if self.footprint.converts() { self.take(values * self.footprint.rest) } else { part }
    }

    /// Holds what libtorch's convolution does, and gives the output: `into` channels of `frames` frames, `out` values of all per pixel.
    fn convolve(&self, frames: f64, into: f64, pixels: f64, out: f64, out_pixels: f64, taps: f64) -> Entry<'a> {
        let f = self.footprint;
        let (input, output) = (frames * into * pixels, out * out_pixels * f.convolution);
        if taps == 1.0 && f.layout == Layout::ChannelsFirst {
            return self.take(output);
        }
        let scratch = &f.scratch;
        let few = input <= scratch.small as f64 && frames == 1.0;
        if scratch.small > 0 && (few || taps == 1.0 && f.threads == 1.0) {
            // libtorch's own, laid out tap by tap.
            let output = self.take(output);
            if taps > 1.0 {
                drop(self.take(taps * into * out_pixels * frames * f.convolution));
            }
            return output;
        }
        let out_channels = out / frames;
        let weights = scratch.weights * taps * padded(into) * padded(out_channels) * f.convolution;
        let _constant = self.take(convolution_bytes());
        if scratch.inputs > 1.0 {
            let output = self.take(output);
            let inputs = if taps > 1.0 { scratch.inputs } else { 0.0 };
            drop(self.take(inputs * input * f.convolution + weights));
            return output;
        }
        // Input and output are put into another order, the output when the input's copy is gone. Less than a block of channels stays as it is.
        let copied = if into < block() { 0.0 } else { into };
        let copy = |channels: f64, pixels: f64| scratch.inputs * frames * padded(channels) * pixels * f.convolution;
        let other = (scratch.inputs > 0.0).then(|| self.take(copy(out_channels, out_pixels)));
        let output = match other {
            Some(_) => {
                drop(self.take(copy(copied, pixels) + weights));
                self.take(output)
            }
            None => {
                let output = self.take(output);
                drop(self.take(weights));
                output
            }
        };
        drop(other);
        output
    }

    /// `each` in layers.rs: on a CPU frames are convolved one by one, `values` of output each.
    fn each(&self, count: f64, values: f64, convolve: impl Fn(f64) -> Entry<'a>) -> Entry<'a> {
        if count == 1.0 || !self.footprint.on_cpu {
            return convolve(count);
        }
        let part = convolve(1.0);
        let output = self.take(count * values * self.footprint.rest);
        drop(part);
        // The frames after the first are convolved beside the whole output.
        drop(convolve(1.0));
        output
    }

    /// A 1×1 convolution of `taps` frames side by side; the input is held by others, or passed on.
    fn pointwise(&self, place: &Place<'_>, scale: f64) -> Shared<'a> {
        let f = self.footprint;
        let (into, out) = (place.layer.into as f64, scale * place.layer.out as f64);
        Rc::new(self.each(place.count, out * place.pixels, |count| {
            let input = f.converts().then(|| self.take(count * place.input() * f.convolution));
            let output = self.convolve(count, into, place.pixels, count * out, place.pixels, 1.0);
            drop(input);
            self.converted(output, count * out * place.pixels)
        }))
    }

    /// `Causal::Scattered`: sums for the next two frames are kept.
    fn scattered(&mut self, piece: &Piece<'a>, place: &Place<'_>) {
        let f = self.footprint;
        let (into, sum) = (place.layer.into as f64, place.output() * f.rest);
        for _ in 0..piece.count {
            let mut input = self.take(place.input() * f.rest);
            self.norm(place);
            let parts = match f.winograd {
                Some(_) => {
                    let parts = self.take(TAPS as f64 * sum);
                    drop(self.take(winograd::scratch_bytes(place.layer.into as i64, false) as f64));
                    parts
                }
                None => {
                    if f.converts() {
                        input = self.take(place.input() * f.convolution);
                    }
                    let out = TAPS as f64 * place.layer.out as f64;
                    let parts = self.convolve(1.0, into, place.pixels, out, place.pixels, 9.0);
                    self.converted(parts, out * place.pixels)
                }
            };
            drop(input);
            let kept = [self.take(sum), self.take(sum)];
            drop(self.take(sum));
            drop(parts);
            self.pasts[piece.layer].frames = kept.into();
            self.pasts[piece.layer].begun = true;
        }
    }

    fn attention(&self, place: &Place<'_>) {
        let f = self.footprint;
        let (own, each) = (place.input() * f.rest, place.input() * f.convolution);
        let mut tokens = self.take(own);
        self.norm(place);
        if f.converts() {
            tokens = self.take(each);
        }
        if f.layout == Layout::ChannelsFirst {
            tokens = self.take(each);
        }
        let all = self.take(3.0 * each);
        drop(tokens);
        let parts = self.take(3.0 * each);
        drop(all);
        // Keys laid out, or the mix.
        drop(self.take(each + f.attention_bytes * self.queries(place.pixels)));
        drop(parts);
        // The mix and its product; the product, and the sum with the input.
        drop(self.take(2.0 * each + if f.converts() { own } else { 0.0 }));
        drop(self.take(each + 2.0 * own));
    }

    /// Of libtorch's fused attention, the share of its queries per thread that so few tokens leave.
    fn queries(&self, tokens: f64) -> f64 {
        match tokens {
            _ if self.footprint.own_attention => 1.0,
            tokens if tokens < 192.0 => 0.125,
            tokens if tokens < 768.0 => 0.25,
            _ => 1.0,
        }
    }

    fn double(&mut self, piece: &mut Piece<'a>, place: &Place<'_>) {
        let f = self.footprint;
        let mut past = std::mem::take(&mut self.pasts[piece.layer]);
        let (frame, alone) = (place.input() * f.rest, u32::from(!past.begun && piece.count > 0));
        let (rest, first) = (f64::from(piece.count - alone), f64::from(alone));
        if rest > 0.0 {
            let zeros = self.take(past.missing(frame));
            if f.layout == Layout::ChannelsLast {
                drop(self.take(zeros.bytes));
            }
            let window = self.take((rest + 2.0) * frame);
            drop(zeros);
            let mut stacked = self.take(3.0 * rest * frame);
            drop(window);
            if f.converts() {
                stacked = self.take(3.0 * rest * place.input() * f.convolution);
            }
            let channels = place.layer.into as f64;
            let doubled = self.each(rest, 2.0 * place.input(), |count| {
                let part =
                    self.convolve(count, 3.0 * channels, place.pixels, 2.0 * count * channels, place.pixels, 1.0);
                self.converted(part, 2.0 * count * place.input())
            });
            drop(stacked);
            let both = self.take(2.0 * rest * frame);
            let kept: Vec<Entry<'a>> = (0..(rest as u32).min(TAPS as u32 - 1)).map(|_| self.take(frame)).collect();
            drop(doubled);
            piece.frames = if first > 0.0 {
                let output = self.take((first + 2.0 * rest) * frame);
                drop(both);
                Rc::new(output)
            } else {
                Rc::new(both)
            };
            kept.into_iter().for_each(|frame| past.push(frame));
        }
        past.begun = true;
        piece.count = alone + 2 * (piece.count - alone);
        piece.first = (2 * piece.first).saturating_sub(1);
        self.pasts[piece.layer] = past;
    }

    fn upsample(&self, place: &Place<'_>) -> Shared<'a> {
        let f = self.footprint;
        let values = 4.0 * place.count * place.output();
        if f.winograd.is_some() {
            let output = self.take(values * f.rest);
            drop(self.take(winograd::scratch_bytes(place.layer.into as i64, true) as f64));
            return Rc::new(output);
        }
        let (into, out, pixels) = (place.layer.into as f64, place.layer.out as f64, 4.0 * place.pixels);
        Rc::new(self.each(place.count, 4.0 * place.output(), |count| {
            let input = f.converts().then(|| self.take(count * place.input() * f.convolution));
            let repeated = self.take(4.0 * count * place.input() * f.convolution);
            drop(input);
            let output = self.convolve(count, into, pixels, count * out, pixels, 9.0);
            drop(repeated);
            self.converted(output, 4.0 * count * place.output())
        }))
    }
}
