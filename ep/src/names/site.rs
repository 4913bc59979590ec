//! Where calls stand, for errors, traces and reports.
//!
//! How a failed kernel finds its line: a call takes its [`Site`] from the caller ([`Site::caller`]), and the instruction and its task keep it. The thread that
//! catches a failure puts the site into it (`failure` in `vm/src/execute/run.rs`). Where the device reports the failure later, it names the stream and the
//! number of the instruction, by which the task is found (`vm/src/execute/completion.rs`). Each step of a program keeps the site at which it was recorded. The
//! command enters the place of each statement of a script, so sites are lines of the script there.

#![allow(
    unsafe_code,
    reason = "a shared reference in a pointer with a tag: every instruction and every step has a site"
)]

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::names::scopes::Scopes;

/// The place that a call comes from: a line of Rust, or a place in another text, such as a script or a Python program.
///
/// It is the line of the caller, unless the thread has [entered](Site::enter) another site: a framework or an interpreter on top of the
/// engine enters the place in the text of *its* user, and all that the engine says about these calls names that place.
///
/// ```
/// use streamvm_ep::Site;
///
/// let here = Site::caller();
/// assert!(here.file().ends_with(".rs"));
/// let scope = Site::in_text("model.py", 12, 5, None).enter();
/// assert_eq!(Site::caller().to_string(), "model.py:12:5");
/// drop(scope);
/// assert_eq!(Site::caller().file(), here.file());
/// ```
#[derive(Copy, Clone)]
pub struct Site(NonNull<()>);

// SAFETY: it stands for a shared reference to what lives as long as the process and is never written.
unsafe impl Send for Site {}
// SAFETY: as above.
unsafe impl Sync for Site {}

/// The bit that is set in the address of a place in a text, and clear in that of a line of Rust.
const TEXT: usize = 1;

const _: () = assert!(align_of::<Location<'static>>() > TEXT && align_of::<TextSite>() > TEXT, "the bit is free");

/// What a site stands for.
enum Place {
    Rust(&'static Location<'static>),
    Text(&'static TextSite),
}

/// A place in a text that is not Rust.
struct TextSite {
    file: String,
    line: u32,
    column: u32,
    within: Option<Site>,
}

/// The places in a text that were ever made, by line, column and the call that led there, so that none is made twice.
type Texts = HashMap<(u32, u32, Option<Site>), Vec<&'static TextSite>>;

static TEXTS: LazyLock<Mutex<Texts>> = LazyLock::new(Mutex::default);

thread_local! {
    /// The site of the scope that began last: what calls read.
    static ENTERED: Cell<Option<Site>> = const { Cell::new(None) };
    static SCOPES: Scopes<Site> = const { Scopes::new() };
}

impl Site {
    /// The site that the thread has entered, or else the line of Rust that calls the function that calls this one, as with
    /// [`Location::caller`].
    #[track_caller]
    #[inline]
    pub fn caller() -> Site {
        match ENTERED.get() {
            None => Location::caller().into(),
            Some(site) => site,
        }
    }

    /// A place in a text; line and column count from 1. `within` is the place of the call that led there, if the place alone does not
    /// say it, such as the call of the function that has the statement.
    ///
    /// The memory of a place, some 100 bytes and the name of the file, stays until the process ends. The same place has the same memory. Give
    /// `within` only where there are few ways to a place: each sequence of calls that leads there, as in a recursion, makes a place of its own,
    /// and programs that are recorded at different places are different programs. Takes a lock for a short time.
    pub fn in_text(file: &str, line: u32, column: u32, within: Option<Site>) -> Site {
        let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        let places = texts.entry((line, column, within)).or_default();
        let place = places.iter().copied().find(|place| place.file == file).unwrap_or_else(|| {
            let place: &'static TextSite =
                Box::leak(Box::new(TextSite { file: file.to_owned(), line, column, within }));
            places.push(place);
            place
        });
        Site(NonNull::from(place).cast().map_addr(|address| address | TEXT))
    }

    fn place(self) -> Place {
        let pointer = self.0.as_ptr().cast_const();
        if pointer.addr() & TEXT == 0 {
            // SAFETY: without the bit, the pointer was made from a `&'static Location`, which nobody writes.
            Place::Rust(unsafe { &*pointer.cast() })
        } else {
            // SAFETY: with the bit, the pointer was made from a `&'static TextSite`, which nobody writes.
            Place::Text(unsafe { &*pointer.map_addr(|address| address & !TEXT).cast() })
        }
    }

    /// The site as a pointer that must not be followed, for an atomic.
    pub fn into_raw(self) -> NonNull<()> {
        self.0
    }

    /// The site that [`into_raw`](Site::into_raw) gave.
    ///
    /// # Safety
    /// The pointer was given by [`into_raw`](Site::into_raw).
    pub unsafe fn from_raw(pointer: NonNull<()>) -> Site {
        Site(pointer)
    }

    /// Whether it is a place in a text that is not Rust.
    pub fn is_in_text(self) -> bool {
        matches!(self.place(), Place::Text(_))
    }

    /// Makes this the site of all calls of this thread, until the result is dropped. Scopes nest, and may be dropped in any order: of those that
    /// are left, the one that began last counts.
    ///
    /// A function that a caller submits has the site of its call. What it calls itself has the lines of Rust in it, except in
    /// `Mode::Inline`, where it runs within the scope of its caller.
    #[must_use = "the site is left when the scope is dropped"]
    pub fn enter(self) -> SiteScope {
        ENTERED.set(Some(self));
        SiteScope { number: SCOPES.with(|scopes| scopes.begin(self)), of_the_thread: PhantomData }
    }

    /// The file, as the compiler or the maker of the site was given it.
    pub fn file(self) -> &'static str {
        match self.place() {
            Place::Rust(location) => location.file(),
            Place::Text(place) => &place.file,
        }
    }

    /// The line, from 1.
    pub fn line(self) -> u32 {
        match self.place() {
            Place::Rust(location) => location.line(),
            Place::Text(place) => place.line,
        }
    }

    /// The column, from 1.
    pub fn column(self) -> u32 {
        match self.place() {
            Place::Rust(location) => location.column(),
            Place::Text(place) => place.column,
        }
    }

    /// The place of the call that led to this place in a text, if it was given.
    pub fn within(self) -> Option<Site> {
        match self.place() {
            Place::Rust(_) => None,
            Place::Text(place) => place.within,
        }
    }
}

impl From<&'static Location<'static>> for Site {
    fn from(location: &'static Location<'static>) -> Site {
        Site(NonNull::from(location).cast())
    }
}

impl PartialEq for Site {
    fn eq(&self, other: &Site) -> bool {
        // A place in a text is made once, so its address is its identity.
        self.0 == other.0
            || matches!((self.place(), other.place()), (Place::Rust(one), Place::Rust(other)) if one == other)
    }
}

impl Eq for Site {}

impl Hash for Site {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.place() {
            Place::Rust(location) => location.hash(state),
            Place::Text(place) => std::ptr::from_ref(place).hash(state),
        }
    }
}

