//! Node boxes and node lists: how instructions are stored, and handed from thread to thread.
//!
//! A [`NodeBox`] owns one reusable node on the heap. A [`NodeList`] links node boxes through their nodes, so that a list of any
//! length moves in O(1) and moving it allocates nothing. Only the holder of a node box may access its node: the type is the proof.
//! A free node box keeps the capacity of the vectors inside it.
//!
//! Invariants, which only the files of this folder can break, because links and ends of lists are private to it:
//! * A node is owned by exactly one `NodeBox`, `NodeList`, `MpscQueue` or `AtomicSlot`.
//! * In a list of at least [`AHEAD`] nodes, each non-null pointer in `recent` is one of the last `AHEAD` nodes. This holds because
//!   a list removes nodes at its front only, `MpscQueue::take` fills only a fresh list, and `append` clears `recent`. In a shorter
//!   list, the pointers may be stale: `take_parts` does not clear them, because the list has no nodes afterwards, and the next
//!   [`AHEAD`] pushes overwrite each of them before [`NodeList::push`] follows one.
//! * `next` of the last node of a list is null. The batch fields are valid only while a node is the first of a batch in an MPSC
//!   queue.

#![allow(unsafe_code, reason = "nodes are owned through raw pointers, because a list needs two of each")]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

/// A linked node. It is aligned to a pair of cache lines, because processors prefetch the other line of a pair too, and two nodes
/// in flight should not share one (docs/adr/hot-path.md).
#[repr(C, align(128))]
pub(crate) struct Node<T> {
    pub(super) next: *mut Node<T>,
    /// The address of the node [`AHEAD`] places after this one, or 0. While the node is in an MPSC queue as a batch of one: the
    /// address of the batch pushed `AHEAD` batches before it. It is only ever prefetched, never dereferenced.
    pub(super) ahead: usize,
    pub(super) batch: Batch<T>,
    value: T,
}

#[cfg(all(test, loom))]
impl<T> Node<T> {
    pub(crate) fn value(&self) -> &T {
        &self.value
    }
}

/// What the first node of a batch says about the batch while it is in an MPSC queue.
///
/// `last` and `len` must not be adjacent. Adjacent, as in a list, they would be copied by one wide load, which cannot be forwarded
/// from the two narrow stores that have just been made: it would stall until both, and every store before them, have reached the
/// cache.
#[repr(C)]
pub(crate) struct Batch<T> {
    pub(super) last: *mut Node<T>,
    pub(super) next: *mut Node<T>,
    pub(super) len: usize,
}

/// The unique owner of one node that is linked to no other.
pub(crate) struct NodeBox<T> {
    node: NonNull<Node<T>>,
    owns: PhantomData<Box<Node<T>>>,
}

// SAFETY: a node box is the only owner of its node, like a `Box`.
unsafe impl<T: Send> Send for NodeBox<T> {}

impl<T> NodeBox<T> {
    /// A new node. The only function in this file that allocates.
    pub(crate) fn new(value: T) -> NodeBox<T> {
        let batch = Batch { next: ptr::null_mut(), last: ptr::null_mut(), len: 0 };
        let node = Box::leak(Box::new(Node { next: ptr::null_mut(), ahead: 0, batch, value }));
        NodeBox { node: NonNull::from(node), owns: PhantomData }
    }

    /// Gives up the node without dropping it.
    pub(super) fn into_raw(self) -> *mut Node<T> {
        let node = self.node.as_ptr();
        std::mem::forget(self);
        node
    }

    /// Takes over a node that was given up.
    ///
    /// # Safety
    /// * `node` came from [`NodeBox::into_raw`].
    /// * Nothing else owns it.
    pub(super) unsafe fn from_raw(node: *mut Node<T>) -> NodeBox<T> {
        // SAFETY: the caller passes what `into_raw` returned, which is not null.
        NodeBox { node: unsafe { NonNull::new_unchecked(node) }, owns: PhantomData }
    }
}

impl<T> Deref for NodeBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the node box owns the node, which lives until the node box is dropped.
        unsafe { &self.node.as_ref().value }
    }
}

