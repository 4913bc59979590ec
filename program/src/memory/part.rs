//! A component with its best offsets so far, and which step of the planner improves them.

use super::by_time::by_time;
use super::component::Component;
use super::greedy::first_fit;
use super::order::{Noise, OF_FIRST_FIT, OF_SEARCH, fill};
use super::plan::Meter;
use super::repair::repair;
use super::search::{Backtrack, Outcome, Search};

/// Steps of each run of the search in the first round; runs of each further round get a quarter more. Most solutions are found within a few
/// thousand steps or not at all: 2,000 needed 0.8 million steps for the public problems A to F and their mirror images, 4,000 with half more
/// a round 1.5 million.
const FIRST_STEPS: u64 = 2_000;
/// Steps of a repair. Of 5,000, 10,000 and 20,000, the middle one gave the lowest mean ratio on generated problems of 2,000 to 18,700 buffers, with 80,000
/// steps in all.
const REPAIR_STEPS: u64 = 10_000;
/// The first repair looks for an eighth of the way to the lower bound, which takes few steps.
const FIRST_CAUTION: u32 = 3;
/// The search keeps lists of the pairs of buffers that overlap in time: with 1.3 million, a step takes half a
/// millisecond. Components with more pairs are repaired only.
const MOST_PAIRS: usize = 500_000;
/// A step of the search looks at all buffers of a component, so larger components are repaired only.
const MOST_BUFFERS: usize = 5_000;

/// First fit is quadratic: 28,000 buffers take 0.4 seconds. Larger components are placed in the order of their lives.
const MOST_OF_FIRST_FIT: usize = 30_000;
/// Components of more buffers are first placed in the order of their lives, which takes little time, and often suffices where sizes are equal. They
/// are also repaired; smaller ones are better left to the search.
const FEW: usize = 500;

/// A component with its best offsets so far.
#[derive(Debug)]
pub(super) struct Part<'a> {
    pub(super) component: &'a Component,
    pub(super) offsets: Vec<u64>,
    pub(super) peak: u64,
    /// No plan has a lower peak than this.
    pub(super) proven: u64,
    fill: Vec<u64>,
    /// What the search keeps, or `Some(None)` if the component is too large for it; made when it is first used.
    search: Option<Option<Search<'a>>>,
    /// How often the search has gone through its runs, and the next of its runs.
    round: u32,
    run: usize,
    repairs: u64,
    /// How near to the present peak the search and the repair look: one more for each round or repair that finds nothing, one less for each lower
    /// peak, at least 1.
    caution: u32,
    repair_caution: u32,
}

impl<'a> Part<'a> {
    /// Makes the first plan.
    pub(super) fn new(component: &'a Component) -> Self {
        let (fill, proven) = (fill(component), component.lower_bound);
        let by_time = (component.len() > FEW).then(|| by_time(component));
        let is_enough = |&(_, peak): &(Vec<u64>, u64)| peak == proven || component.len() > MOST_OF_FIRST_FIT;
        let (offsets, peak) = by_time.filter(is_enough).unwrap_or_else(|| {
            let order = OF_FIRST_FIT[0].sort(component, &fill, &fill, &mut Noise::none());
            // Peaks stay below the largest number, as `validate` bounds the sum of sizes.
            first_fit(component, &order, u64::MAX, || true).unwrap_or_default()
        });
        let (search, round, run, repairs, caution, repair_caution) = (None, 0, 0, 0, 1, FIRST_CAUTION);
        Self { component, offsets, peak, proven, fill, search, round, run, repairs, caution, repair_caution }
    }

    /// First fit in other orders than by size.
    pub(super) fn further_orders(&mut self, aim: u64, meter: &mut Meter) {
        for order in &OF_FIRST_FIT[1..] {
            if self.component.len() > MOST_OF_FIRST_FIT || self.peak <= aim.max(self.proven) || meter.is_over() {
                return;
            }
            let order = order.sort(self.component, &self.fill, &self.fill, &mut Noise::none());
            if let Some(better) = first_fit(self.component, &order, self.peak, || meter.step()) {
                (self.offsets, self.peak) = better;
            }
        }
    }

