//! The mean and deviation of each latent channel, by which a model's latents differ from the
//! autoencoder's: published, or written beside the file.

use serde::Deserialize;
use tilewright_checkpoint::Error as FileError;

use crate::{Checkpoint, Error, Identity, Result, config_json};

/// diffusers' `AutoencoderKLWan` and `AutoencoderKLQwenImage` (models/autoencoders): WAN 2.1's and
/// Qwen-Image's.
const MEAN_16: [f64; 16] = [
    -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, //
    0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
];
const STD_16: [f64; 16] = [
    2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, //
    3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160,
];

/// diffusers' scripts/convert_wan_to_diffusers.py, `vae22_diffusers_config`: WAN 2.2's.
const MEAN_48: [f64; 48] = [
    -0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557, //
    -0.1382, 0.0542, 0.2813, 0.0891, 0.1570, -0.0098, 0.0375, -0.1825, //
    -0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108, -0.2158, 0.2502, //
    -0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.1230, //
    -0.0313, -0.1649, 0.0117, 0.0723, -0.2839, -0.2083, -0.0520, 0.3748, //
    0.0152, 0.1957, 0.1433, -0.2944, 0.3573, -0.0548, -0.1681, -0.0667,
];
const STD_48: [f64; 48] = [
    0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013, //
    0.8158, 1.0344, 0.5894, 1.0901, 0.6885, 0.6165, 0.8454, 0.4978, //
    0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659, //
    0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093, //
    0.5709, 0.6065, 0.6415, 0.4944, 0.5726, 1.2042, 0.5458, 1.6887, //
    0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744,
];

/// The published means and deviations by the number of channels, WAN 2.1's first.
pub(crate) const PUBLISHED: [(&[f64], &[f64]); 2] = [(&MEAN_16, &STD_16), (&MEAN_48, &STD_48)];

/// The classes of diffusers whose config.json is read.
const CLASSES: [&str; 2] = ["AutoencoderKLWan", "AutoencoderKLQwenImage"];

/// The part that is taken of diffusers' config.json; the rest is read off the tensors.
#[derive(Deserialize)]
struct ConfigFile {
    latents_mean: Option<Vec<f64>>,
    latents_std: Option<Vec<f64>>,
}

/// Mean and deviation of `channels` latent channels: those of config.json beside a file of
/// diffusers' layout, else the published ones, else none.
///
/// # Errors
/// The file config.json is broken, or its values are nonsense.
pub(super) fn read(file: &Checkpoint, identity: &Identity, channels: usize) -> Result<Option<(Vec<f64>, Vec<f64>)>> {
    let written = config_file(file, identity, channels)?;
    let published = || PUBLISHED.iter().find(|(mean, _)| mean.len() == channels);
    Ok(written.or_else(|| published().map(|(mean, std)| (mean.to_vec(), std.to_vec()))))
}

fn config_file(file: &Checkpoint, identity: &Identity, channels: usize) -> Result<Option<(Vec<f64>, Vec<f64>)>> {
    let Some((path, config)) = config_json::read::<ConfigFile>(file, identity, &CLASSES)? else {
        return Ok(None);
    };
    let broken = |reason: String| Error::from(FileError::Format { path: path.clone(), reason });
    let (Some(mean), Some(std)) = (config.latents_mean, config.latents_std) else {
        return Ok(None);
    };
    if mean.len() != channels || std.len() != channels {
        let (means, stds) = (mean.len(), std.len());
        return Err(broken(format!(
            "{means} values of latents_mean and {stds} of latents_std: the latent has {channels} channels"
        )));
    }
    if let Some(value) = mean.iter().find(|value| !value.is_finite()) {
        return Err(broken(format!("a latents_mean of {value} is nonsense")));
    }
    if let Some(value) = std.iter().find(|value| !value.is_normal() || **value < 0.0) {
        return Err(broken(format!("a latents_std of {value} is nonsense")));
    }
    Ok(Some((mean, std)))
}
