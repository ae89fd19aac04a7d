//! A check that a latent's values are spread as the model's are. A latent that carries its model's
//! scaling, or that is another family's, decodes into mud without an error; its spread gives it
//! away.

use tch::{Kind, Tensor};
use tilewright_wording::Setting;

use super::{Latent, Origin, Scaling};
use crate::{Family, Result};

/// Values that carry a model's scaling have a root mean square of about 1; real ones lie between
/// these.
const SCALED: std::ops::RangeInclusive<f64> = 0.4..=1.45;

/// From this root mean square on, values don't carry it.
const NOT_SCALED: f64 = 2.4;

/// Times that a latent's root mean square may lie above the family's before it is another's:
/// contrast alone explains a factor of two.
const ABOVE: f64 = 3.5;

/// The same, below the family's.
const BELOW: f64 = 8.0;

/// If the file may be of another family, a latent within this factor of that family's root mean
/// square is not doubted.
const LIKE: f64 = 1.3;

/// The largest distance of the channels' means and deviations from published ones that they are
/// taken for, and how many times nearer to these than to others they have to be.
const NEAR: f64 = 0.4;
const NEARER: f64 = 2.0;

/// The fewest values in a channel that say enough.
const FEWEST: i64 = 32;

/// The spread of a latent's values: a mean and deviation for each channel, and the root mean square
/// of all.
#[derive(Clone, Debug)]
struct Spread {
    mean: Vec<f64>,
    std: Vec<f64>,
    rms: f64,
}

impl Spread {
    /// The spread of values [N, C, T, h, w].
    fn of(values: &Tensor) -> Result<Self> {
        let channels = values.size().get(1).copied().unwrap_or(1);
        let flat = values.f_transpose(0, 1)?.f_reshape([channels, -1])?;
        let mean = flat.f_mean_dim(1, false, Kind::Float)?;
        let std = flat.f_std_dim(1, false, false)?;
        let rms = flat.f_square()?.f_mean(Kind::Double)?.f_sqrt()?;
        let list = |tensor: &Tensor| -> Result<Vec<f64>> { Ok(Vec::<f64>::try_from(tensor.f_to_kind(Kind::Double)?)?) };
        Ok(Self { mean: list(&mean)?, std: list(&std)?, rms: f64::try_from(&rms)? })
    }

    /// The distance from these means and deviations; 0 for the same.
    fn distance(&self, mean: &[f64], std: &[f64]) -> f64 {
        let channels = self.mean.iter().zip(&self.std).zip(mean.iter().zip(std));
        let each = channels.map(|((mean, std), (own_mean, own_std))| {
            (std.max(1e-6) / own_std).ln().powi(2) + ((mean - own_mean) / own_std).powi(2)
        });
        each.sum::<f64>() / self.mean.len().max(1) as f64
    }

    /// The distance from a model's own, scaled latents: mean 0 and deviation 1 in every channel.
    fn unscaling(&self) -> f64 {
        let channels = self.mean.len();
        self.distance(&vec![0.0; channels], &vec![1.0; channels])
    }
}

impl Latent {
    /// The reason why the values make no sense for a model of this family and scaling, and a
    /// remedy; none if they make sense, or if nothing is known. `or_family` is another one that the
    /// file may be of; `scaled` says that the user wants the scaling undone. To be called before it
    /// is undone.
    ///
    /// # Errors
    /// Memory runs out.
    pub fn doubt(
        &self,
        (family, or_family): (Family, Option<Family>),
        scaling: Option<&Scaling>,
        scaled: bool,
    ) -> Result<Option<String>> {
        let spread = Spread::of(&self.values)?;
        let [samples, _, frames, height, width] = self.form().size.map(|extent| extent as i64);
        let is_constant = |(mean, std): (&f64, &f64)| *std <= 1e-6 * (1.0 + mean.abs());
        if height * width > 1 && spread.mean.iter().zip(&spread.std).all(is_constant) {
            return Ok(Some(
                "each channel has one value throughout: an empty latent, which nothing has sampled".into(),
            ));
        }
        if samples * frames * height * width < FEWEST {
            return Ok(None);
        }
        let other = or_family.and_then(Family::scaling).map(|(factor, _)| 1.0 / factor);
        if other.is_some_and(|other| !scaled && (other / LIKE..other * LIKE).contains(&spread.rms)) {
            return Ok(None);
        }
        let doubt = match scaling {
            Some(Scaling::Factor { factor, .. }) => by_factor(&spread, family, *factor, scaled),
            Some(Scaling::PerChannel { mean, std }) => by_channels(&spread, mean, std, scaled),
            None => None,
        };
        Ok(doubt.map(|doubt| self.advice(doubt, scaled)))
    }

