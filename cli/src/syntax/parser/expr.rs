//! Parses expressions: calls in prefix form, whose operands are names, numbers and calls in parentheses.

use super::{
    DType, Diagnostic, Expr, ExprKind, MAX_LANE, MAX_RANK, Number, Parsed, Parser, PlaceRef, Span, Spanned, TokenKind,
    function, functions, is_reserved,
};
use crate::base::engine::Op;
use crate::base::spelling::did_you_mean;
use crate::syntax::ast::{ExtraRef, RangeBy, View};
use crate::syntax::functions::{Form, Function};
use crate::syntax::habits;

#[cold]
#[inline(never)]
fn unclosed(error: Diagnostic) -> Diagnostic {
    error.with_help("a parenthesis that was opened needs its `)`")
}

/// An error of the operands of a call, with the ways to call that function unless the error has other advice.
#[cold]
#[inline(never)]
fn told_of_call(error: Diagnostic, function: Function) -> Diagnostic {
    if error.help.is_some() { error } else { error.with_help(function.written()) }
}

impl Parser {
    /// A call, or one operand.
    pub(super) fn expr(&mut self) -> Parsed<Expr> {
        let start = self.span();
        let Some(word) = self.peek_word().map(str::to_owned) else {
            return self.atom("a tensor or a call");
        };
        let Some(known) = function(&word) else {
            return self.name_or_unknown_call(&word);
        };
        self.advance();
        let kind = self.call(known.form).map_err(|error| told_of_call(error, known))?;
        self.called = Some(known);
        let lane = self.lane()?;
        Ok(Expr { span: start.to(self.previous()), kind, lane })
    }

    /// A name without operands is a tensor; a name with operands is a call of an unknown function.
    #[inline(never)]
    fn name_or_unknown_call(&mut self, word: &str) -> Parsed<Expr> {
        let span = self.span();
        let name = self.atom("a tensor or a call")?;
        let operand_follows = match self.peek() {
            TokenKind::Word(next) => !is_reserved(next) || function(next).is_some() || next.parse::<DType>().is_ok(),
            TokenKind::Open | TokenKind::Int(_) | TokenKind::Float(_) => true,
            TokenKind::Text(_) => !self.text_follows,
            _ => false,
        };
        if operand_follows {
            // Only `load` takes a text.
            let is_text = matches!(self.peek(), TokenKind::Text(_));
            let known = functions().filter(|known| !is_text || known.form == Form::Load);
            let help = habits::of_function(word).map(str::to_owned).or_else(|| match self.peek() {
                TokenKind::Int(..0) => Some("to subtract a number, write `sub x 1`".to_owned()),
                _ => did_you_mean(word, known.map(|known| known.name)),
            });
            return Err(Diagnostic::new(span, format!("unknown op `{word}`")).with_help(help.unwrap_or_else(|| {
                format!("an operand follows `{word}`, so it stands for a function; `streamvm functions` lists them")
            })));
        }
        Ok(name)
    }

    /// A name, a number, or an expression in parentheses.
    pub(super) fn atom(&mut self, what: &str) -> Parsed<Expr> {
        let span = self.span();
        match self.peek() {
            TokenKind::Open => {
                self.advance();
                let mut inner = self.nested(Self::expr)?;
                self.require(&TokenKind::Shut).map_err(unclosed)?;
                inner.span = span.to(self.previous());
                Ok(inner)
            }
            TokenKind::Int(_) | TokenKind::Float(_) => {
                let number = self.number(what)?;
                Ok(Expr { span, kind: ExprKind::Number(number.value), lane: None })
            }
            TokenKind::Word(word) if matches!(word.as_str(), "inf" | "nan" | "true" | "false") => {
                let number = self.number(what)?;
                Ok(Expr { span, kind: ExprKind::Number(number.value), lane: None })
            }
            TokenKind::Word(word) if function(word).is_some() => {
                Err(self.expected(what).with_help("put a nested call in parentheses"))
            }
            TokenKind::Word(word) if is_reserved(word) => Err(self.expected(what)),
            TokenKind::Word(word) => {
                let kind = ExprKind::Name(word.clone());
                self.advance();
                Ok(Expr { span, kind, lane: None })
            }
            _ => Err(self.expected(what)),
        }
    }

    // The frame of a call is on the stack for each level of nesting. So each kind of call is parsed by a function of its own, which is not inlined, and operands
    // are parsed in loops, without the frames of an iterator.

