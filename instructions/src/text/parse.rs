//! Parsing instruction lists from the text that they print as.
//!
//! A parsed list equals the printed list: it prints as the same text, plans to the same waits, and runs. The exception are
//! functions, which become placeholders: they are checked like functions, but an engine refuses to run them.
//!
//! Limits keep hostile text from taking too much memory or time. They bound the bytes of the text and of a line, and the numbers of
//! instructions, names and operands. The last three matter because a few bytes of text become many bytes of memory (`a = var` is a
//! name, a handle and a table entry); together they bound a list to a few hundred megabytes. The parser does not recurse, and
//! values without a limit here (a shape, a number) have the limits of their own type.

use std::str::FromStr;

use streamvm_ep::{Access, Op, Scalar, Site};
use streamvm_stream::{StreamKey, StreamType, WaitKind};

use crate::list::check::check;
use crate::list::instruction_list::InstructionList;
use crate::list::kind::{Kind, LaunchOptions, Role};
use crate::place::Place;
use crate::tensor::handle::Tensor;
use crate::tensor::uses::OwnUse;
use crate::text::parser::Parser;
use crate::text::print::access_word;
use crate::text::words::{ParseListError, Words, params};

/// The longest text, in bytes: about 500,000 instructions.
const MAX_TEXT: usize = 64 << 20;

/// The longest line, in bytes: a function over some 50,000 tensors.
const MAX_LINE: usize = 1 << 20;

/// The most instructions: twice as many as fit in the longest text in the form that lists print in.
const MAX_INSTRUCTIONS: usize = 1 << 20;

/// The most operands of all instructions together. An instruction mostly has two or three.
const MAX_USES: usize = 1 << 22;

impl InstructionList {
    /// Parses a list from text. The location of its instructions is the caller of this function; with `str::parse` it is not.
    ///
    /// # Errors
    /// The first line that is not an instruction or a declaration, and what was expected there.
    #[track_caller]
    pub fn parse(text: &str) -> Result<InstructionList, ParseListError> {
        InstructionList::parse_with_names(text).map(|(list, _)| list)
    }

    /// [`InstructionList::parse`] that also returns a function from names to the tensors that the text gives them.
    ///
    /// # Errors
    /// As [`InstructionList::parse`].
    #[track_caller]
    pub fn parse_with_names(
        text: &str,
    ) -> Result<(InstructionList, impl Fn(&str) -> Option<Tensor> + use<>), ParseListError> {
        let site = Site::caller();
        if text.len() > MAX_TEXT {
            let expected = format!("at most {MAX_TEXT} bytes");
            return Err(ParseListError { line: 1, expected, found: format!("{} bytes", text.len()) });
        }
        let mut parser = Parser::new(site);
        for (index, line) in text.lines().enumerate() {
            let mut words = Words { rest: line, line: index + 1 };
            words.at_most(MAX_LINE, line.len(), "bytes in a line")?;
            match words.peek() {
                "" => {}
                word if word.starts_with('%') => parser.instruction(&mut words)?,
                _ => parser.declaration(&mut words)?,
            }
        }
        Ok((parser.list, move |name: &str| parser.tensors.get(name).cloned()))
    }
}

impl FromStr for InstructionList {
    type Err = ParseListError;

    #[track_caller]
    fn from_str(text: &str) -> Result<InstructionList, ParseListError> {
        InstructionList::parse(text)
    }
}

impl Parser {
    fn instruction(&mut self, words: &mut Words<'_>) -> Result<(), ParseListError> {
        let number = format!("%{}", self.list.len());
        words.expect(&number)?;
        words.at_most(MAX_INSTRUCTIONS, self.list.len() + 1, "instructions")?;
        let word = words.next();
        let stream: StreamKey = words.parse("a stream such as compute@cpu:0:0")?;
        let home = Place::Device(stream.device);
        let mut uses = Vec::new();
        let mut launch = LaunchOptions::default();
        let kind = match word {
            "call" => {
                let op: Op = words.parse("the name of an op (one of your own must be registered)")?;
                let mut params = params(words)?;
                uses = self.arrow(words, home, op.arity(), Some(&mut params))?;
                Kind::Call { op, params }
            }
            "copy" => {
                uses = self.arrow(words, home, 1, None)?;
                Kind::Copy
            }
            "fill" => {
                let value: Scalar = words.parse("a value such as 0.5, 3 or true")?;
                uses = self.arrow(words, home, 0, None)?;
                Kind::Fill(value)
            }
            "alloc" => {
                uses = self.arrow(words, home, 0, None)?;
                Kind::Allocate
            }
            "release" => {
                let used = self.known(words, Access::Write)?;
                uses.push(used.as_tensor().map_or(used.seen(), |tensor| tensor.owner().write()).hold());
                Kind::Release
            }
            "touch" => {
                while !words.peek().is_empty() {
                    let update = words.peek() == access_word(Access::ReadWrite);
                    uses.push(if update { self.declared_use(words)? } else { self.known(words, Access::Read)? });
                }
                Kind::Touch
            }
            "fn" | "host" | "access" | "cuda" | "program" | "push" => {
                let role = match word {
                    "fn" => Role::Function,
                    "host" => Role::Host,
                    "cuda" => Role::Cuda,
                    "program" => Role::Program,
                    "push" => Role::Push,
                    _ => Role::Access,
                };
                let name = words.quoted()?.into();
                launch = words.launch();
                match role {
                    Role::Function | Role::Cuda | Role::Program | Role::ProgramWithCode | Role::Blocks | Role::Push => {
                        while !words.peek().is_empty() {
                            uses.push(self.declared_use(words)?);
                        }
                    }
                    Role::Access => uses.push(self.declared_use(words)?),
                    Role::Host => {}
                }
                Kind::Function { role, name, body: None }
            }
            "record" => Kind::Record(self.recorded(words)?),
            "wait" | "hostwait" => {
                let kind = if word == "wait" { WaitKind::Device } else { WaitKind::Host };
                self.wait(words, kind)?
            }
            "barrier" => {
                let calls = !words.peek().is_empty();
                let name = if calls { words.quoted()?.into() } else { "barrier".into() };
                Kind::Barrier { name, body: None, calls }
            }
            "sync" => Kind::GlobalSync,
            "begin" | "end" => {
                let kind = self.section(words, word == "begin")?;
                if let Kind::SectionBegin(section) | Kind::SectionEnd(section) = &kind {
                    uses = section.uses().map(|u| u.hold()).collect();
                }
                kind
            }
            other => return Err(words.error("a kind of instruction such as call, copy or wait", other)),
        };
        words.end()?;
        self.uses += uses.len();
        words.at_most(MAX_USES, self.uses, "operands")?;
        let fits = match kind {
            Kind::Barrier { .. } | Kind::GlobalSync => stream.stream_type == StreamType::Barrier,
            Kind::Record(_) | Kind::Wait { .. } => true,
            _ => stream.stream_type != StreamType::Barrier,
        };
        if !fits {
            let expected = "barriers and syncs on a barrier stream, and other work elsewhere";
            return Err(words.error(expected, &format!("{word} on {stream}")));
        }
        if let Err(error) = check(stream, &kind, &uses) {
            return Err(words.error("an instruction that fits its operands", &self.told(&error, &uses)));
        }
        self.list.push_unchecked(stream, kind, uses.iter().map(OwnUse::seen), self.site);
        self.list.set_launch_options(launch);
        Ok(())
    }
}
