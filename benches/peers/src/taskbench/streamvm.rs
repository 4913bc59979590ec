//! Graphs on streamvm: a function a task, a variable a slot; or a program for the tasks of a row on one stream.

use std::time::Instant;

use streamvm::{DeviceId, FnError, InstructionsBuilder, Lane, Use, Var, Vm};
use streamvm_benches::workloads::graph::LIST;

use super::board::{Board, Graph, Place};
use super::error::Error;
use super::graph_programs::GraphProgram;
use super::metg::CORES;
use super::programs::Programs;

/// How tasks reach the engine.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Way {
    /// Functions on a pool of two workers, pushed one by one. Each runs as soon as its dependences are satisfied.
    Workers,
    /// Functions on two ordered streams, each on that of its column, submitted one by one.
    Streams,
    /// The same, in lists of 64.
    Lists,
    /// The functions of a row on one of these streams are a program, which was compiled before and is run for each row.
    Programs,
    /// The tasks of many rows are functions of one program, which was compiled before for two lanes.
    GraphPrograms,
}

/// streamvm with two threads that run tasks, beside the thread that submits.
pub struct Streamvm {
    way: Way,
    vm: Vm,
    variables: Vec<Var>,
    boards: Vec<&'static Board>,
    /// Those of graphs that were run as programs.
    programs: Vec<Programs>,
    graph_programs: Vec<GraphProgram>,
}

impl Streamvm {
    /// Starts an engine.
    ///
    /// # Errors
    /// streamvm refused.
    pub fn new(way: Way) -> Result<Streamvm, Error> {
        let threads = CORES as usize;
        let vm = Vm::builder().workers(threads).cpu_threads(threads).build()?;
        Ok(Streamvm {
            way,
            vm,
            variables: Vec::new(),
            boards: Vec::new(),
            programs: Vec::new(),
            graph_programs: Vec::new(),
        })
    }

    /// Runs a graph and returns the seconds from the first submission until the last task has passed. Programs are compiled before.
    ///
    /// # Errors
    /// A check of a task failed, or the engine.
    pub fn run(&mut self, graph: &Graph) -> Result<f64, Error> {
        let board = self.board(graph);
        board.clear();
        let missing = board.slots().saturating_sub(self.variables.len());
        self.variables.extend((0..missing).map(|_| self.vm.var()));
        if self.way == Way::Programs && !self.programs.iter().any(|programs| programs.fits(graph)) {
            self.programs.push(Programs::new(&self.vm, board, graph)?);
        }
        if self.way == Way::GraphPrograms && !self.graph_programs.iter().any(|program| program.fits(graph)) {
            self.graph_programs.push(GraphProgram::new(&self.vm, board, graph)?);
        }
        let graph_program = self.graph_programs.iter().find(|program| program.fits(graph));
        let programs = self.programs.iter().find(|programs| programs.fits(graph));
        let start = Instant::now();
        match self.way {
            Way::Workers => self.push_each(board, graph)?,
            Way::Streams => self.call_each(board, graph)?,
            Way::Lists => self.submit_lists(board, graph)?,
            Way::Programs => programs.map_or(Ok(()), |programs| programs.submit(graph))?,
            Way::GraphPrograms => graph_program.map_or(Ok(()), |program| program.submit(graph))?,
        }
        self.vm.wait_all()?;
        let seconds = start.elapsed().as_secs_f64();
        board.verify(graph.steps)?;
        Ok(seconds)
    }

