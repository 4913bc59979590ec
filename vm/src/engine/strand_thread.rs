//! The threads of a device that serve its strands: each takes a strand from the ready queue, runs it, and parks when there is none.
//!
//! * A thread stays with its strand while the strand has work, so that data stays in its caches, and for one spin after that. It leaves
//!   earlier if another strand is ready.
//! * While other strands are ready, a strand gets one turn (`TURN` in `execute/context.rs`) and goes to the end of the queue of its priority.
//! * While a caller that helps holds the run lock of a strand, the thread serves other strands that are ready. Otherwise it would sleep while the kernel
//!   wakes another thread for them, which may not find the idle core at once.
//! * The thread holds the run lock for one round at a time, so that a waiting caller can help between two rounds
//!   ([`help`](crate::engine::help)).

use std::sync::Arc;

use crate::dispatch::context_handle::ContextHandle;
use crate::dispatch::strand::{Served, Strand};
use crate::dispatch::thread_group::ThreadGroup;
use crate::engine::context_thread::{Next, acquire_run_lock, finds_work, somebody_waits};
use crate::execute::environment::Environment;
use crate::execute::locked_context::LockedContext;
use crate::sync::{Mutex, engine_thread, unpoisoned};
use crate::tasks::task::Level;

/// The strands of one device, and the threads that serve them.
pub(crate) struct Strands {
    pub(crate) group: Arc<ThreadGroup>,
    /// By their numbers. Grows when a stream is opened; a strand is added before it can be queued.
    contexts: Mutex<Vec<Arc<LockedContext>>>,
}

impl Strands {
    /// No strands yet, for at most this many threads.
    pub(crate) fn new(threads: usize) -> Strands {
        Strands { group: Arc::new(ThreadGroup::new(threads)), contexts: Mutex::default() }
    }

    /// Adds a strand of this name and level.
    pub(crate) fn add(&self, name: String, level: Level) -> Arc<LockedContext> {
        let mut contexts = unpoisoned(self.contexts.lock());
        // An engine has at most 1,024 streams.
        let number = contexts.len() as u32;
        let context = Arc::new(LockedContext::strand(name, Strand::new(number, level, self.group.clone())));
        contexts.push(context.clone());
        context
    }

    fn copy_into(&self, known: &mut Vec<Arc<LockedContext>>) {
        let contexts = unpoisoned(self.contexts.lock());
        known.extend_from_slice(&contexts[known.len()..]);
    }
}

/// The body of the thread with this number; returns when the engine is over.
pub(crate) fn serve(strands: &Strands, number: usize, thread: &Arc<ContextHandle>, env: &Environment) {
    engine_thread::enter();
    strands.group.add_thread(number, thread.clone());
    thread.parker.belongs_here();
    let mut known = Vec::new();
    // Strands that the thread has passed by, because callers run them. It tries each strand that is ready once. If callers run all of them, it
    // waits for the run lock of the one that it took first, usually the most urgent.
    let mut passed_by: Vec<Served> = Vec::new();
    loop {
        let Some(queued) = strands.group.pop() else {
            // Another thread has taken what was ready after the strands that were passed by.
            if !passed_by.is_empty() {
                requeue(&mut passed_by, &known);
            } else if env.may_end() {
                return env.wake_all();
            } else {
                strands.group.park(&thread.parker, || env.may_end());
            }
            continue;
        };
        let index = queued.strand() as usize;
        if index >= known.len() {
            strands.copy_into(&mut known);
        }
        let mut served = strand_of(&known[index]).serve(queued, number);
        let is_only = passed_by.is_empty() && !strands.group.has_ready();
        if !is_only && known[index].run_lock.try_lock().is_err() {
            passed_by.push(served);
            if strands.group.has_ready() {
                continue;
            }
            served = passed_by.remove(0);
        }
        requeue(&mut passed_by, &known);
        serve_strand(&known[served.strand() as usize], served, env);
    }
}

/// Puts the strands that the thread has passed by back into the ready queues.
fn requeue(passed_by: &mut Vec<Served>, known: &[Arc<LockedContext>]) {
    passed_by.drain(..).for_each(|served| strand_of(&known[served.strand() as usize]).requeue(served));
}

/// The strand of a context that [`Strands::add`] has made.
fn strand_of(context: &LockedContext) -> &Strand {
    context.handle.as_strand().unwrap_or_else(|| unreachable!("each context of a group is a strand"))
}

/// Runs the tasks of a strand until the thread leaves it.
fn serve_strand(locked: &LockedContext, mut served: Served, env: &Environment) {
    let strand = strand_of(locked);
    let mut next = Next::default();
    let others_wait = || strand.group().has_ready();
    loop {
        let mut guard = acquire_run_lock(locked);
        let Some(context) = guard.as_mut() else { return };
        let worked = context.work(next.checks_inbox, env);
        let waits = somebody_waits(env);
        next.checks_inbox = context.poll_inbox_next || waits;
        if worked {
            next.waited = waits && context.has_run_code();
            if !others_wait() {
                continue;
            }
        } else {
            context.give_back(env);
            let holds = context.holds();
            drop(guard);
            if env.may_end() {
                return;
            }
            next.checks_inbox = true;
            if !others_wait() && finds_work(locked, env, holds, next.waited, others_wait) {
                continue;
            }
            guard = acquire_run_lock(locked);
        }
        let Some(context) = guard.as_mut() else { return };
        served = match context.leave(strand, served, env) {
            Some(served) => served,
            None => return,
        };
        // There is more to do. Other strands that wait go first, even if new tasks arrive all the time.
        drop(guard);
        if others_wait() {
            return strand.requeue(served);
        }
        next.checks_inbox = true;
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "strand_thread_tests.rs"]
mod tests;
