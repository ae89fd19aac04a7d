//! A decode that goes on is run as it was begun: the plan is kept beside the frames, and answered instead of asking the policy anew,
//! which may know better by now but would change the picture in the middle of the clip.

use std::{io, path::Path, sync::Arc, time::Duration};

use tilewright_outputs::OwnFolder;
use tilewright_plan::{
    Attempt, Decision, Device, Facts, Offer, Outcome as Measured, Plan, Planner, PolicyIdentity, Request,
};

use crate::failure::{Failure, Outcome};

/// Its name in the journal's folder.
const PLAN: &str = "plan.json";
/// The plan's name while it is being written.
const NEW_PLAN: &str = "plan.new";
/// The size limit of a plan, in bytes.
const MOST_PLAN: u64 = 1 << 20;

/// Answers a plan that was decided before, until it fails.
pub struct Pinned<'a> {
    planner: &'a mut dyn Planner,
    /// None where nothing was begun: the policy is asked then.
    plan: Option<Plan>,
    /// Where the plan in force is kept.
    folder: OwnFolder,
}

impl<'a> Pinned<'a> {
    /// Goes on with the plan that is kept in a journal's folder where `begun` says that there are frames of it, and keeps the one that is decided
    /// otherwise.
    pub fn new(planner: &'a mut dyn Planner, folder: &Path, begun: bool) -> Outcome<Self> {
        let folder = opened(folder)?;
        let plan = match folder.read(PLAN, MOST_PLAN) {
            Ok(text) => serde_json::from_slice(&text).ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(Failure::input(format!("{}: {error}", folder.path().join(PLAN).display()))),
        };
        Ok(Self { planner, plan: plan.filter(|_| begun), folder })
    }

    /// Removes the plan, once the journal has served.
    pub fn forget(folder: &Path) -> Outcome {
        let folder = opened(folder)?;
        for name in [PLAN, NEW_PLAN] {
            let failed =
                |error| Failure::work(format!("{}: can't be removed: {error}", folder.path().join(name).display()));
            folder.remove(name).map_err(failed)?;
        }
        Ok(())
    }

    /// A plan that can't be kept costs sameness, not the decode.
    fn keep(&self, plan: &Plan) {
        let text = serde_json::to_vec(plan).map_err(io::Error::from);
        if let Err(error) = text.and_then(|text| self.folder.replace(PLAN, NEW_PLAN, &text)) {
            let path = self.folder.path().join(PLAN);
            tracing::warn!(%error, path = %path.display(), "the plan can't be kept: a decode that goes on may decide otherwise");
        }
    }
}

/// Opens the journal's folder, which must be this user's own.
fn opened(folder: &Path) -> Outcome<OwnFolder> {
    OwnFolder::open(folder).map_err(|error| Failure::input(format!("{}: {error}", folder.display())))
}

impl Planner for Pinned<'_> {
    fn identity(&self) -> &PolicyIdentity {
        self.planner.identity()
    }

    fn decide(&mut self, request: &Request, device: &Device, offer: &Offer, facts: Arc<dyn Facts>) -> Decision {
        if let Some(plan) = self.plan.take() {
            return Decision {
                answer: None,
                plan,
                adjusted: vec!["the plan that the clip was begun with".into()],
                fallback: None,
                elapsed: Duration::ZERO,
                fuel: 0,
                candidates: Vec::new(),
                log: Vec::new(),
            };
        }
        let decision = self.planner.decide(request, device, offer, facts);
        self.keep(&decision.plan);
        decision
    }

    fn recover(
        &mut self,
        request: &Request,
        device: &Device,
        offer: &Offer,
        facts: Arc<dyn Facts>,
        attempts: &[Attempt],
    ) -> Decision {
        let decision = self.planner.recover(request, device, offer, facts, attempts);
        self.keep(&decision.plan);
        decision
    }

    fn stand_in(
        &mut self,
        request: &Request,
        device: &Device,
        offer: &Offer,
        facts: Arc<dyn Facts>,
        attempts: &[Attempt],
    ) -> Option<Decision> {
        let decision = self.planner.stand_in(request, device, offer, facts, attempts)?;
        self.keep(&decision.plan);
        Some(decision)
    }

    fn learn(&mut self, request: &Request, device: &Device, plan: &Plan, outcome: &Measured) {
        self.planner.learn(request, device, plan, outcome);
    }
}
