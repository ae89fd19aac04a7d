//! Decodes and encodes: what pictures and clips have in common in both directions.

mod autoencoder;
mod clips;
mod costs;
mod encode_clips;
mod file;
mod pictures;

use std::time::Duration;

use tilewright_models::{Error as ModelError, kl::EncoderConfig, wan_vae};
use tilewright_plan::{
    Capabilities, Cost, Dtype, Hint, LEAST_TILE, Layout, MOST_BATCH, Model, Objective, Plan, Precision, Release,
    Request, Space, Stage, Tile, Time, Vae,
};

pub use self::{
    autoencoder::{Autoencoder, Overrides},
    clips::Chunks,
    costs::VaePrices,
    encode_clips::chunk,
    file::{VaeFile, VideoVaeFile},
};
use self::{clips::ClipPrices, costs::PlanCost, pictures::Estimator};
use crate::{Basis, Error, MemoryLimit, Priced, Quote, Result};

/// The factor by which a peak may exceed its estimate: a limit reported as enough must be enough.
const ESTIMATE_MARGIN: f64 = 1.05;

impl Priced for Vae {
    type Prices = VaePrices;
}

/// The extents of a clip that is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClipExtents {
    /// 1, and any multiple of the autoencoder's temporal scale.
    pub frames: u32,
    /// Pixels, a multiple of the spatial scale.
    pub height: u32,
    /// Pixels, a multiple of the spatial scale.
    pub width: u32,
}

/// The limit of a request, and what it aims at.
type Aims = (MemoryLimit, Objective);

impl Quote<Vae> {
    /// A decode of latents [N, C, h, w] in the autoencoder's own space, within a limit: a number of
    /// bytes leaves the weights aside.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] if not even the leanest plan fits.
    pub fn decode(
        basis: &Basis,
        vae: &VaeFile,
        [batch, _, height, width]: [i64; 4],
        memory_limit: impl Into<MemoryLimit>,
        objective: Objective,
    ) -> Result<Self> {
        let scale = vae.config.spatial_scale();
        let extents = [batch as u32, 1, height as u32 * scale, width as u32 * scale];
        let request = request(basis, vae.model.clone(), extents, (memory_limit.into(), objective));
        let request = Request { hints: hints(vae), ..request };
        let prices = Estimator::new(&vae.config, &request, basis);
        Self::checked(basis, Stage::Decode, request, (scale, false), prices)
    }

