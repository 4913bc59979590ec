//! Dependence nodes: how a task of an unordered stream starts its successors when it passes.
//!
//! A pending instruction of an unordered stream has a node. The node
//! * says whether the instruction has passed,
//! * counts its open dependences, and holds its task while there are some,
//! * lists its *successors*: the nodes that depend on it.
//!
//! Nodes are reused together with the node boxes of their instructions, and are never freed. Each use is a *generation*. The number
//! of an instruction is the id of its node plus a multiple of [`CAP`] that grows with each generation. So a number leads to its
//! node, and "has it passed?" is one comparison, even when the node is in a later generation.
//!
//! A successor links itself in by one of the edges of its own node, so linking allocates nothing: `list` heads a stack of edges.
//! Links are made under the submission lock only. The thread that passes the instruction closes the stack by one swap.
//!
//! No successor and no waiter is missed. A successor that links itself in, a waiter that asks to be woken, and the thread that
//! closes the list all change `list` by a read-modify-write, so they are ordered. Either the list is found closed, and the
//! instruction has passed, or the closing thread finds the link or the flag. `loom_tests` has the model, and variants that must
//! fail.
//!
//! Invariants:
//! * `passed` only grows, and is written before the list is closed.
//! * A node starts a new generation under the submission lock, after its node box has come back, and so after the end of the last
//!   one.
//! * An edge is read before the count of its owner is lowered: afterwards the owner may pass and start a new generation.

use std::sync::OnceLock;

use streamvm_stream::{Point, StreamId};

use crate::queue::atomic_slot::AtomicSlot;
use crate::queue::node::NodeBox;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::tasks::task::{Level, Task};

/// The longest list that may have an instruction on workers: a quarter of the nodes that there may be.
pub(crate) const MOST_ON_WORKERS: usize = 1 << 20;

/// The most nodes that there may be, and the distance between the numbers of one node.
pub(crate) const CAP: u64 = if cfg!(loom) { 16 } else { 1 << 22 };

/// Joins that may be pending at a time: few enough to leave a node for each pending instruction.
pub(crate) const JOINABLE: u64 = if cfg!(all(test, not(loom))) { 256 } else { CAP / 4 };
const _: () = assert!(JOINABLE + 2 * MOST_ON_WORKERS as u64 <= CAP || cfg!(loom), "all pending and one more list fit");

/// Nodes are allocated in chunks of this many.
const CHUNK: usize = if cfg!(loom) { 4 } else { 1024 };

/// How many dependences a node can count; see [`DependenceNodes::add_dependences`].
pub(crate) const EDGES: usize = 7;

/// The bits of an edge that hold its index in its node.
const PLACE: u32 = 3;

/// The first bit of the level in `unmet`; the count is below it.
const LEVEL: u32 = 28;

/// Flags of a list, beside the newest edge: the instruction has passed; a waiter wants to be woken.
const CLOSED: u32 = 1 << 31;
const WANTED: u32 = 1 << 30;

/// The id of a node, from 1.
pub(crate) type NodeId = u32;

/// One node, on a cache line of its own.
#[repr(align(64))]
struct DependenceNode {
    /// The highest number of this node that has passed.
    passed: AtomicU64,
    /// The number of the last generation that was published.
    number: AtomicU64,
    /// The stream of the current generation.
    stream: AtomicU32,
    /// The newest edge of a successor, and the flags.
    list: AtomicU32,
    /// The number of open dependences, and the level of the task.
    unmet: AtomicU32,
    /// The edges of this node, each with the edge that was linked in before it in the same list.
    next: [AtomicU32; EDGES],
    /// The task, while it has open dependences.
    task: AtomicSlot<Task>,
}

impl DependenceNode {
    fn new() -> DependenceNode {
        DependenceNode {
            passed: AtomicU64::new(0),
            number: AtomicU64::new(0),
            stream: AtomicU32::new(0),
            list: AtomicU32::new(CLOSED),
            unmet: AtomicU32::new(0),
            next: std::array::from_fn(|_| AtomicU32::new(0)),
            task: AtomicSlot::new(),
        }
    }

