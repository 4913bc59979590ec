//! Workers: each runs instructions of one unordered stream as soon as their dependences are satisfied.
//!
//! Where tasks come from:
//! * A task without open dependences is put into the inbox of the pool's injector. A worker moves the whole inbox into its own queues, from
//!   which the others steal.
//! * A task with open dependences waits in its dependence node. The worker that passes the last source runs the task next, or queues it.
//!
//! Which task a worker picks, most urgent first:
//! 1. At one pick in [`spin::INBOX_EVERY`]: a deletion of a variable ([`UrgentQueue`](crate::dispatch::urgent_queue::UrgentQueue)).
//! 2. A task that must run on the worker that satisfies its last dependence ([`DIRECT`]), in the order found. No other task is bound to a
//!    worker.
//! 3. Any deletion of a variable.
//! 4. The queue of the most urgent level that has a task. A successor of the last passed task precedes everything that is not more urgent.
//!
//! To change the order: [`Worker::pick`] chooses, and `submit/commit_unordered.rs` gives each task its level. `docs/functions.md`,
//! `Pusher::priority` and `Pool::Inline` state the order to users. A change must keep this bound, so that no task starves:
//!
//! * One pick in [`FAIR_PICK_EVERY`] is a *fair pick*: it takes a task of a level below the most urgent one that has a task. The lower
//!   levels take turns, from the least urgent upwards.
//! * So while a task with `n` tasks before it waits in a queue, and its worker has a more urgent task in another queue, that worker picks at
//!   most `FAIR_PICK_EVERY * LEVELS * (n + 1)` tasks.
//! * The worker decides by its own queues alone which level is the most urgent one, because it does not read those of others for that. So
//!   more urgent tasks that are only in queues of other workers are not in the bound: the worker may steal them first. The task then also
//!   waits for the fair picks of those workers, which steal from lower levels.
//! * The worker empties the inbox at least once in [`spin::INBOX_EVERY`] picks, so a task does not wait there for longer than that.
//!
//! [`Worker`] is the logic: [`Worker::step`] runs some ready tasks, and never blocks. Only its thread touches it; the thread is in
//! `engine/worker_thread.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_deque as deque;
use streamvm_ep as ep;
use streamvm_instructions::Cause;

use crate::dispatch::context_handle::ContextHandle;
use crate::dispatch::pool::{DIRECT, FAIR_PICK_EVERY, LEVELS, Pool, Queues, URGENT, queue_of};
use crate::execute::backpressure::PassCounter;
use crate::execute::environment::Environment;
use crate::execute::run::{self, Rest};
use crate::execute::stream_runner::Runner;
use crate::progress::stream_state::StreamState;
use crate::progress::unordered::Unordered;
use crate::queue::node::{NodeBox, NodeList};
use crate::sync::panics::panic_text;
use crate::sync::{Ordering, fence, spin};
use crate::tasks::task::{Action, Level, Task};

/// The most instructions that a step runs.
pub(crate) const TURN: usize = 64;

/// Node boxes of passed instructions that a worker collects before it returns them in one batch.
const RETIRED: usize = 64;

/// The logic of one worker. Owned by its thread.
pub(crate) struct Worker {
    pool: Arc<Pool>,
    stream_state: Arc<StreamState>,
    /// Its index among the workers of the pool.
    me: usize,
    handle: Arc<ContextHandle>,
    runner: Runner,
    queues: Queues,
    /// A successor that runs next, unless a more urgent task exists.
    next: Option<(NodeBox<Task>, Level)>,
    /// Direct tasks, which run before `next`.
    direct: NodeList<Task>,
    picks: u32,
    /// The level that the last fair pick was from.
    last_fair_level: usize,
    /// The task that is being run: the one that fails if a backend panics outside of an instruction's own panic handler.
    current: Option<NodeBox<Task>>,
    retired: NodeList<Task>,
    pass_counter: PassCounter,
}

