//! Lets this crate's tests find libtorch at run time.

fn main() {
    if std::env::var_os("CARGO_FEATURE_TORCH").is_none() {
        return;
    }
    let runtime = std::env::var("DEP_TILEWRIGHT_TORCH_RUNTIME").expect("tilewright-torch says where libtorch is");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{runtime}");
}
