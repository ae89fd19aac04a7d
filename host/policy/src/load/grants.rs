//! A look over a policy's bytes before anything is compiled: what would be refused anyway is refused at once, in words that help.

use wasmparser::{Instance, Parser, Payload, TypeRef};

use crate::{
    PolicyError,
    limits::Limits,
    load::one_line,
    wasi::{self, Wasi},
};

/// Grants what a language's own runtime needs, for errors.
pub(crate) const RUNTIME: &str = "--policy-memory 64MiB, as for one that brings its language's runtime";

/// Refuses modules with several memories, and imports of WASI that is not granted. Gives the number of core instances that the outermost
/// component makes itself.
///
/// Several memories have to be looked for here: wasmtime itself makes use of the feature to copy between a policy's components, and where
/// it is off, it panics.
pub(crate) fn check(policy: &str, bytes: &[u8], limits: &Limits) -> Result<usize, PolicyError> {
    let broken = |detail: &str| PolicyError::Invalid { policy: policy.into(), detail: one_line(detail) };
    // The memories of each module or component that is open, the outermost first.
    let mut memories: Vec<u32> = Vec::new();
    let mut instances = 0;
    let mut imports: Vec<&str> = Vec::new();
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(|error| broken(&error.to_string()))?;
        let is_outermost = memories.len() == 1;
        let mut found = 0;
        match payload {
            Payload::Version { .. } => memories.push(0),
            Payload::End(_) => drop(memories.pop()),
            Payload::MemorySection(section) => found = section.count(),
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import.map_err(|error| broken(&error.to_string()))?;
                    found += u32::from(matches!(import.ty, TypeRef::Memory(_)));
                }
            }
            Payload::ComponentImportSection(section) if is_outermost => {
                for import in section {
                    imports.push(import.map_err(|error| broken(&error.to_string()))?.name.name);
                }
            }
            Payload::InstanceSection(section) if is_outermost => {
                for instance in section {
                    let instance = instance.map_err(|error| broken(&error.to_string()))?;
                    instances += usize::from(matches!(instance, Instance::Instantiate { .. }));
                }
            }
            _ => {}
        }
        if let Some(memories) = memories.last_mut() {
            *memories = memories.saturating_add(found);
            if *memories > 1 {
                return Err(broken("a module with multiple memories"));
            }
        }
    }
    check_wasi(policy, imports.into_iter(), limits.wasi)?;
    Ok(instances)
}

/// Refuses more core instances than allowed, which instantiating would do without saying what helps.
pub(crate) fn check_instances(policy: &str, instances: usize, limits: &Limits) -> Result<(), PolicyError> {
    if instances <= limits.core_instances {
        return Ok(());
    }
    let why = format!("instance count too high: {instances} core instances, of {} allowed", limits.core_instances);
    Err(PolicyError::Ungranted { policy: policy.into(), why, grant: RUNTIME })
}

/// Refuses imports of WASI where none is granted.
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
