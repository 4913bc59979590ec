//! Tensors of an engine from and to files, and archives.

use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use streamvm::{DType, DeviceId, Tensor, Vm};
use tempfile::TempDir;

use crate::zip::{Archive, Writer};
use crate::{Array, Data, Error, Format, TensorFile, load, load_all, save, save_all, write_npy};

const SHAPES: [&[usize]; 3] = [&[], &[0, 3], &[2, 3, 4]];

/// A tensor whose bytes differ from element to element.
fn tensor(vm: &Vm, dtype: DType, shape: &[usize]) -> Tensor {
    let elements: usize = shape.iter().product();
    let byte = |at: usize| if dtype == DType::Bool { at % 2 } else { at * 7 % 120 } as u8;
    let bytes: Vec<u8> = (1..=elements * dtype.size()).map(byte).collect();
    let data = Data::from_bytes(dtype, &bytes).expect("zeros and ones");
    Array { shape: shape.to_vec(), data }.to_tensor(vm).unwrap()
}

fn same(found: &Tensor, expected: &Tensor) {
    let (found, expected) = (Array::from_tensor(found).unwrap(), Array::from_tensor(expected).unwrap());
    assert_eq!((&found.shape, found.data.dtype()), (&expected.shape, expected.data.dtype()));
    assert_eq!(found.data.to_bytes(), expected.data.to_bytes());
}

fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn every_dtype_and_shape_survives_a_save_and_a_load() {
    let vm = Vm::builder().build().unwrap();
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut all = Vec::new();
    for dtype in DType::ALL {
        for shape in SHAPES {
            all.push((format!("{dtype}.{shape:?}"), tensor(&vm, dtype, shape)));
        }
    }
    for extension in ["npz", "safetensors"] {
        let file = at(&format!("all.{extension}"));
        let kept: Vec<(&str, &Tensor)> = all
            .iter()
            .filter(|(_, tensor)| extension != "npz" || tensor.dtype() != DType::BF16)
            .map(|(name, tensor)| (name.as_str(), tensor))
            .collect();
        save_all(&file, &kept).unwrap();
        let loaded = load_all(&vm, &file).unwrap();
        assert_eq!(loaded.len(), kept.len());
        for (name, tensor) in &kept {
            same(&load(&vm, &file, Some(name)).unwrap(), tensor);
            let (_, found) = loaded.iter().find(|(found, _)| found == name).unwrap();
            same(found, tensor);
        }
        if extension == "npz" {
            assert!(loaded.iter().map(|(name, _)| name.as_str()).eq(kept.iter().map(|(name, _)| *name)), "the order");
        }
    }
    for (_, tensor) in all.iter().filter(|(_, tensor)| tensor.dtype() != DType::BF16) {
        save(at("one.npy"), tensor).unwrap();
        same(&load(&vm, at("one.npy"), None).unwrap(), tensor);
    }
    assert_eq!(names_in(folder.path()), ["all.npz", "all.safetensors", "one.npy"], "a part file was left");
}

#[test]
fn a_save_waits_for_a_tensor_on_a_device_and_a_view_is_saved_row_major() {
    let vm = Vm::builder().build().unwrap();
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("a.npy");
    let x = vm.from_slice(&[1.0f32, -2.0, 3.0, -4.0, 5.0, -6.0], &[2, 3]).unwrap().to(DeviceId::cpu(0)).unwrap();
    save(&path, &x.relu().unwrap().t().unwrap()).unwrap();
    let loaded = load(&vm, &path, None).unwrap();
    assert_eq!(loaded.dims(), [3, 2]);
    assert_eq!(loaded.to_vec::<f32>().unwrap(), [1.0, 0.0, 0.0, 5.0, 3.0, 0.0]);
}

