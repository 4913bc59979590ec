//! Pools: workers that run the instructions of one unordered stream, each as soon as what it needs is met.
//!
//! What needs nothing when it is submitted comes through the inbox of the pool's door; a worker takes all of it and puts it
//! into its own queues, from which the others steal. What needs something waits in its cell; the worker that passes the
//! last of it runs it next, or queues it. Queues hold slots.
//!
//! Each level of urgency has a queue. A worker takes from the most urgent one that has something, and a successor of what it
//! has just passed before all that are no more urgent. What is to run on the very worker that meets its last need ([`DIRECT`])
//! goes before all of that, in the order in which it was found; nothing else is kept to that worker. The ends of variables
//! ([`First`]) go before all that is queued, and at one pick in [`spin::INBOX_EVERY`] before what runs directly.
//!
//! But every [`SPARED`]th pick is from a queue below the most urgent thing that there is: each of them in its turn.
//! So what can run is passed over at most `SPARED` times for each of these queues and each that lies before it. What was
//! brought is taken in within [`spin::INBOX_EVERY`] picks.
//!
//! [`Worker`] is the logic: [`Worker::step`] does some of the work there is, and never waits. [`serve`] is the thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_deque as deque;
use crossbeam_utils::CachePadded;
use streamvm_ep as ep;
use streamvm_instructions::Cause;

use crate::beds::Beds;
use crate::cells::{Cells, Level, cell_of};
use crate::context_shared::ContextShared;
use crate::engine_thread;
use crate::entry::StreamEntry;
use crate::first::First;
use crate::job::{Job, Task};
use crate::progress::Unordered;
use crate::room::Looks;
use crate::run;
use crate::runner::Runner;
use crate::shared::Shared;
use crate::slot::{Chain, Slot};
use crate::spin::{self, Spin};
use crate::stall::Incomplete;
use crate::sync::{Ordering, fence};

/// Levels of urgency that have a queue.
pub(crate) const LEVELS: usize = 3;

/// The level of the highest priority.
pub(crate) const HIGH: Level = 0;

/// The level of what the worker that meets its last need runs next, before all that is queued. Brought from elsewhere it has the
/// highest priority.
pub(crate) const DIRECT: Level = LEVELS as Level;

/// The level of what goes before every priority; see [`First`].
pub(crate) const FIRST: Level = DIRECT + 1;

/// The queue of a level that has one, or of what is not run directly.
fn queue_of(level: Level) -> usize {
    usize::from(if level == DIRECT { HIGH } else { level })
}

/// One pick in so many is from a less urgent queue, if one has something.
pub(crate) const SPARED: u32 = 16;

/// How many instructions a step runs at most.
const TURN: usize = 64;

/// Slots that a worker keeps before it gives them back in one batch.
const RETIRED: usize = 64;

/// What others see of a pool.
pub(crate) struct Pool {
    /// Where what is ready comes in, and who sleeps.
    pub(crate) door: Arc<ContextShared>,
    /// The workers, as reports see them.
    pub(crate) contexts: Vec<Arc<ContextShared>>,
    /// What was called and is over later, as reports see it.
    pub(crate) incomplete: Incomplete,
    first: CachePadded<First>,
    stealers: Vec<[deque::Stealer<Slot<Job>>; LEVELS]>,
}

/// The queues of one worker.
type Queues = [deque::Worker<Slot<Job>>; LEVELS];

impl Pool {
    /// A pool of workers with these names, and the queues of each.
    pub(crate) fn new(name: &str, workers: usize) -> (Pool, Vec<Queues>) {
        let contexts: Vec<_> =
            (0..workers).map(|worker| Arc::new(ContextShared::of_worker(format!("{name}.{worker}")))).collect();
        let queues: Vec<Queues> = (0..workers).map(|_| std::array::from_fn(|_| deque::Worker::new_fifo())).collect();
        let stealers = queues.iter().map(|queues| std::array::from_fn(|level| queues[level].stealer())).collect();
        let beds = Beds::new(contexts.iter().map(|context| context.sleeper.clone()));
        let (door, incomplete) = (Arc::new(ContextShared::door(name.to_owned(), beds)), Incomplete::default());
        let first = CachePadded::new(First::new());
        (Pool { door, contexts, incomplete, first, stealers }, queues)
    }

    /// How many workers there are.
    pub(crate) fn workers(&self) -> usize {
        self.contexts.len()
    }

