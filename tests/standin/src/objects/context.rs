//! Contexts: one for each device while it is retained, and the current context of each thread.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::objects::stream::Stream;
use crate::values::code::{Code, Outcome};

/// A primary context.
#[derive(Debug)]
pub(crate) struct Context {
    /// Its handle.
    pub(crate) handle: usize,
    /// The number of its device.
    pub(crate) device: usize,
    /// The error that ended it; 0 while it works.
    ended_by: AtomicI32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Devices whose memory its kernels may access.
    peers: BTreeSet<usize>,
    /// Its streams, including destroyed ones that still have work.
    streams: Vec<Weak<Stream>>,
}

impl Context {
    pub(crate) fn new(handle: usize, device: usize) -> Context {
        Context { handle, device, ended_by: AtomicI32::new(0), state: Mutex::default() }
    }

    /// Returns the error that ended the context, if any.
    pub(crate) fn check(&self) -> Outcome {
        match self.ended_by.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// Ends the context: from now on everything in it fails with `code`. If it has ended already, the first code stays.
    pub(crate) fn end(&self, code: Code) {
        let _ = self.ended_by.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Lets its kernels access the memory of another device; `false` if they already may.
    pub(crate) fn enable_peer(&self, device: usize) -> bool {
        self.lock().peers.insert(device)
    }

    /// May its kernels access the memory of `device`?
    pub(crate) fn reaches(&self, device: usize) -> bool {
        device == self.device || self.lock().peers.contains(&device)
    }

    /// Adds a stream that was created in it.
    pub(crate) fn add(&self, stream: &Arc<Stream>) {
        let mut state = self.lock();
        state.streams.retain(|stream| stream.strong_count() > 0);
        state.streams.push(Arc::downgrade(stream));
    }

    /// Its streams, including destroyed ones that still have work.
    pub(crate) fn streams(&self) -> Vec<Arc<Stream>> {
        self.lock().streams.iter().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is a single step, so the state is consistent even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// The contexts of this thread; the last one is current.
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The handle of the current context; 0 for none.
pub(crate) fn current() -> usize {
    STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// Replaces the current context; 0 only removes it.
pub(crate) fn set_current(handle: usize) {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
}

/// Makes a context current, above the one before.
pub(crate) fn push_current(handle: usize) {
    STACK.with_borrow_mut(|stack| stack.push(handle));
}

/// Pops the current context; the one before becomes current again.
pub(crate) fn pop_current() -> Option<usize> {
    STACK.with_borrow_mut(Vec::pop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_of_a_thread_are_a_stack() {
        std::thread::spawn(|| {
            assert_eq!((current(), pop_current()), (0, None));
            set_current(1);
            push_current(2);
            set_current(3);
            assert_eq!((pop_current(), current()), (Some(3), 1));
            set_current(0);
            assert_eq!(current(), 0);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn the_first_error_stays() {
        let context = Context::new(1, 0);
        assert_eq!(context.check(), Ok(()));
        context.end(Code::ILLEGAL_ADDRESS);
        context.end(Code::LAUNCH_FAILED);
        assert_eq!(context.check(), Err(Code::ILLEGAL_ADDRESS));
    }
}
