//! Fork detection: whether this process is the one that made a value.
//!
//! A child of `fork` has its parent's memory but none of its threads, and a lock may be held by a thread that the child does not
//! have. So every value that threads share checks for a fork before it takes a lock: the calls of an engine, and the pool of helping threads.
//!
//! * On Linux 4.14 and later, a page is advised `MADV_WIPEONFORK`: the kernel zeroes it in a child (BoringSSL and AWS-LC detect
//!   forks this way for their random generators). A process that makes such a value stores a number there, so a check is one relaxed
//!   load.
//! * Elsewhere, and on older kernels, the process id is compared, which is a system call on most systems. A child may then be taken for
//!   a process that has ended and had the same id.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Identifies the process that made a value, such as an engine. Objects that outlive the value keep a copy.
#[derive(Copy, Clone, Debug)]
pub struct Fork(Identity);

#[derive(Copy, Clone, Debug)]
enum Identity {
    #[cfg(target_os = "linux")]
    Page(page::Page),
    Process(u32),
}

impl Fork {
    /// Identifies the current process.
    #[expect(clippy::new_without_default, reason = "it says which process called it")]
    pub fn new() -> Fork {
        #[cfg(target_os = "linux")]
        if let Some(page) = page::Page::of_this_process() {
            return Fork(Identity::Page(page));
        }
        Fork(Identity::Process(std::process::id()))
    }

    /// Whether the current process was forked from the one that called [`Fork::new`].
    #[inline]
    pub fn is_child(&self) -> bool {
        match &self.0 {
            #[cfg(target_os = "linux")]
            Identity::Page(page) => page.is_another_s(),
            Identity::Process(id) => *id != std::process::id(),
        }
    }
}

/// A value that each process creates for itself. A child of `fork` does not use its parent's value, whose lock may be held by a
/// thread that the child does not have. A value is leaked: it lives as long as its process.
#[derive(Debug)]
pub struct PerProcess<T: 'static>(AtomicPtr<Owned<T>>);

/// A value and the process that created it.
#[derive(Debug)]
struct Owned<T> {
    process: Fork,
    value: T,
}

impl<T: Default + Sync + Send + 'static> PerProcess<T> {
    /// No value yet.
    #[expect(clippy::new_without_default, reason = "a static is made by it, and a default is not const")]
    pub const fn new() -> PerProcess<T> {
        PerProcess(AtomicPtr::new(ptr::null_mut()))
    }

    /// The value of this process, created on first use. Lock-free.
    #[inline]
    pub fn get(&self) -> &'static T {
        let known = self.0.load(Ordering::Acquire);
        // SAFETY: the pointer is null or was leaked below, so its target lives as long as the process and is never written again.
        if let Some(owned) = unsafe { known.as_ref() }
            && !owned.process.is_child()
        {
            return &owned.value;
        }
        let fresh = Box::into_raw(Box::new(Owned { process: Fork::new(), value: T::default() }));
        let owned = match self.0.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            // Another thread of this process stored its value first. A child starts with a single thread, so this value is not a
            // parent's.
            Err(first) => {
                // SAFETY: the box was made above, and the failed exchange did not publish it.
                drop(unsafe { Box::from_raw(fresh) });
                first
            }
        };
        // SAFETY: the value was leaked by this call or by a concurrent one, and is never written or freed.
        &unsafe { &*owned }.value
    }
}

#[cfg(target_os = "linux")]
mod page {
    use std::ffi::c_void;
    use std::ptr::{self, NonNull};
    use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

    use rustix::io::Errno;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    /// Bytes that are mapped, advised and unmapped. The kernel rounds them up to a page; one word of it is used.
    const BYTES: usize = size_of::<AtomicU64>();

    /// The number of a process, stored on a page that the kernel zeroes in its children.
    #[derive(Copy, Clone, Debug)]
    pub(crate) struct Page {
        mark: &'static AtomicU64,
        number: u64,
    }

    impl Page {
        /// The page and number of this process; assigns a number if the process has none. `None` if the page cannot be mapped or
        /// wiped.
        pub(super) fn of_this_process() -> Option<Page> {
            /// The number assigned last. A child inherits the count, so its number differs from those of all its ancestors.
            static LAST: AtomicU64 = AtomicU64::new(0);
            let mark = mark().inspect_err(|error| {
                log::debug!("no page is wiped on fork ({error}); process ids are compared");
            });
            let (mark, next) = (mark.ok()?, LAST.fetch_add(1, Ordering::Relaxed) + 1);
            let given = mark.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
            Some(Page { mark, number: given.map_or_else(|given| given, |_| next) })
        }

