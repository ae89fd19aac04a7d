//! Lets this crate's tests, and those of crates that know libtorch by this one alone, find libtorch
//! at run time, where they are built with it.

fn main() {
    if let Ok(runtime) = std::env::var("DEP_TILEWRIGHT_TORCH_RUNTIME") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{runtime}");
        println!("cargo:runtime={runtime}");
    }
}
