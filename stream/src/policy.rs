//! Stream policies: how a thread context runs the device part of one instruction, for each class of stream.
//!
//! The trait for the work that a policy runs is defined here and implemented for instructions elsewhere, so that this crate does
//! not depend on instructions.

use streamvm_ep::{self as ep, CallError, RunBy};

use crate::{StreamClass, StreamType};

/// The device part of one instruction, which a policy runs.
pub trait Work {
    /// Issues the work to the device's stream: kernel, copy, fill or a caller's function.
    ///
    /// # Errors
    /// The error of the device or of the function. The instruction has failed; later work of the stream still runs.
    fn run(&mut self, stream: &mut dyn ep::Stream) -> Result<(), CallError>;
}

/// Which threads run the streams of a policy.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Threads {
    /// Any of the device's threads, one thread a stream at a time; the device's other streams share these threads.
    Shared,
    /// A thread of its own for the streams of this policy, as they run code of callers that may take long.
    Own,
    /// The one thread of the device that launches, so that only that thread calls the device's driver.
    Launching,
    /// A pool of workers.
    Pool,
}

/// When an instruction has passed, relative to the call that runs it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Passing {
    /// It has passed when the call returns.
    AtOnce,
    /// The call only launches it; an event behind it shows when it has passed.
    Later,
}

/// How a thread context runs the work of one class of streams. The capability table says how a stream shows its points
/// ([`Capabilities::shows`](crate::Capabilities::shows)), and the stream's type says where its outputs live
/// ([`StreamType::output_memory`]).
pub trait StreamPolicy: Send + Sync + std::fmt::Debug {
    /// Which threads run the stream.
    fn threads(&self) -> Threads;

    /// When the work that [`run`](StreamPolicy::run) got has passed.
    fn passing(&self) -> Passing;

    /// Runs `work` on `stream`, on the calling thread, or launches it: see [`passing`](StreamPolicy::passing).
    ///
    /// # Errors
    /// The error of the work itself, or of launching it.
    fn run(&self, work: &mut dyn Work, stream: &mut dyn ep::Stream) -> Result<(), CallError>;
}

/// A policy that runs work on the stream without additions.
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

/// Streams that threads of the host run: each command is over when its call returns.
static HOSTED: Plain = Plain { threads: Threads::Shared, passing: Passing::AtOnce };
/// Barriers: they move no data, so the host runs them for every device.
static BARRIER: Plain = Plain { threads: Threads::Own, passing: Passing::AtOnce };
/// Workers: callers' functions without order.
static WORKERS: Plain = Plain { threads: Threads::Pool, passing: Passing::AtOnce };
/// Streams whose device queues commands.
static QUEUED: Plain = Plain { threads: Threads::Launching, passing: Passing::Later };

/// The policy for streams of this class.
pub fn policy_for(class: StreamClass) -> &'static dyn StreamPolicy {
    match (class.stream_type, class.run_by()) {
        (StreamType::Barrier, _) => &BARRIER,
        (StreamType::Workers, _) => &WORKERS,
        (_, RunBy::Host) => &HOSTED,
        (_, RunBy::Device) => &QUEUED,
    }
}

#[cfg(test)]
mod tests {
    use streamvm_cpu::{CpuConfig, CpuDevice};

    use super::*;

    fn policy(stream_type: StreamType, device: ep::DeviceKind) -> &'static dyn StreamPolicy {
        policy_for(StreamClass { stream_type, device })
    }

    #[test]
    fn a_policy_says_who_runs_and_when_it_is_over() {
        let [cpu, cuda, sim] = ep::DeviceKind::BUILT_IN;
        assert_eq!(policy(StreamType::Compute, cpu).threads(), Threads::Shared);
        assert_eq!(policy(StreamType::Compute, cpu).passing(), Passing::AtOnce);
        for device in [cuda, sim] {
            assert_eq!(policy(StreamType::Compute, device).threads(), Threads::Launching);
            assert_eq!(policy(StreamType::Compute, device).passing(), Passing::Later);
        }
        for device in [cpu, cuda, sim] {
            assert_eq!(policy(StreamType::Barrier, device).threads(), Threads::Own);
            assert_eq!(policy(StreamType::Barrier, device).passing(), Passing::AtOnce);
            assert_eq!(policy(StreamType::Workers, device).threads(), Threads::Pool);
            assert_eq!(policy(StreamType::Workers, device).passing(), Passing::AtOnce);
        }
    }

    struct Failing(usize);

    impl Work for Failing {
        fn run(&mut self, _: &mut dyn ep::Stream) -> Result<(), CallError> {
            self.0 += 1;
            Err(CallError::Function("refused".into()))
        }
    }

    #[test]
    fn a_policy_runs_the_work_once_and_gives_its_error_back() {
        let mut stream =
            ep::Device::create_stream(&CpuDevice::new(0, CpuConfig::default())).expect("a stream of a CPU");
        for stream_type in [StreamType::Compute, StreamType::Barrier, StreamType::Workers] {
            let mut work = Failing(0);
            assert!(policy(stream_type, ep::DeviceKind::CPU).run(&mut work, &mut *stream).is_err());
            assert_eq!(work.0, 1);
        }
    }
}
