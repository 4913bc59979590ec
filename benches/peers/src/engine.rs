//! The engines that are compared: what each can run, and the settings that it runs at.

use streamvm_benches::harness::case::{Sample, Sizes};
use streamvm_benches::harness::error::Error;

use streamvm_benches::workloads::{graph, latency, workers};

use crate::against::Against;
use crate::driver::Driver;
use crate::engines::{channel, inline, rayon, tokio};
use crate::workload::Workload::{self, Chain, Fan, Independent, Irregular, Latency, Random};

/// streamvm, or a peer, at some settings.
pub struct Engine {
    /// Its name in reports.
    pub name: &'static str,
    /// Which figures of streamvm its own are read against.
    pub against: Against,
    /// The program that runs the engine.
    pub program: Program,
}

/// The program that runs an engine, and the workloads that it has.
pub enum Program {
    /// This program: a function a workload.
    Here(&'static [(Workload, Run)]),
    /// A program in another language, which need not be there.
    Driver(Driver, &'static [Workload]),
}

/// Measures a workload once. Warms up by itself.
pub type Run = fn(&Sizes) -> Result<Vec<Sample>, Error>;

impl Engine {
    /// Whether it can run a workload at all.
    pub fn can_run(&self, workload: Workload) -> bool {
        match &self.program {
            Program::Here(runs) => runs.iter().any(|(of, _)| *of == workload),
            Program::Driver(_, workloads) => workloads.contains(&workload),
        }
    }
}

/// All engines, streamvm's first.
///
/// Two cores are the least that an engine is used on: one for the program that asks, one that works. So peers have one
/// worker, and two where that may gain them something.
pub static ENGINES: [Engine; 20] = [
    here(
        "streamvm",
        Against::Nothing,
        &[
            (Chain, graph::chain),
            (Independent, graph::independent),
            (Random, graph::random),
            (Fan, graph::fan),
            (Latency, latency::latency),
        ],
    ),
    // Functions on two workers, which is how peers run them.
    here(
        "streamvm workers",
        Against::Nothing,
        &[
            (Chain, workers::chain),
            (Independent, workers::independent),
            (Random, workers::random),
            (Irregular, workers::irregular),
            (Fan, workers::fan),
            (Latency, workers::latency),
        ],
    ),
    here(
        "streamvm inline",
        Against::Nothing,
        &[
            (Chain, inline::chain),
            (Independent, inline::independent),
            (Random, inline::random),
            (Irregular, inline::irregular),
            (Fan, inline::fan),
            (Latency, inline::latency),
        ],
    ),
    // One call of the C API an operation, as a program does that pushes functions of its own.
    mxnet("mxnet 1 worker", ALL, Against::OneWorker, "push", &[ONE_WORKER]),
    mxnet("mxnet 2 workers", TWO_WORKERS, Against::Workers, "push", &[("MXNET_CPU_WORKER_NTHREADS", "2")]),
    // Bulks gain it the most: it runs up to so many operations as one. 15 is what its executors use; 64 are streamvm's
    // lists.
    mxnet("mxnet bulk of 15", GRAPHS, Against::Lists, "bulk:15", &[ONE_WORKER]),
    mxnet("mxnet bulk of 64", GRAPHS, Against::Lists, "bulk:64", &[ONE_WORKER]),
    // Operators made before the clock starts, which spares it most of a push. streamvm builds within the clock.
    mxnet("mxnet prebuilt", ALL, Against::OneWorker, "prebuilt", &[ONE_WORKER]),
    // No worker: functions run in the caller's thread. For information, and read against the like alone.
    mxnet("mxnet naive", ALL, Against::Inline, "push", &[("MXNET_ENGINE_TYPE", "NaiveEngine")]),
    starpu("starpu 1 worker", ALL, Against::OneWorker, &[("STARPU_NCPU", "1")]),
    // Memory of pending tasks is what its time goes to; a bound keeps them in the cache.
    starpu("starpu bounded", GRAPHS, Against::OneWorker, &[("STARPU_NCPU", "1"), MOST_TASKS, FEWEST_TASKS]),
    starpu("starpu 2 workers", TWO_WORKERS, Against::Workers, &[("STARPU_NCPU", "2"), MOST_TASKS, FEWEST_TASKS]),
    // The thread that makes the tasks works, too, so these have as many threads as cores.
    native("openmp gcc 2 threads", "libgomp", &[("OMP_NUM_THREADS", "2")]),
    native("openmp clang 2 threads", "libomp", &[("OMP_NUM_THREADS", "2")]),
    native("onetbb 2 threads", "onetbb", &[("TBB_THREADS", "2")]),
    here(
        "rayon 1 thread",
        Against::OneWorker,
        &[(Independent, rayon::independent::<1>), (Latency, rayon::latency::<1>)],
    ),
    here(
        "rayon 2 threads",
        Against::Workers,
        &[(Independent, rayon::independent::<2>), (Latency, rayon::latency::<2>)],
    ),
    here(
        "tokio 1 thread",
        Against::OneWorker,
        &[(Chain, tokio::chain::<1>), (Independent, tokio::independent::<1>), (Latency, tokio::latency::<1>)],
    ),
    here(
        "tokio 2 threads",
        Against::Workers,
        &[(Chain, tokio::chain::<2>), (Independent, tokio::independent::<2>), (Latency, tokio::latency::<2>)],
    ),
    here("crossbeam-channel", Against::OneWorker, &[(Independent, channel::independent), (Latency, channel::latency)]),
];

const GRAPHS: &[Workload] = &[Chain, Independent, Random, Fan];
const ALL: &[Workload] = &[Chain, Independent, Random, Fan, Latency];
const TWO_WORKERS: &[Workload] = &[Chain, Independent, Random, Irregular, Fan, Latency];

const ONE_WORKER: (&str, &str) = ("MXNET_CPU_WORKER_NTHREADS", "1");

/// A submitter sleeps at 4,096 pending tasks until 3,072 are left.
const MOST_TASKS: (&str, &str) = ("STARPU_LIMIT_MAX_SUBMITTED_TASKS", "4096");
const FEWEST_TASKS: (&str, &str) = ("STARPU_LIMIT_MIN_SUBMITTED_TASKS", "3072");

const fn here(name: &'static str, against: Against, runs: &'static [(Workload, Run)]) -> Engine {
    Engine { name, against, program: Program::Here(runs) }
}

/// Settings are the driver's; variables of the environment choose the engine and its workers. Without them it is the
/// engine with a queue a device, MXNet's own default.
const fn mxnet(
    name: &'static str,
    workloads: &'static [Workload],
    against: Against,
    setting: &'static str,
    environment: &'static [(&'static str, &'static str)],
) -> Engine {
    let driver = Driver { folder: "mxnet", setting: Some(setting), environment };
    Engine { name, against, program: Program::Driver(driver, workloads) }
}

/// A task engine of C and C++ on two threads.
const fn native(
    name: &'static str,
    folder: &'static str,
    environment: &'static [(&'static str, &'static str)],
) -> Engine {
    let driver = Driver { folder, setting: None, environment };
    Engine { name, against: Against::Workers, program: Program::Driver(driver, TWO_WORKERS) }
}

/// Its default scheduler, work stealing by locality: `eager`, the simplest there is, measured no better.
const fn starpu(
    name: &'static str,
    workloads: &'static [Workload],
    against: Against,
    environment: &'static [(&'static str, &'static str)],
) -> Engine {
    let driver = Driver { folder: "starpu", setting: None, environment };
    Engine { name, against, program: Program::Driver(driver, workloads) }
}
