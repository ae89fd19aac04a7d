//! The files of a sample: conditioning, noise and masks.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use tch::{Device, Kind, Tensor};
use tilewright_engine::ConditioningTensors;
use tilewright_media::Frame;
use tilewright_models::{Checkpoint, Error as ModelError};

use super::{
    MASK, NOISY, NOISY_SIGMA,
    conditioning_shape::{CONDITION, ConditioningShape, IMAGE, POOLED, TEXT, check_shape, missing, shape_in},
};
use crate::{Error, Result};

/// A mask at the latents' resolution, [1, 1, (T,) h, w]: a tensor of that size, or a picture, whose
/// red is scaled to it, as ComfyUI's `LoadImageMask` and `reshape_mask` do.
pub(super) fn mask(path: &Path, shape: &[i64]) -> Result<Tensor> {
    let mut expected = shape.to_vec();
    (expected[0], expected[1]) = (1, 1);
    // One mask may serve all frames.
    let mut flat = expected.clone();
    if flat.len() == 5 {
        flat[2] = 1;
    }
    let mask = match has_tensors(path)? {
        false => picture(path, &flat)?,
        true => {
            let mask = read(path, MASK)?;
            let found = mask.tensor.size();
            if found != expected && found != flat {
                let reason = format!("a mask of {found:?}: {expected:?} was expected, at the latent's resolution");
                return Err(Error::input(path, reason));
            }
            check_shares(path, &mask.tensor)?;
            mask.tensor
        }
    };
    Ok(mask.f_expand(&expected, false)?.f_contiguous()?)
}

/// Checks that a mask's values are shares: of 0 to 255, samples would run away in silence.
fn check_shares(path: &Path, mask: &Tensor) -> Result<()> {
    let (least, most) = (f64::try_from(mask.f_min()?)?, f64::try_from(mask.f_max()?)?);
    match least >= 0.0 && most <= 1.0 {
        true => Ok(()),
        false => Err(Error::input(path, format!("a mask of {least}…{most}: values in 0…1 were expected"))),
    }
}

/// True of a safetensors file, by its first bytes: a length, then a JSON object.
fn has_tensors(path: &Path) -> Result<bool> {
    let unreadable = |error| Error::input(path, format!("can't be read: {error}"));
    let mut first = Vec::new();
    tilewright_files::open(path).map_err(unreadable)?.take(9).read_to_end(&mut first).map_err(unreadable)?;
    Ok(first.get(8) == Some(&b'{'))
}

/// The red of a picture from 0 to 1, in a shape that ends with height and width.
fn picture(path: &Path, shape: &[i64]) -> Result<Tensor> {
    let (Frame { width, height, channels, mut values }, _) = tilewright_media::read_picture(path)?;
    // The other colours go at once: a picture may be large.
    values.truncate(values.len() / channels.max(1));
    values.shrink_to_fit();
    values.iter_mut().for_each(|red| *red = (*red + 1.0) * 0.5);
    let mask = Tensor::f_from_slice(&values)?.f_reshape([1, 1, i64::from(height), i64::from(width)])?;
    drop(values);
    let scaled = mask.f_upsample_bilinear2d(&shape[shape.len() - 2..], false, None::<f64>, None::<f64>)?;
    Ok(scaled.f_reshape(shape)?)
}

/// The noisy latents of a latent's file, if it has them for this sigma and shape.
pub(super) fn noisy(path: &Path, shape: &[i64], sigma: f64) -> Result<Option<Tensor>> {
    let Ok(file) = Checkpoint::open(path) else { return Ok(None) };
    let (Some(noisy), Some(of)) = (tensor(&file, NOISY)?, tensor(&file, NOISY_SIGMA)?) else { return Ok(None) };
    let is_same = of.numel() == 1 && f64::try_from(&of.f_reshape([1])?.f_get(0)?)? == f64::from(sigma as f32);
    Ok(is_same.then_some(noisy).filter(|noisy| noisy.size() == shape))
}

/// A tensor of a file.
pub(crate) struct Given {
    pub path: PathBuf,
    pub name: &'static str,
    pub tensor: Tensor,
}

impl Given {
    /// The tensor, if it has this shape.
    pub fn checked(self, shape: &[i64]) -> Result<Tensor> {
        check_shape((&self.path, self.name), &self.tensor.size(), shape)?;
        Ok(self.tensor)
    }
}

/// Reads a tensor in f32 and checks that it is finite.
pub(crate) fn read(path: &Path, name: &'static str) -> Result<Given> {
    let file = Checkpoint::open(path).map_err(ModelError::from)?;
    let tensor = tensor(&file, name)?.ok_or_else(|| missing(&file, name))?;
    Ok(Given { path: path.to_owned(), name, tensor })
}

/// Checks that a conditioning's file is whole, and its values finite.
pub(crate) fn check_conditioning(path: &Path) -> Result<()> {
    let file = Checkpoint::open(path).map_err(ModelError::from)?;
    tensor(&file, TEXT)?.map(drop).ok_or_else(|| missing(&file, TEXT))?;
    [POOLED, IMAGE, CONDITION].into_iter().try_for_each(|name| tensor(&file, name).map(drop))
}

/// A tensor of a file in f32, if the file has it.
fn tensor(file: &Checkpoint, name: &'static str) -> Result<Option<Tensor>> {
    if shape_in(file, name)?.is_none() {
        return Ok(None);
    }
    let shape = file.shape(name).unwrap_or_default();
    let loaded = file.load(name, shape, Kind::Float, Device::Cpu).map_err(ModelError::from)?;
    let refused = |reason: String| Error::input(file.path(), reason);
    match tilewright_torch::non_finite(&loaded)? {
        0 => Ok(Some(loaded)),
        values => Err(refused(format!("tensor {name} holds {values} values that are NaN or infinite"))),
    }
}

/// A conditioning file's tensors.
pub(super) struct Conditioning {
    pub tensors: ConditioningTensors,
    condition: Option<Tensor>,
}

impl Conditioning {
    /// Reads a file whose shapes are checked. The picture of a negative conditioning may be that of
    /// the `positive` one.
    pub fn read(path: &Path, shape: &ConditioningShape, positive: Option<&Self>) -> Result<Self> {
        let file = Checkpoint::open(path).map_err(ModelError::from)?;
        let read = |name: &'static str, expected: &[i64]| -> Result<Tensor> {
            let tensor = tensor(&file, name)?.ok_or_else(|| missing(&file, name))?;
            Given { path: path.to_owned(), name, tensor }.checked(expected)
        };
        let read_some = |name, expected: Option<&Vec<i64>>| expected.map(|expected| read(name, expected)).transpose();
        let shared = positive.and_then(|positive| positive.tensors.image.as_ref()).filter(|_| shape.shares_image);
        let image = match shared {
            Some(image) => Some(image.shallow_clone()),
            None => read_some(IMAGE, shape.image.as_ref())?,
        };
        let pooled = read_some(POOLED, shape.pooled.as_ref())?;
        Ok(Self {
            tensors: ConditioningTensors { text: read(TEXT, &shape.text)?, pooled, image },
            condition: read_some(CONDITION, shape.condition.as_ref())?,
        })
    }

    /// The channels behind the latents' of this shape, for each sample.
    pub fn condition(&self, shape: &[i64]) -> Result<Option<Tensor>> {
        let Some(tensor) = &self.condition else { return Ok(None) };
        let mut expected = shape.to_vec();
        expected[1] = tensor.size()[1];
        Ok(Some(tensor.f_expand(&expected, false)?.f_contiguous()?))
    }
}
