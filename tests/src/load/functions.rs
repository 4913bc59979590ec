//! The turn of pushed functions: every way to push a function, on every pool, with one failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use streamvm::{DType, Error, FnError, OnComplete, Pool, Priority, Ticket};

use super::turns::{Hand, Load, ON_PURPOSE};

const POOLS: [Pool; 5] = [Pool::Normal, Pool::Urgent, Pool::CopyIn, Pool::CopyOut, Pool::Inline];
const PRIORITIES: [Priority; 3] = [Priority::Low, Priority::Normal, Priority::High];

/// A thread outside of any engine, which completes the handles that it receives.
#[derive(Debug)]
pub(super) struct Completer {
    handles: Sender<OnComplete>,
    thread: JoinHandle<()>,
}

impl Completer {
    pub(super) fn new() -> Completer {
        let (handles, sent) = channel::<OnComplete>();
        let thread = thread::spawn(move || sent.into_iter().for_each(|handle| handle.complete(Ok(()))));
        Completer { handles, thread }
    }

    /// Ends the thread. Call it once no engine has a function left that would send a handle.
    pub(super) fn end(self) {
        drop(self.handles);
        self.thread.join().expect("completing a handle does not panic");
    }
}

/// Adds one by a separate load and store, so that unordered additions would be lost.
fn adds(number: &Arc<AtomicU64>) -> impl Fn() -> Result<(), FnError> + Send + Sync + 'static {
    let number = number.clone();
    move || {
        let seen = number.load(Ordering::Relaxed);
        std::hint::spin_loop();
        number.store(seen + 1, Ordering::Relaxed);
        Ok(())
    }
}

/// Checks that the ticket reports the intended failure.
fn failed(ticket: &Ticket<'_>) {
    match ticket.wait() {
        Err(Error::Failed(failure)) => assert!(failure.to_string().contains(ON_PURPOSE), "{failure}"),
        other => panic!("a failure was expected, and this is {other:?}"),
    }
}

impl Load {
    pub(super) fn functions(&self, hand: &mut Hand) -> Result<Option<Duration>, Error> {
        let (var, number, deleted) = (self.vm.var(), Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let device = self.device(hand);
        let mut pusher = || {
            let pusher = self.vm.pusher().device(device).pool(*hand.random.pick(&POOLS));
            pusher.priority(*hand.random.pick(&PRIORITIES))
        };
        let tensor = self.vm.full(device, DType::F32, &[16], 1.0)?;
        let start = Instant::now();
        pusher().push("add", [tensor.read(), var.update()], adds(&number))?;
        let (add, handles) = (adds(&number), self.completer.handles.clone());
        pusher().push_async("add, and be over later", [var.update()], move |handle| {
            let added = add();
            match handles.send(handle) {
                Ok(()) => assert!(added.is_ok()),
                Err(unsent) => unsent.0.complete(Err("nobody completes it".into())),
            }
        })?;
        let mut bulk = pusher().bulk(3);
        for _ in 0..5 {
            bulk.push("add", [var.update()], adds(&number))?;
        }
        bulk.flush()?;
        let operator = pusher().operator("add", [var.update()], adds(&number));
        self.vm.push_operator(&operator)?;
        self.vm.push_operator(&operator)?;
        var.wait()?;
        let latency = start.elapsed();
        assert_eq!(number.load(Ordering::Relaxed), 9, "additions behind a variable were lost");
        self.fails_and_is_healed(&number, pusher)?;
        let gone = deleted.clone();
        let deletion = self.vm.delete(&var, move || {
            gone.fetch_add(1, Ordering::Relaxed);
        })?;
        deletion.wait()?;
        assert_eq!(deleted.load(Ordering::Relaxed), 1, "a variable is deleted once");
        assert!(self.vm.push("too late", [var.read()], || Ok(())).is_err(), "it is deleted");
        Ok(Some(latency))
    }

    /// A function fails, the function that reads its variable is skipped, a clean-up still runs, and a write heals the variable.
    fn fails_and_is_healed<'vm>(
        &'vm self,
        number: &Arc<AtomicU64>,
        mut pusher: impl FnMut() -> streamvm::Pusher<'vm>,
    ) -> Result<(), Error> {
        let (var, before) = (self.vm.var(), number.load(Ordering::Relaxed));
        let fails = pusher().push("fails on purpose", [var.update()], || Err(ON_PURPOSE.into()))?;
        let skipped = pusher().push("skipped", [var.read()], adds(number))?;
        let cleans = pusher().clean_up(true).push("cleans up", [var.update()], adds(number))?;
        let heals = pusher().push("heals", [var.write()], adds(number))?;
        heals.wait()?;
        var.wait()?;
        failed(&fails);
        failed(&skipped);
        // The clean-up has run, and its variable failed before it.
        let _ = cleans.wait();
        assert_eq!(
            number.load(Ordering::Relaxed) - before,
            2,
            "the clean-up and what heals have run, and nothing else"
        );
        self.counts.failures.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
