//! The parts that a plan divides a job's work into.

use serde::Serialize;

/// The division of a job's work by its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PlanGrid {
    /// Rows of tiles, or bands.
    pub rows: u32,
    /// Columns of tiles.
    pub columns: u32,
    /// Parts that are done one after the other: tiles, bands, chunks, passes or steps, all
    /// samples together.
    pub total: u32,
    /// The kind of part that `total` counts.
    pub unit: GridUnit,
}

/// A kind of part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GridUnit {
    /// A tile that fades into its neighbours.
    Tile,
    /// An exact band.
    Band,
    /// A chunk of a clip's frames.
    Chunk,
    /// A sample in one piece.
    Pass,
    /// A step of a sample.
    Step,
}

impl PlanGrid {
    /// The parts that are done at a share of the work, 0 to 1.
    pub fn done(&self, share: f64) -> u32 {
        (share.clamp(0.0, 1.0) * f64::from(self.total) + 1e-6) as u32
    }
}
