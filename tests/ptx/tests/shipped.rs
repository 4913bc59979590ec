//! The modules that ship are understood whole.

use streamvm_ptx::Module;

#[test]
fn every_shipped_module_is_understood() {
    let (folder, mut modules) = (concat!(env!("CARGO_MANIFEST_DIR"), "/../../ep/cuda/ptx"), 0);
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let module = Module::new(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        assert_eq!(module.kernels().count(), text.matches(".visible .entry ").count(), "{path:?}");
        modules += 1;
    }
    assert!(modules >= 8, "{modules} modules in {folder}");
}
