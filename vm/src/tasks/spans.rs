//! Spans of the crate `tracing`, in an engine built with [`VmBuilder::spans`](crate::VmBuilder::spans): one for each instruction, within the span in which its submitter was.
//!
//! A subscriber is code of the user, so nothing here is called under a lock. The submitter notes where it is before it takes the submission lock, and keeps that until it has released the
//! lock; the task has a share of it. The thread that runs the task begins the span, and drops it with the captures of the task.

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
    use tracing::span::EnteredSpan;
    use tracing::{Dispatch, Level, Span, enabled, field, info_span};

    use crate::sync::panics::panic_text;
    use crate::tasks::task::Task;

    /// Where a submitter was: its subscriber, and its span.
    #[derive(Clone)]
    pub(crate) struct Caller(Arc<(Dispatch, Span)>);

    impl Caller {
        /// Where this thread is, if the engine has spans and a subscriber wants them.
        #[inline]
        pub(crate) fn here(spans: impl FnOnce() -> bool) -> Option<Caller> {
            if spans() { Self::seen() } else { None }
        }

        #[cold]
        #[inline(never)]
        fn seen() -> Option<Caller> {
            let here = || Caller(Arc::new((dispatcher::get_default(Dispatch::clone), Span::current())));
            enabled!(target: "streamvm", Level::INFO).then(here)
        }
    }

    /// The span of an instruction.
    #[derive(Default)]
    pub(crate) struct InstructionSpan {
        caller: Option<Caller>,
        /// Once it has begun.
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
        pub(crate) fn end(&mut self) {
            let InstructionSpan { caller, own } = std::mem::take(self);
            let Some(caller) = caller else { return };
            caught(|| {
                // Subscribers look there for the one that knows the span around this one.
                let subscriber = caller.0.0.clone();
                let _default = dispatcher::set_default(&subscriber);
                drop((own, caller));
            });
        }
    }

    /// A thread is within a span of this subscriber, which is then its default.
    pub(crate) struct Inside {
        // Dropped in this order.
        _span: EnteredSpan,
        _subscriber: DefaultGuard,
    }

    /// This thread runs or launches `task` on this stream from here on. Begins the span, if it is the first time.
    #[cold]
    #[inline(never)]
    pub(crate) fn enter(task: &mut Task, stream: impl Display) -> Option<Inside> {
        let span = task.cold()?.span.own.clone();
        let caller = task.cold()?.span.caller.clone()?;
        let (subscriber, parent) = &*caller.0;
        let entered = caught(|| {
            let default = dispatcher::set_default(subscriber);
            let span = span.unwrap_or_else(|| {
                let (op, number, line) = (task.name(), task.number(), field::display(task.site));
                info_span!(target: "streamvm", parent: parent, "instruction", op, %stream, number, line, failed = field::Empty)
            });
            (span.clone(), Inside { _span: span.entered(), _subscriber: default })
        });
        let (own, inside) = entered?;
        task.cold()?.span.own = Some(own);
        Some(inside)
    }

    /// The thread has run or launched the task.
    pub(crate) fn leave(inside: Option<Inside>) {
        if inside.is_some() {
            caught(|| drop(inside));
        }
    }

    /// This thread waits for `what` until the span is dropped, if the engine has spans.
    pub(crate) fn wait(spans: bool, what: &'static str, site: Site) -> Option<EnteredSpan> {
        spans.then(|| info_span!(target: "streamvm", "wait", r#for = what, line = %site).entered())
    }

    /// Calls a subscriber on a thread that must go on if it panics.
    fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
        let tell = |payload| log::error!("a subscriber of `tracing` panicked: {}", panic_text(payload));
        catch_unwind(AssertUnwindSafe(call)).map_err(tell).ok()
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

    pub(crate) fn enter(_: &mut Task, _: impl Display) -> Option<Inside> {
        None
    }

    pub(crate) fn leave(_: Option<Inside>) {}

    pub(crate) fn wait(_: bool, _: &'static str, _: Site) -> Option<Inside> {
        None
    }
}
