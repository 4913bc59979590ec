//! What committing does for unordered streams alone: an instruction has a cell, which counts what it needs, and goes to the
//! workers once that has passed.

use streamvm_ep::Priority;
use streamvm_instructions::{Ahead, Instruction, Kind, Wait};

use crate::cells::{CellId, EDGES, Level, cell_of};
use crate::job::{Job, Task};
use crate::pool::{DIRECT, FIRST, HIGH};
use crate::shared::Shared;
use crate::slot::{LINES, Slot};
use crate::state::State;

impl State {
    #[inline(never)]
    pub(crate) fn number_by_cell(&mut self, job: &mut Job, level: Level, vm: &Shared) {
        job.level = level;
        let cells = vm.streams.cells();
        let id = self.spare_cells.pop().unwrap_or_else(|| cells.add());
        job.point = cells.begin(id, job.point.stream, job.level);
        // The next slot brings its cell along, which lies in the cache of the worker that passed it.
        if let Some(next) = self.free.front()
            && next.point.stream.is_unordered()
        {
            cells.fetch(cell_of(next.point.seq));
        }
    }

    /// Keeps the cell of a slot that came back, if it has one, for whoever needs one next.
    #[inline]
    pub(crate) fn spare_cell(&mut self, job: &Job) {
        if job.point.stream.is_unordered() {
            self.keep_cell(cell_of(job.point.seq));
        }
    }

    #[inline(never)]
    fn keep_cell(&mut self, id: CellId) {
        self.spare_cells.push(id);
    }

    /// What needs something waits in its cell; the rest goes to the workers.
    #[inline(never)]
    pub(crate) fn dispatch_unordered(&mut self, job: Slot<Job>, vm: &Shared) {
        let stream = &self.streams[job.point.stream.index()];
        let (cells, id) = (vm.streams.cells(), cell_of(job.point.seq));
        if job.has_host_waits() {
            return self.to_scheduler.push(job);
        }
        if cells.needs_more(id) {
            cells.put(id, job);
            let ready = cells.meet(id).and_then(|_| cells.take(id));
            return ready.into_iter().for_each(|job| self.outbox.add(stream.batch, job));
        }
        self.outbox.add(stream.batch, job);
    }

    /// [`State::add_waits`] on an unordered stream: what it needs of its like tells it so by itself.
    pub(crate) fn add_needs(&mut self, job: &mut Job, vm: &Shared) {
        let (cells, id) = (vm.streams.cells(), cell_of(job.point.seq));
        let mut numbers = std::mem::take(&mut self.scratch.numbers);
        let needs = self.scratch.waits.len();
        // What cannot be joined any more is seen to by the scheduler.
        let too_many = needs > EDGES && !cells.suffice(needs);
        for Wait { point, .. } in &self.scratch.waits {
            if !point.stream.is_unordered() || (too_many && vm.inline.is_none()) {
                job.more().host_waits.push(*point);
                continue;
            }
            if vm.monitor.is_some() {
                job.more().waited.push(*point);
            }
            // In inline mode all before it has passed when it runs.
            if vm.inline.is_none() {
                numbers.push(point.seq);
            }
        }
        while numbers.len() > EDGES {
            let first = numbers.len() - EDGES;
            let joined = self.join(job, &numbers[first..], vm);
            numbers.truncate(first);
            numbers.extend(joined);
        }
        cells.needs(id, &numbers);
        numbers.clear();
        self.scratch.numbers = numbers;
    }

    /// The number of an instruction that passes once these have, for `job`, which needs more of them than a cell counts. `None`
    /// if they have passed.
    fn join(&mut self, job: &Job, numbers: &[u64], vm: &Shared) -> Option<u64> {
        let mut join = self.slot(LINES, &vm.returned);
        self.spare_cell(&join);
        join.point.stream = job.point.stream;
        join.forget_reads();
        (join.what, join.task, join.bytes, join.order) = ("join", Task::Join, 0, 0);
        self.number_by_cell(&mut join, job.level, vm);
        let (cells, number) = (vm.streams.cells(), join.point.seq);
        cells.join_begins();
        cells.needs(cell_of(number), numbers);
        cells.put(cell_of(number), join);
        if cells.meet(cell_of(number)).is_none() {
            return Some(number);
        }
        // Nobody knows of it.
        let _ = cells.pass(number, |id, _, _| unreachable!("cell {id} needs what was never told"));
        cells.join_ends();
        if let Some(mut join) = cells.take(cell_of(number)) {
            join.task = Task::Nothing;
            self.free.push(join);
        }
        None
    }
}

/// The level that an unordered stream gives to an instruction.
pub(crate) fn level_of(instruction: &Instruction) -> Level {
    // It does nothing and waits for nothing: among what is queued it would take picks away from functions.
    if matches!(instruction.kind, Kind::Release) {
        return FIRST;
    }
    match (instruction.manner.ahead, instruction.manner.priority) {
        (Ahead::Direct, _) => DIRECT,
        (Ahead::First, _) => FIRST,
        (Ahead::No, Priority::High) => HIGH,
        (Ahead::No, Priority::Normal) => 1,
        (Ahead::No, Priority::Low) => 2,
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use crate::{Mode, Var, Vm};

    /// Each needs more than a cell counts; the joins of all of them are more than tests leave cells for.
    #[test]
    fn what_cannot_be_joined_any_more_is_waited_for_all_the_same() {
        const READS: usize = 4_000;
        for mode in [Mode::Threaded, Mode::Simulated { seed: 3 }] {
            let vm = Vm::builder().mode(mode).workers(2).build().expect("an engine");
            let (x, read) = (Var::new(), Arc::new(AtomicUsize::new(0)));
            let (open, gate) = mpsc::channel::<()>();
            if mode == Mode::Threaded {
                vm.push("gate", [x.write()], move || Ok(gate.recv()?)).expect("a push");
            }
            for _ in 0..READS {
                let read = read.clone();
                let f = move || {
                    read.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                };
                vm.push("read", [x.read()], f).expect("a push");
            }
            let at_write = read.clone();
            vm.push("write", [x.write()], move || match at_write.load(Ordering::Relaxed) {
                READS => Ok(()),
                early => Err(format!("{early} of {READS} reads were over").into()),
            })
            .expect("a push");
            let cells = vm.shared.streams.cells();
            assert!(cells.made() <= READS + 2, "{} cells: none went to a join", cells.made());
            // Where nobody waits for it, it is closed.
            let _ = open.send(());
            vm.wait_all().expect("the write comes last");
            // What is over keeps nothing from being joined.
            assert!(cells.suffice(20) && !cells.suffice(READS));
        }
    }
}
