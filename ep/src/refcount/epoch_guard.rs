//! Epoch guards, and the participants whose epochs they begin and end.
//!
//! Each thread has one [`Participant`], which has at most one current epoch. An [`EpochGuard`] is that epoch: a list of references that
//! the thread fills holds the guard, and stores the number of the epoch in every value that it pins. When the list is dropped, one store
//! ends the epoch for all these values. A last counted reference that is dropped earlier is put on the participant's list of deferred
//! drops, and the thread that ends the epoch drops that list. The module [`refcount`](crate::refcount) explains the whole algorithm.

use std::ptr::{self, NonNull};

use crate::refcount::counted::{Erased, Header};
use crate::refcount::sync::{AtomicPtr, AtomicUsize, Ordering};

/// The participant of one thread: it numbers the epochs. It is never freed; after its thread has ended, a new thread takes it over.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Participant {
    /// The number of the current epoch, or 0 if there is none. The participant's thread begins an epoch; any thread may end it.
    pub(crate) current_epoch: AtomicUsize,
    /// The number of the epoch that began last. Only the participant's thread uses it.
    last_epoch: AtomicUsize,
    /// The deferred drops: last counted references that were dropped while an epoch was current.
    pub(crate) deferred: AtomicPtr<Header>,
}

impl Participant {
    fn new() -> Participant {
        let deferred = AtomicPtr::new(ptr::null_mut());
        Participant { current_epoch: AtomicUsize::new(0), last_epoch: AtomicUsize::new(0), deferred }
    }

