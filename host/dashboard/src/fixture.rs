//! Made-up data for tests and for the gallery, which shares this file. Every text goes through the
//! fixture's function, so that tests can make it hostile.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tilewright_config::{Between, Conditions, Role};
use tilewright_plan::{Backend, Dtype, Layout, Plan, Precision, Release, Space, Stage, Tile, Time, Value};
use tilewright_service_api::{
    DeviceBody, EventBody, GridUnit, Job, JobResult, JobStage, JobState, OutputFormat, PlanGrid, PolicyBody,
    RefusedBody, RevisionBody, SamplingProgress,
};

use super::views::*;

#[path = "fixture/profiles.rs"]
mod profiles;
#[path = "fixture/prompts.rs"]
mod prompts;
#[path = "fixture/traces.rs"]
mod traces;

/// A fixture, with the function that writes its texts.
pub struct Fixture(pub fn(&str) -> String);

/// A job that is half done.
#[cfg(test)]
pub fn job(id: &str) -> JobView {
    Fixture(str::to_owned).job(id, JobState::Running, 0.5)
}

/// The moment of all pages.
pub fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

fn before(seconds: f64) -> SystemTime {
    now() - Duration::from_secs_f64(seconds)
}

fn stamp(seconds: f64) -> String {
    humantime::format_rfc3339(before(seconds)).to_string()
}

/// Numbers that look like chance and are the same each time.
fn noise(seed: u64) -> impl Iterator<Item = f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1_u64 << 24) as f64
    })
}

/// A sample at its sixth step of twenty, each of which takes as long.
fn sampling(step_ms: f64) -> SamplingProgress {
    let left_ms = Some(14.0 * step_ms);
    SamplingProgress { step: 6, steps: 20, step_ms: Some(step_ms), left_ms, preview: true }
}

impl Fixture {
    fn text(&self, text: &str) -> String {
        (self.0)(text)
    }