impl<T> DerefMut for NodeBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the node box owns the node, and `self` is borrowed for as long as the reference lives.
        unsafe { &mut self.node.as_mut().value }
    }
}

impl<T> Drop for NodeBox<T> {
    fn drop(&mut self) {
        // SAFETY: the node came from a box that was leaked, and this node box is its only owner.
        drop(unsafe { Box::from_raw(self.node.as_ptr()) });
    }
}

/// An intrusive list of node boxes, first to last.
pub(crate) struct NodeList<T> {
    pub(super) first: *mut Node<T>,
    pub(super) last: *mut Node<T>,
    pub(super) len: usize,
    /// The nodes pushed last: push number `n` is at index `n % AHEAD`. Null before the first pushes, and after `append`.
    recent: [*mut Node<T>; AHEAD],
    pushes: usize,
    pub(super) owns: PhantomData<Box<Node<T>>>,
}

/// How many places ahead nodes are prefetched. Of 2, 4 and 8, none was faster than 4, and 8 fetches for longer than a short batch
/// lasts.
pub(crate) const AHEAD: usize = 4;

// SAFETY: a list is the only owner of its nodes, like a vector of boxes.
unsafe impl<T: Send> Send for NodeList<T> {}

impl<T> NodeList<T> {
    /// An empty list.
    pub(crate) const fn new() -> NodeList<T> {
        let (first, last, recent) = (ptr::null_mut(), ptr::null_mut(), [ptr::null_mut(); AHEAD]);
        NodeList { first, last, len: 0, recent, pushes: 0, owns: PhantomData }
    }

    /// The number of node boxes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether the list is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Adds a node box at the end.
    #[inline]
    pub(crate) fn push(&mut self, boxed: NodeBox<T>) {
        let node = boxed.into_raw();
        if self.last.is_null() {
            self.first = node;
        } else {
            // SAFETY: the list owns its last node.
            unsafe { (*self.last).next = node };
        }
        let recent = &mut self.recent[self.pushes % AHEAD];
        if self.len >= AHEAD && !recent.is_null() {
            // SAFETY: the node was pushed `AHEAD` pushes ago and the list has at least `AHEAD` nodes, so it is one of the last
            // `AHEAD`, which the list owns (second invariant of the module).
            unsafe { (**recent).ahead = node.addr() };
        }
        *recent = node;
        self.pushes = self.pushes.wrapping_add(1);
        self.last = node;
        self.len += 1;
    }

    /// Moves all node boxes of another list to the end of this one, in O(1).
    #[inline]
    pub(crate) fn append(&mut self, other: &mut NodeList<T>) {
        let (first, last, len) = other.take_parts();
        if first.is_null() {
            return;
        }
        if self.last.is_null() {
            self.first = first;
        } else {
            // SAFETY: the list owns its last node.
            unsafe { (*self.last).next = first };
        }
        self.last = last;
        self.len += len;
        self.recent = [ptr::null_mut(); AHEAD];
    }