impl Worker {
    /// Worker `me` of the pool of an unordered stream.
    pub(crate) fn new(
        stream_state: Arc<StreamState>,
        me: usize,
        queues: Queues,
        stream: Box<dyn ep::Stream>,
    ) -> Option<Worker> {
        let pool = stream_state.unordered()?.pool.clone()?;
        let handle = pool.contexts[me].clone();
        let (retired, pass_counter) = (NodeList::new(), PassCounter::default());
        let (next, current, direct) = (None, None, NodeList::new());
        let (runner, picks, last_fair_level) = (Runner::new(stream), 0, 0);
        Some(Worker {
            pool,
            stream_state,
            me,
            handle,
            runner,
            queues,
            next,
            direct,
            picks,
            last_fair_level,
            current,
            retired,
            pass_counter,
        })
    }

    /// The worker as other threads see it.
    pub(crate) fn context(&self) -> &Arc<ContextHandle> {
        &self.handle
    }

    /// Runs at most `most` ready instructions. Returns whether there was one.
    pub(crate) fn step(&mut self, most: usize, env: &Environment) -> bool {
        let stream_state = self.stream_state.clone();
        let Some(unordered) = stream_state.unordered() else { return false };
        let worked = catch_unwind(AssertUnwindSafe(|| {
            for done in 0..most {
                let Some(task) = self.pick() else { return done > 0 };
                self.run(task, &stream_state, unordered, env);
            }
            true
        }));
        worked.unwrap_or_else(|payload| {
            self.fail_current(panic_text(payload), &stream_state, unordered, env);
            true
        })
    }

    /// Rotates each queue by a number that `draw` chooses below its argument: in simulated mode the next task is random.
    pub(crate) fn shuffle(&mut self, mut draw: impl FnMut(u64) -> u64) {
        if let Some((task, level)) = self.next.take() {
            self.queues[queue_of(level)].push(task);
        }
        self.take_in();
        for queue in &self.queues {
            for _ in 0..draw(queue.len() as u64 + 1) {
                queue.pop().into_iter().for_each(|task| queue.push(task));
            }
        }
    }

    #[inline]
    fn pick(&mut self) -> Option<NodeBox<Task>> {
        let fair = self.picks % FAIR_PICK_EVERY == FAIR_PICK_EVERY - 1;
        if !fair && !self.direct.is_empty() {
            return self.pick_direct();
        }
        if let Some((task, level)) = self.next.take() {
            if !fair && self.comes_first(level) {
                self.picks = self.picks.wrapping_add(1);
                return Some(task);
            }
            self.queues[queue_of(level)].push(task);
            self.queued();
        }
        if self.looks_in() && !self.pool.injector.inbox.is_empty() {
            self.take_in();
        }
        let mut stolen = false;
        let mut task = if fair { self.pick_fairly(&mut stolen) } else { None };
        // The urgent queue is shared, so a pick from it counts as stolen: another worker may have to be woken for the rest.
        task = task.or_else(|| self.pool.urgent.pop().inspect(|_| stolen = true));
        task = task.or_else(|| (0..LEVELS).find_map(|level| self.pick_from(level, &mut stolen)));
        // A fair pick that found nothing else runs a direct task.
        let task = task.or_else(|| self.direct.pop())?;
        self.picks = self.picks.wrapping_add(1);
        // A worker that has found work wakes the next one while there is more, in its own queues or where it stole from.
        if self.pool.injector.is_parked() && (self.has_queued() || (stolen && self.is_ready())) {
            self.pool.injector.wake();
        }
        Some(task)
    }

    /// A direct task. At one pick in [`spin::INBOX_EVERY`] the inbox is emptied, and a deletion of a variable takes precedence.
    #[inline(never)]
    fn pick_direct(&mut self) -> Option<NodeBox<Task>> {
        let looks = self.picks.is_multiple_of(spin::INBOX_EVERY);
        self.picks = self.picks.wrapping_add(1);
        if looks && !self.pool.injector.inbox.is_empty() {
            self.take_in();
        }
        let first = if looks { self.pool.urgent.pop() } else { None };
        first.or_else(|| self.direct.pop())
    }

