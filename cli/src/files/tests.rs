use std::fs;

use streamvm::bf16;
use streamvm_files::Data;
use tempfile::TempDir;

use super::*;

#[test]
fn a_file_of_bf16_is_refused_and_left_alone() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("a.npy");
    fs::write(&path, "before").unwrap();
    let array = Array { shape: vec![1], data: Data::BF16(vec![bf16::ONE]) };
    let error = save(&path, &array).unwrap_err().to_string();
    assert!(error.contains("a.npy: .npy has no name for bf16") && error.contains("f32"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "before");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a part file was left");
}

#[test]
fn saving_over_something_else_is_refused() {
    let folder = TempDir::new().unwrap();
    let array = Array { shape: vec![1], data: Data::U8(vec![1]) };
    let fail = |path: &Path| save(path, &array).unwrap_err().to_string();
    assert!(fail(folder.path()).contains("this is a directory"));
    assert!(fail(&folder.path().join("none/a.npy")).contains("cannot write"));
    assert!(fail(Path::new("/dev/null")).contains("not a regular file"));
}
