//! The environment: the parts of an engine that submission, scheduler, thread contexts, workers and completion share. It holds neither the
//! engine's threads nor its submission lock.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use streamvm_ep::{DeviceRegistry, KernelRegistry};
use streamvm_instructions::EngineRef;
use streamvm_stream::mutant::Planted;

use crate::dispatch::contexts::Contexts;
use crate::execute::backpressure::{Backpressure, Limits, Pending};
use crate::execute::completion::Completion;
use crate::execute::lent_streams::LentStreams;
use crate::execute::section_gate::SectionGate;
use crate::execute::stall::Stall;
use crate::observe::observer::Observer;
use crate::progress::failures::Failures;
use crate::progress::stream_state::StreamTable;
use crate::queue::mpsc::MpscQueue;
use crate::sync::fork::Fork;
use crate::sync::parker::Parker;
use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};
use crate::tasks::task::Task;
use crate::tasks::timeline::Timeline;

/// See the module's documentation.
///
/// Data that one thread writes often and another reads often is on cache lines of its own. A cache line that both touch would move between
/// their cores at every instruction.
pub(crate) struct Environment {
    /// The engine's identity in tensors.
    pub(crate) me: EngineRef,
    /// Detects that this process is a fork of the one that built the engine.
    pub(crate) fork: Fork,
    pub(crate) streams: StreamTable,
    pub(crate) failures: CachePadded<Failures>,
    /// Node boxes of passed instructions, on their way back to the submitters.
    pub(crate) returned: MpscQueue<Task>,
    pub(crate) to_scheduler: MpscQueue<Task>,
    pub(crate) scheduler: Arc<Parker>,
    pub(crate) backpressure: CachePadded<Backpressure>,
    /// Number of waiting callers that have not parked yet. While it is not 0, contexts look into their inboxes more often.
    pub(crate) waiting: CachePadded<AtomicU64>,
    /// Where submitters wait for the end of a critical section.
    pub(crate) section_gate: SectionGate,
    pub(crate) limits: Limits,
    pub(crate) stall: Stall,
    /// Bytes charged to instructions so far. Written under the submission lock.
    pub(crate) charged_bytes: AtomicU64,
    /// Handles of thread contexts and workers.
    pub(crate) contexts: Contexts,
    pub(crate) devices: DeviceRegistry,
    pub(crate) kernels: KernelRegistry,
    /// Streams for steps of programs between the commands of another device.
    pub(crate) lent_streams: LentStreams,
    /// Whether devices get the name and source line of each instruction for their reports.
    pub(crate) tells_ops: bool,
    /// Whether threads of the engine run tasks; in inline and simulated mode callers do.
    pub(crate) threaded: bool,
    /// In inline mode: the submitted instructions, in program order.
    pub(crate) inline_tasks: Option<MpscQueue<Task>>,
    /// The planted bug, in builds for test suites.
    pub(crate) planted: Planted,
    /// Publishes instructions that devices have finished as passed.
    pub(crate) completion: Completion,
    /// The observer of the race detector and the trace recorder, if there is one.
    pub(crate) observer: Option<Observer>,
    /// Whether instructions are timed and counted for profiles.
    pub(crate) profiles: bool,
    /// What is noted for a trace, if the engine is traced.
    pub(crate) timeline: Option<Timeline>,
    /// Whether instructions are stamped with their times: for profiles or a trace.
    pub(crate) stamps: bool,
    /// Whether instructions have spans of the crate `tracing`.
    pub(crate) spans: bool,
    /// Whether instructions keep the points that they waited for: for an observer or a trace.
    pub(crate) keeps_waited: bool,
    /// Set when the engine is closed: nothing more is submitted, but reads of results until it [ends](Environment::ending).
    pub(crate) closed: AtomicBool,
    /// Set when the engine ends: its threads end once everything has passed.
    pub(crate) ending: AtomicBool,
    /// Set when the loops of programs must end at their next round. Shared with the sequences of loaded programs.
    pub(crate) stops_loops: Arc<std::sync::atomic::AtomicBool>,
}

