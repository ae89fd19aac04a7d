//! Lets this crate's tests find libtorch at run time, where other crates of the workspace have the
//! models built with it.

fn main() {
    if let Ok(runtime) = std::env::var("DEP_TILEWRIGHT_MODELS_RUNTIME") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{runtime}");
    }
}
