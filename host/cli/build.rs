//! Run paths of libtorch: the one that a package has it at, as `TILEWRIGHT_RUN_PATH` says it; or
//! else a folder beside the program, and the folder that it was set up in.

use std::env;

fn main() {
    println!("cargo:rerun-if-env-changed=TILEWRIGHT_RUN_PATH");
    if let Ok(path) = env::var("TILEWRIGHT_RUN_PATH") {
        // The older kind is searched for what libtorch itself needs, too.
        println!("cargo:rustc-link-arg=-Wl,--disable-new-dtags,-rpath,{path}");
        return;
    }
    let runtime = env::var("DEP_TILEWRIGHT_TORCH_RUNTIME").expect("tilewright-torch says where libtorch is");
    println!(
        "cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,$ORIGIN/libtorch/lib:$ORIGIN/libtorch/torch/lib:{runtime}"
    );
}
