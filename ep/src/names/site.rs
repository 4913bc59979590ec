//! Where calls stand, for errors, traces and reports.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::{LazyLock, Mutex, PoisonError};

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
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Site {
    /// A line of Rust.
    Rust(&'static Location<'static>),
    /// A place in another text.
    Text(&'static TextSite),
}

/// A place in a text that is not Rust, made by [`Site::in_text`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TextSite {
    file: String,
    line: u32,
    column: u32,
    within: Option<Site>,
}

/// Every place in a text that was ever made, so that none is made twice.
static TEXTS: LazyLock<Mutex<HashSet<&'static TextSite>>> = LazyLock::new(Mutex::default);

thread_local! {
    /// The site that the thread has entered.
    static ENTERED: Cell<Option<Site>> = const { Cell::new(None) };
}

impl Site {
    /// The site that the thread has entered, or else the line of Rust that calls the function that calls this one, as with
    /// [`Location::caller`].
    #[track_caller]
    #[inline]
    pub fn caller() -> Site {
        match ENTERED.get() {
            None => Site::Rust(Location::caller()),
            Some(site) => site,
        }
    }

    /// A place in a text; line and column count from 1. `within` is the place of the call that led there, if the place alone does not
    /// say it, such as the call of the function that has the statement.
    ///
    /// The memory of a place, some 60 bytes and the name of the file, stays until the process ends. The same place has the same memory,
    /// so a text takes no more than it has statements, times the places that they are called from. Takes a lock for a short time.
    pub fn in_text(file: &str, line: u32, column: u32, within: Option<Site>) -> Site {
        let place = TextSite { file: file.to_owned(), line, column, within };
        let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        Site::Text(texts.get(&place).copied().unwrap_or_else(|| {
            let place: &'static TextSite = Box::leak(Box::new(place));
            texts.insert(place);
            place
        }))
    }

    /// Makes this the site of all calls of this thread, until the result is dropped. Then the thread has the site that it had before;
    /// scopes that are dropped in another order leave the site that the one dropped last had found.
    #[must_use = "the site is left when the scope is dropped"]
    pub fn enter(self) -> SiteScope {
        SiteScope { before: ENTERED.replace(Some(self)), of_the_thread: PhantomData }
    }

    /// The file, as the compiler or the maker of the site was given it.
    pub fn file(self) -> &'static str {
        match self {
            Site::Rust(location) => location.file(),
            Site::Text(place) => &place.file,
        }
    }

    /// The line, from 1.
    pub fn line(self) -> u32 {
        match self {
            Site::Rust(location) => location.line(),
            Site::Text(place) => place.line,
        }
    }

    /// The column, from 1.
    pub fn column(self) -> u32 {
        match self {
            Site::Rust(location) => location.column(),
            Site::Text(place) => place.column,
        }
    }

    /// The place of the call that led to this place in a text, if it was given.
    pub fn within(self) -> Option<Site> {
        match self {
            Site::Rust(_) => None,
            Site::Text(place) => place.within,
        }
    }
}

impl From<&'static Location<'static>> for Site {
    fn from(location: &'static Location<'static>) -> Site {
        Site::Rust(location)
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
    before: Option<Site>,
    of_the_thread: PhantomData<*const ()>,
}

impl Drop for SiteScope {
    fn drop(&mut self) {
        ENTERED.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_place_is_made_once() {
        let made = |column| Site::in_text("a.svm", 3, column, Some(Site::in_text("a.svm", 9, 1, None)));
        let (Site::Text(one), Site::Text(again), Site::Text(other)) = (made(1), made(1), made(2)) else {
            panic!("places in texts");
        };
        assert!(std::ptr::eq(one, again) && !std::ptr::eq(one, other));
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
    }
}