#[test]
fn a_tensor_that_failed_leaves_the_file_as_it_was_and_its_error_passes_through() {
    let vm = Vm::builder().build().unwrap();
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("a.npz");
    fs::write(&path, "before").unwrap();
    let x = vm.zeros(DeviceId::cpu(0), DType::F32, &[2]).unwrap();
    vm.call_fn("broken", DeviceId::cpu(0), [x.write()], |_| Err("no luck".into())).unwrap();
    let error = save_all(&path, &[("x", &x)]).unwrap_err();
    assert!(
        matches!(&error, Error::Engine(streamvm::Error::Failed(_))) && error.to_string().contains("no luck"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "before");
    assert_eq!(names_in(folder.path()), ["a.npz"]);
}

/// An archive as Python's `zipfile` writes it for NumPy: members that may be compressed, and sizes in 64 bits in the headers before them.
fn archive(members: &[(&str, &[u8], bool)]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, data, deflated) in members {
        let mut crc = flate2::Crc::new();
        crc.update(data);
        let mut packed = data.to_vec();
        if *deflated {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(data).unwrap();
            packed = encoder.finish().unwrap();
        }
        let at = bytes.len() as u32;
        let common =
            [&[45, 0, 0, 0, if *deflated { 8 } else { 0 }, 0, 0, 0, 0x21, 0][..], &crc.sum().to_le_bytes()].concat();
        bytes.extend(b"PK\x03\x04");
        bytes.extend(&common);
        bytes.extend([0xff; 8]);
        bytes.extend((name.len() as u16).to_le_bytes());
        bytes.extend([20, 0]);
        bytes.extend(name.as_bytes());
        bytes.extend([1, 0, 16, 0]);
        bytes.extend((data.len() as u64).to_le_bytes());
        bytes.extend((packed.len() as u64).to_le_bytes());
        bytes.extend(&packed);
        directory.extend(b"PK\x01\x02\x2d\x03");
        directory.extend(&common);
        directory.extend((packed.len() as u32).to_le_bytes());
        directory.extend((data.len() as u32).to_le_bytes());
        directory.extend((name.len() as u16).to_le_bytes());
        directory.extend([0; 12]);
        directory.extend(at.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let (start, count) = (bytes.len() as u32, [members.len() as u8, 0]);
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend([count, count].concat());
    bytes.extend((directory.len() as u32).to_le_bytes());
    bytes.extend(start.to_le_bytes());
    bytes.extend([0, 0]);
    bytes
}

fn npy(shape: &[usize], data: Data) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_npy(&mut bytes, &Array { shape: shape.to_vec(), data }).unwrap();
    bytes
}

fn read(bytes: &[u8], name: Option<&str>) -> Result<Array, Error> {
    let path = Path::new("a.npz");
    TensorFile::from_header(Format::Npz, path, &mut Cursor::new(bytes), bytes.len() as u64, name)?
        .read_from(Cursor::new(bytes))
}

fn refused(bytes: &[u8], name: Option<&str>, with: &str) {
    let error = read(bytes, name).expect_err("read a bad file").to_string();
    assert!(error.starts_with("a.npz: ") && error.contains(with), "{error:?} does not say {with:?}");
}

#[test]
fn archives_of_numpy_are_read() {
    let (ones, floats) = (Data::U8(vec![1; 100_000]), Data::F64(vec![0.5, -1.0]));
    let (packed, plain) = (npy(&[1000, 100], ones.clone()), npy(&[2], floats.clone()));
    let bytes = archive(&[("arr_0.npy", &packed, true), ("größe.npy", &plain, false), ("c.npy", &plain, true)]);
    assert!(bytes.len() < 2000, "it is compressed");
    assert_eq!(read(&bytes, Some("arr_0")).unwrap(), Array { shape: vec![1000, 100], data: ones });
    assert_eq!(read(&bytes, Some("größe")).unwrap().data, floats);
    assert_eq!(read(&bytes, Some("c")).unwrap().data, floats);
    refused(&bytes, Some("arr_1"), "no tensor \"arr_1\" in this file; did you mean `arr_0`?");
    refused(&bytes, Some("weights"), "it has: \"arr_0\", \"größe\", \"c\"");
    refused(&bytes, None, "name one of its tensors: \"arr_0\", \"größe\", \"c\"");
    // A single tensor needs no name, and a member of another kind is no tensor.
    assert_eq!(read(&archive(&[("x.npy", &plain, true), ("notes.txt", b"x", false)]), None).unwrap().data, floats);
    refused(&archive(&[]), None, "nothing, it is empty");
}

#[test]
fn bools_of_an_archive_are_checked() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("a.npz");
    let mut bytes = npy(&[3], Data::Bool(vec![true; 3]));
    let last = bytes.len() - 1;
    bytes[last] = 2;
    fs::write(&path, archive(&[("x.npy", &bytes, true)])).unwrap();
    let file = TensorFile::open(&path, Some("x")).unwrap();
    assert!(file.check_elements().unwrap_err().to_string().contains("element 2 is a bool"));
    assert!(file.read().unwrap_err().to_string().contains("element 2 is a bool"));
}

