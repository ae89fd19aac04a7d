//! From a file's bytes to a component that is linked and ready to be instantiated.

use std::borrow::Cow;

use sha2::{Digest, Sha256};
use wasmparser::{Parser, Payload};
use wasmtime::component::{Component, HasSelf, Linker};
use wit_component::{ComponentEncoder, StringEncoding};
use wit_parser::{Resolve, WorldId};

use crate::{
    PolicyError,
    bindings::{self, PolicyPre},
    cache::Cache,
    guest::Guest,
    limits::Limits,
    sandbox::Sandbox,
};

/// The contract that policies are built against.
pub(crate) const CONTRACT: &str = "wit/policy.wit, tilewright:policy@0.1.0";

/// The interfaces that a policy may import.
pub(crate) const OFFERED: [&str; 2] = ["tilewright:policy/host@0.1.0", "tilewright:policy/decoding-host@0.1.0"];

/// The interfaces that a policy has to export.
const REQUIRED: [&str; 2] = ["tilewright:policy/lifecycle@0.1.0", "tilewright:policy/decoding-policy@0.1.0"];

/// What a core module has to export for them.
const FUNCTIONS: [&str; 5] = [
    "tilewright:policy/lifecycle@0.1.0#describe",
    "tilewright:policy/lifecycle@0.1.0#configure",
    "tilewright:policy/decoding-policy@0.1.0#decide",
    "tilewright:policy/decoding-policy@0.1.0#recover",
    "tilewright:policy/decoding-policy@0.1.0#learn",
];

/// Bytes before a module's first section.
const HEADER: usize = 8;

/// The number of sections that mean nothing to execution.
const CUSTOM_SECTION: u8 = 0;

/// Interfaces that hold nothing but types: importing them gives a guest nothing to call.
const TYPES: [&str; 2] = ["tilewright:policy/types@0.1.0", "tilewright:policy/decoding@0.1.0"];

/// What a policy's file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A component, used as it is.
    Component,
    /// A core module with the contract's canonical names, turned into a component on load.
    CoreModule,
}

/// A component that fits the contract.
pub(crate) struct Fitted {
    pub pre: PolicyPre<Guest>,
    pub kind: Kind,
    pub digest: String,
    pub imports: Vec<String>,
    pub exports: Vec<String>,
}

/// Reads, compiles (or finds compiled) and links a policy. `policy` names it in errors.
pub(crate) fn load(
    policy: &str,
    bytes: &[u8],
    sandbox: &Sandbox,
    limits: &Limits,
    cache: Option<&Cache>,
) -> Result<Fitted, PolicyError> {
    if bytes.len() > limits.file_bytes {
        return Err(PolicyError::TooLarge {
            policy: policy.into(),
            bytes: bytes.len() as u64,
            most: limits.file_bytes,
        });
    }
    let kind = sniff(bytes).map_err(|found| PolicyError::NotWebAssembly { policy: policy.into(), found })?;
    let digest = digest(bytes);
    let engine = &sandbox.engine;
    let component = match cache.and_then(|cache| cache.get(engine, &digest)) {
        Some(component) => component,
        None => {
            let wasm = match kind {
                Kind::Component => Cow::Borrowed(bytes),
                Kind::CoreModule => Cow::Owned(componentise(policy, bytes)?),
            };
            let component = Component::from_binary(engine, &wasm).map_err(|error| invalid(policy, &error))?;
            if let Some(cache) = cache {
                cache.keep(engine, &digest, &component);
            }
            component
        }
    };
    let (imports, exports) = fits(policy, sandbox, &component)?;
    let mut linker = Linker::<Guest>::new(engine);
    let linked = bindings::Policy::add_to_linker::<_, HasSelf<_>>(&mut linker, |guest| guest)
        .and_then(|()| linker.instantiate_pre(&component))
        .and_then(PolicyPre::new);
    let pre = linked.map_err(|error| invalid(policy, &error))?;
    Ok(Fitted { pre, kind, digest, imports, exports })
}

/// `sha256:` and the digest in hexadecimal.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let hex = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("sha256:{hex}")
}

