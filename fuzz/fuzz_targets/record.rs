//! Files of records: a line is a record or it isn't; what was read is written and read again as the
//! same; and what makes sense is decided again by a policy at work, whatever the host is said to
//! have offered then.

#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use tilewright_plan::{
    Cost, CostModel, Plan, Planner, Question, Record,
    exchange::{Call, RecordedQuestion},
    records,
};
use tilewright_policy::{CacheDir, Limits, LoadedPolicy, PolicyHost};

static FIXED: LazyLock<LoadedPolicy> = LazyLock::new(|| {
    let host = PolicyHost::new(Limits::default(), &CacheDir::Off).expect("the sandbox can be set up");
    host.load_shipped("fixed").expect("it ships")
});

struct Nothing;

impl CostModel for Nothing {
    fn estimate_one(&self, _: &Plan) -> Result<Cost, String> {
        Err("nothing is known".into())
    }
}

fn make_again(calls: &[Call]) {
    let mut policy = FIXED.configure(&[]).expect("its defaults");
    for call in calls {
        let (Some(offer), under_way) = (call.question.offer(), call.under_way()) else { continue };
        let question = Question::new(call.stage(), &call.request, &call.device, &offer.capabilities)
            .going_on(under_way.as_ref())
            .after(call.question.attempts());
        match &call.question {
            RecordedQuestion::Learn { plan, measured, .. } => {
                policy.learn(&question, plan, &(*measured).into());
            }
            RecordedQuestion::Decide { .. } | RecordedQuestion::Recover { .. } => {
                policy.decide(&question, Arc::new(Nothing));
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    for (_, record) in records::read(bytes).flatten() {
        let written = serde_json::to_string(&record).expect("what was read can be written");
        let again: Record = serde_json::from_str(&written).expect("what was written can be read");
        assert_eq!(serde_json::to_string(&again).expect("and written again"), written);
        if let Some(exchange) = &record.exchange {
            make_again(&exchange.calls);
        }
    }
});
