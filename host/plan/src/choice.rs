//! The choice of a device.

use std::{fmt, str::FromStr};

/// A choice of hardware, as people write it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first GPU that works, or else the processor.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// A CUDA or ROCm device, by its index from 0.
    Gpu(usize),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let place = |place: &str| place.bytes().all(|byte| byte.is_ascii_digit()).then(|| place.parse().ok())?;
        match text {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "cuda" => Ok(DeviceChoice::Gpu(0)),
            _ => {
                text.strip_prefix("cuda:").and_then(place).map(DeviceChoice::Gpu).ok_or_else(|| {
                    format!("unknown device '{}', expected auto, cpu, cuda or cuda:N", text.escape_debug())
                })
            }
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Gpu(place) => write!(f, "cuda:{place}"),
        }
    }
}
