//! The text of a script, and positions in it.
//!
//! The text is read once, as a whole, and never changes; later stages refer to it by byte [`Span`]s. Lines and columns are computed
//! only for messages. A byte that is not UTF-8 is reported at its place and replaced, so that the message can show its line.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::base::engine::Site;
use crate::base::printable::{is_stdin, printable, where_it_starts};
use crate::syntax::diagnostic::Diagnostic;

/// Longest script that is read, in bytes. People or small generators write scripts; the limit keeps a wrong file (a data set, a
/// device node) from being read into memory.
pub const MAX_SOURCE_BYTES: usize = 1 << 20;

/// A range of bytes of the source text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// The span from `start` to `end`.
    #[must_use]
    pub fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    /// The smallest span that holds both.
    #[must_use]
    pub fn to(self, other: Self) -> Self {
        Self::new(self.start.min(other.start), self.end.max(other.end))
    }
}

/// A value with its place in the source.
#[derive(Clone, Debug, PartialEq)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// Its place.
    pub span: Span,
}

impl<T> Spanned<T> {
    /// `value` at `span`.
    pub fn new(value: T, span: Span) -> Self {
        Self { value, span }
    }
}

/// A line and column, both from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

/// A script: its name in messages, the folder its paths are relative to, and its text.
#[derive(Debug)]
pub struct Source {
    name: String,
    folder: PathBuf,
    text: String,
    line_starts: Vec<usize>,
    /// Then columns need not be counted: a generated script may be one long line.
    is_ascii: bool,
    /// The parts of the text that have a site, by line and column of their first character.
    sites: RefCell<HashMap<(u32, u32), Span>>,
    /// The number of this process among the ranks of its job, and their number: for names of files.
    rank: (usize, usize),
}

/// Why a script could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// The file could not be read, so there is no text to show.
    File(String),
    /// The text was read, and is wrong at one place.
    Text(Box<(Source, Diagnostic)>),
}

impl Source {
    /// A script from text; relative paths in it start at `folder`.
    pub fn from_text(name: impl Into<String>, folder: impl Into<PathBuf>, text: impl Into<String>) -> Self {
        let text = text.into();
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let (is_ascii, sites) = (text.is_ascii(), RefCell::default());
        Self { name: printable(&name.into()), folder: folder.into(), text, line_starts, is_ascii, sites, rank: (0, 1) }
    }