/// As [`Display`](fmt::Display).
impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// `file:line:column`.
impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file(), self.line(), self.column())
    }
}

/// The time in which a thread has entered a [`Site`]. It stays with its thread.
#[derive(Debug)]
pub struct SiteScope {
    number: u64,
    of_the_thread: PhantomData<*const ()>,
}

impl Drop for SiteScope {
    fn drop(&mut self) {
        // A scope that is dropped with the thread may find that the other variables are gone.
        let before = SCOPES.try_with(|scopes| {
            scopes.end(self.number);
            scopes.last()
        });
        ENTERED.set(before.ok().flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_place_is_made_once() {
        let made = |column| Site::in_text("a.svm", 3, column, Some(Site::in_text("a.svm", 9, 1, None)));
        assert_eq!(made(1).into_raw(), made(1).into_raw());
        assert!(made(1) != made(2) && made(1).is_in_text() && !Site::caller().is_in_text());
        let mut deep = made(1);
        // Neither time nor stack grows with the length of the way.
        for _ in 0..if cfg!(miri) { 100 } else { 100_000 } {
            deep = Site::in_text("a.svm", 3, 1, Some(deep));
        }
        assert_ne!(deep, made(1));
        assert_eq!(made(2).within().map(|site| site.to_string()).as_deref(), Some("a.svm:9:1"));
    }

    #[test]
    fn scopes_nest_and_belong_to_their_thread() {
        let line = |line| Site::in_text("nested.svm", line, 1, None);
        let outer = line(1).enter();
        {
            let _inner = line(2).enter();
            assert_eq!(Site::caller(), line(2));
            let elsewhere = std::thread::spawn(|| Site::caller().file()).join().unwrap();
            assert!(elsewhere.ends_with(".rs"), "{elsewhere}");
        }
        assert_eq!(Site::caller(), line(1));
        drop(outer);
        assert_eq!((Site::caller().file(), Site::caller().line()), (file!(), line!()));
        // The new scope begins before the old one is dropped.
        let mut scope = Some(line(1).enter());
        assert_eq!(Site::caller(), line(1));
        drop(scope.replace(line(2).enter()));
        assert_eq!(Site::caller(), line(2));
        drop(scope);
        assert!(!Site::caller().is_in_text());
    }
}
