//! The checker of answers: whatever is answered, asked for and offered, it doesn't panic, what it
//! lets through is legal, and checking that again changes nothing.

#![no_main]

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use tilewright_plan::{
    Backend, Capabilities, Device, Dtype, HostMemory, Layout, Model, Objective, Options, Plan, Precision, Question,
    Release, Request, Space, Stage, Tile, Time, UnderWay,
};
use tilewright_policy::oracle;

#[derive(Arbitrary, Debug)]
struct Answered {
    space: (u8, u32, u32, u32),
    time: (u8, u32, u32),
    batch: u32,
    precision: (bool, u8),
    last: bool,
    offload: bool,
    prefetch: u32,
}

impl Answered {
    fn plan(&self) -> Plan {
        let (space, height, width, overlap) = self.space;
        let tile = Tile { height, width, overlap };
        let (time, frames, shared) = self.time;
        let (mixed, dtype) = self.precision;
        let dtype = named(dtype);
        Plan {
            space: match space % 3 {
                0 => Space::Whole,
                1 => Space::Blended(tile),
                _ => Space::Exact(tile),
            },
            time: match time % 3 {
                0 => Time::Whole,
                1 => Time::Carried { frames },
                _ => Time::Blended { frames, overlap: shared },
            },
            batch: self.batch,
            precision: if mixed { Precision::Mixed(dtype) } else { Precision::Uniform(dtype) },
            layout: if self.last { Layout::ChannelsLast } else { Layout::ChannelsFirst },
            release: Release::Keep,
            offload: self.offload,
            prefetch: self.prefetch,
            options: Options::none(),
            reason: String::new(),
        }
    }
}

#[derive(Debug)]
struct Case {
    request: Request,
    capabilities: Capabilities,
    under_way: Option<UnderWay>,
    answer: Plan,
}

impl<'a> Arbitrary<'a> for Case {
    fn arbitrary(u: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        // The engine never asks for no sample, frame or pixel.
        let at_least_one = |number: u32| number.max(1);
        let model = Model {
            family: String::new(),
            stored: Dtype::F32,
            quantized: false,
            parameter_bytes: 0,
            spatial_scale: 8,
            temporal_scale: u.arbitrary()?,
        };
        let request = Request {
            model,
            batch: at_least_one(u.arbitrary()?),
            frames: at_least_one(u.arbitrary()?),
            height: at_least_one(u.arbitrary()?),
            width: at_least_one(u.arbitrary()?),
            memory_limit: 0,
            limit_counts_weights: false,
            allows_blended: true,
            objective: Objective::Balanced,
            hints: Vec::new(),
            host: HostMemory::default(),
        };
        let capabilities = Capabilities {
            dtypes: Vec::<u8>::arbitrary(u)?.into_iter().take(7).map(named).collect(),
            // As large as no device's: beyond it rounding up would leave the numbers.
            tile_unit: u.arbitrary::<u32>()? % (1 << 20),
            tile_least: u.arbitrary::<u32>()? % (1 << 20),
            batch_most: u.arbitrary()?,
            exact: u.arbitrary()?,
            carried: u.arbitrary()?,
            offload: u.arbitrary()?,
            prefetch_most: u.arbitrary()?,
            options: Vec::new(),
        };
        // A plan under way was checked, and only a clip is left in the middle.
        let mut under_way = None;
        if let Some(running) = Option::<Answered>::arbitrary(u)?.filter(|_| request.frames > 1) {
            let mut running = running.plan();
            under_way = oracle::check_answer(&mut running, &question(&request, &capabilities, None))
                .ok()
                .map(|_| UnderWay { done: 1, plan: running });
        }
        Ok(Self { request, capabilities, under_way, answer: Answered::arbitrary(u)?.plan() })
    }
}

fn question<'a>(request: &'a Request, capabilities: &'a Capabilities, under_way: Option<&'a UnderWay>) -> Question<'a> {
    Question::new(Stage::Decode, request, &DEVICE, capabilities).going_on(under_way)
}

/// Checks depend on no device.
static DEVICE: Device = Device {
    backend: Backend::Cpu,
    name: String::new(),
    arch: String::new(),
    compute_units: 1,
    total_bytes: 0,
    free_bytes: 0,
    unified: false,
    fast_dtypes: Vec::new(),
    hints: Vec::new(),
};

fn named(number: u8) -> Dtype {
    Dtype::ALL[usize::from(number) % Dtype::ALL.len()]
}

fuzz_target!(|case: Case| {
    let Case { request, capabilities, under_way, mut answer } = case;
    let question = question(&request, &capabilities, under_way.as_ref());
    if oracle::check_answer(&mut answer, &question).is_err() {
        return;
    }
    let breaches = oracle::find_breaches(&answer, &question);
    assert!(breaches.is_empty(), "{breaches:?}: {answer:?}");
    let once = answer.clone();
    assert_eq!(oracle::check_answer(&mut answer, &question), Ok(Vec::new()), "{once:?}");
    assert_eq!(answer, once);
});
