//! From lines of records to sessions: the calls of one policy, in order.

use std::collections::HashMap;

use thiserror::Error;
use tilewright_plan::{PolicyIdentity, Record, Vae, exchange::Call, records::Damage};

use super::{Replayed, Work};

/// Calls that are held at once: a bound on memory, some ten thousand decodes.
const MOST_CALLS: usize = 100_000;

/// The reason why records can't be replayed. Each is one line.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// A line is not a record.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// Two records have different contents for the same call.
    #[error(
        "line {line}: call {sequence} of session {session} is not what line {before} says it was: a record is damaged"
    )]
    Contradiction {
        /// Counted from 1.
        line: u64,
        /// The earlier one.
        before: u64,
        /// The session.
        session: String,
        /// The call.
        sequence: u64,
    },
    /// A session has two policies.
    #[error("line {line}: session {session} has another policy than in line {before}: a record is damaged")]
    TwoPolicies {
        /// Counted from 1.
        line: u64,
        /// The earlier one.
        before: u64,
        /// Which session.
        session: String,
    },
    /// More calls than fit the limit.
    #[error("line {line}: more than {most} calls: split the file, a session's records together")]
    TooMany {
        /// Counted from 1.
        line: u64,
        /// The limit.
        most: usize,
    },
    /// Nothing to replay.
    #[error("none of {records} records holds its calls in full, which a replay needs")]
    NothingFull {
        /// The number of records.
        records: usize,
    },
    /// The policy can't be put to work.
    #[error("{0}")]
    Policy(String),
}

/// A call, and the line of its record.
#[derive(Clone, Debug)]
pub struct RecordedCall<W: Replayed = Vae> {
    /// Counted from 1.
    pub line: u64,
    /// The call.
    pub call: Call<W>,
}

/// One policy in use.
#[derive(Clone, Debug)]
pub struct Session<W: Replayed = Vae> {
    /// As recorded.
    pub name: String,
    /// The policy that decided.
    pub policy: PolicyIdentity,
    /// In order; numbers may be missing.
    pub calls: Vec<RecordedCall<W>>,
    /// The line that it was first seen in.
    line: u64,
}

/// A measured plan.
#[derive(Clone, Debug)]
pub struct MeasuredPlan<W: Replayed = Vae> {
    pub(crate) work: Work,
    pub(crate) plan: W::Plan,
    pub(crate) outcome: W::Outcome,
}

impl<W: Replayed> MeasuredPlan<W> {
    /// The outcome of a record, if it is its plan's alone.
    fn of(record: &Record<W>) -> Option<Self> {
        let stage = record.stage();
        let outcome = *record.own_outcome()?;
        let work = Work::of::<W>(stage, &record.request, &record.device);
        Some(Self { work, plan: W::without_reason(&record.plan), outcome })
    }
}

/// The contents of a file of records, of one kind of work.
#[derive(Clone, Debug, Default)]
pub struct Recorded<W: Replayed = Vae> {
    /// In the order of their first lines.
    pub sessions: Vec<Session<W>>,
    /// The number of records.
    pub records: usize,
    /// The number of records without an exchange.
    pub ordinary: usize,
    /// Outcomes, of ordinary records too.
    pub(crate) found: Vec<MeasuredPlan<W>>,
}

/// Refuses records of which none can be replayed.
///
/// # Errors
/// [`ReplayError::NothingFull`].
pub fn check_full(records: usize, ordinary: usize) -> Result<(), ReplayError> {
    if records == ordinary { Err(ReplayError::NothingFull { records }) } else { Ok(()) }
}

/// Reads records and sorts their calls into sessions. Records of a session may stand apart, and
/// twice.
///
/// # Errors
/// Any [`ReplayError`] of a file that can't be replayed.
pub fn gather<W: Replayed>(
    records: impl IntoIterator<Item = Result<(u64, Record<W>), Damage>>,
) -> Result<Recorded<W>, ReplayError> {
    let mut recorded = Recorded::<W>::default();
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut held = 0;
    for read in records {
        let (line, record) = read?;
        recorded.records += 1;
        recorded.found.extend(MeasuredPlan::of(&record));
        let Some(exchange) = record.exchange else {
            recorded.ordinary += 1;
            continue;
        };
        held += exchange.calls.len();
        if held > MOST_CALLS {
            return Err(ReplayError::TooMany { line, most: MOST_CALLS });
        }
        let place = *places.entry(exchange.session.clone()).or_insert_with(|| {
            let (name, policy) = (exchange.session.clone(), record.policy.clone());
            recorded.sessions.push(Session { name, policy, calls: Vec::new(), line });
            recorded.sessions.len() - 1
        });
        let session = &mut recorded.sessions[place];
        if session.policy != record.policy {
            return Err(ReplayError::TwoPolicies { line, before: session.line, session: exchange.session });
        }
        session.calls.extend(exchange.calls.into_iter().map(|call| RecordedCall { line, call }));
    }
    for session in &mut recorded.sessions {
        // A stable sort: of two calls with one number, the one of the earlier line comes first.
        session.calls.sort_by_key(|recorded_call| recorded_call.call.sequence);
        if let Some([one, other]) = session
            .calls
            .array_windows()
            .find(|[one, other]| one.call.sequence == other.call.sequence && one.call != other.call)
        {
            return Err(ReplayError::Contradiction {
                line: other.line,
                before: one.line,
                session: session.name.clone(),
                sequence: one.call.sequence,
            });
        }
        session.calls.dedup_by_key(|recorded_call| recorded_call.call.sequence);
    }
    Ok(recorded)
}
