//! Tasks: instructions as the engine runs them.
//!
//! A task is stored in a node box. The submitter fills it; from then on it belongs to the holder of the node box. A task shares
//! nothing with other threads: its operands are raw views, its waits are numbers, and the caller's code is stored inline. Its
//! vectors keep their capacity when the node box is reused.

use std::time::Instant;

use smallvec::SmallVec;
use streamvm_ep::{FnContext, FnError, InlineFn, Kernel, Params, Scalar, Site};
use streamvm_instructions::{Instruction, Version};
use streamvm_stream::{Point, StreamId};

use crate::queue::node::{LINES, LINES_WITH_MORE, LINES_WITH_READS, value_offset};
use crate::tasks::counters::Stamp;
use crate::tasks::spans::InstructionSpan;
use crate::tasks::view::Views;

/// Priority level of an instruction: 0 is the most urgent.
pub(crate) type Level = u8;

/// The device part of a task.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing to run: the task only takes part in the order.
    Nothing,
    /// Runs [`Task::function`] with the operands.
    Function,
    /// Runs [`Task::function`] with the driver's stream and the addresses of the operands.
    Raw,
    /// Runs [`Task::function`] with the stream, on which it executes a prepared segment of a program.
    Segment,
    /// Runs [`Computing::kernel`] with the operands: inputs, then the output.
    Kernel,
    /// Copies the first operand to the second.
    Copy,
    /// Fills the operand with [`Computing::value`].
    Fill,
    /// A record after the instruction of this number, which was submitted before. It is not an instruction of its own.
    Mark,
    /// Passes once all its dependences have. It replaces several dependences of an instruction that has more than a dependence node
    /// can count. It is not an instruction of its own.
    Join,
}

/// Fields of the actions that compute.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Computing {
    pub(crate) kernel: Option<Kernel>,
    pub(crate) params: Params,
    pub(crate) value: Option<Scalar>,
}

/// One instruction on its way from submission to completion.
///
/// A cache line that the submitter writes and the runner reads costs a transfer between cores, and such transfers are most of the
/// cost of a short instruction. So the fields that every instruction needs come first and fit, with the links of the node and a
/// function of one word, into two cache lines. Larger captures extend after them. The rest is accessed only where `has` or the
/// action says so.
#[repr(C)]
pub(crate) struct Task {
    /// Its stream and number.
    pub(crate) point: Point,
    /// Its position in program order, over all streams.
    pub(crate) order: u64,
    /// The caller's site.
    pub(crate) site: Site,
    /// The name of its operation, for errors, unless [`ColdFields::name`] is set.
    pub(crate) what: &'static str,
    /// Bytes that it keeps until it has passed: its new outputs and boxed captures.
    pub(crate) bytes: u64,
    /// The first read that did not fit [`Task::near_reads`], in one word ([`packed`]); 0 if there is none.
    first_read: u64,
    /// Its first reads, if they are points of its own stream: how many numbers before its own each is; 0 where there is none.
    near_reads: [u16; 2],
    /// Which of the fields after `function` are in use: [`OTHER_READS`], [`VIEWS`], [`COLD`].
    has: u8,
    pub(crate) action: Action,
    /// Its priority among the ready tasks of an unordered stream.
    pub(crate) level: Level,
    /// The caller's code. It is not called unless `action` says so.
    pub(crate) function: InlineFn,
    /// The remaining points that wrote its inputs, which did not fit `near_reads` and `first_read`.
    other_reads: SmallVec<[Point; 2]>,
    pub(crate) computing: Computing,
    /// Its memory operands.
    views: Views,
    cold: ColdFields,
}

/// [`Task::other_reads`] is in use.
const OTHER_READS: u8 = 1;
/// [`Task::views`] is in use.
const VIEWS: u8 = 2;
/// [`Task::cold`] is in use.
const COLD: u8 = 4;

const _: () = assert!(
    value_offset::<Task>() + std::mem::offset_of!(Task, function) + 2 * size_of::<usize>() <= LINES * 64,
    "the links of a node, the fields that every task has, and a function of one word fit the prefetched lines"
);
const _: () = assert!(
    value_offset::<Task>() + std::mem::offset_of!(Task, computing) <= LINES_WITH_READS * 64,
    "the reads of an instruction are in the lines that are prefetched for several reads"
);
const _: () = assert!(
    value_offset::<Task>() + std::mem::offset_of!(Task, views) + size_of::<Views>() <= LINES_WITH_MORE * 64,
    "the fields of a kernel are in the lines that are prefetched for it"
);