    #[inline(never)]
    fn call(&mut self, form: Form) -> Parsed<ExprKind> {
        Ok(match form {
            Form::Unary(op) => self.call_of(op, &["an operand"])?,
            Form::Binary(op) => self.call_of(op, &["the first operand", "the second operand"])?,
            Form::Ternary(op) => self.call_of(op, &["the first operand", "the second operand", "the third operand"])?,
            Form::Where => {
                let operands = ["the condition", "the value where it holds", "the value where it does not"];
                self.call_of(Op::Where, &operands)?
            }
            Form::BinaryOrReduce(binary, reduction) => self.binary_or_reduction(binary, reduction)?,
            Form::Reduce(op) => self.reduction_of_one(op)?,
            Form::ArgReduce(_) | Form::AlongAxis(_) | Form::BinaryAlongAxis(_) => self.along_axis(form)?,
            Form::Cast | Form::Pad | Form::OneHot => self.cast_pad_or_one_hot(form)?,
            Form::Norm(_)
            | Form::Convolution(_)
            | Form::Pooling(_)
            | Form::Attention
            | Form::GroupNorm
            | Form::Dropout => self.network_op(form)?,
            Form::AlongAxes(_)
            | Form::Triangle(_)
            | Form::ByIndex(_)
            | Form::Cat
            | Form::Stack
            | Form::Tile
            | Form::Roll
            | Form::Eye
            | Form::Arange
            | Form::Linspace => self.arrangement(form)?,
            Form::ArgSort | Form::ArgTopK | Form::Sort | Form::TopK => self.sorting(form)?,
            Form::Load | Form::Empty | Form::Fill | Form::Random(_) => self.source(form)?,
            Form::Copy => self.copy()?,
            Form::Reshape | Form::Broadcast | Form::Permute | Form::Slice => self.view(form)?,
            Form::Registered(op) => self.registered(op)?,
        })
    }

    /// A call of a registered op over tensors.
    #[inline(never)]
    fn registered(&mut self, op: Op) -> Parsed<ExprKind> {
        let mut inputs = Vec::with_capacity(op.arity());
        for name in op.inputs() {
            inputs.push(self.atom(name)?);
        }
        let axes = self.axes()?;
        Ok(ExprKind::Call { op, inputs, axes, keep: false, to: None, extra: ExtraRef::None })
    }

    /// A call of an op with these operands and nothing else.
    #[inline(never)]
    fn call_of(&mut self, op: Op, operands: &[&str]) -> Parsed<ExprKind> {
        let mut inputs = Vec::with_capacity(operands.len());
        for what in operands {
            inputs.push(self.atom(what)?);
        }
        Ok(ExprKind::Call { op, inputs, axes: Vec::new(), keep: false, to: None, extra: ExtraRef::None })
    }

    #[inline(never)]
    fn binary_or_reduction(&mut self, binary: Op, reduction: Op) -> Parsed<ExprKind> {
        let first = self.atom("an operand")?;
        if !self.operand_follows() {
            return self.reduction(reduction, first);
        }
        let inputs = vec![first, self.atom("the second operand")?];
        Ok(ExprKind::Call { op: binary, inputs, axes: Vec::new(), keep: false, to: None, extra: ExtraRef::None })
    }

    #[inline(never)]
    fn reduction_of_one(&mut self, op: Op) -> Parsed<ExprKind> {
        let input = self.atom("an operand")?;
        self.reduction(op, input)
    }

    /// A call of an op along one axis.
    #[inline(never)]
    fn along_axis(&mut self, form: Form) -> Parsed<ExprKind> {
        let (op, operands): (_, &[&str]) = match form {
            Form::ArgReduce(op) | Form::AlongAxis(op) => (op, &["an operand"]),
            Form::BinaryAlongAxis(op) => (op, &["what the op gave", "its gradient"]),
            _ => unreachable!("`call` has chosen by the form"),
        };
        let mut inputs = Vec::with_capacity(operands.len());
        for what in operands {
            inputs.push(self.atom(what)?);
        }
        let axes = vec![self.one_axis()?];
        let keep = matches!(form, Form::ArgReduce(_)) && self.take_word("keep");
        Ok(ExprKind::Call { op, inputs, axes, keep, to: None, extra: ExtraRef::None })
    }

