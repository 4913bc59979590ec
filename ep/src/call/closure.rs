//! A type-erased closure of the caller, stored inline.
//!
//! An engine that runs millions of small closures cannot afford one heap allocation for each. [`InlineFn`] stores small captures in
//! itself and larger ones in a box. It is a hand-made trait object: [`Storage`] holds the captures or the pointer to them, and a
//! `&'static` [`VTable`] has the functions for their type.
//!
//! Invariants:
//! * `storage` holds a valid value of the type that `vtable` was made for. Exactly one of `call`, `clear`, `take_from` and `drop` takes
//!   it out. Where the `InlineFn` lives on, `vtable` is first replaced by that of [`nothing`], which stores no value.
//! * Moving an `InlineFn` is a plain copy of its bytes, as for any Rust value.

use std::fmt;
use std::mem::MaybeUninit;

use crate::call::fn_context::FnContext;
use crate::errors::call_error::FnError;
#[cfg(doc)]
use crate::errors::error::Error;

/// Captures of up to this many bytes, with an alignment of at most 8, are stored inline.
///
/// That is six words: a few handles, numbers or fat pointers. With the pointer to the vtable, an `InlineFn` has 56 bytes, less than a
/// cache line.
pub const INLINE_BYTES: usize = 48;

/// A `FnOnce(&mut FnContext) -> Result<(), FnError>` that allocates nothing while its captures fit
/// [`INLINE_BYTES`]. Dropping it without a call drops the captures.
///
/// The vtable is the first field: a closure without captures touches no byte after it.
#[repr(C)]
pub struct InlineFn {
    vtable: &'static VTable,
    storage: Storage,
}

/// The unit in which storage is moved. It may be uninitialised or part of a pointer.
type Word = MaybeUninit<u64>;

#[repr(C, align(8))]
struct Storage([Word; WORDS]);

const WORDS: usize = INLINE_BYTES / size_of::<Word>();