/// What the first bytes say, or what they look like instead.
fn sniff(bytes: &[u8]) -> Result<Kind, &'static str> {
    match bytes {
        [] => Err("the file is empty"),
        [b'\0', b'a', b's', b'm', 1, 0, 0, 0, ..] => Ok(Kind::CoreModule),
        [b'\0', b'a', b's', b'm', 0x0d, 0, 1, 0, ..] => Ok(Kind::Component),
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

/// A component around a core module that speaks the contract's canonical names.
///
/// The metadata that the SDK left in the module is not read but replaced by the contract's own: decoding somebody else's runs a
/// recursive parser over bytes that nobody checked, and a damaged section overflowed its stack.
fn componentise(policy: &str, bytes: &[u8]) -> Result<Vec<u8>, PolicyError> {
    let broken = |detail: String| PolicyError::Invalid { policy: policy.into(), detail: one_line(&detail) };
    let mut bare = bytes[..HEADER].to_vec();
    let mut strange: Vec<String> = Vec::new();
    let mut missing = FUNCTIONS.to_vec();
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(|error| broken(error.to_string()))?;
        match &payload {
            Payload::ImportSection(imports) => {
                for import in imports.clone().into_imports() {
                    let module = import.map_err(|error| broken(error.to_string()))?.module;
                    if !offered(module) && !strange.iter().any(|known| known == module) {
                        strange.push(module.to_owned());
                    }
                }
            }
            Payload::ExportSection(exports) => {
                for export in exports.clone() {
                    let name = export.map_err(|error| broken(error.to_string()))?.name;
                    missing.retain(|function| *function != name);
                }
            }
            _ => {}
        }
        if let Some((id, range)) = payload.as_section().filter(|(id, _)| *id != CUSTOM_SECTION) {
            // A section may say that it is longer than the file.
            let contents = bytes.get(range).ok_or_else(|| broken("it ends within a section".into()))?;
            append(&mut bare, id, contents);
        }
    }
    if !strange.is_empty() {
        return Err(PolicyError::ImportNotOffered { policy: policy.into(), imports: strange });
    }
    if !missing.is_empty() {
        let exports = missing.into_iter().map(str::to_owned).collect();
        return Err(PolicyError::MissingExport { policy: policy.into(), exports });
    }
    let described = contract().and_then(|(resolve, world)| {
        wit_component::embed_component_metadata(&mut bare, &resolve, world, StringEncoding::UTF8)
    });
    let encoded = described.and_then(|()| ComponentEncoder::default().module(&bare)?.validate(true).encode());
    encoded.map_err(|error| broken(format!("{error:#}")))
}

/// The contract that this host was built with.
fn contract() -> anyhow::Result<(Resolve, WorldId)> {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("policy.wit", include_str!("../../../wit/policy.wit"))?;
    let world = resolve.select_world(&[package], Some("policy"))?;
    Ok((resolve, world))
}

/// Appends a section: its number, its length in LEB128, its contents.
fn append(module: &mut Vec<u8>, id: u8, contents: &[u8]) {
    module.push(id);
    let mut length = contents.len();
    while length >= 0x80 {
        module.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    module.push(length as u8);
    module.extend_from_slice(contents);
}

/// Fails with names where the component wants more than is offered, or gives less than is required. Returns its imports and exports.
fn fits(policy: &str, sandbox: &Sandbox, component: &Component) -> Result<(Vec<String>, Vec<String>), PolicyError> {
    let ty = component.component_type();
    let imports: Vec<String> = ty.imports(&sandbox.engine).map(|(name, _)| name.to_owned()).collect();
    let exports: Vec<String> = ty.exports(&sandbox.engine).map(|(name, _)| name.to_owned()).collect();
    let strange: Vec<String> = imports.iter().filter(|name| !offered(name)).cloned().collect();
    if !strange.is_empty() {
        return Err(PolicyError::ImportNotOffered { policy: policy.into(), imports: strange });
    }
    let missing: Vec<String> = REQUIRED
        .iter()
        .filter(|name| !exports.iter().any(|export| export == *name))
        .map(|name| name.to_string())
        .collect();
    if !missing.is_empty() {
        return Err(PolicyError::MissingExport { policy: policy.into(), exports: missing });
    }
    Ok((imports, exports))
}

fn offered(name: &str) -> bool {
    OFFERED.contains(&name) || TYPES.contains(&name)
}

fn invalid(policy: &str, error: &wasmtime::Error) -> PolicyError {
    PolicyError::Invalid { policy: policy.into(), detail: one_line(&format!("{error:#}")) }
}

/// The first line of a message, cut to a length that a terminal can show.
pub(crate) fn one_line(text: &str) -> String {
    crate::guest::clean(text.lines().next().unwrap_or_default().trim().to_owned(), 300)
}
