//! Loads a component: from a file's bytes to one that is linked and can be instantiated.

use std::collections::BTreeSet;

use tilewright_files::digest::sha256;
use tilewright_plan::{FallbackReason, Stage};
use wasmparser::BinaryReaderError;
use wasmtime::component::Component;
use wit_component::{ComponentEncoder, StringEncoding};
use wit_parser::Resolve;

use self::{outline::Outline, survey::Survey};
use crate::{
    PolicyError,
    cache::Cache,
    code, compile,
    contract::{Linked, World},
    error::Fault,
    guest::{LimitExceeded, clean},
    limits::{CodeLimits, Limits},
    sandbox::Sandbox,
    shipped,
    wasi::{self, Wasi},
};

pub(crate) mod features;
pub(crate) mod grants;
pub(crate) mod outline;
mod shrink;
mod survey;

pub use shrink::shrink;

/// The most imports that an error names, and the most characters of each: the guest chose them.
const NAMED: usize = 12;
const NAME_CHARS: usize = 100;

/// The kind of a policy's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModuleKind {
    /// A component, used as it is.
    Component,
    /// A core module with the contract's canonical names, turned into a component on load.
    CoreModule,
}

impl ModuleKind {
    /// The kind that the first bytes show; `None` if they are not WebAssembly.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        sniff(bytes).ok()
    }
}

/// A component that fits the contract.
pub(crate) struct LinkedComponent {
    pub component: Box<dyn Linked>,
    pub world: &'static World,
    pub kind: ModuleKind,
    pub digest: String,
    pub imports: Vec<String>,
    pub exports: Vec<String>,
    /// The stages whose interfaces it exports.
    pub stages: Vec<Stage>,
    /// Bytes of the compiled code and its tables, as they lie in memory.
    pub code_bytes: usize,
}

/// Reads, compiles (or takes from the cache) and links a policy. `policy` names it in errors.
pub(crate) fn load(
    policy: &str,
    bytes: &[u8],
    sandbox: &Sandbox,
    limits: &Limits,
    cache: Option<&Cache>,
) -> Result<LinkedComponent, PolicyError> {
    if bytes.len() > limits.file_bytes {
        return Err(PolicyError::TooLarge {
            policy: policy.into(),
            bytes: bytes.len() as u64,
            most: limits.file_bytes,
        });
    }
    let kind = sniff(bytes).map_err(|found| PolicyError::NotWebAssembly { policy: policy.into(), found })?;
    let digest = sha256(bytes);
    let engine = &sandbox.engine;
    let component = match cache.and_then(|cache| cache.get(engine, &digest, &limits.code.compile)) {
        Some(component) => component,
        None => {
            let outline = Outline::read(bytes).map_err(|detail| broken(policy, &detail, Fault::Broken))?;
            check_outline(policy, kind, &outline, limits.wasi)?;
            check_compile_cost(policy, bytes, limits)?;
            check_initial_memory(policy, &outline, limits)?;
            grants::check_instances(policy, outline.instances, limits)?;
            let code = if shipped::POLICIES.iter().any(|(_, module)| *module == bytes) {
                compile::in_process(policy, bytes, engine)?
            } else {
                compile::in_child(policy, bytes, limits)?
            };
            let component = code::read(engine, &code).map_err(|error| invalid(policy, &error))?;
            if let Some(cache) = cache {
                cache.keep(engine, &digest, &code);
            }
            component
        }
    };
    let (world, imports, exports) = inspect_component(policy, sandbox, &component, limits.wasi)?;
    let linked = world.link(engine, &component, limits.wasi).map_err(|error| invalid(policy, &error))?;
    let image = component.image_range();
    let code_bytes = image.end.addr() - image.start.addr();
    let stages = world.exported_stages(&exports);
    Ok(LinkedComponent { component: linked, world, kind, digest, imports, exports, stages, code_bytes })
}