    fn satisfy(&self) -> Option<(StreamId, Level)> {
        let before = self.unmet.fetch_sub(1, Ordering::AcqRel);
        // The last dependence: no other thread lowers the count any more, and the node is not reused before its task has run.
        (before & ((1 << LEVEL) - 1) == 1)
            .then(|| (StreamId(self.stream.load(Ordering::Relaxed)), (before >> LEVEL) as Level))
    }
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<DependenceNode>() == 64, "one line");
const _: () = assert!(EDGES <= 1 << PLACE && CAP << PLACE <= WANTED as u64, "an edge fits beside the flags");

/// The id of the node that a number belongs to.
pub(crate) fn node_of(number: u64) -> NodeId {
    (number % CAP) as NodeId
}

/// All nodes of an engine.
pub(crate) struct DependenceNodes {
    chunks: Box<[OnceLock<Box<[DependenceNode]>>]>,
    /// The number of nodes. Written under the submission lock.
    count: AtomicU32,
    /// The number of pending joins.
    joins: AtomicU32,
}

impl DependenceNodes {
    /// No nodes yet.
    pub(crate) fn new() -> DependenceNodes {
        let chunks = (0..CAP as usize / CHUNK).map(|_| OnceLock::new()).collect();
        DependenceNodes { chunks, count: AtomicU32::new(0), joins: AtomicU32::new(0) }
    }

    /// Adds a node. The caller holds the submission lock.
    pub(crate) fn add(&self) -> NodeId {
        let id = self.count.load(Ordering::Relaxed) + 1;
        self.chunks[id as usize / CHUNK].get_or_init(|| (0..CHUNK).map(|_| DependenceNode::new()).collect());
        self.count.store(id, Ordering::Release);
        id
    }

    /// The number of nodes.
    pub(crate) fn made(&self) -> usize {
        self.count.load(Ordering::Relaxed) as usize
    }

    /// Whether the joins of an instruction with `needs` dependences may become pending, beside those that are.
    pub(crate) fn suffice(&self, needs: usize) -> bool {
        u64::from(self.joins.load(Ordering::Relaxed)) + needs.div_ceil(EDGES - 1) as u64 <= JOINABLE
    }

