//! Which figures of streamvm a peer's figure is read against: those of streamvm asked the same way.
//!
//! A peer that takes one call an operation is read against streamvm taking one submission an operation, which is alike,
//! and against streamvm taking lists, which is what a program would do. One that bundles operations by itself is read
//! against lists alone. A peer with several workers is read against streamvm's, and against several lanes, where streamvm runs
//! the workload so; on chain and independent it does not, and two workers are read against one lane.

use streamvm_benches::harness::case::ONE_CORE;

use crate::workload::Workload;

/// How a peer is asked.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Against {
    /// It is streamvm.
    Nothing,
    /// One call an operation, one worker.
    OneWorker,
    /// One call an operation, several workers.
    Workers,
    /// The peer makes lists of the calls.
    Lists,
    /// Everything runs in the caller's thread.
    Inline,
}

/// A figure of streamvm: the name of the engine, and the metric.
pub type Figure = (&'static str, String);

impl Against {
    /// The figures that `metric` of `workload` is read against, the most alike first. None of another name.
    pub fn figures(self, workload: Workload, metric: &str) -> Vec<Figure> {
        let (metric, end) = metric.strip_suffix(ONE_CORE).map_or((metric, ""), |metric| (metric, ONE_CORE));
        let engine = if self == Against::Inline { "streamvm inline" } else { "streamvm" };
        let metrics = match (workload, metric) {
            _ if self == Against::Nothing => vec![],
            (Workload::Latency, "median") => vec!["median_function"],
            (Workload::Latency, "p99") => vec!["p99_function"],
            (_, "ns_per_op") => self.per_op(workload),
            _ => vec![],
        };
        let alike = (self == Against::Workers).then(|| match workload {
            Workload::Latency => metrics.first().copied(),
            _ => metrics.first().map(|_| "ns_per_op_single"),
        });
        let alike = alike.flatten().map(|metric| ("streamvm workers", metric));
        let figures = alike.into_iter().chain(metrics.into_iter().map(|metric| (engine, metric)));
        figures.map(|(engine, metric)| (engine, metric.to_owned() + end)).collect()
    }

    fn per_op(self, workload: Workload) -> Vec<&'static str> {
        let single = "ns_per_op_single";
        let (lists, lists_on_lanes) = match workload {
            Workload::Random => ("ns_per_op_one_lane", "ns_per_op_four_lanes"),
            Workload::Fan => ("ns_per_op_one_lane", "ns_per_op_two_lanes"),
            Workload::Irregular => ("ns_per_op_lists", "ns_per_op_lists"),
            _ => ("ns_per_op_lists_of_64", "ns_per_op_lists_of_64"),
        };
        match self {
            Against::Nothing => vec![],
            Against::OneWorker | Against::Inline => vec![single, lists],
            Against::Workers => vec![single, lists_on_lanes],
            Against::Lists => vec![lists],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn like_is_read_against_like() {
        let figures = |against: Against, workload, metric| -> Vec<String> {
            let figures = against.figures(workload, metric);
            figures.into_iter().map(|(engine, metric)| format!("{engine}: {metric}")).collect()
        };
        assert_eq!(
            figures(Against::OneWorker, Workload::Random, "ns_per_op"),
            ["streamvm: ns_per_op_single", "streamvm: ns_per_op_one_lane"]
        );
        assert_eq!(
            figures(Against::Workers, Workload::Fan, "ns_per_op"),
            ["streamvm workers: ns_per_op_single", "streamvm: ns_per_op_single", "streamvm: ns_per_op_two_lanes"]
        );
        assert_eq!(
            figures(Against::Lists, Workload::Chain, "ns_per_op_one_core"),
            ["streamvm: ns_per_op_lists_of_64_one_core"]
        );
        assert_eq!(
            figures(Against::Inline, Workload::Independent, "ns_per_op")[0],
            "streamvm inline: ns_per_op_single"
        );
        assert_eq!(figures(Against::OneWorker, Workload::Latency, "p99"), ["streamvm: p99_function"]);
        assert!(figures(Against::Nothing, Workload::Latency, "median").is_empty());
        assert!(figures(Against::OneWorker, Workload::Chain, "another").is_empty());
    }
}
