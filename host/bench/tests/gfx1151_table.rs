//! `examples/devices/gfx1151.json`: decodes that TheNoise measured on a Radeon 8060S, with the
//! prices of this host for a device of the rates that it measured. With `TILEWRIGHT_WRITE_TABLE=1`
//! the test writes the table; without, it compares.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::{Value, json};
use tch::Device;
use tilewright_bench::{Network, Weights};
use tilewright_engine::{Machine, Overrides};
use tilewright_kernels::{Measured, Rate, Scratch, Speed};
use tilewright_pipeline::{Decode, Model};
use tilewright_plan::{
    Backend, Device as Facts, Dtype, Hint, Layout, Objective, Plan, Precision, Release, Space, Tile,
};
use tilewright_torch::scalar;

/// TheNoise, docs/CONTINUE.md at 92dd575c: convolutions of NCHW in bf16, by MIOpen's GEMMs with the
/// input laid out tap by tap (`Im2d2Col_v2`), in operations per second.
const CONVOLUTIONS: f64 = 20.7e12;
/// The same: attention of the middle block in GEMMs at 16,384 positions, those of 1024×1024, as
/// libtorch computes it.
const ATTENTION: f64 = 14.7e12;
/// The same: group norms, in bytes per second.
const NORMS: f64 = 98.0 * (1 << 30) as f64;
/// Bytes per second: those that TraceLens#943 reads.
const MEMORY: f64 = 202e9;
/// Bytes of the machine's memory, all of which counts as free: how much of it was is not published.
const TOTAL: u64 = 128 << 30;

/// A decode of one picture: its autoencoder, the side in pixels, milliseconds, and the most bytes
/// that were allocated at once, where that was published.
type Measurement = (Network, u32, f64, Option<f64>);

const GIB: f64 = (1 << 30) as f64;

/// The whole decodes in bf16 of the same page, of autoencoders that this host has.
const MEASURED: [Measurement; 4] = [
    (Network::WAN_21, 1024, 390.0, None),
    (Network::WAN_22, 1024, 600.0, None),
    (Network::FLUX, 1024, 780.0, Some(6.05 * GIB)),
    (Network::FLUX, 2048, 4260.0, Some(23.7 * GIB)),
];

/// The plans that are priced beside it: bands and the published tiles.
fn spaces() -> Vec<Space> {
    let bands = [1024, 768, 512, 256].map(|height| Space::Exact(Tile { height, width: 0, overlap: 0 }));
    let tiles = [1024, 768, 512].map(|side| Space::Blended(Tile { height: side, width: side, overlap: 96 }));
    [&[Space::Whole][..], &bands, &tiles].concat()
}

fn machine() -> Machine {
    let facts = Facts {
        backend: Backend::Rocm,
        name: "AMD Radeon 8060S".into(),
        arch: "gfx1151".into(),
        compute_units: 40,
        total_bytes: TOTAL,
        free_bytes: TOTAL,
        unified: true,
        fast_dtypes: vec![Dtype::Bf16],
        hints: [("hip", "7.16"), ("rocm", "10.1.0")]
            .map(|(name, value)| Hint { name: name.into(), value: value.into() })
            .into(),
    };
    let speed = Speed {
        dtype: Dtype::Bf16,
        layout: Layout::ChannelsFirst,
        flops_per_second: CONVOLUTIONS,
        plain: Rate { per_product: 2.0 / CONVOLUTIONS, per_value: 0.0 },
        winograd: None,
        attention_flops_per_second: ATTENTION,
        fused_attention: false,
        heads: None,
        norm_bytes_per_second: Some(NORMS),
        scratch: Scratch { inputs: 9.0, weights: 0.0, small: 0 },
    };
    let measured = Measured {
        speeds: vec![speed],
        bytes_per_second: MEMORY,
        transfer_bytes_per_second: None,
        backend: Backend::Rocm,
        miopen: Some(true),
        hurried: false,
        disturbed: false,
        int8_per_product: None,
        fp8_per_product: None,
        large_convolutions: true,
        expansion: None,
    };
    Machine::new(Device::Cuda(0), facts, measured, String::new())
}