    fn advice(&self, doubt: Doubt, scaled: bool) -> String {
        let Doubt { found, advice } = doubt;
        match advice {
            Advice::Scaled if self.origin == Origin::Plain => {
                format!("{found}: it seems to carry the model's scaling: try {}", Setting::Scaled)
            }
            Advice::Scaled => format!("{found}: it seems to carry a model's scaling, or to be another family's"),
            Advice::NotScaled => {
                format!("{found}: it seems to be without the model's scaling: leave {} out", Setting::Scaled)
            }
            Advice::Family(other) => format!("{found}: it seems to be {other}'s: try that family's VAE"),
            Advice::Nothing if scaled => {
                format!("{found}: try it without {}, or another family's VAE", Setting::Scaled)
            }
            Advice::Nothing => format!("{found}: it seems to be another family's: try that family's VAE"),
        }
    }
}

/// A fault of the values, and its likely explanation.
struct Doubt {
    found: String,
    advice: Advice,
}

enum Advice {
    Scaled,
    NotScaled,
    Family(Family),
    Nothing,
}

/// The doubt for one factor for all channels: the autoencoder's latents have a root mean square of
/// about 1 / factor.
fn by_factor(spread: &Spread, family: Family, factor: f64, scaled: bool) -> Option<Doubt> {
    let own = 1.0 / factor.abs();
    let rms = spread.rms;
    let expected = if scaled { 1.0 } else { own };
    let found = format!("values of about {rms:.2}, where this model's ({family}) are about {expected:.2}");
    let doubt = |advice| Some(Doubt { found: found.clone(), advice });
    if scaled {
        return match () {
            () if rms >= NOT_SCALED && (own / 2.0..=own * 2.0).contains(&rms) => doubt(Advice::NotScaled),
            () if !(1.0 / BELOW..=ABOVE).contains(&rms) => doubt(Advice::Nothing),
            () => None,
        };
    }
    match () {
        () if own >= 2.0 && SCALED.contains(&rms) && rms <= own / 2.0 => doubt(Advice::Scaled),
        () if rms > own * ABOVE => doubt(nearest(spread, family)),
        () if rms < own / BELOW => doubt(Advice::Nothing),
        () => None,
    }
}

/// The family of as many channels that has values of this size.
fn nearest(spread: &Spread, family: Family) -> Advice {
    let families: &[Family] = match spread.mean.len() {
        4 => &[Family::Sd],
        16 => &[Family::Flux, Family::Sd3],
        _ => &[],
    };
    let near = |other: &&Family| {
        let own = other.scaling().map_or(0.0, |(factor, _)| 1.0 / factor);
        **other != family && (own / 1.6..own * 1.6).contains(&spread.rms)
    };
    families.iter().find(near).map_or(Advice::Nothing, |other| Advice::Family(*other))
}

