//! Committing on unordered streams: each instruction has a dependence node that counts its open dependences. The task goes to the workers
//! once the count is zero.

use streamvm_instructions::{Ahead, Instruction, Kind, Wait};

use crate::dispatch::dependence_node::{EDGES, NodeId, node_of};
use crate::dispatch::pool::{DIRECT, URGENT, level_of_priority};
use crate::execute::environment::Environment;
use crate::queue::node::{LINES, NodeBox};
use crate::submit::state::State;
use crate::tasks::task::{Action, Level, Task};

impl State {
    #[inline(never)]
    pub(crate) fn number_by_node(&mut self, task: &mut Task, level: Level, env: &Environment) {
        task.level = level;
        let nodes = env.streams.nodes();
        let id = self.spare_nodes.pop().unwrap_or_else(|| nodes.add());
        task.point = nodes.begin(id, task.point.stream, task.level);
    }

    /// Keeps the dependence node of a reused node box, if it has one, for the next task that needs one.
    #[inline]
    pub(crate) fn spare_node(&mut self, task: &Task) {
        if task.point.stream.is_unordered() {
            self.keep_node(node_of(task.point.seq));
        }
    }

    #[inline(never)]
    fn keep_node(&mut self, id: NodeId) {
        self.spare_nodes.push(id);
    }

    /// Dispatches a task: to the scheduler if it has host waits, into its node if it has open dependences, else to the workers.
    #[inline(never)]
    pub(crate) fn dispatch_unordered(&mut self, task: NodeBox<Task>, env: &Environment) {
        let stream = &self.streams[task.point.stream.index()];
        let (nodes, id) = (env.streams.nodes(), node_of(task.point.seq));
        if task.has_host_waits() {
            return self.to_scheduler.push(task);
        }
        if nodes.has_open_dependences(id) {
            nodes.put(id, task);
            let ready = nodes.satisfy(id).and_then(|_| nodes.take(id));
            return ready.into_iter().for_each(|task| self.batches.add(stream.batch, task));
        }
        self.batches.add(stream.batch, task);
    }

    /// [`State::add_waits`] on an unordered stream: a wait for an unordered stream becomes a dependence, which the source satisfies when it
    /// passes; any other becomes a host wait.
    pub(crate) fn add_dependences(&mut self, task: &mut Task, env: &Environment) {
        let (nodes, id) = (env.streams.nodes(), node_of(task.point.seq));
        let mut numbers = std::mem::take(&mut self.scratch.numbers);
        let needs = self.scratch.waits.len();
        // Too many dependences for joins are turned into host waits, which the scheduler handles.
        let too_many = needs > EDGES && !nodes.suffice(needs);
        for Wait { point, .. } in &self.scratch.waits {
            if !point.stream.is_unordered() || (too_many && env.inline_tasks.is_none()) {
                task.cold_mut().host_waits.push(*point);
                continue;
            }
            if env.keeps_waited {
                task.cold_mut().waited.push(*point);
            }
            // In inline mode everything before the task has passed when it runs.
            if env.inline_tasks.is_none() {
                numbers.push(point.seq);
            }
        }
        while numbers.len() > EDGES {
            let first = numbers.len() - EDGES;
            let joined = self.join(task, &numbers[first..], env);
            numbers.truncate(first);
            numbers.extend(joined);
        }
        nodes.add_dependences(id, &numbers);
        numbers.clear();
        self.scratch.numbers = numbers;
    }

    /// Makes a join: a task without an instruction that passes once all of `numbers` have. `task` depends on it, because `task` has more
    /// dependences than a node counts. Returns the join's number, or `None` if all of them have passed.
    fn join(&mut self, task: &Task, numbers: &[u64], env: &Environment) -> Option<u64> {
        let mut join = self.take_box(LINES, &env.returned);
        self.spare_node(&join);
        join.point.stream = task.point.stream;
        join.forget_reads();
        (join.what, join.action, join.bytes, join.order) = ("join", Action::Join, 0, 0);
        self.number_by_node(&mut join, task.level, env);
        let (nodes, number) = (env.streams.nodes(), join.point.seq);
        nodes.join_begins();
        nodes.add_dependences(node_of(number), numbers);
        nodes.put(node_of(number), join);
        if nodes.satisfy(node_of(number)).is_none() {
            return Some(number);
        }
        // The join was not published, so it has no successors.
        let _ = nodes.pass(number, |id, _, _| unreachable!("node {id} needs what was never told"));
        nodes.join_ends();
        if let Some(mut join) = nodes.take(node_of(number)) {
            join.action = Action::Nothing;
            self.free.push(join);
        }
        None
    }
}

/// The level (queue) of an instruction on an unordered stream.
pub(crate) fn level_of(instruction: &Instruction) -> Level {
    // A release runs nothing and waits for nothing. In a queue it would take picks of the workers away from functions.
    if matches!(instruction.kind, Kind::Release) {
        return URGENT;
    }
    match (instruction.launch.ahead, instruction.launch.priority) {
        (Ahead::Direct, _) => DIRECT,
        (Ahead::First, _) => URGENT,
        (Ahead::No, priority) => level_of_priority(priority),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use crate::dispatch::dependence_node::{EDGES, JOINABLE};
    use crate::{Mode, Var, Vm};

    /// The write has more dependences than a node counts, and joins for all of them exceed the capacity of a test build.
    #[test]
    fn dependences_beyond_the_join_capacity_become_host_waits() {
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
            let nodes = vm.engine.streams.nodes();
            assert!(nodes.made() <= READS + 2, "{} nodes: none went to a join", nodes.made());
            // In simulated mode no function receives this.
            let _ = open.send(());
            vm.wait_all().expect("the write comes last");
            assert!(!nodes.suffice(READS));
        }
    }

    /// Joins that have passed are counted no more: afterwards there is room for as many as at the beginning.
    #[test]
    fn joins_that_have_passed_leave_room_for_others() {
        /// The dependences of one instruction whose joins use all of the capacity: a join takes the place of [`EDGES`] dependences as one.
        const MOST: usize = JOINABLE as usize * (EDGES - 1);
        const READS: usize = 100;
        let vm = Vm::builder().workers(2).build().expect("an engine");
        let x = Var::new();
        let (open, gate) = mpsc::channel::<()>();
        vm.push("gate", [x.write()], move || Ok(gate.recv()?)).expect("a push");
        for _ in 0..READS {
            vm.push("read", [x.read()], || Ok(())).expect("a push");
        }
        vm.push("write", [x.write()], || Ok(())).expect("a push");
        let nodes = vm.engine.streams.nodes();
        assert!(nodes.made() > READS + 2, "{} nodes: no join was made", nodes.made());
        assert!(!nodes.suffice(MOST), "joins are pending");
        open.send(()).expect("the function listens");
        vm.wait_all().expect("nothing fails");
        assert!(nodes.suffice(MOST) && !nodes.suffice(MOST + 1));
    }
}
