//! Named scopes of a program, such as the layers of a model.

use std::fmt;
use std::sync::{LazyLock, Mutex, PoisonError};

use hashbrown::HashMap;

/// A scope that threads [enter](crate::scope): a name, within the scope around it. Equal scopes have equal names all the way.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct Scope(usize);

/// The scopes that were ever made. Their memory stays until the process ends.
#[derive(Default)]
struct Table {
    names: Vec<(Option<Scope>, &'static str)>,
    by_name: HashMap<(Option<Scope>, &'static str), Scope>,
    /// Each text once.
    texts: hashbrown::HashSet<&'static str>,
}

/// The most scopes that are told apart in a process, so that a program that numbers its rounds in names does not fill the memory.
const MOST: usize = 1 << 16;

/// The name of a scope past [`MOST`].
const OTHERS: &str = "(other scopes)";

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

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
        if let Some(&scope) = self.by_name.get(&(outer, name)) {
            return scope;
        }
        if self.names.len() > MOST
            && let Some(outer) = outer
        {
            return outer;
        }
        let scope = Scope(self.names.len());
        self.names.push((outer, name));
        self.by_name.insert((outer, name), scope);
        scope
    }
}

impl Scope {
    /// The name, as a text that stays.
    pub(crate) fn name_of(name: &str) -> &'static str {
        TABLE.lock().unwrap_or_else(PoisonError::into_inner).text(name)
    }

    /// The scope of a name within another, or at the outside.
    pub(crate) fn within(outer: Option<Scope>, name: &'static str) -> Scope {
        TABLE.lock().unwrap_or_else(PoisonError::into_inner).within(outer, name)
    }
}

/// The names from the outermost to this one: `encoder > layer 3`.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Vec::new();
        {
            let table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
            let mut next = Some(*self);
            while let Some((outer, name)) = next.and_then(|scope| table.names.get(scope.0)).copied() {
                names.push(name);
                next = outer;
            }
        }
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
        assert_eq!(table.names.len(), MOST + 1);
    }
}
