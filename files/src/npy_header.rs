//! The parser of `.npy` headers, for exactly the grammar that they need.
//!
//! NumPy writes the header as a Python dictionary with three keys, and this parser reads nothing else:
//!
//! ```text
//! {'descr': '<f4', 'fortran_order': False, 'shape': (1797, 64), }
//! ```
//!
//! * The keys may come in any order, each once.
//! * A text is in single or double quotes and has no escapes, since no type name needs one.
//! * A shape is a tuple or a list of whole numbers.
//!
//! The parser does not recurse and reads every byte once, so it takes time in proportion to the length of the header, which is
//! bounded. A parser of Python literals would accept more than a header needs.

/// The first bytes of a file.
pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";

/// Longest header that is read, in bytes. NumPy writes 118 for anything that can be loaded; its own
/// reader refuses more than 10,000 by default.
pub(crate) const MAX_HEADER: usize = 10_000;

/// The most bytes before the header's text: magic, version, and a length of two or four bytes.
pub(crate) const LONGEST_PREAMBLE: usize = 12;

/// The contents of a header.
#[derive(Debug, PartialEq)]
pub(crate) struct Header {
    /// The type of the elements, as NumPy writes it.
    pub(crate) descr: String,
    /// Are the elements in column-major order?
    pub(crate) fortran_order: bool,
    /// Sizes.
    pub(crate) shape: Vec<usize>,
    /// Where the elements begin, in bytes from the start of the file.
    pub(crate) offset: usize,
}

