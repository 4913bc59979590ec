//! The plan and its budget.

use std::fmt;
use std::time::{Duration, Instant};

use super::buffer::{Buffer, PlanError, lower_bound, validate};
use super::component::Component;
use super::part::Part;

/// How long the planner may look for better plans. A first plan is made in any case.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// At most this many steps. A step is a buffer that the search or a repair has placed, or that a further pass of first fit has placed.
    pub steps: u64,
    /// At most this long.
    pub time: Option<Duration>,
}

impl Budget {
    /// A number of steps, for results that are the same on every machine.
    #[must_use]
    pub const fn steps(steps: u64) -> Self {
        Self { steps, time: None }
    }

    /// A time, for people.
    #[must_use]
    pub const fn time(time: Duration) -> Self {
        Self { steps: u64::MAX, time: Some(time) }
    }
}

/// Why the planner stopped.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// No plan has a lower peak: it is the lower bound, or the search has tried everything below.
    ProvenBest,
    /// The plan fits into the capacity, so no lower peak was looked for.
    Fits,
    /// The lower bound, or what the search has proven, exceeds the capacity, so no plan fits, and no lower peak was looked for.
    NothingFits,
    /// The steps or the time of the budget are used. A larger budget may find a lower peak.
    BudgetUsed,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ProvenBest => "proven best",
            Self::Fits => "fits",
            Self::NothingFits => "nothing fits",
            Self::BudgetUsed => "budget used",
        })
    }
}

/// Offsets for buffers, and how good they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The offset of each buffer.
    pub offsets: Vec<u64>,
    /// The largest end of a buffer: the memory that is needed.
    pub peak: u64,
    /// The largest sum of sizes alive at one time.
    pub lower_bound: u64,
    /// Why the planner stopped.
    pub ended: Ended,
    /// The steps taken.
    pub steps: u64,
}

impl Plan {
    /// Whether no plan has a lower peak.
    #[must_use]
    pub fn is_optimal(&self) -> bool {
        self.ended == Ended::ProvenBest
    }
}

/// Counts steps against a budget.
#[derive(Debug)]
pub(super) struct Meter {
    steps: u64,
    budget: u64,
    end: Option<Instant>,
    is_over: bool,
}

impl Meter {
    fn new(budget: &Budget) -> Self {
        let end = budget.time.and_then(|time| Instant::now().checked_add(time));
        Self { steps: 0, budget: budget.steps, end, is_over: budget.steps == 0 || budget.time == Some(Duration::ZERO) }
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Counts a step, or returns false if the budget is spent.
    pub(super) fn step(&mut self) -> bool {
        if self.is_over || self.steps == self.budget {
            self.is_over = true;
            return false;
        }
        self.steps += 1;
        // A reading takes some tens of nanoseconds, a step a microsecond or more.
        if self.end.is_some_and(|end| Instant::now() >= end) {
            self.is_over = true;
        }
        !self.is_over
    }
}

/// Plans buffers, as [`plan_reporting`] does, and reports nothing.
///
/// # Errors
/// Buffers that cannot be planned.
pub fn plan(buffers: &[Buffer], capacity: Option<u64>, budget: &Budget) -> Result<Plan, PlanError> {
    plan_reporting(buffers, capacity, budget, &mut |_| {})
}

/// Plans buffers. With a capacity the planner stops at the first plan that fits; without one it looks for the lowest peak.
///
/// It uses its whole budget, unless no plan is better: [`Plan::ended`] says why it stopped.
///
/// `report` is called with each better peak that was found.
///
/// # Errors
/// Buffers that cannot be planned. A plan that exceeds the capacity is none: compare [`Plan::peak`].
pub fn plan_reporting(
    buffers: &[Buffer],
    capacity: Option<u64>,
    budget: &Budget,
    report: &mut dyn FnMut(u64),
) -> Result<Plan, PlanError> {
    validate(buffers)?;
    let mut meter = Meter::new(budget);
    let components = Component::split(buffers);
    let mut parts: Vec<Part> = components.iter().map(Part::new).collect();
    let bound = lower_bound(buffers);
    // No part needs a lower peak than this one. A capacity below the bound is out of reach, so nothing is searched for.
    let aim = match capacity {
        Some(capacity) if capacity < bound => u64::MAX,
        Some(capacity) => capacity,
        None => bound,
    };
    let is_fixed = capacity.is_some();
    for part in &mut parts {
        part.further_orders(aim, &mut meter);
    }
    let peak = |parts: &[Part]| parts.iter().map(|part| part.peak).max().unwrap_or(0);
    report(peak(&parts));
    // The highest part is improved, for as long as the budget lasts.
    while let Some(part) = parts.iter_mut().max_by_key(|part| part.peak)
        && part.peak > aim
        && capacity.is_none_or(|capacity| part.proven <= capacity)
        && part.improve(aim, is_fixed, &mut meter)
    {
        report(peak(&parts));
    }
    let peak = peak(&parts);
    let mut offsets = vec![0; buffers.len()];
    let mut is_best = peak <= bound;
    for part in &parts {
        for (&id, &offset) in part.component.ids.iter().zip(&part.offsets) {
            offsets[id] = offset;
        }
        is_best |= part.peak == peak && part.proven == peak;
    }
    let ended = match capacity {
        _ if is_best => Ended::ProvenBest,
        Some(capacity) if parts.iter().any(|part| part.proven > capacity) => Ended::NothingFits,
        Some(capacity) if peak <= capacity => Ended::Fits,
        _ => Ended::BudgetUsed,
    };
    Ok(Plan { offsets, peak, lower_bound: bound, ended, steps: meter.steps() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::order::{Noise, Order};

    #[test]
    fn a_meter_stops_at_its_budget() {
        let mut meter = Meter::new(&Budget::steps(3));
        assert_eq!(
            [meter.step(), meter.step(), meter.step(), meter.step(), meter.step()],
            [true, true, true, false, false]
        );
        assert_eq!(meter.steps(), 3);
        let mut meter = Meter::new(&Budget::time(Duration::ZERO));
        assert!(!meter.step());
    }

    #[test]
    fn orders_of_a_later_round_differ() {
        let buffers: Vec<Buffer> = (0..20).map(|size| Buffer::new(0, 2, 100 + size)).collect();
        let components = Component::split(&buffers);
        let sort = |noise: &mut Noise| Order::Size.sort(&components[0], &[0], &[0], noise);
        assert_ne!(sort(&mut Noise::none()), sort(&mut Noise::seeded(1)));
        assert_eq!(sort(&mut Noise::seeded(2)), sort(&mut Noise::seeded(2)));
    }
}
