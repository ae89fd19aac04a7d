//! Run paths of libtorch: a folder beside the program, or else the folder that it was set up in.

fn main() {
    let runtime = std::env::var("DEP_TILEWRIGHT_TORCH_RUNTIME").expect("tilewright-torch says where libtorch is");
    println!(
        "cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,$ORIGIN/libtorch/lib:$ORIGIN/libtorch/torch/lib:{runtime}"
    );
}
