//! Conversions between the types of contract 0.1.0 and [`tilewright_plan`]'s.

use tilewright_plan as plan;
use tilewright_plan::exchange::nanoseconds;

use super::bindings::{
    exports::tilewright::policy::lifecycle,
    tilewright::policy::{decoding, host, types},
};
use crate::contract::conversions::{alike, conversions};

conversions!(decoding, decoding);

impl From<decoding::Plan> for plan::Plan {
    fn from(answer: decoding::Plan) -> Self {
        Self {
            space: answer.space.into(),
            time: answer.time.into(),
            batch: answer.batch,
            precision: answer.precision.into(),
            layout: answer.layout.into(),
            release: answer.release.into(),
            offload: answer.offload,
            prefetch: answer.prefetch,
            options: plan::Options::none(),
            reason: answer.reason,
        }
    }
}

/// This version has no options.
impl From<&plan::Plan> for decoding::Plan {
    fn from(plan: &plan::Plan) -> Self {
        Self {
            space: plan.space.into(),
            time: plan.time.into(),
            batch: plan.batch,
            precision: without_tf32(plan.precision).into(),
            layout: plan.layout.into(),
            release: plan.release.into(),
            offload: plan.offload,
            prefetch: plan.prefetch,
            reason: plan.reason.clone(),
        }
    }
}

impl From<plan::Cost> for decoding::Cost {
    fn from(cost: plan::Cost) -> Self {
        let plan::Cost { peak_bytes, elapsed, tiles, shapes, rework, .. } = cost;
        Self { peak_bytes, elapsed_ns: nanoseconds(elapsed), tiles, shapes, rework }
    }
}

impl From<&plan::Outcome> for decoding::Outcome {
    fn from(outcome: &plan::Outcome) -> Self {
        let &plan::Outcome { elapsed, peak_bytes, attempts, .. } = outcome;
        Self { elapsed_ns: nanoseconds(elapsed), peak_bytes, attempts }
    }
}

/// This version has no name for TF32. A plan of another policy that uses it looks like f32, which
/// is as wide and holds as much memory.
fn without_tf32(precision: plan::Precision) -> plan::Precision {
    match precision.dtype() {
        plan::Dtype::Tf32 => plan::Precision::Uniform(plan::Dtype::F32),
        _ => precision,
    }
}

impl From<types::Dtype> for plan::Dtype {
    fn from(dtype: types::Dtype) -> Self {
        match dtype {
            types::Dtype::F32 => Self::F32,
            types::Dtype::Bf16 => Self::Bf16,
            types::Dtype::F16 => Self::F16,
            types::Dtype::F8E4m3 => Self::F8E4m3,
            types::Dtype::F8E5m2 => Self::F8E5m2,
            types::Dtype::I8 => Self::I8,
            types::Dtype::I4 => Self::I4,
        }
    }
}

impl From<plan::Dtype> for types::Dtype {
    fn from(dtype: plan::Dtype) -> Self {
        match dtype {
            plan::Dtype::F32 | plan::Dtype::Tf32 => Self::F32,
            plan::Dtype::Bf16 => Self::Bf16,
            plan::Dtype::F16 => Self::F16,
            plan::Dtype::F8E4m3 => Self::F8E4m3,
            plan::Dtype::F8E5m2 => Self::F8E5m2,
            plan::Dtype::I8 => Self::I8,
            plan::Dtype::I4 => Self::I4,
        }
    }
}

/// The types that this version has a name for.
fn known(dtypes: &[plan::Dtype]) -> impl Iterator<Item = plan::Dtype> {
    dtypes.iter().copied().filter(|dtype| *dtype != plan::Dtype::Tf32)
}

/// A request in the contract's form: the parts that can't be lent as they are.
pub(super) struct GuestRequest<'a> {
    question: &'a plan::Question<'a>,
    fast_dtypes: Vec<types::Dtype>,
    /// The hints that go before and after the request's own.
    before: Vec<plan::Hint>,
    after: Vec<plan::Hint>,
    /// True if an earlier program wrote the request: its own hints hold everything that the guest
    /// got.
    is_old: bool,
}

fn hint(name: &str, value: String) -> plan::Hint {
    plan::Hint { name: name.into(), value }
}

fn has_hint(question: &plan::Question<'_>, name: &str) -> bool {
    question.request.hints.iter().any(|hint| hint.name == name)
}

