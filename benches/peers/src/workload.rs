//! The workloads that streamvm and its peers share.

use streamvm_benches::harness::case::Sizes;

/// What is asked of an engine. The operations are empty but for counting themselves, so that their loss is noticed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Each operation reads and writes the one variable there is.
    Chain,
    /// Each operation writes its own of 1,024 variables, round robin.
    Independent,
    /// Each operation reads 1 to 3 of 256 variables and writes another: the fixed sequence of
    /// [`streamvm_benches::workloads::generate`].
    Random,
    /// The same, and each operation works for 1 to 9 µs: what counts is when the last one ends. For engines with two workers.
    Irregular,
    /// Rounds of one write of a variable, then 64 reads of it.
    Fan,
    /// One operation is handed over and waited for, then the next.
    Latency,
}

impl Workload {
    /// All workloads.
    pub const ALL: [Workload; 6] = [
        Workload::Chain,
        Workload::Independent,
        Workload::Random,
        Workload::Irregular,
        Workload::Fan,
        Workload::Latency,
    ];

    /// Its name in reports, and as a case of [`streamvm_benches::catalogue::cases`].
    pub fn name(self) -> &'static str {
        match self {
            Workload::Chain => "chain",
            Workload::Independent => "independent",
            Workload::Random => "random",
            Workload::Irregular => "irregular",
            Workload::Fan => "fan",
            Workload::Latency => "latency",
        }
    }

    /// How much of it there is: operations, rounds or round trips.
    pub fn count(self, sizes: &Sizes) -> usize {
        match self {
            Workload::Chain | Workload::Independent => sizes.ops,
            Workload::Random => sizes.random,
            Workload::Irregular => sizes.irregular,
            Workload::Fan => sizes.rounds,
            Workload::Latency => sizes.trips,
        }
    }
}
