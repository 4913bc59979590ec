//! The search for the METG of an engine: which iteration counts are tried, and how often.

use super::board::Graph;
use super::error::Error;
use super::kernel::FLOP_PER_ITERATION;
use super::pattern::Pattern;

/// Cores that every engine uses: two threads that run tasks, or two ranks.
pub const CORES: u32 = 2;

/// How thorough a search is.
#[derive(Copy, Clone, Debug)]
pub struct Search {
    /// The share of the peak that counts as reached.
    share: f64,
    /// Iterations of the tasks that the peak is measured with.
    peak: u64,
    /// Iterations of the first tasks that are tried.
    start: u64,
    /// How long one run of a graph should take, in seconds.
    target: f64,
    /// Runs of each size; the fastest counts, because other processes only slow a run.
    repeats: u32,
}

impl Search {
    /// The search whose figures are compared. The tasks of the peak take about 0.3 ms, ten times the METG of the slowest engine that keeps up.
    /// A run takes 10 ms: a hundred times the start and the end of a graph, when not all threads work.
    pub const FULL: Search = Search { share: 0.5, peak: 1 << 18, start: 1 << 14, target: 0.01, repeats: 3 };

    /// A search that only shows that everything works: it goes down to tasks of one iteration whatever they reach.
    pub const QUICK: Search = Search { share: 0.0, peak: 1 << 10, start: 1 << 4, target: 0.0002, repeats: 1 };
}

/// Factor between the sizes that are tried until one reaches the share and the next does not.
const FACTOR: u64 = 4;

/// Between two sizes closer than this, the METG is interpolated.
const CLOSE: f64 = 1.25;

/// Rows of a graph for each of its columns, at least: rows of some patterns grow, and until then not all threads work.
const ROWS_A_COLUMN: u32 = 8;

/// Tasks of the peak: enough that their end, when one thread has nothing left, is 2 % at most.
const PEAK_TASKS: u32 = 96;

/// The most rows of a graph; a bound for the memory of engines that keep all tasks.
const MOST_ROWS: u32 = 200_000;

/// A size that was measured.
#[derive(Copy, Clone, Debug)]
struct Point {
    iterations: u64,
    /// Wall time × cores / tasks, in seconds.
    granularity: f64,
    /// Share of the peak.
    efficiency: f64,
}

/// The METG in seconds of an engine that runs a graph and returns the seconds that it took.
///
/// # Errors
/// Those of `run`; [`Error::NotReached`] if no size reaches the share of the peak.
pub fn metg(
    search: &Search,
    pattern: Pattern,
    width: u32,
    mut run: impl FnMut(&Graph) -> Result<f64, Error>,
) -> Result<f64, Error> {
    let peak = peak(search, width, &mut run)?;
    let mut guess = peak.seconds_of(search.start);
    let mut measure = |iterations: u64, guess: f64| -> Result<Point, Error> {
        let rows = search.target * f64::from(CORES) / guess / f64::from(width);
        let steps = (rows as u32).clamp(ROWS_A_COLUMN * width, MOST_ROWS);
        let graph = Graph { pattern, width, steps, iterations };
        let seconds = fastest(search.repeats, &graph, &mut run)?;
        let granularity = seconds * f64::from(CORES) / graph.tasks() as f64;
        Ok(Point { iterations, granularity, efficiency: peak.seconds_of(iterations) / granularity })
    };
    let (mut reached, mut missed): (Option<Point>, Option<Point>) = (None, None);
    let mut iterations = search.start;
    let (mut reached, mut missed) = loop {
        let point = measure(iterations, guess)?;
        if point.efficiency >= search.share {
            reached = Some(point);
            iterations = (iterations / FACTOR).max(1);
            guess = point.granularity;
        } else {
            missed = Some(point);
            iterations *= FACTOR;
            guess = point.granularity * FACTOR as f64;
        }
        match (reached, missed) {
            (Some(reached), Some(missed)) => break (reached, missed),
            (Some(reached), None) if reached.iterations == 1 => return Ok(reached.granularity),
            (None, Some(missed)) if iterations > search.peak => {
                let (largest_us, efficiency) = (missed.granularity * 1e6, missed.efficiency);
                return Err(Error::NotReached { largest_us, efficiency });
            }
            _ => {}
        }
    };
    while reached.iterations as f64 > missed.iterations as f64 * CLOSE && reached.iterations - missed.iterations > 1 {
        let middle = ((reached.iterations as f64 * missed.iterations as f64).sqrt() as u64)
            .clamp(missed.iterations + 1, reached.iterations - 1);
        let point = measure(middle, reached.granularity)?;
        if point.efficiency >= search.share { reached = point } else { missed = point }
    }
    Ok(between(missed, reached, search.share))
}