/// A hint that names a capability, and its value.
type CapabilityHint = (&'static str, fn(&plan::Capabilities) -> String);

/// The capabilities, since the contract's request has no fields for them.
const CAPABILITIES: [CapabilityHint; 8] = [
    ("offer.dtypes", |of| known(&of.dtypes).map(plan::Dtype::name).collect::<Vec<_>>().join(",")),
    ("offer.tile-unit", |of| of.tile_unit.to_string()),
    ("offer.tile-least", |of| of.tile_least.to_string()),
    ("offer.batch-most", |of| of.batch_most.to_string()),
    ("offer.exact", |of| of.exact.to_string()),
    ("offer.carried", |of| of.carried.to_string()),
    ("offer.offload", |of| of.offload.to_string()),
    ("offer.prefetch-most", |of| of.prefetch_most.to_string()),
];

/// Output frames of a clip that are delivered.
const FRAMES_DONE: &str = "clip.done";

impl<'a> GuestRequest<'a> {
    /// The request of a decision, with the frames of a clip under way.
    ///
    /// Hints have the order of the release: capabilities, the request's own, the stage, delivered
    /// frames; and then the device's, which that release did not have.
    ///
    /// A record of an earlier program has these hints in its request. A replay has to give the
    /// guest the same hints to the byte, or fuel and answers differ. So a request with any of them
    /// keeps its own as they are, followed only by the capabilities that it lacks, as in those
    /// programs.
    pub fn decide(question: &'a plan::Question<'a>) -> Self {
        let mut told = Self::learn(question);
        if told.is_old {
            let lacking = CAPABILITIES.iter().filter(|(name, _)| !has_hint(question, name));
            told.after.extend(lacking.map(|(name, value)| hint(name, value(question.capabilities))));
        } else {
            let done = question.under_way.map(|under_way| under_way.done.to_string());
            told.after.extend(done.map(|done| hint(FRAMES_DONE, done)));
        }
        told
    }

    /// The request of an outcome, which is of the whole clip. A request of an old record stays as
    /// it is.
    pub fn learn(question: &'a plan::Question<'a>) -> Self {
        let capabilities = question.capabilities;
        let fast_dtypes = known(&question.device.fast_dtypes).map(Into::into).collect();
        let mut names = CAPABILITIES.iter().map(|(name, _)| *name).chain([plan::Stage::HINT, FRAMES_DONE]);
        let is_old = *capabilities == plan::Capabilities::default() || names.any(|name| has_hint(question, name));
        let (mut before, mut after) = (Vec::new(), Vec::new());
        if !is_old {
            before.extend(CAPABILITIES.iter().map(|(name, value)| hint(name, value(capabilities))));
            after.push(hint(plan::Stage::HINT, question.stage.name().into()));
        }
        Self { question, fast_dtypes, before, after, is_old }
    }

    /// All hints, in their order.
    pub fn hints(&self) -> Vec<types::Hint<'_>> {
        let hints = self.before.iter().chain(&self.question.request.hints).chain(&self.after);
        let hints = hints.chain(&self.question.device.hints);
        hints.map(|plan::Hint { name, value }| types::Hint { name, value }).collect()
    }

    /// The request as the contract has it: with the device inside, and with capabilities, stage and
    /// frames as hints.
    pub fn request<'b>(&'b self, hints: &'b [types::Hint<'b>]) -> decoding::Request<'b> {
        let plan::Question { request, device, .. } = *self.question;
        decoding::Request {
            model: types::Model {
                family: &request.model.family,
                stored: request.model.stored.into(),
                quantized: request.model.quantized,
                parameter_bytes: request.model.parameter_bytes,
                spatial_scale: request.model.spatial_scale,
                temporal_scale: request.model.temporal_scale,
            },
            device: lend_device(device, &self.fast_dtypes),
            batch: request.batch,
            frames: request.frames,
            height: request.height,
            width: request.width,
            memory_limit: request.memory_limit,
            objective: request.objective.into(),
            hints,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(hints: Vec<plan::Hint>) -> plan::Request {
        let model = plan::Model {
            family: "wan-2.1".into(),
            stored: plan::Dtype::F32,
            quantized: false,
            parameter_bytes: 1,
            spatial_scale: 8,
            temporal_scale: 4,
        };
        let objective = plan::Objective::Balanced;
        plan::Request {
            model,
            batch: 1,
            frames: 81,
            height: 480,
            width: 832,
            memory_limit: 1 << 30,
            limit_counts_weights: false,
            host: plan::HostMemory::default(),
            allows_blended: true,
            objective,
            hints,
        }
    }

    fn device() -> plan::Device {
        plan::Device {
            backend: plan::Backend::Cpu,
            name: String::new(),
            arch: String::new(),
            compute_units: 1,
            total_bytes: 1 << 40,
            free_bytes: 1 << 40,
            unified: false,
            fast_dtypes: Vec::new(),
            hints: Vec::new(),
        }
    }

    fn capabilities() -> plan::Capabilities {
        plan::Capabilities {
            dtypes: vec![plan::Dtype::F32, plan::Dtype::Bf16],
            tile_unit: 8,
            tile_least: 64,
            batch_most: 1,
            exact: true,
            carried: true,
            offload: false,
            prefetch_most: 2,
            options: Vec::new(),
        }
    }

    fn under_way() -> plan::UnderWay {
        let plan = plan::Plan {
            space: plan::Space::Whole,
            time: plan::Time::Carried { frames: 4 },
            batch: 1,
            precision: plan::Precision::Uniform(plan::Dtype::F32),
            layout: plan::Layout::ChannelsFirst,
            release: plan::Release::Keep,
            offload: false,
            prefetch: 0,
            options: plan::Options::none(),
            reason: String::new(),
        };
        plan::UnderWay { done: 13, plan }
    }

    /// The hints that a guest gets for a decision and for an outcome, as `name=value`.
    fn told(hints: Vec<plan::Hint>, capabilities: &plan::Capabilities) -> [Vec<String>; 2] {
        let (request, device, under_way) = (request(hints), device(), under_way());
        let question =
            plan::Question::new(plan::Stage::Encode, &request, &device, capabilities).going_on(Some(&under_way));
        let text =
            |told: GuestRequest<'_>| told.hints().iter().map(|hint| format!("{}={}", hint.name, hint.value)).collect();
        [text(GuestRequest::decide(&question)), text(GuestRequest::learn(&question))]
    }

    const OFFERED: [&str; 8] = [
        "offer.dtypes=f32,bf16",
        "offer.tile-unit=8",
        "offer.tile-least=64",
        "offer.batch-most=1",
        "offer.exact=true",
        "offer.carried=true",
        "offer.offload=false",
        "offer.prefetch-most=2",
    ];

    #[test]
    fn a_guest_gets_its_hints_in_the_order_of_the_release() {
        let [decision, outcome] = told(vec![hint("sample-size", "512".into())], &capabilities());
        let all = [OFFERED.as_slice(), &["sample-size=512", "stage=encode", "clip.done=13"]].concat();
        assert_eq!(decision, all);
        assert_eq!(outcome, all[..10], "an outcome is of the whole clip");
        let [decision, _] = told(Vec::new(), &capabilities());
        assert_eq!(decision, [OFFERED.as_slice(), &["stage=encode", "clip.done=13"]].concat());
    }

    #[test]
    fn the_device_s_hints_come_after_those_of_the_release() {
        let (request, offered) = (request(vec![hint("sample-size", "512".into())]), capabilities());
        let device = plan::Device { hints: vec![hint("hip", "7.2.53211".into())], ..device() };
        let question = plan::Question::new(plan::Stage::Decode, &request, &device, &offered);
        for told in [GuestRequest::decide(&question), GuestRequest::learn(&question)] {
            let names: Vec<&str> = told.hints().iter().map(|hint| hint.name).collect();
            assert_eq!(names[8..], ["sample-size", "stage", "hip"]);
        }
    }

    #[test]
    fn tf32_is_f32_to_a_guest_that_has_no_name_for_it() {
        let mut offered = capabilities();
        offered.dtypes.insert(1, plan::Dtype::Tf32);
        let [decision, _] = told(Vec::new(), &offered);
        assert_eq!(decision[0], "offer.dtypes=f32,bf16");
        let (request, mut device) = (request(Vec::new()), device());
        device.fast_dtypes = vec![plan::Dtype::Bf16, plan::Dtype::Tf32, plan::Dtype::F32];
        let question = plan::Question::new(plan::Stage::Decode, &request, &device, &offered);
        let fast = GuestRequest::decide(&question).fast_dtypes;
        assert!(matches!(fast[..], [types::Dtype::Bf16, types::Dtype::F32]));
        let tf32 = plan::Plan { precision: plan::Precision::Mixed(plan::Dtype::Tf32), ..under_way().plan };
        let seen = decoding::Plan::from(&tf32).precision;
        assert!(matches!(seen, decoding::Precision::Uniform(types::Dtype::F32)));
    }

    #[test]
    fn an_old_record_s_request_is_told_as_it_stands() {
        let old = [("offer.exact", "false"), ("stage", "decode"), ("clip.done", "5")];
        let [decision, outcome] = told(old.map(|(name, value)| hint(name, value.into())).to_vec(), &capabilities());
        let kept = ["offer.exact=false", "stage=decode", "clip.done=5"];
        let lacking: Vec<_> = OFFERED.into_iter().filter(|told| !told.starts_with("offer.exact")).collect();
        assert_eq!(decision, [kept.as_slice(), &lacking].concat());
        assert_eq!(outcome, kept, "an outcome got no capabilities that its request lacked");
        let [_, outcome] = told(vec![hint("sample-size", "512".into())], &plan::Capabilities::default());
        assert_eq!(outcome, ["sample-size=512"], "and none are made up");
    }
}
