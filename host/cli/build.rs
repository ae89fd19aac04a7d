//! Lets the program find libtorch: in a folder beside it, or else where it was set up.

fn main() {
    let runtime = std::env::var("DEP_TILEWRIGHT_TORCH_RUNTIME").expect("tilewright-torch says where libtorch is");
    println!(
        "cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,$ORIGIN/libtorch/lib:$ORIGIN/libtorch/torch/lib:{runtime}"
    );
}
