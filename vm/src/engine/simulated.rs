//! Simulated mode: callers step the scheduler, thread contexts, workers, completion, callbacks and simulated devices; the engine
//! has no threads.
//!
//! * A caller that waits steps the engine until its point has passed. A submission is followed by a few steps, or none.
//! * A seeded generator draws the part that steps next, so the same program with the same seed runs the same way.
//! * Simulated devices run their commands late: mostly when nothing else can step ([`EARLY`]).
//! * If nothing can step while instructions are pending, the engine has stalled, and the waiter gets an error at once.
//!
//! Only the holder of the lock `stepper` steps, so one thread steps at a time.

use std::sync::Arc;

use streamvm_instructions::{Deadline, Error};
use streamvm_stream::Point;

use crate::engine::core::Engine;
use crate::execute::backpressure::FULL;
use crate::execute::context::Context;
use crate::execute::locked_context::LockedContext;
use crate::execute::scheduler::Scheduler;
use crate::execute::worker::Worker;
use crate::observe::instruments::SimMachine;
use crate::sync::{Mutex, engine_thread, unpoisoned};

/// In one of this many steps a simulated device steps before everything else; otherwise devices step when nothing else can.
const EARLY: u64 = 8;

/// Fewer steps than this follow a submission; none follow in five of eight draws.
const EAGER: u64 = 4;

/// The parts that are stepped, and the lock whose holder may step them.
pub(crate) struct Simulated {
    stepper: Mutex<Stepper>,
    /// Contexts that were created since the last step; the next step adds them to the stepper.
    new_contexts: Mutex<Vec<Arc<LockedContext>>>,
    /// Workers that were created since the last step.
    new_workers: Mutex<Vec<Worker>>,
    machine: Option<Arc<SimMachine>>,
}

struct Stepper {
    rng: Rng,
    /// Each part takes whole turns in a fixed order, as the engine's threads would, and parts are drawn only when no turn makes
    /// progress. Benchmarks use this to count processor instructions of the whole engine on one thread.
    in_order: bool,
    scheduler: Scheduler,
    contexts: Vec<Context>,
    workers: Vec<Worker>,
    order: Vec<Part>,
}

/// A part of the engine that can take a step.
#[derive(Copy, Clone)]
enum Part {
    Scheduler,
    Completion,
    Callback,
    /// The next task of one stream: the index of its context, and of its lane in that.
    Stream(usize, usize),
    /// A drawn one of the tasks that one worker can run.
    Worker(usize),
}

/// The generator splitmix64. Any seed gives a good sequence, which is the same on all platforms.
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
    pub(crate) fn new(seed: u64, in_order: bool, machine: Option<Arc<SimMachine>>) -> Simulated {
        let (contexts, workers, order) = (Vec::new(), Vec::new(), Vec::new());
        let stepper = Stepper { rng: Rng(seed), in_order, scheduler: Scheduler::new(), contexts, workers, order };
        Simulated {
            stepper: Mutex::new(stepper),
            new_contexts: Mutex::default(),
            new_workers: Mutex::default(),
            machine,
        }
    }

    /// Adds a context to be stepped.
    pub(crate) fn add_context(&self, context: Arc<LockedContext>) {
        unpoisoned(self.new_contexts.lock()).push(context);
    }

    /// Adds a worker to be stepped.
    pub(crate) fn start_workers(&self, worker: Worker) {
        unpoisoned(self.new_workers.lock()).push(worker);
    }

    /// Takes one step. Returns false if no part can step.
    pub(crate) fn step(&self, engine: &Engine) -> bool {
        let mut stepper = unpoisoned(self.stepper.lock());
        self.step_with(&mut stepper, engine)
    }

    fn step_with(&self, stepper: &mut Stepper, engine: &Engine) -> bool {
        let _here = engine_thread::visit();
        stepper.contexts.extend(unpoisoned(self.new_contexts.lock()).drain(..).map(|locked| Context::new(&locked)));
        stepper.workers.extend(unpoisoned(self.new_workers.lock()).drain(..));
        stepper.step(engine, self.machine.as_deref())
    }

    /// Steps until `enough` returns true. Returns false if no part can step and `enough` still returns false.
    pub(crate) fn step_until(&self, engine: &Engine, enough: impl Fn() -> bool) -> bool {
        while !enough() {
            if !self.step(engine) {
                return enough();
            }
        }
        true
    }

    /// Steps until the limits admit `more` instructions, no part can step, or the deadline is reached.
    ///
    /// # Errors
    /// As [`Engine::step_until`].
    pub(crate) fn make_room(&self, engine: &Engine, more: u64, deadline: Option<Deadline>) -> Result<(), Error> {
        engine.demand_all();
        engine.step_until(self, || engine.limits.admit(engine.pending(), more), deadline, || FULL.to_owned())
    }

    /// Takes fewer than [`EAGER`] steps after a submission, often none.
    ///
    /// None on a thread of an engine, as the caller that steps it goes on to step. None while another thread steps: waiting for it
    /// could deadlock, since that thread may be running a caller's function.
    pub(crate) fn after_submission(&self, engine: &Engine) {
        if engine_thread::is_here() {
            return;
        }
        let Ok(mut stepper) = self.stepper.try_lock() else { return };
        if stepper.in_order {
            return;
        }
        let steps = stepper.rng.below(2 * EAGER);
        for _ in EAGER..steps {
            self.step_with(&mut stepper, engine);
        }
    }
}