    /// Counts a join that becomes pending.
    pub(crate) fn join_begins(&self) {
        self.joins.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a join that has passed.
    pub(crate) fn join_ends(&self) {
        self.joins.fetch_sub(1, Ordering::Relaxed);
    }

    fn node(&self, id: NodeId) -> &DependenceNode {
        let chunk = self.chunks[id as usize / CHUNK].get();
        // Ids come from `add`.
        &chunk.unwrap_or_else(|| unreachable!("node {id} was never added"))[id as usize % CHUNK]
    }

    /// Whether the instruction with this number has passed.
    #[inline]
    pub(crate) fn has_passed(&self, number: u64) -> bool {
        self.node(node_of(number)).passed.load(Ordering::Acquire) >= number
    }

    /// Starts a new generation of a node, whose last one has passed, and returns the point of its instruction. The node has one
    /// open dependence on the submitter, which [`DependenceNodes::satisfy`] ends. [`DependenceNodes::publish`] adds it to the
    /// pending ones. The caller holds the submission lock.
    pub(crate) fn begin(&self, id: NodeId, stream: StreamId, level: Level) -> Point {
        let node = self.node(id);
        let number = match node.passed.load(Ordering::Relaxed) {
            0 => u64::from(id),
            before => before + CAP,
        };
        node.stream.store(stream.0, Ordering::Relaxed);
        node.unmet.store(u32::from(level) << LEVEL | 1, Ordering::Relaxed);
        // Release, after the end of the last generation: a thread that reads this value sees that the last generation has passed.
        node.list.store(0, Ordering::Release);
        Point::new(stream, number)
    }

    /// Adds an instruction to those that [`DependenceNodes::pending`] reports. A join is never published: only its successor waits
    /// for it.
    pub(crate) fn publish(&self, point: Point) {
        self.node(node_of(point.seq)).number.store(point.seq, Ordering::Release);
    }

    /// Adds one dependence to a node that has at least one open dependence.
    pub(crate) fn add_dependence(&self, id: NodeId) {
        self.node(id).unmet.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes node `id` depend on the instructions with these numbers, at most [`EDGES`]; those that have passed are skipped.
    ///
    /// The caller must ensure that
    /// * it holds the submission lock,
    /// * this is the only call in the generation, so that no edge of the node is linked in,
    /// * no other thread can satisfy or add a dependence of the node meanwhile: the caller has its task.
    pub(crate) fn add_dependences(&self, id: NodeId, numbers: &[u64]) {
        debug_assert!(numbers.len() <= EDGES, "an edge each");
        let node = self.node(id);
        // All are counted before one is linked in, because from then on another thread may satisfy it.
        let unmet = node.unmet.load(Ordering::Relaxed);
        node.unmet.store(unmet + numbers.len() as u32, Ordering::Relaxed);
        let missed =
            numbers.iter().enumerate().filter(|(place, number)| !self.link(node, id, *place, **number)).count();
        if missed > 0 {
            // The count stays above 0: the dependence that `begin` made is still open.
            node.unmet.fetch_sub(missed as u32, Ordering::Relaxed);
        }
    }

    /// Links a node in by its edge `place`, unless the instruction with this number has passed. Returns whether it was linked in.
    fn link(&self, node: &DependenceNode, id: NodeId, place: usize, number: u64) -> bool {
        let source = self.node(node_of(number));
        if source.passed.load(Ordering::Acquire) >= number {
            return false;
        }
        // The list belongs to the generation of `number`: a new one would start under the lock that the caller holds.
        let edge = id << PLACE | place as u32;
        let mut list = source.list.load(Ordering::Acquire);
        while list & CLOSED == 0 {
            node.next[place].store(list & !WANTED, Ordering::Relaxed);
            let linked = edge | (list & WANTED);
            match source.list.compare_exchange_weak(list, linked, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => list = now,
            }
        }
        false
    }

    /// Whether a node has an open dependence besides the one of [`DependenceNodes::begin`].
    pub(crate) fn has_open_dependences(&self, id: NodeId) -> bool {
        // Acquire: the caller may run the task without a call of `satisfy`, which would acquire the writes of dependences that have
        // passed.
        self.node(id).unmet.load(Ordering::Acquire) & ((1 << LEVEL) - 1) > 1
    }

    /// Stores the task of a node until it can run.
    pub(crate) fn put(&self, id: NodeId, task: NodeBox<Task>) {
        self.node(id).task.put(task);
    }

    /// Takes the task out.
    pub(crate) fn take(&self, id: NodeId) -> Option<NodeBox<Task>> {
        self.node(id).task.take()
    }

    /// Ends one dependence of a node. If it was the last, returns the stream and level of the task, which the caller must queue.
    #[must_use = "it can run now"]
    pub(crate) fn satisfy(&self, id: NodeId) -> Option<(StreamId, Level)> {
        self.node(id).satisfy()
    }

    /// Publishes that the instruction with this number has passed, and calls `ready` for each successor without open dependences.
    /// Returns whether a waiter asked to be woken. Only the thread that ran or skipped the instruction calls this.
    #[must_use = "sleepers must be woken"]
    pub(crate) fn pass(&self, number: u64, mut ready: impl FnMut(NodeId, StreamId, Level)) -> bool {
        let node = self.node(node_of(number));
        node.passed.store(number, Ordering::Release);
        let list = node.list.swap(CLOSED, Ordering::AcqRel);
        let mut edge = list & !(CLOSED | WANTED);
        while edge != 0 {
            let (id, place) = (edge >> PLACE, edge & ((1 << PLACE) - 1));
            let successor = self.node(id);
            edge = successor.next[place as usize].load(Ordering::Relaxed);
            if let Some((stream, level)) = successor.satisfy() {
                ready(id, stream, level);
            }
        }
        list & WANTED != 0
    }

    /// Asks the thread that passes this number to wake the waiters. Returns whether the number has passed already; then no thread
    /// will.
    #[must_use = "what has passed is not told again"]
    pub(crate) fn want(&self, number: u64) -> bool {
        let node = self.node(node_of(number));
        node.list.fetch_or(WANTED, Ordering::AcqRel);
        // If the node is in a new generation, the flag causes one needless wake-up.
        node.passed.load(Ordering::Acquire) >= number
    }

    /// The points of all instructions that were [published](DependenceNodes::publish) and have not passed.
    pub(crate) fn pending(&self) -> impl Iterator<Item = Point> + '_ {
        (1..=self.count.load(Ordering::Acquire)).map(|id| self.node(id)).filter_map(|node| {
            let number = node.number.load(Ordering::Acquire);
            let stream = StreamId(node.stream.load(Ordering::Relaxed));
            (node.passed.load(Ordering::Acquire) < number).then_some(Point::new(stream, number))
        })
    }
}

#[cfg(all(test, not(loom)))]
#[path = "dependence_node_tests.rs"]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    const POOL: StreamId = StreamId(0);

