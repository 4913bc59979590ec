//! Parsing a program from text.

use std::ops::Range;
use std::str::FromStr;

use hashbrown::HashSet;
use streamvm_ep::Site;
use streamvm_instructions::{EngineRef, Error, Instruction, InstructionList, Kind, ProgramError, Tensor};
use streamvm_stream::StreamType;

use crate::ir::dims::{BoundedDim, MOST_DIMS, Sizes};
use crate::ir::formula::VaryingLayout;
use crate::ir::program::{Program, StepOrder, ValueId, ValueRole, Work};
use crate::record::engine::ADDRESS;
use crate::record::recording::Recording;
use crate::text::sizes::parse_size;

/// The longest text, in bytes.
const MOST_BYTES: usize = 64 << 20;

/// The most lines that begin or end blocks.
const MOST_MARKS: usize = 1 << 20;

/// A line such as `while t3` or `end`.
struct MarkLine<'t> {
    line: usize,
    work: Work,
    condition: Option<&'t str>,
    /// How many instructions of the list come before it.
    instructions: usize,
}

impl MarkLine<'_> {
    /// An error of the recording as one of this line.
    fn refused(&self, error: &Error) -> Error {
        let (word, condition) = (self.work.name(), self.condition.unwrap_or_default());
        let expected = match error {
            Error::Program { error, .. } => match &**error {
                ProgramError::NotRecordable { why, .. } => why.clone(),
                other => other.to_string(),
            },
            Error::NeverWritten { .. } => "a condition that a line before it writes".to_owned(),
            other => other.without_call(),
        };
        wrong(self.line, &expected, format!("{word} {condition}").trim_end())
    }
}

/// A line `order %0 to %2 before %4 to %5`: numbers of instructions, the last ones included.
struct OrderLine<'t> {
    line: usize,
    text: &'t str,
    earlier: [usize; 2],
    later: [usize; 2],
}

