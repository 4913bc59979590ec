//! [`Engine`]: the state that all threads of one engine share.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use streamvm_ep::{Device, EventPool};
use streamvm_instructions::Place;
use streamvm_stream::Capabilities;

use crate::engine::cuda::CudaDevices;
use crate::engine::handle::Handle;
use crate::engine::lane_priorities::LanePriorities;
use crate::engine::owners::Left;
use crate::engine::policies::Policies;
use crate::engine::simulated::Simulated;
use crate::engine::threads::Threads;
use crate::execute::context::Context;
use crate::execute::environment::Environment;
use crate::execute::locked_context::LockedContext;
use crate::program_cache::cache::ProgramCache;
use crate::progress::callbacks::Callbacks;
use crate::sync::{Mutex, Ordering};
use crate::tasks::memory::Heap;

/// One engine. Its `Vm` and its threads hold references to it; memory goes back to the devices when the last reference is
/// dropped.
pub(crate) struct Engine {
    /// First field: the contexts of the threads are dropped before everything that they use.
    pub(crate) threads: Threads,
    /// What submission, scheduler, thread contexts and workers share.
    pub(crate) environment: Environment,
    /// Holds the submission lock, and outlives the engine.
    pub(crate) handle: &'static Handle,
    pub(crate) callbacks: Arc<Callbacks>,
    /// The allocator of host memory that belongs to no device ([`Place::Host`](streamvm_instructions::Place::Host)).
    pub(crate) host: Arc<dyn Device>,
    /// The CUDA devices among `devices`, by their concrete type.
    pub(crate) cuda: Arc<CudaDevices>,
    /// The table of how streams wait for each other; soft sync has a copy of the same table.
    pub(crate) capabilities: Capabilities,
    /// The most bytes of a copy that are staged in one piece.
    pub(crate) staging_piece: usize,
    /// Which threads run streams, where the caller has chosen them.
    pub(crate) policies: Policies,
    /// The lanes whose streams go before or after others.
    pub(crate) lane_priorities: LanePriorities,
    /// The compiled programs that `Vm::compiled` finds again.
    pub(crate) programs: ProgramCache,
    /// In inline mode: the only context, which submitting threads run.
    pub(crate) inline: Option<Inline>,
    /// In simulated mode: the parts that are stepped, and the order of steps.
    pub(crate) simulated: Option<Simulated>,
    /// The last fields: the memory is freed after everything that may point into it is dropped.
    pub(crate) heap: Heap,
    /// The owners of memory that is not the engine's; empty until its end.
    pub(crate) left: Left,
}

impl Deref for Engine {
    type Target = Environment;

    fn deref(&self) -> &Environment {
        &self.environment
    }
}

/// The context of inline mode, with its run lock.
pub(crate) struct Inline {
    pub(crate) run_lock: Mutex<Context>,
    pub(crate) context: Arc<LockedContext>,
}

impl Engine {
    /// The most bytes that there may be in a place: its memory limit, or else what a CUDA device has. `None` if only the machine limits it.
    pub(crate) fn memory_limit(&self, place: Place) -> Option<u64> {
        let Place::Device(id) = place else { return self.host.info().memory_limit };
        let limit = self.devices.get(id).ok().and_then(|device| device.info().memory_limit);
        limit.or_else(|| self.cuda.total_memory(id))
    }

    /// How many events exist on all devices. Devices of one kind may share an event pool, which counts once.
    pub(crate) fn live_events(&self) -> usize {
        let pools: hashbrown::HashMap<*const EventPool, usize> =
            self.devices.iter().map(|device| (std::ptr::from_ref(device.events()), device.events().live())).collect();
        pools.values().sum()
    }

    /// Refuses new submissions from now on, but reads of results.
    pub(crate) fn close(&self) {
        self.refuse_from_now_on(false);
    }

    /// Refuses all submissions from now on. The threads end once everything submitted has passed.
    pub(crate) fn end(&self) {
        self.refuse_from_now_on(true);
    }

    fn refuse_from_now_on(&self, ends: bool) {
        // Under the submission lock, so that each submission is either refused or counted as pending before this returns.
        let state = self.handle.lock();
        if ends {
            self.ending.store(true, Ordering::SeqCst);
        }
        self.closed.store(true, Ordering::SeqCst);
        drop(state);
        self.backpressure.notify();
        self.section_gate.notify();
        // Streams whose devices run commands later only report that an instruction has passed if a thread demands it, and the
        // threads must see everything pass before they end.
        self.demand_all();
        self.wake_all();
    }

    /// Frees the memory of tensors dropped since the last submission, and of cached blocks, to the allocators.
    pub(crate) fn free_dropped(&self) {
        let mut state = self.handle.lock();
        self.handle.deferred_free.take(&mut state.scratch.dropped);
        self.timeline.iter().for_each(|timeline| state.note_time(timeline));
        state.free_dropped(self);
        state.clear_block_cache();
    }

    /// Joins the engine's threads and then waits for its callbacks; returns false if callbacks still run at the deadline.
    ///
    /// The caller has seen everything pass. Threads are joined before callbacks are closed, because a context may still be
    /// handing a callback over after its last instruction has passed.
    pub(crate) fn end_threads(&self, deadline: Option<Instant>) -> bool {
        if let Some(observer) = &self.observer {
            if self.timeline.is_some() {
                // The thread that writes the trace with times does this, too, at its own time; the other trace has it in any case.
                self.free_dropped();
            }
            observer.end_trace();
        }
        if let Some(simulated) = &self.simulated {
            simulated.step_until(self, || false);
        }
        self.wake_all();
        for handle in self.threads.take_handles() {
            // The thread that writes a trace pauses between two looks.
            handle.thread().unpark();
            if handle.join().is_err() {
                log::error!("a thread of the engine panicked");
            }
        }
        self.callbacks.close();
        self.callbacks.wait(deadline)
    }

    /// Detaches the engine's threads: they end by themselves once everything has passed. Waits for nothing.
    pub(crate) fn leave_threads(&self) {
        if let Some(observer) = &self.observer {
            observer.end_trace();
        }
        drop(self.threads.take_handles());
        self.callbacks.close();
    }
}
