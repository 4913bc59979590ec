//! Turns tokens into statements, by recursive descent.
//!
//! After an error the parser goes on with the next line, so that one run reports every wrong line. A script with an error is not
//! executed. [`MAX_NESTING`] bounds the depth, because recursion follows the nesting of the script, and the use of stack must not
//! depend on the input.

mod expr;
mod network;
mod program;
mod ranks;
mod sizes;

use crate::base::engine::{DType, DeviceId, MAX_RANK};
use crate::base::spelling::did_you_mean;
use crate::syntax::ast::{Block, Expr, ExprKind, Number, PlaceRef, SliceSpec, Statement, StatementKind, Target};
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::functions::{First, Function, first_word, first_words, function, functions, is_reserved};
use crate::syntax::habits;
use crate::syntax::lexer::{MAX_ERRORS, Token, TokenKind, tokenize};
use crate::syntax::source::{Source, Span, Spanned};

/// Deepest nesting of blocks and parentheses together. Each level costs a few hundred bytes of stack here, in the checker and in the
/// executor; written scripts nest less than ten deep.
pub const MAX_NESTING: usize = 64;

/// Largest count of a `repeat`.
pub const MAX_REPEAT: u64 = 1_000_000_000;

/// Highest lane number. A lane is a stream with its own queue; 64 lanes are enough for the largest machines.
pub const MAX_LANE: u32 = 63;

/// The result of a parsing step. After an error the rest of the line is skipped.
type Parsed<T> = Result<T, Diagnostic>;

/// Parses a script.
///
/// # Errors
/// Every syntax error found, at least one, in no particular order.
pub fn parse(source: &Source) -> Result<Block, Vec<Diagnostic>> {
    let (tokens, errors) = tokenize(source);
    let mut parser = Parser { tokens, at: 0, depth: 0, text_follows: false, called: None, sizes: Vec::new(), errors };
    let script = parser.block(None);
    if parser.errors.is_empty() { Ok(script) } else { Err(first_of_lines(parser.errors, source)) }
}

/// The first error of each line: those after it mostly follow from it.
fn first_of_lines(mut errors: Vec<Diagnostic>, source: &Source) -> Vec<Diagnostic> {
    errors.sort_by_key(|error| error.span.start);
    errors.dedup_by_key(|error| source.position(error.span.start).line);
    errors
}

struct Parser {
    /// Never empty; the last token is `Eof`, and the parser never moves past it.
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    /// May a text follow this expression? Otherwise a text after a name is an operand of a misspelt call.
    text_follows: bool,
    /// The last call of the statement.
    called: Option<Function>,
    /// The names of the bounded sizes of the program whose block this is.
    sizes: Vec<String>,
    errors: Vec<Diagnostic>,
}

impl Parser {
    fn peek(&self) -> &TokenKind {
        &self.tokens[self.at].kind
    }

    fn span(&self) -> Span {
        self.tokens[self.at].span
    }

    /// The span of the token before the current one.
    fn previous(&self) -> Span {
        self.tokens[self.at.saturating_sub(1)].span
    }

    fn advance(&mut self) {
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
    }

    fn take(&mut self, kind: &TokenKind) -> bool {
        let found = self.peek() == kind;
        if found {
            self.advance();
        }
        found
    }

    fn peek_word(&self) -> Option<&str> {
        if let TokenKind::Word(word) = self.peek() { Some(word) } else { None }
    }

    fn at_word(&self, word: &str) -> bool {
        self.peek_word() == Some(word)
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = self.at_word(word);
        if found {
            self.advance();
        }
        found
    }

    // Messages are made out of line, because functions that recurse make them.
    #[cold]
    #[inline(never)]
    fn expected(&self, what: &str) -> Diagnostic {
        Diagnostic::new(self.span(), format!("expected {what}, found {}", self.peek().describe()))
    }

    fn require(&mut self, kind: &TokenKind) -> Parsed<()> {
        if self.take(kind) { Ok(()) } else { Err(self.expected(&kind.describe())) }
    }

    fn require_word(&mut self, word: &str) -> Parsed<()> {
        if self.take_word(word) { Ok(()) } else { Err(self.expected(&format!("`{word}`"))) }
    }