    /// A decode of latents [N, C, T, h, w], as [`Quote::decode`].
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] if not even the leanest plan fits.
    pub fn decode_clips(
        basis: &Basis,
        vae: &VideoVaeFile,
        [batch, _, latent_frames, height, width]: [i64; 5],
        memory_limit: impl Into<MemoryLimit>,
        objective: Objective,
    ) -> Result<Self> {
        let scale = vae.config.spatial_scale();
        let [height, width] = [height, width].map(|side| side as u32 * scale);
        let extents = [batch as u32, vae.config.frames(latent_frames as u32), height, width];
        let request = request(basis, vae.model.clone(), extents, (memory_limit.into(), objective));
        let channels = [vae.config.latent_channels, vae.config.image_channels];
        let prices = ClipPrices::new(&vae.config, channels, &request, basis);
        Self::checked(basis, Stage::Decode, request, (scale, true), prices)
    }

    /// An encode of pictures [N, C, H, W], as a decode. Returns the encoder's architecture, too.
    ///
    /// # Errors
    /// The file has no encoder, or the pictures' sides are no multiples of its scale;
    /// [`Error::DoesNotFit`] if not even the leanest plan fits.
    pub fn encode(
        basis: &Basis,
        vae: &VaeFile,
        pictures: &[i64],
        memory_limit: impl Into<MemoryLimit>,
        objective: Objective,
    ) -> Result<(Self, EncoderConfig)> {
        let (config, model) = vae.encoding()?;
        let [batch, _, height, width] = config.check_shape(pictures)?;
        let extents = [batch as u32, 1, height as u32, width as u32];
        let request = request(basis, model, extents, (memory_limit.into(), objective));
        let request = Request { hints: hints(vae), ..request };
        let prices = Estimator::encoding(&config, &request, basis);
        let scale = config.spatial_scale();
        Ok((Self::checked(basis, Stage::Encode, request, (scale, false), prices)?, config))
    }

    /// An encode of a clip, as a decode. Returns the encoder's architecture, too.
    ///
    /// # Errors
    /// The file has no encoder, or the extents are no multiples of its scales;
    /// [`Error::DoesNotFit`] if not even the leanest plan fits.
    pub fn encode_clip(
        basis: &Basis,
        vae: &VideoVaeFile,
        ClipExtents { frames, height, width }: ClipExtents,
        memory_limit: impl Into<MemoryLimit>,
        objective: Objective,
    ) -> Result<(Self, wan_vae::EncoderConfig)> {
        let (config, model) = vae.encoding()?;
        let (scale, temporal) = (config.spatial_scale(), config.temporal_scale());
        let unfit = frames == 0 || !(frames - 1).is_multiple_of(temporal) || height == 0 || width == 0;
        if unfit || !height.is_multiple_of(scale) || !width.is_multiple_of(scale) {
            let reason = format!(
                "{frames} frames of {width}×{height} pixels: 1 and any multiple of {temporal}, with sides that are multiples of {scale}, expected"
            );
            return Err(ModelError::Clip { reason }.into());
        }
        let request = request(basis, model, [1, frames, height, width], (memory_limit.into(), objective));
        let prices = ClipPrices::new(&config, [config.latent_channels, config.image_channels], &request, basis);
        Ok((Self::checked(basis, Stage::Encode, request, (scale, true), prices)?, config))
    }

    /// A quote whose request fits. Its tiles are multiples of `scale` pixels.
    fn checked(
        basis: &Basis,
        stage: Stage,
        request: Request,
        (scale, is_clip): (u32, bool),
        formula: impl PlanCost + 'static,
    ) -> Result<Self> {
        let Request { batch, frames, width, height, .. } = request;
        if [batch, frames, width, height].contains(&0) {
            return Err(Error::Nothing { batch, frames, width, height });
        }
        let capabilities = Capabilities {
            dtypes: formula.dtypes(),
            tile_unit: scale,
            tile_least: scale * LEAST_TILE,
            batch_most: if is_clip { 1 } else { MOST_BATCH },
            // Only decodes can be run in exact bands.
            exact: stage == Stage::Decode,
            carried: is_clip,
            offload: is_clip && basis.has_own_memory(),
            // Latents are copied in no time beside what it takes to decode them.
            prefetch_most: 0,
            options: basis.vae_options(stage),
        };
        let prices = VaePrices::new(formula, request.limit_counts_weights);
        let quote = Self::new_unchecked(basis, stage, request, capabilities, prices);
        quote.check()?;
        Ok(quote)
    }

    /// The same request, with blended tiles and chunks allowed where an exact plan fits, or not.
    #[must_use]
    pub fn allowing_blended(mut self, allows: bool) -> Self {
        self.request.allows_blended = allows;
        self
    }

    /// Refuses a request that not even the leanest plan fits in.
    fn check(&self) -> Result<()> {
        let (plan, least) = self.leanest();
        if least.peak_bytes > self.request.memory_limit {
            let tile = plan.space.tile().map_or(self.request.height.max(self.request.width), |tile| tile.height);
            let what = if self.request.frames > 1 { "clip" } else { "picture" };
            let Request { memory_limit: limit, limit_counts_weights: counts_weights, .. } = self.request;
            return Err(Error::DoesNotFit { what, limit, least: least.peak_bytes, counts_weights, tile });
        }
        Ok(())
    }

    /// The shortest time that a plan is expected to take, in whatever memory; none if no plan has a
    /// price.
    pub fn fastest(&self) -> Option<Duration> {
        let times = self.corners().filter_map(|plan| self.estimate(&plan).ok()).map(|cost| cost.elapsed);
        times.min().map(|time| self.at_best(time))
    }

    /// The plans among which are the leanest and about the fastest one, in each type and order.
    fn corners(&self) -> impl Iterator<Item = Plan> {
        let Request { height, width, frames, .. } = self.request;
        let side = self.capabilities.tile_least.min(height.max(width));
        // A picture no larger than a tile is leaner whole: nothing is gathered. So is a long clip
        // that leaves as it is decoded.
        let mut ways = vec![
            (Space::Blended(Tile { height: side, width: side, overlap: 0 }), Time::Whole),
            (Space::Whole, Time::Whole),
        ];
        if frames > 1 && self.capabilities.carried {
            let bands = Space::Exact(Tile { height: side, width, overlap: 0 });
            ways.extend([Space::Whole, bands].map(|space| (space, Time::Carried { frames: 1 })));
        }
        let formats = self.capabilities.dtypes.iter().flat_map(|dtype| {
            [Layout::ChannelsFirst, Layout::ChannelsLast].map(|layout| (Precision::Uniform(*dtype), layout))
        });
        formats.flat_map(move |(precision, layout)| {
            let plan = move |(space, time)| plain(space, time, precision, layout);
            ways.clone().into_iter().map(plan)
        })
    }

    /// The plan that holds least, and its price.
    pub fn leanest(&self) -> (Plan, Cost) {
        let mut least = (
            plain(Space::Whole, Time::Whole, Precision::Uniform(Dtype::F32), Layout::ChannelsFirst),
            Cost { peak_bytes: u64::MAX, weights_bytes: 0, elapsed: Duration::ZERO, tiles: 0, shapes: 0, rework: 1.0 },
        );
        for plan in self.corners() {
            match self.estimate(&plan) {
                Ok(cost) if cost.peak_bytes < least.1.peak_bytes => least = (plan, cost),
                _ => {}
            }
        }
        least.1.peak_bytes = (least.1.peak_bytes as f64 * ESTIMATE_MARGIN) as u64;
        least
    }
}

/// A request for these samples, frames, rows and columns of pixels.
fn request(
    basis: &Basis,
    model: Model,
    [batch, frames, height, width]: [u32; 4],
    (MemoryLimit { bytes, counts_weights }, objective): Aims,
) -> Request {
    Request {
        model,
        batch,
        frames,
        height,
        width,
        memory_limit: bytes,
        limit_counts_weights: counts_weights,
        objective,
        allows_blended: false,
        host: basis.host,
        hints: Vec::new(),
    }
}

/// The size in pixels that the model was trained at, if its configuration specifies it.
fn hints(vae: &VaeFile) -> Vec<Hint> {
    let trained = vae.config.sample_size.map(|size| Hint { name: "sample-size".into(), value: size.to_string() });
    trained.into_iter().collect()
}

/// A plan that gives memory back as soon as it can.
fn plain(space: Space, time: Time, precision: Precision, layout: Layout) -> Plan {
    Plan { space, time, precision, layout, release: Release::EachStep, ..Plan::plain() }
}