    /// Brings an instruction that can run, from a thread that is no worker of the pool.
    pub(crate) fn bring(&self, job: Slot<Job>) {
        let mut chain = Chain::new();
        chain.push(job);
        self.door.inbox.push(&mut chain);
        self.door.wake();
    }
}

/// The logic of one worker. Owned by its thread.
pub(crate) struct Worker {
    pool: Arc<Pool>,
    entry: Arc<StreamEntry>,
    /// Its place among the workers.
    me: usize,
    shared: Arc<ContextShared>,
    runner: Runner,
    queues: Queues,
    /// A successor that runs next, unless something else comes first.
    next: Option<(Slot<Job>, Level)>,
    /// What is run before that.
    direct: Chain<Job>,
    picks: u32,
    /// The queue that the last pick that was spared was from.
    turn: usize,
    /// What is being run: what fails if a backend panics where no instruction catches it.
    in_hand: Option<Slot<Job>>,
    retired: Chain<Job>,
    looks: Looks,
}

impl Worker {
    /// Worker `me` of the pool of an unordered stream.
    pub(crate) fn new(
        entry: Arc<StreamEntry>,
        me: usize,
        queues: Queues,
        stream: Box<dyn ep::Stream>,
    ) -> Option<Worker> {
        let pool = entry.unordered()?.pool.clone()?;
        let shared = pool.contexts[me].clone();
        let (retired, looks) = (Chain::new(), Looks::default());
        let (next, in_hand, direct) = (None, None, Chain::new());
        let (runner, picks, turn) = (Runner::new(stream), 0, 0);
        Some(Worker { pool, entry, me, shared, runner, queues, next, direct, picks, turn, in_hand, retired, looks })
    }

    /// The worker, as others see it.
    pub(crate) fn context(&self) -> &Arc<ContextShared> {
        &self.shared
    }

    /// Runs at most `most` instructions that can run. Returns whether there was one.
    pub(crate) fn step(&mut self, most: usize, vm: &Shared) -> bool {
        let entry = self.entry.clone();
        let Some(unordered) = entry.unordered() else { return false };
        let worked = catch_unwind(AssertUnwindSafe(|| {
            for done in 0..most {
                let Some(job) = self.pick(unordered) else { return done > 0 };
                self.run(job, &entry, unordered, vm);
            }
            true
        }));
        worked.unwrap_or_else(|payload| {
            self.bury(run::panic_text(payload), &entry, unordered, vm);
            true
        })
    }

    /// Turns its queues, by a number of places below what `draw` is given: in simulated mode, what runs next is drawn.
    pub(crate) fn turn(&mut self, mut draw: impl FnMut(u64) -> u64) {
        if let Some((job, level)) = self.next.take() {
            self.queues[queue_of(level)].push(job);
        }
        let entry = self.entry.clone();
        entry.unordered().into_iter().for_each(|unordered| self.take_in(&unordered.cells));
        for queue in &self.queues {
            for _ in 0..draw(queue.len() as u64 + 1) {
                queue.pop().into_iter().for_each(|job| queue.push(job));
            }
        }
    }

    #[inline]
    fn pick(&mut self, unordered: &Unordered) -> Option<Slot<Job>> {
        let spared = self.picks % SPARED == SPARED - 1;
        if !spared && !self.direct.is_empty() {
            return self.pick_direct(unordered);
        }
        if let Some((job, level)) = self.next.take() {
            if !spared && self.comes_first(level) {
                self.picks = self.picks.wrapping_add(1);
                return Some(job);
            }
            self.queues[queue_of(level)].push(job);
            self.queued();
        }
        if self.looks_in() && !self.pool.door.inbox.is_empty() {
            self.take_in(&unordered.cells);
        }
        let mut stolen = false;
        let mut job = if spared { self.pick_spared(&mut stolen) } else { None };
        // What everybody may take is taken from others, too: who was woken for more than that is still to be found.
        job = job.or_else(|| self.pool.first.pop().inspect(|_| stolen = true));
        job = job.or_else(|| (0..LEVELS).find_map(|level| self.pick_from(level, &mut stolen)));
        // Nothing else at a pick that was spared.
        let job = job.or_else(|| self.direct.pop())?;
        self.picks = self.picks.wrapping_add(1);
        // Who has found work wakes the next while there is more, in its own queues or where it stole some.
        if self.pool.door.is_sleeping() && (self.has_queued() || (stolen && self.is_ready())) {
            self.pool.door.wake();
        }
        Some(job)
    }

