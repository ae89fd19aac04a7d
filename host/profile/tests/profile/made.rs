//! Recordings made by hand. Times are in milliseconds.

use tilewright_profile::{Amount, Category, Event, Facts, Kind, Part, Peaks, Profile, Recording, Track};

pub const GPU: Track = Track::Stream { device: 0, stream: 7 };
pub const COPIES: Track = Track::Stream { device: 0, stream: 20 };

/// A recording in the making, on thread 1 unless it is said otherwise.
#[derive(Clone, Default)]
pub struct Made(pub Recording);

impl Made {
    /// A stage of this length.
    pub fn stage(ms: f64) -> Self {
        Self::default().part(Part::Stage, "decode", 0.0, ms)
    }

    pub fn on(mut self, track: Track, name: &str, kind: Kind, [start, end]: [f64; 2], ids: [u64; 2]) -> Self {
        let [start, end] = [start, end].map(|ms| (ms * 1e6).round() as u64);
        let [id, launched_by] = ids;
        self.0.events.push(Event { name: name.into(), kind, track, start, end, id, launched_by });
        self
    }

    pub fn part(self, part: Part, name: &str, start: f64, end: f64) -> Self {
        self.on(Track::Thread(1), name, Kind::Part(part), [start, end], [0, 0])
    }

    pub fn operation(self, category: Category, amount: [f64; 2], start: f64, end: f64) -> Self {
        let [operations, bytes] = amount;
        let kind = Kind::Operation(category, Amount { operations, bytes });
        self.on(Track::Thread(1), category.name(), kind, [start, end], [0, 0])
    }

    pub fn operator(self, name: &str, id: u64, start: f64, end: f64) -> Self {
        self.on(Track::Thread(1), name, Kind::Operator, [start, end], [id, 0])
    }

    pub fn call(self, name: &str, start: f64, end: f64) -> Self {
        self.on(Track::Thread(1), name, Kind::Call, [start, end], [0, 0])
    }

    pub fn kernel(self, name: &str, launched_by: u64, start: f64, end: f64) -> Self {
        self.on(GPU, name, Kind::Kernel, [start, end], [0, launched_by])
    }

    pub fn profile(&self, on_gpu: bool) -> Profile {
        Profile::of(&self.0, facts(on_gpu)).unwrap()
    }
}

/// Peaks of 1 TFLOP/s, of half that for convolutions, of a quarter for attention, and of 100 GB/s.
pub fn facts(on_gpu: bool) -> Facts {
    Facts {
        stage: "decode".into(),
        device: "a device".into(),
        on_gpu,
        request: "512×512".into(),
        policy: "adaptive 1".into(),
        plan: "f32".into(),
        peaks: Peaks {
            operations_per_second: 1e12,
            convolution_operations_per_second: 5e11,
            attention_operations_per_second: 2.5e11,
            bytes_per_second: 1e11,
        },
        estimated_parts: Vec::new(),
        peaks_are_rough: false,
        compared_ms: [80.0, 100.0],
        compared: "a chunk".into(),
        estimated_ms: None,
        manual_attention: false,
        in_f32: false,
    }
}

/// The milliseconds of a category; 0 if it has no row.
pub fn ms(profile: &Profile, category: Category) -> f64 {
    profile.category(category).map_or(0.0, |row| row.total_ms)
}

/// Asserts that figures are equal up to rounding.
#[track_caller]
pub fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9 * expected.abs().max(1.0), "{found} is not {expected}");
}

/// Asserts that the categories add up to the stage.
#[track_caller]
pub fn assert_whole(profile: &Profile) {
    assert_near(profile.categories.iter().map(|row| row.total_ms).sum(), profile.stage_ms);
}