    /// A source passes while a successor links itself in by `needs`. The successor must be started exactly once.
    fn made_ready_once(needs: fn(&DependenceNodes, NodeId, u64)) {
        loom::model(move || {
            let nodes = Arc::new(DependenceNodes::new());
            let [source, successor] = std::array::from_fn(|_| nodes.begin(nodes.add(), POOL, 1));
            let runner = {
                let nodes = nodes.clone();
                thread::spawn(move || {
                    let mut told = 0;
                    let _ = nodes.pass(source.seq, |_, _, _| told += 1);
                    told
                })
            };
            let id = node_of(successor.seq);
            needs(&nodes, id, source.seq);
            let here = usize::from(nodes.satisfy(id).is_some());
            if here == 1 {
                assert!(nodes.has_passed(source.seq), "a ready successor sees that the source has passed");
            }
            let there = runner.join().expect("the runner does not panic");
            assert_eq!(here + there, 1, "told to run");
        });
    }

    #[test]
    fn loom_a_successor_is_made_ready_once() {
        made_ready_once(|nodes, id, number| {
            nodes.add_dependences(id, &[number]);
        });
    }

    #[test]
    #[should_panic(expected = "told to run")]
    fn loom_a_successor_that_links_itself_by_a_plain_store_is_missed() {
        made_ready_once(|nodes, id, number| {
            let (node, source) = (nodes.node(id), nodes.node(node_of(number)));
            if source.list.load(Ordering::SeqCst) & CLOSED == 0 {
                node.unmet.fetch_add(1, Ordering::SeqCst);
                source.list.store(id << PLACE, Ordering::SeqCst);
            }
        });
    }

    /// A submitter that finds no open dependence runs the task without another check, and must see what the source wrote.
    fn seen_without_open_dependences(has_open_dependences: fn(&DependenceNodes, NodeId) -> bool) {
        loom::model(move || {
            let nodes = Arc::new(DependenceNodes::new());
            let written = Arc::new(AtomicU32::new(0));
            let [source, successor] = std::array::from_fn(|_| nodes.begin(nodes.add(), POOL, 1));
            let id = node_of(successor.seq);
            nodes.add_dependences(id, &[source.seq]);
            let runner = {
                let (nodes, written) = (nodes.clone(), written.clone());
                thread::spawn(move || {
                    written.store(7, Ordering::Relaxed);
                    let _ = nodes.pass(source.seq, |_, _, _| ());
                })
            };
            if !has_open_dependences(&nodes, id) {
                assert_eq!(written.load(Ordering::Relaxed), 7, "what the source wrote");
            }
            runner.join().expect("the runner does not panic");
        });
    }

    #[test]
    fn loom_a_submitter_without_open_dependences_sees_the_writes_of_the_source() {
        seen_without_open_dependences(DependenceNodes::has_open_dependences);
    }

    #[test]
    #[should_panic(expected = "what the source wrote")]
    fn loom_a_check_that_does_not_acquire_is_a_race() {
        seen_without_open_dependences(|nodes, id| {
            nodes.node(id).unmet.load(Ordering::Relaxed) & ((1 << LEVEL) - 1) > 1
        });
    }

