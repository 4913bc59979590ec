//! Cases: a workload or a floor, the samples that it gives, and the sizes at which it runs.

use std::time::Duration;

use crate::harness::error::Error;

/// One measured value.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// The metric of the case.
    pub metric: String,
    /// The unit of the value.
    pub unit: String,
    /// The value.
    pub value: f64,
}

impl Sample {
    /// A value in nanoseconds.
    pub fn ns(metric: &str, value: f64) -> Sample {
        Sample { metric: metric.to_owned(), unit: "ns".to_owned(), value }
    }

    /// The same value as a sample of a run pinned to one core: the name of the metric says so.
    #[must_use]
    pub fn of_one_core(self) -> Sample {
        Sample { metric: self.metric + ONE_CORE, ..self }
    }
}

/// How much each case does, in operations unless said otherwise.
#[derive(Copy, Clone, Debug)]
pub struct Sizes {
    /// Operations of chain, independent, memory, soft sync, allocator and threads; ring hops and clock reads.
    pub ops: usize,
    /// Operations of random.
    pub random: usize,
    /// Operations of irregular: random operations that each work for some microseconds.
    pub irregular: usize,
    /// Rounds of fan: one write and 64 reads.
    pub rounds: usize,
    /// Submissions of latency and round trips; operations of waits.
    pub trips: usize,
    /// Operations of the small op.
    pub small: usize,
    /// How long idle measures.
    pub idle: Duration,
}

impl Sizes {
    /// The sizes whose figures are compared.
    pub const FULL: Sizes = Sizes {
        ops: 1_000_000,
        random: 500_000,
        irregular: 50_000,
        rounds: 5_000,
        trips: 20_000,
        small: 1_000_000,
        idle: Duration::from_secs(1),
    };

    /// Sizes that only show that every case works; the figures mean nothing.
    pub const QUICK: Sizes = Sizes {
        ops: 20_000,
        random: 2_000,
        irregular: 500,
        rounds: 20,
        trips: 100,
        small: 500,
        idle: Duration::from_millis(50),
    };

    /// The sizes of the warm-up before the clock starts, which opens streams, allocates memory and trains branch predictors.
    #[must_use]
    pub fn warm_up(&self) -> Sizes {
        let Sizes { ops, random, irregular, rounds, trips, small, idle } = *self;
        Sizes {
            ops: ops / 10,
            random: random / 10,
            irregular: irregular / 10,
            rounds: rounds / 10,
            trips: trips / 10,
            small: small / 10,
            idle: idle / 10,
        }
    }
}

/// One workload or floor.
#[derive(Copy, Clone)]
pub struct Case {
    /// Its name in reports; floors start with `floor/`.
    pub name: &'static str,
    /// The floors that the workload is compared with.
    pub floors: &'static [&'static str],
    /// Does each run need its own process, because it measures a property of the process?
    pub own_process: bool,
    /// Measures once. Warms up by itself.
    pub run: Run,
}

/// Measures a case once.
pub type Run = fn(&Sizes) -> Result<Vec<Sample>, Error>;

impl Case {
    pub(crate) const fn workload(name: &'static str, floors: &'static [&'static str], run: Run) -> Case {
        Case { name, floors, own_process: false, run }
    }

    pub(crate) const fn floor(name: &'static str, run: Run) -> Case {
        Case { name, floors: &[], own_process: false, run }
    }

    /// Does it give another result on one core? True for all workloads, and for the floor whose threads take turns.
    pub fn differs_on_one_core(&self) -> bool {
        !self.name.starts_with("floor/") || self.name == PARK
    }
}

/// The floor of a round trip of threads that park.
pub(crate) const PARK: &str = "floor/park";

/// The suffix of the metrics of runs that are pinned to one core.
pub const ONE_CORE: &str = "_one_core";
