use tilewright_plan::Planner;
use crate::{args::Policy, failure::Outcome};
pub fn configured(_policy: &str, _set: &[(String, String)]) -> Outcome<Box<dyn Planner>> { Err(crate::failure::Failure::input("no")) }
pub fn run(_: &Policy) -> Outcome { Ok(()) }