#[test]
fn bad_archives_are_refused() {
    let plain = npy(&[2], Data::I32(vec![1, 2]));
    let good = archive(&[("x.npy", &plain, true), ("y.npy", &plain, false)]);
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let directory = good.windows(4).position(|word| word == b"PK\x01\x02").unwrap();
    let end = good.len() - 22;
    refused(b"", None, "no end record");
    refused(&good[..good.len() - 1], Some("x"), "truncated");
    refused(&good[..directory], Some("x"), "truncated");
    refused(&good[10..], Some("x"), "bytes are missing or added");
    refused(&changed(end + 4, 1), Some("x"), "several parts");
    refused(&changed(end + 10, 3), Some("x"), "has 2 members, it should have 3");
    refused(&changed(directory, b'Q'), Some("x"), "something other than an entry");
    refused(&changed(directory + 28, 250), Some("x"), "ends within an entry");
    refused(&changed(directory + 8, 1), Some("x"), "member \"x.npy\" is encrypted");
    refused(&changed(directory + 10, 9), Some("x"), "compressed by method 9");
    refused(&changed(directory + 24, 255), Some("x"), "shorter than the directory says");
    refused(&changed(directory + 27, 255), Some("x"), "member \"x.npy\" claims");
    refused(&changed(directory + 42, 1), Some("x"), "not where the directory says");
    refused(&changed(directory + 45, 255), Some("x"), "outside of the file");
    refused(&changed(directory + 46, 0xff), Some("x"), "not UTF-8");
    refused(&changed(directory + 46, b'y'), Some("y"), "two members \"y.npy\"");
    refused(&changed(directory + 16, !good[directory + 16]), Some("x"), "damaged: its bytes do not have its CRC-32");
    refused(&archive(&[("x.npy", b"nothing", true)]), Some("x"), "member \"x.npy\": malformed .npy header");
    refused(&archive(&[("x.npy", &plain[..plain.len() - 1], true)]), Some("x"), "truncated: i32[2] has 8 bytes");
    // Whatever a byte is changed to, and wherever the file ends: it is read, or refused.
    for at in 0..good.len() {
        for byte in [0, 1, 8, 0xff] {
            let _ = read(&changed(at, byte), Some("x"));
            let _ = read(&changed(at, byte), Some("y"));
        }
        let _ = read(&good[..at], None);
    }
}

#[test]
fn sizes_in_64_bits_are_written_and_read() {
    let members: Vec<(String, Vec<u8>)> =
        (0..5_u8).map(|at| (format!("{at}.npy"), npy(&[1], Data::U8(vec![at])))).collect();
    // Every member; those from the third on; the directory alone.
    for wide in [1, 300, 700] {
        let mut writer = Writer::with_wide(Vec::new(), wide);
        for (name, data) in &members {
            writer.add(name, |to| to.write_all(data)).unwrap();
        }
        let bytes = writer.finish().unwrap();
        assert_eq!(bytes.windows(4).filter(|word| *word == b"PK\x06\x06").count(), 1, "{wide}");
        for at in 0..5 {
            assert_eq!(read(&bytes, Some(&at.to_string())).unwrap().data, Data::U8(vec![at]), "{wide}");
        }
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0xff;
            let _ = read(&bad, Some("4"));
        }
    }
}

#[test]
fn a_directory_has_a_greatest_length() {
    // The end record and a directory of 16 MiB and a byte, of zeros.
    let size = (16_u32 << 20) + 1;
    let mut bytes = vec![0; size as usize];
    bytes.extend(b"PK\x05\x06\0\0\0\0\0\0\0\0");
    bytes.extend(size.to_le_bytes());
    bytes.extend([0; 6]);
    refused(&bytes, None, "at most 16777216 are read");
    assert!(Archive::read(Path::new("a.npz"), &mut Cursor::new(&bytes), bytes.len() as u64).is_err());
}

#[test]
fn names_with_control_characters_are_kept_and_escaped_in_messages() {
    let vm = Vm::builder().build().unwrap();
    let folder = TempDir::new().unwrap();
    let x = vm.from_slice(&[1u8], &[1]).unwrap();
    let name = "a\u{1b}[31m\n";
    for extension in ["npz", "safetensors"] {
        let file = folder.path().join(format!("\u{7}.{extension}"));
        save_all(&file, &[(name, &x), ("", &x)]).unwrap();
        same(&load(&vm, &file, Some(name)).unwrap(), &x);
        same(&load(&vm, &file, Some("")).unwrap(), &x);
        for wrong in [None, Some("a\u{1b}[32m\n"), Some("none")] {
            let error = load(&vm, &file, wrong).unwrap_err();
            assert!(matches!(error, Error::NoTensor { .. }));
            let text = error.to_string();
            assert!(text.contains("31m") && !text.contains(char::is_control), "{text:?}");
        }
    }
}

