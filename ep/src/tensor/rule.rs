//! The rules of registered ops over tensors.

use crate::names::growing_table::GrowingTable;
use crate::tensor::dtype::DType;
use crate::tensor::params::Params;
use crate::tensor::registered_op::RegisteredOp;
use crate::tensor::shape::Shape;

/// The rule for the output of an op: as [`infer`](crate::infer), from the dtypes and shapes of the tensors, and the parameters.
pub(crate) type Rule = Box<
    dyn Fn(&[(DType, &Shape)], &Params) -> Result<(DType, Shape), Box<dyn std::error::Error + Send + Sync>>
        + Send
        + Sync,
>;

/// By the number of the op. Written before the op can be found.
static RULES: GrowingTable<Rule> = GrowingTable::new();

/// Keeps the rule of the op that gets this number.
pub(crate) fn keep(row: usize, rule: Rule) {
    RULES.set(row, rule);
}

/// The rule of an op; `None` for an elementwise one, whose class has the rule.
pub(crate) fn rule_of(op: RegisteredOp) -> Option<&'static Rule> {
    RULES.get(op.row())
}
