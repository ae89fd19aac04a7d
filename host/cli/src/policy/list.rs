//! `tilewright policy list`: the shipped policies.

use std::io::Write;

use tilewright_policy::{Inspection, shipped_names};

use crate::{args::PolicyGrants, failure::Outcome, printer, table};

/// Lists the shipped policies.
pub fn run(json: bool) -> Outcome {
    let host = super::host(PolicyGrants::default())?;
    let policies: Vec<Inspection> =
        shipped_names().map(|name| Ok(host.load_shipped(name)?.inspection().clone())).collect::<Outcome<_>>()?;
    if json {
        return printer::json(&policies);
    }
    let rows = policies.iter().map(|policy| {
        let policy = &policy.description;
        vec![policy.name.clone(), policy.version.clone(), policy.summary.clone()]
    });
    Ok(writeln!(printer::stdout(), "{}", table::listing(&["policy", "version", "what it does"], &[], rows))?)
}
