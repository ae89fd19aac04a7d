//! A network in bands of rows: each convolution takes its input through norm and activation on the way, so that no normed picture is
//! ever held, and a norm's sums are taken as its picture is made. The result is the whole picture's for every height of the bands.
//!
//! An upsampled picture is the largest that there is. In bands it is not kept: its sums are taken in a first pass over its bands, and
//! the residual layer after it computes it again, band by band. What is held at once is counted in `footprint.rs`: change both.

use std::ops::Range;

use tch::Tensor;
use tilewright_torch::winograd::{Affine, Rows, Sums};

use super::{
    decoder::Decoder,
    layers::{Attention, Conv, Downsample, Middle, Norm, Resnet, add_up, empty},
    progress::Progress,
};
use crate::{ComputeFormat, Result};

/// The fewest rows of a band: below this most of it would be its neighbours' rows.
pub(super) const LEAST_ROWS: i64 = 8;

/// One pass in bands.
pub(super) struct Bands {
    pub format: ComputeFormat,
    /// Rows of the picture in a band; none for the whole picture at once.
    pub band: Option<i64>,
    /// Rows of the picture.
    pub height: i64,
}

/// A picture between two layers, with its sums.
pub(super) enum Picture<'a> {
    Held {
        tensor: Tensor,
        sums: Sums,
    },
    /// Computed where it is needed.
    Upsampled {
        from: Tensor,
        by: &'a Conv,
        sums: Sums,
    },
}

/// Some rows of a picture: its own, or computed for the moment.
enum Part<'a> {
    Own(&'a Tensor),
    Computed { tensor: Tensor, first: i64 },
}

impl Part<'_> {
    fn rows(&self, height: i64) -> Rows<'_> {
        match self {
            Part::Own(tensor) => Rows::all(tensor),
            Part::Computed { tensor, first } => Rows { tensor, first: *first, height },
        }
    }

    /// These rows and no others.
    fn only(&self, rows: &Range<i64>) -> Result<Tensor> {
        let (tensor, first) = match self {
            Part::Own(tensor) => (*tensor, 0),
            Part::Computed { tensor, first } => (tensor, *first),
        };
        narrowed(tensor, &(rows.start - first..rows.end - first))
    }
}

fn narrowed(tensor: &Tensor, rows: &Range<i64>) -> Result<Tensor> {
    Ok(tensor.f_narrow(2, rows.start, rows.end - rows.start)?)
}

impl Picture<'_> {
    fn sums(&self) -> &Sums {
        match self {
            Picture::Held { sums, .. } | Picture::Upsampled { sums, .. } => sums,
        }
    }

    /// [N, C, H, W]
    fn size(&self) -> [i64; 4] {
        let (tensor, channels, scale) = match self {
            Picture::Held { tensor, .. } => (tensor, tensor.size()[1], 1),
            Picture::Upsampled { from, by, .. } => (from, by.out(), 2),
        };
        let size = tensor.size();
        [size[0], channels, scale * size[2], scale * size[3]]
    }
}

impl Bands {
    /// A decode, from what enters `conv_in` to what leaves `conv_out`.
    pub fn decode(&self, decoder: &Decoder, input: Tensor, progress: &mut Progress<'_>) -> Result<Tensor> {
        let mut picture = self.convolved(&decoder.conv_in, input)?;
        progress.layer()?;
        picture = self.middle(&decoder.middle, picture, progress)?;
        let kept = decoder.config().upsampled_kept();
        let mut kept = kept.into_iter();
        for up in &decoder.ups {
            for resnet in &up.resnets {
                picture = self.resnet(resnet, picture, progress)?;
            }
            if let Some(conv) = &up.upsample {
                let kept = kept.next() != Some(false) || self.band.is_none();
                picture = self.upsample(conv, kept, picture, progress)?;
            }
        }
        let output = self.normed(&decoder.norm_out, &decoder.conv_out, &picture, progress)?;
        progress.layer()?;
        Ok(output)
    }