    /// Makes a participant that lives until the process ends.
    pub(crate) fn leaked() -> &'static Participant {
        Box::leak(Box::new(Participant::new()))
    }

    /// Whether the epoch with this number is current. Once an epoch has ended, this stays false.
    #[inline]
    pub(crate) fn is_current(&self, epoch: usize) -> bool {
        // Acquire: pairs with the end of the epoch, so that the list's last reads come before. The number is 0 in a value that was never
        // pinned.
        epoch != 0 && self.current_epoch.load(Ordering::Acquire) == epoch
    }

    /// Whether `participant` is that of the calling thread.
    #[cold]
    pub(crate) fn is_of_this_thread(participant: *const Participant) -> bool {
        threads::participant().is_some_and(|own| ptr::eq(own, participant))
    }

    /// Defers the drop of a last reference until `epoch`, which the caller has seen to be current, has ended.
    #[inline(never)]
    pub(crate) fn defer(&self, reference: Erased, epoch: usize) {
        // SAFETY: the pointer comes from `into_raw` of a reference that is consumed here, and is put on no other list.
        unsafe { self.push_deferred(reference.into_raw()) };
        if !self.is_current(epoch) {
            self.drop_deferred();
        }
    }

    /// Puts a reference on the list of deferred drops.
    ///
    /// # Safety
    /// * `header` comes from [`Erased::into_raw`].
    /// * It is put on one list, once.
    pub(crate) unsafe fn push_deferred(&self, header: NonNull<Header>) {
        let mut first = self.deferred.load(Ordering::Relaxed);
        loop {
            // SAFETY: the list owns the counted reference until `drop_deferred` takes it out, so the header is alive.
            unsafe { header.as_ref() }.next.store(first, Ordering::Relaxed);
            // The end of an epoch stores 0 and then swaps this list. So either that swap finds this reference, or the check after
            // `push_deferred` sees the end.
            match self.deferred.compare_exchange(first, header.as_ptr(), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Drops the deferred references. A value that a newer epoch pins is deferred again.
    #[inline]
    pub(crate) fn drop_deferred(&self) {
        let first = self.deferred.swap(ptr::null_mut(), Ordering::AcqRel);
        if !first.is_null() {
            Participant::drop_all(DeferredDrops(first));
        }
    }

    #[inline(never)]
    fn drop_all(deferred: DeferredDrops) {
        deferred.for_each(drop);
    }
}

/// A list of deferred drops that was taken out of the participant.
struct DeferredDrops(*mut Header);

impl Iterator for DeferredDrops {
    type Item = Erased;

    fn next(&mut self) -> Option<Erased> {
        let header = NonNull::new(self.0)?;
        // SAFETY: the list owns a counted reference to the value of the header, and this thread alone has taken the list.
        self.0 = unsafe { header.as_ref() }.next.load(Ordering::Relaxed);
        // SAFETY: the pointer came from `into_raw` by way of `push_deferred`, and leaves the list only here.
        Some(unsafe { Erased::from_raw(header) })
    }
}

impl Drop for DeferredDrops {
    /// If dropping a value panics, the rest of the list is dropped all the same.
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// A current epoch, which ends when the guard is dropped. As long as the guard lives, the values that were pinned by it stay alive.
#[derive(Debug)]
pub(crate) struct EpochGuard {
    pub(crate) participant: &'static Participant,
    pub(crate) epoch: usize,
}

impl EpochGuard {
    /// Begins an epoch of `participant`; `None` while another one is current. Only one thread at a time may call this for a participant.
    pub(crate) fn begin(participant: &'static Participant) -> Option<EpochGuard> {
        // Acquire: another thread may have ended the last epoch. The release store below passes that on: a thread that sees the new
        // epoch also sees that the old one has ended.
        if participant.current_epoch.load(Ordering::Acquire) != 0 {
            return None;
        }
        // The number may wrap around. A value that an old epoch with the same number pinned is then dropped later than needed, which is
        // safe.
        let epoch = participant.last_epoch.load(Ordering::Relaxed).wrapping_add(1).max(1);
        participant.last_epoch.store(epoch, Ordering::Relaxed);
        participant.current_epoch.store(epoch, Ordering::Release);
        Some(EpochGuard { participant, epoch })
    }

    /// Begins an epoch of the calling thread's participant. `None` while another one is current, and when the thread is ending.
    pub(crate) fn of_this_thread() -> Option<EpochGuard> {
        threads::participant().and_then(EpochGuard::begin)
    }
}

impl Drop for EpochGuard {
    fn drop(&mut self) {
        self.participant.current_epoch.store(0, Ordering::Release);
        // Takes what was deferred meanwhile: see the ordering in `Participant::push_deferred`.
        self.participant.drop_deferred();
    }
}

/// The participant of each thread.
mod threads {
    use std::sync::{Mutex, MutexGuard, TryLockError};
    use std::thread;

    use super::{Ordering, Participant};

    /// Participants of threads that have ended.
    static IDLE: Mutex<Vec<&'static Participant>> = Mutex::new(Vec::new());

    /// How often to try the lock of [`IDLE`]. No thread blocks on it: in a forked child, the thread that held the lock may not exist.
    const TRIES: usize = 64;

    fn idle() -> Option<MutexGuard<'static, Vec<&'static Participant>>> {
        (0..TRIES).find_map(|_| match IDLE.try_lock() {
            Ok(idle) => Some(idle),
            Err(TryLockError::Poisoned(idle)) => Some(idle.into_inner()),
            Err(TryLockError::WouldBlock) => {
                thread::yield_now();
                None
            }
        })
    }

    /// Takes an idle participant without a current epoch. If a list of the ended thread still lives, its epoch is current, and the new
    /// thread could begin none.
    fn take_idle() -> Option<&'static Participant> {
        let mut idle = idle()?;
        let found = idle.iter().rposition(|participant| participant.current_epoch.load(Ordering::Relaxed) == 0)?;
        Some(idle.swap_remove(found))
    }

    /// The participant of a thread. It becomes idle when the thread ends.
    struct Local(&'static Participant);

    impl Drop for Local {
        fn drop(&mut self) {
            if let Some(mut idle) = idle() {
                idle.push(self.0);
            }
        }
    }

    thread_local! {
        static LOCAL: Local = Local(take_idle().unwrap_or_else(Participant::leaked));
    }

    /// The calling thread's participant; `None` while the thread's local storage is being destroyed.
    pub(super) fn participant() -> Option<&'static Participant> {
        LOCAL.try_with(|local| local.0).ok()
    }
}