    /// A pick from the queues below the most urgent one that has a task, because that one gets all other picks. They take turns, from the
    /// least urgent upwards. Only this worker's own queues decide which one is the most urgent.
    #[inline(never)]
    fn pick_fairly(&mut self, stolen: &mut bool) -> Option<NodeBox<Task>> {
        let all = !self.direct.is_empty() || self.pool.urgent.any();
        let urgent = self.queues.iter().position(|queue| !queue.is_empty()).filter(|_| !all);
        let levels = (1..=LEVELS).map(|step| (self.last_fair_level + LEVELS - step) % LEVELS);
        let mut below = levels.filter(|level| urgent.is_none_or(|urgent| *level > urgent));
        let (level, task) = below.find_map(|level| Some((level, self.pick_from(level, stolen)?)))?;
        self.last_fair_level = level;
        Some(task)
    }

    /// A pick from the queue of a level, this worker's or another's.
    #[inline]
    fn pick_from(&self, level: usize, stolen: &mut bool) -> Option<NodeBox<Task>> {
        self.queues[level].pop().or_else(|| self.steal(level).inspect(|_| *stolen = true))
    }

    /// Whether this pick looks into the inbox. Each look takes the inbox's cache line, and those of its tasks, away from the submitter.
    fn looks_in(&self) -> bool {
        self.picks.is_multiple_of(spin::INBOX_EVERY) || !self.has_queued()
    }

    /// Whether `next`, of this level, is at least as urgent as all queued tasks. An inbox that is due and not empty may hold a more
    /// urgent one.
    fn comes_first(&self, level: Level) -> bool {
        let nothing_new = !self.picks.is_multiple_of(spin::INBOX_EVERY) || self.pool.injector.inbox.is_empty();
        nothing_new && !self.pool.urgent.any() && self.queues[..usize::from(level)].iter().all(deque::Worker::is_empty)
    }

    fn has_queued(&self) -> bool {
        self.queues.iter().any(|queue| !queue.is_empty()) || self.pool.urgent.any()
    }

    /// Moves the inbox into the queues.
    fn take_in(&mut self) {
        let mut tasks = self.pool.injector.inbox.take();
        while let Some(task) = tasks.pop() {
            match task.level {
                URGENT => self.pool.urgent.push(task),
                level => self.queues[queue_of(level)].push(task),
            }
        }
        self.queued();
    }

    /// Tasks were queued: wakes a parked worker if there is one.
    fn queued(&self) {
        if let Some(idle_set) = self.pool.injector.idle_set() {
            idle_set.notify(|| self.has_queued());
        }
    }

    #[inline(never)]
    fn steal(&self, level: usize) -> Option<NodeBox<Task>> {
        let others = (1..self.pool.stealers.len()).map(|step| (self.me + step) % self.pool.stealers.len());
        others.map(|other| &self.pool.stealers[other][level]).find_map(|stealer| {
            loop {
                match stealer.steal_batch_and_pop(&self.queues[level]) {
                    deque::Steal::Success(task) => {
                        // Orders the stolen batch, now in this worker's queue, before the later read of the idle set: see
                        // `IdleSet::notify`.
                        fence(Ordering::SeqCst);
                        return Some(task);
                    }
                    deque::Steal::Empty => return None,
                    deque::Steal::Retry => {}
                }
            }
        })
    }

    /// Runs a task whose dependences are satisfied.
    #[inline]
    fn run(&mut self, task: NodeBox<Task>, stream_state: &StreamState, unordered: &Unordered, env: &Environment) {
        let task = self.current.insert(task);
        if task.action != Action::Join {
            self.handle.running.begin(task);
            if env.keeps_waited
                && let Some(cold) = task.cold()
            {
                cold.all_waited();
            }
            if let Some(observer) = &env.observer {
                observer.starts(task, stream_state, self.runner.stream());
            }
            match run::run_or_skip(task, stream_state, &mut self.runner, env) {
                None => {}
                Some(Rest::Deferred(deferred)) => {
                    return self.current.take().into_iter().for_each(|task| deferred.park(task, &self.pool));
                }
                Some(Rest::Operation(operation)) => run::complete_operation(task, operation, stream_state, env),
            }
        }
        self.pass(stream_state, unordered, env);
    }

