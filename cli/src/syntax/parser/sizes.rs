//! Parses sizes, axes and ranges: numbers, and in a program the names of its bounded sizes.

use super::{Diagnostic, MAX_RANK, Parsed, Parser, SliceSpec, Spanned, TokenKind};
use crate::syntax::ast::Size;

impl Parser {
    /// Parses all integers that follow, at most `most`.
    pub(super) fn integers(&mut self, most: usize) -> Parsed<Vec<Spanned<i64>>> {
        let mut numbers = Vec::new();
        while matches!(self.peek(), TokenKind::Int(_)) {
            if numbers.len() == most {
                return Err(Diagnostic::new(self.span(), format!("a tensor has at most {most} axes")));
            }
            let span = self.span();
            numbers.push(Spanned::new(self.signed()?, span));
        }
        Ok(numbers)
    }

    /// Parses all sizes that follow, at most `most`: numbers, and names of bounded sizes.
    pub(super) fn sizes(&mut self, most: usize) -> Parsed<Vec<Spanned<Size>>> {
        let mut sizes = Vec::new();
        loop {
            let span = self.span();
            let size = match self.named_size() {
                Some(name) => {
                    self.advance();
                    Size::Named(name)
                }
                None if matches!(self.peek(), TokenKind::Int(_)) => Size::Number(self.signed()?),
                None => return Ok(sizes),
            };
            if sizes.len() == most {
                return Err(Diagnostic::new(span, format!("a tensor has at most {most} axes")));
            }
            sizes.push(Spanned::new(size, span));
        }
    }

    /// The next token, if it is the name of a bounded size.
    fn named_size(&self) -> Option<String> {
        self.peek_word().filter(|word| self.sizes.iter().any(|name| name == word)).map(str::to_owned)
    }

    /// Parses all ranges that follow: `rows a..b`, `cols a..b`, `axis N a..b`.
    pub(super) fn slices(&mut self) -> Parsed<Vec<SliceSpec>> {
        let mut slices = Vec::new();
        loop {
            let start = self.span();
            let axis = match self.peek_word() {
                Some("rows") => 0,
                Some("cols") => 1,
                Some("axis") => i64::MIN, // read below
                _ => return Ok(slices),
            };
            if slices.len() == MAX_RANK {
                return Err(Diagnostic::new(start, format!("a tensor has at most {MAX_RANK} axes")));
            }
            let axis = if axis == i64::MIN {
                self.one_axis()?.value
            } else {
                self.advance();
                axis
            };
            let first = self.index()?;
            self.require(&TokenKind::Range)?;
            let last = self.index()?;
            slices.push(SliceSpec { axis, start: first, end: last, span: start.to(self.previous()) });
        }
    }

    /// Parses one side of a range, which may be missing.
    fn index(&mut self) -> Parsed<Option<Size>> {
        if let Some(name) = self.named_size() {
            self.advance();
            return Ok(Some(Size::Named(name)));
        }
        let TokenKind::Int(number) = *self.peek() else {
            return Ok(None);
        };
        if number < 0 {
            return Err(Diagnostic::new(self.span(), "an index is zero or more, counted from the start"));
        }
        Ok(Some(Size::Number(self.signed()?)))
    }
}
