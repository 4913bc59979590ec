//! The outputs of a graph, and the task that reads, checks, computes and writes.
//!
//! A task writes the pair (step, column) into the slot of its column. A column has [`VERSIONS`] slots that its tasks write in turn, so a task
//! may run while readers of the rows before still read. An engine has to order the uses of each slot as of any variable: a task reads the slots
//! that [`Board::reads`] names, and writes [`Board::writes`].
//!
//! A task checks each input, and that the slot it writes holds what the task `VERSIONS` rows before has left. So a missing dependence, a task
//! that ran twice and a lost task are all found. Slots are relaxed atomics: the engine's order is what is tested, and an engine that keeps it
//! also makes the pair visible.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crossbeam_utils::CachePadded;

use super::error::Error;
use super::kernel;
use super::pattern::Pattern;

/// Slots of a column. Two are the least that a row may read while the next is written; eight let columns run ahead of each other.
pub const VERSIONS: u32 = 8;

/// A graph to run.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Graph {
    /// Which inputs its tasks have.
    pub pattern: Pattern,
    /// Columns: 1 to [`MOST_COLUMNS`](super::pattern::MOST_COLUMNS).
    pub width: u32,
    /// Rows.
    pub steps: u32,
    /// Iterations of the kernel of each task.
    pub iterations: u64,
}

impl Graph {
    /// The number of its tasks.
    pub fn tasks(&self) -> u64 {
        // Rows that grow have grown after as many steps as there are columns.
        let growing = self.steps.min(self.width);
        let row = |step| u64::from(self.pattern.row_width(self.width, step));
        (0..growing).map(row).sum::<u64>() + u64::from(self.steps - growing) * u64::from(self.width)
    }
}

/// The place of a task, and what it writes into its slot.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The row.
    pub step: u32,
    /// The column.
    pub column: u32,
}

/// The step in a slot before its first task: no graph has that many steps.
const EMPTY: Place = Place { step: u32::MAX, column: u32::MAX };

#[derive(Debug)]
struct Slot {
    step: AtomicU32,
    column: AtomicU32,
}

impl Slot {
    fn get(&self) -> Place {
        Place { step: self.step.load(Relaxed), column: self.column.load(Relaxed) }
    }

    fn set(&self, place: Place) {
        self.step.store(place.step, Relaxed);
        self.column.store(place.column, Relaxed);
    }
}

/// The slots of all columns and the inputs of all tasks, for a pattern and a width.
#[derive(Debug)]
pub struct Board {
    pattern: Pattern,
    width: u32,
    /// By set, then by column.
    inputs: Vec<Vec<u32>>,
    /// By version, then by column. A line each, so that tasks of two columns do not fight over one.
    slots: Vec<CachePadded<Slot>>,
}

impl Board {
    /// Empty slots.
    pub fn new(pattern: Pattern, width: u32) -> Board {
        let sets = 0..pattern.period(width);
        let inputs = sets.flat_map(|set| (0..width).map(move |column| pattern.inputs(width, set, column))).collect();
        let slot = |_| CachePadded::new(Slot { step: EMPTY.step.into(), column: EMPTY.column.into() });
        Board { pattern, width, inputs, slots: (0..VERSIONS * width).map(slot).collect() }
    }

