//! Carries one plan out: whole samples or tiles in batches, every result checked.

use tch::{Device, Kind, Tensor};
use tilewright_models::kl::{Decoder, Encoder};
use tilewright_plan::{Failure, Plan, Space, Tile};
use tilewright_torch::non_finite;

use crate::{
    Grid, Result,
    task::{AttemptContext, AttemptError, settle, trim_between},
};

/// A network that a plan can be carried out with, as tiles see it.
pub(crate) trait Network {
    /// [N, C, H, W] to the same in f32, each axis scaled alike; in bands of `band` pixels of the
    /// request if the network can.
    fn forward(
        &self,
        input: &Tensor,
        band: Option<u32>,
        step: &mut dyn FnMut(f64) -> tilewright_models::Result<()>,
    ) -> tilewright_models::Result<Tensor>;

    /// Channels of its output.
    fn out(&self) -> i64;

    /// Pixels of the request along a side per pixel of its input, and per pixel of its output.
    fn scales(&self) -> (u32, u32);
}

impl Network for Decoder {
    fn forward(
        &self,
        input: &Tensor,
        band: Option<u32>,
        step: &mut dyn FnMut(f64) -> tilewright_models::Result<()>,
    ) -> tilewright_models::Result<Tensor> {
        self.forward(input, band, step)
    }

    fn out(&self) -> i64 {
        self.config().image_channels as i64
    }

    fn scales(&self) -> (u32, u32) {
        (self.config().spatial_scale(), 1)
    }
}

impl Network for Encoder {
    /// Bands are not offered.
    fn forward(
        &self,
        input: &Tensor,
        _: Option<u32>,
        step: &mut dyn FnMut(f64) -> tilewright_models::Result<()>,
    ) -> tilewright_models::Result<Tensor> {
        self.forward(input, step)
    }

    fn out(&self) -> i64 {
        self.config().latent_channels as i64
    }

    fn scales(&self) -> (u32, u32) {
        (1, self.config().spatial_scale())
    }
}

/// A plan being carried out on an input [N, C, h, w] that is on the device.
pub(crate) struct Pass<'a, 'b> {
    pub network: &'a dyn Network,
    pub input: &'a Tensor,
    pub plan: &'a Plan,
    pub device: Device,
    pub context: &'a mut AttemptContext<'b>,
}

impl Pass<'_, '_> {
    /// Runs to [N, C, H, W] in f32 on the device.
    pub fn carry_out(&mut self) -> std::result::Result<Tensor, AttemptError> {
        let output = match self.plan.space {
            Space::Blended(tile) => self.tiles(tile),
            Space::Exact(tile) => self.samples(Some(tile.height)),
            Space::Whole => self.samples(None),
        };
        settle(self.device, self.plan.release, output)
    }

    fn samples(&mut self, band: Option<u32>) -> std::result::Result<Tensor, AttemptError> {
        let (samples, batch) = (self.input.size()[0], i64::from(self.plan.batch.max(1)));
        if batch >= samples {
            return self.forward(self.input, band, 0.0, 1.0);
        }
        let mut output: Option<Tensor> = None;
        for start in (0..samples).step_by(batch as usize) {
            let count = batch.min(samples - start);
            let share = |done: i64| done as f64 / samples as f64;
            let part =
                self.forward(&self.input.f_narrow(0, start, count)?, band, share(start), share(start + count))?;
            let (_, channels, height, width) = part.size4()?;
            let whole = match &mut output {
                Some(whole) => whole,
                None => output.insert(Tensor::f_empty([samples, channels, height, width], (Kind::Float, self.device))?),
            };
            whole.f_narrow(0, start, count)?.f_copy_(&part)?;
            drop(part);
            self.step()?;
        }
        output.ok_or_else(|| AttemptError::Broken(tilewright_torch::Error::Torch("no samples".into()).into()))
    }

    fn tiles(&mut self, tile: Tile) -> std::result::Result<Tensor, AttemptError> {
        let (samples, _, height, width) = self.input.size4()?;
        // The grid counts output pixels.
        let (into, out) = self.network.scales();
        let scaled = |extent: i64| extent as u32 * into / out;
        let tile = Tile { height: tile.height / out, width: tile.width / out, overlap: tile.overlap / out };
        let grid = Grid::new(scaled(height), scaled(width), tile);
        let (pixels, input) = (|extent: u32| i64::from(extent), |extent: u32| i64::from(extent * out / into));
        let shape = [samples, self.network.out(), pixels(grid.rows.extent), pixels(grid.columns.extent)];
        let output = Tensor::f_zeros(shape, (Kind::Float, self.device))?;
        let weights = |axis: &crate::Axis, shape: [i64; 4]| -> Result<Vec<Tensor>> {
            let tensor =
                |weights: &Vec<f32>| Ok(Tensor::f_from_slice(weights)?.f_to_device(self.device)?.f_view(shape)?);
            axis.weights().iter().map(tensor).collect()
        };
        let row_weights = weights(&grid.rows, [1, 1, -1, 1])?;
        let column_weights = weights(&grid.columns, [1, 1, 1, -1])?;
        let places: Vec<(i64, usize, usize)> =
            (0..samples).flat_map(|sample| grid.tiles().map(move |(row, column)| (sample, row, column))).collect();
        let all = places.len() as f64;
        for (index, batch) in places.chunks(self.plan.batch.max(1) as usize).enumerate() {
            let crops = batch.iter().map(|(sample, row, column)| -> Result<Tensor> {
                Ok(self
                    .input
                    .f_narrow(0, *sample, 1)?
                    .f_narrow(2, input(grid.rows.starts[*row]), input(grid.rows.tile))?
                    .f_narrow(3, input(grid.columns.starts[*column]), input(grid.columns.tile))?)
            });
            let crops = Tensor::f_cat(&crops.collect::<Result<Vec<_>>>()?, 0)?;
            let done = (index * self.plan.batch.max(1) as usize) as f64;
            let decoded = self.forward(&crops, None, done / all, (done + batch.len() as f64) / all)?;
            drop(crops);
            for (place, (sample, row, column)) in batch.iter().enumerate() {
                let weighted = decoded
                    .f_narrow(0, place as i64, 1)?
                    .f_mul(&row_weights[*row])?
                    .f_mul_(&column_weights[*column])?;
                let _ = output
                    .f_narrow(0, *sample, 1)?
                    .f_narrow(2, pixels(grid.rows.starts[*row]), pixels(grid.rows.tile))?
                    .f_narrow(3, pixels(grid.columns.starts[*column]), pixels(grid.columns.tile))?
                    .f_add_(&weighted)?;
            }
            drop(decoded);
            self.step()?;
        }
        Ok(output)
    }

    /// Runs a batch and checks it; progress goes from `from` to `to`.
    fn forward(
        &mut self,
        input: &Tensor,
        band: Option<u32>,
        from: f64,
        to: f64,
    ) -> std::result::Result<Tensor, AttemptError> {
        let mut step = |share: f64| self.context.progress(from + share * (to - from));
        let output = self.network.forward(input, band, &mut step)?;
        match non_finite(&output)? {
            0 => Ok(output),
            values => Err(AttemptError::Failed(Failure::NonFinite { values })),
        }
    }

    fn step(&self) -> Result<()> {
        trim_between(self.device, self.plan.release)
    }
}