/// Fields that only some instructions use.
#[derive(Default)]
pub(crate) struct ColdFields {
    /// Points that the thread context waits for.
    pub(crate) device_waits: SmallVec<[Point; 2]>,
    /// Points that the scheduler waits for. The last is checked next.
    pub(crate) host_waits: SmallVec<[Point; 2]>,
    /// The device records an event after it.
    pub(crate) record: bool,
    /// A device wait by event failed: the remaining device waits are waited for by number.
    pub(crate) by_number: bool,
    /// Points that were waited for, kept only for a device that may be lost or for an observer. Those that the device waits for by
    /// event come first.
    pub(crate) waited: SmallVec<[Point; 2]>,
    /// How many points of `waited` the device waits for by event.
    pub(crate) by_event: usize,
    /// A name that is not a constant of the program.
    pub(crate) name: Option<Box<str>>,
    /// Set if the instruction runs even when an input has failed.
    pub(crate) clean_up: Option<CleanUp>,
    /// Counters of writes, which its success advances.
    pub(crate) versions: SmallVec<[Version; 1]>,
    /// When it was submitted and started. Used only in an engine that profiles or is traced.
    stamp: Option<Stamp>,
    /// In an engine that has spans.
    pub(crate) span: InstructionSpan,
}

/// How a clean-up treats the failures of its inputs.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum CleanUp {
    /// It covers all that it writes, so its outputs are healed.
    Heals,
    /// It keeps a part of a failed output, so its outputs inherit the failure.
    PassesOn,
}

impl ColdFields {
    /// Counts the success of the task in `version`, once.
    pub(crate) fn count(&mut self, version: &Version) {
        if !self.versions.iter().any(|other| other.is(version)) {
            self.versions.push(version.clone());
        }
    }

    /// Moves all waits to `waited`: they are over.
    pub(crate) fn all_waited(&mut self) {
        self.waited.extend(self.device_waits.drain(..));
        self.waited.extend(self.host_waits.drain(..));
    }
}

/// How many cache lines of its node box an instruction is expected to touch.
#[inline(always)]
pub(crate) fn lines_of(instruction: &Instruction) -> usize {
    if instruction.has_more() {
        LINES_WITH_MORE
    } else if instruction.use_count() > READS_AT_HAND {
        LINES_WITH_READS
    } else {
        LINES
    }
}

/// Uses of an instruction up to which its reads mostly fit the lines that every task has: three reads and one write.
const READS_AT_HAND: u32 = 4;

/// Bits of a number that [`packed`] keeps.
const SEQ_BITS: u32 = 48;

/// A point in one nonzero word, if it fits: any of the first 281,474,976,710,655 numbers (from 1) of a stream.
#[inline]
fn packed(point: Point) -> Option<u64> {
    // The topmost bit of a stream id marks unordered streams; the rotation moves it to the lowest bit.
    let stream = u64::from(point.stream.0.rotate_left(1));
    (point.seq < 1 << SEQ_BITS && stream < 1 << (64 - SEQ_BITS)).then_some(stream << SEQ_BITS | point.seq)
}

/// The point in a word made by [`packed`].
#[inline]
fn unpacked(word: u64) -> Point {
    Point::new(StreamId(((word >> SEQ_BITS) as u32).rotate_right(1)), word & ((1 << SEQ_BITS) - 1))
}

const NO_POINT: Point = Point { stream: StreamId(0), seq: 0 };

impl Task {
    /// A task that does nothing, to be filled.
    pub(crate) fn empty() -> Task {
        Task {
            point: NO_POINT,
            order: 0,
            site: Site::caller(),
            what: "",
            bytes: 0,
            first_read: 0,
            near_reads: [0; 2],
            has: 0,
            action: Action::Nothing,
            level: 0,
            function: InlineFn::default(),
            other_reads: SmallVec::new(),
            computing: Computing::default(),
            views: Views::default(),
            cold: ColdFields::default(),
        }
    }

    /// The cold fields, which are in use from now on.
    pub(crate) fn cold_mut(&mut self) -> &mut ColdFields {
        self.has |= COLD;
        &mut self.cold
    }

    /// The cold fields, if they are in use.
    pub(crate) fn cold(&mut self) -> Option<&mut ColdFields> {
        (self.has & COLD != 0).then_some(&mut self.cold)
    }

    /// The cold fields by shared reference, if they are in use.
    fn seen_cold(&self) -> Option<&ColdFields> {
        (self.has & COLD != 0).then_some(&self.cold)
    }

    /// The memory operands, which are in use from now on.
    pub(crate) fn views_mut(&mut self) -> &mut Views {
        self.has |= VIEWS;
        &mut self.views
    }

    /// The memory operands, if there are any.
    pub(crate) fn views(&self) -> Option<&Views> {
        (self.has & VIEWS != 0).then_some(&self.views)
    }

    /// Removes all reads.
    #[inline]
    pub(crate) fn forget_reads(&mut self) {
        (self.first_read, self.near_reads) = (0, [0; 2]);
    }

