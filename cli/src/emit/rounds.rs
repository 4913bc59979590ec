//! The rule of a `repeat`: a name from outside keeps its dtype, shape and place over the rounds. One round is then enough to check it.

use std::collections::HashMap;

use crate::base::engine::Tensor;
use crate::emit::Binding;
use crate::syntax::diagnostic::Diagnostic;

/// A message for each name that a round has changed; `before` and `after` are the names around the first round.
pub(crate) fn changed(before: &HashMap<String, Binding>, after: &HashMap<String, Binding>) -> Vec<Diagnostic> {
    let mut errors = Vec::new();
    for (name, old) in before {
        let Some(new) = after.get(name) else { continue };
        let same = old.tensor.dtype() == new.tensor.dtype()
            && old.tensor.shape() == new.tensor.shape()
            && old.tensor.place() == new.tensor.place();
        if !same {
            let what = |tensor: &Tensor| format!("{}{} on {}", tensor.dtype(), tensor.shape(), tensor.place());
            let message = format!(
                "`{name}` is {} in the first round of this `repeat` and would be {} in the second",
                what(&old.tensor),
                what(&new.tensor)
            );
            errors.push(
                Diagnostic::new(new.span, message)
                    .with_help("a name keeps its dtype, shape and place over the rounds: use another name"),
            );
        }
    }
    errors
}
