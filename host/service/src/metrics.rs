//! The metrics for Prometheus.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use prometheus::{
    Encoder, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder, core::Collector,
};
use tilewright_engine::{Usage, WeightStore};
use tilewright_plan::{FallbackReason, Record, Stage, Work, of_kinds};
use tilewright_rollout::Event;
use tilewright_service_api::JobState;

use crate::{device::Devices, work::Followed};

/// Buckets in seconds: from a quarter of a microsecond, for decisions.
const DECISION: [f64; 18] = [
    2.5e-7, 5e-7, 1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 0.1,
    0.25,
];

/// Buckets in seconds: from ten milliseconds to an hour, for work.
const WORK: [f64; 14] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0];

/// Labels of the revision that decided and its route.
const DECIDED: [&str; 4] = ["route", "policy", "revision", "canary"];

/// The revision that decided, and its route.
#[derive(Clone, Copy, Debug)]
pub struct Labels<'a> {
    pub route: &'a str,
    pub policy: &'a str,
    pub revision: u64,
    pub canary: bool,
}

impl Labels<'_> {
    /// The values of [`DECIDED`].
    fn values(&self) -> [String; 4] {
        let canary = if self.canary { "true" } else { "false" };
        [self.route.into(), self.policy.into(), self.revision.to_string(), canary.into()]
    }
}

/// The most routes and revisions with series of their own.
const REVISIONS: usize = 64;

/// The reasons of fallbacks.
const REASONS: [FallbackReason; 8] = [
    FallbackReason::Error,
    FallbackReason::Nonsense,
    FallbackReason::Trap,
    FallbackReason::OutOfFuel,
    FallbackReason::Timeout,
    FallbackReason::OutOfMemory,
    FallbackReason::OutOfService,
    FallbackReason::Exhausted,
];

/// The metrics of a kind of work that ended well.
struct OfWork {
    times: HistogramVec,
    peaks: GaugeVec,
}