    /// The board of a graph. Functions borrow it for as long as they live, and counting references to it would cost more than a task does, so
    /// boards are never freed: one for each pattern and width that this process runs.
    fn board(&mut self, graph: &Graph) -> &'static Board {
        if let Some(board) = self.boards.iter().find(|board| board.fits(graph)) {
            return board;
        }
        let board = Box::leak(Box::new(Board::new(graph.pattern, graph.width)));
        self.boards.push(board);
        board
    }

    fn push_each(&self, board: &'static Board, graph: &Graph) -> Result<(), Error> {
        for task in tasks(board, graph) {
            self.vm.push("task", uses(board, &self.variables, task), function(board, task, graph.iterations))?;
        }
        Ok(())
    }

    fn call_each(&self, board: &'static Board, graph: &Graph) -> Result<(), Error> {
        // Guards nest, so the guard of one lane ends before that of the next begins.
        let mut entered = None;
        for task in tasks(board, graph) {
            let lane = lane_of(task.column, graph);
            if entered.as_ref().is_none_or(|(of, _)| *of != lane) {
                drop(entered.take());
                entered = Some((lane, Lane(lane).enter()));
            }
            let function = function(board, task, graph.iterations);
            self.vm.call_fn("task", DEVICE, uses(board, &self.variables, task), move |_| function())?;
        }
        Ok(())
    }

    fn submit_lists(&self, board: &'static Board, graph: &Graph) -> Result<(), Error> {
        let mut tasks = tasks(board, graph).peekable();
        while tasks.peek().is_some() {
            let mut builder = InstructionsBuilder::new();
            for task in tasks.by_ref().take(LIST) {
                let function = function(board, task, graph.iterations);
                let mut builder = builder.on_lane(lane_of(task.column, graph));
                builder.call_fn("task", DEVICE, uses(board, &self.variables, task), move |_| function())?;
            }
            self.vm.submit(builder.finish())?;
        }
        Ok(())
    }
}

pub(super) const DEVICE: DeviceId = DeviceId::cpu(0);

fn tasks(board: &'static Board, graph: &Graph) -> impl Iterator<Item = Place> {
    (0..graph.steps).flat_map(|step| board.row(step).map(move |column| Place { step, column }))
}

/// Blocks of columns lie on a lane each, so that few inputs come from another lane.
pub(super) fn lane_of(column: u32, graph: &Graph) -> u32 {
    column * CORES / graph.width
}

fn uses<'a>(board: &'a Board, variables: &'a [Var], task: Place) -> impl Iterator<Item = Use<'a>> {
    let reads = board.reads(task).map(|slot| variables[slot].read());
    reads.chain([variables[board.writes(task)].write()])
}

fn function(
    board: &'static Board,
    task: Place,
    iterations: u64,
) -> impl FnOnce() -> Result<(), FnError> + Send + 'static {
    move || Ok(board.run(task, iterations)?)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::taskbench::pattern::Pattern;

    const WAYS: [Way; 5] = [Way::Workers, Way::Streams, Way::Lists, Way::Programs, Way::GraphPrograms];

    #[test]
    fn every_pattern_runs_in_every_way() {
        for way in WAYS {
            let mut engine = Streamvm::new(way).unwrap();
            for pattern in Pattern::ALL {
                for width in [1, 2, 5, 8] {
                    let graph = Graph { pattern, width, steps: 50, iterations: 10 };
                    engine.run(&graph).unwrap_or_else(|error| panic!("{graph:?} in {way:?}: {error}"));
                }
            }
        }
    }

    /// Runs the row 0 of a stencil behind a gate, and one task of row 1 that lacks its last dependence. Only then the gate opens.
    fn without_a_dependence(dropped: usize) -> Result<(), streamvm::Error> {
        let vm = Vm::builder().workers(2).build()?;
        let board: &'static Board = Box::leak(Box::new(Board::new(Pattern::Stencil1d, 3)));
        let variables: Vec<Var> = (0..board.slots()).map(|_| vm.var()).collect();
        let gate = vm.var();
        let (open, opened) = mpsc::channel::<()>();
        vm.push("gate", [gate.write()], move || {
            // An error means that the sender was dropped, which opens the gate, too.
            let _ = opened.recv();
            Ok(())
        })?;
        for column in 0..3 {
            let task = Place { step: 0, column };
            let held = (column as usize == dropped).then(|| gate.read());
            vm.push("task", uses(board, &variables, task).chain(held), function(board, task, 1))?;
        }
        let task = Place { step: 1, column: 1 };
        let kept: Vec<Use<'_>> =
            uses(board, &variables, task).enumerate().filter(|(at, _)| *at != dropped).map(|(_, kept)| kept).collect();
        let outcome = vm.push("task", kept, function(board, task, 1))?.wait();
        drop(open);
        outcome.and(vm.wait_all())
    }

    #[test]
    fn a_graph_with_a_missing_dependence_fails_and_says_which_input_was_wrong() {
        for dropped in 0..3 {
            let error = without_a_dependence(dropped).unwrap_err().to_string();
            let said = format!(
                "the task at (step 1, column 1) found the output of no task where that of (step 0, column {dropped}) belongs"
            );
            assert!(error.contains(&said), "{error}");
        }
    }
}
