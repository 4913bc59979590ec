//! `streamvm run --progress`: lines about a run that takes long.

use std::io::{self, Write};
use std::sync::Weak;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::base::engine::Vm;
use crate::command::report::size;

/// The first lines come so often, and later ones a tenth as often.
const OFTEN: Duration = Duration::from_secs(1);
const FIRST: u32 = 10;

/// A thread that prints lines to stderr until this is dropped.
pub(crate) struct Progress {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Begins to tell about a run. A run that is over within a second has no line.
pub(crate) fn begin(vm: Weak<Vm>) -> io::Result<Progress> {
    let (stop, stops) = channel();
    let tell = move || {
        let (begun, mut last) = (Instant::now(), (Instant::now(), 0));
        for line in 0.. {
            let pause = if line < FIRST { OFTEN } else { OFTEN * FIRST };
            if stops.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let Some(vm) = vm.upgrade() else { return };
            let stats = vm.stats();
            drop(vm);
            let submitted: u64 = stats.streams.iter().map(|stream| stream.instructions).sum();
            let passed = submitted.saturating_sub(stats.in_flight);
            let (now, (then, before)) = (Instant::now(), last);
            let rate = passed.saturating_sub(before) as f64 / now.duration_since(then).as_secs_f64();
            last = (now, passed);
            let memory: u64 = stats.memory.iter().map(|pool| pool.allocator.in_use as u64).sum();
            let seconds = begun.elapsed().as_secs();
            // The run goes on if nobody can read this.
            let _ = writeln!(
                io::stderr(),
                "{seconds} s: {passed} instructions, {rate:.0}/s; {} pending; {} of memory in use",
                stats.in_flight,
                size(memory)
            );
        }
    };
    let thread = thread::Builder::new().name("streamvm-progress".to_owned()).spawn(tell)?;
    Ok(Progress { stop: Some(stop), thread: Some(thread) })
}

impl Drop for Progress {
    /// Afterwards the thread holds no engine.
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been printed.
            let _ = thread.join();
        }
    }
}
