//! The plan, its budget, and which part of the planner runs when.

use std::time::{Duration, Instant};

use super::buffer::{Buffer, PlanError, lower_bound, validate};
use super::by_time::by_time;
use super::component::Component;
use super::greedy::first_fit;
use super::order::{Noise, OF_FIRST_FIT, OF_SEARCH, fill};
use super::search::{Backtrack, Outcome, Search};

/// Steps between two readings of the clock. A step takes up to some tens of microseconds.
const STEPS_PER_LOOK: u64 = 64;
/// Steps of each run of the search in the first round; runs of each further round get a quarter more. Most solutions are found within a few
/// thousand steps or not at all: 2,000 needed 0.8 million steps for the public problems A to F and their mirror images, 4,000 with half more
/// a round 1.5 million.
const FIRST_STEPS: u64 = 2_000;
/// The search keeps lists of the pairs of buffers that overlap in time: 2 million of them take 16 MiB, and a step goes through a part of them.
/// Components with more pairs are left to first fit.
const MOST_PAIRS: usize = 2_000_000;
/// A step of the search looks at all buffers of a component, so larger components are left to first fit, or to `by_time`.
const MOST_BUFFERS: usize = 5_000;

/// First fit is quadratic: 28,000 buffers take 0.4 seconds. Larger components are placed in the order of their lives.
const MOST_OF_FIRST_FIT: usize = 30_000;
/// Components of more buffers are first placed in the order of their lives, which takes little time, and often suffices where sizes are equal.
const FEW: usize = 500;

/// How long the planner may look for better plans. A first plan is made in any case.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// At most this many steps. A step is a buffer that the search has placed, or that a further pass of first fit has placed.
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

/// Offsets for buffers, and how good they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The offset of each buffer.
    pub offsets: Vec<u64>,
    /// The largest end of a buffer: the memory that is needed.
    pub peak: u64,
    /// The largest sum of sizes alive at one time.
    pub lower_bound: u64,
    /// Whether no plan has a lower peak: it is the lower bound, or the search has tried everything below.
    pub is_optimal: bool,
    /// The steps taken.
    pub steps: u64,
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

    /// Counts a step, or returns false if the budget is spent.
    pub(super) fn step(&mut self) -> bool {
        if self.is_over || self.steps == self.budget {
            self.is_over = true;
            return false;
        }
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_LOOK) && self.end.is_some_and(|end| Instant::now() >= end) {
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
        && part.improve(aim, is_fixed, &mut meter)
    {
        report(peak(&parts));
    }
    let peak = peak(&parts);
    let mut offsets = vec![0; buffers.len()];
    let mut is_optimal = peak <= bound;
    for part in &parts {
        for (&id, &offset) in part.component.ids.iter().zip(&part.offsets) {
            offsets[id] = offset;
        }
        is_optimal |= part.peak == peak && part.proven == peak;
    }
    Ok(Plan { offsets, peak, lower_bound: bound, is_optimal, steps: meter.steps() })
}

/// A component with the best offsets so far.
#[derive(Debug)]
struct Part<'a> {
    component: &'a Component,
    offsets: Vec<u64>,
    peak: u64,
    /// No plan has a lower peak than this.
    proven: u64,
    /// What the search keeps; made when it is first used.
    search: Option<Search<'a>>,
    fill: Vec<u64>,
    /// How often the search has gone through its orders.
    round: u32,
    /// How near to the present peak the search looks: one more for each round that finds nothing, one less for each lower peak, at least 1.
    caution: u32,
}

impl<'a> Part<'a> {
    fn new(component: &'a Component) -> Self {
        let fill = fill(component);
        let proven = component.lower_bound;
        if component.len() > FEW {
            let (offsets, peak) = by_time(component);
            if peak == proven || component.len() > MOST_OF_FIRST_FIT {
                return Self { component, offsets, peak, proven, search: None, fill, round: 0, caution: 1 };
            }
        }
        let order = OF_FIRST_FIT[0].sort(component, &fill, &fill, &mut Noise::none());
        // Peaks stay below the largest number, as `validate` bounds the sum of sizes.
        let (offsets, peak) = first_fit(component, &order, u64::MAX, || true).unwrap_or_default();
        Self { component, offsets, peak, proven, search: None, fill, round: 0, caution: 1 }
    }

    /// First fit in other orders than by size.
    fn further_orders(&mut self, aim: u64, meter: &mut Meter) {
        for order in &OF_FIRST_FIT[1..] {
            if self.component.len() > MOST_OF_FIRST_FIT || self.peak <= aim.max(self.proven) || meter.is_over {
                return;
            }
            let order = order.sort(self.component, &self.fill, &self.fill, &mut Noise::none());
            if let Some(better) = first_fit(self.component, &order, self.peak, || meter.step()) {
                (self.offsets, self.peak) = better;
            }
        }
    }

    /// Searches until the peak is lower, or is `aim` if that is fixed. Returns false if the budget is spent or no lower peak is possible.
    ///
    /// Each round tries, for a number of steps that grows with the rounds, each order with both ways to return from a branch. Without noise
    /// the first round would be repeated, so later ones add some.
    fn improve(&mut self, aim: u64, is_fixed: bool, meter: &mut Meter) -> bool {
        if self.search.is_none() && !meter.is_over && self.component.len() <= MOST_BUFFERS {
            self.search = Search::new(self.component, MOST_PAIRS);
        }
        let Some(mut search) = self.search.take() else { return false };
        let mut is_better = false;
        'rounds: while !meter.is_over && self.proven < self.peak {
            let steps = (0..self.round).fold(FIRST_STEPS, |steps, _| steps.saturating_add(steps / 4));
            for backtrack in [Backtrack::Blamed, Backtrack::Last] {
                for (number, order) in OF_SEARCH.iter().enumerate() {
                    let seed = u64::from(self.round) * 16 + number as u64;
                    let mut noise = if self.round == 0 { Noise::none() } else { Noise::seeded(seed) };
                    for target in self.targets(aim, is_fixed) {
                        let order = order.sort(self.component, &self.fill, &search.failures, &mut noise);
                        match search.run(target, &order, backtrack, steps, meter) {
                            Outcome::Fits => {
                                self.offsets.copy_from_slice(search.offsets());
                                self.peak = self.ends().max().unwrap_or(0);
                                is_better = true;
                                self.caution = self.caution.saturating_sub(1).max(1);
                                break 'rounds;
                            }
                            Outcome::Exhausted if backtrack == Backtrack::Last => self.proven = target + 1,
                            Outcome::Exhausted | Outcome::OutOfSteps => {}
                        }
                        if meter.is_over || self.proven >= self.peak {
                            break 'rounds;
                        }
                    }
                }
            }
            self.round += 1;
            self.caution += 1;
        }
        self.search = Some(search);
        is_better
    }

    /// Peaks to look for. If the aim is fixed, that is the aim. Else it is one between the aim and the present peak, nearer to the present
    /// one the more rounds have failed, and in every third round also the lowest one that is not excluded.
    fn targets(&self, aim: u64, is_fixed: bool) -> Vec<u64> {
        let least = aim.max(self.proven).min(self.peak - 1);
        let gap = self.peak - 1 - least;
        let between = self.peak - 1 - gap.checked_shr(self.caution).unwrap_or(0);
        match (is_fixed, self.round % 3) {
            (true, _) => vec![least],
            (false, 0) if between > least => vec![least, between],
            (false, _) => vec![between],
        }
    }

    fn ends(&self) -> impl Iterator<Item = u64> {
        self.offsets.iter().zip(&self.component.sizes).map(|(offset, size)| offset + size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::order::Order;

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
