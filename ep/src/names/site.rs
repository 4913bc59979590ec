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

use std::cell::{Cell, RefCell};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::{LazyLock, Mutex, PoisonError};

use hashbrown::{Equivalent, HashMap, HashSet};

use crate::names::scope::{Scope, lock};
use crate::names::scopes::Scopes;

/// The place that a call comes from: a line of Rust, or a place in another text, such as a script or a Python program; and the
/// [scope](scope) that its thread has entered, if any.
///
/// It is the line of the caller, unless the thread has [entered](Site::enter) another site: a framework or an interpreter on top of the
/// engine enters the place in the text of *its* user, and all that the engine says about these calls names that place.
///
/// ```
/// use streamvm_ep::{Site, scope};
///
/// let here = Site::caller();
/// assert!(here.file().ends_with(".rs"));
/// let of_the_user = Site::in_text("model.py", 12, 5, None).enter();
/// assert_eq!(Site::caller().to_string(), "model.py:12:5");
/// let layer = scope("layer 3");
/// assert_eq!(Site::caller().to_string(), "model.py:12:5 in layer 3");
/// drop((layer, of_the_user));
/// assert_eq!(Site::caller().file(), here.file());
/// ```
#[derive(Copy, Clone)]
pub struct Site(NonNull<()>);

// SAFETY: it stands for a shared reference to what lives as long as the process and is never written.
unsafe impl Send for Site {}
// SAFETY: as above.
unsafe impl Sync for Site {}

/// The bit that is set in the address of a [`Record`], and clear in that of a line of Rust.
const RECORD: usize = 1;

const _: () = assert!(align_of::<Location<'static>>() > RECORD && align_of::<Record>() > RECORD, "the bit is free");

/// The most records that sites in scopes may have in a process: a program that numbers its rounds in names of scopes would
/// fill the memory. Calls in scopes beyond that are told by their line alone.
const MOST_IN_SCOPES: usize = 1 << 18;

/// What a site stands for.
enum Place {
    Rust(&'static Location<'static>),
    Record(&'static Record),
}

/// A place in a text that is not Rust, or a line of Rust within a scope.
#[derive(PartialEq, Eq, Hash)]
struct Record {
    in_text: bool,
    file: Box<str>,
    line: u32,
    column: u32,
    within: Option<Site>,
    scope: Option<Scope>,
}

/// The fields of a [`Record`], by which it is found.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
struct Fields<'a> {
    in_text: bool,
    file: &'a str,
    line: u32,
    column: u32,
    within: Option<Site>,
    scope: Option<Scope>,
}

impl Record {
    fn fields(&self) -> Fields<'_> {
        let Record { in_text, ref file, line, column, within, scope } = *self;
        Fields { in_text, file, line, column, within, scope }
    }
}

impl Equivalent<&'static Record> for Fields<'_> {
    fn equivalent(&self, record: &&'static Record) -> bool {
        *self == record.fields()
    }
}

/// The records that were ever made, so that none is made twice.
#[derive(Default)]
struct Records {
    all: HashSet<&'static Record>,
    in_scopes: usize,
}

impl Records {
    fn site(&mut self, fields: Fields<'_>) -> Site {
        let record = self.all.get(&fields).copied().unwrap_or_else(|| {
            let Fields { in_text, file, line, column, within, scope } = fields;
            let record: &'static Record =
                Box::leak(Box::new(Record { in_text, file: file.into(), line, column, within, scope }));
            self.in_scopes += usize::from(scope.is_some());
            self.all.insert(record);
            record
        });
        Site(NonNull::from(record).cast().map_addr(|address| address | RECORD))
    }

    /// The site of these fields, which have a scope; `None` past [`MOST_IN_SCOPES`].
    fn in_scope(&mut self, fields: Fields<'_>) -> Option<Site> {
        let is_new = || !self.all.contains(&fields);
        if self.in_scopes >= MOST_IN_SCOPES && is_new() { None } else { Some(self.site(fields)) }
    }
}

static RECORDS: LazyLock<Mutex<Records>> = LazyLock::new(Mutex::default);

/// What the calls of a thread take beside their line.
#[derive(Copy, Clone)]
enum Entered {
    Site(Site),
    Scope(&'static str),
}

thread_local! {
    /// What calls read: nothing, or what the open scopes come to.
    static CURRENT: Cell<Current> = const { Cell::new(Current::Nothing) };
    static SCOPES: Scopes<Entered> = const { Scopes::new() };
    /// The sites of the lines of Rust that the thread has called in scopes, by the address of the line.
    static LINES: RefCell<HashMap<(usize, Scope), Site>> = RefCell::default();
}

/// What the open scopes of a thread come to.
#[derive(Copy, Clone)]
enum Current {
    Nothing,
    /// All calls have this site.
    Site(Site),
    /// Calls have their own line, in this scope.
    Scope(Scope),
}

impl Site {
    /// The site that the thread has entered, or else the line of Rust that calls the function that calls this one, as with
    /// [`Location::caller`], in the scope that the thread has entered.
    #[track_caller]
    #[inline]
    pub fn caller() -> Site {
        let location = Location::caller();
        match CURRENT.get() {
            Current::Nothing => location.into(),
            Current::Site(site) => site,
            Current::Scope(scope) => in_scope(location, scope),
        }
    }