impl Stepper {
    fn step(&mut self, engine: &Engine, machine: Option<&SimMachine>) -> bool {
        let role = |completes| engine.observer.as_ref().map(|observer| observer.act_as(completes));
        let step_world = || {
            let _role = role(true);
            machine.is_some_and(SimMachine::step)
        };
        if self.in_order {
            let contexts = role(false);
            let mut progress = self.scheduler.step(engine.to_scheduler.take(), engine);
            for context in &mut self.contexts {
                progress |= context.step(engine);
                context.give_back(engine);
            }
            for worker in &mut self.workers {
                progress |= worker.step(usize::MAX, engine);
                worker.give_back(engine);
            }
            drop(contexts);
            let _completion = role(true);
            if engine.completion.poll(engine) | engine.callbacks.step() | progress {
                return true;
            }
        } else if self.rng.below(EARLY) == 0 && step_world() {
            return true;
        }
        let mut order = std::mem::take(&mut self.order);
        order.extend([Part::Scheduler, Part::Completion, Part::Callback]);
        for (index, context) in self.contexts.iter_mut().enumerate() {
            context.take_in();
            order.extend((0..context.streams()).map(|stream| Part::Stream(index, stream)));
        }
        order.extend((0..self.workers.len()).map(Part::Worker));
        let mut progress = false;
        while !progress && !order.is_empty() {
            let next = self.rng.below(order.len() as u64) as usize;
            let part = order.swap_remove(next);
            let _role = role(matches!(part, Part::Completion));
            progress = match part {
                Part::Scheduler => self.scheduler.step(engine.to_scheduler.take(), engine),
                Part::Completion => engine.completion.poll(engine),
                Part::Callback => engine.callbacks.step(),
                Part::Stream(context, stream) => self.contexts[context].step_stream(stream, engine),
                Part::Worker(worker) => {
                    self.workers[worker].shuffle(|bound| self.rng.below(bound));
                    self.workers[worker].step(1, engine)
                }
            };
        }
        order.clear();
        self.order = order;
        self.contexts.iter_mut().for_each(|context| context.give_back(engine));
        self.workers.iter_mut().for_each(|worker| worker.give_back(engine));
        // The completion may have put a stream in doubt after its context's turn, which gives that context something to do.
        if progress
            || step_world()
            || self.demand(engine)
            || self.contexts.iter().any(|context| context.is_ready(engine))
        {
            return true;
        }
        // For the stall report.
        self.scheduler.note_held(engine);
        self.contexts.iter().for_each(Context::note_heads);
        false
    }

    /// Demands the points that hold tasks back, as parked threads would. Returns whether a context has to record for one.
    fn demand(&mut self, engine: &Engine) -> bool {
        let held = self.scheduler.blocked().chain(self.contexts.iter().flat_map(Context::held_by));
        let points: Vec<Point> = held.filter(|point| !engine.streams.has_passed(*point)).collect();
        let demand =
            |point: &Point| engine.streams.get(point.stream).is_some_and(|stream_state| stream_state.demand(point.seq));
        // `any` would stop at the first: every point must be demanded.
        points.iter().fold(false, |any, point| demand(point) | any)
    }
}