    #[cold]
    #[inline(never)]
    fn report_at(&mut self, span: Span, message: &str) {
        self.report(Diagnostic::new(span, message));
    }

    #[cold]
    #[inline(never)]
    fn report(&mut self, error: Diagnostic) {
        // The lexer has already recorded a message about this line.
        if *self.peek() != TokenKind::Bad && self.errors.len() < MAX_ERRORS {
            self.errors.push(error);
        }
    }

    /// Statements up to the end of the script, or up to the `}` that closes the block at `opened`.
    fn block(&mut self, opened: Option<Span>) -> Block {
        let mut statements = Vec::new();
        loop {
            while self.take(&TokenKind::Newline) {}
            match (self.peek(), opened) {
                (TokenKind::Eof, None) => return statements,
                (TokenKind::Eof, Some(span)) => {
                    let help = "write a `}` after its last statement, on a line of its own";
                    self.report(Diagnostic::new(span, "this block has no closing `}`").with_help(help));
                    return statements;
                }
                (TokenKind::End, Some(_)) => {
                    self.advance();
                    return statements;
                }
                (TokenKind::End, None) => {
                    self.report_at(self.span(), "this `}` closes no block");
                    self.advance();
                    continue;
                }
                _ => {}
            }
            match self.statement() {
                Ok(statement) => {
                    statements.push(statement);
                    if !matches!(self.peek(), TokenKind::Newline | TokenKind::End | TokenKind::Eof) {
                        self.report_rest_of_line();
                    }
                }
                Err(error) => self.report_line(error),
            }
        }
    }

    #[inline(never)]
    fn report_rest_of_line(&mut self) {
        let error = self.expected("the end of the line").with_help_if(self.habit_after_a_statement());
        self.report(error);
        self.skip_line();
    }

    /// Says what the next token, which belongs to no statement, is for in other languages.
    fn habit_after_a_statement(&self) -> Option<String> {
        let habit = match self.peek() {
            TokenKind::Same => Some("`eq x y` compares each element; `expect x == y` checks that all are equal"),
            TokenKind::Word(word) => habits::of_statement(word),
            _ => None,
        };
        habit.map(str::to_owned).or_else(|| self.called.map(Function::written))
    }

    #[inline(never)]
    fn report_line(&mut self, error: Diagnostic) {
        self.report(error);
        self.skip_line();
    }

