//! Parses programs and their runs.

use std::sync::Arc;

use super::{
    Diagnostic, MAX_RANK, Parsed, Parser, Span, Spanned, Statement, StatementKind, TokenKind, function, is_reserved,
};
use crate::base::engine::MOST_DIMS;
use crate::syntax::ast::{Feed, FeedAxis, ProgramBlock, RunCall};

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
            self.check_sizes(&feeds, &feed)?;
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
        let sizes = feeds.iter().flat_map(|feed| bounded(feed).map(|(name, ..)| name.to_owned()));
        self.sizes = sizes.collect();
        let body = self.body(start);
        self.sizes.clear();
        let (span, body) = body?;
        Ok(Statement { span, kind: StatementKind::Program(Arc::new(ProgramBlock { name, feeds, fetches, body })) })
    }

    /// `(x f32 2 3 on acc)`
    #[inline(never)]
    fn feed(&mut self) -> Parsed<Feed> {
        let start = self.span();
        self.advance();
        let name = self.new_name("a name for the input")?;
        let dtype = self.dtype()?;
        let mut axes = Vec::new();
        while let Some(axis) = self.feed_axis()? {
            if axes.len() == MAX_RANK {
                return Err(Diagnostic::new(axis.span, format!("a tensor has at most {MAX_RANK} axes")));
            }
            axes.push(axis);
        }
        self.require_word("on").map_err(|error| error.with_help("an input is written `(x f32 2 3 on cpu:0)`"))?;
        let on = self.place()?;
        self.require(&TokenKind::Shut)?;
        Ok(Feed { name, dtype, axes, on, span: start.to(self.previous()) })
    }

    /// The next axis of an input: `64`, `batch..64` or `4..batch..64`.
    fn feed_axis(&mut self) -> Parsed<Option<Spanned<FeedAxis>>> {
        let start = self.span();
        let is_range = self.tokens.get(self.at + 1).is_some_and(|next| next.kind == TokenKind::Range);
        let mut least = 1;
        match self.peek() {
            TokenKind::Int(_) if !is_range => {
                return Ok(Some(Spanned::new(FeedAxis::Fixed(self.signed()?), start)));
            }
            TokenKind::Int(_) => {
                least = self.size("the smallest size")?;
                self.advance();
            }
            TokenKind::Word(_) if is_range => {}
            _ => return Ok(None),
        }
        let name = self.new_name("the name of a size")?;
        self.require(&TokenKind::Range)?;
        let most = self.size("the largest size")?;
        let span = start.to(self.previous());
        if least == 0 || most <= least {
            let message = format!("`{}` is {least} to {most}, and bounds are two sizes or more, from 1 on", name.value);
            return Err(Diagnostic::new(span, message)
                .with_help("write them so: `batch..64`, which begins at 1, or `4..batch..64`"));
        }
        Ok(Some(Spanned::new(FeedAxis::Bounded { name: name.value, least, most }, span)))
    }

    /// Checks the bounded sizes of an input beside those of the inputs before it: of one name, the bounds are the same.
    fn check_sizes(&self, before: &[Feed], feed: &Feed) -> Parsed<()> {
        let mut known: Vec<(&str, usize, usize)> = before.iter().flat_map(bounded).collect();
        for axis in &feed.axes {
            let FeedAxis::Bounded { name, least, most } = &axis.value else { continue };
            match known.iter().find(|(other, ..)| other == name) {
                Some(&(_, l, m)) if (l, m) != (*least, *most) => {
                    let message = format!("`{name}` is {least} to {most} here, and {l} to {m} before");
                    return Err(Diagnostic::new(axis.span, message));
                }
                Some(_) => {}
                None if known.len() == MOST_DIMS => {
                    let message =
                        format!("`{name}` is one bounded size more than the {MOST_DIMS} that a program can have");
                    return Err(Diagnostic::new(axis.span, message));
                }
                None => known.push((name, *least, *most)),
            }
        }
        Ok(())
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

/// The bounded sizes of an input: name, smallest and largest size.
fn bounded(feed: &Feed) -> impl Iterator<Item = (&str, usize, usize)> {
    feed.axes.iter().filter_map(|axis| match &axis.value {
        FeedAxis::Bounded { name, least, most } => Some((name.as_str(), *least, *most)),
        FeedAxis::Fixed(_) => None,
    })
}

fn twice(name: &Spanned<String>) -> Diagnostic {
    Diagnostic::new(name.span, format!("`{}` is named twice", name.value)).with_help("each needs a name of its own")
}