impl<'t> OrderLine<'t> {
    fn parse(line: usize, text: &'t str) -> Option<OrderLine<'t>> {
        let words: Vec<&str> = text.split_whitespace().skip(1).collect();
        let [first, "to", last, "before", begin, "to", end] = words[..] else { return None };
        let number = |word: &str| word.strip_prefix('%')?.parse().ok();
        let (earlier, later) = ([number(first)?, number(last)?], [number(begin)?, number(end)?]);
        (earlier[0] <= earlier[1] && earlier[1] < later[0] && later[0] <= later[1]).then_some(OrderLine {
            line,
            text,
            earlier,
            later,
        })
    }
}

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
        let site = Site::caller();
        Program::parse_text(text).map_err(|error| error.called_from(site))
    }

    fn parse_text(text: &str) -> Result<Program, Error> {
        if text.len() > MOST_BYTES {
            return Err(wrong(1, &format!("at most {MOST_BYTES} bytes"), &format!("{} bytes", text.len())));
        }
        let (mut name, mut ports, mut marks, mut list) = (None, Vec::new(), Vec::new(), String::new());
        let (mut orders, mut port_names) = (Vec::new(), HashSet::new());
        let (mut dims, mut sizes, mut varying) = (Vec::<BoundedDim>::new(), Sizes::new(), Vec::new());
        let mut instructions = 0;
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
                    if !port_names.insert((kind, name)) {
                        return Err(wrong(line, &format!("a name that no other {kind} has"), name));
                    }
                    ports.push(PortLine { line, kind, name, tensor });
                }
                Some("size") => {
                    let parsed = parse_size(&words.collect::<Vec<&str>>());
                    let parsed = parsed.filter(|(dim, _)| dims.iter().all(|other| other.name != dim.name));
                    let (dim, size) = parsed.filter(|_| dims.len() < MOST_DIMS).ok_or_else(|| {
                        let expected =
                            format!("one of at most {MOST_DIMS} sizes of other names, such as size rows 5 of 1 to 64");
                        wrong(line, &expected, whole)
                    })?;
                    dims.push(dim);
                    sizes.push(size);
                }
                Some("vary") => varying.push((line, whole)),
                Some("order") => {
                    let order = OrderLine::parse(line, whole);
                    let expected = "an order of earlier and later steps, such as order %0 to %2 before %4 to %5";
                    orders.push(order.ok_or_else(|| wrong(line, expected, whole))?);
                }
                Some(word @ ("if" | "while" | "else" | "end")) => {
                    let work = match word {
                        "if" => Work::If,
                        "while" => Work::While,
                        "else" => Work::Else,
                        _ => Work::End,
                    };
                    let condition = words.next();
                    let reads = matches!(work, Work::If | Work::While);
                    if condition.is_some() != reads || words.next().is_some() {
                        let expected = "if or while and a tensor such as t0, or else or end alone";
                        return Err(wrong(line, expected, whole));
                    }
                    if marks.len() == MOST_MARKS {
                        return Err(wrong(
                            line,
                            &format!("at most {MOST_MARKS} lines that begin or end blocks"),
                            whole,
                        ));
                    }
                    marks.push(MarkLine { line, work, condition, instructions });
                }
                first => {
                    // Each instruction is one line that begins with its number.
                    instructions += usize::from(first.is_some_and(|word| word.starts_with('%')));
                    list.push_str(whole);
                }
            }
            // A line of its own for each line of the text, so that errors count as the text does.
            list.push('\n');
        }
        let name = name.ok_or_else(|| wrong(1, "a line with the program's name, such as `program step`", ""))?;
        let (list, tensor) = InstructionList::parse_with_names(&list)
            .map_err(|error| wrong(error.line, &error.expected, &error.found))?;
        let mut recording = Recording::new(EngineRef::new(&ADDRESS), name, None);
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
            recording.add_given(port.name.to_owned(), tensor, role, Site::caller());
        }
        let mut added = 0;
        // For each instruction the number that the next step has before it, and the one after it: steps that begin or end blocks come from no instruction.
        let mut steps = Vec::with_capacity(list.instructions().len() + 1);
        let mut add = |recording: &mut Recording, lines: Range<usize>| {
            let begin = recording.program.steps.len();
            let is_step = |instruction: &Instruction| match instruction.kind {
                Kind::Call { .. } | Kind::Copy | Kind::Fill(_) | Kind::Function { .. } => true,
                Kind::SectionBegin(_) | Kind::SectionEnd(_) => true,
                // On the stream of sections it belongs to the section beside it.
                Kind::Touch => instruction.stream.stream_type != StreamType::Critical,
                _ => false,
            };
            steps.extend(list.instructions()[lines.clone()].iter().scan(begin, |next, instruction| {
                let number = *next;
                *next += usize::from(is_step(instruction));
                Some((number, *next))
            }));
            recording.add_part(&list, lines)
        };
        for mark in &marks {
            add(&mut recording, added..mark.instructions)?;
            added = mark.instructions;
            let unnamed = |name| wrong(mark.line, "a tensor that a line of this text names", name);
            let condition = mark.condition.map(|name| tensor(name).ok_or_else(|| unnamed(name))).transpose()?;
            let caller = Site::caller();
            recording.add_mark(mark.work.clone(), condition.as_ref(), caller).map_err(|error| mark.refused(&error))?;
        }
        add(&mut recording, added..list.instructions().len())?;
        for OrderLine { line, text, earlier, later } in orders {
            let range = |[first, last]: [usize; 2]| {
                let ((begin, _), (_, end)) = (*steps.get(first)?, *steps.get(last)?);
                (begin < end).then_some(begin..end)
            };
            let (Some(earlier), Some(later)) = (range(earlier), range(later)) else {
                return Err(wrong(line, "numbers of steps of this text", text));
            };
            recording.program.orders.push(StepOrder { earlier, later });
        }
        for port in ports.iter().filter(|port| port.kind == "fetch") {
            recording.add_fetch(port.name.to_owned(), &known(port)?, Site::caller())?;
        }
        let mut views = Vec::with_capacity(varying.len());
        for &(line, text) in &varying {
            let expected =
                "a tensor of this text, and a layout of formulas of the text's sizes, such as vary t1 [2*rows,4]";
            let parsed = || {
                let (name, layout) = text.trim_start().strip_prefix("vary")?.trim_start().split_once(' ')?;
                let (tensor, layout) = (tensor(name)?, VaryingLayout::parse(layout, &dims)?);
                let value = ValueId(tensor.resource().id_in(recording.engine).ok()??.index());
                Some(((value, *tensor.layout()), layout))
            };
            views.push(parsed().ok_or_else(|| wrong(line, expected, text))?);
        }
        let mut program = recording.program;
        program.set_varying(dims, &sizes, &views).map_err(|number| {
            let (line, text) = varying[number];
            wrong(
                line,
                "formulas of the layout that the tensor has for the sizes of this text, and of one for the bounds",
                text,
            )
        })?;
        program.check()?;
        if !program.dims.is_empty() && program.at_telling_sizes().is_none() {
            let first = text.lines().position(|line| line.trim_start().starts_with("size")).unwrap_or(0);
            let expected = "sizes of a program that has a text: some within the bounds, for which layouts that are not the same have other numbers";
            return Err(wrong(first + 1, expected, text.lines().nth(first).unwrap_or_default()));
        }
        Ok(program)
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
