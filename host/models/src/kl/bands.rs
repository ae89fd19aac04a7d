//! A network in bands of rows: each convolution takes its input through norm and activation on the
//! way, so that no normed picture is ever held, and a norm's sums are taken as its picture is made.
//! The result is the whole picture's for every height of the bands.
//!
//! An upsampled picture is the largest that there is. In bands it is not kept: its sums are taken
//! in a first pass over its bands, and the residual layer after it computes it again, band by band.

use std::ops::Range;

use tilewright_nn::{
    End, Laps, Ops, Rows, Store,
    layers::{Attention, Conv, Downsample, Norm, Resnet},
};

use super::network::Middle;
use crate::{
    Result,
    progress::{Step, Track},
};

/// The fewest rows of a band: below this most of it would be its neighbours' rows.
const LEAST_ROWS: i64 = 8;

/// One pass in bands.
pub(super) struct Bands<'o, O: Ops> {
    pub ops: &'o O,
    /// Rows of the picture in a band; none for the whole picture at once.
    pub band: Option<i64>,
    /// Rows of the picture.
    pub height: i64,
}

/// A picture between two layers, with its sums.
pub(super) enum Picture<'a, O: Ops> {
    Held {
        tensor: O::Tensor,
        sums: O::Sums,
    },
    /// Computed when a layer needs it.
    Upsampled {
        from: O::Tensor,
        by: &'a Conv<O>,
        sums: O::Sums,
    },
}

/// Some rows of a picture: its own, or computed for the moment.
enum PictureRows<'a, O: Ops> {
    Own(&'a O::Tensor),
    Computed { tensor: O::Tensor, first: i64 },
}

impl<O: Ops> PictureRows<'_, O> {
    fn rows(&self, height: i64) -> Rows<'_, O::Tensor> {
        match self {
            PictureRows::Own(tensor) => Rows { tensor, first: 0, height },
            PictureRows::Computed { tensor, first } => Rows { tensor, first: *first, height },
        }
    }

    /// These rows and no others.
    fn only(&self, ops: &O, rows: &Range<i64>) -> Result<O::Tensor> {
        let (tensor, first) = match self {
            PictureRows::Own(tensor) => (*tensor, 0),
            PictureRows::Computed { tensor, first } => (tensor, *first),
        };
        narrow_rows(ops, tensor, &(rows.start - first..rows.end - first))
    }
}

fn narrow_rows<O: Ops>(ops: &O, tensor: &O::Tensor, rows: &Range<i64>) -> Result<O::Tensor> {
    Ok(ops.narrow(tensor, 2, rows.start, rows.end - rows.start)?)
}

impl<O: Ops> Picture<'_, O> {
    fn sums(&self) -> &O::Sums {
        match self {
            Picture::Held { sums, .. } | Picture::Upsampled { sums, .. } => sums,
        }
    }

    fn is_held(&self) -> bool {
        matches!(self, Picture::Held { .. })
    }

    /// [N, C, H, W]
    fn extents(&self, ops: &O) -> Result<[i64; 4]> {
        Ok(match self {
            Picture::Held { tensor, .. } => ops.extents(tensor)?,
            Picture::Upsampled { from, by, .. } => {
                let [batch, _, height, width] = ops.extents(from)?;
                [batch, by.out(), 2 * height, 2 * width]
            }
        })
    }
}

