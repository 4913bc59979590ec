//! Headers and elements of files, without an engine.

use std::fs::{self, File};
use std::io::Cursor;
use std::path::Path;

use streamvm::{bf16, f16};
use tempfile::TempDir;

use super::*;

/// A `.npy` file from its header's dictionary and its data.
fn npy(dict: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(u16::try_from(dict.len() + 1).unwrap().to_le_bytes());
    bytes.extend(dict.bytes());
    bytes.push(b'\n');
    bytes.extend(data);
    bytes
}

fn plain(descr: &str, fortran: bool, shape: &str, data: &[u8]) -> Vec<u8> {
    let order = if fortran { "True" } else { "False" };
    npy(&format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}"), data)
}

fn safe(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend(data);
    bytes
}

fn written(array: &Array) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_npy(&mut bytes, array).unwrap();
    bytes
}

fn load(name: &str, bytes: &[u8], tensor: Option<&str>) -> Result<Array, String> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    TensorFile::open(&path, tensor)
        .and_then(|file| file.read())
        .map_err(|error| error.to_string().replace(&format!("{}: ", path.display()), ""))
}

fn refused(name: &str, bytes: &[u8], tensor: Option<&str>, with: &str) {
    let error = load(name, bytes, tensor).expect_err("loaded a bad file");
    assert!(error.contains(with), "{error:?} does not say {with:?}");
}

#[test]
fn files_have_the_bytes_that_numpy_writes() {
    let written = |shape, data| written(&Array { shape, data });
    for (shape, text) in [(vec![2], "(2,)"), (vec![1, 2], "(1, 2)"), (vec![2, 1, 1], "(2, 1, 1)")] {
        let dict = format!("{{'descr': '<i2', 'fortran_order': False, 'shape': {text}, }}");
        let expected = npy(&format!("{dict:<117}"), &[1, 0, 0xfe, 0xff]);
        assert_eq!(written(shape, Data::I16(vec![1, -2])), expected, "{text}");
    }
    let dict = "{'descr': '|b1', 'fortran_order': False, 'shape': (), }";
    assert_eq!(written(vec![], Data::Bool(vec![true])), npy(&format!("{dict:<117}"), &[1]));
    // A header that does not fit 128 bytes has 192.
    assert_eq!(written([vec![0], vec![1_000_000_000_000; 5]].concat(), Data::U8(vec![])).len(), 192);
}

#[test]
fn arrays_survive_writing_and_reading() {
    let all = [
        (vec![2, 3], Data::F32(vec![0.5, -1.0, f32::INFINITY, 3.0, 4.0, 5.0])),
        (vec![], Data::F64(vec![1e300])),
        (vec![4], Data::F16([0.1, -0.0, 65504.0, f32::INFINITY].map(f16::from_f32).to_vec())),
        (vec![3, 0], Data::I32(vec![])),
        (vec![2], Data::I8(vec![i8::MIN, i8::MAX])),
        (vec![2], Data::I16(vec![i16::MIN, i16::MAX])),
        (vec![2], Data::I64(vec![i64::MIN, i64::MAX])),
        (vec![2], Data::U16(vec![u16::MIN, u16::MAX])),
        (vec![2], Data::U32(vec![u32::MIN, u32::MAX])),
        (vec![2], Data::U64(vec![u64::MIN, u64::MAX])),
        (vec![1, 2], Data::U8(vec![0, 255])),
        (vec![2], Data::Bool(vec![true, false])),
    ];
    for (shape, data) in all {
        let array = Array { shape, data };
        let mut file = Cursor::new(written(&array));
        let length = file.get_ref().len() as u64;
        let header = TensorFile::from_header(Format::Npy, Path::new("a.npy"), &mut file, length, None).unwrap();
        assert_eq!(header.read_from(file).unwrap(), array);
    }
}

#[test]
fn sixteen_bit_floats_are_read() {
    // The numbers 1.5 and -2 in both formats.
    let f16s = [0x00, 0x3e, 0x00, 0xc0];
    let bf16s = [0xc0, 0x3f, 0x00, 0xc0];
    let halves = Data::F16([1.5, -2.0].map(f16::from_f32).to_vec());
    let brains = Data::BF16([1.5, -2.0].map(bf16::from_f32).to_vec());
    assert_eq!(load("a.npy", &plain("<f2", false, "(2,)", &f16s), None).unwrap().data, halves);
    let header = r#"{"h":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]}}"#;
    let bytes = safe(header, &[f16s, bf16s].concat());
    assert_eq!(load("a.safetensors", &bytes, Some("h")).unwrap().data, halves);
    assert_eq!(load("a.safetensors", &bytes, Some("b")).unwrap().data, brains);
}

