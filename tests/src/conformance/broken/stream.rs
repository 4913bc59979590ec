//! A stream with one defect.

use std::sync::Arc;
use std::thread;

use streamvm::ep::builtin_kernels;
use streamvm_ep::{
    Access, CallError, Device, Error, EventId, FnContext, InlineFn, KernelCall, Label, Layout, Op, Operand, RawFn,
    Scalar, Stream,
};

use super::Flaw;

/// A stream of a conforming device after one [`Flaw`].
pub(super) struct BrokenStream {
    inner: Box<dyn Stream>,
    /// A second stream of the device, which has no commands.
    aside: Box<dyn Stream>,
    device: Arc<dyn Device>,
    flaw: Flaw,
    /// Waits that have not been passed to the device yet.
    waits: Vec<EventId>,
    /// A fill that has not been passed to the device yet.
    fill: Option<(Operand<'static>, Scalar)>,
    failed: bool,
}

/// The next command, for flaws that treat commands differently.
#[derive(PartialEq)]
enum Next {
    Read,
    Write,
    Record,
    End,
}

/// The same memory as an operand with another layout, which counts from `base`, and another access.
fn view(base: *mut u8, operand: &Operand<'static>, layout: Layout, access: Access) -> Operand<'static> {
    // SAFETY: the layouts made here stay within the span of the operand, whose creator promised that memory. The operand that this one
    // replaces is not used beside it.
    unsafe { Operand::new(base, operand.dtype(), layout, access) }
}

/// The same view with another access.
fn again(operand: &Operand<'static>, access: Access) -> Operand<'static> {
    let layout = operand.layout();
    let moved = Layout::with_strides(*layout.shape(), layout.strides(), 0).unwrap_or(*layout);
    view(operand.ptr(), operand, moved, access)
}

/// A contiguous view of as many elements; `None` if it would reach out of the span of the view.
fn dense(operand: &Operand<'static>) -> Option<Operand<'static>> {
    let layout = Layout::contiguous(*operand.layout().shape());
    let fits = layout.elements() <= operand.layout().span_elements().len();
    fits.then(|| view(operand.ptr(), operand, layout, operand.access()))
}

impl BrokenStream {
    pub(super) fn new(
        inner: Box<dyn Stream>,
        aside: Box<dyn Stream>,
        device: Arc<dyn Device>,
        flaw: Flaw,
    ) -> BrokenStream {
        BrokenStream { inner, aside, device, flaw, waits: Vec::new(), fill: None, failed: false }
    }

    /// Passes the pending waits to the device, except for those that the flaw drops before `next`.
    fn owed(&mut self, next: Next) -> Result<(), Error> {
        let through = match self.flaw {
            Flaw::HoldsBackReadsAlone => next != Next::Write,
            Flaw::ForgetsWaitsWithoutCommands => next != Next::Record,
            _ => true,
        };
        if through {
            self.waits.drain(..).try_for_each(|event| self.inner.wait(event))?;
        }
        if self.flaw == Flaw::ForgetsWaitsWithoutCommands {
            self.waits.clear();
        }
        Ok(())
    }

    fn held_fill(&mut self) -> Result<(), Error> {
        match self.fill.take() {
            Some((mut target, value)) => self.inner.fill(&mut target, value),
            None => Ok(()),
        }
    }

    fn after<E>(&mut self, result: Result<(), E>) -> Result<(), E> {
        self.failed |= result.is_err() && self.flaw == Flaw::StopsAfterAFailure;
        match self.flaw {
            Flaw::SwallowsErrors => Ok(()),
            _ => result,
        }
    }
}

// SAFETY: what the flaws keep, move or access beyond their rights is memory of the case that runs, which outlives the stream, and nothing else uses
// it at the same time.
unsafe impl Stream for BrokenStream {
    fn begin(&mut self, label: &Label) {
        if self.flaw != Flaw::ForgetsLabels {
            self.inner.begin(label);
        }
    }

    fn number(&mut self, stream: u32, seq: u64) {
        if self.flaw != Flaw::ForgetsLabels {
            self.inner.number(stream, seq);
        }
    }

    fn launch(&mut self, call: &mut KernelCall<'_, 'static>) -> Result<(), Error> {
        self.owed(Next::Read)?;
        if self.failed {
            return Ok(());
        }
        assert!(self.flaw != Flaw::Panics, "this backend breaks at each launch");
        if self.flaw == Flaw::MixesUpKernels && call.kernel.op == Op::ReduceMin {
            let other = builtin_kernels().get(Op::ReduceMax, call.kernel.device, call.kernel.dtype)?;
            call.kernel.run = other.run;
        }
        if self.flaw == Flaw::RunsLaunchesTwice {
            self.inner.launch(call)?;
        }
        let launched = self.inner.launch(call);
        self.held_fill()?;
        self.after(launched)
    }

    fn copy(&mut self, source: &Operand<'static>, target: &mut Operand<'static>) -> Result<(), Error> {
        self.owed(Next::Read)?;
        if self.failed {
            return Ok(());
        }
        let whole = (source.layout().shape(), source.dtype()) == (target.layout().shape(), target.dtype());
        let copied = match self.flaw {
            Flaw::CopiesIgnoreStrides if whole => match (dense(source), dense(target)) {
                (Some(source), Some(mut target)) => self.inner.copy(&source, &mut target),
                _ => self.inner.copy(source, target),
            },
            Flaw::CopiesIgnoreOffsets => {
                // Regions are aligned, so an address that is not aligned belongs to a view with an offset.
                let down = source.ptr().addr() % 16 / source.dtype().size() * source.dtype().size();
                let layout = *again(source, Access::Read).layout();
                let source = view(source.ptr().wrapping_sub(down), source, layout, Access::Read);
                self.inner.copy(&source, target)
            }
            Flaw::CopiesLoseTheEnd if whole && source.layout().shape().rank() == 1 => {
                let kept = source.layout().shape().dims()[0] / 2 * 2;
                let part = |operand: &Operand<'static>| -> Result<Operand<'static>, Error> {
                    let all = *again(operand, operand.access()).layout();
                    Ok(view(operand.ptr(), operand, all.slice(0, 0..kept)?, operand.access()))
                };
                self.inner.copy(&part(source)?, &mut part(target)?)
            }
            Flaw::WritesWhatIsToRead => self.inner.copy(source, &mut again(target, Access::Write)),
            Flaw::AllowsCopiesOntoThemselves => match self.inner.copy(source, target) {
                Err(Error::Overlap { .. }) => Ok(()),
                copied => copied,
            },
            _ => self.inner.copy(source, target),
        };
        self.held_fill()?;
        self.after(copied)
    }

    fn fill(&mut self, target: &mut Operand<'static>, value: Scalar) -> Result<(), Error> {
        self.owed(Next::Write)?;
        if self.failed {
            return Ok(());
        }
        let filled = match self.flaw {
            Flaw::FillsIgnoreStrides => match dense(target) {
                Some(mut target) => self.inner.fill(&mut target, value),
                None => self.inner.fill(target, value),
            },
            Flaw::WritesWhatIsToRead => self.inner.fill(&mut again(target, Access::Write), value),
            Flaw::SwapsCommands if value.fits(target.dtype()) && target.access().writes() => {
                let later = (again(target, target.access()), value);
                self.held_fill()?;
                self.fill = Some(later);
                Ok(())
            }
            _ => self.inner.fill(target, value),
        };
        self.after(filled)
    }

    fn call(&mut self, function: &mut InlineFn, operands: &mut [Operand<'static>]) -> Result<(), CallError> {
        self.owed(Next::Read)?;
        if self.flaw == Flaw::SkipsFunctions {
            return Ok(());
        }
        if self.flaw == Flaw::ForgetsRefusedCaptures
            && let Err(refused) = FnContext::new(operands)
        {
            std::mem::forget(std::mem::take(function));
            return Err(refused.into());
        }
        let called = self.inner.call(function, operands);
        self.held_fill()?;
        self.after(called)
    }

    fn call_raw(&mut self, function: &mut RawFn<'_>, operands: &mut [Operand<'static>]) -> Result<(), CallError> {
        self.owed(Next::Read)?;
        self.inner.call_raw(function, operands)
    }

    fn record(&mut self, event: EventId) -> Result<(), Error> {
        self.owed(Next::Record)?;
        match self.flaw {
            Flaw::RecordsTooEarly => self.aside.record(event),
            _ => self.inner.record(event),
        }
    }

    fn wait(&mut self, event: EventId) -> Result<(), Error> {
        let recorded = self.device.events().is_recorded(event);
        match self.flaw {
            Flaw::TakesStaleEvents if recorded.is_err() => return Ok(()),
            Flaw::TakesUnrecordedEvents if recorded == Ok(false) => return Ok(()),
            _ => {}
        }
        if recorded != Ok(true) {
            return self.inner.wait(event);
        }
        match self.flaw {
            Flaw::DropsWaits => Ok(()),
            Flaw::KeepsOnlyTheLastWait => {
                self.waits = vec![event];
                Ok(())
            }
            Flaw::HoldsBackReadsAlone | Flaw::ForgetsWaitsWithoutCommands => {
                self.waits.push(event);
                Ok(())
            }
            _ => self.inner.wait(event),
        }
    }

    fn synchronize(&mut self) -> Result<(), Error> {
        self.owed(Next::End)?;
        self.held_fill()?;
        match self.flaw {
            Flaw::SynchronizesNothing => Ok(()),
            Flaw::Hangs => loop {
                thread::park();
            },
            _ => self.inner.synchronize(),
        }
    }
}