    /// Improves until the peak is lower. Returns false if the budget is spent or no lower peak is possible, and in no other case.
    ///
    /// The search and the repair take turns, if the size of the component allows both. A round of the search tries each order with both ways to
    /// return from a branch.
    pub(super) fn improve(&mut self, aim: u64, is_fixed: bool, meter: &mut Meter) -> bool {
        let component = self.component;
        let new = || (component.len() <= MOST_BUFFERS).then(|| Search::new(component, MOST_PAIRS)).flatten();
        let mut search = if meter.is_over() { None } else { self.search.take().unwrap_or_else(new) };
        let mut is_better = false;
        while !is_better && !meter.is_over() && self.proven < self.peak {
            if let Some(search) = &mut search {
                is_better = self.search(search, aim, is_fixed, meter);
            }
            if !is_better && (component.len() > FEW || search.is_none()) {
                is_better = self.repair(aim, meter);
            }
        }
        self.search = Some(search);
        is_better
    }

    /// Searches in the next order, for a number of steps that grows with the rounds. Returns whether the peak is lower.
    fn search(&mut self, search: &mut Search, aim: u64, is_fixed: bool, meter: &mut Meter) -> bool {
        let backtrack = if self.run < OF_SEARCH.len() { Backtrack::Blamed } else { Backtrack::Last };
        let number = self.run % OF_SEARCH.len();
        let steps = (0..self.round).fold(FIRST_STEPS, |steps, _| steps.saturating_add(steps / 4));
        // Without noise the first round would be repeated, so later ones add some.
        let seed = u64::from(self.round) * 16 + number as u64;
        let mut noise = if self.round == 0 { Noise::none() } else { Noise::seeded(seed) };
        for target in self.targets(aim, is_fixed) {
            if meter.is_over() || self.proven >= self.peak {
                return false;
            }
            let order = OF_SEARCH[number].sort(self.component, &self.fill, &search.failures, &mut noise);
            match search.run(target, &order, backtrack, steps, meter) {
                Outcome::Fits => {
                    self.keep(search.offsets());
                    self.caution = self.caution.saturating_sub(1).max(1);
                    self.run = 0;
                    return true;
                }
                Outcome::Exhausted if backtrack == Backtrack::Last => self.proven = target + 1,
                Outcome::Exhausted | Outcome::OutOfSteps => {}
            }
        }
        self.run += 1;
        if self.run == 2 * OF_SEARCH.len() {
            self.run = 0;
            self.round += 1;
            self.caution += 1;
        }
        false
    }

    /// Peaks to search for. If the aim is fixed, that is the aim. Else it is one between the aim and the present peak, and in every third
    /// round also the lowest one that is not excluded.
    fn targets(&self, aim: u64, is_fixed: bool) -> Vec<u64> {
        let (least, between) = self.range(aim, self.caution);
        match (is_fixed, self.round % 3) {
            (true, _) => vec![least],
            (false, 0) if between > least => vec![least, between],
            (false, _) => vec![between],
        }
    }

    /// Repairs the present plan for a lower peak. Returns whether that succeeds.
    fn repair(&mut self, aim: u64, meter: &mut Meter) -> bool {
        let (_, target) = self.range(aim, self.repair_caution);
        // Without noise a repair for the same peak would be repeated.
        let mut noise = if self.repairs == 0 { Noise::none() } else { Noise::seeded(self.repairs) };
        self.repairs += 1;
        let repaired = repair(self.component, &self.offsets, target, REPAIR_STEPS, &mut noise, meter);
        if let Some(offsets) = &repaired {
            self.keep(offsets);
            self.repair_caution = self.repair_caution.saturating_sub(1).max(1);
        } else {
            self.repair_caution += 1;
        }
        repaired.is_some()
    }

    /// The lowest peak that is wanted and not excluded, and one between it and the present one: with a caution of 1 half way, of 2 a quarter below the
    /// present one, and so on.
    fn range(&self, aim: u64, caution: u32) -> (u64, u64) {
        let least = aim.max(self.proven).min(self.peak - 1);
        let gap = self.peak - 1 - least;
        (least, self.peak - 1 - gap.checked_shr(caution).unwrap_or(0))
    }

    /// Keeps better offsets.
    fn keep(&mut self, offsets: &[u64]) {
        self.offsets.copy_from_slice(offsets);
        let ends = self.offsets.iter().zip(&self.component.sizes).map(|(offset, size)| offset + size);
        self.peak = ends.max().unwrap_or(0);
    }
}
