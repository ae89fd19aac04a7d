//! Results of jobs, and the actions of the watchdog and the trials on them.

use std::sync::{Arc, atomic::Ordering};

use tilewright_plan::FallbackReason;

use super::{Rollout, lock, now};
use crate::{
    Assignment, EndedJob, EventKind, Revision,
    canary::TrialVerdict,
    served::{Served, kind},
    slot::{RefusedModule, Slot},
    tally, watchdog,
};

impl Rollout {
    /// Counts a decision; the watchdog checks it when the job has ended, and its record can be
    /// dumped.
    pub(crate) fn record_decision(&self, revision: &Revision, failed: bool) {
        revision.performance().tally.record_decision(failed);
    }

    /// Counts a job's result, and acts on it.
    pub fn record_result<W: Served>(&self, assignment: &Assignment, result: EndedJob<W>) {
        let EndedJob { record, is_mixed, is_lost, psnr } = result;
        let revision = &assignment.revision;
        let kind = kind::<W>(&record.request, &record.device);
        let measured = record.own_outcome().filter(|_| !is_mixed && record.fallback.is_none());
        let measured = measured.map(tally::Sample::of::<W>);
        // A job without a result counts as the slowest. So does a job that only the fallback
        // finished.
        let is_lost =
            is_lost || record.fallback.as_ref().is_some_and(|fallback| fallback.reason == FallbackReason::Exhausted);
        let sample = measured.or((is_lost && !is_mixed).then_some(tally::Sample::LOST));
        let Some(slot) = self.slots.load().get(&revision.policy).cloned() else { return };
        // Read before this revision's own counts are locked: two locks at once could deadlock.
        let previous = slot.forces.load().previous.clone().filter(|previous| previous.number < revision.number);
        let median = previous.and_then(|previous| previous.performance().tally.median(&kind));
        let mut why = None;
        {
            let mut performance = revision.performance();
            performance.tally.facts.jobs += 1;
            if record.exchange.is_some() && !is_mixed {
                performance.ring.push(W::any(Box::new(record)));
            }
            if let Some(sample) = sample {
                performance.tally.record_job(&kind, sample);
                if let Some(median) = median.filter(|_| !performance.is_out) {
                    why = watchdog::check_cost(&mut performance.against_previous, sample, median);
                }
            }
        }
        self.update_trial(assignment, &kind, sample, psnr);
        // A clip or a sample may have gone on under the revision that is in force now.
        let in_force = slot.forces.load().in_force.clone();
        for decided in [revision, &in_force] {
            let why = why.take().or_else(|| failing(&slot, decided));
            if let Some(why) = why {
                self.roll_back_failing(&slot, decided, &why);
            }
        }
        self.keep_counts();
    }

    /// Passes a job to the canary of its route, as the canary's or the incumbent's.
    fn update_trial(
        &self,
        assignment: &Assignment,
        kind: &tally::Kind,
        sample: Option<tally::Sample>,
        psnr: Option<f64>,
    ) {
        let routes = self.routes.load();
        let Some(active) = routes.iter().find(|active| active.route.name == assignment.route) else { return };
        let Some(trial) = &active.route.canary else { return };
        let mut canary = lock(&active.canary);
        if !assignment.canary {
            // A draining revision is no longer the one that the canary would replace.
            let slots = self.slots.load();
            let in_force = slots.get(&active.route.policy).map(|slot| slot.forces.load());
            let is_incumbent = in_force.is_some_and(|forces| Arc::ptr_eq(&forces.in_force, &assignment.revision));
            if let Some(job) = sample.filter(|_| is_incumbent) {
                canary.record_incumbent(kind, job);
            }
            return;
        }
        let job = sample.unwrap_or(tally::Sample::LOST);
        if canary.facts.revision != assignment.revision.number || canary.facts.policy != assignment.revision.policy {
            return;
        }
        let finding = canary.record_job(kind, job, psnr, trial.psnr_db, trial.sample > 0.0);
        drop(canary);
        match finding {
            Some(TrialVerdict::Promote(why)) => {
                if let Err(error) = self.promote_active(active, &why) {
                    tracing::error!(%error, route = active.route.name, "the canary can't be promoted");
                    if matches!(error, crate::Error::Storage { .. }) {
                        // There may be room when its next job ends.
                        lock(&active.canary).due_promotion = Some(why);
                    }
                }
            }
            Some(TrialVerdict::Stop(why)) => self.stop_active(active, &why),
            None => {}
        }
    }

    /// Carries out the watchdog's verdict, with a dump: the previous revision takes over; without
    /// one, the policy is paused.
    pub(super) fn roll_back_failing(&self, slot: &Arc<Slot>, revision: &Arc<Revision>, why: &str) {
        let mut written = lock(&self.written);
        let forces = slot.forces.load_full();
        if std::mem::replace(&mut revision.performance().is_out, true) || !Arc::ptr_eq(&forces.in_force, revision) {
            return;
        }
        slot.refuse(RefusedModule { time: now(), origin: revision.origin.clone(), why: why.into() });
        let went_back = slot.go_back();
        if went_back.is_none() {
            slot.paused.store(true, Ordering::Release);
            slot.paused_by_watchdog.store(true, Ordering::Release);
        }
        let now_in_force = slot.forces.load().in_force.clone();
        let in_force = now_in_force.number;
        // A harmful revision goes at once, even if that can't be stored.
        self.settle_or_say(&mut written);
        drop(written);
        let ring = std::mem::take(&mut revision.performance().ring);
        let dump = match ring.write(&self.disk, &self.dumps, &slot.name, revision.number) {
            Ok(path) => format!("; its last decisions: tilewright policy replay {}", path.display()),
            Err(error) => format!("; its last decisions can't be kept: {error}"),
        };
        let number = revision.number;
        let detail = match went_back {
            Some(_) => format!("revision {number} was taken back ({why}); revision {in_force} is in force again{dump}"),
            None => format!(
                "revision {number} has none before it and is no longer asked ({why}): the native default decides{dump}"
            ),
        };
        // Canaries of this policy end with it.
        for active in self
            .routes
            .load()
            .iter()
            .filter(|active| active.route.canary.as_ref().is_some_and(|canary| canary.policy == slot.name))
        {
            self.stop_active(active, why);
            // The revision in force again was not a canary, and is not one now.
            let mut canary = lock(&active.canary);
            canary.facts.revision = in_force;
            canary.digest.clone_from(&now_in_force.digest);
            drop(canary);
            self.settle_or_say(&mut lock(&self.written));
        }
        self.emit(EventKind::WatchdogRolledBack, Some(&slot.name), None, Some(in_force), detail);
    }
}

/// The reason why a revision fails too often, if it does.
fn failing(slot: &Slot, revision: &Arc<Revision>) -> Option<String> {
    let previous = slot.forces.load().previous.clone().filter(|previous| previous.number < revision.number);
    let before = previous.map(|previous| previous.performance().tally.recent_failures());
    let performance = revision.performance();
    if performance.is_out { None } else { watchdog::check_failures(&performance.tally, before) }
}