    /// Publishes that the current task has passed, and takes its ready successors.
    fn pass(&mut self, stream_state: &StreamState, unordered: &Unordered, env: &Environment) {
        let Some(mut task) = self.current.take() else { return };
        let number = task.point.seq;
        if task.action == Action::Join {
            // The node box is reused by an instruction that may not set an action.
            task.action = Action::Nothing;
            unordered.nodes.join_ends();
        } else {
            run::release_and_account(&mut task, stream_state, env, &self.handle);
            unordered.count(self.me);
        }
        let (queues, next, direct, urgent) = (&self.queues, &mut self.next, &mut self.direct, &self.pool.urgent);
        let (nodes, mut queued) = (&unordered.nodes, false);
        let wanted = nodes.pass(number, |id, stream, level| {
            if stream != stream_state.id {
                env.streams
                    .get(stream)
                    .and_then(|other| other.unordered())
                    .into_iter()
                    .for_each(|other| other.inject(id));
            } else if level == DIRECT {
                nodes.take(id).into_iter().for_each(|task| direct.push(task));
            } else if level == URGENT {
                nodes.take(id).into_iter().for_each(|task| urgent.push(task));
                queued = true;
            } else if next.is_none() {
                *next = nodes.take(id).map(|task| (task, level));
            } else {
                nodes.take(id).into_iter().for_each(|task| queues[usize::from(level)].push(task));
                queued = true;
            }
        });
        if wanted {
            unordered.wake(number);
        }
        // Direct tasks may take long and have direct successors, so the next task is left to other workers.
        if !self.direct.is_empty()
            && let Some((task, level)) = self.next.take()
        {
            self.queues[queue_of(level)].push(task);
            queued = true;
        }
        if queued {
            self.queued();
        }
        env.backpressure.note_passed(env, &mut self.pass_counter);
        self.retired.push(task);
        if self.retired.len() >= RETIRED {
            self.give_back(env);
        }
    }

    #[cold]
    fn fail_current(&mut self, text: String, stream_state: &StreamState, unordered: &Unordered, env: &Environment) {
        log::error!(
            "worker {}: a backend panicked outside of an instruction ({text}); the current instruction fails",
            self.handle.name
        );
        let Some(task) = &self.current else { return };
        if !env.failures.is_known(task.point) {
            env.failures.fail(task.order, Arc::new(run::failure(task, stream_state, Cause::Panic(text))));
        }
        self.pass(stream_state, unordered, env);
    }

    /// Returns the node boxes of passed instructions to the submitters.
    pub(crate) fn give_back(&mut self, env: &Environment) {
        env.returned.push(&mut self.retired);
    }

    /// Whether there is a task to run, in this worker's queues or any other's.
    pub(crate) fn is_ready(&self) -> bool {
        let pool = &self.pool;
        self.inbox_has_tasks() || pool.urgent.any() || pool.stealers.iter().flatten().any(|queue| !queue.is_empty())
    }

    /// Whether the inbox has a task.
    #[inline]
    pub(crate) fn inbox_has_tasks(&self) -> bool {
        !self.pool.injector.inbox.is_empty()
    }

    /// Parks until a task is injected or queued, or the engine ends.
    pub(crate) fn sleep(&mut self, env: &Environment) {
        let Some(idle_set) = self.pool.injector.idle_set() else { return };
        idle_set
            .park_unless(self.me, || !self.pool.injector.inbox.is_surely_empty() || env.may_end() || self.is_ready());
    }
}

impl Drop for Worker {
    /// Drops the tasks that will never run. A handle of an asynchronous function keeps the pool alive, with its inbox and queues, so they
    /// would stay there.
    fn drop(&mut self) {
        let queued = self.queues.iter().flat_map(|queue| std::iter::from_fn(|| queue.pop()));
        queued.for_each(|mut task| run::clear(&mut task));
        std::iter::from_fn(|| self.pool.urgent.pop()).for_each(|mut task| run::clear(&mut task));
        let mut injected = self.pool.injector.inbox.take();
        std::iter::from_fn(|| injected.pop()).for_each(|mut task| run::clear(&mut task));
    }
}
