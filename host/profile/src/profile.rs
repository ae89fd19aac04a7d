//! The profile of a stage, as it is shown and stored.

use serde::{Deserialize, Serialize};

use crate::{Category, Facts, Part};

/// A stage's time and where it went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The facts of the run.
    pub facts: Facts,
    /// Milliseconds of the stage under the profiler.
    pub stage_ms: f64,
    /// Time with the profiler over time without it, less 1.
    pub overhead: f64,
    /// Milliseconds of the stage without the profiler: measured, or estimated by the overhead of a
    /// unit of it.
    pub unprofiled_ms: f64,
    /// Remarks on how the profile is to be read.
    pub notes: Vec<String>,
    /// The categories, the longest first. Their times add up to the stage's.
    pub categories: Vec<CategoryRow>,
    /// Operators, operations and runtime calls by name, those with the most time of their own
    /// first: the device's on a GPU.
    pub operators: Vec<OperatorRow>,
    /// Kernels and transfers by name, the longest first.
    pub kernels: Vec<KernelRow>,
    /// Layers by name, in the order of their first start.
    pub layers: Vec<LayerRow>,
    /// The other parts by name, in the order of their first start.
    pub parts: Vec<PartRow>,
    /// Advice, a line each.
    pub advice: Vec<String>,
}

/// The work of a category.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CategoryRow {
    /// The category.
    pub category: Category,
    /// Milliseconds of the stage.
    pub total_ms: f64,
    /// The same over the stage's.
    pub share: f64,
    /// Operations and operators that lie in none of the same category; on a GPU kernels and
    /// transfers, or gaps.
    pub calls: u64,
    /// Floating-point operations, or those of integers.
    pub operations: f64,
    /// Bytes read and written.
    pub bytes: f64,
    /// Operations per second of the category's time; none without an amount or time.
    pub operations_per_second: Option<f64>,
    /// Bytes per second of the same.
    pub bytes_per_second: Option<f64>,
    /// The time that a device at its peaks would need for the amount, over the time it took; none
    /// without an amount or time.
    pub of_roof: Option<f64>,
}

/// The calls of an operator, of an operation of Tilewright's own or of the GPU's runtime.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperatorRow {
    /// The name: `aten::mm`.
    pub name: String,
    /// The category of most of its time.
    pub category: Category,
    /// Calls, those within one of the same name included.
    pub calls: u64,
    /// Milliseconds on the host, less those of operators within it.
    pub self_ms: f64,
    /// Milliseconds on the host; of a recursion those of the outermost call.
    pub total_ms: f64,
    /// Milliseconds of the kernels that it launched itself; none if no kernel was recorded.
    pub device_ms: Option<f64>,
    /// The same with those that operators within it launched.
    pub device_total_ms: Option<f64>,
}

/// The runs of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelRow {
    /// The name.
    pub name: String,
    /// The category of most of its time.
    pub category: Category,
    /// Runs.
    pub calls: u64,
    /// Milliseconds in all.
    pub total_ms: f64,
}

/// The runs of a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerRow {
    /// The name of its weights.
    pub name: String,
    /// The category of most of its time.
    pub category: Category,
    /// Runs.
    pub calls: u64,
    /// Milliseconds in all: on a GPU from the start of its first kernel to the end of its last one.
    pub total_ms: f64,
    /// The same by the plan's price; none if that says nothing of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_ms: Option<f64>,
}

/// The runs of a part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartRow {
    /// The kind.
    pub part: Part,
    /// The name: `tile 3`.
    pub name: String,
    /// Runs.
    pub calls: u64,
    /// Milliseconds in all, as a layer's.
    pub total_ms: f64,
    /// The same by the plan's price, of a block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_ms: Option<f64>,
}

impl Profile {
    /// The share of a category; 0 if it has no time.
    pub fn share(&self, category: Category) -> f64 {
        self.category(category).map_or(0.0, |row| row.share)
    }

    /// The row of a category.
    pub fn category(&self, category: Category) -> Option<&CategoryRow> {
        self.categories.iter().find(|row| row.category == category)
    }
}
