//! A decode that goes on is run as it was begun: the plan is kept beside the frames, and answered instead of asking the policy anew,
//! which may know better by now but would change the picture in the middle of the clip.

use std::{io, path::Path, sync::Arc, time::Duration};

use tilewright_outputs::OwnFolder;
use tilewright_plan::{CostModel, Decision, LearnReport, Outcome as Measured, Plan, Planner, PolicyIdentity, Question};

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

    fn decide(&mut self, question: &Question<'_>, costs: Arc<dyn CostModel>) -> Decision {
        if let Some(plan) = self.plan.take_if(|_| question.attempts.is_empty()) {
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
        let decision = self.planner.decide(question, costs);
        self.keep(&decision.plan);
        decision
    }

    fn fallback(&mut self, question: &Question<'_>, costs: &dyn CostModel) -> Option<Decision> {
        let decision = self.planner.fallback(question, costs)?;
        self.keep(&decision.plan);
        Some(decision)
    }

    fn learn(&mut self, question: &Question<'_>, plan: &Plan, outcome: &Measured) -> LearnReport {
        self.planner.learn(question, plan, outcome)
    }
}