    /// Whether it is one for a graph.
    pub fn fits(&self, graph: &Graph) -> bool {
        (self.pattern, self.width) == (graph.pattern, graph.width)
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Empties all slots: outputs of an earlier graph would pass the checks of the next. For a time when no task runs.
    pub fn clear(&self) {
        self.slots.iter().for_each(|slot| slot.set(EMPTY));
    }

    /// The columns of a row, whose tasks an engine submits.
    pub fn row(&self, step: u32) -> std::ops::Range<u32> {
        0..self.pattern.row_width(self.width, step)
    }

    /// The slots that a task reads.
    pub fn reads(&self, task: Place) -> impl Iterator<Item = usize> {
        self.inputs(task).iter().map(move |column| self.slot(Place { step: task.step - 1, column: *column }))
    }

    /// The slot that a task writes.
    pub fn writes(&self, task: Place) -> usize {
        self.slot(task)
    }

    /// The columns of the row before that a task reads.
    pub fn inputs(&self, task: Place) -> &[u32] {
        let Some(before) = task.step.checked_sub(1) else {
            return &[];
        };
        let set = before % (self.inputs.len() as u32 / self.width);
        let inputs = &self.inputs[(set * self.width + task.column) as usize];
        // Columns ascend, so what a row lacks that still grows comes last.
        let there = self.pattern.row_width(self.width, before);
        let lacks = inputs.iter().rev().take_while(|column| **column >= there).count();
        &inputs[..inputs.len() - lacks]
    }

    fn slot(&self, of: Place) -> usize {
        (of.step % VERSIONS * self.width + of.column) as usize
    }

    /// Runs a task: checks, computes, writes.
    ///
    /// # Errors
    /// An input is not that of the row before, or the slot does not hold what the task `VERSIONS` rows before has left.
    pub fn run(&self, task: Place, iterations: u64) -> Result<(), Error> {
        for column in self.inputs(task) {
            self.check(task, Place { step: task.step - 1, column: *column })?;
        }
        self.check_previous(task)?;
        kernel::run(iterations, f64::from(task.column));
        self.slots[self.slot(task)].set(task);
        Ok(())
    }

    /// Checks after a graph what the last tasks of all columns have left.
    ///
    /// # Errors
    /// A task is lost, or wrote too late.
    pub fn verify(&self, steps: u32) -> Result<(), Error> {
        let after =
            (steps..steps + VERSIONS).flat_map(|step| (0..self.width).map(move |column| Place { step, column }));
        after.into_iter().try_for_each(|place| self.check_previous(place))
    }

    fn check_previous(&self, task: Place) -> Result<(), Error> {
        let previous = task.step.checked_sub(VERSIONS).map(|step| Place { step, column: task.column });
        let expected = previous.filter(|place| self.row(place.step).contains(&place.column)).unwrap_or(EMPTY);
        self.check_slot(task, self.slot(task), expected)
    }

    fn check(&self, reader: Place, expected: Place) -> Result<(), Error> {
        self.check_slot(reader, self.slot(expected), expected)
    }

    fn check_slot(&self, reader: Place, slot: usize, expected: Place) -> Result<(), Error> {
        let found = self.slots[slot].get();
        if found == expected { Ok(()) } else { Err(Error::Input { reader, expected, found }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: u32 = 20;

    fn places(board: &Board) -> Vec<Place> {
        (0..STEPS).flat_map(|step| board.row(step).map(move |column| Place { step, column })).collect()
    }

    fn run(board: &Board, order: &[Place]) -> Result<(), Error> {
        order.iter().try_for_each(|place| board.run(*place, 1))?;
        board.verify(STEPS)
    }

    #[test]
    fn tasks_in_order_pass_every_check() {
        for pattern in Pattern::ALL {
            for width in [1, 2, 3, 8] {
                let board = Board::new(pattern, width);
                let order = places(&board);
                let graph = Graph { pattern, width, steps: STEPS, iterations: 1 };
                assert_eq!(graph.tasks(), order.len() as u64, "{}", pattern.name());
                for _ in 0..2 {
                    run(&board, &order).unwrap_or_else(|error| panic!("{} of width {width}: {error}", pattern.name()));
                    board.clear();
                }
            }
        }
    }

    #[test]
    fn a_task_that_runs_before_any_one_of_its_inputs_is_found() {
        for pattern in Pattern::ALL {
            let board = Board::new(pattern, 8);
            let order = places(&board);
            for (at, task) in order.iter().enumerate().filter(|(_, task)| task.step < 12) {
                for column in board.inputs(*task) {
                    board.clear();
                    let input = Place { step: task.step - 1, column: *column };
                    let early: Vec<_> = order[..at].iter().filter(|place| **place != input).collect();
                    // The tasks between the two that read the missing input are left out: they would be found first.
                    let reads = |place: &Place| place.step == task.step && board.inputs(*place).contains(column);
                    early.iter().filter(|place| !reads(place)).for_each(|place| board.run(**place, 0).unwrap());
                    let error = board.run(*task, 0).unwrap_err();
                    let Error::Input { reader, expected, .. } = error else { panic!("{error}") };
                    assert_eq!((reader, expected), (*task, input), "{}", pattern.name());
                }
            }
        }
    }

    #[test]
    fn columns_one_after_another_are_found_out_where_tasks_read_others() {
        for pattern in Pattern::ALL {
            let board = Board::new(pattern, 8);
            let mut order = places(&board);
            order.sort_by_key(|place| place.column);
            let independent = [Pattern::Trivial, Pattern::NoComm].contains(&pattern);
            // These read earlier columns alone, whose slots have been overwritten.
            let found = run(&board, &order);
            assert_eq!(found.is_ok(), independent, "{}: {found:?}", pattern.name());
        }
    }

    #[test]
    fn a_lost_task_and_one_that_runs_twice_are_found() {
        let board = Board::new(Pattern::Trivial, 2);
        let all = places(&board);
        for at in 0..all.len() {
            board.clear();
            let mut order = all.clone();
            order.remove(at);
            assert!(run(&board, &order).is_err(), "without {:?}", all[at]);
            board.clear();
            let mut order = all.clone();
            order.insert(at, all[at]);
            assert!(run(&board, &order).is_err(), "twice {:?}", all[at]);
        }
    }
}
