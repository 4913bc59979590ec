//! Stream policies: how a thread context runs one piece of work on a stream of one class.
//!
//! The trait for what a policy runs is small and lives here; instructions implement it, so that this crate does not
//! depend on them.

use streamvm_ep::{self as ep, CallError};

use crate::{StreamClass, StreamType};

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
}

/// How a thread context runs work of one stream class. How a stream's completion is told is in the capability table
/// ([`Capabilities::shows`](crate::Capabilities::shows)), and where its outputs live in its type
/// ([`StreamType::output_memory`]).
pub trait StreamPolicy: Send + Sync + std::fmt::Debug {
    /// Which thread context runs the stream.
    fn threads(&self) -> Threads;

    /// Runs `work` on `stream`, on the calling thread. When it returns, the work has passed.
    ///
    /// # Errors
    /// The error of the work itself.
    fn run(&self, work: &mut dyn Work, stream: &mut dyn ep::Stream) -> Result<(), CallError>;
}

/// Streams whose commands are over when the call returns: everything on a CPU.
#[derive(Debug)]
struct Immediate {
    threads: Threads,
}

impl StreamPolicy for Immediate {
    fn threads(&self) -> Threads {
        self.threads
    }

    fn run(&self, work: &mut dyn Work, stream: &mut dyn ep::Stream) -> Result<(), CallError> {
        work.run(stream)
    }
}

static CPU: Immediate = Immediate { threads: Threads::Shared };
static CPU_BARRIER: Immediate = Immediate { threads: Threads::Own };

/// The policy for streams of this class, or `None` where no backend of this build runs them.
pub fn policy_for(class: StreamClass) -> Option<&'static dyn StreamPolicy> {
    match (class.device, class.stream_type) {
        (ep::DeviceKind::Cpu, StreamType::Barrier) => Some(&CPU_BARRIER),
        (ep::DeviceKind::Cpu, _) => Some(&CPU),
        (ep::DeviceKind::Cuda | ep::DeviceKind::Sim, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(stream_type: StreamType) -> &'static dyn StreamPolicy {
        policy_for(StreamClass { stream_type, device: ep::DeviceKind::Cpu }).expect("the CPU runs every stream type")
    }

    #[test]
    fn a_policy_says_who_runs() {
        assert_eq!(policy(StreamType::Compute).threads(), Threads::Shared);
        assert_eq!(policy(StreamType::Barrier).threads(), Threads::Own);
    }

    #[test]
    fn a_device_without_a_backend_has_no_policy() {
        let class = StreamClass { stream_type: StreamType::Compute, device: ep::DeviceKind::Cuda };
        assert!(policy_for(class).is_none());
    }
}
