//! A caller's closure, stored inline.
//!
//! An engine that runs millions of small closures cannot afford an allocation for each. [`InlineFn`]
//! keeps the captures of a closure in itself when they are small, and in a box when not. It is a
//! hand-made trait object: [`Storage`] holds the captures (or the pointer to them), a `&'static`
//! [`VTable`] knows their type.
//!
//! Invariants:
//! * `storage` holds a valid value of the type that `vtable` was made for, until `call`, `clear`, `take_from`
//!   or `drop` takes it out, exactly once; where it is taken out of what lives on, the table of [`nothing`],
//!   which stores nothing, comes first;
//! * moving an `InlineFn` is a plain copy of its bytes, as with any Rust value.

use std::fmt;
use std::mem::MaybeUninit;

use crate::fn_context::FnContext;

/// Captures up to this many bytes (and an alignment up to 8) are stored inline.
///
/// Room for six words (a few handles, numbers or a fat pointer and more), while the whole cell with its
/// table pointer is 56 bytes: less than a cache line.
pub const INLINE_BYTES: usize = 48;

/// What a caller's closure may fail with.
pub type FnError = Box<dyn std::error::Error + Send + Sync>;

/// A `FnOnce(&mut FnContext) -> Result<(), FnError>` that allocates nothing while its captures fit
/// [`INLINE_BYTES`]. Dropping it without a call drops the captures.
///
/// The table comes first: what has no captures touches nothing behind it.
#[repr(C)]
pub struct InlineFn {
    vtable: &'static VTable,
    storage: Storage,
}

/// What a storage is made of, and moved by. It may be uninitialised, and part of a pointer.
type Word = MaybeUninit<u64>;

#[repr(C, align(8))]
struct Storage([Word; WORDS]);

const WORDS: usize = INLINE_BYTES / size_of::<Word>();

struct VTable {
    /// Takes the value out of the storage and calls the closure.
    call: unsafe fn(*mut Storage, &mut FnContext<'_>) -> Result<(), FnError>,
    /// Drops the value in the storage.
    drop: unsafe fn(*mut Storage),
    /// Words of the storage that the value takes.
    words: usize,
    needs_drop: bool,
    /// Bytes on the heap; 0 if stored inline.
    heap_bytes: usize,
    boxed: bool,
}

/// What a storage holds: the closure itself, or a box of it.
trait Stored: Sized {
    const BOXED: bool;
    const HEAP_BYTES: usize;
    const VTABLE: VTable = VTable {
        call: call_stored::<Self>,
        drop: drop_stored::<Self>,
        words: size_of::<Self>().div_ceil(size_of::<Word>()),
        needs_drop: std::mem::needs_drop::<Self>(),
        heap_bytes: Self::HEAP_BYTES,
        boxed: Self::BOXED,
    };

