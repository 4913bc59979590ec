//! Graphs as programs of streamvm of many rows: the tasks of [`ROWS`] rows are functions of one program on two lanes, which is compiled once and run for each such part of the
//! graph. The compiler decides which lane runs a task, and which lane waits for the other; two threads run the lanes.
//!
//! The slots of a version are a tensor, a parameter of the program, and each task uses views of one element. A function is called once in each run, so it counts
//! rows by itself. Rows of growing patterns have the functions of complete rows, and those of tasks that are not there, or after the last row, do nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use streamvm::program::{CompileOptions, Recorder};
use streamvm::{DType, Executable, Tensor, Vm};

use super::board::{Board, Graph, Place, VERSIONS};
use super::error::Error;
use super::metg::CORES;
use super::pattern::Pattern;
use super::programs::round;
use super::streamvm::DEVICE;

/// At least so many rows are one program: enough that a run's submission and its end cost little beside its tasks.
const ROWS: u32 = 128;

/// The program of a pattern and a width.
pub(super) struct GraphProgram {
    of: (Pattern, u32),
    rows: u32,
    executable: Executable,
    tasks: Arc<Tasks>,
}

/// The board of the graph and the counters that all functions of the program use.
struct Tasks {
    board: &'static Board,
    /// For each function the row of its next call: by column, then by row, so that threads that run other columns write other cache lines.
    next: Vec<AtomicU32>,
    /// The rows of the current graph.
    steps: AtomicU32,
    iterations: AtomicU64,
}

impl GraphProgram {
    /// Records and compiles the program for the board of a graph.
    ///
    /// # Errors
    /// streamvm refused.
    pub(super) fn new(vm: &Vm, board: &'static Board, graph: &Graph) -> Result<GraphProgram, Error> {
        let (width, rows) = (graph.width, ROWS.next_multiple_of(round(graph)));
        let slots = |_| vm.zeros(DEVICE, DType::U8, &[width as usize]);
        let tensors: Vec<Tensor> = (0..VERSIONS).map(slots).collect::<Result<_, _>>()?;
        let next = (0..rows * width).map(|_| AtomicU32::new(0)).collect();
        let tasks = Arc::new(Tasks { board, next, steps: AtomicU32::new(0), iterations: AtomicU64::new(0) });
        let names: Vec<String> = (0..VERSIONS).map(|version| format!("slots{version}")).collect();
        let program = vm.record("graph", |r: &Recorder| {
            let parameters = names.iter().zip(&tensors).map(|(name, tensor)| r.parameter(name, tensor));
            let parameters: Vec<Tensor> = parameters.collect::<Result<_, _>>()?;
            let view = |slot: usize| {
                let (version, column) = (slot / width as usize, slot % width as usize);
                parameters[version].slice(0, column..column + 1)
            };
            for function in 0..rows * width {
                let (row, column) = (function / width, function % width);
                // A row like it, before which all columns are there.
                let like = Place { step: row + rows * (width + 1), column };
                let reads = board.reads(like).map(view).collect::<Result<Vec<Tensor>, _>>()?;
                let written = view(board.writes(like))?;
                let uses = reads.iter().map(Tensor::read).chain([written.update()]);
                let tasks = tasks.clone();
                let number = (column * rows + row) as usize;
                r.call_fn_on_workers("task", DEVICE, uses, move |_| Ok(tasks.run(number, column, rows)?))?;
            }
            Ok(())
        })?;
        let bound: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&tensors).collect();
        // Threads of one process see each other's writes soon: a small task is worth another lane.
        let options = CompileOptions { lanes: CORES, hand_over_ns: 0, ..CompileOptions::default() };
        let executable = vm.compile(&program, &bound, &options)?;
        Ok(GraphProgram { of: (graph.pattern, width), rows, executable, tasks })
    }

    /// Whether it is that of a graph.
    pub(super) fn fits(&self, graph: &Graph) -> bool {
        self.of == (graph.pattern, graph.width)
    }

    /// Submits the runs of all rows.
    ///
    /// # Errors
    /// streamvm refused.
    pub(super) fn submit(&self, graph: &Graph) -> Result<(), Error> {
        let rows = self.rows as usize;
        self.tasks.steps.store(graph.steps, Relaxed);
        self.tasks.iterations.store(graph.iterations, Relaxed);
        self.tasks.next.iter().enumerate().for_each(|(function, next)| next.store((function % rows) as u32, Relaxed));
        for _ in 0..graph.steps.div_ceil(self.rows) {
            self.executable.run(&[])?;
        }
        Ok(())
    }
}

impl Tasks {
    /// Runs the task of a function in its next row. Runs follow each other, so no two threads run it at a time.
    fn run(&self, function: usize, column: u32, rows: u32) -> Result<(), Error> {
        let step = self.next[function].load(Relaxed);
        self.next[function].store(step + rows, Relaxed);
        if step < self.steps.load(Relaxed) && self.board.row(step).contains(&column) {
            self.board.run(Place { step, column }, self.iterations.load(Relaxed))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rows_are_one_instruction_on_two_lanes() {
        let vm = Vm::builder().cpu_threads(2).build().unwrap();
        for pattern in Pattern::ALL {
            let graph = Graph { pattern, width: 8, steps: 0, iterations: 0 };
            let board: &'static Board = Box::leak(Box::new(Board::new(pattern, 8)));
            let program = GraphProgram::new(&vm, board, &graph).unwrap();
            let [segment] = program.executable.compiled().segments() else { panic!("{}", pattern.name()) };
            let lanes = segment.branches.iter().map(|branch| branch.lane + 1).max();
            assert_eq!(lanes, Some(2), "{}", pattern.name());
        }
    }
}
