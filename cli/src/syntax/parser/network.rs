//! Parses the calls of neural networks: norms, convolutions, poolings, attention and dropout.

use super::{ExprKind, Parsed, Parser, TokenKind};
use crate::base::engine::{Convolution, Pooling};
use crate::syntax::ast::{Composed, ExtraRef};
use crate::syntax::functions::Form;

impl Parser {
    /// Parses the operands of a norm, a convolution, a pooling, or of a call that is made of several ops.
    #[inline(never)]
    pub(super) fn network_op(&mut self, form: Form) -> Parsed<ExprKind> {
        Ok(match form {
            Form::Norm(op) => {
                let mut inputs = vec![self.atom("an operand")?, self.atom("the weight")?];
                if op.arity() == 3 {
                    inputs.push(self.atom("the bias")?);
                }
                self.require_word("epsilon")?;
                let extra = ExtraRef::Epsilon(self.number("what is added to each variance")?);
                ExprKind::Call { op, inputs, axes: Vec::new(), keep: false, to: None, extra }
            }
            Form::Convolution(op) => {
                let mut inputs = vec![self.atom("an operand")?, self.atom("the weight")?];
                if op.arity() == 3 {
                    inputs.push(self.atom("the gradient of the output")?);
                }
                let mut by = Convolution::default();
                by.stride = self.pair("stride")?.unwrap_or(by.stride);
                by.padding = self.pair("padding")?.unwrap_or(by.padding);
                by.dilation = self.pair("dilation")?.unwrap_or(by.dilation);
                if self.take_word("groups") {
                    by.groups = self.size("the number of groups")?;
                }
                let extra = ExtraRef::Convolution(by);
                ExprKind::Call { op, inputs, axes: Vec::new(), keep: false, to: None, extra }
            }
            Form::Pooling(op) => {
                let mut inputs = vec![self.atom("an operand")?];
                if op.arity() == 2 {
                    inputs.push(self.atom("the gradient of the output")?);
                }
                let Some(window) = self.pair("window")? else {
                    return Err(self.expected("`window` and its height and width"));
                };
                let stride = self.pair("stride")?.unwrap_or(window);
                let padding = self.pair("padding")?.unwrap_or([0; 2]);
                let extra = ExtraRef::Pooling(Pooling { window, stride, padding });
                ExprKind::Call { op, inputs, axes: Vec::new(), keep: false, to: None, extra }
            }
            Form::Attention => {
                let mut inputs = vec![self.atom("the queries")?, self.atom("the keys")?, self.atom("the values")?];
                if self.operand_follows() {
                    inputs.push(self.atom("the mask")?);
                }
                ExprKind::Composed { inputs, call: Composed::Attention }
            }
            Form::GroupNorm => {
                let inputs = vec![self.atom("an operand")?, self.atom("the weight")?, self.atom("the bias")?];
                self.require_word("groups")?;
                let groups = self.size("the number of groups")?;
                self.require_word("epsilon")?;
                let epsilon = self.number("what is added to each variance")?;
                ExprKind::Composed { inputs, call: Composed::GroupNorm { groups, epsilon } }
            }
            Form::Dropout => {
                let inputs = vec![self.atom("an operand")?];
                let p = self.number("the probability with which an element is dropped, such as 0.1")?;
                self.require_word("seed")?;
                let seed = self.size("the seed")?;
                ExprKind::Composed { inputs, call: Composed::Dropout { p, seed } }
            }
            _ => unreachable!("`call` passes these forms alone"),
        })
    }

    /// Parses `word` and a height and a width, or one number for both, if present.
    fn pair(&mut self, word: &str) -> Parsed<Option<[u16; 2]>> {
        if !self.take_word(word) {
            return Ok(None);
        }
        let height = self.size("a whole number")?;
        let has_two = matches!(self.peek(), TokenKind::Int(_));
        Ok(Some([height, if has_two { self.size("a whole number")? } else { height }]))
    }
}
