//! All workloads and floors by name, and the floor that each workload is compared with.

use crate::harness::case::{Case, ONE_CORE, PARK};
use crate::{floors, parts, workloads};

/// The floor of overlap.
const OVERLAP: &str = "floor/overlap";

/// All cases. Each floor follows its workload, so that the two run close in time.
pub const CASES: [Case; 39] = [
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
    Case::workload("overlap", &[OVERLAP], workloads::overlap::overlap),
    Case::floor(OVERLAP, floors::overlap::overlap),
    Case { own_process: true, ..Case::workload("beside_rayon", &[], workloads::beside::beside_rayon) },
    Case::workload("soft_sync", &["floor/soft_sync"], parts::soft_sync::soft_sync),
    Case::floor("floor/soft_sync", floors::soft_sync::soft_sync),
    Case::workload("allocator", &["floor/malloc"], parts::allocator::allocator),
    Case::floor("floor/malloc", floors::malloc::malloc),
    Case { own_process: true, ..Case::workload("idle", &[], workloads::idle::idle) },
    Case { own_process: true, ..Case::workload("memory", &[], workloads::memory::memory) },
    Case::workload("small_op", &["floor/small_op"], workloads::small_op::small_op),
    Case::floor("floor/small_op", floors::small_op::small_op),
    Case::workload("program_chain", &[], workloads::programs::chain),
    Case::workload("program_functions_chain", &["floor/chain"], workloads::program_functions::chain),
    Case::workload("program_functions_random", &["floor/random"], workloads::program_functions::random),
    Case::workload("program_functions_fan", &["floor/fan"], workloads::program_functions::fan),
    Case::workload("program_one_op", &[], workloads::programs::one_op),
    Case::workload("program_perceptron", &[], workloads::programs::perceptron),
    Case::workload("program_elementwise", &[], workloads::programs::elementwise),
];

/// The case of that name.
pub fn find(name: &str) -> Option<&'static Case> {
    CASES.iter().find(|case| case.name == name)
}

/// The cases with `part` in their names, and the floors of these cases.
pub fn matching(part: &str) -> Vec<&'static Case> {
    let named = |case: &&Case| case.name.contains(part);
    let is_floor_of_named = |case: &Case| CASES.iter().filter(named).any(|other| other.floors.contains(&case.name));
    CASES.iter().filter(|case| named(case) || is_floor_of_named(case)).collect()
}

/// The floor of a metric of a workload: its case and metric. `None` for a workload without a floor, and for a floor.
///
/// Two threads that spin on two cores give the fastest round trip. The floor of a p99, and of a run on one core, are two threads that
/// park: on one core, spinning would keep the other thread from running.
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
        "overlap" if metric.starts_with("copies") => Some((OVERLAP, "copies_and_products_of_the_longer")),
        "overlap" if metric.ends_with("worst_order") => Some((OVERLAP, "two_threads_of_one_worst")),
        "overlap" => Some((OVERLAP, "two_threads_of_one_median")),
        _ => Some((find(workload)?.floors.first()?, "ns_per_op")),
    }
}