#[test]
fn fortran_order_is_read() {
    let array = load("a.npy", &plain("|u1", true, "(2, 3)", &[0, 3, 1, 4, 2, 5]), None).unwrap();
    assert_eq!(array, Array { shape: vec![2, 3], data: Data::U8(vec![0, 1, 2, 3, 4, 5]) });
}

#[test]
fn bad_npy_files_are_refused() {
    let npy_refused = |bytes: &[u8], with| refused("a.npy", bytes, None, with);
    npy_refused(b"", "magic");
    npy_refused(b"\x93NUMPY", "ends within the header");
    npy_refused(b"\x93NUMPY\x01\x00\xff", "ends within the header");
    npy_refused(b"\x93NUMPY\x01\x00\x20\x00{'descr'", "ends within the header");
    npy_refused(b"\x93NUMPY\x09\x00\x20\x00{'descr'", "version 9");
    npy_refused(b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "4294967295 bytes");
    npy_refused(&plain("<f4", false, "(2,)", &[0; 7]), "truncated: f32[2] has 8 bytes, 7 are there");
    npy_refused(&plain("<f4", false, "(2,)", &[0; 9]), "1 bytes follow");
    npy_refused(&plain(">f4", false, "(2,)", &[0; 8]), "big-endian");
    npy_refused(&plain("<f16", false, "(2,)", &[0; 32]), "'<f16' cannot be loaded");
    npy_refused(&plain("|V2", false, "(2,)", &[0; 4]), "no name for bf16");
    npy_refused(&plain("|V3", false, "(2,)", &[0; 6]), "u8 or b1");
    npy_refused(&plain("<c8", false, "(1,)", &[0; 8]), "cannot be loaded");
    npy_refused(&plain("|O", false, "(1,)", &[0; 8]), "cannot be loaded");
    npy_refused(&plain("|b1", false, "(3,)", &[0, 1, 7]), "element 2 is a bool");
    npy_refused(&plain("<f4", false, "(-1,)", &[]), "malformed");
    npy_refused(&plain("<f4", false, "(99999999999999999999999,)", &[]), "too large");
    npy_refused(&plain("<f4", false, "(4294967296, 4294967296, 4294967296, 0)", &[]), "would not fit in memory");
    npy_refused(&plain("<f4", false, "(4611686018427387904,)", &[]), "would not fit in memory");
    npy_refused(&plain("|u1", false, "(1, 1, 1, 1, 1, 1, 1, 1, 1)", &[0]), "8");
    npy_refused(&npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (0,), }", &[]), "structured");
    npy_refused(&npy("{'descr': '<f4', 'shape': (0,), }", &[]), "fortran_order");
    npy_refused(&npy(&"(".repeat(9_000), &[]), "malformed");
    npy_refused(&npy("garbage", &[]), "malformed");
    npy_refused(&npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), ", &[]), "malformed");
}

#[test]
fn random_headers_never_panic() {
    // Changes every byte of a good file to a few others: each changed file either loads or is refused.
    let good = plain("<f4", false, "(1, 2)", &[0; 8]);
    for at in 0..good.len() {
        for byte in [0, b'9', b'(', b'\'', 0xff] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            let _ = load("a.npy", &bytes, None);
        }
        let _ = load("a.npy", &good[..at], None);
    }
}

#[test]
fn a_tensor_is_found_by_its_name() {
    let header = r#"{"b.weight":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"I32","shape":[],"data_offsets":[2,6]}}"#;
    let bytes = safe(header, &[1, 2, 5, 0, 0, 0]);
    let read = |name| load("a.safetensors", &bytes, Some(name)).unwrap().data;
    assert_eq!(read("b.weight"), Data::U8(vec![1, 2]));
    assert_eq!(read("a"), Data::I32(vec![5]));
    refused("a.safetensors", &bytes, Some("b.weigth"), "did you mean `b.weight`?");
    refused("a.safetensors", &bytes, Some("zzz"), "it has: \"a\", \"b.weight\"");
    refused("a.safetensors", &bytes, None, "name one of its tensors: \"a\", \"b.weight\"");
}

