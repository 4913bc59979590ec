//! Reading instruction lists from text: the form that they print in.
//!
//! A parsed list is the same list: it prints as the text it came from, plans to the same waits, and runs, except for
//! functions, which are placeholders that check but refuse to run.
//!
//! Limits keep a hostile text from taking memory or time: bytes of the text and of a line, instructions, names and
//! operands. The last three matter because a few bytes of text make many of memory (`a = var` is a name, a handle and a
//! table entry); together they bound a list to a few hundred megabytes. Nothing here recurses, and what is unbounded
//! otherwise (a shape, a number) has the limits of its own type.

use std::panic::Location;
use std::str::FromStr;

use hashbrown::HashMap;
use streamvm_ep::{Access, DType, Extra, Layout, MemoryKind, Op, Params, Priority, Scalar, Shape};
use streamvm_stream::{StreamKey, StreamType, WaitKind};

use crate::check::check;
use crate::print::access_word;
use crate::{Ahead, BuildError, Event, InstructionList, Kind, Manner, OwnUse, Place, Role, Tensor, Use, Var, WaitFor};

/// The longest text that is read, in bytes: about 500,000 instructions.
const MAX_TEXT: usize = 64 << 20;

/// The longest line, in bytes: a function over some 50,000 tensors.
const MAX_LINE: usize = 1 << 20;

/// The most instructions: twice what the longest text holds of the form that lists print in.
const MAX_INSTRUCTIONS: usize = 1 << 20;

/// The most tensors, variables and events.
const MAX_NAMES: usize = 1 << 20;

/// The most operands, over all instructions: an instruction has two or three.
const MAX_USES: usize = 1 << 22;

/// Why a text is not an instruction list.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: expected {expected}, found {found:?}")]
pub struct ParseListError {
    /// The line of the text, from 1.
    pub line: usize,
    /// What would be right there.
    pub expected: String,
    /// What is there.
    pub found: String,
}

streamvm_ep::debug_as_display!(ParseListError);

impl InstructionList {
    /// Reads a list from text. Its instructions name the caller's line as where they were issued; `str::parse`
    /// cannot.
    ///
    /// # Errors
    /// The first line that is no instruction or declaration, and what would be right there.
    #[track_caller]
    pub fn parse(text: &str) -> Result<InstructionList, ParseListError> {
        let site = Location::caller();
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
        Ok(parser.list)
    }
}

impl FromStr for InstructionList {
    type Err = ParseListError;

    #[track_caller]
    fn from_str(text: &str) -> Result<InstructionList, ParseListError> {
        InstructionList::parse(text)
    }
}

/// The words of one line, with quoted text as one word.
struct Words<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Words<'a> {
    fn peek(&self) -> &'a str {
        self.rest.split_whitespace().next().unwrap_or("")
    }

    fn next(&mut self) -> &'a str {
        let text = self.rest.trim_start();
        let end = text.find(char::is_whitespace).unwrap_or(text.len());
        self.rest = &text[end..];
        &text[..end]
    }

    fn error(&self, expected: &str, found: &str) -> ParseListError {
        let found = found.chars().take(160).collect();
        ParseListError { line: self.line, expected: expected.to_owned(), found }
    }

    /// Refuses more than `most` of something.
    fn at_most(&self, most: usize, found: usize, what: &str) -> Result<(), ParseListError> {
        if found <= most { Ok(()) } else { Err(self.error(&format!("at most {most} {what}"), &found.to_string())) }
    }

    fn parse<T: FromStr>(&mut self, expected: &str) -> Result<T, ParseListError> {
        let word = self.next();
        word.parse().map_err(|_| self.error(expected, word))
    }

    fn expect(&mut self, word: &str) -> Result<(), ParseListError> {
        let found = self.next();
        if found == word { Ok(()) } else { Err(self.error(word, found)) }
    }

    /// Takes the word if it comes next.
    fn take(&mut self, word: &str) -> bool {
        let found = self.peek() == word;
        if found {
            self.next();
        }
        found
    }

    /// How a function is run, as it is printed.
    fn manner(&mut self) -> Manner {
        let priority = match self.take("high") {
            true => Priority::High,
            false if self.take("low") => Priority::Low,
            false => Priority::Normal,
        };
        let clean_up = self.take("cleanup");
        let ahead = match self.take("direct") {
            true => Ahead::Direct,
            false if self.take("first") => Ahead::First,
            false => Ahead::No,
        };
        Manner { priority, clean_up, ahead }
    }

    fn end(&mut self) -> Result<(), ParseListError> {
        self.expect("").map_err(|error| ParseListError { expected: "the end of the line".to_owned(), ..error })
    }

    /// A text in quotes, as `{:?}` writes it.
    fn quoted(&mut self) -> Result<String, ParseListError> {
        let text = self.rest.trim_start();
        let refuse = || self.error("a name in quotes", text);
        let mut chars = text.strip_prefix('"').ok_or_else(refuse)?.char_indices();
        let mut name = String::new();
        while let Some((at, char)) = chars.next() {
            match char {
                '"' => {
                    self.rest = &text[1 + at + 1..];
                    return Ok(name);
                }
                '\\' => name.push(unescape(&mut chars).ok_or_else(refuse)?),
                char => name.push(char),
            }
        }
        Err(refuse())
    }
}