    /// A place in a text; line and column count from 1. `within` is the place of the call that led there, if the place alone does not
    /// say it, such as the call of the function that has the statement.
    ///
    /// The memory of a place stays until the process ends. The same place has the same memory. Give
    /// `within` only where there are few ways to a place: each sequence of calls that leads there, as in a recursion, makes a place of its own,
    /// and programs that are recorded at different places are different programs. Takes a lock for a short time.
    pub fn in_text(file: &str, line: u32, column: u32, within: Option<Site>) -> Site {
        let mut records = RECORDS.lock().unwrap_or_else(PoisonError::into_inner);
        records.site(Fields { in_text: true, file, line, column, within, scope: None })
    }

    fn place(self) -> Place {
        let pointer = self.0.as_ptr().cast_const();
        if pointer.addr() & RECORD == 0 {
            // SAFETY: without the bit, the pointer was made from a `&'static Location`, which nobody writes.
            Place::Rust(unsafe { &*pointer.cast() })
        } else {
            // SAFETY: with the bit, the pointer was made from a `&'static Record`, which nobody writes.
            Place::Record(unsafe { &*pointer.map_addr(|address| address & !RECORD).cast() })
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
        matches!(self.place(), Place::Record(record) if record.in_text)
    }

    /// Makes this the site of all calls of this thread, until the result is dropped. Scopes nest, and may be dropped in any order: of those that
    /// are left, the one that began last counts.
    ///
    /// A function that a caller submits has the site of its call. What it calls itself has the lines of Rust in it, except in
    /// `Mode::Inline`, where it runs within the scope of its caller.
    #[must_use = "the site is left when the scope is dropped"]
    pub fn enter(self) -> SiteScope {
        SiteScope::begin(Entered::Site(self))
    }

    /// The file, as the compiler or the maker of the site was given it.
    pub fn file(self) -> &'static str {
        match self.place() {
            Place::Rust(location) => location.file(),
            Place::Record(record) => &record.file,
        }
    }

    /// The line, from 1.
    pub fn line(self) -> u32 {
        match self.place() {
            Place::Rust(location) => location.line(),
            Place::Record(record) => record.line,
        }
    }

    /// The column, from 1.
    pub fn column(self) -> u32 {
        match self.place() {
            Place::Rust(location) => location.column(),
            Place::Record(record) => record.column,
        }
    }

    /// The place of the call that led to this place in a text, if it was given.
    pub fn within(self) -> Option<Site> {
        match self.place() {
            Place::Rust(_) => None,
            Place::Record(record) => record.within,
        }
    }

    /// The scope in which the call was made.
    pub fn scope(self) -> Option<Scope> {
        match self.place() {
            Place::Rust(_) => None,
            Place::Record(record) => record.scope,
        }
    }
}

/// Names what this thread does until the result is dropped, such as a layer of a model: errors, profiles, traces, stall reports and the steps of
/// programs name it beside the line of each call. Scopes nest, `encoder > layer 3`, and may be dropped in any order.
///
/// A call within it looks its line up in a table of the thread. The names stay in memory until the process ends: name parts of the
/// program, not its rounds. Once 262,144 pairs of a line and a scope were seen, further pairs are told by their line alone.
///
/// ```
/// # use streamvm_ep::{Site, scope};
/// for layer in 0..2 {
///     let _scope = scope(&format!("layer {layer}"));
///     assert!(Site::caller().to_string().ends_with(&format!(" in layer {layer}")));
/// }
/// ```
#[must_use = "the scope ends when the result is dropped"]
pub fn scope(name: &str) -> SiteScope {
    SiteScope::begin(Entered::Scope(Scope::name_of(name)))
}

/// The site of a line of Rust in a scope.
#[inline(never)]
fn in_scope(location: &'static Location<'static>, scope: Scope) -> Site {
    let key = (std::ptr::from_ref(location).addr(), scope);
    let known = LINES.try_with(|lines| lines.borrow().get(&key).copied());
    if let Ok(Some(site)) = known {
        return site;
    }
    let (file, line, column) = (location.file(), location.line(), location.column());
    let fields = Fields { in_text: false, file, line, column, within: None, scope: Some(scope) };
    let site = lock(&RECORDS).and_then(|mut records| records.in_scope(fields)).unwrap_or_else(|| location.into());
    // A thread that ends has no cache left.
    let _ = LINES.try_with(|lines| lines.borrow_mut().insert(key, site));
    site
}

impl From<&'static Location<'static>> for Site {
    fn from(location: &'static Location<'static>) -> Site {
        Site(NonNull::from(location).cast())
    }
}

impl PartialEq for Site {
    fn eq(&self, other: &Site) -> bool {
        // A record is made once, so its address is its identity.
        self.0 == other.0
            || matches!((self.place(), other.place()), (Place::Rust(one), Place::Rust(other)) if one == other)
    }
}

impl Eq for Site {}

impl Hash for Site {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.place() {
            Place::Rust(location) => location.hash(state),
            Place::Record(record) => std::ptr::from_ref(record).hash(state),
        }
    }
}

