//! Lists of one kind, one for each unit or step, in one table.
//!
//! A `Vec<Vec<T>>` allocates memory for each list. A program has a list for each of a million steps, most of them of one or two items, so allocating
//! and freeing them takes longer than filling them, and reading them misses the caches. The table is known as compressed sparse rows.

use std::ops::Index;

/// Lists, numbered from 0 in the order in which they were added.
#[derive(Clone, Debug)]
pub(super) struct Lists<T> {
    /// For each list the end of its items; they begin where those of the list before it end.
    ends: Vec<usize>,
    items: Vec<T>,
}

impl<T> Lists<T> {
    /// No list yet, with room for so many.
    pub(super) fn with_capacity(lists: usize) -> Lists<T> {
        Lists { ends: Vec::with_capacity(lists), items: Vec::new() }
    }

    /// So many lists without items.
    pub(super) fn empty(lists: usize) -> Lists<T> {
        Lists { ends: vec![0; lists], items: Vec::new() }
    }

    /// Adds a list.
    pub(super) fn push(&mut self, items: impl IntoIterator<Item = T>) {
        self.items.extend(items);
        self.ends.push(self.items.len());
    }

    /// How many lists there are.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[T]> + Clone {
        (0..self.len()).map(|list| &self[list])
    }
}

impl<T> Index<usize> for Lists<T> {
    type Output = [T];

    fn index(&self, list: usize) -> &[T] {
        let begin = if list == 0 { 0 } else { self.ends[list - 1] };
        &self.items[begin..self.ends[list]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_the_items_that_it_was_added_with() {
        let mut lists = Lists::with_capacity(3);
        lists.push([1, 2]);
        lists.push([]);
        lists.push([3]);
        assert_eq!((lists.len(), &lists[0], &lists[1], &lists[2]), (3, &[1, 2][..], &[][..], &[3][..]));
        assert_eq!(lists.iter().map(<[i32]>::len).collect::<Vec<_>>(), [2, 0, 1]);
        assert!(Lists::<i32>::empty(2).iter().all(<[i32]>::is_empty));
    }
}