fn unescape(chars: &mut std::str::CharIndices<'_>) -> Option<char> {
    Some(match chars.next()?.1 {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        '0' => '\0',
        'u' => {
            if chars.next()?.1 != '{' {
                return None;
            }
            let digits: String = chars.map(|(_, char)| char).take_while(|char| *char != '}').collect();
            char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?
        }
        char @ ('"' | '\'' | '\\') => char,
        _ => return None,
    })
}

/// `f32[2,3]`.
fn typed(words: &mut Words<'_>) -> Result<(DType, Shape), ParseListError> {
    const FORM: &str = "a type such as f32[2,3]";
    let word = words.next();
    let parse = || {
        let (dtype, dims) = word.strip_suffix(']')?.split_once('[')?;
        Some((dtype.parse().ok()?, Shape::new(&numbers(dims)?).ok()?))
    };
    parse().ok_or_else(|| words.error(FORM, word))
}

fn numbers(text: &str) -> Option<Vec<usize>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    text.split(',').map(|part| part.parse().ok()).collect()
}

/// The place before an operand's name, if there is one, and the name: `cuda:0:t1`.
fn split_prefix(word: &str) -> (Option<&str>, &str) {
    match word.rsplit_once(':') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, word),
    }
}

/// The page-locked memory that a word names.
fn page_locked(word: &str) -> Option<MemoryKind> {
    MemoryKind::ALL.into_iter().find(|memory| memory.is_page_locked() && memory.to_string() == word)
}

/// A prefix may be left out; one that is there must be true.
fn lives_at(words: &Words<'_>, tensor: &Tensor, prefix: Option<&str>, word: &str) -> Result<(), ParseListError> {
    let (place, memory) = (tensor.place().to_string(), tensor.memory());
    match prefix {
        Some(prefix) if prefix != place && page_locked(prefix) != Some(memory) => {
            Err(words.error(&format!("the place where the tensor lives, {place}"), word))
        }
        _ => Ok(()),
    }
}

struct Parser {
    list: InstructionList,
    site: &'static Location<'static>,
    tensors: HashMap<String, Tensor>,
    vars: HashMap<String, Var>,
    events: HashMap<String, Event>,
    /// Operands of all instructions so far.
    uses: usize,
}

impl Parser {
    fn new(site: &'static Location<'static>) -> Parser {
        let (tensors, vars, events) = Default::default();
        Parser { list: InstructionList::new(), site, tensors, vars, events, uses: 0 }
    }

    fn declaration(&mut self, words: &mut Words<'_>) -> Result<(), ParseListError> {
        let name = words.next().to_owned();
        words.expect("=").map_err(|error| {
            let expected = "an instruction such as %0, or a declaration such as t0 = …".to_owned();
            ParseListError { expected, found: name.clone(), ..error }
        })?;
        self.fresh(words, &name)?;
        match words.next() {
            "tensor" => {
                let place: Place = words.parse("a place such as host or cuda:0")?;
                let page_locked = page_locked(words.peek());
                if page_locked.is_some() {
                    words.next();
                }
                let memory = page_locked.unwrap_or(MemoryKind::Device);
                let (dtype, shape) = typed(words)?;
                self.tensors.insert(name, Tensor::unbound(place, memory, dtype, shape));
            }
            "view" => {
                let view = self.view(words)?;
                self.tensors.insert(name, view);
            }
            "var" => {
                self.vars.insert(name, Var::new());
            }
            "event" => {
                self.events.insert(name, Event::new());
            }
            other => return Err(words.error("tensor, view, var or event", other)),
        }
        words.end()
    }