struct VTable {
    /// Takes the value out of the storage and calls the closure.
    call: unsafe fn(*mut Storage, &mut FnContext<'_>) -> Result<(), FnError>,
    /// Drops the value in the storage.
    drop: unsafe fn(*mut Storage),
    /// The number of words of the storage that the value uses.
    words: usize,
    needs_drop: bool,
    /// Bytes on the heap; 0 if stored inline.
    heap_bytes: usize,
    boxed: bool,
    helpable: bool,
}

/// What a storage holds: the closure itself, or a box of it.
trait Stored: Sized {
    const BOXED: bool;
    const HEAP_BYTES: usize;
    const HELPABLE: bool = false;
    const VTABLE: VTable = VTable {
        call: call_stored::<Self>,
        drop: drop_stored::<Self>,
        words: size_of::<Self>().div_ceil(size_of::<Word>()),
        needs_drop: std::mem::needs_drop::<Self>(),
        heap_bytes: Self::HEAP_BYTES,
        boxed: Self::BOXED,
        helpable: Self::HELPABLE,
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

/// A closure that a caller may run while it waits for it.
struct Helpable<S>(S);

impl<S: Stored> Stored for Helpable<S> {
    const BOXED: bool = S::BOXED;
    const HEAP_BYTES: usize = S::HEAP_BYTES;
    const HELPABLE: bool = true;

    fn run(self, context: &mut FnContext<'_>) -> Result<(), FnError> {
        self.0.run(context)
    }
}

/// The function of an `InlineFn` that holds no closure.
fn nothing(_: &mut FnContext<'_>) -> Result<(), FnError> {
    Ok(())
}

/// # Safety
///
/// * `storage` holds a valid `S`, which is not used after this call.
unsafe fn call_stored<S: Stored>(storage: *mut Storage, context: &mut FnContext<'_>) -> Result<(), FnError> {
    // SAFETY: the caller guarantees a valid `S` and does not use it again, so it may be moved out.
    let stored = unsafe { storage.cast::<S>().read() };
    stored.run(context)
}

/// # Safety
///
/// * `storage` holds a valid `S`, which is not used after this call.
unsafe fn drop_stored<S: Stored>(storage: *mut Storage) {
    // SAFETY: the caller guarantees a valid `S` and does not use it again.
    unsafe { storage.cast::<S>().drop_in_place() }
}

// SAFETY: `new` accepts only closures that are `Send`.
unsafe impl Send for InlineFn {}
// SAFETY: a shared `InlineFn` gives only facts from its vtable; the captures cannot be reached through `&self`.
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

    /// Stores a closure that a thread may run while it waits for the instruction, as it runs kernels. Other closures run on threads of the engine alone.
    ///
    /// The closure, the [`Operation`](crate::Operation) that it starts, and the drops of both must take no lock that a thread may hold while it waits for an
    /// engine: that thread would wait for itself.
    #[inline(always)]
    pub fn helpable<F>(f: F) -> InlineFn
    where
        F: for<'a, 'b> FnOnce(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + 'static,
    {
        if fits::<Inline<F>>() {
            InlineFn::store(Helpable(Inline(f)))
        } else {
            InlineFn::store(Helpable(Boxed(Box::new(f))))
        }
    }

    #[inline(always)]
    fn store<S: Stored>(stored: S) -> InlineFn {
        // Decided at compile time: a box always fits, and `new` stores inline only what fits.
        assert!(fits::<S>(), "only what fits is stored");
        let mut storage = Storage([Word::uninit(); WORDS]);
        // SAFETY: the value fits the storage in size and alignment, and the storage holds no other value.
        unsafe { (&raw mut storage).cast::<S>().write(stored) };
        InlineFn { vtable: &S::VTABLE, storage }
    }

    /// Calls the closure and takes it out: a later call calls nothing.
    ///
    /// # Errors
    ///
    /// The error of the closure, and [`Error::NotTaken`]. If the closure panics, its captures are dropped while unwinding.
    #[inline]
    pub fn call(&mut self, context: &mut FnContext<'_>) -> Result<(), FnError> {
        let vtable = std::mem::replace(&mut self.vtable, InlineFn::NOTHING);
        // SAFETY: the storage holds the value that this vtable was made for. It is not used again, even if the call panics, because
        // `self.vtable` has already been replaced.
        unsafe { (vtable.call)(&raw mut self.storage, context) }?;
        Ok(context.check_taken()?)
    }

    /// Drops the captures: a later call calls nothing.
    #[inline]
    pub fn clear(&mut self) {
        let vtable = std::mem::replace(&mut self.vtable, InlineFn::NOTHING);
        if vtable.needs_drop {
            // SAFETY: the storage holds the value that this vtable was made for. It is not used again, even if the drop panics, because
            // `self.vtable` has already been replaced.
            unsafe { (vtable.drop)(&raw mut self.storage) }
        }
    }

    /// Moves the closure out of `from`, which does nothing from now on, and drops the closure that `self` had. Copies only the words that
    /// the captures use.
    #[inline(always)]
    pub fn take_from(&mut self, from: &mut InlineFn) {
        self.clear();
        let vtable = std::mem::replace(&mut from.vtable, InlineFn::NOTHING);
        match vtable.words {
            0 => {}
            // Most closures capture one handle or nothing: they need no call of a copy function.
            1 => self.storage.0[0] = from.storage.0[0],
            words => self.storage.0[..words].copy_from_slice(&from.storage.0[..words]),
        }
        self.vtable = vtable;
    }

    /// Whether [`InlineFn::clear`] or a drop would run any code.
    #[inline]
    pub fn holds_something(&self) -> bool {
        self.vtable.needs_drop
    }

    const NOTHING: &'static VTable = table_of(&nothing);

    /// Whether the closure was given to [`InlineFn::helpable`].
    #[inline]
    pub fn is_helpable(&self) -> bool {
        self.vtable.helpable
    }

    /// Whether the captures are on the heap.
    pub fn is_boxed(&self) -> bool {
        self.vtable.boxed
    }

    /// The bytes of captures on the heap; 0 if they are stored inline.
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
    /// A function that does nothing.
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
