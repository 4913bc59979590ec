//! Forks: whether this process is the one that built the engine.
//!
//! A child of `fork` has the engine's memory and none of its threads, and any lock may be held by a thread that is not
//! there. So every public call looks here before it takes a lock, and so does whatever outlives the engine and has a lock.
//!
//! On Linux each engine has a page that the kernel wipes in a child (`MADV_WIPEONFORK`, Linux 4.14, made for this: the
//! random generators of BoringSSL and AWS-LC detect forks so). The engine writes a mark to it and a look is one plain
//! load. Elsewhere, and on older kernels, the process id is compared, which is a system call on most systems.

#![allow(unsafe_code, reason = "maps a page that the kernel wipes in a child")]

use std::sync::Arc;

use streamvm_instructions::Error;

use crate::shared::Shared;

/// Tells the process that built an engine from its children. A clone is for what outlives the engine.
#[derive(Clone, Debug)]
pub(crate) enum Fork {
    #[cfg(target_os = "linux")]
    Page(page::Page),
    Process(u32),
}

impl Fork {
    /// Marks this process as the one that the engine belongs to.
    pub(crate) fn new() -> Fork {
        #[cfg(target_os = "linux")]
        match page::Page::new() {
            Ok(page) => return Fork::Page(page),
            Err(error) => log::debug!("no page is wiped on fork ({error}); process ids are compared"),
        }
        Fork::Process(std::process::id())
    }

    /// Whether this process was forked from the one that built the engine.
    pub(crate) fn is_child(&self) -> bool {
        match self {
            #[cfg(target_os = "linux")]
            Fork::Page(page) => page.is_wiped(),
            Fork::Process(id) => *id != std::process::id(),
        }
    }

    /// Refuses a call in a child.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_child() { Err(Error::Forked) } else { Ok(()) }
    }
}

impl Shared {
    /// In a child, keeps the engine for ever: what it holds may be in use by threads that are not there, and devices do
    /// not survive a fork. For drops of what holds the engine.
    pub(crate) fn leak_in_child(self: &Arc<Self>) {
        if self.fork.is_child() {
            std::mem::forget(self.clone());
        }
    }
}

#[cfg(target_os = "linux")]
mod page {
    use std::ptr::{self, NonNull};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU8, Ordering};

    use rustix::io::Errno;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    /// The kernel maps, advises and unmaps whole pages, of which one byte is used.
    const BYTES: usize = 1;

    /// A page with a mark that a child does not have. Clones are the same page.
    #[derive(Clone, Debug)]
    pub(crate) struct Page {
        /// In the mapping. Kept here too, so that a look touches no count of clones.
        mark: NonNull<AtomicU8>,
        _mapping: Arc<Mapping>,
    }

    /// The page itself, unmapped with the last of its clones.
    #[derive(Debug)]
    struct Mapping(NonNull<AtomicU8>);

    // SAFETY: the page holds an atomic, which any thread may read, and lives until the mapping is dropped.
    unsafe impl Send for Page {}
    // SAFETY: as above.
    unsafe impl Sync for Page {}
    // SAFETY: any thread may unmap the page, and what is dropped is used by nobody.
    unsafe impl Send for Mapping {}
    // SAFETY: a shared mapping gives access to nothing.
    unsafe impl Sync for Mapping {}

    impl Page {
        pub(super) fn new() -> Result<Page, Errno> {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a null address lets the kernel choose, so no other mapping is touched.
            let address = unsafe { mmap_anonymous(ptr::null_mut(), BYTES, access, MapFlags::PRIVATE) }?;
            // The kernel does not choose address 0.
            let mark = NonNull::new(address.cast()).ok_or(Errno::NOMEM)?;
            let page = Page { mark, _mapping: Arc::new(Mapping(mark)) };
            // SAFETY: the page was mapped above, is private and anonymous, and nothing is in it yet.
            unsafe { madvise(address, BYTES, Advice::LinuxWipeOnFork) }?;
            page.mark().store(1, Ordering::Relaxed);
            Ok(page)
        }

        fn mark(&self) -> &AtomicU8 {
            // SAFETY: the page is mapped and zeroed, so it holds an atomic, and stays until the mapping is dropped, which `self`
            // keeps. The kernel changes it in a child alone, where no other thread is.
            unsafe { self.mark.as_ref() }
        }

        pub(super) fn is_wiped(&self) -> bool {
            self.mark().load(Ordering::Relaxed) == 0
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: `Page::new` mapped it, and no page that looks at it is left.
            if let Err(error) = unsafe { munmap(self.0.as_ptr().cast(), BYTES) } {
                log::error!("the page that tells forks apart could not be unmapped: {error}");
            }
        }
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