    /// A script from bytes that should be UTF-8.
    ///
    /// # Errors
    /// [`ReadError`] for text over [`MAX_SOURCE_BYTES`] and for the first byte that is not UTF-8.
    pub fn from_bytes(name: impl Into<String>, folder: impl Into<PathBuf>, bytes: Vec<u8>) -> Result<Self, ReadError> {
        let name = printable(&name.into());
        if bytes.len() > MAX_SOURCE_BYTES {
            return Err(ReadError::File(format!("{name}: error: the script is longer than {MAX_SOURCE_BYTES} bytes")));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self::from_text(name, folder, text)),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                let bytes = error.into_bytes();
                let found = bytes.get(at).copied().unwrap_or_default();
                // The text before `at` is valid, so offsets up to there are the same in both.
                let source = Self::from_text(name, folder, String::from_utf8_lossy(&bytes));
                let diagnostic = Diagnostic::new(
                    Span::new(at, at + '\u{fffd}'.len_utf8()),
                    format!("byte 0x{found:02x} is not UTF-8 text"),
                )
                .with_help("a script is a UTF-8 text file");
                Err(ReadError::Text(Box::new((source, diagnostic))))
            }
        }
    }

    /// Reads a script from a file, or from standard input if the path is `-`. Its paths are relative to the folder of the file, or to the
    /// current folder.
    ///
    /// # Errors
    /// [`ReadError`] if the file cannot be read, is a directory, is too long or is not UTF-8.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let name = printable(&path.display().to_string());
        let fail = |error: io::Error| {
            let help = where_it_starts(path, &error);
            ReadError::File(format!("{name}: error: cannot read the script: {error}{help}"))
        };
        let input: Box<dyn Read> = if is_stdin(path) {
            Box::new(io::stdin().lock())
        } else {
            let file = File::open(path).map_err(fail)?;
            if file.metadata().map_err(fail)?.is_dir() {
                return Err(ReadError::File(format!("{name}: error: this is a directory, expected a script file")));
            }
            Box::new(file)
        };
        let mut bytes = Vec::new();
        // One byte past the limit distinguishes a script that is too long from one that just fits.
        input.take(MAX_SOURCE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(fail)?;
        let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
        Self::from_bytes(name, folder, bytes)
    }

    /// The name in messages: the path as given, with control characters escaped.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A path of the script, as a path of this process, with the rank and the number of ranks in place of `{rank}` and `{world_size}`.
    #[must_use]
    pub fn resolve(&self, path: &str) -> PathBuf {
        if !path.contains('{') {
            return self.folder.join(path);
        }
        let (rank, size) = self.rank;
        self.folder.join(path.replace("{rank}", &rank.to_string()).replace("{world_size}", &size.to_string()))
    }

    /// The number of this rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank.0
    }

    /// Sets what `{rank}` and `{world_size}` stand for in names of files; 0 and 1 before.
    pub fn set_rank(&mut self, rank: usize, size: usize) {
        self.rank = (rank, size);
    }

    /// The text of a span; empty if the span is not one of this source.
    #[must_use]
    pub fn snippet(&self, span: Span) -> &str {
        self.text.get(span.start..span.end).unwrap_or_default()
    }

    /// Line and column of a byte offset; past the end means the end.
    #[must_use]
    pub fn position(&self, offset: usize) -> Position {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let line = self.line_starts.partition_point(|&start| start <= offset);
        // `line_starts` begins with 0, so at least one start is not past the offset.
        let start = self.line_starts[line - 1];
        let before = if self.is_ascii { offset - start } else { self.text[start..offset].chars().count() };
        Position { line, column: before + 1 }
    }

    /// The site of a part of the text, for the engine. `within` is the site of the `run` whose program has it.
    #[must_use]
    pub fn site(&self, span: Span, within: Option<Site>) -> Site {
        let Position { line, column } = self.position(span.start);
        // No script is longer than MAX_SOURCE_BYTES.
        let (line, column) = (line as u32, column as u32);
        self.sites.borrow_mut().insert((line, column), span);
        Site::in_text(&self.name, line, column, within)
    }

    /// The part of the text that has a site; `None` for a site of another text.
    #[must_use]
    pub fn span_of(&self, site: Site) -> Option<Span> {
        let is_here = site.is_in_text() && site.file() == self.name;
        self.sites.borrow().get(&(site.line(), site.column())).copied().filter(|_| is_here)
    }

    /// The text of a line (from 1), without its line end.
    #[must_use]
    pub fn line(&self, line: usize) -> &str {
        let Some(&start) = line.checked_sub(1).and_then(|index| self.line_starts.get(index)) else {
            return "";
        };
        let end = self.line_starts.get(line).map_or(self.text.len(), |next| next - 1);
        self.text[start..end].trim_end_matches('\r')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_characters_from_one() {
        let source = Source::from_text("a.svm", "", "ab\nçd\n");
        assert_eq!(source.position(0), Position { line: 1, column: 1 });
        assert_eq!(source.position(5), Position { line: 2, column: 2 });
        assert_eq!(source.position(99), Position { line: 3, column: 1 });
        assert_eq!(source.line(2), "çd");
        assert_eq!(source.line(7), "");
    }

    #[test]
    fn bytes_that_are_not_text_are_reported_at_their_place() {
        let Err(ReadError::Text(failure)) = Source::from_bytes("a", "", b"ok\nx \xff\xfe y".to_vec()) else {
            panic!("accepted bytes that are not UTF-8");
        };
        let (source, diagnostic) = *failure;
        assert_eq!(source.position(diagnostic.span.start), Position { line: 2, column: 3 });
        assert!(diagnostic.message.contains("0xff"), "{}", diagnostic.message);
    }

    #[test]
    fn a_script_over_the_limit_is_refused() {
        let bytes = vec![b' '; MAX_SOURCE_BYTES + 1];
        assert!(matches!(Source::from_bytes("a", "", bytes), Err(ReadError::File(_))));
    }
}