    /// Skips the rest of a broken line. If the line opens blocks, they are skipped as well, so that their ends match.
    fn skip_line(&mut self) {
        let mut open: Vec<Span> = Vec::new();
        while !matches!(self.peek(), TokenKind::Newline | TokenKind::Eof) {
            match self.peek() {
                TokenKind::Begin => open.push(self.span()),
                TokenKind::End if open.pop().is_none() => return,
                _ => {}
            }
            self.advance();
        }
        // One broken line can open many blocks; a loop finds as many ends, without recursion.
        let mut depth = open.len();
        loop {
            while depth > 0 && *self.peek() != TokenKind::Eof {
                match self.peek() {
                    TokenKind::Begin => depth += 1,
                    TokenKind::End => depth -= 1,
                    _ => {}
                }
                self.advance();
            }
            // The next block of a broken `if`.
            let closed = self.at.checked_sub(1).is_some_and(|before| self.tokens[before].kind == TokenKind::End);
            if !closed || !self.else_follows() {
                return;
            }
            self.at = self.after_newlines();
            while !matches!(self.peek(), TokenKind::Begin | TokenKind::Newline | TokenKind::Eof) {
                self.advance();
            }
            if self.take(&TokenKind::Begin) {
                depth = 1;
            }
        }
    }

    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= MAX_NESTING {
            return Err(Diagnostic::new(
                self.span(),
                format!("blocks and parentheses are nested deeper than {MAX_NESTING}"),
            ));
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    // Statements with blocks call this function again for each level of nesting, so its frame is small: the other statements are
    // parsed by a function of their own, which is not inlined.
    #[inline(never)]
    fn statement(&mut self) -> Parsed<Statement> {
        let start = self.span();
        self.called = None;
        match self.peek_word().and_then(first_word) {
            Some(First::Repeat | First::Time | First::Scope) => self.blocks(start),
            Some(First::While) => self.while_(start),
            Some(First::If) => self.if_(start),
            Some(First::Program) => self.program(start),
            first => self.line(first, start),
        }
    }

    /// A statement without a block.
    #[inline(never)]
    fn line(&mut self, first: Option<First>, start: Span) -> Parsed<Statement> {
        let kind = match first {
            Some(First::Device) => self.device()?,
            Some(First::Let) => self.binding()?,
            Some(First::Print) => self.print()?,
            Some(First::Save) => self.save()?,
            Some(First::Expect) => self.expect()?,
            Some(First::Run) => self.run(Vec::new())?,
            Some(First::AllReduce) => self.all_reduce()?,
            Some(First::Broadcast) => self.broadcast()?,
            Some(First::Fill) if !self.next_is_dtype() => self.refill()?,
            _ => match self.peek_word() {
                Some(word) if function(word).is_some() => self.write_statement()?,
                Some(_) => return Err(self.unknown_statement(start)),
                None => return Err(self.expected("a statement")),
            },
        };
        Ok(Statement { span: start.to(self.previous()), kind })
    }

    #[inline(never)]
    fn save(&mut self) -> Parsed<StatementKind> {
        self.advance();
        self.text_follows = true;
        let value = self.expr();
        self.text_follows = false;
        let value = value?;
        Ok(StatementKind::Save { value, path: self.text("the path of the file in quotes")? })
    }

    /// `let y = relu x`, `let y z = run layer x`
    #[inline(never)]
    fn binding(&mut self) -> Parsed<StatementKind> {
        self.advance();
        let name = self.new_name("a name for the tensor")?;
        let mut names = vec![name.clone()];
        while self.name_follows() {
            names.push(self.other_name(&names, "a name for the tensor")?);
        }
        self.require(&TokenKind::Equals).map_err(|error| error.with_help("a binding is written `let y = relu x`"))?;
        if self.at_word("run") {
            return self.run(names);
        }
        if let Some(second) = names.get(1) {
            return Err(Diagnostic::new(
                second.span,
                "one name is expected here, because only `run` gives several tensors",
            ));
        }
        Ok(StatementKind::Let { name, value: self.expr()? })
    }

    #[inline(never)]
    fn device(&mut self) -> Parsed<StatementKind> {
        self.advance();
        let name = self.new_name("a name for the device")?;
        self.require(&TokenKind::Equals)?;
        let mut choices = vec![self.device_id()?];
        while self.take_word("else") {
            choices.push(self.device_id()?);
        }
        Ok(StatementKind::Device { name, choices })
    }

    fn device_id(&mut self) -> Parsed<Spanned<DeviceId>> {
        let span = self.span();
        let TokenKind::Device(text) = self.peek() else {
            let habit = self.peek_word().and_then(habits::of_place).map(str::to_owned);
            return Err(self.expected("a device such as `cpu:0` or `cuda:0`").with_help_if(habit));
        };
        let id: DeviceId = text.parse().map_err(|error| {
            let habit = text.split(':').next().and_then(habits::of_place).map(str::to_owned);
            Diagnostic::new(span, format!("{error}")).with_help_if(habit)
        })?;
        self.advance();
        Ok(Spanned::new(id, span))
    }

    #[inline(never)]
    fn print(&mut self) -> Parsed<StatementKind> {
        self.advance();
        if let TokenKind::Text(text) = self.peek() {
            let text = text.clone();
            self.advance();
            return Ok(StatementKind::PrintText(text));
        }
        if self.take_word("accuracy") {
            let scores = self.atom("the scores")?;
            return Ok(StatementKind::PrintAccuracy { scores, labels: self.atom("the labels")? });
        }
        Ok(StatementKind::Print(self.expr()?))
    }

    #[inline(never)]
    fn expect(&mut self) -> Parsed<StatementKind> {
        self.advance();
        let found = self.expr()?;
        let close = match self.peek() {
            TokenKind::Close => true,
            TokenKind::Same => false,
            _ => {
                let help = "a comparison is written `expect x == y` or `expect x ~= y tol 1e-6`";
                return Err(self.expected("`==` or `~=`").with_help(help));
            }
        };
        self.advance();
        let expected = self.expr()?;
        let mut tolerance = None;
        if close {
            let help = "how far numbers may be apart is written `expect x ~= y tol 1e-6`";
            self.require_word("tol").map_err(|error| error.with_help(help))?;
            let span = self.span();
            let value = match self.number("a tolerance such as 1e-4")?.value {
                Number::Int(value) => value as f64,
                Number::Large(value) => value as f64,
                Number::Float(value) => value,
                Number::Bool(_) => f64::NAN,
            };
            if !(value.is_finite() && value >= 0.0) {
                return Err(Diagnostic::new(span, "a tolerance is a finite number, zero or more"));
            }
            tolerance = Some(value);
        }
        Ok(StatementKind::Expect { found, expected, tolerance })
    }

    #[inline(never)]
    fn blocks(&mut self, start: Span) -> Parsed<Statement> {
        if self.take_word("scope") {
            let name = self.text("the name of the scope in quotes, such as \"layer 3\"")?.value;
            let (span, body) = self.body(start)?;
            return Ok(Statement { span, kind: StatementKind::Scope { name, body } });
        }
        let is_repeat = self.take_word("repeat");
        let mut count = 0;
        let mut label = String::new();
        if is_repeat {
            let span = self.span();
            let TokenKind::Int(number) = *self.peek() else {
                let help = "a count is a number, as in `repeat 10 {`; `while more {` repeats as long as the bool `more` is true";
                return Err(self.expected("how often to repeat").with_help(help));
            };
            count = u64::try_from(number)
                .ok()
                .filter(|count| (1..=MAX_REPEAT).contains(count))
                .ok_or_else(|| Diagnostic::new(span, format!("a repeat count is 1 to {MAX_REPEAT}")))?;
            self.advance();
        } else {
            self.require_word("time")?;
            label = self.text("a label in quotes")?.value;
        }
        let (span, body) = self.body(start)?;
        let kind = if is_repeat { StatementKind::Repeat { count, body } } else { StatementKind::Time { label, body } };
        Ok(Statement { span, kind })
    }

    /// `while goes_on { ... }`
    #[inline(never)]
    fn while_(&mut self, start: Span) -> Parsed<Statement> {
        let condition = self.condition()?;
        let (span, body) = self.body(start)?;
        Ok(Statement { span, kind: StatementKind::While { condition, body } })
    }

    /// `if large { ... } else { ... }`. Each `else if` is an `if` in the block of the `else` before it.
    #[inline(never)]
    fn if_(&mut self, start: Span) -> Parsed<Statement> {
        if matches!(&self.tokens[self.at + 1].kind, TokenKind::Word(word) if word == "rank")
            && self.tokens[self.at + 2].kind != TokenKind::Begin
        {
            self.advance();
            return self.if_rank(start);
        }
        let condition = self.condition()?;
        let (span, then) = self.body(start)?;
        let otherwise = self.otherwise()?;
        Ok(Statement { span, kind: StatementKind::If { condition, then, otherwise } })
    }

    /// `else { ... }` or `else if ...`, on the line of the `}` before it or below it; an empty block without one.
    #[inline(never)]
    fn otherwise(&mut self) -> Parsed<Block> {
        if !self.else_follows() {
            return Ok(Block::new());
        }
        self.at = self.after_newlines();
        let start = self.span();
        self.advance();
        let inner = self.span();
        match self.at_word("if") {
            true => Ok(vec![self.nested(|parser| parser.if_(inner))?]),
            false => Ok(self.body(start)?.1),
        }
    }

    /// Is the next word, on this line or below, `else`?
    fn else_follows(&self) -> bool {
        matches!(&self.tokens[self.after_newlines()].kind, TokenKind::Word(word) if word == "else")
    }

    /// The index of the next token that is no end of a line.
    fn after_newlines(&self) -> usize {
        let more = self.tokens[self.at..].iter().take_while(|token| token.kind == TokenKind::Newline).count();
        // The last token is `Eof`.
        self.at + more
    }

    /// The name after `while` or `if`.
    #[inline(never)]
    fn condition(&mut self) -> Parsed<Spanned<String>> {
        self.advance();
        let what = "the name of a condition, a tensor with one bool";
        let is_name = self.peek_word().is_some_and(|word| !is_reserved(word));
        let name = if is_name { self.used_name(what)? } else { return Err(self.no_condition(what)) };
        if *self.peek() == TokenKind::Begin { Ok(name) } else { Err(self.no_condition("`{` after the condition")) }
    }

    fn no_condition(&self, what: &str) -> Diagnostic {
        self.expected(what).with_help(habits::CONDITION)
    }

    /// Parses `{ ... }`. The span is that of the statement, up to the opening brace.
    #[inline(never)]
    fn body(&mut self, start: Span) -> Parsed<(Span, Block)> {
        let opened = self.span();
        self.require(&TokenKind::Begin)?;
        let span = start.to(self.previous());
        let body = self.nested(|parser| Ok(parser.block(Some(opened)))).inspect_err(|_| {
            self.at -= 1; // the brace: skipping this line must see the block that it opens
        })?;
        Ok((span, body))
    }

    /// `fill y rows 0..4 value 0`
    #[inline(never)]
    fn refill(&mut self) -> Parsed<StatementKind> {
        self.advance();
        let target = self.target()?;
        self.require_word("value").map_err(|error| error.with_help("a tensor is filled by `fill y value 0`"))?;
        let value = self.number("the value to fill with")?;
        Ok(StatementKind::Refill { target, value, lane: self.lane()? })
    }

    /// `copy h into y rows 0..4`, `matmul a b into y`
    #[inline(never)]
    fn write_statement(&mut self) -> Parsed<StatementKind> {
        let mut value = self.expr()?;
        if !self.at_word("into") {
            return Err(self
                .expected("`into` and the tensor that takes the result")
                .with_help("a call alone has no effect: name its result with `let`, or write it with `into`"));
        }
        self.advance();
        let target = self.target()?;
        if let Some(lane) = self.lane()? {
            value.lane = Some(lane);
        }
        if matches!(
            value.kind,
            ExprKind::Load { .. } | ExprKind::View { .. } | ExprKind::Fill { .. } | ExprKind::Composed { .. }
        ) {
            return Err(Diagnostic::new(value.span, "this result cannot be written into a tensor")
                .with_help("write `copy (...) into ...`"));
        }
        Ok(StatementKind::Into { value, target })
    }

    fn target(&mut self) -> Parsed<Target> {
        let name = self.used_name("the name of a tensor")?;
        Ok(Target { name, slices: self.slices()? })
    }

    #[inline(never)]
    fn unknown_statement(&self, span: Span) -> Diagnostic {
        let word = self.peek_word().unwrap_or_default();
        let is_assignment = self.tokens.get(self.at + 1).is_some_and(|next| next.kind == TokenKind::Equals);
        let help = if is_assignment {
            "`let` names a tensor, as in `let y = relu x`, and `into` writes into one, as in `copy x into y`".to_owned()
        } else if let Some(help) = habits::of_statement(word) {
            help.to_owned()
        } else {
            let known = first_words().chain(functions().map(|known| known.name));
            did_you_mean(word, known).unwrap_or_else(|| {
                let words: Vec<&str> = first_words().collect();
                let functions = "or with `copy` or another function whose result is written `into` a tensor";
                format!("a statement begins with one of: {}; {functions}", words.join(", "))
            })
        };
        Diagnostic::new(span, format!("unknown statement `{word}`")).with_help(help)
    }

    /// Parses a name that a statement introduces.
    fn new_name(&mut self, what: &str) -> Parsed<Spanned<String>> {
        let name = self.used_name(what)?;
        if is_reserved(&name.value) {
            return Err(Diagnostic::new(
                name.span,
                format!("`{}` is a word of the language and cannot name anything", name.value),
            )
            .with_help(format!("another name will do, such as `{}_1`", name.value)));
        }
        Ok(name)
    }

    fn used_name(&mut self, what: &str) -> Parsed<Spanned<String>> {
        let span = self.span();
        let Some(name) = self.peek_word().map(str::to_owned) else {
            return Err(self.expected(what));
        };
        self.advance();
        Ok(Spanned::new(name, span))
    }

    fn text(&mut self, what: &str) -> Parsed<Spanned<String>> {
        let span = self.span();
        let TokenKind::Text(text) = self.peek() else {
            return Err(self.expected(what));
        };
        let text = Spanned::new(text.clone(), span);
        self.advance();
        Ok(text)
    }
}

#[cfg(test)]
mod tests;