    /// The middle block.
    pub fn middle<'a>(
        &self,
        middle: &'a Middle,
        mut picture: Picture<'a>,
        progress: &mut Progress<'_>,
    ) -> Result<Picture<'a>> {
        for (index, resnet) in middle.resnets.iter().enumerate() {
            picture = self.resnet(resnet, picture, progress)?;
            if let (0, Some(attention)) = (index, &middle.attention) {
                picture = self.attention(attention, picture)?;
                progress.layer()?;
            }
        }
        Ok(picture)
    }

    /// The bands of a picture of this height. A picture that is held needs none for Winograd's filtering, which holds next to nothing
    /// besides its input and output.
    fn bands(&self, conv: &Conv, held: bool, height: i64) -> impl Iterator<Item = Range<i64>> + use<> {
        let rows = match (self.band, conv) {
            (None, _) => height,
            (Some(_), Conv::Winograd(_)) if held => height,
            (Some(band), _) => (band * height / self.height.max(1)).max(LEAST_ROWS).min(height),
        };
        (0..height).step_by(rows.max(1) as usize).map(move |start| start..(start + rows).min(height))
    }

    /// Rows of a convolution's output, added to `output` with `add`, stored there without, and counted.
    fn convolve(
        &self,
        conv: &Conv,
        input: Rows<'_>,
        before: Option<&Affine>,
        rows: Range<i64>,
        (output, add): (Option<&Tensor>, bool),
        sums: &mut Sums,
    ) -> Result<()> {
        match conv {
            Conv::Winograd(conv) => {
                conv.convolve(input, before, rows, output.filter(|_| add), output, Some(sums))?;
            }
            Conv::Plain(conv) => {
                let part = conv.rows(input, before, rows, &self.format)?;
                let mut part = match output {
                    Some(output) if add => output.shallow_clone().f_add_(&part)?,
                    _ => part,
                };
                if let (Some(output), false) = (output, add) {
                    output.shallow_clone().f_copy_(&part)?;
                    part = output.shallow_clone();
                }
                add_up(sums, &part)?;
            }
        }
        Ok(())
    }

    fn empty(&self, shape: [i64; 4], like: &Tensor) -> Result<Tensor> {
        empty(shape, &self.format, like.device())
    }

    pub fn convolved<'a>(&self, conv: &Conv, input: Tensor) -> Result<Picture<'a>> {
        let (batch, _, height, width) = input.size4()?;
        let tensor = self.empty([batch, conv.out(), height, width], &input)?;
        let mut sums = Sums::new(batch, conv.out());
        for rows in self.bands(conv, true, height) {
            let part = narrowed(&tensor, &rows)?;
            self.convolve(conv, Rows::all(&input), None, rows, (Some(&part), false), &mut sums)?;
        }
        Ok(Picture::Held { tensor, sums })
    }

    fn upsample<'a>(
        &self,
        conv: &'a Conv,
        kept: bool,
        picture: Picture<'a>,
        progress: &mut Progress<'_>,
    ) -> Result<Picture<'a>> {
        let [batch, _, height, width] = picture.size();
        let from = self.held(picture)?;
        let mut sums = Sums::new(batch, conv.out());
        let shape = [batch, conv.out(), 2 * height, 2 * width];
        let kept = if kept { Some(self.empty(shape, &from)?) } else { None };
        for rows in self.bands(conv, kept.is_some(), 2 * height) {
            let done = rows.end as f64 / (2 * height) as f64;
            // The sums alone need no output.
            let part = kept.as_ref().map(|kept| narrowed(kept, &rows)).transpose()?;
            self.convolve(conv, Rows::all(&from), None, rows, (part.as_ref(), false), &mut sums)?;
            progress.within(done)?;
        }
        progress.layer()?;
        Ok(match kept {
            Some(tensor) => Picture::Held { tensor, sums },
            None => Picture::Upsampled { from, by: conv, sums },
        })
    }

    /// A picture as a tensor, computed where it is not held.
    fn held(&self, picture: Picture<'_>) -> Result<Tensor> {
        match picture {
            Picture::Held { tensor, .. } => Ok(tensor),
            Picture::Upsampled { from, by, .. } => by.forward(from, &self.format),
        }
    }

    /// What a 3×3 convolution needs for these rows of its output.
    fn part<'p>(&self, picture: &'p Picture<'_>, rows: &Range<i64>) -> Result<Part<'p>> {
        match picture {
            Picture::Held { tensor, .. } => Ok(Part::Own(tensor)),
            Picture::Upsampled { from, by, sums } => {
                let [batch, channels, height, width] = picture.size();
                let wider = (rows.start - 1).max(0)..(rows.end + 1).min(height);
                let tensor = self.empty([batch, channels, wider.end - wider.start, width], from)?;
                let first = wider.start;
                // Counted already.
                let mut sums = Sums::new(batch, sums.channels as i64);
                self.convolve(by, Rows::all(from), None, wider, (Some(&tensor), false), &mut sums)?;
                Ok(Part::Computed { tensor, first })
            }
        }
    }

    pub fn resnet<'a>(
        &self,
        resnet: &Resnet,
        picture: Picture<'a>,
        progress: &mut Progress<'_>,
    ) -> Result<Picture<'a>> {
        let [batch, _, height, width] = picture.size();
        let (conv1, conv2) = (&resnet.conv1, &resnet.conv2);
        let before = resnet.norm1.affine(picture.sums())?;
        let (is_held, like) = match &picture {
            Picture::Held { tensor, .. } => (true, tensor.shallow_clone()),
            Picture::Upsampled { from, .. } => (false, from.shallow_clone()),
        };
        let shape = [batch, conv1.out(), height, width];
        let hidden = self.empty(shape, &like)?;
        let mut sums = Sums::new(batch, conv1.out());
        let mut output: Option<Tensor> = None;
        for rows in self.bands(conv1, is_held, height) {
            let all = rows == (0..height);
            let done = rows.end as f64 / height as f64;
            let part = self.part(&picture, &rows)?;
            let into = narrowed(&hidden, &rows)?;
            self.convolve(conv1, part.rows(height), Some(&before), rows.clone(), (Some(&into), false), &mut sums)?;
            if resnet.shortcut.is_some() || !is_held {
                let only = part.only(&rows)?;
                // Rows of one sample lie together; those of several would be copied.
                let samples = if all { batch } else { 1 };
                for sample in (0..batch).step_by(samples as usize) {
                    let only = only.f_narrow(0, sample, samples)?;
                    let beside = match &resnet.shortcut {
                        Some(shortcut) => shortcut.forward(only, &self.format)?,
                        None => only,
                    };
                    if all && resnet.shortcut.is_some() {
                        output = Some(beside);
                        continue;
                    }
                    let kept = match &output {
                        Some(kept) => kept,
                        None => output.insert(self.empty(shape, &like)?),
                    };
                    narrowed(kept, &rows)?.f_narrow(0, sample, samples)?.f_copy_(&beside)?;
                }
            }
            progress.within(done / 2.0)?;
        }
        // The sum may take the place of the input, which nothing else needs now.
        let output = match (output, picture) {
            (Some(output), _) => output,
            (None, picture) => self.held(picture)?,
        };
        drop(like);
        let before = resnet.norm2.affine(&sums)?;
        let mut sums = Sums::new(batch, conv2.out());
        for rows in self.bands(conv2, true, height) {
            let done = rows.end as f64 / height as f64;
            let onto = narrowed(&output, &rows)?;
            self.convolve(conv2, Rows::all(&hidden), Some(&before), rows, (Some(&onto), true), &mut sums)?;
            progress.within(0.5 + done / 2.0)?;
        }
        progress.layer()?;
        Ok(Picture::Held { tensor: output, sums })
    }

    /// Half the size. A picture that is held is needed once more only as long as this takes: there is no band of it to save.
    pub fn downsample<'a>(&self, down: &Downsample, picture: Picture<'_>) -> Result<Picture<'a>> {
        let [batch, ..] = picture.size();
        let tensor = down.forward(self.held(picture)?, &self.format)?;
        let mut sums = Sums::new(batch, tensor.size()[1]);
        add_up(&mut sums, &tensor)?;
        Ok(Picture::Held { tensor, sums })
    }

    fn attention<'a>(&self, attention: &Attention, picture: Picture<'a>) -> Result<Picture<'a>> {
        let [batch, channels, ..] = picture.size();
        let tensor = attention.forward(self.held(picture)?, &self.format)?;
        let mut sums = Sums::new(batch, channels);
        add_up(&mut sums, &tensor)?;
        Ok(Picture::Held { tensor, sums })
    }

    pub fn normed(
        &self,
        norm: &Norm,
        conv: &Conv,
        picture: &Picture<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<Tensor> {
        let [batch, _, height, width] = picture.size();
        let before = norm.affine(picture.sums())?;
        let (is_held, like) = match picture {
            Picture::Held { tensor, .. } => (true, tensor),
            Picture::Upsampled { from, .. } => (false, from),
        };
        let output = self.empty([batch, conv.out(), height, width], like)?;
        let mut sums = Sums::new(batch, conv.out());
        for rows in self.bands(conv, is_held, height) {
            let done = rows.end as f64 / height as f64;
            let part = self.part(picture, &rows)?;
            let onto = narrowed(&output, &rows)?;
            self.convolve(conv, part.rows(height), Some(&before), rows, (Some(&onto), false), &mut sums)?;
            progress.within(done)?;
        }
        Ok(output)
    }
}
