//! Callbacks that wait for points, and can be taken back.
//!
//! A callback waits for one point at a time, because there may be a hundred thousand points. At each it is a waiter of the point's stream
//! ([`StreamState::when_passed`]); once the point has passed, the callback thread lets it go on to the next point.
//!
//! * The lock of the callback is held while it becomes a waiter, so [`cancel`](Registration::cancel) finds either no waiter or its number.
//! * The thread that takes the contents out owns the callback: the one that finds the last point passed calls it, the one that cancels drops it. Both
//!   have left the lock then.
//! * The contents hold the engine, so a future that is kept after its work has passed does not keep the engine.
//!
//! [`StreamState::when_passed`]: crate::progress::stream_state::StreamState::when_passed

use std::sync::Arc;

use streamvm_instructions::{Callback, Registration};
use streamvm_stream::Point;

use crate::engine::core::Engine;
use crate::progress::waiters::Wake;
use crate::sync::{Mutex, unpoisoned};

/// See the module's documentation.
pub(crate) struct RegisteredCallback(Mutex<Option<Contents>>);

struct Contents {
    engine: Arc<Engine>,
    callback: Callback,
    /// The points that are left.
    points: Vec<Point>,
    /// The point that it waits for, with the id of its waiter.
    waiter: Option<(Point, u64)>,
}

impl RegisteredCallback {
    /// Registers `callback` to be called, on the callback thread, once all of `points` have passed.
    ///
    /// # Errors
    /// Gives `callback` back if they have passed.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        points: Vec<Point>,
        callback: Callback,
    ) -> Result<Arc<RegisteredCallback>, Callback> {
        let contents = Contents { engine: engine.clone(), callback, points, waiter: None };
        let registered = Arc::new(RegisteredCallback(Mutex::new(Some(contents))));
        match registered.go_on() {
            Some(callback) => Err(callback),
            None => Ok(registered),
        }
    }

    /// Waits for the next point that has not passed. Returns the callback if there is none.
    fn go_on(self: &Arc<Self>) -> Option<Callback> {
        let mut locked = unpoisoned(self.0.lock());
        let Contents { engine, points, waiter, .. } = locked.as_mut()?;
        *waiter = None;
        while let Some(point) = points.pop() {
            let Some(stream_state) = engine.streams.get(point.stream) else { continue };
            if stream_state.has_passed(point.seq) {
                continue;
            }
            let me = self.clone();
            let go_on = Box::new(move || {
                if let Some(callback) = me.go_on() {
                    callback(Ok(()));
                }
            });
            if let Ok(id) = stream_state.when_passed(point.seq, Wake::Callback(engine.callbacks.clone(), go_on)) {
                *waiter = Some((point, id));
                return None;
            }
        }
        let contents = locked.take();
        drop(locked);
        contents.map(|contents| contents.callback)
    }
}

impl Registration for RegisteredCallback {
    fn cancel(&self) {
        let Some(Contents { engine, callback, waiter, .. }) = unpoisoned(self.0.lock()).take() else { return };
        if let Some((point, id)) = waiter
            && let Some(stream_state) = engine.streams.get(point.stream)
        {
            stream_state.forget(point.seq, id);
        }
        drop(callback);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::mpsc;
    use std::task::{Context, Poll, Waker};

    use streamvm_ep::DeviceId;
    use streamvm_instructions::{Error, InstructionsBuilder, Passed, Var};

    use crate::{Ticket, Vm};

    const CPU: DeviceId = DeviceId::cpu(0);

    /// A list on two lanes and on workers, which waits for the sender to be dropped, and what its last lines write.
    fn held(vm: &Vm) -> (mpsc::Sender<()>, Ticket<'_>, [Var; 3]) {
        let ((release, released), variables) = (mpsc::channel::<()>(), [(); 3].map(|()| Var::new()));
        let [first, second, third] = &variables;
        let mut builder = InstructionsBuilder::new();
        let wait = move |_: &mut streamvm_ep::FnContext<'_>| {
            // An error means that the sender was dropped, which is the signal to go on.
            let _ = released.recv();
            Ok(())
        };
        builder.call_fn("held", CPU, [first.write()], wait).expect("a line");
        builder.on_lane(1).call_fn("after it", CPU, [first.read(), second.write()], |_| Ok(())).expect("a line");
        builder.on_workers().call_fn("on workers", CPU, [second.read(), third.write()], |_| Ok(())).expect("a line");
        (release, vm.submit(builder.finish()).expect("a list"), variables)
    }

    fn waiters(vm: &Vm) -> usize {
        vm.engine.streams.iter().map(|stream_state| stream_state.waiters()).sum()
    }

    fn poll(future: &mut Passed) -> Poll<Result<(), Error>> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn the_engine_keeps_the_futures_that_exist_and_no_others() {
        let vm = Vm::builder().workers(1).build().expect("an engine");
        let (release, ticket, variables) = held(&vm);
        // What the engine's own threads wait for changes by itself, so futures are counted by a wide margin.
        const OWN: usize = 10;
        let mut kept = Vec::new();
        for number in 0..100_000 {
            let [first, second, third] = variables.each_ref().map(|variable| variable.ready().expect("it is used"));
            let mut futures = vec![first, second, third, ticket.future()];
            assert!(futures.iter_mut().all(|future| poll(future).is_pending()));
            if number % 1_000 == 0 {
                kept.append(&mut futures);
            }
        }
        let found = waiters(&vm);
        assert!((kept.len()..=kept.len() + OWN).contains(&found), "{found} waiters for {} futures", kept.len());
        drop(release);
        vm.wait_all().expect("nothing fails");
        let ready = |future: &mut Passed| loop {
            match poll(future) {
                Poll::Ready(outcome) => break outcome,
                Poll::Pending => std::thread::yield_now(),
            }
        };
        assert!(kept.iter_mut().all(|future| ready(future) == Ok(())), "those that were kept are ready");
        assert_eq!(waiters(&vm), 0);
        assert_eq!(poll(&mut ticket.future()), Poll::Ready(Ok(())), "of work that has passed: at once");
    }

    #[test]
    fn a_future_that_is_kept_keeps_no_engine() {
        let vm = Vm::builder().build().expect("an engine");
        let (release, ticket, [_, _, last]) = held(&vm);
        let kept = [last.ready().expect("it is used"), ticket.future()];
        drop(release);
        vm.wait_all().expect("nothing fails");
        let engine = std::sync::Arc::downgrade(&vm.engine);
        drop(vm);
        let start = std::time::Instant::now();
        while engine.strong_count() > 0 {
            assert!(start.elapsed() < std::time::Duration::from_secs(30), "something keeps the engine");
            std::thread::yield_now();
        }
        drop(kept);
    }
}
