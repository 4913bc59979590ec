//! Graphs as programs of streamvm: the tasks of a row that run on one stream are functions of one program, which is compiled once and run for each row.
//!
//! Rows repeat: their slots after [`VERSIONS`] of them, their inputs after a period of the pattern. So there is a program for each row of such a round and for each
//! stream. The slots of a version that tasks of one stream write are a tensor, a parameter of the programs whose tasks use one of them. The engine orders the
//! runs by these parameters: a run waits for the other stream only where one of its tasks reads what a task of that stream writes.
//!
//! A function is called once in each run of its program, so it counts rows by itself. Rows of growing patterns have the functions of complete rows, and those of
//! tasks that are not there yet do nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use streamvm::program::{CompileOptions, Recorder};
use streamvm::{DType, Executable, Lane, Tensor, Vm};

use super::board::{Board, Graph, Place, VERSIONS};
use super::error::Error;
use super::metg::CORES;
use super::pattern::Pattern;
use super::streamvm::{DEVICE, lane_of};

/// The programs of a pattern and a width.
pub(super) struct Programs {
    /// The pattern and the width.
    of: (Pattern, u32),
    /// For each row of a round the programs of its streams.
    rows: Vec<Vec<RowProgram>>,
    /// The iterations of the tasks of the current graph.
    iterations: Arc<AtomicU64>,
}

/// The tasks of a row that run on one stream.
struct RowProgram {
    lane: u32,
    executable: Executable,
    /// The row of its next run.
    step: Arc<AtomicU32>,
}

impl Programs {
    /// Records and compiles the programs for the board of a graph.
    ///
    /// # Errors
    /// streamvm refused.
    pub(super) fn new(vm: &Vm, board: &'static Board, graph: &Graph) -> Result<Programs, Error> {
        let slots = Slots::new(vm, graph)?;
        let iterations = Arc::default();
        let round = round(graph);
        let row = |first: u32| -> Result<Vec<RowProgram>, Error> {
            let lanes = (0..CORES).filter(|lane| !columns(graph, *lane).is_empty());
            lanes.map(|lane| slots.record(vm, board, graph, (first, lane), &iterations, |_| true)).collect()
        };
        let rows = (0..round).map(row).collect::<Result<_, _>>()?;
        Ok(Programs { of: (graph.pattern, graph.width), rows, iterations })
    }

    /// Whether they are those of a graph.
    pub(super) fn fits(&self, graph: &Graph) -> bool {
        self.of == (graph.pattern, graph.width)
    }

    /// Submits the runs of all rows.
    ///
    /// # Errors
    /// streamvm refused.
    pub(super) fn submit(&self, graph: &Graph) -> Result<(), Error> {
        self.iterations.store(graph.iterations, Relaxed);
        for (first, row) in (0..).zip(&self.rows) {
            row.iter().for_each(|program| program.step.store(first, Relaxed));
        }
        for step in 0..graph.steps {
            for program in &self.rows[step as usize % self.rows.len()] {
                program.run()?;
            }
        }
        Ok(())
    }
}

impl RowProgram {
    fn run(&self) -> Result<(), Error> {
        let _lane = Lane(self.lane).enter();
        self.executable.run(&[])?;
        Ok(())
    }
}

/// After how many rows both slots and inputs repeat.
pub(super) fn round(graph: &Graph) -> u32 {
    let period = graph.pattern.period(graph.width);
    (1..).map(|rounds| rounds * VERSIONS).find(|rows| rows % period == 0).unwrap_or(VERSIONS)
}

/// The columns whose tasks run on a lane.
fn columns(graph: &Graph, lane: u32) -> Vec<u32> {
    (0..graph.width).filter(|column| lane_of(*column, graph) == lane).collect()
}

/// A tensor for the slots of each version and lane.
struct Slots {
    width: u32,
    /// By version, then by lane; a lane without columns has a tensor of one slot, which nobody uses.
    tensors: Vec<Tensor>,
    /// For each column its lane, and its place among the columns of the lane.
    places: Vec<(usize, usize)>,
}

impl Slots {
    fn new(vm: &Vm, graph: &Graph) -> Result<Slots, Error> {
        let lanes: Vec<Vec<u32>> = (0..CORES).map(|lane| columns(graph, lane)).collect();
        let mut tensors = Vec::new();
        for _ in 0..VERSIONS {
            for lane in &lanes {
                tensors.push(vm.zeros(DEVICE, DType::U8, &[lane.len().max(1)])?);
            }
        }
        let place = |column: u32| {
            let lane = lane_of(column, graph) as usize;
            (lane, lanes[lane].iter().position(|other| *other == column).unwrap_or_default())
        };
        Ok(Slots { width: graph.width, tensors, places: (0..graph.width).map(place).collect() })
    }

    /// The tensor of a slot of the board, as an index, and the place of the slot in it.
    fn find(&self, slot: usize) -> (usize, usize) {
        let (version, column) = (slot / self.width as usize, slot % self.width as usize);
        let (lane, place) = self.places[column];
        (version * CORES as usize + lane, place)
    }