/// Fails unless a file's imports and exports are those of a policy, before anything else is done
/// with it.
fn check_outline(policy: &str, kind: ModuleKind, outline: &Outline<'_>, wasi: Wasi) -> Result<(), PolicyError> {
    let Outline { imports, exports, .. } = outline;
    match kind {
        ModuleKind::Component => check_component(policy, imports, exports, wasi).map(drop),
        ModuleKind::CoreModule => {
            let world = World::of(policy, exports.iter().copied())?;
            check_names(policy, world, imports, kind, exports)
        }
    }
}

/// The component that loading makes of a core module with the contract's canonical names; `origin`
/// names it in errors.
///
/// # Errors
/// [`PolicyError::Invalid`], or an error about missing exports or imports beyond the contract.
pub fn as_component(origin: &str, module: &[u8]) -> Result<Vec<u8>, PolicyError> {
    match sniff(module) {
        Ok(ModuleKind::CoreModule) => componentise(origin, module),
        Ok(ModuleKind::Component) => Ok(module.to_vec()),
        Err(found) => Err(PolicyError::NotWebAssembly { policy: origin.into(), found }),
    }
}

/// Refuses a file that would take too long to compile. If the grants of a language's runtime would
/// do, the error says so.
fn check_compile_cost(policy: &str, bytes: &[u8], limits: &Limits) -> Result<(), PolicyError> {
    let Err(detail) = Survey::of(bytes, &limits.code) else { return Ok(()) };
    if limits.code == CodeLimits::POLICY && Survey::of(bytes, &CodeLimits::RUNTIME).is_ok() {
        return Err(PolicyError::Ungranted { policy: policy.into(), why: detail, grant: grants::RUNTIME });
    }
    Err(broken(policy, &detail, Fault::Other))
}

/// Refuses a file with more initial memory than a policy may have.
fn check_initial_memory(policy: &str, outline: &Outline<'_>, limits: &Limits) -> Result<(), PolicyError> {
    let (asked, most) = (outline.memory_bytes as usize, limits.memory_bytes);
    if asked <= most {
        return Ok(());
    }
    let detail = LimitExceeded::Memory { asked, most }.to_string();
    Err(PolicyError::from_failure(policy, limits, PolicyError::START, FallbackReason::OutOfMemory, &detail))
}

/// The kind that the first bytes show, or their likely meaning if they are no WebAssembly.
fn sniff(bytes: &[u8]) -> Result<ModuleKind, &'static str> {
    match bytes {
        [] => Err("the file is empty"),
        [b'\0', b'a', b's', b'm', 1, 0, 0, 0, ..] => Ok(ModuleKind::CoreModule),
        [b'\0', b'a', b's', b'm', 0x0d, 0, 1, 0, ..] => Ok(ModuleKind::Component),
        [b'\0', b'a', b's', b'm', ..] => Err("a version of the format that is not known here"),
        _ if bytes.trim_ascii_start().starts_with(b"(") => {
            Err("it looks like WebAssembly text, which has to be assembled first")
        }
        _ if bytes.iter().take(512).all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) => {
            Err("it is a text file")
        }
        _ => Err("it does not begin as WebAssembly does"),
    }
}

/// A component around a core module with the contract's canonical names.
///
/// The metadata that the SDK left in the module is not read but replaced by the contract's own.
/// Decoding foreign metadata runs a recursive parser over unchecked bytes, and a damaged section
/// made its stack overflow.
pub(crate) fn componentise(policy: &str, bytes: &[u8]) -> Result<Vec<u8>, PolicyError> {
    let broken = |detail: String| broken(policy, &detail, Fault::Other);
    let outline = Outline::read(bytes).map_err(broken)?;
    check_outline(policy, ModuleKind::CoreModule, &outline, Wasi::None)?;
    let mut bare = shrink::strip(bytes).ok_or_else(|| broken("it ends within a section".into()))?;
    let world = World::of(policy, outline.exports.iter().copied())?;
    let described = metadata(world, &outline.exports, &mut bare);
    let encoded = described.and_then(|()| ComponentEncoder::default().module(&bare)?.validate(true).encode());
    encoded.map_err(|error| broken(format!("{error:#}")))
}