impl<O: Ops> Bands<'_, O> {
    /// The middle block.
    pub fn middle<'a>(
        &self,
        middle: &'a Middle<O>,
        mut picture: Picture<'a, O>,
        track: &mut Track<'_>,
    ) -> Result<Picture<'a, O>> {
        for (index, resnet) in middle.resnets.iter().enumerate() {
            picture = self.resnet(resnet, picture, track)?;
            if let (0, Some(attention)) = (index, &middle.attention) {
                picture = self.attention(attention, picture)?;
                track(Step::Layer)?;
            }
        }
        Ok(picture)
    }

    /// The bands of a picture of this height. A picture that is held needs none for Winograd's
    /// filtering, which holds next to nothing besides its input and output.
    fn bands(&self, conv: &Conv<O>, is_held: bool, height: i64) -> Laps {
        let rows = match self.band {
            None => height,
            Some(_) if is_held && conv.is_filtered() => height,
            Some(band) => (band * height / self.height.max(1)).max(LEAST_ROWS).min(height),
        };
        self.ops.laps(0..height, rows).over_rows()
    }

    /// Begins a band, of a picture that is divided into several.
    fn begin_rows(&self, rows: &Range<i64>, height: i64) -> Option<O::Running> {
        (*rows != (0..height)).then(|| self.ops.begin_rows(rows))
    }

    /// A convolution of a picture that nothing is known of.
    pub fn convolve<'a>(&self, conv: &Conv<O>, input: O::Tensor) -> Result<Picture<'a, O>> {
        let ops = self.ops;
        let [batch, _, height, width] = ops.extents(&input)?;
        let tensor = ops.empty([batch, conv.out(), height, width])?;
        let mut sums = ops.sums(batch, conv.out())?;
        for rows in self.bands(conv, true, height) {
            let _rows = self.begin_rows(&rows, height);
            let part = narrow_rows(ops, &tensor, &rows)?;
            conv.forward_rows(ops, Rows::all(ops, &input)?, None, rows, Store::Onto(&part), &mut sums)?;
        }
        ops.see(conv.layer(), End::In, &input)?;
        ops.see(conv.layer(), End::Out, &tensor)?;
        Ok(Picture::Held { tensor, sums })
    }

    /// Twice the size. The picture is held if `is_kept`, and computed again by the layers that need
    /// it if not.
    pub fn upsample<'a>(
        &self,
        conv: &'a Conv<O>,
        is_kept: bool,
        picture: Picture<'a, O>,
        track: &mut Track<'_>,
    ) -> Result<Picture<'a, O>> {
        let ops = self.ops;
        let [batch, _, height, width] = picture.extents(ops)?;
        let from = self.to_tensor(picture)?;
        let mut sums = ops.sums(batch, conv.out())?;
        let shape = [batch, conv.out(), 2 * height, 2 * width];
        let kept = if is_kept { Some(ops.empty(shape)?) } else { None };
        for rows in self.bands(conv, is_kept, 2 * height) {
            let _rows = self.begin_rows(&rows, 2 * height);
            let done = rows.end as f64 / (2 * height) as f64;
            // The sums alone need no output.
            let part = kept.as_ref().map(|kept| narrow_rows(ops, kept, &rows)).transpose()?;
            let store = part.as_ref().map_or(Store::Nowhere, Store::Onto);
            conv.forward_rows(ops, Rows::all(ops, &from)?, None, rows, store, &mut sums)?;
            track(Step::Within(done))?;
        }
        track(Step::Layer)?;
        if let Some(kept) = &kept {
            ops.see(conv.layer(), End::In, &from)?;
            ops.see(conv.layer(), End::Out, kept)?;
        }
        Ok(match kept {
            Some(tensor) => Picture::Held { tensor, sums },
            None => Picture::Upsampled { from, by: conv, sums },
        })
    }

    /// A picture as a tensor, computed if it is not held.
    fn to_tensor(&self, picture: Picture<'_, O>) -> Result<O::Tensor> {
        match picture {
            Picture::Held { tensor, .. } => Ok(tensor),
            Picture::Upsampled { from, by, .. } => Ok(by.forward(self.ops, from)?),
        }
    }

    /// The rows that a 3×3 convolution needs for these rows of its output.
    fn needed_rows<'p>(&self, picture: &'p Picture<'_, O>, rows: &Range<i64>) -> Result<PictureRows<'p, O>> {
        match picture {
            Picture::Held { tensor, .. } => Ok(PictureRows::Own(tensor)),
            Picture::Upsampled { from, by, .. } => {
                let ops = self.ops;
                let [batch, channels, height, width] = picture.extents(ops)?;
                let wider = (rows.start - 1).max(0)..(rows.end + 1).min(height);
                let tensor = ops.empty([batch, channels, wider.end - wider.start, width])?;
                let first = wider.start;
                // Counted already.
                let mut sums = ops.sums(batch, channels)?;
                by.forward_rows(ops, Rows::all(ops, from)?, None, wider, Store::Onto(&tensor), &mut sums)?;
                Ok(PictureRows::Computed { tensor, first })
            }
        }
    }

    /// A residual layer.
    pub fn resnet<'a>(
        &self,
        resnet: &Resnet<O>,
        picture: Picture<'a, O>,
        track: &mut Track<'_>,
    ) -> Result<Picture<'a, O>> {
        let ops = self.ops;
        let _running = ops.begin(&resnet.block);
        if let Picture::Held { tensor, .. } = &picture {
            ops.see(&resnet.block, End::In, tensor)?;
        }
        let [batch, _, height, width] = picture.extents(ops)?;
        let (conv1, conv2) = (&resnet.conv1, &resnet.conv2);
        let before = resnet.norm1.affine(ops, picture.sums())?;
        let is_held = picture.is_held();
        let shape = [batch, conv1.out(), height, width];
        let hidden = ops.empty(shape)?;
        let mut sums = ops.sums(batch, conv1.out())?;
        let mut output: Option<O::Tensor> = None;
        for rows in self.bands(conv1, is_held, height) {
            let _rows = self.begin_rows(&rows, height);
            let all = rows == (0..height);
            let done = rows.end as f64 / height as f64;
            let part = self.needed_rows(&picture, &rows)?;
            let onto = narrow_rows(ops, &hidden, &rows)?;
            let store = Store::Onto(&onto);
            conv1.forward_rows(ops, part.rows(height), Some(&before), rows.clone(), store, &mut sums)?;
            if resnet.shortcut.is_some() || !is_held {
                let only = part.only(ops, &rows)?;
                // Rows of one sample lie together; those of several would be copied.
                for samples in ops.laps(0..batch, if all { batch } else { 1 }) {
                    let count = samples.end - samples.start;
                    let only = ops.narrow(&only, 0, samples.start, count)?;
                    let carried = match &resnet.shortcut {
                        Some(shortcut) => shortcut.forward(ops, only)?,
                        None => only,
                    };
                    if all && resnet.shortcut.is_some() {
                        output = Some(carried);
                        continue;
                    }
                    let kept = match &output {
                        Some(kept) => kept,
                        None => output.insert(ops.empty(shape)?),
                    };
                    let place = ops.narrow(&narrow_rows(ops, kept, &rows)?, 0, samples.start, count)?;
                    ops.copy_onto(&place, &carried)?;
                }
            }
            track(Step::Within(done / 2.0))?;
        }
        // The convolution's input is normed rows, which are never held all at once.
        ops.see(conv1.layer(), End::Out, &hidden)?;
        // The sum may take the place of the input, which nothing else needs now.
        let output = match (output, picture) {
            (Some(output), _) => output,
            (None, picture) => self.to_tensor(picture)?,
        };
        let before = resnet.norm2.affine(ops, &sums)?;
        let mut sums = ops.sums(batch, conv2.out())?;
        for rows in self.bands(conv2, true, height) {
            let _rows = self.begin_rows(&rows, height);
            let done = rows.end as f64 / height as f64;
            let onto = narrow_rows(ops, &output, &rows)?;
            let store = Store::Added(&onto);
            conv2.forward_rows(ops, Rows::all(ops, &hidden)?, Some(&before), rows, store, &mut sums)?;
            track(Step::Within(0.5 + done / 2.0))?;
        }
        track(Step::Layer)?;
        // With the shortcut, which it is added to at once.
        ops.see(conv2.layer(), End::Out, &output)?;
        ops.see(&resnet.block, End::Out, &output)?;
        Ok(Picture::Held { tensor: output, sums })
    }

    /// Half the size. A picture that is held is needed once more only as long as this takes: there
    /// is no band of it to save.
    pub fn downsample<'a>(&self, down: &Downsample<O>, picture: Picture<'_, O>) -> Result<Picture<'a, O>> {
        let tensor = down.forward(self.ops, self.to_tensor(picture)?)?;
        self.count_sums(tensor)
    }

    fn attention<'a>(&self, attention: &Attention<O>, picture: Picture<'_, O>) -> Result<Picture<'a, O>> {
        let tensor = attention.forward(self.ops, self.to_tensor(picture)?)?;
        self.count_sums(tensor)
    }

    fn count_sums<'a>(&self, tensor: O::Tensor) -> Result<Picture<'a, O>> {
        let [batch, channels, ..] = self.ops.extents(&tensor)?;
        let mut sums = self.ops.sums(batch, channels)?;
        self.ops.add_up(&mut sums, &tensor)?;
        Ok(Picture::Held { tensor, sums })
    }

    /// A norm, SiLU and a convolution, after which no norm comes.
    pub fn norm_and_convolve(
        &self,
        norm: &Norm<O>,
        conv: &Conv<O>,
        picture: &Picture<'_, O>,
        track: &mut Track<'_>,
    ) -> Result<O::Tensor> {
        let ops = self.ops;
        let [batch, _, height, width] = picture.extents(ops)?;
        let before = norm.affine(ops, picture.sums())?;
        let output = ops.empty([batch, conv.out(), height, width])?;
        let mut sums = ops.sums(batch, conv.out())?;
        for rows in self.bands(conv, picture.is_held(), height) {
            let _rows = self.begin_rows(&rows, height);
            let done = rows.end as f64 / height as f64;
            let part = self.needed_rows(picture, &rows)?;
            let onto = narrow_rows(ops, &output, &rows)?;
            conv.forward_rows(ops, part.rows(height), Some(&before), rows, Store::Onto(&onto), &mut sums)?;
            track(Step::Within(done))?;
        }
        ops.see(conv.layer(), End::Out, &output)?;
        Ok(output)
    }
}
