//! Lets this crate's tests find libtorch at run time.

fn main() {
    let runtime = std::env::var("DEP_TILEWRIGHT_TORCH_RUNTIME").expect("tilewright-torch says where libtorch is");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{runtime}");
}
