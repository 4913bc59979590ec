//! The floor of an engine's dependence analysis: the analysis alone, on one thread.
//!
//! A window of operations is kept in preallocated slots. Each variable records its last writer and the readers since; each operation
//! counts the operations that it waits for and lists those that wait for it. When the window is full, the ready operations run, first
//! in first out. There are no threads, failures, memory, streams or captures of callers, which an engine adds.

use std::collections::VecDeque;
use std::hint::black_box;

/// Operations in flight before the ready ones run: within a few times of the operations that an engine lets pend.
const WINDOW: u32 = 4096;

/// An operation in a slot; `life` distinguishes it from earlier operations in the same slot.
#[derive(Copy, Clone, PartialEq, Eq)]
struct OpRef {
    slot: u32,
    life: u32,
}

struct Op {
    /// Unfinished operations that this one waits for.
    pending: u32,
    life: u32,
    successors: Vec<u32>,
    function: fn(u64),
    argument: u64,
}

#[derive(Default)]
struct Variable {
    writer: Option<OpRef>,
    readers: Vec<OpRef>,
}

/// The bare dependence engine.
pub struct Bookkeeping {
    ops: Vec<Op>,
    free: Vec<u32>,
    variables: Vec<Variable>,
    ready: VecDeque<u32>,
}

impl Bookkeeping {
    /// A dependence engine over `variables` variables.
    pub fn new(variables: usize) -> Bookkeeping {
        let op = |_| Op { pending: 0, life: 0, successors: Vec::with_capacity(4), function: nothing, argument: 0 };
        Bookkeeping {
            ops: (0..WINDOW).map(op).collect(),
            free: (0..WINDOW).rev().collect(),
            variables: (0..variables).map(|_| Variable::default()).collect(),
            ready: VecDeque::with_capacity(WINDOW as usize),
        }
    }

    /// Adds an operation, ordered after all earlier operations that conflict with it on a variable.
    pub fn push(&mut self, reads: &[u32], write: Option<u32>, argument: u64) {
        let slot = self.free_slot();
        let me = OpRef { slot, life: self.ops[slot as usize].life };
        let mut pending = 0;
        for &read in reads {
            let variable = &mut self.variables[read as usize];
            pending += variable.writer.map_or(0, |writer| depend(&mut self.ops, me, writer));
            variable.readers.push(me);
        }
        if let Some(write) = write {
            let variable = &mut self.variables[write as usize];
            if variable.readers.is_empty() {
                pending += variable.writer.map_or(0, |writer| depend(&mut self.ops, me, writer));
            } else {
                // Each reader is ordered after the writer, so waiting for the readers is enough.
                pending += variable.readers.drain(..).map(|reader| depend(&mut self.ops, me, reader)).sum::<u32>();
            }
            variable.writer = Some(me);
        }
        let op = &mut self.ops[slot as usize];
        (op.pending, op.argument) = (pending, argument);
        if pending == 0 {
            self.ready.push_back(slot);
        }
    }

    /// Runs all operations.
    pub fn drain(&mut self) {
        while let Some(slot) = self.ready.pop_front() {
            let op = &self.ops[slot as usize];
            (op.function)(op.argument);
            let mut successors = std::mem::take(&mut self.ops[slot as usize].successors);
            for successor in successors.drain(..) {
                let waiting = &mut self.ops[successor as usize];
                waiting.pending -= 1;
                if waiting.pending == 0 {
                    self.ready.push_back(successor);
                }
            }
            let op = &mut self.ops[slot as usize];
            op.successors = successors;
            op.life = op.life.wrapping_add(1);
            self.free.push(slot);
        }
    }

    /// Whether everything that was added has run.
    pub fn is_drained(&self) -> bool {
        self.free.len() == WINDOW as usize
    }

    fn free_slot(&mut self) -> u32 {
        loop {
            match self.free.pop() {
                Some(slot) => return slot,
                // An operation depends only on earlier ones, so the oldest of a full window is ready, and `drain` frees a slot.
                None => self.drain(),
            }
        }
    }
}

/// Makes `op` wait for `on`, if `on` is unfinished. Returns the number of operations that `op` must wait for in addition: 1 or 0.
fn depend(ops: &mut [Op], op: OpRef, on: OpRef) -> u32 {
    let target = &mut ops[on.slot as usize];
    if target.life != on.life || on == op {
        return 0;
    }
    target.successors.push(op.slot);
    1
}

fn nothing(argument: u64) {
    black_box(argument);
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    static RAN: Mutex<Vec<u64>> = Mutex::new(Vec::new());

    #[test]
    fn operations_run_in_an_order_that_respects_dependences() {
        let mut engine = Bookkeeping::new(2);
        for op in &mut engine.ops {
            op.function = |argument| RAN.lock().unwrap().push(argument);
        }
        engine.push(&[], Some(0), 0);
        engine.push(&[0], None, 1);
        engine.push(&[], Some(1), 2);
        engine.push(&[1], Some(0), 3);
        engine.push(&[0], None, 4);
        assert!(!engine.is_drained());
        engine.drain();
        assert!(engine.is_drained());
        let ran = RAN.lock().unwrap().clone();
        let place = |op| ran.iter().position(|ran| *ran == op).unwrap();
        assert_eq!(ran.len(), 5);
        for (before, after) in [(0, 1), (1, 3), (2, 3), (3, 4)] {
            assert!(place(before) < place(after), "{before} before {after} in {ran:?}");
        }
    }

    #[test]
    fn more_operations_than_the_window_all_run() {
        let mut engine = Bookkeeping::new(1);
        (0..3 * u64::from(WINDOW)).for_each(|op| engine.push(&[], Some(0), op));
        engine.drain();
        assert!(engine.is_drained());
    }
}