impl Environment {
    /// Whether instructions have spans. The compiler knows it in a build without them.
    #[inline(always)]
    pub(crate) fn has_spans(&self) -> bool {
        cfg!(feature = "tracing") && self.spans
    }

    /// What is pending now.
    pub(crate) fn pending(&self) -> Pending {
        // The retired bytes are read first: bytes that are retired between the two reads then count as pending, and the difference is never
        // negative.
        let retired = self.contexts.retired_bytes() + self.completion.retired_bytes.load(Ordering::Acquire);
        let bytes = self.charged_bytes.load(Ordering::Acquire).saturating_sub(retired);
        Pending { instructions: self.streams.pending(), bytes }
    }

    /// Whether the engine's threads may end: it ends, and everything has passed.
    pub(crate) fn may_end(&self) -> bool {
        if !self.ending.load(Ordering::SeqCst) {
            return false;
        }
        // If two contexts pass the last instructions at the same time, at least one of them sees the other's number, too.
        fence(Ordering::SeqCst);
        self.streams.pending() == 0
    }

    /// Asks for the completion of everything that is submitted.
    pub(crate) fn demand_all(&self) {
        for stream_state in self.streams.iter() {
            let submitted = stream_state.submitted();
            // Skips streams that were asked already, because this may run with every instruction that passes.
            if stream_state.in_flight.as_ref().is_some_and(|in_flight| in_flight.wanted() < submitted) {
                stream_state.demand(submitted);
            }
        }
    }

    /// Wakes every thread of the engine.
    pub(crate) fn wake_all(&self) {
        self.scheduler.wake();
        self.completion.parker.wake();
        self.contexts.wake_all();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
    use loom::thread;

    use streamvm_stream::Timeline;

    /// Two contexts pass the last instructions of a closed engine. Then each asks by `may_end` whether its thread may end, and wakes the
    /// other if so. If neither may, both stay parked for ever.
    fn one_sees_the_end(may_end: fn(&[Timeline; 2]) -> bool) {
        loom::model(move || {
            let shared = Arc::new([Timeline::new(), Timeline::new()]);
            let other = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let _ = shared[1].advance(1);
                    may_end(&shared)
                })
            };
            let _ = shared[0].advance(1);
            let mine = may_end(&shared);
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

    /// A close that races with a submission. `close` runs under the submission lock, so the submission is either refused, or counted before
    /// the closer drains.
    fn refused_or_counted(locked: bool) {
        loom::model(move || {
            let shared = Arc::new((loom::sync::Mutex::new(()), AtomicBool::new(false), AtomicU64::new(0)));
            let submitter = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (lock, closed, submitted) = &*shared;
                    let _state = lock.lock().expect("not poisoned");
                    let open = !closed.load(Ordering::Relaxed);
                    if open {
                        submitted.store(1, Ordering::Release);
                    }
                    open
                })
            };
            let (lock, closed, submitted) = &*shared;
            let state = locked.then(|| lock.lock().expect("not poisoned"));
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

    /// A submitter charges bytes, and a context retires them. A reader in the order of [`pending`](super::Environment::pending), retired
    /// bytes first, never finds more retired than charged. `retire` is the ordering of the context's store.
    fn never_negative(retire: Ordering, look: fn(&AtomicU64, &AtomicU64) -> (u64, u64)) {
        loom::model(move || {
            let shared = Arc::new((AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false)));
            let submitter = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.0.store(8, Ordering::Release);
                    shared.2.store(true, Ordering::Release); // the task in the inbox
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
    fn loom_a_reader_of_the_charge_first_sees_more_bytes_retired() {
        never_negative(Ordering::Release, |charged, retired| {
            (charged.load(Ordering::Acquire), retired.load(Ordering::Acquire))
        });
    }
}
