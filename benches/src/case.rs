//! Cases: the workloads and floors by name, and the sizes they run at.

use crate::error::Error;
use crate::{floors, workloads};

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
}

/// How much each case does. Operations, unless said otherwise.
#[derive(Copy, Clone, Debug)]
pub struct Sizes {
    /// Chain, independent, memory, ring hops and clock reads.
    pub ops: usize,
    /// Random.
    pub random: usize,
    /// Fan: rounds of one write and 64 reads.
    pub rounds: usize,
    /// Latency and round trips: submissions.
    pub trips: usize,
    /// Small op.
    pub small: usize,
}

impl Sizes {
    /// The sizes that figures are compared at.
    pub const FULL: Sizes = Sizes { ops: 1_000_000, random: 500_000, rounds: 5_000, trips: 20_000, small: 100_000 };

    /// Enough to see that every case works; the figures mean nothing.
    pub const QUICK: Sizes = Sizes { ops: 20_000, random: 2_000, rounds: 20, trips: 100, small: 500 };

    /// What runs before the clock starts: streams are opened, slots and memory are there, branches are learnt.
    #[must_use]
    pub fn warm_up(&self) -> Sizes {
        let Sizes { ops, random, rounds, trips, small } = *self;
        Sizes { ops: ops / 10, random: random / 10, rounds: rounds / 10, trips: trips / 10, small: small / 10 }
    }
}

/// One workload or floor.
#[derive(Copy, Clone)]
pub struct Case {
    /// Its name in reports; floors start with `floor/`.
    pub name: &'static str,
    /// Whether each run gets a process of its own, since what it measures belongs to a process.
    pub own_process: bool,
    /// Measures once. Warms up by itself.
    pub run: fn(&Sizes) -> Result<Vec<Sample>, Error>,
}

impl Case {
    const fn new(name: &'static str, run: fn(&Sizes) -> Result<Vec<Sample>, Error>) -> Case {
        Case { name, own_process: false, run }
    }

    /// Whether the engine runs in it.
    pub fn is_workload(&self) -> bool {
        !self.name.starts_with("floor/")
    }
}

/// All cases; each floor follows the workload that it is the floor of, so that the two run close in time.
pub const CASES: [Case; 16] = [
    Case::new("chain", workloads::graph::chain),
    Case::new("floor/chain", floors::graph::chain),
    Case::new("independent", workloads::graph::independent),
    Case::new("floor/independent", floors::graph::independent),
    Case::new("random", workloads::graph::random),
    Case::new("floor/random", floors::graph::random),
    Case::new("fan", workloads::graph::fan),
    Case::new("floor/fan", floors::graph::fan),
    Case::new("latency", workloads::latency::latency),
    Case::new("floor/spin", floors::threads::spin),
    Case::new("floor/park", floors::threads::park),
    Case::new("floor/ring", floors::threads::ring),
    Case::new("floor/clock", floors::threads::clock),
    Case { own_process: true, ..Case::new("memory", workloads::memory::memory) },
    Case::new("small_op", workloads::small_op::small_op),
    Case::new("floor/small_op", floors::small_op::small_op),
];

/// The case of that name.
pub fn find(name: &str) -> Option<&'static Case> {
    CASES.iter().find(|case| case.name == name)
}

/// The floor under a metric of a workload: its case and metric. `None` where there is none, and for floors.
///
/// Two threads that spin on two cores are as quick as a round trip gets; its tail, and one core, are those of
/// threads that park.
pub fn floor_of(workload: &str, metric: &str) -> Option<(&'static str, &'static str)> {
    Some(match workload {
        "chain" => ("floor/chain", "ns_per_op"),
        "independent" => ("floor/independent", "ns_per_op"),
        "random" => ("floor/random", "ns_per_op"),
        "fan" => ("floor/fan", "ns_per_op"),
        "small_op" => ("floor/small_op", "ns_per_op"),
        "latency" if metric.starts_with("p99") => ("floor/park", "p99"),
        "latency" if metric.ends_with(ONE_CORE) => ("floor/park", "median"),
        "latency" => ("floor/spin", "median"),
        _ => return None,
    })
}

/// The end of the metrics of runs pinned to one core.
pub const ONE_CORE: &str = "_one_core";
