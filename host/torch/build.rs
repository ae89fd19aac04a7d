//! Compiles the shim against the libtorch that torch-sys found, and gives dependants the path of
//! libtorch at run time.

use std::{env, path::Path};

fn main() {
    println!("cargo:rerun-if-changed=shim");
    let lib = env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys says where libtorch is");
    let lib = Path::new(&lib);
    let include = lib.parent().expect("lib stands in libtorch's folder").join("include");
    let mut shim = cc::Build::new();
    shim.cpp(true)
        .std("c++17")
        .warnings(true)
        // Loops over channels are worth their vectors in every profile; threads are libtorch's own.
        .opt_level(3)
        .flag("-fopenmp")
        // Vectors are passed to functions that are always inlined.
        .flag("-Wno-psabi")
        // `-isystem`: libtorch's headers have warnings of their own.
        .flag("-isystem")
        .flag(include.display().to_string())
        .flag("-isystem")
        .flag(include.join("torch/csrc/api/include").display().to_string());
    // Expanded values are ggml's to the last bit: no product and sum are rounded as one.
    shim.clone().flag("-ffp-contract=off").file("shim/expand.cpp").compile("tilewright_torch_expand");
    shim.file("shim/cancel.cpp")
        .file("shim/memory.cpp")
        .file("shim/device.cpp")
        .file("shim/transfer.cpp")
        .file("shim/scalar.cpp")
        .file("shim/noise.cpp")
        .file("shim/winograd.cpp")
        .file("shim/product.cpp")
        .file("shim/product_int8.cpp")
        .file("shim/tokens.cpp")
        .file("shim/multi_head.cpp")
        .file("shim/attention.cpp")
        .file("shim/unit_norm.cpp")
        .file("shim/profile.cpp")
        .compile("tilewright_torch");
    println!("cargo:rustc-link-lib=c10");
    println!("cargo:rustc-link-arg=-fopenmp");

    // `cargo xtask setup` links against .libtorch/link and runs with .libtorch/run, so that
    // changing the flavour rebuilds nothing.
    let run =
        include.parent().and_then(Path::parent).map(|set_up| set_up.join("run/torch/lib")).filter(|run| run.is_dir());
    println!("cargo:runtime={}", run.as_deref().unwrap_or(lib).display());
    // Shared by this crate's own tests.
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", run.as_deref().unwrap_or(lib).display());
}