    /// What runs directly. Now and then what was brought is taken in all the same, and the end of a variable goes before.
    #[inline(never)]
    fn pick_direct(&mut self, unordered: &Unordered) -> Option<Slot<Job>> {
        let looks = self.picks.is_multiple_of(spin::INBOX_EVERY);
        self.picks = self.picks.wrapping_add(1);
        if looks && !self.pool.door.inbox.is_empty() {
            self.take_in(&unordered.cells);
        }
        let first = if looks { self.pool.first.pop() } else { None };
        first.or_else(|| self.direct.pop())
    }

    /// From the queues below the most urgent thing that there is, which has all the other picks. They take turns, from the least
    /// urgent upwards.
    #[inline(never)]
    fn pick_spared(&mut self, stolen: &mut bool) -> Option<Slot<Job>> {
        let all = !self.direct.is_empty() || self.pool.first.any();
        let urgent = self.queues.iter().position(|queue| !queue.is_empty()).filter(|_| !all);
        let turns = (1..=LEVELS).map(|step| (self.turn + LEVELS - step) % LEVELS);
        let mut below = turns.filter(|level| urgent.is_none_or(|urgent| *level > urgent));
        let (level, job) = below.find_map(|level| Some((level, self.pick_from(level, stolen)?)))?;
        self.turn = level;
        Some(job)
    }

    /// From the queue of a level, its own or another's.
    #[inline]
    fn pick_from(&self, level: usize, stolen: &mut bool) -> Option<Slot<Job>> {
        self.queues[level].pop().or_else(|| self.steal(level).inspect(|_| *stolen = true))
    }

    /// Whether this pick looks into the inbox: each look takes its line, and those of what is in it, away from who pushes.
    fn looks_in(&self) -> bool {
        self.picks.is_multiple_of(spin::INBOX_EVERY) || !self.has_queued()
    }

    /// Whether nothing more urgent is there.
    fn comes_first(&self, level: Level) -> bool {
        let nothing_new = !self.picks.is_multiple_of(spin::INBOX_EVERY) || self.pool.door.inbox.is_empty();
        nothing_new && !self.pool.first.any() && self.queues[..usize::from(level)].iter().all(deque::Worker::is_empty)
    }

    fn has_queued(&self) -> bool {
        self.queues.iter().any(|queue| !queue.is_empty()) || self.pool.first.any()
    }

    /// Takes what was brought into the queues.
    fn take_in(&mut self, cells: &Cells) {
        let mut jobs = self.pool.door.inbox.take();
        while let Some(job) = jobs.pop() {
            cells.fetch(cell_of(job.point.seq));
            match job.level {
                FIRST => self.pool.first.push(job),
                level => self.queues[queue_of(level)].push(job),
            }
        }
        self.queued();
    }

    /// Something was queued: one that sleeps is to see it.
    fn queued(&self) {
        if let Some(beds) = &self.pool.door.beds {
            beds.tell(|| self.has_queued());
        }
    }

    #[inline(never)]
    fn steal(&self, level: usize) -> Option<Slot<Job>> {
        let others = (1..self.pool.stealers.len()).map(|step| (self.me + step) % self.pool.stealers.len());
        others.map(|other| &self.pool.stealers[other][level]).find_map(|stealer| {
            loop {
                match stealer.steal_batch_and_pop(&self.queues[level]) {
                    deque::Steal::Success(job) => {
                        // Behind what came with it, and before the look at who sleeps: see `Beds::tell`.
                        fence(Ordering::SeqCst);
                        return Some(job);
                    }
                    deque::Steal::Empty => return None,
                    deque::Steal::Retry => {}
                }
            }
        })
    }

    /// Runs a job whose needs are met.
    #[inline]
    fn run(&mut self, job: Slot<Job>, entry: &StreamEntry, unordered: &Unordered, vm: &Shared) {
        let job = self.in_hand.insert(job);
        unordered.cells.fetch_successors(job.point.seq);
        if job.task != Task::Join {
            self.shared.running.begin(job);
            if let Some(monitor) = &vm.monitor {
                if let Some(more) = job.has_more() {
                    more.all_waited();
                }
                monitor.starts(job, entry, self.runner.stream());
            }
            if let Some(later) = run::carry_out(job, entry, &mut self.runner, vm) {
                return self.in_hand.take().into_iter().for_each(|job| later.park(job, &self.pool));
            }
        }
        self.pass(entry, unordered, vm);
    }

