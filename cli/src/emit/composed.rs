//! Emits the calls of neural networks that are made of several ops: attention, group norm and dropout.

use super::{Emitter, value};
use crate::base::engine::{Generator, Tensor};
use crate::syntax::ast::Composed;
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::source::Span;

impl Emitter<'_> {
    /// Emits the ops of a call. `inputs` are those that the parser asks for; `span` is the whole expression.
    ///
    /// # Errors
    /// The error of the builder, at `span`.
    pub(super) fn composed(
        &mut self,
        call: &Composed,
        inputs: &[Tensor],
        span: Span,
        lane: u32,
    ) -> Result<Tensor, Diagnostic> {
        let mut builder = self.builder.on_lane(lane);
        let (takes, made) = match (call, inputs) {
            (Composed::Attention, [q, k, v, mask @ ..]) => (
                "it takes queries [.., m, d], keys [.., n, d] and values [.., n, e] of one float dtype on one device, and a mask of bools or of that dtype \
                 that broadcasts to [.., m, n]",
                builder.attention(q, k, v, mask.first()),
            ),
            (Composed::GroupNorm { groups, epsilon }, [x, weight, bias]) => (
                "it takes an input [n, c, ..], and a weight and a bias [c], of one float dtype on one device",
                builder.group_norm(x, *groups, weight, bias, value::float(epsilon)?),
            ),
            (Composed::Dropout { p, seed }, [x]) => {
                let generator = self.generators.entry(*seed).or_insert_with(|| Generator::new(*seed));
                let dropped = builder.dropout(x, generator, value::float(p)?);
                let takes =
                    "it takes an input of a float dtype on a device, and a probability of at least 0 and less than 1";
                (takes, dropped.map(|(output, _)| output))
            }
            _ => unreachable!("the parser reads the inputs of each call"),
        };
        made.map_err(|error| Diagnostic::new(span, error.without_call()).with_help(takes))
    }
}
