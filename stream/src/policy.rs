//! Stream policies: how a thread context runs one piece of work on a stream of one class.
//!
//! The trait for what a policy runs is small and lives here; instructions implement it, so that this crate does not
//! depend on them.

use streamvm_ep::{self as ep, CallError};

use crate::{RunBy, StreamClass, StreamType};

/// What a policy runs: the device part of one instruction.
pub trait Work {
    /// Issues the work to the device's stream: kernel, copy, fill or a caller's function.
    ///
    /// # Errors
    /// What the device or the function reported. The instruction has failed; the stream goes on.
    fn run(&mut self, stream: &mut dyn ep::Stream) -> Result<(), CallError>;
}

/// Which thread context runs the streams of a policy.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Threads {
    /// One of the device's contexts, shared with other streams of the device.
    Shared,
    /// A context of its own for the streams of this policy: they run callers' callbacks that may take long.
    Own,
    /// The one context of the device that launches: its driver is called by one thread.
    Launching,
    /// A pool of workers of its own.
    Pool,
}

/// When an instruction has passed, seen from the call that ran it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Passing {
    /// It has when the call returns.
    AtOnce,
    /// The call only launched it; an event behind it tells when it has passed.
    Later,
}

/// How a thread context runs work of one stream class. How a stream's completion is told is in the capability table
/// ([`Capabilities::shows`](crate::Capabilities::shows)), and where its outputs live in its type
/// ([`StreamType::output_memory`]).
pub trait StreamPolicy: Send + Sync + std::fmt::Debug {
    /// Which thread context runs the stream.
    fn threads(&self) -> Threads;

    /// When what [`run`](StreamPolicy::run) was given has passed.
    fn passing(&self) -> Passing;

    /// Runs `work` on `stream`, on the calling thread, or launches it: see [`passing`](StreamPolicy::passing).
    ///
    /// # Errors
    /// The error of the work itself, or of launching it.
    fn run(&self, work: &mut dyn Work, stream: &mut dyn ep::Stream) -> Result<(), CallError>;
}

/// A policy that hands work to the stream as it is.
#[derive(Debug)]
struct Plain {
    threads: Threads,
    passing: Passing,
}

impl StreamPolicy for Plain {
    fn threads(&self) -> Threads {
        self.threads
    }

    fn passing(&self) -> Passing {
        self.passing
    }

    fn run(&self, work: &mut dyn Work, stream: &mut dyn ep::Stream) -> Result<(), CallError> {
        work.run(stream)
    }
}

/// Streams whose commands are over when the call returns.
static CPU: Plain = Plain { threads: Threads::Shared, passing: Passing::AtOnce };
/// Barriers move no data, so whatever the device, the host runs them.
static BARRIER: Plain = Plain { threads: Threads::Own, passing: Passing::AtOnce };
/// Callers' functions in no order.
static WORKERS: Plain = Plain { threads: Threads::Pool, passing: Passing::AtOnce };
/// Streams that queue their commands.
static QUEUED: Plain = Plain { threads: Threads::Launching, passing: Passing::Later };

/// The policy for streams of this class.
pub fn policy_for(class: StreamClass) -> &'static dyn StreamPolicy {
    match (class.stream_type, class.run_by()) {
        (StreamType::Barrier, _) => &BARRIER,
        (StreamType::Workers, _) => &WORKERS,
        (_, RunBy::Host) => &CPU,
        (_, RunBy::Device) => &QUEUED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(stream_type: StreamType, device: ep::DeviceKind) -> &'static dyn StreamPolicy {
        policy_for(StreamClass { stream_type, device })
    }

    #[test]
    fn a_policy_says_who_runs_and_when_it_is_over() {
        use ep::DeviceKind::{Cpu, Cuda, Sim};
        assert_eq!(policy(StreamType::Compute, Cpu).threads(), Threads::Shared);
        assert_eq!(policy(StreamType::Compute, Cpu).passing(), Passing::AtOnce);
        for device in [Cuda, Sim] {
            assert_eq!(policy(StreamType::Compute, device).threads(), Threads::Launching);
            assert_eq!(policy(StreamType::Compute, device).passing(), Passing::Later);
        }
        for device in [Cpu, Cuda, Sim] {
            assert_eq!(policy(StreamType::Barrier, device).threads(), Threads::Own);
            assert_eq!(policy(StreamType::Barrier, device).passing(), Passing::AtOnce);
            assert_eq!(policy(StreamType::Workers, device).threads(), Threads::Pool);
            assert_eq!(policy(StreamType::Workers, device).passing(), Passing::AtOnce);
        }
    }
}