    /// Publishes that the job in hand has passed, and finds its successors.
    fn pass(&mut self, entry: &StreamEntry, unordered: &Unordered, vm: &Shared) {
        let Some(mut job) = self.in_hand.take() else { return };
        let number = job.point.seq;
        if job.task == Task::Join {
            // Its slot is the next instruction's, which may have no task of its own to put there.
            job.task = Task::Nothing;
            unordered.cells.join_ends();
        } else {
            run::settle(&mut job, entry, vm, &self.shared);
            unordered.count(self.me);
        }
        let (queues, next, direct, first) = (&self.queues, &mut self.next, &mut self.direct, &self.pool.first);
        let (cells, mut queued) = (&unordered.cells, false);
        let wanted = cells.pass(number, |id, stream, level| {
            if stream != entry.id {
                vm.streams
                    .get(stream)
                    .and_then(|other| other.unordered())
                    .into_iter()
                    .for_each(|other| other.bring(id));
            } else if level == DIRECT {
                cells.take(id).into_iter().for_each(|job| direct.push(job));
            } else if level == FIRST {
                cells.take(id).into_iter().for_each(|job| first.push(job));
                queued = true;
            } else if next.is_none() {
                *next = cells.take(id).map(|job| (job, level));
            } else {
                cells.take(id).into_iter().for_each(|job| queues[usize::from(level)].push(job));
                queued = true;
            }
        });
        if wanted {
            unordered.wake(number);
        }
        // What runs directly may take its time, and have successors of its kind: the rest is for others.
        if !self.direct.is_empty()
            && let Some((job, level)) = self.next.take()
        {
            self.queues[queue_of(level)].push(job);
            queued = true;
        }
        if queued {
            self.queued();
        }
        vm.room.announce(vm, &mut self.looks);
        self.retired.push(job);
        if self.retired.len() >= RETIRED {
            self.give_back(vm);
        }
    }

    #[cold]
    fn bury(&mut self, text: String, entry: &StreamEntry, unordered: &Unordered, vm: &Shared) {
        log::error!("worker {}: a backend panicked ({text}); the instruction in hand fails", self.shared.name);
        let Some(job) = &self.in_hand else { return };
        if !vm.failures.is_known(job.point) {
            vm.failures.fail(job.order, Arc::new(run::failure(job, entry, Cause::Panic(text))));
        }
        self.pass(entry, unordered, vm);
    }

    /// Gives the slots of what has passed back to the submitters.
    pub(crate) fn give_back(&mut self, vm: &Shared) {
        vm.returned.push(&mut self.retired);
    }

    fn is_ready(&self) -> bool {
        let pool = &self.pool;
        self.was_brought() || pool.first.any() || pool.stealers.iter().flatten().any(|queue| !queue.is_empty())
    }

    /// Whether something is in the inbox.
    #[inline]
    fn was_brought(&self) -> bool {
        !self.pool.door.inbox.is_empty()
    }

    /// Sleeps until something is brought or queued.
    fn sleep(&mut self, vm: &Shared) {
        let Some(beds) = &self.pool.door.beds else { return };
        beds.lie_down(self.me, || !self.pool.door.inbox.is_surely_empty() || vm.is_over() || self.is_ready());
    }
}

impl Drop for Worker {
    /// What nobody will run is dropped here: who has a handle holds on to the pool, with its inbox and queues.
    fn drop(&mut self) {
        let queued = self.queues.iter().flat_map(|queue| std::iter::from_fn(|| queue.pop()));
        queued.for_each(|mut job| run::clear(&mut job));
        std::iter::from_fn(|| self.pool.first.pop()).for_each(|mut job| run::clear(&mut job));
        let mut brought = self.pool.door.inbox.take();
        std::iter::from_fn(|| brought.pop()).for_each(|mut job| run::clear(&mut job));
    }
}

/// The body of a worker's thread.
pub(crate) fn serve(mut worker: Worker, vm: Arc<Shared>) {
    engine_thread::enter();
    worker.shared.sleeper.belongs_here();
    loop {
        if worker.step(TURN, &vm) {
            continue;
        }
        worker.give_back(&vm);
        if vm.is_over() {
            vm.wake_all();
            return;
        }
        let mut spin = Spin::new(spin::CONTEXT);
        loop {
            let waited_for = || vm.waiting.load(Ordering::Relaxed) > 0;
            let looks = spin.is_nth(spin::INBOX_EVERY) || waited_for();
            // What a worker queues is written by it all the time while it works.
            let glance = || waited_for() && worker.was_brought();
            if (looks && worker.is_ready()) || vm.is_over() || !spin.turn(glance) {
                break;
            }
        }
        if !worker.is_ready() {
            worker.sleep(&vm);
        }
    }
}