/// Reads the header from the first bytes of a file; [`LONGEST_PREAMBLE`] and [`MAX_HEADER`] bytes together are always enough.
///
/// # Errors
/// What was expected, and what was found instead.
pub(crate) fn parse(start: &[u8]) -> Result<Header, String> {
    if !start.starts_with(MAGIC) {
        return Err("the file does not begin with the magic bytes of .npy, as `numpy.save` writes them".into());
    }
    let (length, begin) = match (start.get(6), start.get(7)) {
        (Some(1), Some(0)) => (start.get(8..10).map(|b| usize::from(u16::from_le_bytes([b[0], b[1]]))), 10),
        (Some(2 | 3), Some(0)) => (start.get(8..12).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize), 12),
        (Some(major), Some(minor)) => {
            return Err(format!("version {major}.{minor} is unknown, expected 1.0, 2.0 or 3.0"));
        }
        _ => (None, 0),
    };
    let Some(length) = length else {
        return Err("the file ends within the header".into());
    };
    if length > MAX_HEADER {
        return Err(format!("it has {length} bytes, at most {MAX_HEADER} are read"));
    }
    let Some(text) = start.get(begin..begin + length) else {
        return Err("the file ends within the header".into());
    };
    let mut reader = Reader { text, at: 0 };
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    reader.symbol(b'{')?;
    while !reader.take(b'}') {
        let key = reader.quoted("a key in quotes")?;
        reader.symbol(b':')?;
        let again = match key {
            "descr" => descr.replace(reader.descr()?).is_some(),
            "fortran_order" => fortran_order.replace(reader.truth()?).is_some(),
            "shape" => shape.replace(reader.sizes()?).is_some(),
            other => {
                return Err(format!("it has a key {other:?}, expected descr, fortran_order and shape alone"));
            }
        };
        if again {
            return Err(format!("it has two keys {key:?}"));
        }
        if !reader.take(b',') && reader.peek() != Some(b'}') {
            return Err(reader.expected("`,` or `}`"));
        }
    }
    if reader.peek().is_some() {
        return Err(reader.expected("nothing after the dictionary"));
    }
    let missing = |key: &str| format!("it has no key '{key}'");
    Ok(Header {
        descr: descr.ok_or_else(|| missing("descr"))?,
        fortran_order: fortran_order.ok_or_else(|| missing("fortran_order"))?,
        shape: shape.ok_or_else(|| missing("shape"))?,
        offset: begin + length,
    })
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Skips spaces and returns the next byte without taking it.
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn take(&mut self, symbol: u8) -> bool {
        let found = self.peek() == Some(symbol);
        self.at += usize::from(found);
        found
    }

    fn symbol(&mut self, symbol: u8) -> Result<(), String> {
        if self.take(symbol) { Ok(()) } else { Err(self.expected(&format!("`{}`", char::from(symbol)))) }
    }

    fn expected(&mut self, what: &str) -> String {
        match self.peek() {
            Some(found) => format!("expected {what} at byte {} of its text, found {:?}", self.at, char::from(found)),
            None => format!("expected {what}, found its end"),
        }
    }

    /// Takes the bytes before the first for which `is` returns false.
    fn run(&mut self, is: impl Fn(&u8) -> bool) -> &'a [u8] {
        let rest = &self.text[self.at..];
        let run = &rest[..rest.iter().position(|byte| !is(byte)).unwrap_or(rest.len())];
        self.at += run.len();
        run
    }

    fn quoted(&mut self, what: &str) -> Result<&'a str, String> {
        let Some(quote @ (b'\'' | b'"')) = self.peek() else { return Err(self.expected(what)) };
        self.at += 1;
        let run = self.run(|byte| byte.is_ascii() && !byte.is_ascii_control() && *byte != quote && *byte != b'\\');
        if self.text.get(self.at) != Some(&quote) {
            return Err(self.expected("the end of a text without escapes"));
        }
        self.at += 1;
        // `is` accepts only ASCII here, so this cannot fail.
        std::str::from_utf8(run).map_err(|error| error.to_string())
    }

    fn descr(&mut self) -> Result<String, String> {
        if self.peek() == Some(b'[') {
            return Err("a structured array cannot be loaded, expected one type for all elements".into());
        }
        self.quoted("a type in quotes such as '<f4'").map(str::to_owned)
    }

    fn truth(&mut self) -> Result<bool, String> {
        self.peek();
        let start = self.at;
        match self.run(u8::is_ascii_alphanumeric) {
            b"True" => Ok(true),
            b"False" => Ok(false),
            _ => {
                self.at = start;
                Err(self.expected("True or False"))
            }
        }
    }

    fn sizes(&mut self) -> Result<Vec<usize>, String> {
        let end = match self.peek() {
            Some(b'(') => b')',
            Some(b'[') => b']',
            _ => return Err(self.expected("a tuple of sizes such as (2, 3)")),
        };
        self.at += 1;
        let mut sizes = Vec::new();
        while !self.take(end) {
            self.peek();
            let digits = self.run(u8::is_ascii_digit);
            if digits.is_empty() {
                return Err(self.expected("a size, which is zero or more"));
            }
            let size = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
            sizes.push(size.ok_or("the shape is too large: a size does not fit 64 bits")?);
            let comma = self.take(b',');
            if !comma && self.peek() != Some(end) {
                return Err(self.expected(&format!("`,` or `{}`", char::from(end))));
            }
            if !comma && sizes.len() == 1 && end == b')' {
                return Err("a tuple of one size has a comma after it, such as (3,)".into());
            }
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Header, String> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend(u16::try_from(text.len()).expect("a short text").to_le_bytes());
        bytes.extend(text.bytes());
        parse(&bytes)
    }

    #[test]
    fn what_numpy_writes_is_read() {
        let expected = |shape: &[usize], text: &str| {
            let header =
                Header { descr: "<f4".into(), fortran_order: false, shape: shape.into(), offset: 10 + text.len() };
            assert_eq!(read(text), Ok(header), "{text}");
        };
        expected(&[1797, 64], "{'descr': '<f4', 'fortran_order': False, 'shape': (1797, 64), }          \n");
        expected(&[3], "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n");
        expected(&[], "{'descr': '<f4', 'fortran_order': False, 'shape': (), }\n");
        // Other writers use this form.
        expected(&[2, 3], "{\"shape\":[2,3],\"descr\":\"<f4\",\"fortran_order\":False}");
    }

    #[test]
    fn anything_else_is_refused_with_what_was_expected() {
        for (text, says) in [
            ("{'descr': '\\x3cf4', 'fortran_order': False, 'shape': ()}", "text without escapes at byte 11"),
            ("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}", "two keys \"descr\""),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (), 'x': 1}", "a key \"x\""),
            ("{'descr': '<f4', 'fortran_order': 0, 'shape': ()}", "True or False at byte 34"),
            ("{'descr': '<f4', 'fortran_order': Falsehood, 'shape': ()}", "True or False"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (3)}", "comma"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "zero or more"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': ((1,),)}", "zero or more"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': 3}", "a tuple of sizes"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': ()} x", "nothing after"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': ()", "found its end"),
            ("{'descr': '<f4' 'fortran_order': False, 'shape': ()}", "`,` or `}` at byte 16"),
            ("{'descr': '<f4', 'fortran_order': False}", "no key 'shape'"),
            ("", "`{`, found its end"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error:?} does not say {says:?}");
        }
    }
}
