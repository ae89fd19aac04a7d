//! The kinds of work, as far as the tools differ.

mod denoise;
mod text;
mod vae;

use std::time::Duration;

use tilewright_plan::Release;

use crate::compare::Field;

/// The fields of two plans that differ.
fn differing<const N: usize>(rows: [(&'static str, String, String); N]) -> Vec<Field> {
    rows.into_iter().filter(|(_, a, b)| a != b).map(|(name, a, b)| Field { name, a, b }).collect()
}

fn release(release: Release) -> String {
    match release {
        Release::Keep => "keep",
        Release::AtEnd => "at-end",
        Release::EachStep => "each-step",
    }
    .to_owned()
}

fn extents([width, height, frames, batch]: [u32; 4]) -> String {
    let mut words = format!("{width}×{height}");
    if frames > 1 {
        words += &format!(" {frames}f");
    }
    if batch > 1 {
        words += &format!(" ×{batch}");
    }
    words
}

fn milliseconds(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms / 1e3).unwrap_or(Duration::MAX)
}

fn in_words([width, height, frames, batch]: [u32; 4], family: &str) -> String {
    let samples = if batch == 1 { String::new() } else { format!("{batch} × ") };
    let frames = if frames == 1 { String::new() } else { format!(" × {frames} frames") };
    format!("{samples}{width}×{height}{frames} {family}")
}
