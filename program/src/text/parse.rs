//! Parsing a program from text.

use std::str::FromStr;

use streamvm_instructions::{EngineRef, Error, InstructionList, ProgramError, Tensor};

use crate::ir::program::{Program, ValueRole};
use crate::record::engine::ADDRESS;
use crate::record::recording::Recording;

/// A line `feed x t0`, with its number in the text.
struct PortLine<'t> {
    line: usize,
    kind: &'t str,
    name: &'t str,
    tensor: &'t str,
}

impl Program {
    /// Parses a program from the text that it prints as, and checks it. The location of its steps is the caller of this function; through
    /// `str::parse` it is a line of the standard library. A text of more than 64 MiB, about 500,000 steps, is refused.
    ///
    /// ```
    /// let text = "program twice\nt0 = tensor cpu:0 f32[4]\n%0 call compute@cpu:0:0 add t0 t0 -> t1 f32[4]\nfeed x t0\nfetch y t1\n";
    /// let program = streamvm_program::Program::parse(text)?;
    /// assert_eq!(program.fetches[0].name, "y");
    /// # Ok::<(), streamvm_instructions::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ProgramError::Text`] with the first line that is not of a program; those of [`Program::check`] and of recording.
    #[track_caller]
    pub fn parse(text: &str) -> Result<Program, Error> {
        let (mut name, mut ports, mut list) = (None, Vec::new(), String::new());
        for (index, whole) in text.lines().enumerate() {
            let line = index + 1;
            let mut words = whole.split_whitespace();
            match words.next() {
                Some("program") => {
                    let rest = whole.trim_start().strip_prefix("program").unwrap_or_default().trim();
                    if name.replace(rest.to_owned()).is_some() {
                        return Err(wrong(line, "one line with the program's name", whole));
                    }
                }
                Some(kind @ ("feed" | "param" | "fetch")) => {
                    let (Some(name), Some(tensor), None) = (words.next(), words.next(), words.next()) else {
                        return Err(wrong(line, &format!("{kind}, a name and a tensor such as t0"), whole));
                    };
                    ports.push(PortLine { line, kind, name, tensor });
                }
                _ => list.push_str(whole),
            }
            // A line of its own for each line of the text, so that errors count as the text does.
            list.push('\n');
        }
        let name = name.ok_or_else(|| wrong(1, "a line with the program's name, such as `program step`", ""))?;
        let (list, tensor) = InstructionList::parse_with_names(&list)
            .map_err(|error| wrong(error.line, &error.expected, &error.found))?;
        let mut recording = Recording::new(EngineRef::new(&ADDRESS), name);
        let known = |port: &PortLine<'_>| -> Result<Tensor, Error> {
            let named = tensor(port.tensor);
            named.ok_or_else(|| wrong(port.line, "a tensor that a line of this text names", port.tensor))
        };
        for port in ports.iter().filter(|port| port.kind != "fetch") {
            let tensor = known(port)?;
            if tensor.is_view() || tensor.resource().is_of(recording.engine) {
                return Err(wrong(port.line, "a tensor that is no view, and no other feed or param", port.tensor));
            }
            let role: fn(usize) -> ValueRole = if port.kind == "feed" { ValueRole::Feed } else { ValueRole::Parameter };
            recording.add_given(port.name.to_owned(), tensor, role);
        }
        recording.add(&list)?;
        for port in ports.iter().filter(|port| port.kind == "fetch") {
            recording.add_fetch(port.name.to_owned(), &known(port)?, std::panic::Location::caller())?;
        }
        recording.program.check()?;
        Ok(recording.program)
    }
}

impl FromStr for Program {
    type Err = Error;

    #[track_caller]
    fn from_str(text: &str) -> Result<Program, Error> {
        Program::parse(text)
    }
}

fn wrong(line: usize, expected: &str, found: &str) -> Error {
    ProgramError::Text { line, expected: expected.to_owned(), found: found.to_owned() }.into()
}