    /// A call whose words after the operand decide about the dtype or the shape of the result.
    #[inline(never)]
    fn cast_pad_or_one_hot(&mut self, form: Form) -> Parsed<ExprKind> {
        let input = self.atom(if matches!(form, Form::OneHot) { "the indices" } else { "an operand" })?;
        let inputs = vec![input];
        Ok(match form {
            Form::Cast => {
                let (axes, to) = (Vec::new(), Some(self.dtype()?));
                ExprKind::Call { op: Op::Cast, inputs, axes, keep: false, to, extra: ExtraRef::None }
            }
            Form::Pad => {
                let before = self.size("how many elements come before the operand")?;
                let after = self.size("how many elements come after the operand")?;
                let axes = self.axes()?;
                let value = if self.take_word("value") { Some(self.number("the value of the margins")?) } else { None };
                let extra = ExtraRef::Pad { before, after, value };
                ExprKind::Call { op: Op::Pad, inputs, axes, keep: false, to: None, extra }
            }
            Form::OneHot => {
                let extra = ExtraRef::Classes(self.size("how many classes there are")?);
                ExprKind::Call { op: Op::OneHot, inputs, axes: Vec::new(), keep: false, to: Some(self.dtype()?), extra }
            }
            _ => unreachable!("`call` has chosen by the form"),
        })
    }

    /// Parses a call that makes a tensor from none: of a file, of numbers or of chance.
    #[inline(never)]
    fn source(&mut self, form: Form) -> Parsed<ExprKind> {
        Ok(match form {
            Form::Load => {
                let path = self.text("the path of a file in quotes")?;
                let tensor = match self.peek() {
                    TokenKind::Text(_) => Some(self.text("the name of a tensor")?),
                    _ => None,
                };
                ExprKind::Load { path, tensor }
            }
            Form::Empty | Form::Fill => {
                let dtype = self.dtype()?;
                let dims = self.sizes(MAX_RANK)?;
                let mut value = None;
                if form == Form::Fill {
                    self.require_word("value")?;
                    value = Some(self.number("the value to fill with")?);
                }
                self.require_word("on")?;
                ExprKind::Fill { dtype, dims, value, on: self.place()? }
            }
            Form::Random(op) => {
                let dtype = self.dtype()?;
                let dims = self.sizes(MAX_RANK)?;
                self.require_word("seed")?;
                let seed = self.size("the seed")?;
                self.require_word("on")?;
                ExprKind::Random { op, dtype, dims, seed, on: self.place()? }
            }
            _ => unreachable!("`call` passes these forms alone"),
        })
    }

    /// Parses the operands of a call that moves elements or makes a sequence of numbers.
    #[inline(never)]
    fn arrangement(&mut self, form: Form) -> Parsed<ExprKind> {
        Ok(match form {
            Form::AlongAxes(op) => {
                let inputs = vec![self.atom("an operand")?];
                let axes = self.axes()?;
                ExprKind::Call { op, inputs, axes, keep: false, to: None, extra: ExtraRef::None }
            }
            Form::Triangle(op) => {
                let inputs = vec![self.atom("an operand")?];
                let diagonal = if self.take_word("diagonal") {
                    self.integer("the column minus the row of a diagonal")?
                } else {
                    0
                };
                let extra = ExtraRef::Diagonal(diagonal);
                ExprKind::Call { op, inputs, axes: Vec::new(), keep: false, to: None, extra }
            }
            Form::ByIndex(op) => {
                let mut inputs = vec![self.atom("an operand")?, self.atom("the indices")?];
                if op.arity() > 2 {
                    inputs.push(self.atom("the elements that go there")?);
                }
                let axes = vec![self.one_axis()?];
                ExprKind::Call { op, inputs, axes, keep: false, to: None, extra: ExtraRef::None }
            }
            Form::Cat | Form::Stack => {
                let mut inputs = vec![self.atom("an operand")?];
                while self.operand_follows() {
                    inputs.push(self.atom("an operand")?);
                }
                ExprKind::Join { inputs, axis: self.one_axis()?, is_new: form == Form::Stack }
            }
            Form::Tile => {
                let value = Box::new(self.atom("an operand")?);
                ExprKind::View { value, view: View::Tile(self.sizes(MAX_RANK)?) }
            }
            Form::Roll => {
                let value = Box::new(self.atom("an operand")?);
                let shift = self.integer("by how many places the elements move")?;
                ExprKind::View { value, view: View::Roll { shift, axis: self.one_axis()? } }
            }
            Form::Eye => {
                let (dtype, dims) = (self.dtype()?, self.sizes(MAX_RANK)?);
                if dims.is_empty() {
                    return Err(self.expected("how many rows there are"));
                }
                if let Some(third) = dims.get(2) {
                    return Err(Diagnostic::new(third.span, "a matrix has rows and columns, and no further size"));
                }
                self.require_word("on")?;
                ExprKind::Eye { dtype, dims, on: self.place()? }
            }
            Form::Arange | Form::Linspace => {
                let dtype = self.dtype()?;
                let (first, last) = (self.number("the first number")?, self.number("the end")?);
                let by = match form {
                    Form::Arange => RangeBy::Step(self.number("the step")?),
                    _ => RangeBy::Count(self.size("how many numbers there are")?),
                };
                self.require_word("on")?;
                ExprKind::Range { dtype, first, last, by, on: self.place()? }
            }
            _ => unreachable!("`call` passes these forms alone"),
        })
    }