    /// Takes the first node box, and prefetches [`LINES`] cache lines of the nodes after it: those that every instruction touches.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<NodeBox<T>> {
        self.pop_and_prefetch(LINES)
    }

    /// Takes the first node box, and prefetches `lines` cache lines, at least [`LINES`], of the next node and of the one [`AHEAD`]
    /// places after the taken one.
    #[inline(always)]
    pub(crate) fn pop_and_prefetch(&mut self, lines: usize) -> Option<NodeBox<T>> {
        let mut node = NonNull::new(self.first)?;
        // SAFETY: the list owns the node, so it is alive, and no other reference to it exists.
        let links = unsafe { node.as_mut() };
        self.first = std::mem::replace(&mut links.next, ptr::null_mut());
        let ahead = std::mem::replace(&mut links.ahead, 0);
        if self.first.is_null() {
            self.last = ptr::null_mut();
        }
        self.len -= 1;
        prefetch_node(self.first.addr(), lines);
        if ahead != 0 {
            prefetch_node(ahead, lines);
        }
        Some(NodeBox { node, owns: PhantomData })
    }

    /// The first value.
    pub(crate) fn front(&self) -> Option<&T> {
        // SAFETY: the pointer is null or a node that the list owns, and `self` is borrowed while the reference lives.
        unsafe { self.first.as_ref() }.map(|node| &node.value)
    }

    /// Whether the first node has the address of the node [`AHEAD`] places after it, to prefetch.
    pub(crate) fn knows_ahead(&self) -> bool {
        // SAFETY: as for `front`.
        unsafe { self.first.as_ref() }.is_some_and(|node| node.ahead != 0)
    }

    /// The values, first to last.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        // SAFETY: each pointer is null or a node that the list owns, and `self` is borrowed while the references live.
        let first = unsafe { self.first.as_ref() };
        // SAFETY: as above.
        std::iter::successors(first, |node| unsafe { node.next.as_ref() }).map(|node| &node.value)
    }

    /// The last value.
    pub(crate) fn back(&self) -> Option<&T> {
        // SAFETY: as for `front`.
        unsafe { self.last.as_ref() }.map(|node| &node.value)
    }

    /// The first value, mutably.
    pub(crate) fn front_mut(&mut self) -> Option<&mut T> {
        // SAFETY: the pointer is null or a node that the list owns, and `self` is borrowed mutably while the reference lives.
        unsafe { self.first.as_mut() }.map(|node| &mut node.value)
    }

    /// Gives up the nodes without dropping them: (first, last, length). The list is empty afterwards.
    #[inline]
    pub(super) fn take_parts(&mut self) -> (*mut Node<T>, *mut Node<T>, usize) {
        let parts = (self.first, self.last, self.len);
        self.first = ptr::null_mut();
        self.last = ptr::null_mut();
        self.len = 0;
        parts
    }
}