    /// Whether `name` may be given to something new: one name, one thing.
    fn fresh(&self, words: &Words<'_>, name: &str) -> Result<(), ParseListError> {
        if !name.starts_with(|c: char| c.is_ascii_alphabetic())
            || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            return Err(words.error("a name of letters, digits and _ such as t0", name));
        }
        if self.tensors.contains_key(name) || self.vars.contains_key(name) || self.events.contains_key(name) {
            return Err(words.error("a name that is not declared yet", name));
        }
        let names = self.tensors.len() + self.vars.len() + self.events.len();
        words.at_most(MAX_NAMES, names + 1, "tensors, variables and events")
    }

    fn view(&mut self, words: &mut Words<'_>) -> Result<Tensor, ParseListError> {
        let owner = self.known_tensor(words)?;
        let (dtype, shape) = typed(words)?;
        if dtype != owner.dtype() {
            return Err(words.error(&format!("the owner's dtype {}", owner.dtype()), dtype.name()));
        }
        words.expect("strides")?;
        let before = words.rest;
        let text = if words.peek() == "offset" { "" } else { words.next() };
        let strides = numbers(text).ok_or_else(|| words.error("strides such as 128,1", before))?;
        words.expect("offset")?;
        let offset = words.parse("an offset in elements")?;
        let layout = Layout::with_strides(shape, &strides, offset).ok();
        let view = layout.and_then(|layout| owner.view(layout).ok());
        view.ok_or_else(|| words.error("a view within its storage", before))
    }

    fn known_tensor(&self, words: &mut Words<'_>) -> Result<Tensor, ParseListError> {
        let word = words.next();
        let (prefix, name) = split_prefix(word);
        let tensor = self.tensors.get(name).ok_or_else(|| words.error("a tensor named before", word))?;
        lives_at(words, tensor, prefix, word)?;
        Ok(tensor.clone())
    }

    fn known(&self, words: &mut Words<'_>, access: Access) -> Result<OwnUse, ParseListError> {
        match self.vars.get(words.peek()) {
            Some(var) => {
                words.next();
                Ok(match access {
                    Access::Read => var.read().hold(),
                    Access::Write => var.write().hold(),
                    Access::ReadWrite => var.update().hold(),
                })
            }
            None => Ok(Use::tensor(&self.known_tensor(words)?, access).hold()),
        }
    }

    /// `inputs -> output type`: the uses, and the output made if it is new.
    fn arrow(&mut self, words: &mut Words<'_>, home: Place, inputs: usize) -> Result<Vec<OwnUse>, ParseListError> {
        let mut uses = Vec::new();
        while words.peek() != "->" {
            if words.peek().is_empty() {
                return Err(words.error("-> and an output", ""));
            }
            uses.push(self.known_tensor(words)?.read().hold());
        }
        words.expect("->")?;
        if uses.len() != inputs {
            return Err(words.error(&format!("as many inputs as it takes ({inputs})"), &uses.len().to_string()));
        }
        let word = words.next();
        let (prefix, name) = split_prefix(word);
        let (dtype, shape) = typed(words)?;
        let output = match self.tensors.get(name) {
            Some(known) => {
                lives_at(words, known, prefix, word)?;
                known.clone()
            }
            None => {
                self.fresh(words, name)?;
                let (place, memory) = match prefix {
                    None => (home, MemoryKind::Device),
                    Some(prefix) if let Some(memory) = page_locked(prefix) => (home, memory),
                    Some(place) => {
                        let place = place.parse().map_err(|_| words.error("a place before the tensor's name", word))?;
                        (place, MemoryKind::Device)
                    }
                };
                let tensor = Tensor::unbound(place, memory, dtype, shape);
                self.tensors.insert(name.to_owned(), tensor.clone());
                tensor
            }
        };
        if output.dtype() != dtype || output.shape() != shape {
            let expected = format!("the output's type {}{}", output.dtype(), output.shape());
            return Err(words.error(&expected, &format!("{dtype}{shape}")));
        }
        uses.push(output.write().hold());
        Ok(uses)
    }

    fn instruction(&mut self, words: &mut Words<'_>) -> Result<(), ParseListError> {
        let number = format!("%{}", self.list.len());
        words.expect(&number)?;
        words.at_most(MAX_INSTRUCTIONS, self.list.len() + 1, "instructions")?;
        let word = words.next();
        let stream: StreamKey = words.parse("a stream such as compute@cpu:0:0")?;
        let home = Place::Device(stream.device);
        let mut uses = Vec::new();
        let mut manner = Manner::default();
        let kind = match word {
            "call" => {
                let op: Op = words.parse("the name of an op")?;
                let params = params(words)?;
                uses = self.arrow(words, home, op.arity())?;
                Kind::Call { op, params }
            }
            "copy" => {
                uses = self.arrow(words, home, 1)?;
                Kind::Copy
            }
            "fill" => {
                let value: Scalar = words.parse("a value such as 0.5, 3 or true")?;
                uses = self.arrow(words, home, 0)?;
                Kind::Fill(value)
            }
            "alloc" => {
                uses = self.arrow(words, home, 0)?;
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
            "fn" | "host" | "access" | "cuda" | "push" => {
                let role = match word {
                    "fn" => Role::Function,
                    "host" => Role::Host,
                    "cuda" => Role::Cuda,
                    "push" => Role::Push,
                    _ => Role::Access,
                };
                let name = words.quoted()?.into();
                manner = words.manner();
                match role {
                    Role::Function | Role::Cuda | Role::Push => {
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
        self.list.set_manner(manner);
        Ok(())
    }

    /// What is wrong, with the names that operands have in the text.
    #[cold]
    fn told(&self, error: &BuildError, uses: &[OwnUse]) -> String {
        let BuildError::Overlap { what, first, second, help } = error else { return error.to_string() };
        let name = |operand: &usize| {
            let used = uses.get(*operand).and_then(OwnUse::as_tensor)?;
            let same = |named: &Tensor| named.shares_storage(used) && named.layout() == used.layout();
            self.tensors.iter().filter(|(_, tensor)| same(tensor)).map(|(name, _)| name.as_str()).min()
        };
        match (name(first), name(second)) {
            (Some(written), Some(other)) => {
                format!("{what}: {written} is written and has elements in common with {other}; {help}")
            }
            _ => error.to_string(),
        }
    }

    fn declared_use(&self, words: &mut Words<'_>) -> Result<OwnUse, ParseListError> {
        let word = words.next();
        let access = [Access::Read, Access::Write, Access::ReadWrite].into_iter().find(|a| access_word(*a) == word);
        self.known(words, access.ok_or_else(|| words.error("read, write or update", word))?)
    }

    fn recorded(&mut self, words: &mut Words<'_>) -> Result<Event, ParseListError> {
        let name = words.next();
        if let Some(known) = self.events.get(name) {
            return Ok(known.clone());
        }
        self.fresh(words, name)?;
        let event = Event::new();
        self.events.insert(name.to_owned(), event.clone());
        Ok(event)
    }

    fn wait(&self, words: &mut Words<'_>, kind: WaitKind) -> Result<Kind, ParseListError> {
        let source = words.parse("the stream waited for")?;
        words.expect("by")?;
        let word = words.next();
        let refuse = || words.error("an event, an earlier line such as %3, or a number such as #7", word);
        let target = if let Some(line) = word.strip_prefix('%') {
            let line = line.parse().ok().filter(|line| *line < self.list.len());
            WaitFor::Line(line.ok_or_else(refuse)?)
        } else if let Some(number) = word.strip_prefix('#') {
            WaitFor::Number(number.parse().map_err(|_| refuse())?)
        } else {
            WaitFor::Event(self.events.get(word).cloned().ok_or_else(refuse)?)
        };
        Ok(Kind::Wait { source, target, kind })
    }
}

fn params(words: &mut Words<'_>) -> Result<Params, ParseListError> {
    let mut params = Params::default();
    if words.peek() == "axes" {
        words.next();
        params.axes = words.parse("axes such as 0,2")?;
    }
    if words.peek() == "keep" {
        words.next();
        params.keep_dims = true;
    }
    if words.peek() == "to" {
        words.next();
        params.to = Some(words.parse("a dtype")?);
    }
    if words.peek() == "before" {
        words.next();
        let before = words.parse("how many elements come before the input")?;
        words.expect("after")?;
        let after = words.parse("how many elements come after the input")?;
        words.expect("value")?;
        params.extra = Extra::Pad { before, after, value: words.parse("a value such as 0.5, 3 or true")? };
    }
    if words.peek() == "seed" {
        words.next();
        let seed = words.parse("a seed")?;
        words.expect("at")?;
        params.extra = Extra::Random { seed, counter: words.parse("the number of a block")? };
    }
    if words.peek() == "classes" {
        words.next();
        params.extra = Extra::Classes(words.parse("how many classes there are")?);
    }
    Ok(params)
}
