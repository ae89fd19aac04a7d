//! Hands the built policies to `include_bytes!`.

use std::{env, fs, path::PathBuf};

const NAMES: [&str; 5] = ["adaptive", "gfx1151", "comfyui", "diffusers", "fixed"];

fn main() {
    println!("cargo::rerun-if-env-changed=TILEWRIGHT_POLICIES");
    let Some(out) = env::var_os("OUT_DIR").map(PathBuf::from) else {
        return println!("cargo::error=OUT_DIR is not set: build with cargo");
    };
    let Some(policies) = env::var_os("TILEWRIGHT_POLICIES").map(PathBuf::from) else {
        return println!(
            "cargo::error=TILEWRIGHT_POLICIES is not set: build inside the workspace, after `cargo xtask setup`"
        );
    };
    for name in NAMES {
        let file = policies.join(format!("{name}.wasm"));
        println!("cargo::rerun-if-changed={}", file.display());
        if !file.is_file() {
            return println!("cargo::error={name}.wasm is missing in {}: run `cargo xtask setup`", policies.display());
        }
        if let Err(error) = fs::copy(&file, out.join(format!("{name}.wasm"))) {
            return println!("cargo::error={} can't be copied: {error}", file.display());
        }
    }
}
