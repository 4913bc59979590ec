//! Named scopes of a program, such as the layers of a model.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{LazyLock, Mutex, MutexGuard, TryLockError};

use hashbrown::{HashMap, HashSet};

/// A scope that threads [enter](crate::scope): a name, within the scope around it. It stays until the process ends.
#[derive(Copy, Clone)]
pub struct Scope(&'static Named);

struct Named {
    outer: Option<Scope>,
    name: &'static str,
}

/// The scopes that were ever made, each once.
#[derive(Default)]
struct Table {
    scopes: HashMap<(Option<Scope>, &'static str), Scope>,
    /// Each text once.
    texts: HashSet<&'static str>,
}

/// The most scopes that are told apart in a process, so that a program that numbers its rounds in names does not fill the memory.
const MOST: usize = 1 << 16;

/// The name of a scope past [`MOST`].
const OTHERS: &str = "(other scopes)";

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

/// How often a lock is tried that others hold for some hundred nanoseconds.
const TRIES: u32 = 10_000;

/// The lock, unless it stays taken: a forked child may find it so for ever, if a thread of its parent held it.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    for _ in 0..TRIES {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

impl Table {
    fn text(&mut self, name: &str) -> &'static str {
        match self.texts.get(name) {
            Some(text) => text,
            None if self.texts.len() >= MOST => OTHERS,
            None => {
                let text: &'static str = Box::leak(name.into());
                self.texts.insert(text);
                text
            }
        }
    }

    fn within(&mut self, outer: Option<Scope>, name: &'static str) -> Scope {
        if let Some(&scope) = self.scopes.get(&(outer, name)) {
            return scope;
        }
        if self.scopes.len() > MOST
            && let Some(outer) = outer
        {
            return outer;
        }
        let scope = Scope(Box::leak(Box::new(Named { outer, name })));
        self.scopes.insert((outer, name), scope);
        scope
    }
}

impl Scope {
    /// The name, as a text that stays.
    pub(crate) fn name_of(name: &str) -> &'static str {
        lock(&TABLE).map_or(OTHERS, |mut table| table.text(name))
    }

    /// The scope of a name within another, or at the outside; the other alone if the table cannot be had.
    pub(crate) fn within(outer: Option<Scope>, name: &'static str) -> Option<Scope> {
        lock(&TABLE).map(|mut table| table.within(outer, name)).or(outer)
    }
}

impl PartialEq for Scope {
    fn eq(&self, other: &Scope) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Scope {}

impl Hash for Scope {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::from_ref(self.0).hash(state);
    }
}

/// The names from the outermost to this one: `encoder > layer 3`.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scopes = std::iter::successors(Some(*self), |scope| scope.0.outer);
        let mut names: Vec<&str> = scopes.map(|scope| scope.0.name).collect();
        names.reverse();
        f.write_str(&names.join(" > "))
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_past_the_most_share_one_scope() {
        let mut table = Table::default();
        let mut scopes: Vec<Scope> = Vec::new();
        for number in 0..MOST + 10 {
            let name = table.text(&format!("round {number}"));
            scopes.push(table.within(None, name));
        }
        assert_ne!(scopes[0], scopes[MOST - 1]);
        assert!(scopes[MOST..].iter().all(|scope| *scope == scopes[MOST]));
        let (outer, name) = (scopes[3], table.text("round 1"));
        assert_eq!(table.within(Some(outer), name), outer, "a new scope is told by the one around it");
        assert_eq!(table.scopes.len(), MOST + 1);
    }

    /// A forked child may find the lock held by a thread that it does not have.
    #[test]
    fn a_lock_that_stays_taken_is_given_up() {
        let mutex = Mutex::new(1);
        let held = mutex.lock().unwrap();
        assert!(lock(&mutex).is_none());
        drop(held);
        assert_eq!(lock(&mutex).as_deref(), Some(&1));
    }
}