    /// Adds a point that wrote an input. The task must have its own number. The order of the calls is kept: if several inputs have
    /// failed, the first in the order of uses is the cause.
    #[inline]
    pub(crate) fn add_read(&mut self, point: Point) {
        if self.first_read == 0 && self.has & OTHER_READS == 0 {
            let distance = self.point.seq.wrapping_sub(point.seq);
            let is_near = point.stream == self.point.stream && (1..=u64::from(u16::MAX)).contains(&distance);
            if let Some(free) = self.near_reads.iter_mut().find(|near| is_near && **near == 0) {
                *free = distance as u16;
                return;
            }
            if let Some(read) = packed(point) {
                self.first_read = read;
                return;
            }
        }
        self.has |= OTHER_READS;
        self.other_reads.push(point);
    }

    /// The points that wrote its inputs, in the order in which they were added.
    pub(crate) fn reads(&self) -> impl Iterator<Item = Point> + '_ {
        let others: &[Point] = if self.has & OTHER_READS != 0 { &self.other_reads } else { &[] };
        let first = (self.first_read != 0).then(|| unpacked(self.first_read));
        let near = self.near_reads.iter().take_while(|distance| **distance != 0);
        let near = near.map(|distance| Point::new(self.point.stream, self.point.seq - u64::from(*distance)));
        near.chain(first).chain(others.iter().copied())
    }

    /// Exchanges what two tasks of one stream do: actions, functions, kernels and memory operands. Everything else stays, numbers and
    /// reads among it. Does nothing if one of them has cold fields, so that each still waits for and records what its work needs. For a
    /// planted mutant.
    #[cold]
    pub(crate) fn swap_work(&mut self, other: &mut Task) {
        let works = |task: &Task| {
            task.has & COLD == 0
                && matches!(task.action, Action::Kernel | Action::Copy | Action::Fill | Action::Function)
        };
        if !works(self) || !works(other) {
            return;
        }
        std::mem::swap(&mut self.action, &mut other.action);
        std::mem::swap(&mut self.function, &mut other.function);
        std::mem::swap(&mut self.computing, &mut other.computing);
        std::mem::swap(&mut self.views, &mut other.views);
        let views = (self.has ^ other.has) & VIEWS;
        (self.has, other.has) = (self.has ^ views, other.has ^ views);
    }

    /// The number shown to users, from 1: its number on its stream, or on an unordered stream its position among all submissions.
    pub(crate) fn number(&self) -> u64 {
        if self.point.stream.is_unordered() { self.order } else { self.point.seq }
    }

    /// The name of its operation.
    pub(crate) fn name(&self) -> &str {
        self.own_name().unwrap_or(self.what)
    }

    /// The name of its operation, if that is not a constant of the program.
    #[inline]
    pub(crate) fn own_name(&self) -> Option<&str> {
        self.seen_cold().and_then(|cold| cold.name.as_deref())
    }

    /// The points that were waited for, where they are kept.
    pub(crate) fn waited(&self) -> &[Point] {
        self.seen_cold().map_or(&[], |cold| &cold.waited)
    }

    /// Those of [`Task::waited`] that the engine saw pass, instead of the device waiting for an event.
    #[cfg_attr(not(feature = "sim"), allow(dead_code, reason = "only an observer asks"))]
    pub(crate) fn waited_by_number(&self) -> &[Point] {
        self.seen_cold().map_or(&[], |cold| &cold.waited[cold.by_event..])
    }

    /// Whether its remaining device waits are waited for by number.
    pub(crate) fn waits_by_number(&self) -> bool {
        self.seen_cold().is_some_and(|cold| cold.by_number)
    }

    /// Whether the device records an event after it.
    pub(crate) fn records(&self) -> bool {
        self.seen_cold().is_some_and(|cold| cold.record)
    }

    /// How it treats the failures of its inputs, if it runs in spite of them.
    pub(crate) fn clean_up(&self) -> Option<CleanUp> {
        self.seen_cold().and_then(|cold| cold.clean_up)
    }

    /// The counters that its success advances.
    pub(crate) fn versions(&self) -> &[Version] {
        self.seen_cold().map_or(&[], |cold| &cold.versions)
    }

    /// Notes when it was submitted. In an engine that profiles or is traced; a task that was submitted without a stamp is not counted.
    pub(crate) fn stamp(&mut self, submitted: Instant) {
        let runs = self.action != Action::Nothing;
        self.cold_mut().stamp = Some(Stamp { submitted, started: None, runs });
    }

    /// Notes when its action starts; a later start of the same task is not noted. In an engine that profiles or is traced.
    pub(crate) fn stamp_start(&mut self) {
        if let Some(stamp) = self.cold().and_then(|cold| cold.stamp.as_mut()) {
            stamp.started.get_or_insert_with(Instant::now);
        }
    }

    /// Takes its stamp out. In an engine that profiles or is traced.
    pub(crate) fn take_stamp(&mut self) -> Option<Stamp> {
        self.cold()?.stamp.take()
    }

    /// Replaces its function, which was called before, by `outcome`: the task ends with that when it runs again.
    pub(crate) fn resume(&mut self, outcome: impl FnOnce() -> Result<(), FnError> + Send + 'static) {
        self.function = InlineFn::new(move |_: &mut FnContext<'_>| outcome());
        self.action = Action::Function;
    }

    /// Whether a host wait is open.
    pub(crate) fn has_host_waits(&self) -> bool {
        self.seen_cold().is_some_and(|cold| !cold.host_waits.is_empty())
    }

    /// The point that the scheduler waits for next.
    pub(crate) fn next_host_wait(&self) -> Option<Point> {
        self.seen_cold().and_then(|cold| cold.host_waits.last().copied())
    }

    /// The first point that the thread context still waits for.
    pub(crate) fn first_device_wait(&self) -> Option<Point> {
        self.seen_cold().and_then(|cold| cold.device_waits.first().copied())
    }

    /// The points that are still waited for: host waits, beginning with the one that the scheduler checks next, then device waits.
    pub(crate) fn open_waits(&self) -> impl Iterator<Item = Point> + '_ {
        let (device, host): (&[Point], &[Point]) =
            self.seen_cold().map_or((&[], &[]), |cold| (&cold.device_waits, &cold.host_waits));
        host.iter().rev().chain(device).copied()
    }

    /// Whether [`Task::clear`] has nothing to drop. The function is checked as well, because a stream that did not call it may have
    /// left it there after the action was taken.
    #[inline]
    pub(crate) fn is_clear(&self) -> bool {
        self.has == 0 && self.action == Action::Nothing && !self.function.holds_something()
    }

    /// Drops what the task holds and keeps the capacity of its vectors. Drops of captures are user code and may panic.
    pub(crate) fn clear(&mut self) {
        let has = std::mem::take(&mut self.has);
        if has & COLD != 0 {
            let ColdFields { device_waits, host_waits, waited, versions, .. } = &mut self.cold;
            versions.clear();
            waited.clear();
            device_waits.clear();
            host_waits.clear();
            let cold = &mut self.cold;
            (cold.record, cold.by_number, cold.by_event, cold.name, cold.clean_up) = (false, false, 0, None, None);
            cold.span.end();
        }
        if has & VIEWS != 0 {
            self.views.clear();
        }
        if has & OTHER_READS != 0 {
            self.other_reads.clear();
        }
        self.action = Action::Nothing;
        // Last, so that the rest is cleared even if a drop panics.
        self.function.clear();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Reads of the own stream, near and far, more of them than fit; reads of other streams, ordered and unordered; and numbers
    /// that do not fit a word.
    #[test]
    fn the_points_that_wrote_its_inputs_are_kept_in_order() {
        let own = |seq| Point::new(StreamId(3), seq);
        let at = own(1 << 20);
        let points = [
            own((1 << 20) - 1),
            own((1 << 20) - 65_535),
            own((1 << 20) - 65_536),
            own(1),
            Point::new(StreamId(0), (1 << 20) - 1),
            Point::new(StreamId(1023), (1 << 48) - 1),
            Point::new(StreamId(1), 1 << 48),
            Point::new(StreamId::unordered(2), 7 << 40),
        ];
        let mut task = Task::empty();
        task.point = at;
        for first in 0..points.len() {
            for count in 0..=points.len() {
                task.forget_reads();
                let added: Vec<Point> = points.iter().copied().cycle().skip(first).take(count).collect();
                added.iter().for_each(|point| task.add_read(*point));
                let found: Vec<Point> = task.reads().collect();
                assert_eq!(found, added);
                task.clear();
            }
        }
        for other in [Point::new(StreamId(0), 9), Point::new(StreamId::unordered(7), 5 << 22)] {
            let few = [own((1 << 20) - 5), own((1 << 20) - 6), other];
            task.forget_reads();
            few.iter().for_each(|point| task.add_read(*point));
            assert!(task.reads().eq(few));
            assert_eq!(task.has & OTHER_READS, 0, "they fit the lines that every task has");
        }
    }

    /// A stream that did not call the function leaves it in the task; it must be dropped before the number is published.
    #[test]
    fn a_function_that_was_not_called_is_something_to_drop() {
        let held = Arc::new(());
        let captured = held.clone();
        let mut task = Task::empty();
        assert!(task.is_clear());
        task.function = InlineFn::new(move |_: &mut FnContext<'_>| {
            let _captured = &captured;
            Ok(())
        });
        assert!(task.action == Action::Nothing && !task.is_clear());
        task.clear();
        assert!(task.is_clear());
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
