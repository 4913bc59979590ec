//! Stream policies: which threads run the streams of a type on a device, and how a thread context runs one instruction there.
//!
//! Each class of stream has one ([`policy_for`]); callers may give others to the streams that threads of the host run. The trait for the work that a policy runs
//! is defined here and implemented for instructions elsewhere, so that this crate does not depend on instructions.

use std::sync::Arc;

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
    /// One thread for all streams of this type on the device, and for no others: for code of callers that blocks, which would hold back other streams.
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

/// How the streams of one type on a device run. The capability table says how a stream shows its points
/// ([`Capabilities::shows`](crate::Capabilities::shows)), and the stream's type says where its outputs live
/// ([`StreamType::output_memory`]).
pub trait StreamPolicy: Send + Sync + std::fmt::Debug {
    /// Which threads run the stream.
    fn threads(&self) -> Threads;

    /// When the work that [`run`](StreamPolicy::run) got has passed.
    fn passing(&self) -> Passing;

    /// Runs `work` on `stream`, on the calling thread, or launches it: see [`passing`](StreamPolicy::passing). Called once for each instruction that has
    /// work, in the order of the stream; `work` is to be run once. What it does around that, such as setting up the thread, counts as part of the instruction.
    ///
    /// # Errors
    /// The error of the work itself, or of launching it.
    fn run(&self, work: &mut dyn Work, stream: &mut dyn ep::Stream) -> Result<(), CallError> {
        work.run(stream)
    }

    /// Checks that streams of `class` can have this policy: their device says when work has passed, and only streams that threads of the host run, in order, have
    /// a choice of threads.
    ///
    /// # Errors
    /// What does not fit.
    fn check(&self, class: StreamClass) -> Result<(), String> {
        let standard = policy_for(class);
        if self.passing() != standard.passing() {
            return Err(format!(
                "its policy says that work passes {:?}, and there it passes {:?}",
                self.passing(),
                standard.passing()
            ));
        }
        let has_choice = |threads| matches!(threads, Threads::Shared | Threads::Own);
        if self.threads() == standard.threads() || has_choice(self.threads()) && has_choice(standard.threads()) {
            return Ok(());
        }
        Err(format!("its policy asks for {:?} threads, and {:?} threads run it", self.threads(), standard.threads()))
    }
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
}

/// The policy that streams of this class have by themselves.
pub fn policy_for(class: StreamClass) -> Arc<dyn StreamPolicy> {
    let (threads, passing) = match (class.stream_type, class.run_by()) {
        // They move no data, so the host runs them for every device.
        (StreamType::Barrier, _) => (Threads::Own, Passing::AtOnce),
        // Callers' functions without order.
        (StreamType::Workers, _) => (Threads::Pool, Passing::AtOnce),
        (_, RunBy::Host) => (Threads::Shared, Passing::AtOnce),
        (_, RunBy::Device) => (Threads::Launching, Passing::Later),
    };
    Arc::new(Plain { threads, passing })
}

#[cfg(test)]
mod tests {
    use streamvm_cpu::{CpuConfig, CpuDevice};

    use super::*;

    fn policy(stream_type: StreamType, device: ep::DeviceKind) -> Arc<dyn StreamPolicy> {
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

    /// A policy of a caller.
    #[derive(Debug)]
    struct Given(Threads, Passing);

    impl StreamPolicy for Given {
        fn threads(&self) -> Threads {
            self.0
        }

        fn passing(&self) -> Passing {
            self.1
        }
    }

    #[test]
    fn only_ordered_streams_of_the_host_have_a_choice_of_threads() {
        use Passing::{AtOnce, Later};
        use StreamType::{Barrier, Compute, Workers};
        let [cpu, _, sim] = ep::DeviceKind::BUILT_IN;
        for (stream_type, device, threads, passing, fits) in [
            (Compute, cpu, Threads::Own, AtOnce, true),
            (Compute, cpu, Threads::Shared, AtOnce, true),
            (Barrier, cpu, Threads::Shared, AtOnce, true),
            (Compute, cpu, Threads::Own, Later, false),
            (Compute, cpu, Threads::Launching, AtOnce, false),
            (Workers, cpu, Threads::Own, AtOnce, false),
            (Workers, cpu, Threads::Pool, AtOnce, true),
            (Compute, sim, Threads::Launching, Later, true),
            (Compute, sim, Threads::Own, Later, false),
        ] {
            let checked = Given(threads, passing).check(StreamClass { stream_type, device });
            assert_eq!(checked.is_ok(), fits, "{stream_type:?} on {device}: {threads:?}, {passing:?}: {checked:?}");
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
