//! Carries one plan out: whole samples or tiles in batches, every result checked.

use std::time::Duration;

use tch::{Device, Kind, Tensor};
use tilewright_models::{ComputeFormat, LoadStep, Result as ModelResult};
use tilewright_plan::{Failure, Plan, Space, Tile};
use tilewright_torch::{
    non_finite,
    profile::{self, Part},
};

use crate::{
    Axis, Grid, Result, VaeFile,
    task::{AttemptContext, AttemptError, Attempted, settle, trim_between},
    weights::Lease,
};

/// The progress of a network's run: an error from it ends the run.
pub(crate) type Step<'a> = &'a mut dyn FnMut(f64) -> ModelResult<()>;

/// A direction of a picture's autoencoder: its weights, and the tensor that goes in.
pub(crate) trait Direction {
    type Network: Send + 'static;

    fn vae(&self) -> &VaeFile;

    fn input(&self) -> &Tensor;

    /// The weights, leased until they are dropped, and the time that loading them took.
    fn lease(
        &self,
        format: ComputeFormat,
        device: Device,
        step: LoadStep<'_>,
    ) -> Result<(Lease<Self::Network>, Duration)>;

    /// [N, C, H, W] to the same in f32, each axis scaled alike; in bands of `band` pixels of the
    /// request if the network can.
    fn forward(
        &self,
        network: &Self::Network,
        input: &Tensor,
        band: Option<u32>,
        step: Step<'_>,
    ) -> ModelResult<Tensor>;

    /// Channels of its output.
    fn out(&self) -> i64;

    /// Pixels of the request along a side per pixel of its input, and per pixel of its output.
    fn scales(&self) -> (u32, u32);
}

/// A plan being carried out on an input [N, C, h, w] that is on the device.
pub(crate) struct Pass<'a, 'b, D: Direction> {
    pub direction: &'a D,
    pub network: &'a D::Network,
    pub input: &'a Tensor,
    pub plan: &'a Plan,
    pub device: Device,
    pub context: &'a mut AttemptContext<'b>,
}

impl<D: Direction> Pass<'_, '_, D> {
    /// Runs to [N, C, H, W] in f32 on the device.
    pub fn carry_out(&mut self) -> Attempted<Tensor> {
        let output = match self.plan.space {
            Space::Blended(tile) => self.tiles(tile),
            Space::Exact(tile) => self.samples(Some(tile.height)),
            Space::Whole => self.samples(None),
        };
        settle(self.device, self.plan.release, output)
    }

    fn samples(&mut self, band: Option<u32>) -> Attempted<Tensor> {
        let (samples, batch) = (self.input.size()[0], i64::from(self.plan.batch.max(1)));
        if batch >= samples {
            return self.forward(self.input, band, 0.0, 1.0);
        }
        let mut output: Option<Tensor> = None;
        for start in (0..samples).step_by(batch as usize) {
            let count = batch.min(samples - start);
            let share = |done: i64| done as f64 / samples as f64;
            let _samples = profile::part(Part::Tile, || format!("samples {start}–{}", start + count - 1));
            let part =
                self.forward(&self.input.f_narrow(0, start, count)?, band, share(start), share(start + count))?;
            let (_, channels, height, width) = part.size4()?;
            let whole = match &mut output {
                Some(whole) => whole,
                None => output.insert(Tensor::f_empty([samples, channels, height, width], (Kind::Float, self.device))?),
            };
            whole.f_narrow(0, start, count)?.f_copy_(&part)?;
            drop(part);
            self.trim()?;
        }
        output.ok_or_else(|| AttemptError::Broken(tilewright_torch::Error::Torch("no samples".into()).into()))
    }

    fn tiles(&mut self, tile: Tile) -> Attempted<Tensor> {
        let (samples, _, height, width) = self.input.size4()?;
        // The grid counts output pixels.
        let (into, out) = self.direction.scales();
        let scaled = |extent: i64| extent as u32 * into / out;
        let tile = Tile { height: tile.height / out, width: tile.width / out, overlap: tile.overlap / out };
        let grid = Grid::new(scaled(height), scaled(width), tile);
        let (pixels, input) = (|extent: u32| i64::from(extent), |extent: u32| i64::from(extent * out / into));
        let shape = [samples, self.direction.out(), pixels(grid.rows.extent), pixels(grid.columns.extent)];
        let output = Tensor::f_zeros(shape, (Kind::Float, self.device))?;
        let [row_weights, column_weights] = ramps(&grid, self.device)?;
        let places: Vec<(i64, usize, usize)> =
            (0..samples).flat_map(|sample| grid.tiles().map(move |(row, column)| (sample, row, column))).collect();
        let all = places.len() as f64;
        for (index, batch) in places.chunks(self.plan.batch.max(1) as usize).enumerate() {
            let first = index * self.plan.batch.max(1) as usize;
            let _tiles = profile::part(Part::Tile, || match batch.len() {
                1 => format!("tile {first}"),
                count => format!("tiles {first}–{}", first + count - 1),
            });
            let crops = batch.iter().map(|(sample, row, column)| -> Result<Tensor> {
                Ok(self
                    .input
                    .f_narrow(0, *sample, 1)?
                    .f_narrow(2, input(grid.rows.starts[*row]), input(grid.rows.tile))?
                    .f_narrow(3, input(grid.columns.starts[*column]), input(grid.columns.tile))?)
            });
            let crops = Tensor::f_cat(&crops.collect::<Result<Vec<_>>>()?, 0)?;
            let done = first as f64;
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
            self.trim()?;
        }
        Ok(output)
    }

    /// Runs a batch and checks it; progress goes from `from` to `to`.
    fn forward(&mut self, input: &Tensor, band: Option<u32>, from: f64, to: f64) -> Attempted<Tensor> {
        let mut step = |share: f64| self.context.progress(from + share * (to - from));
        let output = self.direction.forward(self.network, input, band, &mut step)?;
        match non_finite(&output)? {
            0 => Ok(output),
            values => Err(AttemptError::Failed(Failure::NonFinite { values })),
        }
    }

    /// Gives memory back after a batch, if the plan asks for it.
    fn trim(&self) -> Result<()> {
        trim_between(self.device, self.plan.release)
    }
}

/// The weights of a grid's rows and of its columns, for tiles [.., H, W] on a device.
pub(crate) fn ramps(grid: &Grid, device: Device) -> Result<[Vec<Tensor>; 2]> {
    let of = |axis: &Axis, shape: [i64; 4]| -> Result<Vec<Tensor>> {
        let tensor = |weights: &Vec<f32>| Ok(Tensor::f_from_slice(weights)?.f_to_device(device)?.f_view(shape)?);
        axis.weights().iter().map(tensor).collect()
    };
    Ok([of(&grid.rows, [1, 1, -1, 1])?, of(&grid.columns, [1, 1, 1, -1])?])
}
