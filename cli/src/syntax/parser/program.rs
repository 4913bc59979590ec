//! Parses programs and their runs.

use std::sync::Arc;

use super::{
    Diagnostic, MAX_RANK, Parsed, Parser, Span, Spanned, Statement, StatementKind, TokenKind, function, is_reserved,
};
use crate::syntax::ast::{Feed, ProgramBlock, RunCall};

impl Parser {
    /// `program layer (x f32 2 3 on acc) -> y { ... }`
    #[inline(never)]
    pub(super) fn program(&mut self, start: Span) -> Parsed<Statement> {
        self.advance();
        let name = self.new_name("a name for the program")?;
        let mut feeds: Vec<Feed> = Vec::new();
        let is_empty = self.take_empty_parentheses();
        while !is_empty && *self.peek() == TokenKind::Open {
            let feed = self.feed()?;
            if feeds.iter().any(|other| other.name.value == feed.name.value) {
                return Err(twice(&feed.name));
            }
            feeds.push(feed);
        }
        let mut fetches = Vec::new();
        if self.take(&TokenKind::Arrow) {
            fetches.push(self.new_name("the name of a result")?);
            while self.name_follows() {
                fetches.push(self.other_name(&fetches, "the name of a result")?);
            }
        }
        if *self.peek() != TokenKind::Begin {
            return Err(self.expected(if fetches.is_empty() {
                "an input such as `(x f32 2 3 on cpu:0)`, `->` and the names of results, or `{`"
            } else {
                "the name of a result, or `{`"
            }));
        }
        let (span, body) = self.body(start)?;
        Ok(Statement { span, kind: StatementKind::Program(Arc::new(ProgramBlock { name, feeds, fetches, body })) })
    }

    /// `(x f32 2 3 on acc)`
    #[inline(never)]
    fn feed(&mut self) -> Parsed<Feed> {
        let start = self.span();
        self.advance();
        let name = self.new_name("a name for the input")?;
        let dtype = self.dtype()?;
        let dims = self.integers(MAX_RANK)?;
        self.require_word("on").map_err(|error| error.with_help("an input is written `(x f32 2 3 on cpu:0)`"))?;
        let on = self.place()?;
        self.require(&TokenKind::Shut)?;
        Ok(Feed { name, dtype, dims, on, span: start.to(self.previous()) })
    }

    /// `run layer x (relu y) on lane 1`; the results are bound to `names`.
    #[inline(never)]
    pub(super) fn run(&mut self, names: Vec<Spanned<String>>) -> Parsed<StatementKind> {
        self.advance();
        let program = self.used_name("the name of a program")?;
        if is_reserved(&program.value) {
            return Err(Diagnostic::new(
                program.span,
                format!("expected the name of a program, found `{}`", program.value),
            ));
        }
        let mut feeds = Vec::new();
        let is_empty = self.take_empty_parentheses();
        // A function without parentheses is no operand, which `atom` says.
        while !is_empty && (self.operand_follows() || self.peek_word().is_some_and(|word| function(word).is_some())) {
            feeds.push(self.atom("an input")?);
        }
        Ok(StatementKind::Run(RunCall { names, program, feeds, lane: self.lane()? }))
    }

    /// Passes over `()`, which stands for no inputs. Returns whether it is there.
    fn take_empty_parentheses(&mut self) -> bool {
        let next = self.tokens.get(self.at + 1).map(|token| &token.kind);
        let is_empty = *self.peek() == TokenKind::Open && next == Some(&TokenKind::Shut);
        if is_empty {
            self.advance();
            self.advance();
        }
        is_empty
    }

    /// Is the next token a word that can be a name?
    pub(super) fn name_follows(&self) -> bool {
        self.peek_word().is_some_and(|word| !is_reserved(word))
    }

    /// Another name beside those before it.
    pub(super) fn other_name(&mut self, before: &[Spanned<String>], what: &str) -> Parsed<Spanned<String>> {
        let name = self.new_name(what)?;
        if before.iter().any(|other| other.value == name.value) { Err(twice(&name)) } else { Ok(name) }
    }
}

fn twice(name: &Spanned<String>) -> Diagnostic {
    Diagnostic::new(name.span, format!("`{}` is named twice", name.value)).with_help("each needs a name of its own")
}