/// Makes a metric a part of what is rendered.
fn register<M: Collector + Clone + 'static>(
    registry: &Registry,
    metric: prometheus::Result<M>,
) -> prometheus::Result<M> {
    let metric = metric?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

/// All metrics.
pub struct Metrics {
    registry: Registry,
    decisions: HistogramVec,
    fallbacks: IntCounterVec,
    /// By the usual stage of each kind of work.
    work: BTreeMap<Stage, OfWork>,
    steps: HistogramVec,
    moved: IntCounterVec,
    reused: IntCounterVec,
    waits: Histogram,
    jobs: IntCounterVec,
    refused: IntCounterVec,
    requests: HistogramVec,
    events: IntCounterVec,
    swaps: Histogram,
    running: IntGaugeVec,
    queued: IntGaugeVec,
    memory: IntGaugeVec,
    pool: IntCounterVec,
    in_force: IntGaugeVec,
    followers: IntGauge,
    rejected: IntCounterVec,
    weight_loads: IntCounterVec,
    weight_hits: IntCounterVec,
    weight_evictions: IntCounterVec,
    weight_bytes: IntGaugeVec,
    /// Labels that have series, the oldest first.
    revisions: Mutex<VecDeque<[String; 4]>>,
}

impl Metrics {
    /// Metrics without any counts.
    ///
    /// # Errors
    /// Two metrics have the same name, which a test would have found.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let histogram = |name: &str, help: &str, buckets: &[f64], labels: &[&str]| {
            register(&registry, HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels))
        };
        let plain = |name: &str, help: &str| {
            register(&registry, Histogram::with_opts(HistogramOpts::new(name, help).buckets(WORK.to_vec())))
        };
        let counter = |name: &str, help: &str, labels: &[&str]| {
            register(&registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let gauge = |name: &str, help: &str, labels: &[&str]| {
            register(&registry, IntGaugeVec::new(Opts::new(name, help), labels))
        };
        let of_work = |(time, of_time): (&str, &str), (peak, of_peak): (&str, &str)| {
            let times = histogram(time, of_time, &WORK, &DECIDED)?;
            let peaks = register(&registry, GaugeVec::new(Opts::new(peak, of_peak), &DECIDED))?;
            Ok::<_, prometheus::Error>(OfWork { times, peaks })
        };
        Ok(Self {
            decisions: histogram(
                "tilewright_decision_seconds",
                "Time that a policy took to decide, checks included.",
                &DECISION,
                &DECIDED,
            )?,
            fallbacks: counter(
                "tilewright_fallbacks_total",
                "Decisions that the native default stood in for.",
                &["route", "policy", "revision", "reason"],
            )?,
            work: of_kinds!(W => Ok((W::STAGES[0], of_work(W::TIMES, W::PEAKS)?)))
                .into_iter()
                .collect::<prometheus::Result<_>>()?,
            steps: histogram("tilewright_sample_step_seconds", "Time of a sample's step.", &WORK, &DECIDED)?,
            moved: counter(
                "tilewright_sample_moved_bytes_total",
                "Bytes of weights that were read again while samples ran.",
                &["device"],
            )?,
            reused: counter(
                "tilewright_sample_reused_calls_total",
                "Calls of a transformer that its last output or blocks served.",
                &["device"],
            )?,
            waits: plain("tilewright_queue_wait_seconds", "Time from a job's acceptance to its start.")?,
            jobs: counter("tilewright_jobs_total", "Jobs by how they ended, and those accepted.", &["state"])?,
            refused: counter("tilewright_jobs_refused_total", "Jobs that were not accepted, by why.", &["reason"])?,
            requests: histogram(
                "tilewright_http_request_seconds",
                "Time to the beginning of a response.",
                &WORK,
                &["method", "path", "status"],
            )?,
            events: counter("tilewright_policy_events_total", "What happened to policies.", &["policy", "what"])?,
            swaps: plain("tilewright_swap_seconds", "Time from a swap's call until the revision was in force.")?,
            running: gauge("tilewright_jobs_running", "Jobs at work.", &["device"])?,
            queued: gauge("tilewright_jobs_queued", "Jobs that wait.", &["device"])?,
            memory: gauge(
                "tilewright_memory_bytes",
                "Memory of a device: in use, pooled for later, and the last job's peak.",
                &["device", "kind"],
            )?,
            pool: counter(
                "tilewright_pool_requests_total",
                "Requests for memory, by whether the pool had it.",
                &["device", "result"],
            )?,
            in_force: gauge("tilewright_policy_revision", "The revision in force.", &["policy"])?,
            rejected: counter(
                "tilewright_requests_turned_away_total",
                "Requests that did not come in: no token, a role that does not reach that far, an unknown host, another site's page, too fast.",
                &["reason"],
            )?,
            weight_loads: counter("tilewright_weight_loads_total", "Loads of weights from files.", &["device"])?,
            weight_hits: counter(
                "tilewright_weight_hits_total",
                "Uses of weights that were there without a load.",
                &["device"],
            )?,
            weight_evictions: counter(
                "tilewright_weight_evictions_total",
                "Idle weights freed to make room.",
                &["device"],
            )?,
            weight_bytes: gauge(
                "tilewright_weight_bytes",
                "Weights that are kept: in use by a job, and idle.",
                &["device", "state"],
            )?,
            followers: register(
                &registry,
                IntGauge::new("tilewright_followers", "Connections that follow a job or the dashboard."),
            )?,
            revisions: Mutex::default(),
            registry,
        })
    }

    /// The text format that Prometheus reads.
    pub fn render(&self, devices: &Devices, weights: &WeightStore, in_force: &[(String, u64)]) -> String {
        self.read_weights(devices, weights);
        for device in devices.iter() {
            let (waiting, running) = device.queue.load();
            self.queued.with_label_values(&[&device.name]).set(waiting as i64);
            self.running.with_label_values(&[&device.name]).set(i64::from(running));
            let held = device.memory_use();
            for (kind, bytes) in [("in_use", held.in_use), ("pooled", held.pooled), ("peak", held.peak)] {
                self.memory.with_label_values(&[device.name.as_str(), kind]).set(bytes as i64);
            }
        }
        for (policy, revision) in in_force {
            self.in_force.with_label_values(&[policy]).set(*revision as i64);
        }
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "the metrics can't be written");
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Takes the figures of the store of weights over, for each hardware: devices on the same one
    /// share them.
    fn read_weights(&self, devices: &Devices, weights: &WeightStore) {
        // A counter is raised by a difference, which two readers at once would both add.
        let _alone = self.revisions.lock().unwrap_or_else(PoisonError::into_inner);
        for device in devices.iter() {
            let hardware = device.machine.device;
            let Usage { leased_bytes, idle_bytes, loads, hits, evictions, .. } = weights.usage(hardware);
            let name = match hardware {
                tch::Device::Cuda(index) => format!("cuda:{index}"),
                other => format!("{other:?}").to_lowercase(),
            };
            let counts = [(&self.weight_loads, loads), (&self.weight_hits, hits), (&self.weight_evictions, evictions)];
            for (counter, count) in counts {
                let counter = counter.with_label_values(&[&name]);
                counter.inc_by(count.saturating_sub(counter.get()));
            }
            for (state, bytes) in [("leased", leased_bytes), ("idle", idle_bytes)] {
                self.weight_bytes.with_label_values(&[name.as_str(), state]).set(bytes as i64);
            }
        }
    }

    /// Records a decision.
    pub fn record_decision(&self, labels: &Labels<'_>, elapsed: Duration, fallback: Option<FallbackReason>) {
        let values = self.tracked(labels);
        self.decisions.with_label_values(&values).observe(elapsed.as_secs_f64());
        if let Some(reason) = fallback {
            let [route, policy, revision, _] = &values;
            self.fallbacks.with_label_values(&[route, policy, revision, &reason.to_string()]).inc();
        }
    }

    /// Bounds the number of series: every swap adds some, and the oldest are removed.
    /// The values of a series that lasts as long as its revision is among the newest.
    fn tracked(&self, labels: &Labels<'_>) -> [String; 4] {
        let values = labels.values();
        self.track_series(&values);
        values
    }

    fn track_series(&self, labels: &[String; 4]) {
        let mut revisions = self.revisions.lock().unwrap_or_else(PoisonError::into_inner);
        if revisions.back().is_some_and(|last| last == labels) || revisions.contains(labels) {
            return;
        }
        revisions.push_back(labels.clone());
        if revisions.len() > REVISIONS
            && let Some(oldest) = revisions.pop_front()
        {
            let labels = oldest.each_ref().map(String::as_str);
            // A series that was never counted does not exist.
            for histogram in [&self.decisions, &self.steps] {
                let _ = histogram.remove_label_values(&labels);
            }
            for OfWork { times, peaks } in self.work.values() {
                let _ = (times.remove_label_values(&labels), peaks.remove_label_values(&labels));
            }
            let [route, policy, revision, _] = labels;
            for reason in REASONS {
                let _ = self.fallbacks.remove_label_values(&[route, policy, revision, &reason.to_string()]);
            }
        }
    }

    /// Records work that ended well. Encodes have no metrics.
    pub fn record_work<W: Followed>(&self, labels: &Labels<'_>, device: &str, record: &Record<W>) {
        let Some(outcome) = &record.outcome else { return };
        let Some(OfWork { times, peaks }) = self.work.get(&record.stage()) else { return };
        let values = self.tracked(labels);
        times.with_label_values(&values).observe(W::elapsed(outcome).as_secs_f64());
        peaks.with_label_values(&values).set(W::measured_bytes(outcome) as f64);
        if let Some((moved_bytes, reused)) = W::savings(outcome) {
            self.moved.with_label_values(&[device]).inc_by(moved_bytes);
            self.reused.with_label_values(&[device]).inc_by(u64::from(reused));
        }
        let pool = W::pool(outcome);
        self.pool.with_label_values(&[device, "hit"]).inc_by(pool.hits);
        self.pool.with_label_values(&[device, "miss"]).inc_by(pool.misses);
    }

    /// Records a finished step of a sample.
    pub fn record_step(&self, labels: &Labels<'_>, took: Duration) {
        self.steps.with_label_values(&self.tracked(labels)).observe(took.as_secs_f64());
    }

    /// Counts an accepted job.
    pub fn count_accepted(&self) {
        self.jobs.with_label_values(&["accepted"]).inc();
    }

    /// Counts a job that was refused.
    pub fn count_refused(&self, reason: &str) {
        self.refused.with_label_values(&[reason]).inc();
    }

    /// Records the time that a job waited.
    pub fn record_wait(&self, waited: Duration) {
        self.waits.observe(waited.as_secs_f64());
    }

    /// Counts a job that has ended.
    pub fn count_ended(&self, state: JobState) {
        self.jobs.with_label_values(&[state.name()]).inc();
    }

    /// Records a request; `path` is the route's, not the caller's.
    pub fn record_request(&self, method: &str, path: &str, status: u16, elapsed: Duration) {
        self.requests.with_label_values(&[method, path, &status.to_string()]).observe(elapsed.as_secs_f64());
    }

    /// Counts an event of a policy.
    pub fn count_event(&self, event: &Event) {
        let what = serde_json::to_value(event.what).ok();
        let what = what.as_ref().and_then(|what| what.as_str()).unwrap_or_default();
        self.events.with_label_values(&[event.policy.as_deref().unwrap_or_default(), what]).inc();
    }

    /// Records the time of a swap.
    pub fn record_swap(&self, elapsed: Duration) {
        self.swaps.observe(elapsed.as_secs_f64());
    }

    /// Counts a request that access control refused.
    pub fn count_rejected(&self, reason: &str) {
        self.rejected.with_label_values(&[reason]).inc();
    }

    /// Counts a follower until the guard is dropped.
    pub fn track_follower(&self) -> FollowerGuard {
        self.followers.inc();
        FollowerGuard(self.followers.clone())
    }
}

