//! Facts that are made up: for tests, and for the gallery, which shares this file. Every text goes through the fixture's hand, so that
//! tests can make it hostile.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tilewright_plan::{Dtype, Layout, Plan, Precision, Release, Space, Tile, Time};

use super::facts::*;

#[path = "fixture/stories.rs"]
mod stories;

/// How texts are written.
pub struct Fixture(pub fn(&str) -> String);

/// A job as it comes, done by half.
#[cfg(test)]
pub fn job(id: &str) -> Job {
    Fixture(str::to_owned).job(id, State::Running, 0.5)
}

/// The moment that all pages are of.
pub fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

fn before(seconds: f64) -> SystemTime {
    now() - Duration::from_secs_f64(seconds)
}

/// Numbers that look like chance and are the same each time.
fn noise(seed: u64) -> impl Iterator<Item = f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1_u64 << 24) as f64
    })
}

impl Fixture {
    fn text(&self, text: &str) -> String {
        (self.0)(text)
    }

    fn texts(&self, texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| self.text(text)).collect()
    }

    pub fn frame(&self) -> Frame {
        Frame {
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
        let states = [State::Queued, State::Running, State::Done, State::Failed, State::Cancelled, State::Expired];
        let share = |state| if state == State::Running { 0.4 } else { 1.0 };
        let jobs =
            states.iter().enumerate().map(|(place, state)| self.job(&format!("job-{place}"), *state, share(*state)));
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
            time: Time::Whole,
            batch: 1,
            precision: Precision::Mixed(dtype),
            layout: Layout::ChannelsLast,
            release: Release::AtEnd,
            offload: false,
            prefetch: 0,
            reason: self.text("tiles of 512 fit the limit and cost least"),
        }
    }

    pub fn blended(side: u32) -> Space {
        Space::Blended(Tile { height: side, width: side, overlap: side / 8 })
    }

    pub fn job(&self, id: &str, state: State, share: f64) -> Job {
        let is_started = state != State::Queued;
        let grid = Grid {
            rows: 4,
            columns: 6,
            steps: 1,
            unit: Unit::Tile,
            done: (share * 24.0) as u32,
            total: 24,
            together: 1,
        };
        Job {
            id: self.text(id),
            state,
            model: self.text("flux"),
            device: self.text("main"),
            tag: Some(self.text("comfy")),
            route: is_started.then(|| self.text("pictures")),
            policy: is_started.then(|| self.text("fast")),
            revision: is_started.then_some(7),
            digest: is_started
                .then(|| self.text("sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")),
            canary: false,
            format: self.text("png"),
            batch: 1,
            frames: 1,
            height: 1088,
            width: 1920,
            created: before(64.0),
            started: is_started.then(|| before(41.0)),
            finished: (!state.is_open()).then(|| before(12.0)),
            position: (state == State::Queued).then_some(1),
            progress: is_started.then_some(share),
            error: (state == State::Failed).then(|| {
                self.text("out of memory three times (412 MiB more were needed): choose the objective leanest")
            }),
            plan: is_started.then(|| self.plan(Self::blended(512), Dtype::Bf16)),
            grid: is_started.then_some(grid),
            results: match state {
                State::Done => vec![File { sample: 0, bytes: 3_412_000, content_type: self.text("image/png") }],
                _ => vec![],
            },
        }
    }

    fn clip(&self, id: &str, done: u32) -> Job {
        let mut job = self.job(id, State::Running, f64::from(done) / 42.0);
        job.model = self.text("wan-14b");
        (job.frames, job.height, job.width, job.format) = (81, 480, 832, self.text("mp4"));
        (job.route, job.policy, job.revision, job.canary) =
            (Some(self.text("video")), Some(self.text("candidate")), Some(2), true);
        job.tag = None;
        job.grid = Some(Grid { rows: 2, columns: 1, steps: 21, unit: Unit::Band, done, total: 42, together: 1 });
        job.plan = Some(Plan {
            time: Time::Carried { frames: 4 },
            ..self.plan(Space::Exact(Tile { height: 256, width: 832, overlap: 32 }), Dtype::Bf16)
        });
        job
    }

    pub fn overview(&self) -> Overview {
        Overview {
            frame: self.frame(),
            models: self.texts(&["flux", "sdxl", "wan-14b"]),
            devices: self.devices(),
            running: vec![self.job("0199a2f0-run-a", State::Running, 0.73), self.clip("0199a2f0-run-b", 17)],
            queue: (0..3)
                .map(|place| Job {
                    position: Some(place + 1),
                    tag: (place != 1).then(|| self.text("comfy")),
                    created: before(f64::from(70 - place * 20)),
                    ..self.job(&format!("0199a2f0-wait-{place}"), State::Queued, 0.0)
                })
                .collect(),
            recent: [State::Done, State::Failed, State::Done, State::Cancelled, State::Expired]
                .into_iter()
                .enumerate()
                .map(|(place, state)| Job {
                    created: before(200.0 + 500.0 * place as f64),
                    started: Some(before(190.0 + 480.0 * place as f64)),
                    finished: Some(before(181.4 + 470.0 * place as f64)),
                    results: if place == 2 { vec![] } else { self.job("", state, 1.0).results },
                    ..self.job(&format!("0199a2f0-ended-{place}"), state, 1.0)
                })
                .collect(),
            routes: self.routes(),
            policies: vec![self.policy("fast"), self.policy_alone("adaptive"), self.policy_broken("candidate")],
            sources: self.texts(&["adaptive", "comfyui", "diffusers", "gfx1151"]),
            charts: self.charts(),
            events: self.events(),
        }
    }

    /// A service that was just started.
    pub fn empty(&self) -> Overview {
        Overview {
            frame: Frame { health: Health::Starting, has_token: false, started: before(9.0), ..self.frame() },
            models: self.texts(&["flux"]),
            devices: vec![Device { running: 0, queued: 0, fault: None, ..self.devices().remove(0) }],
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

    fn devices(&self) -> Vec<Device> {
        let device = Device {
            name: self.text("main"),
            backend: self.text("rocm"),
            about: self.text("AMD Radeon 8060S, gfx1151"),
            total_bytes: 96 << 30,
            used_bytes: 41 << 30,
            held_bytes: Some(33 << 30),
            limit_bytes: 64 << 30,
            running: 2,
            queued: 3,
            queue_most: 64,
            fault: None,
        };
        let second = Device {
            name: self.text("spare"),
            backend: self.text("cpu"),
            about: self.text("AMD Ryzen AI MAX+ 395, x86-64-v4"),
            total_bytes: 31 << 30,
            used_bytes: 6 << 30,
            held_bytes: None,
            limit_bytes: 24 << 30,
            running: 0,
            queued: 0,
            queue_most: 64,
            fault: Some(self.text("libtorch has no kernel for this processor: take another build of it")),
        };
        vec![device, second]
    }

    fn routes(&self) -> Vec<Route> {
        let video = Conditions {
            family: self.texts(&["wan-2.1", "wan-2.2"]),
            device: self.texts(&["main"]),
            frames: Span { from: Some(2), to: None },
            ..Conditions::default()
        };
        let pictures = Conditions {
            tag: self.texts(&["comfy"]),
            quantized: Some(false),
            pixels: Span { from: Some(1), to: Some(4_000_000) },
            ..Conditions::default()
        };
        let route = |name: &str, conditions: Conditions, policy: &str| Route {
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
        let canary = Canary {
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
        let shadow = Shadow {
            policy: self.text("gfx1151"),
            revision: Some(1),
            decisions: 803,
            same: 640,
            failures: 2,
            regret: Some(0.084),
            standing: Standing::Poor,
            why: String::new(),
        };
        let stopped = Canary {
            standing: Standing::Stopped,
            psnr: Some(38.9),
            why: self.text("38.9 dB is below 45 dB"),
            ..canary.clone()
        };
        vec![
            Route { canary: Some(canary), at_chunks: true, ..route("video", video, "fast") },
            Route { shadow: Some(shadow), canary: Some(stopped), ..route("pictures", pictures, "fast") },
            Route { paused: true, revision: Some(1), jobs: 1, ..route("default", Conditions::default(), "adaptive") },
        ]
    }

    fn revision(&self, number: u64, place: Place, seconds: f64) -> Revision {
        Revision {
            number,
            name: self.text("fast"),
            version: self.text("1.4.0"),
            digest: self
                .text(&format!("sha256:{number:02x}86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")),
            settings: vec![(self.text("tile"), self.text("512")), (self.text("precision"), self.text("f32"))],
            origin: self.text("oci://registry.example/team/fast:1.4"),
            place,
            since: before(seconds),
            jobs: 12_000 / number,
            decisions: 12_410 / number,
            failures: number % 3,
            held: u32::from(place == Place::Draining) * 2,
        }
    }

    pub fn policy(&self, name: &str) -> Policy {
        let refused = |why: &str, seconds: f64| Refused {
            time: before(seconds),
            origin: self.text("./mine.wasm"),
            digest: Some(self.text("sha256:0086d081884c7d659a2feaa0c55ad015")),
            why: self.text(why),
        };
        Policy {
            name: self.text(name),
            source: self.text("oci://registry.example/team/fast:1.4"),
            paused: false,
            revisions: vec![
                self.revision(7, Place::InForce, 4000.0),
                self.revision(6, Place::Previous, 4000.0),
                self.revision(5, Place::Draining, 9000.0),
            ],
            refused: vec![
                refused("imports wasi:clocks/wall-clock, which policies may not have: build it without WASI", 2000.0),
                refused("not signed by a key that is trusted", 90_000.0),
                refused("not signed by a key that is trusted", 91_000.0),
            ],
            routes: self.texts(&["video", "pictures"]),
        }
    }

    fn policy_alone(&self, name: &str) -> Policy {
        Policy {
            source: self.text("adaptive"),
            revisions: vec![self.revision(1, Place::InForce, 266_000.0)],
            refused: vec![],
            paused: true,
            routes: self.texts(&["default"]),
            ..self.policy(name)
        }
    }

    fn policy_broken(&self, name: &str) -> Policy {
        Policy { revisions: vec![], refused: vec![], routes: vec![], ..self.policy(name) }
    }

    fn latency(&self, policy: &str, revision: u64, middle: f64) -> Latency {
        let samples = noise(revision).zip(noise(revision + 99)).take(800);
        let spread = samples.map(|(one, other)| {
            middle * 10_f64.powf((one + other - 1.0) * 0.5 + if other > 0.985 { 1.1 } else { 0.0 })
        });
        Latency { policy: self.text(policy), revision, samples_us: spread.collect() }
    }

    pub fn charts(&self) -> Charts {
        let series = |name: &str, seed: u64, middle: f64, spread: f64| Series {
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
            decode: vec![
                series("video", 1, 95_000.0, 0.5),
                series("pictures", 2, 2900.0, 0.9),
                series("default", 3, 480.0, 0.7),
            ],
            regret: vec![series("video", 4, 0.21, 1.2), series("pictures", 5, 0.05, 1.9)],
        }
    }

    fn events(&self) -> Vec<Event> {
        let event = |seconds: f64, kind: &str, what: &str| Event {
            time: before(seconds),
            kind: self.text(kind),
            what: self.text(what),
        };
        vec![
            event(300.0, "stopped", "pictures: the canary candidate r2 was stopped, 38.9 dB is below 45 dB"),
            event(2000.0, "refused", "fast: ./mine.wasm imports wasi:clocks/wall-clock, which policies may not have"),
            event(
                4000.0,
                "swapped",
                "fast: revision 7 took over from revision 6, from oci://registry.example/team/fast:1.4",
            ),
            event(
                90_000.0,
                "rolled back",
                "fast: revision 4 took over again from revision 5, which failed 4 of 20 decisions",
            ),
            event(266_000.0, "reloaded", "the configuration was read again"),
        ]
    }
}