/// A case of the table.
fn case(machine: &Machine, model: &Model, (network, side, elapsed_ms, peak): Measurement) -> Value {
    let latent = i64::from(side / network.scale);
    let frames: &[i64] = if network.is_video() { &[1] } else { &[] };
    let shape = [&[1, network.latent_channels as i64], frames, &[latent; 2]].concat();
    let latents = scalar::stand_in(&shape).unwrap();
    let job = Decode::new(machine, model, &latents, TOTAL, Objective::Balanced).unwrap();
    let (request, capabilities) = (job.request(), job.capabilities());
    let plans = spaces().into_iter().filter_map(|space| {
        let space = match space {
            Space::Exact(band) if band.height < side => Space::Exact(Tile { width: side, ..band }),
            Space::Blended(tile) if tile.height < side => space,
            Space::Whole => space,
            _ => return None,
        };
        let precision = Precision::Uniform(Dtype::Bf16);
        let plan = Plan { space, precision, layout: Layout::ChannelsFirst, release: Release::Keep, ..Plan::plain() };
        let estimate = job.estimate(&plan).unwrap();
        let mut row = json!({ "plan": plan, "estimate": estimate });
        if space == Space::Whole {
            row["elapsed_ms"] = elapsed_ms.into();
            row["runs"] = 1.into();
            if let Some(peak) = peak {
                row["peak_bytes"] = (peak as u64).into();
            }
        }
        Some(row)
    });
    let plans: Vec<Value> = plans.collect();
    let mut request = serde_json::to_value(request).unwrap();
    // The host is not the machine that the test runs on, and an APU's memory is the device's.
    for (field, value) in [("host_total_bytes", TOTAL), ("host_free_bytes", TOTAL), ("transfer_rate", 0)] {
        request[field] = value.into();
    }
    json!({ "stage": job.stage(), "request": request, "offer": capabilities, "plans": plans })
}

/// The table as text: a line for each part, so that changes show.
fn text(table: &Value) -> String {
    let line = |value: &Value| value.to_string();
    let mut lines = vec!["{\"tilewright_table\":1,".to_owned()];
    lines.extend(["name", "about", "device"].map(|key| format!("\"{key}\":{},", line(&table[key]))));
    lines.push("\"cases\":[".into());
    let cases = table["cases"].as_array().unwrap().iter().map(|case| {
        let plans: Vec<String> = case["plans"].as_array().unwrap().iter().map(line).collect();
        let parts = ["stage", "request", "offer"].map(|key| format!("\"{key}\":{}", line(&case[key])));
        format!("{{{},\n\"plans\":[\n{}]}}", parts.join(",\n"), plans.join(",\n"))
    });
    lines.push(cases.collect::<Vec<_>>().join(",\n") + "]}");
    lines.join("\n") + "\n"
}

/// A table without its estimated times, and these.
fn without_times(table: &str) -> (Value, Vec<f64>) {
    let mut table: Value = serde_json::from_str(table).unwrap();
    let mut times = Vec::new();
    for case in table["cases"].as_array_mut().unwrap() {
        for plan in case["plans"].as_array_mut().unwrap() {
            times.push(plan["estimate"]["elapsed_ms"].take().as_f64().unwrap());
        }
    }
    (table, times)
}

#[test]
fn the_table_of_gfx1151_has_this_hosts_prices() {
    let machine = machine();
    let folder = tempfile::tempdir().unwrap();
    let mut models = BTreeMap::new();
    let cases = MEASURED.map(|measured| {
        let network = measured.0;
        let model = models.entry(network.name).or_insert_with(|| {
            let path = folder.path().join(network.name);
            Weights { network, seed: 1 }.write(&path).unwrap();
            Model::open(&path, Overrides::default()).unwrap()
        });
        case(&machine, model, measured)
    });
    let table = json!({
        "name": "Radeon 8060S, ROCm 10.1",
        "about": "Times and peaks: TheNoise (github.com/lemonade-sdk/thenoise), docs/CONTINUE.md at 92dd575c, October 2026: \
            whole decodes in bf16 on a Radeon 8060S (gfx1151, 128 GB), PyTorch 2.14.0+rocm10.1.0rc3, HIP 7.16, \
            MIOPEN_FIND_MODE=FAST; runs and spread are not published, and count as 1. A decode without a published peak has \
            the host's. Estimates: Tilewright's meter with the rates of the same page and of TraceLens#943 (20.7 TFLOP/s \
            of convolutions, 14.7 of attention, 98 GiB/s of group norms, 202 GB/s); other plans are priced, and were not run",
        "device": machine.facts,
        "cases": cases,
    });
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/devices/gfx1151.json");
    if std::env::var_os("TILEWRIGHT_WRITE_TABLE").is_some() {
        fs::write(&path, text(&table)).unwrap();
    }
    // The meter, which has never run on that chip, is near what was measured there, by diffusers:
    // its norms of WAN stay in 16 bits, this host's go through f32.
    for case in table["cases"].as_array().unwrap() {
        let whole = &case["plans"][0];
        let ratio = |key: &str| Some(whole[key].as_f64()? / whole["estimate"][key].as_f64()?);
        let [time, peak] = ["elapsed_ms", "peak_bytes"].map(ratio);
        println!(
            "{} {}: time {time:?}, peak {peak:?} of the estimate",
            case["request"]["model"]["family"], case["request"]["height"]
        );
        assert!(time.is_some_and(|ratio| (0.75..1.35).contains(&ratio)), "{whole}");
        assert!(peak.is_none_or(|ratio| (0.95..1.1).contains(&ratio)), "{whole}");
    }
    let (table, times) = without_times(&text(&table));
    let (stored, stored_times) = without_times(&fs::read_to_string(&path).unwrap());
    assert_eq!(table, stored);
    for (time, stored) in times.iter().zip(&stored_times) {
        // The last bits of a sum may be another processor's.
        assert!((time / stored - 1.0).abs() < 1e-6, "{time} {stored}");
    }
}
