//! Gives the library the name that loaders ask for.
//!
//! glibc takes a library that is loaded already, if it has the name that is asked for. So a test that has loaded the
//! stand-in by its path gets it again when cudarc asks for `libcuda.so`, the first name that it tries, whether or not the
//! machine has a driver of its own.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
