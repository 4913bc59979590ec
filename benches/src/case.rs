//! Cases: the workloads and floors by name, and the sizes they run at.

use std::time::Duration;

use crate::error::Error;
use crate::{floors, parts, workloads};

/// One measured value.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// What was measured, among the metrics of its case.
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

    /// The same, as measured pinned to one core: the metric's name says so.
    #[must_use]
    pub fn of_one_core(self) -> Sample {
        Sample { metric: self.metric + ONE_CORE, ..self }
    }
}

/// How much each case does. Operations, unless said otherwise.
#[derive(Copy, Clone, Debug)]
pub struct Sizes {
    /// Chain, independent, memory, soft sync, allocator, threads, ring hops and clock reads.
    pub ops: usize,
    /// Random.
    pub random: usize,
    /// Irregular: random operations that work for some microseconds.
    pub irregular: usize,
    /// Fan: rounds of one write and 64 reads.
    pub rounds: usize,
    /// Latency and round trips: submissions. Waits.
    pub trips: usize,
    /// Small op.
    pub small: usize,
    /// Idle: how long nothing happens.
    pub idle: Duration,
}

impl Sizes {
    /// The sizes that figures are compared at.
    pub const FULL: Sizes = Sizes {
        ops: 1_000_000,
        random: 500_000,
        irregular: 50_000,
        rounds: 5_000,
        trips: 20_000,
        small: 1_000_000,
        idle: Duration::from_secs(1),
    };

    /// Enough to see that every case works; the figures mean nothing.
    pub const QUICK: Sizes = Sizes {
        ops: 20_000,
        random: 2_000,
        irregular: 500,
        rounds: 20,
        trips: 100,
        small: 500,
        idle: Duration::from_millis(50),
    };

    /// What runs before the clock starts: streams are opened, slots and memory are there, branches are learnt.
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
    /// The cases that a workload is read against.
    pub floors: &'static [&'static str],
    /// Whether each run gets a process of its own, since what it measures belongs to a process.
    pub own_process: bool,
    /// Measures once. Warms up by itself.
    pub run: Run,
}

/// Measures a case once.
pub type Run = fn(&Sizes) -> Result<Vec<Sample>, Error>;

impl Case {
    const fn workload(name: &'static str, floors: &'static [&'static str], run: Run) -> Case {
        Case { name, floors, own_process: false, run }
    }

    const fn floor(name: &'static str, run: Run) -> Case {
        Case { name, floors: &[], own_process: false, run }
    }

    /// Whether it means something else on one core: all workloads, and the floor whose threads take turns.
    pub fn differs_on_one_core(&self) -> bool {
        !self.name.starts_with("floor/") || self.name == PARK
    }
}

/// All cases; each floor follows the workload that it is the floor of, so that the two run close in time.
pub const CASES: [Case; 29] = [
    Case::workload("chain", &["floor/chain"], workloads::graph::chain),
    Case::floor("floor/chain", floors::graph::chain),
    Case::workload("independent", &["floor/independent"], workloads::graph::independent),
    Case::floor("floor/independent", floors::graph::independent),
    Case::workload("random", &["floor/random"], workloads::graph::random),
    Case::floor("floor/random", floors::graph::random),
    Case::workload("fan", &["floor/fan"], workloads::graph::fan),
    Case::floor("floor/fan", floors::graph::fan),
    Case::workload("workers_chain", &["floor/chain"], workloads::workers::chain),
    Case::workload("workers_independent", &["floor/independent"], workloads::workers::independent),
    Case::workload("workers_random", &["floor/random"], workloads::workers::random),
    Case::workload("workers_fan", &["floor/fan"], workloads::workers::fan),
    Case::workload("workers_operator", &["floor/chain"], workloads::workers::operator),
    Case::workload("workers_irregular", &[], workloads::workers::irregular),
    Case::workload("latency", &["floor/spin", PARK], workloads::latency::latency),
    Case::floor("floor/spin", floors::threads::spin),
    Case::floor(PARK, floors::threads::park),
    Case::floor("floor/ring", floors::threads::ring),
    Case::floor("floor/clock", floors::threads::clock),
    Case::workload("waits", &["floor/spin", PARK], workloads::waits::waits),
    Case::workload("threads", &["floor/independent"], workloads::threads::threads),
    Case::workload("soft_sync", &["floor/soft_sync"], parts::soft_sync::soft_sync),
    Case::floor("floor/soft_sync", floors::soft_sync::soft_sync),
    Case::workload("allocator", &["floor/malloc"], parts::allocator::allocator),
    Case::floor("floor/malloc", floors::malloc::malloc),
    Case { own_process: true, ..Case::workload("idle", &[], workloads::idle::idle) },
    Case { own_process: true, ..Case::workload("memory", &[], workloads::memory::memory) },
    Case::workload("small_op", &["floor/small_op"], workloads::small_op::small_op),
    Case::floor("floor/small_op", floors::small_op::small_op),
];

/// The case of that name.
pub fn find(name: &str) -> Option<&'static Case> {
    CASES.iter().find(|case| case.name == name)
}

/// The cases with `part` in their names, and the floors of those.
pub fn matching(part: &str) -> Vec<&'static Case> {
    let named = |case: &&Case| case.name.contains(part);
    let is_floor_of_named = |case: &Case| CASES.iter().filter(named).any(|other| other.floors.contains(&case.name));
    CASES.iter().filter(|case| named(case) || is_floor_of_named(case)).collect()
}

/// The floor under a metric of a workload: its case and metric. `None` where there is none, and for floors.
///
/// Two threads that spin on two cores are as quick as a round trip gets; its tail is that of threads that park, and so
/// is one core, where spinning keeps the other thread from running.
pub fn floor_of(workload: &str, metric: &str) -> Option<(&'static str, &'static str)> {
    match workload {
        "waits" if metric.ends_with(ONE_CORE) => Some((PARK, "crossing_one_core")),
        "waits" => Some(("floor/spin", "crossing")),
        "latency" => Some(match (metric.starts_with("p99"), metric.ends_with(ONE_CORE)) {
            (true, true) => (PARK, "p99_one_core"),
            (true, false) => (PARK, "p99"),
            (false, true) => (PARK, "median_one_core"),
            (false, false) => ("floor/spin", "median"),
        }),
        _ => Some((find(workload)?.floors.first()?, "ns_per_op")),
    }
}

/// The round trip of threads that park.
const PARK: &str = "floor/park";

/// The end of the metrics of runs pinned to one core.
pub const ONE_CORE: &str = "_one_core";
