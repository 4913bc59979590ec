//! Which steps of a compiled program are ordered because the recording asks for that.

use std::ops::Range;

use crate::ir::program::StepOrder;
use crate::plan::compiled::Compiled;
use crate::show::dependences::Dependence;

/// An order of the recording, between positions in [`Compiled::steps`]: all of `lasts` come before all of `firsts`.
pub(crate) struct OrderedSteps {
    /// Of the earlier steps those that no other of them depends on.
    pub(crate) lasts: Vec<usize>,
    /// Of the later steps those that depend on no other of them.
    pub(crate) firsts: Vec<usize>,
}

impl Compiled {
    /// The orders of the recording. Steps that the compiler has removed order nothing, and the begin and the end of a block are left out. `dependences`
    /// are those of this program. Takes time in proportion to the steps that the orders name, and their dependences.
    pub(crate) fn ordered_steps(&self, dependences: &[Dependence]) -> Vec<OrderedSteps> {
        let mut position_of = vec![None; self.program.steps.len()];
        for (position, number) in self.order.iter().enumerate().filter(|(position, _)| !self.work(*position).is_mark())
        {
            position_of[*number] = Some(position);
        }
        let mut backwards = dependences.to_vec();
        backwards.sort_by_key(|it| it.to);
        let of = |numbers: &Range<usize>, depends: &dyn Fn(usize) -> bool| -> Vec<usize> {
            position_of[numbers.clone()].iter().flatten().copied().filter(|position| !depends(*position)).collect()
        };
        let orders = self.program.orders.iter().map(|StepOrder { earlier, later }| {
            let is_one = |numbers: &Range<usize>, position: usize| numbers.contains(&self.order[position]);
            let has_later = |position: usize| {
                let first = dependences.partition_point(|it| it.from < position);
                dependences[first..].iter().take_while(|it| it.from == position).any(|it| is_one(earlier, it.to))
            };
            let has_earlier = |position: usize| {
                let first = backwards.partition_point(|it| it.to < position);
                backwards[first..].iter().take_while(|it| it.to == position).any(|it| is_one(later, it.from))
            };
            OrderedSteps { lasts: of(earlier, &has_later), firsts: of(later, &has_earlier) }
        });
        orders.collect()
    }
}