/// The doubt for a model of a mean and a deviation for each channel.
fn by_channels(spread: &Spread, mean: &[f64], std: &[f64], scaled: bool) -> Option<Doubt> {
    let (own, model) = (spread.distance(mean, std), spread.unscaling());
    let expected =
        (mean.iter().zip(std).map(|(mean, std)| mean * mean + std * std).sum::<f64>() / mean.len() as f64).sqrt();
    let rms = spread.rms;
    let doubt = |found: String, advice| Some(Doubt { found, advice });
    match scaled {
        false if model < NEAR && own > model * NEARER => doubt(
            "means of about 0 and deviations of about 1, which this model's own channels don't have".into(),
            Advice::Scaled,
        ),
        true if own < NEAR && model > own * NEARER => {
            doubt("the means and deviations of this VAE's own channels".into(), Advice::NotScaled)
        }
        _ => {
            let expected = if scaled { 1.0 } else { expected };
            let is_off = rms > expected * ABOVE || rms < expected / BELOW;
            let found = format!("values of about {rms:.2}, where this model's are about {expected:.2}");
            is_off.then_some(Doubt { found, advice: Advice::Nothing })
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::wan_vae::PUBLISHED;

    /// Normally distributed values of these means and deviations, from a seed.
    fn latent(channels: &[(f64, f64)], origin: Origin) -> Latent {
        tch::manual_seed(7);
        let planes: Vec<Tensor> = channels
            .iter()
            .map(|(mean, std)| Tensor::randn([1, 1, 2, 16, 16], (Kind::Float, Device::Cpu)) * *std + *mean)
            .collect();
        Latent { path: "x".into(), origin, values: Tensor::cat(&planes, 1), texts: Vec::new() }
    }

    fn factor(family: Family) -> Scaling {
        let (factor, shift) = family.scaling().unwrap();
        Scaling::Factor { factor, shift }
    }

    #[test]
    fn what_fits_is_not_doubted() {
        // Pictures of 0.6, 1 and 1.6 times the usual contrast.
        for family in [Family::Sd, Family::Sdxl, Family::Sd3, Family::Flux] {
            let (scale, shift) = family.scaling().unwrap();
            let channels = if matches!(family, Family::Sd | Family::Sdxl) { 4 } else { 16 };
            for contrast in [0.6, 1.0, 1.6] {
                let own = latent(&vec![(shift, contrast / scale); channels], Origin::Plain);
                assert_eq!(
                    own.doubt((family, None), Some(&factor(family)), false).unwrap(),
                    None,
                    "{family} {contrast}"
                );
                let scaled = latent(&vec![(0.0, contrast); channels], Origin::Plain);
                assert_eq!(
                    scaled.doubt((family, None), Some(&factor(family)), true).unwrap(),
                    None,
                    "{family} {contrast}"
                );
            }
        }
        for (mean, std) in PUBLISHED {
            let scaling = Scaling::PerChannel { mean: mean.to_vec(), std: std.to_vec() };
            let own: Vec<_> = mean.iter().copied().zip(std.iter().copied()).collect();
            assert_eq!(latent(&own, Origin::Plain).doubt((Family::Wan21, None), Some(&scaling), false).unwrap(), None);
            let scaled = vec![(0.1, 0.8); mean.len()];
            assert_eq!(
                latent(&scaled, Origin::Plain).doubt((Family::Wan21, None), Some(&scaling), true).unwrap(),
                None
            );
        }
        assert_eq!(latent(&[(0.0, 1.0); 4], Origin::Plain).doubt((Family::Kl, None), None, false).unwrap(), None);
    }

    #[test]
    fn a_file_that_may_be_of_two_families_is_held_against_both() {
        let flux = factor(Family::Flux);
        let or_sd3 = (Family::Flux, Some(Family::Sd3));
        let doubt = |std| latent(&[(0.0, std); 16], Origin::Plain).doubt(or_sd3, Some(&flux), false).unwrap();
        assert_eq!((doubt(0.65), doubt(2.8)), (None, None));
        assert!(doubt(1.0).is_some());
    }

    #[test]
    fn what_does_not_fit_gets_advice() {
        let (wan_mean, wan_std) = PUBLISHED[0];
        let wan = Scaling::PerChannel { mean: wan_mean.to_vec(), std: wan_std.to_vec() };
        let wans: Vec<_> = wan_mean.iter().copied().zip(wan_std.iter().copied()).collect();
        type Case<'a> = (Family, Scaling, Vec<(f64, f64)>, Origin, bool, &'a str);
        let cases: [Case<'_>; 11] = [
            (Family::Sd, factor(Family::Sd), vec![(0.0, 1.0); 4], Origin::Plain, false, "try scaled"),
            (Family::Sdxl, factor(Family::Sdxl), vec![(0.0, 0.8); 4], Origin::Plain, false, "try scaled"),
            (Family::Flux, factor(Family::Flux), vec![(0.0, 1.0); 16], Origin::Plain, false, "try scaled"),
            (Family::Sd, factor(Family::Sd), vec![(0.0, 1.0); 4], Origin::ComfyUi, false, "another family's"),
            (Family::Sd, factor(Family::Sd), vec![(0.0, 5.5); 4], Origin::Plain, true, "leave scaled out"),
            (Family::Flux, factor(Family::Flux), vec![(0.1, 2.8); 16], Origin::Plain, true, "leave scaled out"),
            (Family::Sd3, factor(Family::Sd3), vec![(0.1, 2.8); 16], Origin::Plain, false, "it seems to be flux's"),
            (Family::Flux, factor(Family::Flux), vec![(0.0, 40.0); 16], Origin::Plain, false, "another family's"),
            (Family::Sd, factor(Family::Sd), vec![(3.0, 0.0); 4], Origin::Plain, false, "an empty latent"),
            (Family::Wan21, wan.clone(), vec![(0.0, 1.0); 16], Origin::Plain, false, "try scaled"),
            (Family::Wan21, wan, wans, Origin::Plain, true, "leave scaled out"),
        ];
        for (family, scaling, channels, origin, scaled, words) in cases {
            let doubt = latent(&channels, origin).doubt((family, None), Some(&scaling), scaled).unwrap();
            assert!(doubt.as_ref().is_some_and(|doubt| doubt.contains(words)), "{family}: {doubt:?} lacks {words:?}");
        }
    }
}
