//! Forks: whether this process is the one that built the engine.
//!
//! A child of `fork` has the engine's memory and none of its threads, and any lock may be held by a thread that is not
//! there. So every public call looks here before it takes a lock, and so does whatever outlives the engine and has a lock.
//!
//! On Linux there is a page that the kernel wipes in a child (`MADV_WIPEONFORK`, Linux 4.14, made for this: the random
//! generators of BoringSSL and AWS-LC detect forks so). A process that builds an engine has a number there, and a look is one plain
//! load. Elsewhere, and on older kernels, the process id is compared, which is a system call on most systems.

#![allow(unsafe_code, reason = "maps a page that the kernel wipes in a child")]

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use streamvm_instructions::Error;

/// Tells the process that built an engine from its children. A copy is for what outlives the engine.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Fork {
    #[cfg(target_os = "linux")]
    Page(page::Page),
    Process(u32),
}

impl Fork {
    /// Marks this process as the one that the engine belongs to.
    pub(crate) fn new() -> Fork {
        #[cfg(target_os = "linux")]
        if let Some(page) = page::Page::of_this_process() {
            return Fork::Page(page);
        }
        Fork::Process(std::process::id())
    }

    /// Whether this process was forked from the one that built the engine.
    pub(crate) fn is_child(&self) -> bool {
        match self {
            #[cfg(target_os = "linux")]
            Fork::Page(page) => page.is_another_s(),
            Fork::Process(id) => *id != std::process::id(),
        }
    }

    /// Refuses a call in a child.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_child() { Err(Error::Forked) } else { Ok(()) }
    }
}

/// A value that each process makes for itself: a child of `fork` gets another than its parent had, which a thread may have locked that
/// is not in the child. A value stays for as long as its process.
pub(crate) struct PerProcess<T: 'static>(AtomicPtr<Owned<T>>);

/// A value, and the process that made it.
struct Owned<T> {
    process: Fork,
    value: T,
}

impl<T: Default + Sync + Send + 'static> PerProcess<T> {
    pub(crate) const fn new() -> PerProcess<T> {
        PerProcess(AtomicPtr::new(ptr::null_mut()))
    }

    /// The value of this process. Waits for no other thread.
    pub(crate) fn get(&self) -> &'static T {
        let known = self.0.load(Ordering::Acquire);
        // SAFETY: what is stored here was leaked below, so it is null or lives for as long as the process, and it is never changed.
        if let Some(owned) = unsafe { known.as_ref() }
            && !owned.process.is_child()
        {
            return &owned.value;
        }
        let fresh = Box::into_raw(Box::new(Owned { process: Fork::new(), value: T::default() }));
        let owned = match self.0.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            // Another thread of this process was faster: a child begins with one thread, so this is no parent's.
            Err(first) => {
                // SAFETY: the box was made above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                first
            }
        };
        // SAFETY: it was leaked, by this call or by one that was faster, and it is never changed or freed.
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

    /// The kernel maps, advises and unmaps whole pages, of which a word is used.
    const BYTES: usize = size_of::<AtomicU64>();

    /// The number of a process, on the page that its children find wiped.
    #[derive(Copy, Clone, Debug)]
    pub(crate) struct Page {
        mark: &'static AtomicU64,
        number: u64,
    }

    impl Page {
        /// That of this process, which gets a number if it has none yet. None where no page is wiped.
        pub(super) fn of_this_process() -> Option<Page> {
            /// The last number that was given. A child goes on from where its parent was, so no two of a line are the same.
            static LAST: AtomicU64 = AtomicU64::new(0);
            let mark = mark().inspect_err(|error| {
                log::debug!("no page is wiped on fork ({error}); process ids are compared");
            });
            let (mark, next) = (mark.ok()?, LAST.fetch_add(1, Ordering::Relaxed) + 1);
            let given = mark.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
            Some(Page { mark, number: given.map_or_else(|given| given, |_| next) })
        }

        /// Whether this process has another number, or none.
        pub(super) fn is_another_s(self) -> bool {
            self.mark.load(Ordering::Relaxed) != self.number
        }
    }

    /// The page of this process and its children. Behind no lock, which a child might find held.
    fn mark() -> Result<&'static AtomicU64, Errno> {
        static MARK: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
        let mark = match NonNull::new(MARK.load(Ordering::Acquire)) {
            Some(mark) => mark,
            None => {
                let fresh = map(wipe_on_fork)?;
                match MARK.compare_exchange(ptr::null_mut(), fresh.as_ptr(), Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => fresh,
                    Err(first) => {
                        // SAFETY: the page was mapped above, and nobody has seen it.
                        unsafe { munmap(fresh.as_ptr().cast(), BYTES) }?;
                        NonNull::new(first).ok_or(Errno::NOMEM)?
                    }
                }
            }
        };
        // SAFETY: the page is mapped and zeroed, so it holds an atomic, and once it was stored it is never unmapped. The kernel
        // changes it in a child alone, where no other thread is.
        Ok(unsafe { mark.as_ref() })
    }

    /// Maps a page for the mark and has `advise` tell the kernel to wipe it in a child. A page that is not wiped is unmapped again: there is
    /// one for each engine that asks.
    pub(super) fn map(advise: impl FnOnce(NonNull<c_void>) -> Result<(), Errno>) -> Result<NonNull<AtomicU64>, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null address lets the kernel choose, so no other mapping is touched.
        let address = unsafe { mmap_anonymous(ptr::null_mut(), BYTES, access, MapFlags::PRIVATE) }?;
        // The kernel does not choose address 0.
        let address = NonNull::new(address).ok_or(Errno::NOMEM)?;
        if let Err(error) = advise(address) {
            // SAFETY: the page was mapped above, and nobody has seen it but `advise`, which keeps nothing.
            unsafe { munmap(address.as_ptr(), BYTES) }?;
            return Err(error);
        }
        Ok(address.cast())
    }

    /// Has the kernel wipe a page that [`map`] has just mapped.
    fn wipe_on_fork(page: NonNull<c_void>) -> Result<(), Errno> {
        // SAFETY: the page is mapped, private and anonymous, and nothing is in it yet.
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
            assert_eq!(fork.check(), Ok(()));
        }
        assert!(!Fork::Process(std::process::id()).is_child());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_kernel_wipes_pages() {
        assert!(matches!(Fork::new(), Fork::Page(_)), "no kernel that runs this test is older than 4.14");
    }

    /// As older kernels do. Pages that stayed would all lie at different addresses; one that is unmapped leaves its address to the next.
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
            .map(|one| std::thread::spawn(move || VALUE.get().lock().expect("nobody panics").push(one)))
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
        assert_eq!(VALUE.get().lock().expect("nobody panics").len(), 4, "one value for all threads");
        // As a child finds it: what is there belongs to a process with another number.
        static OTHERS: PerProcess<std::sync::Mutex<Vec<u32>>> = PerProcess::new();
        let others = Box::new(Owned { process: Fork::Process(0), value: std::sync::Mutex::new(vec![1]) });
        let others = Box::into_raw(others);
        OTHERS.0.store(others, Ordering::Release);
        assert_eq!(OTHERS.get().lock().expect("nobody panics").len(), 0, "a value of its own");
        OTHERS.get().lock().expect("nobody panics").push(2);
        assert_eq!(*OTHERS.get().lock().expect("nobody panics"), [2]);
        // SAFETY: it was made above and replaced by the first `get`, which gave out no reference to it; nobody else frees it.
        drop(unsafe { Box::from_raw(others) });
    }
}
