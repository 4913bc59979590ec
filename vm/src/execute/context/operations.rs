//! Operations that functions on collective streams have started, as their context polls them: on streams of the host until they are over, on
//! streams of a device until they have queued their commands.

use streamvm_ep as ep;
use streamvm_stream::{Passing, StreamClass, StreamPolicy};

use super::{Context, ContextStream, bind};
use crate::execute::environment::Environment;
use crate::execute::poll_pace::PollPace;
use crate::execute::run;
use crate::progress::in_flight::InFlight;

/// The outcome of a try to go on with the paused task of a stream.
pub(super) enum Paused {
    /// It has gone on.
    GoesOn,
    /// Its operation was polled, and is not over.
    Polled,
    /// The condition that it waits for is not known.
    Waits,
}

impl Context {
    /// Goes on with the paused task of a stream, if what it waits for is there.
    #[cold]
    pub(super) fn go_on(&mut self, index: usize, env: &Environment) -> Paused {
        let ContextStream { stream_state, operation, .. } = &self.streams[index];
        if operation.is_some() {
            return if self.poll_operation(index, env) { Paused::GoesOn } else { Paused::Polled };
        }
        let Some(failed) = stream_state.in_flight.as_ref().and_then(InFlight::take_condition) else {
            return Paused::Waits;
        };
        self.current_stream = index;
        self.resume(failed, env);
        Paused::GoesOn
    }

    /// Keeps the operation that the current task has started, to poll it; where nothing polls it later, this does so until it is over.
    #[cold]
    pub(super) fn keep_operation(&mut self, operation: Box<dyn ep::Operation>, env: &Environment) {
        let stream = &mut self.streams[self.current_stream];
        let policy = StreamPolicy::of(StreamClass::of(&stream.stream_state.key));
        if policy.passing() == Passing::Polled && env.inline_tasks.is_none() {
            (stream.paused, stream.operation) = (self.current.take(), Some(operation));
            return;
        }
        if let Some(task) = &mut self.current {
            run::complete_operation(task, operation, &stream.stream_state, env);
            run::finish(task, &stream.stream_state, env, &self.handle);
        }
        self.retire_current(env);
    }

    /// Keeps the operation of the current task, to poll it until it has queued its commands; where nothing polls it later, this does so.
    #[cold]
    pub(super) fn keep_queuing(&mut self, mut operation: Box<dyn ep::Operation>, env: &Environment) {
        let stream = &mut self.streams[self.current_stream];
        if env.inline_tasks.is_none() {
            (stream.paused, stream.operation) = (self.current.take(), Some(operation));
            return;
        }
        if let Some(task) = &self.current {
            let mut pace = PollPace::default();
            let mut over = Ok(false);
            while matches!(over, Ok(false)) {
                pace.pause();
                // Within a call of the stream, which makes the device's context current and restores the caller's. It queues nothing for an error.
                let mut poll = |_: &ep::RawCall<'_>| {
                    over = run::poll(&mut *operation);
                    Err("it was polled".into())
                };
                if let Err(ep::CallError::Device(error)) = stream.runner.stream().call_raw(&mut poll, &mut []) {
                    over = Err(error.into());
                }
            }
            if let Err(error) = over {
                run::fail_operation(error, task, &stream.stream_state, env);
            }
        }
        self.queued(Some(operation), env);
    }

    /// Polls the operation of a stream once. If it is over, its task passes, and this returns true.
    #[cold]
    fn poll_operation(&mut self, index: usize, env: &Environment) -> bool {
        let ContextStream { stream_state, paused, operation, .. } = &mut self.streams[index];
        let (Some(task), Some(polled)) = (&*paused, &mut *operation) else { return false };
        // A lost device runs nothing more, so the operation need not queue anything.
        if let Some(lost) = stream_state.in_flight.as_ref().and_then(InFlight::lost) {
            run::refuse(task, stream_state, lost, &env.failures);
        } else {
            let is_over = run::is_over(&mut **polled, task, stream_state, env);
            if let Some(in_flight) = stream_state.in_flight.as_ref().filter(|_| self.has_thread) {
                // Code of the caller may have changed the thread's device state.
                bind(in_flight);
            }
            if !is_over {
                return false;
            }
        }
        let (operation, in_flight) = (operation.take(), &stream_state.in_flight);
        self.current = paused.take();
        self.current_stream = index;
        if in_flight.is_some() {
            self.queued(operation, env);
            return true;
        }
        self.has_polled = true;
        run::caught(|| drop(operation));
        if let Some(task) = &mut self.current {
            run::finish(task, &self.streams[index].stream_state, env, &self.handle);
        }
        self.retire_current(env);
        true
    }

    /// The operation of the current task, which a device runs later, has queued its commands, or has failed.
    fn queued(&mut self, operation: Option<Box<dyn ep::Operation>>, env: &Environment) {
        let ContextStream { stream_state, .. } = &self.streams[self.current_stream];
        if let (Some(in_flight), Some(task), Some(operation)) = (&stream_state.in_flight, &self.current, operation) {
            if env.failures.is_known(task.point) || in_flight.lost().is_some() {
                run::caught(|| drop(operation));
            } else {
                in_flight.watch(task.point, operation);
            }
        }
        self.finish_launch(env);
    }
}