    /// Parses the operands of a call that sorts.
    #[inline(never)]
    fn sorting(&mut self, form: Form) -> Parsed<ExprKind> {
        let value = self.atom("an operand")?;
        let count = match form {
            Form::ArgTopK | Form::TopK => Some(self.size("the number of elements")?),
            _ => None,
        };
        let axis = self.one_axis()?;
        let indices = |op, extra| ExprKind::Call {
            op,
            inputs: vec![value.clone()],
            axes: vec![axis.clone()],
            keep: false,
            to: None,
            extra,
        };
        let call = match (form, count) {
            (Form::ArgTopK, Some(count)) => {
                indices(Op::ArgTopK, ExtraRef::Top { count, largest: !self.take_word("smallest") })
            }
            (Form::ArgSort, _) => indices(Op::ArgSort, ExtraRef::Order { descending: self.take_word("descending") }),
            (_, Some(count)) => {
                let view = View::Top { count, axis, largest: !self.take_word("smallest") };
                ExprKind::View { value: Box::new(value), view }
            }
            _ => {
                let view = View::Sort { axis, descending: self.take_word("descending") };
                ExprKind::View { value: Box::new(value), view }
            }
        };
        if self.at_word("descending") || self.at_word("smallest") {
            let help = "`sort` and `argsort` take `descending`; `topk` and `argtopk` take `smallest`";
            return Err(self.expected("the end of the call").with_help(help));
        }
        Ok(call)
    }

    #[inline(never)]
    fn copy(&mut self) -> Parsed<ExprKind> {
        let value = Box::new(self.atom("what to copy")?);
        if self.at_word("into") {
            return Ok(ExprKind::Copy { value, to: None });
        }
        if !self.take_word("to") {
            return Err(self.expected("`to` and a place, or `into` and a tensor"));
        }
        Ok(ExprKind::Copy { value, to: Some(self.place()?) })
    }

    #[inline(never)]
    fn view(&mut self, form: Form) -> Parsed<ExprKind> {
        let value = Box::new(self.atom("an operand")?);
        let view = match form {
            Form::Reshape => View::Reshape(self.sizes(MAX_RANK)?),
            Form::Broadcast => View::Broadcast(self.sizes(MAX_RANK)?),
            Form::Permute => View::Permute(self.integers(MAX_RANK)?),
            _ => {
                let slices = self.slices()?;
                if slices.is_empty() {
                    return Err(self.expected("`rows`, `cols` or `axis` and a range"));
                }
                View::Slice(slices)
            }
        };
        Ok(ExprKind::View { value, view })
    }

    fn reduction(&mut self, op: Op, input: Expr) -> Parsed<ExprKind> {
        let axes = self.axes()?;
        let keep = self.take_word("keep");
        Ok(ExprKind::Call { op, inputs: vec![input], axes, keep, to: None, extra: ExtraRef::None })
    }

    /// Parses `axis 1` or `axes 0 1`, if present.
    fn axes(&mut self) -> Parsed<Vec<Spanned<i64>>> {
        if self.at_word("axis") {
            return Ok(vec![self.one_axis()?]);
        }
        if !self.take_word("axes") {
            return Ok(Vec::new());
        }
        let axes = self.integers(MAX_RANK)?;
        if axes.is_empty() {
            return Err(self.expected("the numbers of the axes"));
        }
        Ok(axes)
    }

    /// A whole number that is not negative.
    pub(super) fn size<T: TryFrom<i128>>(&mut self, what: &str) -> Parsed<T> {
        let TokenKind::Int(number) = *self.peek() else {
            return Err(self.expected(what));
        };
        let range = || format!("expected {what}, found {number}, which is out of range");
        let size = T::try_from(number).map_err(|_| Diagnostic::new(self.span(), range()))?;
        self.advance();
        Ok(size)
    }

