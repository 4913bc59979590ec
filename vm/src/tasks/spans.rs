//! Spans of the crate `tracing`, in an engine built with [`VmBuilder::spans`](crate::VmBuilder::spans): one for each instruction, within the span in which its submitter was.
//!
//! A subscriber is code of the user: it is never called under the submission lock, otherwise where functions run and captures are dropped. The submitter notes where it is before it takes that
//! lock, and keeps that until it has released the lock; the task has a share of it. The thread that runs the task begins the span, which ends before the captures of the task are dropped.

#[cfg(feature = "tracing")]
pub(crate) use with_tracing::{Caller, InstructionSpan, enter, leave, wait};
#[cfg(not(feature = "tracing"))]
pub(crate) use without_tracing::{Caller, InstructionSpan, enter, leave, wait};

#[cfg(feature = "tracing")]
mod with_tracing {
    use std::fmt::Display;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use streamvm_ep::Site;
    use tracing::dispatcher::{self, DefaultGuard};
    use tracing::level_filters::LevelFilter;
    use tracing::span::EnteredSpan;
    use tracing::{Dispatch, Span, field, info_span};

    use crate::sync::panics::panic_text;
    use crate::tasks::task::Task;

    /// Where a submitter was: its subscriber, and its span.
    #[derive(Clone)]
    pub(crate) struct Caller(Arc<(Dispatch, Span)>);

    impl Caller {
        /// Where this thread is, if the engine has spans and a subscriber may want them.
        #[inline]
        pub(crate) fn here(spans: impl FnOnce() -> bool) -> Option<Caller> {
            if spans() { Self::seen() } else { None }
        }

        #[cold]
        #[inline(never)]
        fn seen() -> Option<Caller> {
            // The macro `enabled` would do more than ask: filters of layers keep its answer for the next event of the thread.
            let here = || Caller(Arc::new((dispatcher::get_default(Dispatch::clone), Span::current())));
            (LevelFilter::current() >= LevelFilter::INFO).then(here)
        }
    }

    /// The span of an instruction.
    #[derive(Default)]
    pub(crate) struct InstructionSpan {
        caller: Option<Caller>,
        /// Once it has begun, and while no thread is within it.
        own: Option<Span>,
    }

    impl InstructionSpan {
        pub(crate) fn of(caller: &Caller) -> InstructionSpan {
            InstructionSpan { caller: Some(caller.clone()), own: None }
        }

        /// The instruction itself has failed.
        pub(crate) fn fail(&self) {
            if let Some(span) = &self.own {
                caught(|| {
                    span.record("failed", true);
                });
            }
        }

        /// Ends the span. A panic of the subscriber is only logged.
        #[inline]
        pub(crate) fn end(&mut self) {
            if let Some(caller) = self.caller.take() {
                end(caller, self.own.take());
            }
        }
    }

    impl Drop for InstructionSpan {
        fn drop(&mut self) {
            self.end();
        }
    }

    #[cold]
    #[inline(never)]
    fn end(caller: Caller, own: Option<Span>) {
        if let Some(own) = own {
            // Subscribers look there for the one that knows the span around this one.
            let default = caught(|| dispatcher::set_default(&caller.0.0));
            caught(|| drop(own));
            caught(|| drop(default));
        }
        caught(|| drop(caller));
    }

    /// A thread is within a span of this subscriber, which is then its default.
    pub(crate) struct Inside {
        span: Span,
        default: Option<DefaultGuard>,
    }

    /// This thread runs or launches `task` on this stream from here on. Begins the span, if it is the first time.
    #[cold]
    #[inline(never)]
    pub(crate) fn enter(task: &mut Task, stream: impl Display) -> Option<Inside> {
        let InstructionSpan { caller, own } = &mut task.cold()?.span;
        let (caller, own) = (caller.clone()?, own.take());
        let (subscriber, parent) = &*caller.0;
        let default = caught(|| dispatcher::set_default(subscriber));
        let begin = || {
            let (op, number, line) = (task.name(), task.number(), field::display(task.site));
            info_span!(target: "streamvm", parent: parent, "instruction", op, %stream, number, line, failed = field::Empty)
        };
        let Some(span) = own.or_else(|| caught(begin)) else {
            caught(|| drop(default));
            return None;
        };
        // Apart from the span, whose drop would call a subscriber that panics once more.
        caught(|| span.with_subscriber(|(id, subscriber)| subscriber.enter(id)));
        Some(Inside { span, default })
    }

    /// The thread has run or launched the task.
    #[inline]
    pub(crate) fn leave(task: &mut Task, inside: Option<Inside>) {
        if let Some(inside) = inside {
            exit(task, inside);
        }
    }

    #[cold]
    #[inline(never)]
    fn exit(task: &mut Task, Inside { span, default }: Inside) {
        caught(|| span.with_subscriber(|(id, subscriber)| subscriber.exit(id)));
        caught(|| drop(default));
        if let Some(cold) = task.cold() {
            cold.span.own = Some(span);
        }
    }

    /// This thread waits for `what` until the span is dropped, if the engine has spans.
    pub(crate) fn wait(spans: bool, what: &'static str, site: Site) -> Option<EnteredSpan> {
        spans.then(|| info_span!(target: "streamvm", "wait", r#for = what, line = %site).entered())
    }

    /// Calls a subscriber on a thread that must go on if it panics.
    fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
        let called = catch_unwind(AssertUnwindSafe(call));
        called
            .map_err(|payload| {
                // The logger may be a subscriber, too.
                let tell = || log::error!("a subscriber of `tracing` panicked: {}", panic_text(payload));
                catch_unwind(AssertUnwindSafe(tell)).map_err(std::mem::forget)
            })
            .ok()
    }
}

#[cfg(not(feature = "tracing"))]
mod without_tracing {
    //! No spans.

    use std::fmt::Display;

    use streamvm_ep::Site;

    use crate::tasks::task::Task;

    #[derive(Clone)]
    pub(crate) enum Caller {}

    impl Caller {
        #[inline(always)]
        pub(crate) fn here(_: impl FnOnce() -> bool) -> Option<Caller> {
            None
        }
    }

    #[derive(Default)]
    pub(crate) struct InstructionSpan;

    impl InstructionSpan {
        pub(crate) fn of(caller: &Caller) -> InstructionSpan {
            match *caller {}
        }

        pub(crate) fn fail(&self) {}

        pub(crate) fn end(&mut self) {}
    }

    pub(crate) enum Inside {}

    #[inline(always)]
    pub(crate) fn enter(_: &mut Task, _: impl Display) -> Option<Inside> {
        None
    }

    #[inline(always)]
    pub(crate) fn leave(_: &mut Task, _: Option<Inside>) {}

    pub(crate) fn wait(_: bool, _: &'static str, _: Site) -> Option<Inside> {
        None
    }
}
