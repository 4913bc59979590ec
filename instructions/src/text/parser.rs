//! The state of the parser: the names declared so far, and the operands that they refer to.

use hashbrown::HashMap;
use streamvm_ep::{Access, Layout, MemoryKind, Params, Scalar, Site};
use streamvm_stream::WaitKind;

use crate::engine::event::Event;
use crate::error::build_error::BuildError;
use crate::list::instruction_list::InstructionList;
use crate::list::kind::{Kind, WaitFor};
use crate::place::Place;
use crate::tensor::critical::{Critical, Section};
use crate::tensor::handle::Tensor;
use crate::tensor::uses::{OwnUse, Use};
use crate::tensor::var::Var;
use crate::text::print::access_word;
use crate::text::words::{ParseListError, Words, numbers, typed};

/// The most tensors, variables and events together.
const MAX_NAMES: usize = 1 << 20;

/// Splits an operand into the place before its name, if there is one, and the name: `cuda:0:t1`.
fn split_prefix(word: &str) -> (Option<&str>, &str) {
    match word.rsplit_once(':') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, word),
    }
}

/// The kind of page-locked memory with this name.
fn page_locked(word: &str) -> Option<MemoryKind> {
    MemoryKind::ALL.into_iter().find(|memory| memory.is_page_locked() && memory.to_string() == word)
}

/// Checks the prefix of an operand. It may be left out; if it is there, it must be the place or memory of the tensor.
fn lives_at(words: &Words<'_>, tensor: &Tensor, prefix: Option<&str>, word: &str) -> Result<(), ParseListError> {
    let (place, memory) = (tensor.place().to_string(), tensor.memory());
    match prefix {
        Some(prefix) if prefix != place && page_locked(prefix) != Some(memory) => {
            Err(words.error(&format!("the place where the tensor lives, {place}"), word))
        }
        _ => Ok(()),
    }
}

pub(super) struct Parser {
    pub(super) list: InstructionList,
    pub(super) site: Site,
    pub(super) tensors: HashMap<String, Tensor>,
    vars: HashMap<String, Var>,
    criticals: HashMap<String, Critical>,
    /// The critical section that is open, with the names of its resources.
    section: Option<(Section, Vec<String>)>,
    events: HashMap<String, Event>,
    /// The number of operands of all instructions so far.
    pub(super) uses: usize,
}

impl Parser {
    pub(super) fn new(site: Site) -> Parser {
        let (tensors, vars, criticals, events) = Default::default();
        Parser { list: InstructionList::new(), site, tensors, vars, criticals, section: None, events, uses: 0 }
    }

    pub(super) fn declaration(&mut self, words: &mut Words<'_>) -> Result<(), ParseListError> {
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
            "critical" => {
                let critical = Critical::new(words.quoted()?);
                self.criticals.insert(name, critical);
            }
            "event" => {
                self.events.insert(name, Event::new());
            }
            other => return Err(words.error("tensor, view, var, critical or event", other)),
        }
        words.end()
    }

    /// Checks that `name` is a valid name that is not in use.
    fn fresh(&self, words: &Words<'_>, name: &str) -> Result<(), ParseListError> {
        if !name.starts_with(|c: char| c.is_ascii_alphabetic())
            || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            return Err(words.error("a name of letters, digits and _ such as t0", name));
        }
        let known = self.tensors.contains_key(name) || self.vars.contains_key(name) || self.events.contains_key(name);
        if known || self.criticals.contains_key(name) {
            return Err(words.error("a name that is not declared yet", name));
        }
        let names = self.tensors.len() + self.vars.len() + self.criticals.len() + self.events.len();
        words.at_most(MAX_NAMES, names + 1, "tensors, variables, critical resources and events")
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

    pub(super) fn known(&self, words: &mut Words<'_>, access: Access) -> Result<OwnUse, ParseListError> {
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

    /// Parses `inputs -> output type` and returns the uses. Makes the output if its name is new. Numbers among the inputs go into `params`; without these, all are
    /// tensors.
    pub(super) fn arrow(
        &mut self,
        words: &mut Words<'_>,
        home: Place,
        inputs: usize,
        mut params: Option<&mut Params>,
    ) -> Result<Vec<OwnUse>, ParseListError> {
        let (mut uses, mut place) = (Vec::new(), 0);
        while words.peek() != "->" {
            if words.peek().is_empty() {
                return Err(words.error("-> and an output", ""));
            }
            // A tensor may have a name that is a number too, such as `inf`.
            let number = words.peek().parse::<Scalar>().ok().filter(|_| !self.tensors.contains_key(words.peek()));
            match (&mut params, number) {
                (Some(params), Some(number)) => {
                    words.next();
                    **params = params.with_number(place, number);
                }
                _ => uses.push(self.known_tensor(words)?.read().hold()),
            }
            place += 1;
        }
        words.expect("->")?;
        if place != inputs {
            return Err(words.error(&format!("as many inputs as it takes ({inputs})"), &place.to_string()));
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

    /// The text of an error, with the names that the operands have in the parsed text.
    #[cold]
    pub(super) fn told(&self, error: &BuildError, uses: &[OwnUse]) -> String {
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

    /// Parses the resources of a section that begins, or of the one that ends.
    pub(super) fn section(&mut self, words: &mut Words<'_>, begins: bool) -> Result<Kind, ParseListError> {
        let mut names = Vec::new();
        let mut resources = Vec::new();
        while !words.peek().is_empty() {
            let name = words.next();
            let known = self.criticals.get(name);
            resources.push(known.ok_or_else(|| words.error("a critical resource named before", name))?.clone());
            names.push(name.to_owned());
        }
        if begins {
            let section = Section::new(resources, false);
            self.section = Some((section.clone(), names));
            return Ok(Kind::SectionBegin(section));
        }
        match self.section.take() {
            Some((section, begun)) if begun == names => Ok(Kind::SectionEnd(section)),
            Some((_, begun)) => {
                Err(words.error(&format!("the resources of the open section, {}", begun.join(" ")), &names.join(" ")))
            }
            None => Err(words.error("the end of a section that a line before begins", &names.join(" "))),
        }
    }

    pub(super) fn declared_use(&self, words: &mut Words<'_>) -> Result<OwnUse, ParseListError> {
        let word = words.next();
        let access = [Access::Read, Access::Write, Access::ReadWrite].into_iter().find(|a| access_word(*a) == word);
        self.known(words, access.ok_or_else(|| words.error("read, write or update", word))?)
    }

    pub(super) fn recorded(&mut self, words: &mut Words<'_>) -> Result<Event, ParseListError> {
        let name = words.next();
        if let Some(known) = self.events.get(name) {
            return Ok(known.clone());
        }
        self.fresh(words, name)?;
        let event = Event::new();
        self.events.insert(name.to_owned(), event.clone());
        Ok(event)
    }

    pub(super) fn wait(&self, words: &mut Words<'_>, kind: WaitKind) -> Result<Kind, ParseListError> {
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