    fn texts(&self, texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| self.text(text)).collect()
    }

    pub fn frame(&self) -> PageFrame {
        PageFrame {
            version: self.text("0.1.0"),
            now: now(),
            started: before(266_000.0),
            health: Health::Ready,
            form_token: self.text("b7e1c0ffee"),
            address: self.text("127.0.0.1:7590"),
            has_token: true,
            notice: None,
            role: Role::Operate,
        }
    }

    pub fn jobs_page(&self) -> JobsPage {
        let share = |state| if state == JobState::Running { 0.4 } else { 1.0 };
        let jobs = JobState::ALL.iter().enumerate();
        let jobs = jobs.map(|(place, (state, _))| self.job(&format!("job-{place}"), *state, share(*state)));
        let text = |text: &str| Some(self.text(text));
        JobsPage {
            frame: self.frame(),
            jobs: jobs.collect(),
            query: JobQuery {
                state: None,
                model: text("flux"),
                text: text("night"),
                before: text("0199"),
                ..JobQuery::default()
            },
            next: text("0198"),
            models: self.texts(&["flux", "wan"]),
            devices: self.texts(&["main"]),
            policies: self.texts(&["adaptive", "fast"]),
        }
    }

    pub fn plan(&self, space: Space, dtype: Dtype) -> Plan {
        Plan {
            space,
            precision: Precision::Mixed(dtype),
            layout: Layout::ChannelsLast,
            release: Release::AtEnd,
            reason: self.text("tiles of 512 fit the limit and cost least"),
            ..Plan::plain()
        }
    }

    pub fn blended(side: u32) -> Space {
        Space::Blended(Tile { height: side, width: side, overlap: side / 8 })
    }

    pub fn job(&self, id: &str, state: JobState, share: f64) -> JobView {
        let is_started = state != JobState::Queued;
        let job = Job {
            id: self.text(id),
            state,
            stage: JobStage::Decode,
            at: None,
            model: self.text("flux"),
            device: self.text("main"),
            tag: Some(self.text("comfy")),
            route: self.text("pictures"),
            policy: self.text("fast"),
            revision: 7,
            digest: self.text("sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"),
            canary: false,
            format: OutputFormat::Png,
            batch: 1,
            frames: 1,
            height: 1088,
            width: 1920,
            steps: None,
            request: None,
            created: stamp(64.0),
            started: is_started.then(|| stamp(41.0)),
            finished: state.is_end().then(|| stamp(12.0)),
            position: (state == JobState::Queued).then_some(0),
            progress: is_started.then_some(share),
            loading: None,
            sampling: None,
            attempt: is_started.then_some(1),
            error: (state == JobState::Failed).then(|| {
                self.text("out of memory three times (412 MiB more were needed): choose the objective leanest")
            }),
            results: match state {
                JobState::Done => {
                    vec![JobResult { sample: 0, bytes: 3_412_000, content_type: self.text("image/png") }]
                }
                _ => vec![],
            },
            profile: None,
        };
        JobView {
            decided_by: (state == JobState::Running).then(|| (self.text("fast"), 7)),
            prompt: None,
            seeds: Vec::new(),
            job,
            plan: is_started.then(|| self.plan(Self::blended(512), Dtype::Bf16).into()),
            grid: is_started.then_some(PlanGrid { rows: 4, columns: 6, total: 24, unit: GridUnit::Tile }),
        }
    }

    fn clip(&self, id: &str, done: u32) -> JobView {
        let mut view = self.job(id, JobState::Running, f64::from(done) / 21.0);
        let job = &mut view.job;
        job.model = self.text("wan-14b");
        (job.frames, job.height, job.width, job.format) = (81, 480, 832, OutputFormat::Mp4);
        (job.route, job.policy, job.revision, job.canary) = (self.text("video"), self.text("candidate"), 2, true);
        job.tag = None;
        view.grid = Some(PlanGrid { rows: 2, columns: 1, total: 21, unit: GridUnit::Chunk });
        let plan = self.plan(Space::Exact(Tile { height: 256, width: 832, overlap: 32 }), Dtype::Bf16);
        view.plan = Some(Plan { time: Time::Carried { frames: 4 }, ..plan }.into());
        view
    }

    pub fn overview(&self) -> OverviewPage {
        OverviewPage {
            frame: self.frame(),
            models: self.texts(&["flux", "sdxl", "wan-14b"]),
            devices: self.devices(),
            running: vec![self.job("0199a2f0-run-a", JobState::Running, 0.73), self.clip("0199a2f0-run-b", 17)],
            queue: (0..3).map(|place| self.waiting(place)).collect(),
            recent: [JobState::Done, JobState::Failed, JobState::Done, JobState::Cancelled, JobState::Expired]
                .into_iter()
                .enumerate()
                .map(|(place, state)| self.ended_job(place, state))
                .collect(),
            routes: self.routes(),
            policies: vec![self.policy("fast"), self.policy_alone("adaptive"), self.policy("candidate")],
            sources: self.texts(&["adaptive", "comfyui", "diffusers", "gfx1151"]),
            charts: self.charts(),
            events: self.events(),
        }
    }

    fn waiting(&self, place: u32) -> JobView {
        let mut view = self.job(&format!("0199a2f0-wait-{place}"), JobState::Queued, 0.0);
        view.job.position = Some(place);
        view.job.tag = (place != 1).then(|| self.text("comfy"));
        view.job.created = stamp(f64::from(70 - place * 20));
        view
    }

    fn ended_job(&self, place: usize, state: JobState) -> JobView {
        let mut view = self.job(&format!("0199a2f0-ended-{place}"), state, 1.0);
        view.job.created = stamp(200.0 + 500.0 * place as f64);
        view.job.started = Some(stamp(190.0 + 480.0 * place as f64));
        view.job.finished = Some(stamp(181.4 + 470.0 * place as f64));
        if place == 0 {
            view.prompt = Some(self.text("a lighthouse at dusk"));
        }
        if place == 2 {
            view.job.results.clear();
        }
        view
    }

    /// A service that was just started.
    pub fn empty(&self) -> OverviewPage {
        OverviewPage {
            frame: PageFrame { health: Health::Draining, has_token: false, started: before(9.0), ..self.frame() },
            models: self.texts(&["flux"]),
            devices: self.devices().into_iter().skip(1).collect(),
            running: vec![],
            queue: vec![],
            recent: vec![],
            routes: vec![],
            policies: vec![self.policy_alone("adaptive")],
            sources: vec![],
            charts: Charts::default(),
            events: vec![],
        }
    }

    fn devices(&self) -> Vec<DeviceView> {
        let device = |name: &str, facts: tilewright_plan::Device, is_busy: bool| DeviceView {
            used_bytes: facts.total_bytes / 3,
            device: DeviceBody {
                name: self.text(name),
                memory_limit_bytes: facts.total_bytes / 2,
                counts_weights: false,
                weights_memory_bytes: facts.total_bytes / 2,
                in_use_bytes: facts.total_bytes / 4,
                pooled_bytes: facts.total_bytes / 16,
                facts,
                queued: if is_busy { 3 } else { 0 },
                queue: 64,
                running: is_busy,
            },
        };
        let cpu = tilewright_plan::Device {
            backend: Backend::Cpu,
            name: self.text("AMD Ryzen AI MAX+ 395, x86-64-v4"),
            arch: self.text("x86-64-v4"),
            compute_units: 16,
            total_bytes: 31 << 30,
            free_bytes: 25 << 30,
            unified: true,
            fast_dtypes: vec![Dtype::F32],
            hints: Vec::new(),
        };
        vec![device("main", self.hardware(), true), device("spare", cpu, false)]
    }

    fn routes(&self) -> Vec<RouteView> {
        let video = Conditions {
            family: self.texts(&["wan-2.1", "wan-2.2"]),
            device: self.texts(&["main"]),
            frames: Some(Between { from: Some(2), to: None }),
            ..Conditions::default()
        };
        let pictures = Conditions {
            tag: self.texts(&["comfy"]),
            quantized: Some(false),
            pixels: Some(Between { from: Some(1), to: Some(4_000_000) }),
            ..Conditions::default()
        };
        let route = |name: &str, conditions: Conditions, policy: &str| RouteView {
            name: self.text(name),
            conditions,
            policy: self.text(policy),
            revision: Some(7),
            paused: false,
            at_chunks: false,
            jobs: 12_408,
            shadow: None,
            canary: None,
        };
        let canary = CanaryView {
            policy: self.text("candidate"),
            revision: Some(2),
            share: 0.1,
            jobs: 61,
            compared: 14,
            failures: 1,
            psnr: Some(47.13),
            psnr_least: Some(45.0),
            standing: Standing::Good,
            why: self.text("11 % quicker over 61 jobs, and no output below 45 dB"),
        };
        let shadow = ShadowView {
            policy: self.text("gfx1151"),
            revision: Some(1),
            decisions: 803,
            same: 640,
            failures: 2,
            regret: Some(0.084),
            standing: Standing::Poor,
            why: String::new(),
        };
        let stopped = CanaryView {
            standing: Standing::Stopped,
            psnr: Some(38.9),
            why: self.text("38.9 dB is below 45 dB"),
            ..canary.clone()
        };
        vec![
            RouteView { canary: Some(canary), at_chunks: true, ..route("video", video, "fast") },
            RouteView { shadow: Some(shadow), canary: Some(stopped), ..route("pictures", pictures, "fast") },
            RouteView {
                paused: true,
                revision: Some(1),
                jobs: 1,
                ..route("default", Conditions::default(), "adaptive")
            },
        ]
    }

    fn revision(&self, number: u64, seconds: f64) -> RevisionBody {
        RevisionBody {
            number,
            name: self.text("fast"),
            version: self.text("1.4.0"),
            digest: self
                .text(&format!("sha256:{number:02x}86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")),
            settings: [
                (self.text("tile"), Value::Integer(512)),
                (self.text("precision"), Value::Text(self.text("f32"))),
            ]
            .into(),
            origin: self.text("oci://registry.example/team/fast:1.4"),
            stages: vec![Stage::Decode],
            since: stamp(seconds),
            jobs: 12_000 / number,
            decisions: 12_410 / number,
            failures: number % 3,
        }
    }

    pub fn policy(&self, name: &str) -> PolicyView {
        let refused = |why: &str, seconds: f64| RefusedBody {
            time: stamp(seconds),
            origin: self.text("./mine.wasm"),
            why: self.text(why),
        };
        let policy = PolicyBody {
            name: self.text(name),
            source: self.text("oci://registry.example/team/fast:1.4"),
            paused: false,
            in_force: self.revision(7, 4000.0),
            previous: Some(self.revision(6, 4000.0)),
            draining: vec![self.revision(5, 9000.0)],
            refused: vec![
                refused("imports wasi:clocks/wall-clock, which policies may not have: build it without WASI", 2000.0),
                refused("not signed by a key that is trusted", 90_000.0),
                refused("not signed by a key that is trusted", 91_000.0),
            ],
            warnings: self.texts(&[
                "policy fast does not answer the stage denoise of route video: the native default decides there",
            ]),
        };
        PolicyView { policy, routes: self.texts(&["video", "pictures"]) }
    }

    fn policy_alone(&self, name: &str) -> PolicyView {
        let policy = PolicyBody {
            source: self.text("adaptive"),
            in_force: self.revision(1, 266_000.0),
            previous: None,
            draining: vec![],
            refused: vec![],
            warnings: vec![],
            paused: true,
            ..self.policy(name).policy
        };
        PolicyView { policy, routes: self.texts(&["default"]) }
    }

    fn latency(&self, policy: &str, revision: u64, middle: f64) -> LatencySamples {
        let samples = noise(revision).zip(noise(revision + 99)).take(800);
        let spread = samples.map(|(one, other)| {
            middle * 10_f64.powf((one + other - 1.0) * 0.5 + if other > 0.985 { 1.1 } else { 0.0 })
        });
        LatencySamples { policy: self.text(policy), revision, samples_us: spread.collect() }
    }

    pub fn charts(&self) -> Charts {
        let series = |name: &str, seed: u64, middle: f64, spread: f64| TimeSeries {
            name: self.text(name),
            points: noise(seed)
                .take(30)
                .enumerate()
                .map(|(place, noise)| (before(3500.0 - 115.0 * place as f64), middle * (1.0 + spread * (noise - 0.5))))
                .collect(),
        };
        Charts {
            latency: vec![
                self.latency("fast", 7, 5.2),
                self.latency("fast", 6, 19.0),
                self.latency("adaptive", 1, 140.0),
            ],
            work: vec![
                (Stage::Denoise, vec![series("video", 6, 640_000.0, 0.2)]),
                (
                    Stage::Decode,
                    vec![
                        series("video", 1, 95_000.0, 0.5),
                        series("pictures", 2, 2900.0, 0.9),
                        series("default", 3, 480.0, 0.7),
                    ],
                ),
            ],
            regret: vec![series("video", 4, 0.21, 1.2), series("pictures", 5, 0.05, 1.9)],
        }
    }

    fn events(&self) -> Vec<EventBody> {
        let event = |seconds: f64, what: &str, subject: Option<&str>, detail: &str| EventBody {
            time: stamp(seconds),
            what: self.text(what),
            policy: subject.map(|subject| self.text(subject)),
            route: None,
            revision: None,
            detail: self.text(detail),
        };
        vec![
            event(300.0, "canary-stopped", Some("candidate"), "revision 2 was stopped, 38.9 dB is below 45 dB"),
            event(2000.0, "refused", Some("fast"), "./mine.wasm imports wasi:clocks, which policies may not have"),
            event(4000.0, "swapped", Some("fast"), "revision 7 took over from revision 6"),
            event(90_000.0, "rolled-back", Some("fast"), "revision 4 took over again from revision 5"),
            event(266_000.0, "reloaded", None, "the configuration was read again"),
        ]
    }
}
