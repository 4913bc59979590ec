//! Forks: whether this process is the one that built the engine.
//!
//! A child of `fork` has the engine's memory and none of its threads, and any lock may be held by a thread that is not
//! there. So every public call looks here before it takes a lock, and so does whatever outlives the engine and has a lock.
//!
//! On Linux there is a page that the kernel wipes in a child (`MADV_WIPEONFORK`, Linux 4.14, made for this: the random
//! generators of BoringSSL and AWS-LC detect forks so). A process that builds an engine has a number there, and a look is one plain
//! load. Elsewhere, and on older kernels, the process id is compared, which is a system call on most systems.

#![allow(unsafe_code, reason = "maps a page that the kernel wipes in a child")]

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

#[cfg(target_os = "linux")]
mod page {
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
                let fresh = map()?;
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

    fn map() -> Result<NonNull<AtomicU64>, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null address lets the kernel choose, so no other mapping is touched.
        let address = unsafe { mmap_anonymous(ptr::null_mut(), BYTES, access, MapFlags::PRIVATE) }?;
        // SAFETY: the page was mapped above, is private and anonymous, and nothing is in it yet.
        unsafe { madvise(address, BYTES, Advice::LinuxWipeOnFork) }?;
        // The kernel does not choose address 0.
        NonNull::new(address.cast()).ok_or(Errno::NOMEM)
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
}
