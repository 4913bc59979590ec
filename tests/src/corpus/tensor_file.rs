//! Checks tensor files: headers, elements, and how they are shown.

use std::io::Cursor;
use std::path::Path;

use streamvm_cli::files::{Format, TensorFile};
use streamvm_cli::values::show::show;

/// A `.npy` file.
pub(super) fn npy(data: &[u8]) {
    load(Format::Npy, data, None);
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
            assert!(file.bytes() <= data.len(), "{} bytes of {}", file.bytes(), data.len());
            assert_eq!(array.shape, file.shape.dims());
            assert_eq!(array.data.len(), file.shape.elements());
            assert_eq!(array.data.dtype(), file.dtype);
            let text = show(&array);
            assert!(!text.is_empty() && text.len() < 64 << 10, "{text}");
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.starts_with("fuzz: ") && text.len() < 64 << 10, "{text}");
        }
    }
}
