//! What all threads of one engine share.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_utils::CachePadded;
use streamvm_ep::{Device, DeviceRegistry, EventPool, KernelRegistry};
use streamvm_instructions::EngineRef;
use streamvm_stream::Capabilities;
use streamvm_stream::mutant::Planted;

use crate::callbacks::Callbacks;
use crate::completion::Completion;
use crate::context::Context;
use crate::context_shared::ContextShared;
use crate::cuda::CudaDevices;
use crate::entry::StreamTable;
use crate::failures::Failures;
use crate::handle::Handle;
use crate::inbox::Inbox;
use crate::job::Job;
use crate::memory::Heap;
use crate::monitor::Monitor;
use crate::room::{Limits, Pending, Room};
use crate::simulated::Simulated;
use crate::sleep::Sleeper;
use crate::stall::Stall;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, fence};
use crate::threads::Threads;

/// One engine. Held by its `Vm` and its threads; memory goes back to the devices when the last of them is gone.
///
/// What one thread writes often and another reads often lies on lines of its own: a line that both touch travels between
/// their cores with every instruction.
pub(crate) struct Shared {
    /// What stays when this is gone, with the submission lock.
    pub(crate) handle: &'static Handle,
    /// What tensors know this engine by.
    pub(crate) me: EngineRef,
    pub(crate) streams: StreamTable,
    pub(crate) failures: CachePadded<Failures>,
    /// Slots of instructions that have passed, on their way back to the submitters.
    pub(crate) returned: Inbox<Job>,
    pub(crate) to_scheduler: Inbox<Job>,
    pub(crate) scheduler: Arc<Sleeper>,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) room: CachePadded<Room>,
    /// Callers that wait and have not parked yet: while there are any, contexts look into their inboxes more often.
    pub(crate) waiting: CachePadded<AtomicU64>,
    pub(crate) limits: Limits,
    pub(crate) stall: Stall,
    /// Bytes charged to instructions so far. Written under the submission lock.
    pub(crate) charged_bytes: AtomicU64,
    pub(crate) threads: Threads,
    pub(crate) devices: DeviceRegistry,
    /// Gives host memory outside any device.
    pub(crate) host: Arc<dyn Device>,
    pub(crate) kernels: KernelRegistry,
    /// Devices are told of each instruction by name and source line, for what they report.
    pub(crate) tells_ops: bool,
    /// Those of the devices that are CUDA's.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(dead_code, reason = "without CUDA nobody asks for a kernel of their own")
    )]
    pub(crate) cuda: Arc<CudaDevices>,
    /// What soft sync goes by as well.
    pub(crate) capabilities: Capabilities,
    /// The most bytes that are staged in one piece.
    pub(crate) staging_piece: usize,
    /// In inline mode: jobs in program order, and who runs them.
    pub(crate) inline: Option<Inline>,
    /// In simulated mode: what is stepped, and in which order.
    pub(crate) simulated: Option<Simulated>,
    /// A rule that a suite has broken, in builds for suites.
    pub(crate) planted: Planted,
    /// Turns what devices have finished into passed numbers.
    pub(crate) completion: Completion,
    /// Who is told what is issued and what happens, if anybody.
    pub(crate) monitor: Option<Monitor>,
    /// Instructions are stamped and counted.
    pub(crate) profiles: bool,
    /// Nothing more is submitted.
    pub(crate) closed: AtomicBool,
    /// Last: the memory outlives everything that may point into it.
    pub(crate) heap: Heap,
}

/// The parts of inline mode.
pub(crate) struct Inline {
    pub(crate) jobs: Inbox<Job>,
    pub(crate) driver: Mutex<Context>,
    pub(crate) context: Arc<ContextShared>,
}

impl Shared {
    /// What is pending now.
    pub(crate) fn pending(&self) -> Pending {
        // Retired first: what passes between the two looks is then counted as pending, never as negative.
        let retired = self.threads.retired_bytes() + self.completion.retired_bytes.load(Ordering::Acquire);
        let bytes = self.charged_bytes.load(Ordering::Acquire).saturating_sub(retired);
        Pending { instructions: self.streams.pending(), bytes }
    }

    /// How many events exist. Devices of one kind may share a pool.
    pub(crate) fn live_events(&self) -> usize {
        let pools: hashbrown::HashMap<*const EventPool, usize> =
            self.devices.iter().map(|device| (std::ptr::from_ref(device.events()), device.events().live())).collect();
        pools.values().sum()
    }

    /// Whether the engine's threads may end: nothing more comes, and everything has passed.
    pub(crate) fn is_over(&self) -> bool {
        if !self.closed.load(Ordering::SeqCst) {
            return false;
        }
        // Of two contexts that pass the last instructions, one sees the other's number too.
        fence(Ordering::SeqCst);
        self.streams.pending() == 0
    }

    /// Somebody waits for all that is submitted.
    pub(crate) fn demand_all(&self) {
        for entry in self.streams.iter() {
            let submitted = entry.submitted();
            // What was asked for is not asked for again: this may be called with every instruction that passes.
            if entry.flight.as_ref().is_some_and(|flight| flight.wanted() < submitted) {
                entry.demand(submitted);
            }
        }
    }

    /// Refuses new submissions from now on, and lets the threads end when everything has passed.
    pub(crate) fn close(&self) {
        // Under the lock, so that a submission is either refused or counted as pending before this returns.
        let state = self.handle.lock();
        self.closed.store(true, Ordering::SeqCst);
        drop(state);
        self.room.notify();
        // The threads end once everything has passed, which they must be able to see.
        self.demand_all();
        self.wake_all();
    }

