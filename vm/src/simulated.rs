//! Simulated mode: scheduler, thread contexts, completion, callbacks and simulated devices, stepped by one thread.
//!
//! Nothing runs by itself. A caller that waits steps the engine until what it waits for has passed; a submission takes a
//! few steps or none. What steps next is drawn from the seed, so the same program with the same seed runs the same way,
//! and simulated devices run their commands as late as the draw allows. When nothing can step and something is pending,
//! the engine has stalled, and the waiter is told so at once.

use std::sync::Arc;

use streamvm_ep::sim::SimWorld;
use streamvm_instructions::{Deadline, Error};
use streamvm_stream::Point;

use crate::context::Context;
use crate::context_shared::ContextShared;
use crate::engine_thread;
use crate::pool::Worker;
use crate::scheduler::Scheduler;
use crate::shared::Shared;
use crate::sync::{Mutex, unpoisoned};

/// One draw in so many lets a simulated device go before everything else; else it goes when nothing else can.
const EARLY: u64 = 8;

/// The most steps that a submission takes.
const EAGER: u64 = 4;

/// What is stepped, and who may step.
pub(crate) struct Simulated {
    driver: Mutex<Driver>,
    /// Contexts that were made since the last step.
    adopted: Mutex<Vec<Arc<ContextShared>>>,
    /// Workers that were.
    employed: Mutex<Vec<Worker>>,
    world: Option<Arc<SimWorld>>,
}

struct Driver {
    rng: Rng,
    /// Whole turns first, as the engine's threads take them; a draw only when they find nothing to do. For counting
    /// instructions of the processor.
    in_order: bool,
    scheduler: Scheduler,
    contexts: Vec<Context>,
    workers: Vec<Worker>,
    order: Vec<Part>,
}

/// What can take a step.
#[derive(Copy, Clone)]
enum Part {
    Scheduler,
    Completion,
    Callback,
    /// The next instruction of one stream.
    Lane(usize, usize),
    /// One of the instructions that one worker can run.
    Worker(usize),
}

/// splitmix64: every seed is good, and the sequence is the same everywhere.
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

impl Simulated {
    pub(crate) fn new(seed: u64, in_order: bool, world: Option<Arc<SimWorld>>) -> Simulated {
        let (contexts, workers, order) = (Vec::new(), Vec::new(), Vec::new());
        let driver = Driver { rng: Rng(seed), in_order, scheduler: Scheduler::new(), contexts, workers, order };
        Simulated { driver: Mutex::new(driver), adopted: Mutex::default(), employed: Mutex::default(), world }
    }

    /// Steps a context from now on.
    pub(crate) fn adopt(&self, context: Arc<ContextShared>) {
        unpoisoned(self.adopted.lock()).push(context);
    }

    /// Steps a worker from now on.
    pub(crate) fn employ(&self, worker: Worker) {
        unpoisoned(self.employed.lock()).push(worker);
    }

    /// Does one thing. Returns false if nothing can be done.
    pub(crate) fn step(&self, vm: &Shared) -> bool {
        let mut driver = unpoisoned(self.driver.lock());
        self.step_with(&mut driver, vm)
    }

    fn step_with(&self, driver: &mut Driver, vm: &Shared) -> bool {
        let _here = engine_thread::visit();
        driver.contexts.extend(unpoisoned(self.adopted.lock()).drain(..).map(Context::new));
        driver.workers.extend(unpoisoned(self.employed.lock()).drain(..));
        driver.step(vm, self.world.as_deref())
    }

    /// Steps until `enough`. Returns false if it can never be.
    pub(crate) fn step_until(&self, vm: &Shared, enough: impl Fn() -> bool) -> bool {
        while !enough() {
            if !self.step(vm) {
                return enough();
            }
        }
        true
    }