        /// Whether the current process has a different number, or none.
        #[inline]
        pub(super) fn is_another_s(self) -> bool {
            self.mark.load(Ordering::Relaxed) != self.number
        }
    }

    /// The page of this process and its children. It is not behind a lock, because a child could find that lock held.
    fn mark() -> Result<&'static AtomicU64, Errno> {
        static MARK: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
        let mark = match NonNull::new(MARK.load(Ordering::Acquire)) {
            Some(mark) => mark,
            None => {
                let fresh = map(wipe_on_fork)?;
                match MARK.compare_exchange(ptr::null_mut(), fresh.as_ptr(), Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => fresh,
                    Err(first) => {
                        // SAFETY: the page was mapped above, and the failed exchange did not publish it.
                        unsafe { munmap(fresh.as_ptr().cast(), BYTES) }?;
                        NonNull::new(first).ok_or(Errno::NOMEM)?
                    }
                }
            }
        };
        // SAFETY: the page is mapped and zeroed, so it holds a valid atomic, and a page that was stored is never unmapped. The
        // kernel writes to it only in a new child, before the child's only thread runs.
        Ok(unsafe { mark.as_ref() })
    }

    /// Maps a page for the number and lets `advise` tell the kernel to wipe it in a child. A page that `advise` refuses is
    /// unmapped: each value that is made tries again, so the pages would add up.
    pub(super) fn map(advise: impl FnOnce(NonNull<c_void>) -> Result<(), Errno>) -> Result<NonNull<AtomicU64>, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null address lets the kernel choose, so no other mapping is affected.
        let address = unsafe { mmap_anonymous(ptr::null_mut(), BYTES, access, MapFlags::PRIVATE) }?;
        // Linux does not choose address 0.
        let address = NonNull::new(address).ok_or(Errno::NOMEM)?;
        if let Err(error) = advise(address) {
            // SAFETY: the page was mapped above, and no reference to it remains: `advise` keeps none.
            unsafe { munmap(address.as_ptr(), BYTES) }?;
            return Err(error);
        }
        Ok(address.cast())
    }

    /// Tells the kernel to wipe a page that [`map`] has just mapped.
    fn wipe_on_fork(page: NonNull<c_void>) -> Result<(), Errno> {
        // SAFETY: the page is mapped, private and anonymous, and holds no data yet.
        unsafe { madvise(page.as_ptr(), BYTES, Advice::LinuxWipeOnFork) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_process_that_built_it_is_no_child() {
        for _ in 0..3 {
            let fork = Fork::new();
            assert!(!fork.is_child());
        }
        assert!(!Fork(Identity::Process(std::process::id())).is_child());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_kernel_wipes_pages() {
        assert!(matches!(Fork::new(), Fork(Identity::Page(_))), "no kernel that runs this test is older than 4.14");
    }

    /// Models a kernel older than 4.14. Leaked pages would all have different addresses; an unmapped one leaves its address to the
    /// next.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_page_that_the_kernel_does_not_wipe_is_unmapped() {
        let engines = 1_000;
        let mut addresses = std::collections::HashSet::new();
        for _ in 0..engines {
            let refused = page::map(|page| {
                addresses.insert(page.as_ptr().addr());
                Err(rustix::io::Errno::INVAL)
            });
            assert_eq!(refused, Err(rustix::io::Errno::INVAL));
        }
        assert!(addresses.len() < engines / 2, "{} pages of {engines} were mapped side by side", addresses.len());
    }

    #[test]
    fn each_process_has_a_value_of_its_own() {
        static VALUE: PerProcess<std::sync::Mutex<Vec<u32>>> = PerProcess::new();
        let threads: Vec<_> = (0..4)
            .map(|one| std::thread::spawn(move || VALUE.get().lock().expect("no holder panics").push(one)))
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
        assert_eq!(VALUE.get().lock().expect("no holder panics").len(), 4, "one value for all threads");
        // The state that a child finds: the stored value belongs to a process with another number.
        static OTHERS: PerProcess<std::sync::Mutex<Vec<u32>>> = PerProcess::new();
        let others = Box::new(Owned { process: Fork(Identity::Process(0)), value: std::sync::Mutex::new(vec![1]) });
        let others = Box::into_raw(others);
        OTHERS.0.store(others, Ordering::Release);
        assert_eq!(OTHERS.get().lock().expect("no holder panics").len(), 0, "a value of its own");
        OTHERS.get().lock().expect("no holder panics").push(2);
        assert_eq!(*OTHERS.get().lock().expect("no holder panics"), [2]);
        // SAFETY: the box was made above and replaced by the first `get`, which returned no reference to it; no other code frees
        // it.
        drop(unsafe { Box::from_raw(others) });
    }
}
