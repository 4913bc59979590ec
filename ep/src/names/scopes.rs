//! Scopes of one thread, each of which sets a value until it ends.

use std::cell::RefCell;

/// The open scopes of a thread with their values, in the order in which they began. They may end in any order: in
/// `scope = other.enter()` the new scope begins before the old one ends.
#[derive(Debug)]
pub struct Scopes<T>(RefCell<Vec<(u64, T)>>);

impl<T> Default for Scopes<T> {
    fn default() -> Scopes<T> {
        Scopes::new()
    }
}

impl<T> Scopes<T> {
    /// No scope is open.
    pub const fn new() -> Scopes<T> {
        Scopes(RefCell::new(Vec::new()))
    }
}

impl<T: Copy> Scopes<T> {
    /// Begins a scope. The number ends it.
    pub fn begin(&self, value: T) -> u64 {
        let mut open = self.0.borrow_mut();
        // Numbers grow along the open scopes, so no two of them have one.
        let number = open.last().map_or(0, |(last, _)| last + 1);
        open.push((number, value));
        number
    }

    /// Ends a scope.
    pub fn end(&self, number: u64) {
        let mut open = self.0.borrow_mut();
        if let Some(place) = open.iter().rposition(|(other, _)| *other == number) {
            open.remove(place);
        }
    }

    /// The value of the open scope that began last.
    pub fn last(&self) -> Option<T> {
        self.0.borrow().last().map(|(_, value)| *value)
    }

    /// The values of all open scopes, folded.
    pub fn fold<R>(&self, first: R, f: impl FnMut(R, T) -> R) -> R {
        self.0.borrow().iter().map(|(_, value)| *value).fold(first, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_end_in_any_order() {
        let scopes = Scopes::new();
        let numbers = ["a", "b", "c"].map(|value| scopes.begin(value));
        scopes.end(numbers[0]);
        assert_eq!((scopes.last(), scopes.fold(0, |count, _| count + 1)), (Some("c"), 2));
        scopes.end(numbers[2]);
        let again = scopes.begin("d");
        scopes.end(numbers[1]);
        assert_eq!(scopes.last(), Some("d"));
        scopes.end(again);
        assert_eq!(scopes.last(), None);
    }
}