/// A follower, counted until it is dropped.
pub struct FollowerGuard(IntGauge);

impl Drop for FollowerGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use tilewright_engine::Budget;

    use super::*;

    fn labels(policy: &str, revision: u64) -> Labels<'_> {
        Labels { route: "default", policy, revision, canary: false }
    }

    #[test]
    fn names_are_their_own_and_the_text_has_help_and_types() {
        let metrics = Metrics::new().unwrap();
        metrics.record_decision(&labels("adaptive", 1), Duration::from_nanos(700), Some(FallbackReason::Trap));
        metrics.count_ended(JobState::Done);
        for revision in 2..200 {
            metrics.record_decision(&labels("other", revision), Duration::from_nanos(700), None);
        }
        metrics.record_decision(&labels("adaptive", 1), Duration::from_nanos(700), Some(FallbackReason::Trap));
        let text = metrics.render(&Devices::from_iter([]), &WeightStore::new(Budget::Last), &[("adaptive".into(), 3)]);
        for line in [
            "# TYPE tilewright_decision_seconds histogram",
            "tilewright_decision_seconds_bucket{canary=\"false\",policy=\"adaptive\",revision=\"1\",route=\"default\",le=\"0.000001\"} 1",
            "tilewright_jobs_total{state=\"done\"} 1",
            "tilewright_policy_revision{policy=\"adaptive\"} 3",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert_eq!(text.matches("tilewright_decision_seconds_count").count(), REVISIONS, "the oldest go");
    }
}
