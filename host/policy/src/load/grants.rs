//! Needs of a policy that only a user can grant.

use crate::{
    PolicyError,
    limits::Limits,
    wasi::{self, Wasi},
};

/// The option that grants the needs of a language's runtime, for errors.
pub(crate) const RUNTIME: &str = "--policy-memory 64MiB, as for one that brings its language's runtime";

/// Refuses more core instances than allowed. Instantiating would do so without naming the option
/// that helps.
pub(crate) fn check_instances(policy: &str, instances: usize, limits: &Limits) -> Result<(), PolicyError> {
    if instances <= limits.core_instances {
        return Ok(());
    }
    let why = format!("instance count too high: {instances} core instances, of {} allowed", limits.core_instances);
    Err(PolicyError::Ungranted { policy: policy.into(), why, grant: RUNTIME })
}

/// Refuses imports of WASI if none is granted.
pub(crate) fn check_wasi<'a>(
    policy: &str,
    imports: impl Iterator<Item = &'a str>,
    granted: Wasi,
) -> Result<(), PolicyError> {
    let mut imports = imports.filter(|import| wasi::is_wasi(import));
    let Some(first) = imports.next().filter(|_| granted == Wasi::None) else { return Ok(()) };
    let others = match imports.count() {
        0 => String::new(),
        1 => " and another interface of WASI".into(),
        more => format!(" and {more} more interfaces of WASI"),
    };
    Err(PolicyError::Ungranted {
        policy: policy.into(),
        why: format!("imports {first}{others}, which policies are not given"),
        grant: "--wasi inert, an empty one without files, environment, network or a clock that moves",
    })
}