    /// Steps until there is room for `more` instructions, or nothing can go on, or to the deadline.
    ///
    /// # Errors
    /// As [`Shared::step_until`].
    pub(crate) fn make_room(&self, vm: &Shared, more: u64, deadline: Option<Deadline>) -> Result<(), Error> {
        vm.demand_all();
        vm.step_until(self, || vm.limits.admit(vm.pending(), more), deadline)
    }

    /// Steps a little, or not, after a submission. A thread of the engine leaves that to who steps it; so does a thread
    /// that would have to wait for one that steps, and may be running a caller's code.
    pub(crate) fn after_submission(&self, vm: &Shared) {
        if engine_thread::is_here() {
            return;
        }
        let Ok(mut driver) = self.driver.try_lock() else { return };
        if driver.in_order {
            return;
        }
        let steps = driver.rng.below(2 * EAGER);
        for _ in EAGER..steps {
            self.step_with(&mut driver, vm);
        }
    }
}

impl Driver {
    fn step(&mut self, vm: &Shared, world: Option<&SimWorld>) -> bool {
        let role = |completes| vm.monitor.as_ref().map(|monitor| monitor.act_as(completes));
        let step_world = || {
            let _role = role(true);
            world.is_some_and(SimWorld::step)
        };
        if self.in_order {
            let contexts = role(false);
            let mut progress = self.scheduler.step(vm.to_scheduler.take(), vm);
            for context in &mut self.contexts {
                progress |= context.step(vm);
                context.give_back(vm);
            }
            for worker in &mut self.workers {
                progress |= worker.step(usize::MAX, vm);
                worker.give_back(vm);
            }
            drop(contexts);
            let _completion = role(true);
            if vm.completion.poll(vm) | vm.callbacks.step() | progress {
                return true;
            }
        } else if self.rng.below(EARLY) == 0 && step_world() {
            return true;
        }
        let mut order = std::mem::take(&mut self.order);
        order.extend([Part::Scheduler, Part::Completion, Part::Callback]);
        for (index, context) in self.contexts.iter_mut().enumerate() {
            context.take_in();
            order.extend((0..context.lanes()).map(|lane| Part::Lane(index, lane)));
        }
        order.extend((0..self.workers.len()).map(Part::Worker));
        let mut progress = false;
        while !progress && !order.is_empty() {
            let next = self.rng.below(order.len() as u64) as usize;
            let part = order.swap_remove(next);
            let _role = role(matches!(part, Part::Completion));
            progress = match part {
                Part::Scheduler => self.scheduler.step(vm.to_scheduler.take(), vm),
                Part::Completion => vm.completion.poll(vm),
                Part::Callback => vm.callbacks.step(),
                Part::Lane(context, lane) => self.contexts[context].step_lane(lane, vm),
                Part::Worker(worker) => {
                    self.workers[worker].turn(|bound| self.rng.below(bound));
                    self.workers[worker].step(1, vm)
                }
            };
        }
        order.clear();
        self.order = order;
        self.contexts.iter_mut().for_each(|context| context.give_back(vm));
        self.workers.iter_mut().for_each(|worker| worker.give_back(vm));
        // The completion may have found out, after a context's turn, that a stream must be waited for.
        if progress || step_world() || self.demand(vm) || self.contexts.iter().any(|context| context.is_ready(vm)) {
            return true;
        }
        // For the report of whoever waits.
        self.scheduler.note_held(vm);
        self.contexts.iter().for_each(Context::note_heads);
        false
    }

    /// Asks for what holds something back, as sleeping threads would. Returns whether that leads to a record.
    fn demand(&mut self, vm: &Shared) -> bool {
        let held = self.scheduler.blocked().chain(self.contexts.iter().flat_map(Context::held_by));
        let points: Vec<Point> = held.filter(|point| !vm.streams.has_passed(*point)).collect();
        let demand = |point: &Point| vm.streams.get(point.stream).is_some_and(|entry| entry.demand(point.seq));
        // Every one of them, so no short cut.
        points.iter().fold(false, |any, point| demand(point) | any)
    }
}
