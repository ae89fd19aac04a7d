//! The events of a run, as a profiler recorded them.

use serde::{Deserialize, Serialize};

/// The kind of an operation: what it is counted under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Category {
    /// Products of matrices.
    Gemm,
    /// Convolutions.
    Convolution,
    /// Group norms, layer norms, norms of heads.
    Norm,
    /// Attention, softmax included.
    Attention,
    /// Operations on each value by itself: sums, activations, gates.
    Elementwise,
    /// Copies and conversions between types, transfers between host and device included.
    Copies,
    /// Changes of memory order, padding, concatenation, upsampling by repetition.
    Layout,
    /// Expansion of packed weights to values.
    Expansion,
    /// Time in which a GPU waits for launches that are under way on the host.
    LaunchGaps,
    /// Work of the host beside operators.
    Host,
}

impl Category {
    /// Every category, in the order of their declaration.
    pub const ALL: [Self; 10] = [
        Self::Gemm,
        Self::Convolution,
        Self::Norm,
        Self::Attention,
        Self::Elementwise,
        Self::Copies,
        Self::Layout,
        Self::Expansion,
        Self::LaunchGaps,
        Self::Host,
    ];

    /// The name in profiles: `launch-gaps`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gemm => "gemm",
            Self::Convolution => "convolution",
            Self::Norm => "norm",
            Self::Attention => "attention",
            Self::Elementwise => "elementwise",
            Self::Copies => "copies",
            Self::Layout => "layout",
            Self::Expansion => "expansion",
            Self::LaunchGaps => "launch-gaps",
            Self::Host => "host",
        }
    }
}

/// The operations and the bytes of some work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Amount {
    /// Additions and multiplications of floating-point numbers, or of integers of 8 bits: a product
    /// of two values that is added to a sum counts as two.
    pub operations: f64,
    /// Bytes that are read and written, each tensor once.
    pub bytes: f64,
}

impl std::ops::AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.bytes += other.bytes;
    }
}

/// A part of a run that people know by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// A stage: text, denoise, decode, encode.
    Stage,
    /// A step of a sample.
    Step,
    /// A pass of the network within a step.
    Pass,
    /// Frames that are run together.
    Chunk,
    /// A tile of a picture or a clip, or a batch of tiles.
    Tile,
    /// A text of a text encoder.
    Text,
    /// A block of a network.
    Block,
    /// A layer of a network, by the name of its weights.
    Layer,
}

impl Part {
    /// The name in profiles: `chunk`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stage => "stage",
            Self::Step => "step",
            Self::Pass => "pass",
            Self::Chunk => "chunk",
            Self::Tile => "tile",
            Self::Text => "text",
            Self::Block => "block",
            Self::Layer => "layer",
        }
    }
}

/// The meaning of an event.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A part of the run; the events within it belong to it.
    Part(Part),
    /// An operation of Tilewright's own, whose amount is counted. The operators that it is made of
    /// lie within it.
    Operation(Category, Amount),
    /// An operator of libtorch, by its name there (`aten::mm`).
    Operator,
    /// A call of a GPU's runtime on the host (`cudaLaunchKernel`).
    Call,
    /// A kernel on a GPU.
    Kernel,
    /// A copy or a fill of memory by a GPU.
    Transfer,
}

/// The thread or the stream that an event is on. Events of one track lie within each other or
/// apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Track {
    /// A thread of the host.
    Thread(u64),
    /// A stream of a GPU.
    Stream {
        /// The GPU's number.
        device: u32,
        /// The stream's number.
        stream: u64,
    },
}

/// Something that took time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The name: of a part (`tile 3`), an operation, an operator or a kernel.
    pub name: String,
    /// The meaning.
    pub kind: Kind,
    /// The thread or the stream.
    pub track: Track,
    /// Nanoseconds since the recording began.
    pub start: u64,
    /// The same at its end.
    pub end: u64,
    /// A number of an operator or a call by which kernels name it, 0 for none.
    pub id: u64,
    /// The number of the operator that launched a kernel or made a call; 0 for none.
    pub launched_by: u64,
}

/// The events of one stage, on every thread and stream that took part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// The events in no particular order. One of them is the stage: all of its time is accounted
    /// for.
    pub events: Vec<Event>,
}

/// The measured peaks of a device in the types that a stage ran in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Peaks {
    /// Operations per second of products.
    pub operations_per_second: f64,
    /// Operations per second of convolutions.
    pub convolution_operations_per_second: f64,
    /// Operations per second of attention.
    pub attention_operations_per_second: f64,
    /// Bytes per second of memory.
    pub bytes_per_second: f64,
}

/// The estimate of a layer or a block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EstimatedPart {
    /// The name of its weights.
    pub name: String,
    /// True for a block, which may have the name of its only layer.
    pub is_block: bool,
    /// Milliseconds of all its runs in the stage.
    pub total_ms: f64,
}

/// The facts of a profiled stage that the events do not say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// The stage: `decode`.
    pub stage: String,
    /// The name of the device.
    pub device: String,
    /// True if the device is a GPU: times are then those of its streams.
    pub on_gpu: bool,
    /// The request in words: `1024×1024`.
    pub request: String,
    /// The policy's name and version.
    pub policy: String,
    /// The plan in words.
    pub plan: String,
    /// The measured peaks.
    pub peaks: Peaks,
    /// Milliseconds of the unit that was run without the profiler, and of the same unit with it:
    /// all of the stage where it was run twice, a step or a chunk otherwise.
    pub compared_ms: [f64; 2],
    /// The unit in words: `the stage`, `a step`, `a chunk`.
    pub compared: String,
    /// Milliseconds of the stage that the policy was promised by its estimate; none if it has no
    /// price.
    pub estimated_ms: Option<f64>,
    /// The estimates of layers and blocks; none if the plan has no price.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub estimated_parts: Vec<EstimatedPart>,
    /// True if other programs kept the device busy when its peaks were measured: they are too low.
    #[serde(default)]
    pub peaks_are_rough: bool,
    /// True if attention was computed in pieces, without a fused kernel.
    pub manual_attention: bool,
    /// True if the type of products is f32.
    pub in_f32: bool,
}
