//! `[devices.NAME]`: devices that jobs run on, one job at a time each.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
pub use tilewright_plan::DeviceChoice as Choice;

use crate::values;

/// The name of the default device when none is configured.
const IMPLIED: &str = "main";

/// `[devices.NAME]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default, expecting = "a table")]
pub struct Device {
    /// The hardware that runs the jobs.
    #[serde(deserialize_with = "device")]
    pub device: Choice,
    /// Threads of the processor, 1 to 1024; by default as many as it has cores.
    #[serde(deserialize_with = "values::count::<_, _, 1024>")]
    pub threads: Option<u32>,
    /// The most memory that a job may hold at once, in bytes; by default 80 % of the free memory.
    #[serde(rename = "memory-limit", deserialize_with = "values::memory_limit")]
    pub memory_limit_bytes: Option<u64>,
    /// True if the memory limit of every job counts the weights, too.
    pub count_weights: bool,
    /// The most weights that are kept on the hardware, in use or idle, in bytes; by default what
    /// the memory limit leaves of its memory, an eighth of it at least and half at most, and what
    /// the limit grants and no job needs.
    #[serde(rename = "weights-memory", deserialize_with = "values::size")]
    pub weights_memory_bytes: Option<u64>,
}

fn device<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Choice, D::Error> {
    values::text(deserializer, "a device: auto, cpu, cuda or cuda:N", str::parse)
}

/// The defaults when none is configured.
pub(crate) fn default_devices() -> BTreeMap<String, Device> {
    BTreeMap::from([(IMPLIED.into(), Device::default())])
}

#[cfg(test)]
mod tests {
    use crate::tests::expect_error;

    #[test]
    fn a_device_that_is_wrong() {
        for (text, line, words) in [
            ("[devices.a]\ndevice = \"gpu\"", 2, "unknown device 'gpu', expected auto, cpu, cuda or cuda:N"),
            ("[devices.a]\ndevice = \"cuda:\"", 2, "expected auto, cpu, cuda or cuda:N"),
            ("[devices.a]\ndevice = \"cuda:+1\"", 2, "expected auto, cpu, cuda or cuda:N"),
            ("[devices.a]\nthreads = 1025", 2, "expected a whole number from 1 to 1024"),
            ("[devices.a]\nmemory-limit = \"0\"", 2, "'0' is not a size"),
            ("[devices.a]\nmemory-limit = \"1000B\"", 2, "allowed is 1MiB or more: no job fits into less"),
            (
                "[devices.a]\nmemory = \"1GiB\"",
                2,
                "expected one of `device`, `threads`, `memory-limit`, `count-weights`",
            ),
            ("[devices.a]\nweights-memory = \"much\"", 2, "'much' is not a size"),
            ("[devices.a]\ncount-weights = \"yes\"", 2, "expected a boolean"),
        ] {
            let message = expect_error(text, line);
            assert!(message.contains(words), "{message}");
        }
    }
}