    fn run(self, context: &mut FnContext<'_>) -> Result<(), FnError>;
}

struct Inline<F>(F);

const fn table_of<F: FnOnce(&mut FnContext<'_>) -> Result<(), FnError>>(_: &F) -> &'static VTable {
    &Inline::<F>::VTABLE
}

struct Boxed<F>(Box<F>);

impl<F: FnOnce(&mut FnContext<'_>) -> Result<(), FnError>> Stored for Inline<F> {
    const BOXED: bool = false;
    const HEAP_BYTES: usize = 0;

    fn run(self, context: &mut FnContext<'_>) -> Result<(), FnError> {
        (self.0)(context)
    }
}

impl<F: FnOnce(&mut FnContext<'_>) -> Result<(), FnError>> Stored for Boxed<F> {
    const BOXED: bool = true;
    const HEAP_BYTES: usize = size_of::<F>();

    fn run(self, context: &mut FnContext<'_>) -> Result<(), FnError> {
        (*self.0)(context)
    }
}

/// The function of a cell that holds no other.
fn nothing(_: &mut FnContext<'_>) -> Result<(), FnError> {
    Ok(())
}

/// # Safety
///
/// * `storage` holds a valid `S`, which is not used after this call.
unsafe fn call_stored<S: Stored>(storage: *mut Storage, context: &mut FnContext<'_>) -> Result<(), FnError> {
    // SAFETY: by the duty above there is an `S`, and this takes it out for good.
    let stored = unsafe { storage.cast::<S>().read() };
    stored.run(context)
}

/// # Safety
///
/// * `storage` holds a valid `S`, which is not used after this call.
unsafe fn drop_stored<S: Stored>(storage: *mut Storage) {
    // SAFETY: by the duty above there is an `S`, and nobody uses it after this.
    unsafe { storage.cast::<S>().drop_in_place() }
}

// SAFETY: `new` takes only closures that are `Send`.
unsafe impl Send for InlineFn {}
// SAFETY: a shared `InlineFn` only tells facts of its vtable; the captures cannot be reached.
unsafe impl Sync for InlineFn {}

impl InlineFn {
    /// Stores a closure.
    #[inline(always)]
    pub fn new<F>(f: F) -> InlineFn
    where
        F: for<'a, 'b> FnOnce(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + 'static,
    {
        if fits::<Inline<F>>() { InlineFn::store(Inline(f)) } else { InlineFn::store(Boxed(Box::new(f))) }
    }

    #[inline(always)]
    fn store<S: Stored>(stored: S) -> InlineFn {
        // Decided at compile time; a box always fits, and other calls are never reached.
        assert!(fits::<S>(), "only what fits is stored");
        let mut storage = Storage([Word::uninit(); WORDS]);
        // SAFETY: the value fits the storage in size and alignment, and the storage is fresh.
        unsafe { (&raw mut storage).cast::<S>().write(stored) };
        InlineFn { vtable: &S::VTABLE, storage }
    }

    /// Calls the closure, which is taken out: from now on it does nothing.
    ///
    /// # Errors
    ///
    /// What the closure returns. If it panics its captures are dropped while unwinding.
    #[inline]
    pub fn call(&mut self, context: &mut FnContext<'_>) -> Result<(), FnError> {
        let vtable = std::mem::replace(&mut self.vtable, InlineFn::NOTHING);
        // SAFETY: the storage holds the value that the vtable was made for, and nobody uses it after this, even if the call
        // panics, as the vtable is another by now.
        unsafe { (vtable.call)(&raw mut self.storage, context) }
    }

    /// Drops the captures: from now on it does nothing.
    #[inline]
    pub fn clear(&mut self) {
        let vtable = std::mem::replace(&mut self.vtable, InlineFn::NOTHING);
        if vtable.needs_drop {
            // SAFETY: the storage holds the value that the vtable was made for, and nobody uses it after this, even if
            // the drop panics, as the vtable is another by now.
            unsafe { (vtable.drop)(&raw mut self.storage) }
        }
    }

    /// Takes the closure out of `from`, which does nothing from now on, in place of its own. Copies no more than the
    /// captures: the rest of both cells is not touched.
    #[inline(always)]
    pub fn take_from(&mut self, from: &mut InlineFn) {
        self.clear();
        let vtable = std::mem::replace(&mut from.vtable, InlineFn::NOTHING);
        match vtable.words {
            0 => {}
            // Most have a handle or nothing: no call for that.
            1 => self.storage.0[0] = from.storage.0[0],
            words => self.storage.0[..words].copy_from_slice(&from.storage.0[..words]),
        }
        self.vtable = vtable;
    }

    /// Whether dropping it, or [`InlineFn::clear`], would do anything.
    #[inline]
    pub fn holds_something(&self) -> bool {
        self.vtable.needs_drop
    }

    const NOTHING: &'static VTable = table_of(&nothing);

    /// Are the captures on the heap?
    pub fn is_boxed(&self) -> bool {
        self.vtable.boxed
    }

    /// Bytes of the captures on the heap; 0 if stored inline.
    pub fn heap_bytes(&self) -> usize {
        self.vtable.heap_bytes
    }
}

impl Drop for InlineFn {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Default for InlineFn {
    /// Does nothing.
    fn default() -> InlineFn {
        InlineFn { vtable: InlineFn::NOTHING, storage: Storage([Word::uninit(); WORDS]) }
    }
}

const fn fits<S>() -> bool {
    size_of::<S>() <= size_of::<Storage>() && align_of::<S>() <= align_of::<Storage>()
}

impl fmt::Debug for InlineFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InlineFn").field("boxed", &self.vtable.boxed).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "closure_tests.rs"]
mod tests;
