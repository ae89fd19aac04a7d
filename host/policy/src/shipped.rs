//! The policies that ship, embedded as `cargo xtask setup` built them.

macro_rules! embedded {
    ($($name:literal),+ $(,)?) => { [$(($name, include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".wasm")) as &[u8])),+] };
}

/// Name and bytes of each; the first is the default.
pub(crate) static POLICIES: [(&str, &[u8]); 5] = embedded!["adaptive", "gfx1151", "comfyui", "diffusers", "fixed"];

/// The names of the policies that ship, the default first.
pub fn names() -> impl Iterator<Item = &'static str> {
    POLICIES.iter().map(|(name, _)| *name)
}

/// The module of one that ships.
pub fn module(name: &str) -> Option<&'static [u8]> {
    POLICIES.iter().find(|(known, _)| *known == name).map(|(_, bytes)| *bytes)
}
