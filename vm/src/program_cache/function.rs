//! A function of the caller that a program calls: as a step of a segment, or as a segment by itself, which is an ordinary function instruction.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use streamvm_ep::{FnContext, FnError, NotFinite, Unfinished, call_checking_finite};
use streamvm_instructions::Role;
use streamvm_program::FunctionCode;

use crate::sync::panics::panic_text;

/// The code of a function, and what its calls are looked at for.
pub(crate) struct LoadedFunction {
    pub(crate) name: Box<str>,
    pub(crate) role: Role,
    pub(crate) code: Arc<FunctionCode>,
    /// Whether a call fails if it has written an infinity or NaN.
    pub(crate) checks_finite: bool,
    /// How often it was called and how long that took, if runs are timed.
    pub(crate) time: Option<CallTime>,
}

/// How long all calls took.
#[derive(Debug, Default)]
pub(crate) struct CallTime {
    calls: AtomicU64,
    nanoseconds: AtomicU64,
}

impl CallTime {
    /// The number of calls, and how long they took together.
    pub(crate) fn read(&self) -> (u64, Duration) {
        let nanoseconds = Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed));
        (self.calls.load(Ordering::Relaxed), nanoseconds)
    }
}

impl LoadedFunction {
    /// Calls the function. A panic becomes an error here, because the step is known here.
    ///
    /// # Errors
    /// Its name and the text of its error.
    pub(crate) fn call(&self, context: &mut FnContext<'_>) -> Result<(), String> {
        let start = self.time.as_ref().map(|_| Instant::now());
        let called = catch_unwind(AssertUnwindSafe(|| self.call_checked(context)));
        self.note_time(start);
        match called {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.failure(error)),
            Err(payload) => Err(format!("{}: panicked: {}", self.name, panic_text(payload))),
        }
    }

    /// Calls the function, which may start an operation.
    ///
    /// # Errors
    /// Its name and the text of its error.
    pub(crate) fn start(&self, context: &mut FnContext<'_>) -> Result<Option<Unfinished>, String> {
        match catch_unwind(AssertUnwindSafe(|| (self.code)(context))) {
            Ok(Ok(())) => Ok(None),
            Ok(Err(error)) => match error.downcast::<Unfinished>() {
                Ok(unfinished) => Ok(Some(*unfinished)),
                Err(error) => Err(self.failure(error)),
            },
            Err(payload) => Err(format!("{}: panicked: {}", self.name, panic_text(payload))),
        }
    }

    /// Notes a call that began at `start` and is over now, if runs are timed.
    pub(crate) fn note_time(&self, start: Option<Instant>) {
        if let (Some(time), Some(start)) = (&self.time, start) {
            time.calls.fetch_add(1, Ordering::Relaxed);
            time.nanoseconds.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }

    fn call_checked(&self, context: &mut FnContext<'_>) -> Result<(), FnError> {
        if !self.checks_finite {
            return (self.code)(context);
        }
        match call_checking_finite(context, &*self.code)? {
            Some(NotFinite { output, index, value }) => {
                Err(not_finite(&format!("output {output} of this function"), &index, value).into())
            }
            None => Ok(()),
        }
    }

    /// The text for an error of the code. To write it out calls code of the caller, which can panic, too.
    #[cold]
    fn failure(&self, error: FnError) -> String {
        let text = catch_unwind(AssertUnwindSafe(|| {
            let text = error.to_string();
            drop(error);
            text
        }));
        match text {
            Ok(text) => format!("{}: {text}", self.name),
            Err(payload) => format!("{}: panicked: {}", self.name, panic_text(payload)),
        }
    }
}

/// What a run says that `check_finite` ends: an element of `output` is infinite or NaN.
#[cold]
pub(super) fn not_finite(output: &str, index: &[usize], value: f64) -> String {
    let what = match index {
        [] => format!("{output} is {value}"),
        index => format!("element {index:?} of {output} is {value}"),
    };
    format!("{what}, and all inputs are finite; a run that is compiled with `check_finite` ends there")
}

impl fmt::Debug for LoadedFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedFunction").field("time", &self.time).finish_non_exhaustive()
    }
}