#[test]
fn a_single_tensor_needs_no_name() {
    let header = r#"{"x":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}"#;
    assert_eq!(load("a.safetensors", &safe(header, &[1]), None).unwrap().data, Data::Bool(vec![true]));
}

#[test]
fn bad_safetensors_files_are_refused() {
    let bad = |bytes: &[u8], with| refused("a.safetensors", bytes, Some("x"), with);
    bad(b"", "0 bytes cannot hold a header");
    bad(&u64::MAX.to_le_bytes(), "at most 16777216 are read");
    bad(&1000_u64.to_le_bytes(), "should have 1000 bytes, the file has 8");
    bad(&safe("{", &[]), "malformed .safetensors header");
    bad(&safe(&"[".repeat(100_000), &[]), "malformed .safetensors header");
    let one = |dtype: &str, shape: &str, end: usize| {
        format!(r#"{{"x":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{end}]}}}}"#)
    };
    bad(&safe(&one("F32", "[2]", 8), &[0; 7]), "truncated: its tensors have 8 bytes, 7 are there");
    bad(&safe(&one("F32", "[2]", 8), &[0; 9]), "too long");
    bad(&safe(&one("F32", "[2]", 4), &[0; 4]), "malformed .safetensors header");
    bad(&safe(&one("F8_E4M3", "[2]", 2), &[0; 2]), "F8_E4M3");
    bad(&safe(&one("F32", "[18446744073709551615, 2]", 4), &[0; 4]), "malformed .safetensors header");
}

/// A sparse file of `length` bytes of which only the bytes of `start` are on the disk.
fn sparse(name: &str, start: &[u8], length: u64) -> Result<TensorFile, String> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, start).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
    TensorFile::open(&path, None).map_err(|error| error.to_string())
}

#[test]
fn a_length_that_only_the_file_system_knows_costs_no_memory() {
    let most = MAX_ELEMENT_BYTES;
    let header = plain("|u1", false, &format!("({most},)"), &[]);
    assert!(sparse("a.npy", &header, header.len() as u64 + most).is_ok());
    let header = plain("|u1", false, &format!("({},)", most + 1), &[]);
    let error = sparse("a.npy", &header, header.len() as u64 + most + 1).unwrap_err();
    assert!(error.contains("17179869185 bytes, at most 17179869184 are read"), "{error}");

    let most = safetensors::MAX_HEADER;
    let error = sparse("a.safetensors", &(most + 1).to_le_bytes(), most + 9).unwrap_err();
    assert!(error.contains("at most 16777216 are read"), "{error}");
    // A header of the greatest length is read whole before it is found not to be JSON.
    let error = sparse("a.safetensors", &most.to_le_bytes(), most + 8).unwrap_err();
    assert!(error.contains("malformed .safetensors header"), "{error}");
}

#[test]
fn a_header_is_bounded_before_it_is_parsed() {
    // A shape of a million axes, and a million nested objects, which would overflow the stack of a recursive parser without a limit.
    let axes = "1,".repeat(1_000_000);
    let header = format!(r#"{{"x":{{"dtype":"U8","shape":[{axes}1],"data_offsets":[0,1]}}}}"#);
    refused("a.safetensors", &safe(&header, &[0]), Some("x"), "axes");
    let deep = format!(r#"{{"x":{}"#, r#"{"a":"#.repeat(1_000_000));
    refused("a.safetensors", &safe(&deep, &[]), Some("x"), "malformed .safetensors header");
    refused("a.npy", &npy(&"[{(".repeat(3_000), &[]), None, "malformed .npy header");
}

#[test]
fn odd_paths_are_refused() {
    let folder = TempDir::new().unwrap();
    let open = |path: &Path, tensor| TensorFile::open(path, tensor).unwrap_err().to_string();
    assert!(open(folder.path(), None).contains("this is a directory"));
    assert!(open(&folder.path().join("none.npy"), None).contains("cannot open"));
    assert!(open(Path::new("/dev/null"), None).contains("not a regular file"));
    let text = folder.path().join("a.txt");
    fs::write(&text, "x").unwrap();
    assert!(open(&text, None).contains("expected .npy, .npz or .safetensors"));
    let array = folder.path().join("a.npy");
    fs::write(&array, plain("|u1", false, "(1,)", &[1])).unwrap();
    assert!(open(&array, Some("x")).contains("leave the name out"));
}