/// Of the crate's errors, and of the engine's, also when `?` makes an engine's of them.
#[test]
fn errors_name_the_line_of_the_caller() {
    let vm = Vm::builder().host_memory_limit(1 << 10).build().unwrap();
    let folder = TempDir::new().unwrap();
    let (there, gone) = (folder.path().join("there.npy"), folder.path().join("gone.npz"));
    let other = Vm::builder().build().unwrap();
    let large = other.zeros(DeviceId::cpu(0), DType::F32, &[10_000]).unwrap();
    save(&there, &large).unwrap();
    let _layer = vm.scope("weights");
    let into = |error: Error| streamvm::Error::from(error).to_string();
    let (first, errors) = (
        line!() + 2,
        [
            into(load(&vm, &gone, None).unwrap_err()),
            into(load(&vm, &there, Some("w")).unwrap_err()),
            into(load(&vm, &there, None).unwrap_err()),
            into(load_all(&vm, &gone).unwrap_err()),
            into(save(&gone, &large).unwrap_err()),
            into(save_all(&there, &[("w", &large)]).unwrap_err()),
        ],
    );
    for (line, error) in (first..).zip(errors) {
        let place = format!("files/src/tensors_tests.rs:{line}:");
        assert!(error.contains(&place) && error.contains(" in weights"), "{error} has no {place}");
    }
}

#[test]
fn saves_that_the_format_cannot_hold_are_refused() {
    let vm = Vm::builder().build().unwrap();
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (x, b) = (tensor(&vm, DType::F32, &[2]), tensor(&vm, DType::BF16, &[2]));
    let one = |name: &str, tensor: &Tensor| save(at(name), tensor).unwrap_err().to_string();
    assert!(one("a.npy", &b).contains("a.npy: .npy has no name for bf16"));
    for name in ["a.npz", "a.txt", "a"] {
        assert!(one(name, &x).contains("`save` writes a .npy file, and `save_all` a .npz"), "{name}");
    }
    assert!(one("none/a.npy", &x).contains("cannot write: its folder does not exist"));
    let all = |name: &str, tensors: &[(&str, &Tensor)]| save_all(at(name), tensors).unwrap_err().to_string();
    for name in ["a.npy", "a.txt", "a"] {
        assert!(all(name, &[("x", &x)]).contains("safetensors file, and `save` a .npy file"), "{name}");
    }
    assert!(all("a.npz", &[("x", &x), ("x", &x)]).contains("two tensors are called \"x\""));
    assert!(all("a.npz", &[("b", &b)]).contains("no name for bf16"));
    assert!(all("a.npz", &[("a\0", &x)]).contains("cannot contain a zero"));
    assert!(all("a.safetensors", &[("__metadata__", &x)]).contains("something else under the name"));
    assert!(all("a.safetensors", &[(&"x".repeat(100_000), &x)]).contains("at most 60000"));
    fs::create_dir(at("folder.npy")).unwrap();
    assert!(one("folder.npy", &x).contains("this is a directory"));
    assert!(load_all(&vm, at("a.npy")).unwrap_err().to_string().contains("cannot open"));
    save(at("a.npy"), &x).unwrap();
    assert!(load_all(&vm, at("a.npy")).unwrap_err().to_string().contains("load it by `load`"));
    assert_eq!(names_in(folder.path()), ["a.npy", "folder.npy"]);
    fs::write(at("a.npz"), archive(&[("notes.txt", b"x", false)])).unwrap();
    assert!(load_all(&vm, at("a.npz")).unwrap_err().to_string().contains("member \"notes.txt\" is no .npy file"));
    // A file without tensors is one.
    for name in ["none.npz", "none.safetensors"] {
        save_all(at(name), &[]).unwrap();
        assert!(load_all(&vm, at(name)).unwrap().is_empty());
    }
}

#[cfg(unix)]
#[test]
fn a_replaced_file_keeps_its_permissions_and_its_links() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let vm = Vm::builder().build().unwrap();
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
    fs::write(at("plain"), "").unwrap();
    let x = tensor(&vm, DType::F32, &[2]);
    for name in ["a.npz", "a.safetensors"] {
        save_all(at(name), &[("x", &x)]).unwrap();
        assert_eq!(mode(name), mode("plain"), "a new file has the permissions of new files");
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o640)).unwrap();
        let link = format!("link_{name}");
        symlink(name, at(&link)).unwrap();
        save_all(at(&link), &[("y", &x)]).unwrap();
        assert!(at(&link).is_symlink() && mode(name) == 0o640);
        same(&load(&vm, at(name), Some("y")).unwrap(), &x);
        let (link, target) = (format!("new_link_{name}"), format!("new_{name}"));
        symlink(&target, at(&link)).unwrap();
        save_all(at(&link), &[("y", &x)]).unwrap();
        assert!(at(&link).is_symlink() && at(&target).is_file(), "a link to a file that does not exist yet");
    }
}