    /// A whole number.
    fn integer(&mut self, what: &str) -> Parsed<i64> {
        if !matches!(self.peek(), TokenKind::Int(_)) {
            return Err(self.expected(what));
        }
        self.signed()
    }

    /// The whole number that is the next token, if it fits an `i64`.
    pub(super) fn signed(&mut self) -> Parsed<i64> {
        let number = match *self.peek() {
            TokenKind::Int(number) => i64::try_from(number).ok(),
            _ => None,
        };
        let most = i64::MAX;
        let number = number.ok_or_else(|| self.expected(&format!("a whole number of at most {most} here")))?;
        self.advance();
        Ok(number)
    }

    pub(super) fn one_axis(&mut self) -> Parsed<Spanned<i64>> {
        self.require_word("axis")?;
        let span = self.span();
        if !matches!(self.peek(), TokenKind::Int(_)) {
            return Err(self.expected("the number of an axis"));
        }
        Ok(Spanned::new(self.signed()?, span))
    }

    /// Is the next token an operand, rather than a keyword or the end?
    pub(super) fn operand_follows(&self) -> bool {
        match self.peek() {
            TokenKind::Open | TokenKind::Int(_) | TokenKind::Float(_) => true,
            TokenKind::Word(word) => !is_reserved(word) || matches!(word.as_str(), "inf" | "nan" | "true" | "false"),
            _ => false,
        }
    }

    pub(super) fn number(&mut self, what: &str) -> Parsed<Spanned<Number>> {
        let span = self.span();
        let number = match self.peek() {
            // The lexer takes no number that is larger than a `u64`.
            TokenKind::Int(value) => i64::try_from(*value).map_or_else(|_| Number::Large(*value as u64), Number::Int),
            TokenKind::Float(value) => Number::Float(*value),
            TokenKind::Word(word) => match word.as_str() {
                "inf" => Number::Float(f64::INFINITY),
                "nan" => Number::Float(f64::NAN),
                "true" => Number::Bool(true),
                "false" => Number::Bool(false),
                _ => return Err(self.expected(what)),
            },
            _ => return Err(self.expected(what)),
        };
        self.advance();
        Ok(Spanned::new(number, span))
    }

    pub(super) fn dtype(&mut self) -> Parsed<DType> {
        let dtype = self.peek_word().and_then(|word| word.parse::<DType>().ok());
        let Some(dtype) = dtype else {
            let known: Vec<String> = DType::ALL.iter().map(ToString::to_string).collect();
            let habit = self.peek_word().and_then(habits::of_dtype).map(|dtype| format!("it is called `{dtype}` here"));
            return Err(self.expected(&format!("a dtype ({})", known.join(", "))).with_help_if(habit));
        };
        self.advance();
        Ok(dtype)
    }

    pub(super) fn next_is_dtype(&self) -> bool {
        match self.tokens.get(self.at + 1).map(|token| &token.kind) {
            Some(TokenKind::Word(word)) => word.parse::<DType>().is_ok(),
            _ => false,
        }
    }

    pub(super) fn place(&mut self) -> Parsed<PlaceRef> {
        if self.take_word("host") {
            return Ok(PlaceRef::Host);
        }
        match self.peek() {
            TokenKind::Device(_) => Ok(PlaceRef::Device(self.device_id()?)),
            TokenKind::Word(word) if !is_reserved(word) => Ok(PlaceRef::Named(self.used_name("a place")?)),
            _ => Err(self.expected("a place: `host`, a device name, or a device such as `cpu:0`")),
        }
    }

    #[cold]
    #[inline(never)]
    fn no_lane(&self) -> Diagnostic {
        self.expected("`lane`").with_help(habits::PLACE_OF_A_CALL)
    }

    /// Parses `on lane N`, if present.
    pub(super) fn lane(&mut self) -> Parsed<Option<Spanned<u32>>> {
        if !self.at_word("on") {
            return Ok(None);
        }
        self.advance();
        if !self.take_word("lane") {
            return Err(self.no_lane());
        }
        let span: Span = self.span();
        let TokenKind::Int(number) = *self.peek() else {
            return Err(self.expected("the number of a lane"));
        };
        let lane = u32::try_from(number)
            .ok()
            .filter(|lane| *lane <= MAX_LANE)
            .ok_or_else(|| Diagnostic::new(span, format!("a lane is 0 to {MAX_LANE}")))?;
        self.advance();
        Ok(Some(Spanned::new(lane, span)))
    }
}