/// Adds the metadata that an SDK would have left in the module: the world that it was built for,
/// without the stages that it does not answer.
fn metadata(world: &World, exports: &[&str], module: &mut Vec<u8>) -> anyhow::Result<()> {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("policy.wit", world.wit)?;
    let id = resolve.select_world(&[package], Some("policy"))?;
    let keys: Vec<_> = resolve.worlds[id].exports.keys().cloned().collect();
    for key in keys {
        let begin = format!("{}#", resolve.name_world_key(&key));
        if !exports.iter().any(|export| export.starts_with(&begin)) {
            resolve.worlds[id].exports.shift_remove(&key);
        }
    }
    wit_component::embed_component_metadata(module, &resolve, id, StringEncoding::UTF8)
}

/// The version of the contract that the component speaks, its imports and its exports.
fn inspect_component(
    policy: &str,
    sandbox: &Sandbox,
    component: &Component,
    wasi: Wasi,
) -> Result<(&'static World, Vec<String>, Vec<String>), PolicyError> {
    let ty = component.component_type();
    let imports: Vec<String> = ty.imports(&sandbox.engine).map(|(name, _)| name.to_owned()).collect();
    let exports: Vec<String> = ty.exports(&sandbox.engine).map(|(name, _)| name.to_owned()).collect();
    // Compiled code may come from a cache that was filled while WASI was granted.
    let world = check_component(policy, &imports, &exports, wasi)?;
    Ok((world, imports, exports))
}

/// The version of the contract that a component's imports and exports follow.
fn check_component(
    policy: &str,
    imports: &[impl AsRef<str>],
    exports: &[impl AsRef<str>],
    wasi: Wasi,
) -> Result<&'static World, PolicyError> {
    grants::check_wasi(policy, imports.iter().map(AsRef::as_ref), wasi)?;
    let world = World::of(policy, exports.iter().map(AsRef::as_ref))?;
    let own: Vec<&str> = imports.iter().map(AsRef::as_ref).filter(|import| !wasi::is_wasi(import)).collect();
    check_names(policy, world, &own, ModuleKind::Component, exports)?;
    Ok(world)
}

/// Fails with names if a policy imports more than the world offers, or exports less than it
/// requires.
fn check_names(
    policy: &str,
    world: &World,
    imports: &[impl AsRef<str>],
    kind: ModuleKind,
    exports: &[impl AsRef<str>],
) -> Result<(), PolicyError> {
    let named: BTreeSet<&str> = imports.iter().map(AsRef::as_ref).filter(|import| !world.offers(import)).collect();
    let mut strange: Vec<String> = named.iter().take(NAMED).map(|name| quote_import(name)).collect();
    if named.len() > strange.len() {
        strange.push(format!("{} more", named.len() - strange.len()));
    }
    if !strange.is_empty() {
        return Err(PolicyError::ImportNotOffered { policy: policy.into(), imports: strange, offered: world.offered });
    }
    let missing = world.missing(kind, exports);
    if !missing.is_empty() {
        return Err(PolicyError::MissingExport { policy: policy.into(), exports: missing, contract: world.version });
    }
    Ok(())
}

/// An import's name in a list, in quotes if it would not be visible there.
fn quote_import(name: &str) -> String {
    let shown = clean(name.to_owned(), NAME_CHARS);
    if shown.trim().is_empty() { format!("'{shown}'") } else { shown }
}

fn invalid(policy: &str, error: &wasmtime::Error) -> PolicyError {
    broken(policy, &format!("{error:#}"), Fault::Other)
}

/// The error of a module that can't be run, with the first line of the reason.
pub(crate) fn broken(policy: &str, detail: &str, fault: Fault) -> PolicyError {
    PolicyError::Invalid { policy: policy.into(), detail: one_line(detail), fault }
}

/// The first line of a message, cut to a length that a terminal can show.
pub(crate) fn one_line(text: &str) -> String {
    clean(text.lines().next().unwrap_or_default().trim().to_owned(), 300)
}

fn words(error: BinaryReaderError) -> String {
    error.to_string()
}
