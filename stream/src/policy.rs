//! Stream policies: which threads run the streams of a type on a device, and when their work has passed.

use streamvm_ep::RunBy;

use crate::{StreamClass, StreamType};

/// Which threads run a stream.
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
    /// The call may start an [`Operation`](streamvm_ep::Operation) and return. The thread polls it, beside those of other streams, until it is over; a caller that waits may do so, too.
    Polled,
    /// The call only launches it; an event after it shows when it has passed.
    Later,
}

/// How the streams of one type on a device run. It is data alone: the thread context runs all work in the same way. The capability table says how a stream
/// shows its points ([`Capabilities::shows`](crate::Capabilities::shows)), and the stream's type says where its outputs live ([`StreamType::output_memory`]).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct StreamPolicy {
    threads: Threads,
    passing: Passing,
}

impl StreamPolicy {
    /// The policy that streams of this class have by themselves.
    pub fn of(class: StreamClass) -> StreamPolicy {
        let (threads, passing) = match (class.stream_type, class.run_by()) {
            // They move no data, so the host runs them for every device.
            (StreamType::Barrier, _) => (Threads::Own, Passing::AtOnce),
            // Callers' functions without order.
            (StreamType::Workers, _) => (Threads::Pool, Passing::AtOnce),
            // One thread polls all operations side by side, so that no group waits for the operations of another one.
            (StreamType::Collective, RunBy::Host) => (Threads::Own, Passing::Polled),
            (_, RunBy::Host) => (Threads::Shared, Passing::AtOnce),
            (_, RunBy::Device) => (Threads::Launching, Passing::Later),
        };
        StreamPolicy { threads, passing }
    }

    /// The same policy with these threads. Only streams that share the threads of a device have a choice: a thread of their own.
    ///
    /// # Errors
    /// What does not fit.
    pub fn with_threads(self, threads: Threads) -> Result<StreamPolicy, String> {
        if threads == self.threads || (self.threads, threads) == (Threads::Shared, Threads::Own) {
            return Ok(StreamPolicy { threads, ..self });
        }
        Err(format!("{:?} threads run it, which cannot be changed to {threads:?}", self.threads))
    }

    /// Which threads run the stream.
    pub fn threads(&self) -> Threads {
        self.threads
    }

    /// When its work has passed.
    pub fn passing(&self) -> Passing {
        self.passing
    }
}

#[cfg(test)]
mod tests {
    use streamvm_ep::DeviceKind;

    use super::*;

    fn policy(stream_type: StreamType, device: DeviceKind) -> StreamPolicy {
        StreamPolicy::of(StreamClass { stream_type, device })
    }

    #[test]
    fn a_policy_says_who_runs_and_when_it_is_over() {
        let [cpu, cuda, sim] = DeviceKind::BUILT_IN;
        let is = |stream_type, device, threads, passing| {
            assert_eq!(policy(stream_type, device), StreamPolicy { threads, passing }, "{stream_type} on {device}");
        };
        is(StreamType::Compute, cpu, Threads::Shared, Passing::AtOnce);
        for device in [cuda, sim] {
            is(StreamType::Compute, device, Threads::Launching, Passing::Later);
        }
        for device in [cpu, cuda, sim] {
            is(StreamType::Barrier, device, Threads::Own, Passing::AtOnce);
            is(StreamType::Workers, device, Threads::Pool, Passing::AtOnce);
        }
        is(StreamType::Collective, cpu, Threads::Own, Passing::Polled);
        is(StreamType::Collective, cuda, Threads::Launching, Passing::Later);
    }

    #[test]
    fn only_streams_that_share_threads_have_a_choice() {
        let [cpu, _, sim] = DeviceKind::BUILT_IN;
        let all = [Threads::Shared, Threads::Own, Threads::Launching, Threads::Pool];
        for (stream_type, device, fits) in [
            (StreamType::Compute, cpu, [true, true, false, false]),
            (StreamType::Barrier, cpu, [false, true, false, false]),
            (StreamType::Workers, cpu, [false, false, false, true]),
            (StreamType::Compute, sim, [false, false, true, false]),
        ] {
            for (threads, fits) in all.into_iter().zip(fits) {
                let given = policy(stream_type, device).with_threads(threads);
                assert_eq!(given.is_ok(), fits, "{stream_type} on {device}: {threads:?}");
                assert!(given.is_err() || given.is_ok_and(|given| given.threads() == threads));
            }
        }
    }
}