    /// Records and compiles the tasks of a row on a lane. Tasks declare the inputs that `keep` accepts: all of them, unless a test wants to see that one is missing.
    fn record(
        &self,
        vm: &Vm,
        board: &'static Board,
        graph: &Graph,
        (first, lane): (u32, u32),
        iterations: &Arc<AtomicU64>,
        keep: impl Fn(usize) -> bool,
    ) -> Result<RowProgram, Error> {
        let round = round(graph);
        let step = Arc::new(AtomicU32::new(first));
        let columns = columns(graph, lane);
        // A row like it, before which all columns are there.
        let step_like = first + round * (graph.width + 1);
        let complete = move |column: u32| Place { step: step_like, column };
        let keep = &keep;
        let read = move |column: u32| board.reads(complete(column)).filter(move |slot| keep(*slot));
        let used = columns.iter().flat_map(|column| read(*column).chain([board.writes(complete(*column))]));
        let mut parameters: Vec<usize> = used.map(|slot| self.find(slot).0).collect();
        parameters.sort_unstable();
        parameters.dedup();
        let name = |tensor: usize| format!("slots{tensor}");
        let program = vm.record("row", |r: &Recorder| {
            let tensors = parameters.iter().map(|tensor| r.parameter(name(*tensor), &self.tensors[*tensor]));
            let tensors = tensors.collect::<Result<Vec<Tensor>, _>>()?;
            let view = |slot: usize| {
                let (tensor, place) = self.find(slot);
                let parameter = parameters.binary_search(&tensor);
                let parameter = parameter.unwrap_or_else(|_| unreachable!("each used tensor is a parameter"));
                tensors[parameter].slice(0, place..place + 1)
            };
            for &column in &columns {
                let reads = read(column).map(view).collect::<Result<Vec<Tensor>, _>>()?;
                let written = view(board.writes(complete(column)))?;
                let (next, iterations) = (step.clone(), iterations.clone());
                let is_last = columns.last() == Some(&column);
                let uses = reads.iter().map(Tensor::read).chain([written.update()]);
                r.call_fn("task", DEVICE, uses, move |_| {
                    let step = next.load(Relaxed);
                    if is_last {
                        next.store(step + round, Relaxed);
                    }
                    if board.row(step).contains(&column) {
                        board.run(Place { step, column }, iterations.load(Relaxed))?;
                    }
                    Ok(())
                })?;
            }
            Ok(())
        })?;
        let names: Vec<String> = parameters.iter().map(|tensor| name(*tensor)).collect();
        let bound: Vec<(&str, &Tensor)> =
            names.iter().map(String::as_str).zip(parameters.iter().map(|tensor| &self.tensors[*tensor])).collect();
        Ok(RowProgram { lane, executable: vm.compile(&program, &bound, &CompileOptions::default())?, step })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_row_is_one_instruction_for_each_stream() {
        let vm = Vm::builder().cpu_threads(2).build().unwrap();
        for pattern in Pattern::ALL {
            let graph = Graph { pattern, width: 8, steps: 0, iterations: 0 };
            let board: &'static Board = Box::leak(Box::new(Board::new(pattern, 8)));
            let programs = Programs::new(&vm, board, &graph).unwrap();
            for program in programs.rows.iter().flatten() {
                let compiled = program.executable.compiled();
                assert_eq!((compiled.segments().len(), compiled.steps().len()), (1, 4), "{compiled}");
            }
        }
    }

    /// Row 0 of a stencil, whose tasks on the second stream stand behind a gate, and the tasks of row 1 on the first one, which lack the input of one of them.
    fn without_an_input(dropped: Option<u32>) -> Result<(), Error> {
        let vm = Vm::builder().cpu_threads(2).build()?;
        let graph = Graph { pattern: Pattern::Stencil1d, width: 4, steps: 2, iterations: 1 };
        let board: &'static Board = Box::leak(Box::new(Board::new(graph.pattern, graph.width)));
        let (slots, iterations) = (Slots::new(&vm, &graph)?, Arc::default());
        let record = |row, lane, dropped: Option<u32>| {
            let is_dropped = |slot| dropped.is_some_and(|column| slot == board.writes(Place { step: 0, column }));
            slots.record(&vm, board, &graph, (row, lane), &iterations, |slot| !is_dropped(slot))
        };
        let (open, opened) = mpsc::channel::<()>();
        let (tensor, _) = slots.find(board.writes(Place { step: 0, column: 2 }));
        let lane = Lane(1).enter();
        vm.call_fn("gate", DEVICE, [slots.tensors[tensor].update()], move |_| {
            // An error means that the sender was dropped, which opens the gate, too.
            let _ = opened.recv();
            Ok(())
        })?;
        drop(lane);
        record(0, 0, None)?.run()?;
        record(0, 1, None)?.run()?;
        let row = record(1, 0, dropped)?;
        let _lane = Lane(row.lane).enter();
        let run = row.executable.run(&[])?;
        let outcome = if dropped.is_some() { run.wait() } else { Ok(()) };
        drop(open);
        outcome?;
        run.wait()?;
        Ok(vm.wait_all()?)
    }

    #[test]
    fn a_program_that_lacks_an_input_of_the_other_stream_fails_and_says_which_was_wrong() {
        without_an_input(None).unwrap();
        let error = without_an_input(Some(2)).unwrap_err().to_string();
        let said =
            "the task at (step 1, column 1) found the output of no task where that of (step 0, column 2) belongs";
        assert!(error.contains(said), "{error}");
    }
}