    /// Wakes every thread of the engine.
    pub(crate) fn wake_all(&self) {
        self.scheduler.wake();
        self.completion.sleeper.wake();
        self.threads.wake_all();
    }

    /// Frees what was dropped since the last submission, and what was kept.
    pub(crate) fn free_dropped(&self) {
        let mut state = self.handle.lock();
        self.handle.releases.take(&mut state.scratch.dropped);
        state.free_dropped(self);
        state.end_kept();
    }

    /// Joins the engine's threads; everything has passed. Contexts first, as the last of them may still be handing a
    /// callback over. False if callbacks still run at the deadline.
    pub(crate) fn end_threads(&self, deadline: Option<Instant>) -> bool {
        if let Some(monitor) = &self.monitor {
            monitor.end_trace();
        }
        if let Some(simulated) = &self.simulated {
            simulated.step_until(self, || false);
        }
        self.wake_all();
        for handle in self.threads.take_handles() {
            if handle.join().is_err() {
                log::error!("a thread of the engine panicked");
            }
        }
        self.callbacks.close();
        self.callbacks.wait(deadline)
    }

    /// Lets the engine's threads end by themselves, once they have nothing left to do.
    pub(crate) fn leave_threads(&self) {
        if let Some(monitor) = &self.monitor {
            monitor.end_trace();
        }
        drop(self.threads.take_handles());
        self.callbacks.close();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
    use loom::thread;

    use streamvm_stream::Timeline;

    /// Two contexts pass the last instructions of a closed engine, then each asks by `is_over` whether its thread may
    /// end; one that may wakes the other. If neither may, both sleep for ever.
    fn one_sees_the_end(is_over: fn(&[Timeline; 2]) -> bool) {
        loom::model(move || {
            let shared = Arc::new([Timeline::new(), Timeline::new()]);
            let other = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let _ = shared[1].advance(1);
                    is_over(&shared)
                })
            };
            let _ = shared[0].advance(1);
            let mine = is_over(&shared);
            let theirs = other.join().expect("a context does not panic");
            assert!(mine || theirs, "nobody sees the end");
        });
    }

    #[test]
    fn loom_one_of_the_last_contexts_sees_the_end() {
        one_sees_the_end(|timelines| {
            fence(Ordering::SeqCst);
            timelines.iter().all(|timeline| timeline.passed() == 1)
        });
    }

    #[test]
    #[should_panic(expected = "nobody sees the end")]
    fn loom_without_the_fence_neither_of_the_last_contexts_sees_the_end() {
        one_sees_the_end(|timelines| timelines.iter().all(|timeline| timeline.passed() == 1));
    }

    /// Closing against a submission: `close` under the submission lock, so that what is submitted is refused or counted
    /// before the closer drains.
    fn refused_or_counted(locked: bool) {
        loom::model(move || {
            let shared = Arc::new((loom::sync::Mutex::new(()), AtomicBool::new(false), AtomicU64::new(0)));
            let submitter = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (lock, closed, submitted) = &*shared;
                    let _state = lock.lock().expect("nobody panics");
                    let open = !closed.load(Ordering::Relaxed);
                    if open {
                        submitted.store(1, Ordering::Release);
                    }
                    open
                })
            };
            let (lock, closed, submitted) = &*shared;
            let state = locked.then(|| lock.lock().expect("nobody panics"));
            closed.store(true, Ordering::SeqCst);
            drop(state);
            let drained = submitted.load(Ordering::Acquire);
            let taken = submitter.join().expect("a submitter does not panic");
            assert_eq!(drained, u64::from(taken), "what the closer drains");
        });
    }

    #[test]
    fn loom_a_submission_is_refused_or_drained() {
        refused_or_counted(true);
    }

    #[test]
    #[should_panic(expected = "what the closer drains")]
    fn loom_closing_without_the_lock_leaves_a_submission_behind() {
        refused_or_counted(false);
    }

    /// Bytes are charged by a submitter and retired by a context; whoever looks in the order of
    /// [`pending`](super::Shared::pending), retired first, never finds more retired than charged. `retire` is how the
    /// context writes.
    fn never_negative(retire: Ordering, look: fn(&AtomicU64, &AtomicU64) -> (u64, u64)) {
        loom::model(move || {
            let shared = Arc::new((AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false)));
            let submitter = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.0.store(8, Ordering::Release);
                    shared.2.store(true, Ordering::Release); // the job in the inbox
                })
            };
            let context = {
                let shared = shared.clone();
                thread::spawn(move || {
                    if shared.2.load(Ordering::Acquire) {
                        shared.1.store(8, retire);
                    }
                })
            };
            let (charged, retired) = look(&shared.0, &shared.1);
            assert!(charged >= retired, "more is retired than charged");
            submitter.join().expect("a submitter does not panic");
            context.join().expect("a context does not panic");
        });
    }

    #[test]
    fn loom_pending_bytes_are_never_negative() {
        never_negative(Ordering::Release, |charged, retired| {
            let retired = retired.load(Ordering::Acquire);
            (charged.load(Ordering::Acquire), retired)
        });
    }

    #[test]
    #[should_panic(expected = "more is retired than charged")]
    fn loom_bytes_retired_without_a_release_are_seen_before_their_charge() {
        never_negative(Ordering::Relaxed, |charged, retired| {
            let retired = retired.load(Ordering::Acquire);
            (charged.load(Ordering::Acquire), retired)
        });
    }

    #[test]
    #[should_panic(expected = "more is retired than charged")]
    fn loom_a_look_at_the_charge_first_sees_bytes_retired_before_it() {
        never_negative(Ordering::Release, |charged, retired| {
            (charged.load(Ordering::Acquire), retired.load(Ordering::Acquire))
        });
    }
}
