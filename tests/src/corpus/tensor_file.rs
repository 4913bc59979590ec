//! Checks tensor files: headers, elements, and how they are shown.

use std::io::Cursor;
use std::path::Path;

use serde_json::Value;
use streamvm_files::{Format, TensorFile};

/// A `.npy` file.
pub(super) fn npy(data: &[u8]) {
    load(Format::Npy, data, None);
}

/// A `.npz` file: its only tensor, and the one called `x`.
pub(super) fn npz(data: &[u8]) {
    load(Format::Npz, data, None);
    load(Format::Npz, data, Some("x"));
}

/// A `.safetensors` file: its only tensor, and the one called `x`.
pub(super) fn safetensors(data: &[u8]) {
    load(Format::Safetensors, data, None);
    load(Format::Safetensors, data, Some("x"));
}

fn load(format: Format, data: &[u8], tensor: Option<&str>) {
    let path = Path::new("fuzz");
    let read = TensorFile::from_header(format, path, &mut Cursor::new(data), data.len() as u64, tensor)
        .and_then(|file| file.read_from(Cursor::new(data)).map(|array| (file, array)));
    match read {
        Ok((file, array)) => {
            // DEFLATE makes at most 1,032 bytes of one.
            let most = if format == Format::Npz { data.len() * 1032 } else { data.len() };
            assert!(file.bytes() <= most, "{} bytes of {}", file.bytes(), data.len());
            assert_eq!(array.shape, file.shape.dims());
            assert_eq!(array.data.len(), file.shape.elements());
            assert_eq!(array.data.dtype(), file.dtype);
            let text = array.show();
            assert!(!text.is_empty() && text.len() < 64 << 10, "{text}");
            if format == Format::Safetensors {
                assert!(keys_are_unique(data), "an object of the header has a key twice");
            }
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.starts_with("fuzz: ") && text.len() < 64 << 10, "{text}");
        }
    }
}

/// Has each object in the header of a `.safetensors` file each of its keys once? Outside of strings a colon stands after each key, and a parsed
/// object keeps one entry for a key, however often the text has it: so the counts are equal only if no key comes again.
fn keys_are_unique(file: &[u8]) -> bool {
    let (length, rest) = file.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("8 bytes")) as usize;
    let header = std::str::from_utf8(&rest[..length]).expect("an accepted header is text");
    let (mut colons, mut in_string, mut escaped) = (0, false, false);
    for byte in header.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b':' if !in_string => colons += 1,
            _ => {}
        }
    }
    fn entries(value: &Value) -> usize {
        match value {
            Value::Object(object) => object.len() + object.values().map(entries).sum::<usize>(),
            Value::Array(array) => array.iter().map(entries).sum(),
            _ => 0,
        }
    }
    entries(&serde_json::from_str(header).expect("an accepted header is JSON")) == colons
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()
    }

    #[test]
    fn a_key_that_comes_again_is_found() {
        for (header, unique) in [
            (r#"{}"#, true),
            (r#"{"a:\\":{"b\":\"":[1,{"c":2}]},"b":"x:y"}"#, true),
            (r#"{"a":1,"a":1}"#, false),
            (r#"{"a":1,"\u0061":1}"#, false),
            (r#"{"x":{"b":1},"y":[{"c":1,"b":2,"c":3}]}"#, false),
        ] {
            assert_eq!(keys_are_unique(&file(header)), unique, "{header}");
        }
    }
}