/// As [`Display`](fmt::Display).
impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// `file:line:column`, and ` in encoder > layer 3` if the call was made in scopes.
impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file(), self.line(), self.column())?;
        self.scope().map_or(Ok(()), |scope| write!(f, " in {scope}"))
    }
}

/// The time in which a thread has entered a [`Site`] or a [`scope`]. It stays with its thread.
#[derive(Debug)]
pub struct SiteScope {
    number: u64,
    of_the_thread: PhantomData<*const ()>,
}

impl SiteScope {
    fn begin(entered: Entered) -> SiteScope {
        let number = SCOPES.with(|scopes| {
            let number = scopes.begin(entered);
            CURRENT.set(current(scopes));
            number
        });
        SiteScope { number, of_the_thread: PhantomData }
    }
}

/// What open scopes come to: the site that was entered last, in all named scopes.
fn current(scopes: &Scopes<Entered>) -> Current {
    let (site, scope) = scopes.fold((None, None), |(site, outer), entered| match entered {
        Entered::Site(site) => (Some(site), outer),
        Entered::Scope(name) => (site, Scope::within(outer, name)),
    });
    match (site, scope) {
        (None, None) => Current::Nothing,
        (None, Some(scope)) => Current::Scope(scope),
        (Some(site), None) => Current::Site(site),
        (Some(site), Some(_)) => {
            let (file, line, column) = (site.file(), site.line(), site.column());
            let (in_text, within) = (site.is_in_text(), site.within());
            let fields = Fields { in_text, file, line, column, within, scope };
            Current::Site(lock(&RECORDS).and_then(|mut records| records.in_scope(fields)).unwrap_or(site))
        }
    }
}

impl Drop for SiteScope {
    fn drop(&mut self) {
        // A scope that is dropped with the thread may find that the other variables are gone.
        let left = SCOPES.try_with(|scopes| {
            scopes.end(self.number);
            current(scopes)
        });
        CURRENT.set(left.unwrap_or(Current::Nothing));
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

    #[test]
    fn named_scopes_nest_around_lines_and_places() {
        let line = || Site::caller().to_string();
        let here = line();
        let outer = scope("encoder");
        let mut layer = scope("layer 0");
        assert_eq!(line(), format!("{here} in encoder > layer 0"));
        let before = Site::caller();
        // The new scope begins before the old one is dropped, and is not within it.
        drop(std::mem::replace(&mut layer, scope("layer 1")));
        assert!(line().ends_with(" in encoder > layer 1"), "{}", line());
        assert_ne!(before.scope(), Site::caller().scope());
        let text = Site::in_text("model.py", 3, 1, None).enter();
        assert_eq!(line(), "model.py:3:1 in encoder > layer 1");
        assert!(Site::caller().is_in_text());
        drop(outer);
        assert_eq!(line(), "model.py:3:1 in layer 1");
        drop((text, layer));
        assert_eq!(line(), here);
    }

    #[test]
    fn a_line_in_a_scope_is_made_once_and_is_another_site_than_the_line() {
        let line = || Site::caller();
        let plain = line();
        let of_a_thread = |name: &str| {
            let _scope = scope(name);
            line()
        };
        let (one, same, other) = (of_a_thread("a"), of_a_thread("a"), of_a_thread("b"));
        assert_eq!(one.into_raw(), same.into_raw());
        assert!(one != other && one != plain && !one.is_in_text());
        assert_eq!((one.file(), one.line()), (plain.file(), plain.line()));
        let elsewhere = std::thread::scope(|threads| threads.spawn(|| of_a_thread("a")).join().unwrap());
        assert_eq!(one, elsewhere);
        assert_eq!(one.scope().map(|scope| scope.to_string()).as_deref(), Some("a"));
    }
}
