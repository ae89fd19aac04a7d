//! A decode that was interrupted goes on under the plan that it began with. The plan is kept beside
//! the frames and answers in place of the policy: another plan would change the picture in the
//! middle of the clip.

use std::{
    io::{self, Read},
    path::Path,
    sync::Arc,
    time::Duration,
};

use sha2::{Digest, Sha256};
use tch::Tensor;
use tilewright_outputs::OwnFolder;
use tilewright_plan::{CostModel, Decision, LearnReport, Outcome, Plan, Planner, PolicyIdentity, Question, Request};

use crate::{Error, Result, latent_output::raw};

/// The plan's name in the journal's folder.
const PLAN: &str = "plan.json";
/// The plan's name while it is being written.
const NEW_PLAN: &str = "plan.new";
/// The size limit of a plan, in bytes.
const MOST_PLAN: u64 = 1 << 20;

/// A planner that answers the kept plan first. If that plan fails, or there is none, it asks the
/// planner behind it and keeps each plan that it gets.
pub struct KeptPlan<'a> {
    planner: &'a mut dyn Planner,
    /// The kept plan, until it is answered; none if the journal has no frames.
    plan: Option<Plan>,
    /// The folder of the plan in force.
    folder: OwnFolder,
}

impl<'a> KeptPlan<'a> {
    /// The plan in a journal's folder, if the journal has frames, in front of a planner.
    ///
    /// # Errors
    /// The folder is not this user's own, or the plan can't be read.
    pub fn new(planner: &'a mut dyn Planner, folder: &Path, has_frames: bool) -> Result<Self> {
        let folder = open(folder)?;
        let plan = match folder.read(PLAN, MOST_PLAN) {
            // The program of another version may have kept it: the policy decides anew then.
            Ok(text) => serde_json::from_slice(&text).ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(Error::KeptPlan { path: folder.path().join(PLAN), source }),
        };
        Ok(Self { planner, plan: plan.filter(|_| has_frames), folder })
    }

    /// Removes the plan from the folder of a journal that has served.
    ///
    /// # Errors
    /// It can't be removed.
    pub fn remove(folder: &Path) -> Result<()> {
        let folder = open(folder)?;
        for name in [PLAN, NEW_PLAN] {
            let failed = |source| Error::NotRemoved { path: folder.path().join(name), source };
            folder.remove(name).map_err(failed)?;
        }
        Ok(())
    }

    /// Keeps a plan. If that fails, the decode goes on, but after an interruption it may continue
    /// with another plan.
    fn keep(&self, plan: &Plan) {
        let text = serde_json::to_vec(plan).map_err(io::Error::from);
        if let Err(error) = text.and_then(|text| self.folder.replace(PLAN, NEW_PLAN, &text)) {
            let path = self.folder.path().join(PLAN);
            tracing::warn!(%error, path = %path.display(), "the plan can't be kept: after an interruption this decode may continue with another plan");
        }
    }
}

/// Opens the journal's folder, which must be this user's own.
fn open(folder: &Path) -> Result<OwnFolder> {
    OwnFolder::open(folder).map_err(|source| Error::KeptPlan { path: folder.to_owned(), source })
}

impl Planner for KeptPlan<'_> {
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

    fn learn(&mut self, question: &Question<'_>, plan: &Plan, outcome: &Outcome) -> LearnReport {
        self.planner.learn(question, plan, outcome)
    }
}

/// A digest by which a later decode is recognised as the same: of the latents (f32, in host
/// memory), in the file `vae`, and the policy with its settings and objective.
///
/// # Errors
/// The file can't be read.
pub fn fingerprint(latents: &Tensor, vae: &Path, policy: &PolicyIdentity, request: &Request) -> Result<String> {
    let mut digest = Sha256::new();
    digest.update(format!("{:?}", latents.size()));
    digest.update(raw(latents)?.1);
    let unreadable = |source: io::Error| Error::Read { path: vae.to_owned(), source };
    let mut file = tilewright_files::open(vae).map_err(unreadable)?;
    let mut piece = vec![0_u8; 1 << 20];
    loop {
        match file.read(&mut piece).map_err(unreadable)? {
            0 => break,
            count => digest.update(&piece[..count]),
        }
    }
    let decided = serde_json::to_vec(&(&policy.digest, &policy.settings, request.objective));
    digest.update(decided.map_err(|error| unreadable(error.into()))?);
    Ok(format!("sha256:{:x}", digest.finalize()))
}