    /// A waiter asks by `want` for a number, while its instruction passes and its node starts a new generation.
    fn never_missed(want: fn(&DependenceNodes, u64) -> bool) {
        loom::model(move || {
            let nodes = Arc::new(DependenceNodes::new());
            let id = nodes.add();
            let first = nodes.begin(id, POOL, 1);
            let runner = {
                let nodes = nodes.clone();
                thread::spawn(move || {
                    let woken = nodes.pass(first.seq, |_, _, _| ());
                    // The node box has come back: the next generation starts after the end of this one.
                    nodes.begin(id, POOL, 1);
                    woken
                })
            };
            let sleeps = !want(&nodes, first.seq);
            let woken = runner.join().expect("the runner does not panic");
            assert!(!sleeps || woken, "it sleeps and was not woken");
        });
    }

    #[test]
    fn loom_a_waiter_is_always_woken() {
        never_missed(|nodes, number| nodes.want(number));
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_waiter_that_checks_before_it_asks_is_not_woken() {
        never_missed(|nodes, number| {
            let passed = nodes.has_passed(number);
            let _ = nodes.want(number);
            passed
        });
    }

    /// A waiter asks for a number while a successor is linked in by `link` and the instruction passes. The waiter must be woken and
    /// the successor started, in every order.
    fn never_missed_beside_a_link(link: fn(&DependenceNodes, NodeId, u64)) {
        loom::model(move || {
            let nodes = Arc::new(DependenceNodes::new());
            let [source, successor] = std::array::from_fn(|_| nodes.begin(nodes.add(), POOL, 1));
            let runner = {
                let nodes = nodes.clone();
                thread::spawn(move || {
                    let mut told = 0;
                    let woken = nodes.pass(source.seq, |_, _, _| told += 1);
                    (woken, told)
                })
            };
            let parker = {
                let nodes = nodes.clone();
                thread::spawn(move || !nodes.want(source.seq))
            };
            let id = node_of(successor.seq);
            link(&nodes, id, source.seq);
            let here = usize::from(nodes.satisfy(id).is_some());
            let sleeps = parker.join().expect("the sleeper does not panic");
            let (woken, there) = runner.join().expect("the runner does not panic");
            assert!(!sleeps || woken, "it sleeps and was not woken");
            assert_eq!(here + there, 1, "told to run");
        });
    }

    #[test]
    fn loom_a_waiter_is_always_woken_beside_a_link() {
        never_missed_beside_a_link(|nodes, id, number| nodes.add_dependences(id, &[number]));
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_link_that_drops_the_waiters_flag_loses_a_wake_up() {
        never_missed_beside_a_link(|nodes, id, number| {
            let (node, source) = (nodes.node(id), nodes.node(node_of(number)));
            node.unmet.fetch_add(1, Ordering::Relaxed);
            let mut list = source.list.load(Ordering::Acquire);
            while list & CLOSED == 0 {
                node.next[0].store(list & !WANTED, Ordering::Relaxed);
                match source.list.compare_exchange(list, id << PLACE, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return,
                    Err(now) => list = now,
                }
            }
            node.unmet.fetch_sub(1, Ordering::Relaxed);
        });
    }

    #[test]
    fn loom_the_last_of_two_sources_makes_ready_and_both_writes_are_seen() {
        loom::model(|| {
            let nodes = Arc::new(DependenceNodes::new());
            let written = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
            let points: [Point; 3] = std::array::from_fn(|_| nodes.begin(nodes.add(), POOL, 1));
            let id = node_of(points[2].seq);
            nodes.add_dependences(id, &[points[0].seq, points[1].seq]);
            assert_eq!(nodes.satisfy(id), None);
            let pass = |which: usize| {
                let (nodes, written, number) = (nodes.clone(), written.clone(), points[which].seq);
                move || {
                    written[which].store(7, Ordering::Relaxed);
                    let mut told = 0;
                    let _ = nodes.pass(number, |_, _, _| {
                        told += 1;
                        assert!(written.iter().all(|value| value.load(Ordering::Relaxed) == 7));
                    });
                    told
                }
            };
            let other = thread::spawn(pass(1));
            let told = pass(0)() + other.join().expect("the runner does not panic");
            assert_eq!(told, 1);
        });
    }
}