/// The granularity at which the efficiency is `share`: the efficiency is taken for linear in the logarithm of the granularity.
fn between(missed: Point, reached: Point, share: f64) -> f64 {
    let part = (share - missed.efficiency) / (reached.efficiency - missed.efficiency);
    missed.granularity * (reached.granularity / missed.granularity).powf(part)
}

/// The peak rate of an engine.
struct Peak {
    /// Floating-point operations a second, all cores together.
    flops: f64,
}

impl Peak {
    /// What a task takes at the peak, as wall time × cores.
    fn seconds_of(&self, iterations: u64) -> f64 {
        (iterations * FLOP_PER_ITERATION) as f64 * f64::from(CORES) / self.flops
    }
}

/// Measures the peak with independent tasks: a pattern that an engine cannot run on all cores is not to have a lower one. The first run is
/// not counted: it starts threads.
fn peak(search: &Search, width: u32, run: &mut impl FnMut(&Graph) -> Result<f64, Error>) -> Result<Peak, Error> {
    let steps = PEAK_TASKS.div_ceil(width);
    let graph = Graph { pattern: Pattern::Trivial, width, steps, iterations: search.peak };
    run(&Graph { iterations: 1, ..graph })?;
    let seconds = fastest(search.repeats, &graph, run)?;
    Ok(Peak { flops: (graph.tasks() * search.peak * FLOP_PER_ITERATION) as f64 / seconds })
}

fn fastest(repeats: u32, graph: &Graph, run: &mut impl FnMut(&Graph) -> Result<f64, Error>) -> Result<f64, Error> {
    (0..repeats).try_fold(f64::INFINITY, |fastest, _| Ok(fastest.min(run(graph)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine that adds `overhead` seconds to each task, whose iterations take a nanosecond.
    fn engine(overhead: f64) -> impl FnMut(&Graph) -> Result<f64, Error> {
        move |graph| Ok(graph.tasks() as f64 * (graph.iterations as f64 * 1e-9 + overhead) / f64::from(CORES))
    }

    #[test]
    fn half_of_the_peak_is_reached_when_a_task_works_as_long_as_it_costs() {
        for overhead in [2e-7, 1e-6, 1e-5, 5e-5] {
            for pattern in [Pattern::Trivial, Pattern::Dom, Pattern::Tree] {
                // The tasks of the peak have the overhead, too: this part of their work.
                let part = overhead / (Search::FULL.peak as f64 * 1e-9);
                let expected = 2.0 * overhead * (1.0 + part) / (1.0 + 2.0 * part);
                let found = metg(&Search::FULL, pattern, 8, engine(overhead)).unwrap();
                assert!((found / expected - 1.0).abs() < 0.03, "{found} instead of {expected} for {overhead}");
            }
        }
    }

    #[test]
    fn an_engine_with_less_overhead_than_an_iteration_has_the_granularity_of_one() {
        let found = metg(&Search::FULL, Pattern::Trivial, 2, engine(1e-10)).unwrap();
        assert!((found / 1.1e-9 - 1.0).abs() < 1e-6, "{found}");
    }

    #[test]
    fn an_engine_that_runs_a_pattern_on_one_core_does_not_pass_for_one_on_two() {
        let mut two = engine(1e-6);
        let slow = move |graph: &Graph| {
            let seconds = two(graph)?;
            Ok(if graph.pattern == Pattern::Trivial { seconds } else { 2.1 * seconds })
        };
        let error = metg(&Search::FULL, Pattern::Fft, 8, slow).unwrap_err();
        assert!(matches!(error, Error::NotReached { .. }), "{error}");
    }

    #[test]
    fn runs_are_neither_long_nor_too_short_for_rows_that_grow() {
        let mut inner = engine(1e-6);
        let checked = |graph: &Graph| {
            let seconds = inner(graph)?;
            assert!(seconds < 0.2, "{graph:?} takes {seconds}");
            assert!(graph.steps * graph.width >= PEAK_TASKS);
            Ok(seconds)
        };
        metg(&Search::FULL, Pattern::Tree, 8, checked).unwrap();
    }
}
