//! The kernels that ship can be decoded.

use streamvm_ptx::Module;

#[test]
fn every_shipped_module_is_understood() {
    let folder = std::env::var("PTX_DIR").unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/../../ep/ptx").to_owned());
    let mut kernels = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        match Module::new(&text) {
            Ok(module) => kernels += module.kernels().count(),
            Err(error) => println!("{path:?}: {error}\n{}", text.lines().nth(error.line as usize - 1).unwrap()),
        }
    }
    println!("{kernels}");
}
