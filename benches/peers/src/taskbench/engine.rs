//! The engines that run the patterns, and a case: one pattern on one engine.

use std::path::Path;

use streamvm_benches::harness::case::Sample;

use super::board::Graph;
use super::error::Error;
use super::metg::{Search, metg};
use super::native::Native;
use super::pattern::Pattern;
use super::streamvm::{Streamvm, Way};
use crate::driver::Driver;

/// streamvm in one of its ways, or a peer, with two threads that run tasks.
pub struct Engine {
    /// Its name in reports.
    pub name: &'static str,
    /// The program that runs the engine.
    pub program: Program,
}

/// The program that runs an engine.
pub enum Program {
    /// This program.
    Streamvm(Way),
    /// A program in another language, which need not be there.
    Driver(Driver),
}

/// All engines, streamvm's first.
pub static ENGINES: [Engine; 9] = [
    Engine { name: "streamvm workers", program: Program::Streamvm(Way::Workers) },
    Engine { name: "streamvm streams", program: Program::Streamvm(Way::Streams) },
    Engine { name: "streamvm lists", program: Program::Streamvm(Way::Lists) },
    Engine { name: "streamvm program", program: Program::Streamvm(Way::Programs) },
    Engine { name: "streamvm graph", program: Program::Streamvm(Way::GraphPrograms) },
    // The thread that makes the tasks is one of the two.
    driver("openmp gcc", "libgomp", &[("OMP_NUM_THREADS", "2")]),
    driver("openmp clang", "libomp", &[("OMP_NUM_THREADS", "2")]),
    // Memory of pending tasks is what its time goes to; a bound keeps them in the cache.
    driver(
        "starpu",
        "starpu",
        &[
            ("STARPU_NCPU", "2"),
            ("STARPU_LIMIT_MAX_SUBMITTED_TASKS", "4096"),
            ("STARPU_LIMIT_MIN_SUBMITTED_TASKS", "3072"),
        ],
    ),
    // No scheduler: each rank runs the tasks of its columns in order.
    driver("mpi", "mpi", &[]),
];

const fn driver(
    name: &'static str,
    folder: &'static str,
    environment: &'static [(&'static str, &'static str)],
) -> Engine {
    Engine { name, program: Program::Driver(Driver { folder, setting: None, environment }) }
}

/// One pattern on one engine.
#[derive(Copy, Clone)]
pub struct Case {
    /// The pattern.
    pub pattern: Pattern,
    /// The engine.
    pub engine: &'static Engine,
}

impl PartialEq for Case {
    /// Engines have names of their own.
    fn eq(&self, other: &Case) -> bool {
        (self.pattern, self.engine.name) == (other.pattern, other.engine.name)
    }
}

/// Runs a graph and returns the seconds that it took.
type Run = Box<dyn FnMut(&Graph) -> Result<f64, Error>>;

impl Case {
    /// The name of the case: `pattern/engine`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.pattern.name(), self.engine.name)
    }

    /// All cases: pattern by pattern, so that engines on the same one run close in time.
    pub fn all() -> impl Iterator<Item = Case> {
        Pattern::ALL.into_iter().flat_map(|pattern| ENGINES.iter().map(move |engine| Case { pattern, engine }))
    }

    /// Finds the METG for each of `widths`, in µs. `drivers` is the folder where drivers are built.
    ///
    /// # Errors
    /// The engine failed, is not there, does not reach the share of its peak, or a task found a wrong input.
    pub fn measure(&self, drivers: &Path, search: &Search, widths: &[u32]) -> Result<Vec<Sample>, Error> {
        let mut run: Run = match &self.engine.program {
            Program::Streamvm(way) => {
                let mut streamvm = Streamvm::new(*way)?;
                Box::new(move |graph| streamvm.run(graph))
            }
            Program::Driver(driver) => {
                let mut native = Native::start(driver, drivers)?;
                Box::new(move |graph| native.run(graph))
            }
        };
        let sample = |width: &u32| {
            let value = metg(search, self.pattern, *width, &mut run)? * 1e6;
            Ok(Sample { metric: metric(*width), unit: "us".to_owned(), value })
        };
        widths.iter().map(sample).collect()
    }
}

/// The metric of a width.
pub fn metric(width: u32) -> String {
    format!("metg_width_{width}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_cases_apart() {
        for case in Case::all() {
            assert_eq!(Case::all().filter(|other| other.name() == case.name()).count(), 1, "{}", case.name());
        }
    }

    #[test]
    fn a_quick_search_has_a_figure_for_each_width_of_each_way() {
        for case in Case::all().filter(|case| matches!(case.engine.program, Program::Streamvm(_))) {
            let samples = case.measure(Path::new(""), &Search::QUICK, &[2, 3]).unwrap();
            let metrics: Vec<_> = samples.iter().map(|sample| sample.metric.as_str()).collect();
            assert_eq!(metrics, ["metg_width_2", "metg_width_3"], "{}", case.name());
            assert!(samples.iter().all(|sample| sample.value > 0.0 && sample.value.is_finite()), "{samples:?}");
        }
    }
}
