//! `--dump-ir`: the file of the instruction lists that a command submits or plans.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::base::engine::InstructionList;
use crate::base::printable::printable;
use crate::files::output::OutputFile;

/// The file of the instruction lists.
pub struct Dump {
    output: OutputFile,
    file: BufWriter<File>,
    lists: u64,
}

impl Dump {
    /// Begins the file, which appears in its place once it is [finished](Dump::finish).
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path) -> io::Result<Self> {
        let output = OutputFile::create(path)?;
        // Each list is written out at once, so the file has all lists so far whenever a signal ends the run.
        output.unfinished().keep(&format!("{}: the instruction list", printable(&path.display().to_string())));
        Ok(Self { file: BufWriter::new(output.file()?), output, lists: 0 })
    }

    /// Puts the file in its place.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        self.output.finish()
    }

    /// Writes the only list of a file: the whole file then parses as one list.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn whole(&mut self, list: &InstructionList) -> io::Result<()> {
        write!(self.file, "{list}")?;
        self.file.flush()
    }

    /// Writes down a run of an executable, between the lists.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn run(&mut self, program: &str) -> io::Result<()> {
        writeln!(self.file, "# run {program}")?;
        self.file.flush()
    }

    /// Writes one list of several, under a heading that begins with `#`. The list is in the temporary file when this returns, so that an
    /// interrupted run keeps the submitted lists.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn next(&mut self, list: &InstructionList) -> io::Result<()> {
        self.lists += 1;
        writeln!(self.file, "# list {}", self.lists)?;
        self.whole(list)
    }
}