/// Prefetches cache lines at an address, for writing. Nodes travel between cores, so the first write to each line waits for the
/// other core; prefetched, that wait overlaps with the work on the nodes before.
#[inline]
pub(crate) fn prefetch(address: usize, lines: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..lines {
        let address = address.wrapping_add(line * 64);
        // SAFETY: prefetching any address is allowed and has no effect that the program can observe. Processors without this
        // instruction execute it as a no-op.
        unsafe { std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (address, lines);
}

/// Prefetches cache lines of a node: [`LINES`], [`LINES_WITH_READS`] or [`LINES_WITH_MORE`].
#[inline(always)]
fn prefetch_node(address: usize, lines: usize) {
    prefetch(address, LINES);
    if lines > LINES {
        prefetch(address.wrapping_add(LINES * 64), LINES_WITH_READS - LINES);
        if lines > LINES_WITH_READS {
            prefetch(address.wrapping_add(LINES_WITH_READS * 64), LINES_WITH_MORE - LINES_WITH_READS);
        }
    }
}

/// Cache lines of a node that every instruction touches: the links, and the fields that every task has (`task.rs` asserts it).
pub(crate) const LINES: usize = 2;

/// Cache lines that an instruction with several reads touches.
pub(crate) const LINES_WITH_READS: usize = 4;

/// Cache lines that an instruction with more touches: the former, its other reads, a kernel, and its memory operands.
pub(crate) const LINES_WITH_MORE: usize = 7;

/// Byte offset of a node's value, after its links.
pub(crate) const fn value_offset<T>() -> usize {
    std::mem::offset_of!(Node<T>, value)
}

impl<T> Default for NodeList<T> {
    fn default() -> Self {
        NodeList::new()
    }
}

impl<T> Drop for NodeList<T> {
    fn drop(&mut self) {
        while let Some(boxed) = self.pop() {
            drop(boxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn values(list: &mut NodeList<u32>) -> Vec<u32> {
        std::iter::from_fn(|| list.pop().map(|boxed| *boxed)).collect()
    }

    #[test]
    fn a_list_is_first_in_first_out() {
        let mut list = NodeList::new();
        (0..5).for_each(|i| list.push(NodeBox::new(i)));
        assert_eq!(list.len(), 5);
        assert_eq!(list.front(), Some(&0));
        assert_eq!(values(&mut list), [0, 1, 2, 3, 4]);
        assert!(list.is_empty());
        list.push(NodeBox::new(9));
        assert_eq!(values(&mut list), [9]);
    }

    /// Each node's address with its `ahead`, first to last.
    fn links(list: &NodeList<u32>) -> Vec<(usize, usize)> {
        let mut links = Vec::new();
        let mut node = list.first;
        // SAFETY: null or a node that the list owns; nothing modifies the list meanwhile.
        while let Some(known) = unsafe { node.as_ref() } {
            links.push((node.addr(), known.ahead));
            node = known.next;
        }
        links
    }

    /// Pushes, pops, hands over and takes back, drawn from a seed. A node that a list has pushed holds the address of the node
    /// pushed four later, if it was still in the list then, and no other. Under Miri, a write to a freed node fails, too.
    #[test]
    fn a_node_has_the_address_of_the_one_four_places_after_it() {
        let inbox = crate::queue::mpsc::MpscQueue::new();
        let (mut list, mut kept) = (NodeList::new(), NodeList::new());
        let (mut known, mut appended) = (0, 0);
        let mut drawn = 1_u64;
        for value in 0..if cfg!(miri) { 300 } else { 20_000 } {
            drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match drawn >> 59 {
                0 => inbox.push(&mut list),
                1 => list = inbox.take(),
                2 => kept = std::mem::take(&mut list),
                3 => drop(std::mem::take(&mut kept)),
                4 => {
                    let len = list.len() + kept.len();
                    appended += kept.len();
                    list.append(&mut kept);
                    assert_eq!((list.len(), kept.len(), kept.is_empty()), (len, 0, true));
                }
                5..=14 => drop(list.pop()),
                _ => list.push(NodeBox::new(value)),
            }
            let links = links(&list);
            assert_eq!(
                (links.len(), links.last().map(|(last, _)| *last)),
                (list.len(), Some(list.last.addr()).filter(|last| *last != 0))
            );
            for (place, (_, ahead)) in links.iter().enumerate().filter(|(_, (_, ahead))| *ahead != 0) {
                assert_eq!(links.get(place + AHEAD).map(|(address, _)| *address), Some(*ahead), "step {value}");
                known += 1;
            }
        }
        assert!(known > 0 && appended > 0, "{known} were known ahead, {appended} were appended");
    }

    /// Nodes pushed into an MPSC queue one by one get the same `ahead` as if they had been pushed as a list; across a batch they
    /// get none.
    #[test]
    fn nodes_pushed_one_by_one_have_addresses_as_if_pushed_as_a_list() {
        let inbox = crate::queue::mpsc::MpscQueue::new();
        let single = |value| {
            let mut one = NodeList::new();
            one.push(NodeBox::new(value));
            inbox.push(&mut one);
        };
        (0..10).for_each(single);
        let mut all = inbox.take();
        let known = |list: &NodeList<u32>| -> Vec<Option<usize>> {
            let links = links(list);
            let place = |ahead: usize| links.iter().position(|(address, _)| *address == ahead);
            links.iter().map(|(_, ahead)| place(*ahead)).collect()
        };
        let of_ten: Vec<Option<usize>> = (0..10).map(|place| (place < 6).then_some(place + 4)).collect();
        assert_eq!(known(&all), of_ten);
        assert_eq!(values(&mut all), (0..10).collect::<Vec<_>>());
        let mut batch = NodeList::new();
        (6..8).for_each(|value| batch.push(NodeBox::new(value)));
        (0..6).for_each(single);
        inbox.push(&mut batch);
        (8..14).for_each(single);
        let mut all = inbox.take();
        let ahead = |place| matches!(place, 0 | 1 | 8 | 9).then_some(place + 4);
        assert_eq!(known(&all), (0..14).map(ahead).collect::<Vec<_>>());
        assert_eq!(values(&mut all), (0..14).collect::<Vec<_>>());
    }

    #[test]
    fn dropping_a_list_drops_each_value_once() {
        let counted = Arc::new(());
        let mut list = NodeList::new();
        (0..10).for_each(|_| list.push(NodeBox::new(counted.clone())));
        drop(list.pop());
        assert_eq!(Arc::strong_count(&counted), 10);
        drop(list);
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
