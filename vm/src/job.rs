//! Jobs: instructions as the engine runs them.
//!
//! A job lives in a slot. It is filled by the submitter and belongs from then on to whoever holds the slot. What it works on
//! are raw views, waits are numbers, a caller's code is stored inline: nothing in a job is shared with another thread. The
//! vectors keep their capacity from life to life.

use std::panic::Location;
use std::time::Instant;

use smallvec::SmallVec;
use streamvm_ep::{FnContext, FnError, InlineFn, Kernel, Params, Scalar};
use streamvm_instructions::{Instruction, Version};
use streamvm_stream::{Point, StreamId};

use crate::cells::Level;
use crate::slot::{LINES, LINES_WITH_MORE, LINES_WITH_READS, fetch, value_offset};
use crate::tally::Stamp;
use crate::view::Views;

/// The device part of a job.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Task {
    /// Order alone.
    Nothing,
    /// [`Job::function`] over the operands.
    Function,
    /// [`Job::function`] over the driver's stream and the addresses of the operands.
    Raw,
    /// [`Computing::kernel`] over the operands: inputs, then the output.
    Kernel,
    /// The first operand into the second.
    Copy,
    /// [`Computing::value`] into the operand.
    Fill,
    /// A record behind the instruction of this number, which was submitted before: no instruction of its own.
    Mark,
    /// Passes once all it needs has: one need for another instruction, which has more of them than a cell counts. No
    /// instruction of its own.
    Join,
}

/// What only tasks of a device have.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Computing {
    pub(crate) kernel: Option<Kernel>,
    pub(crate) params: Params,
    pub(crate) value: Option<Scalar>,
}

/// One instruction on its way from submission to completion.
///
/// What every instruction needs comes first and fits, with the slot's links and a function of one word, two cache lines;
/// larger captures reach behind them, and the rest is touched only where a flag or the task says so. A line that the
/// submitter writes and the runner reads costs a transfer between cores, and those are most of the cost of a short
/// instruction.
#[repr(C)]
pub(crate) struct Job {
    /// Its number.
    pub(crate) point: Point,
    /// Its place in program order, over all streams.
    pub(crate) order: u64,
    /// Where the caller issued it.
    pub(crate) site: &'static Location<'static>,
    /// What runs, for errors, unless [`More::name`] says it.
    pub(crate) what: &'static str,
    /// Bytes that it keeps until it has passed: its new outputs and boxed captures.
    pub(crate) bytes: u64,
    /// The point that wrote what it reads behind [`Job::near_reads`], in one word ([`packed`]); 0 if there is none.
    first_read: u64,
    /// How far before it on its own stream the points lie that wrote what it reads first; 0 where there is none.
    near_reads: [u16; 2],
    /// What lies behind the function and is looked at: [`OTHER_READS`], [`VIEWS`], [`MORE`].
    has: u8,
    pub(crate) task: Task,
    /// How urgent it is among what can run on an unordered stream.
    pub(crate) level: Level,
    /// A caller's code; without a job's task being that, it does nothing.
    pub(crate) function: InlineFn,
    /// The points that wrote the other things that it reads, which have no place in the lines that every job has.
    other_reads: SmallVec<[Point; 2]>,
    pub(crate) computing: Computing,
    /// What it is shown of memory.
    views: Views,
    more: More,
}

/// It reads things that were written by [`Job::other_reads`].
const OTHER_READS: u8 = 1;
/// It is shown memory.
const VIEWS: u8 = 2;
/// It has what only some instructions have.
const MORE: u8 = 4;

const _: () = assert!(
    value_offset::<Job>() + std::mem::offset_of!(Job, function) + 2 * size_of::<usize>() <= LINES * 64,
    "the links of a slot, the fields that every job has, and a function of one word fit the lines that are fetched"
);
const _: () = assert!(
    value_offset::<Job>() + std::mem::offset_of!(Job, computing) <= LINES_WITH_READS * 64,
    "the points that wrote what an instruction reads lie in the lines that are fetched for one that reads several things"
);
const _: () = assert!(
    value_offset::<Job>() + std::mem::offset_of!(Job, views) + size_of::<Views>() <= LINES_WITH_MORE * 64,
    "what a kernel needs lies in the lines that are fetched for it"
);

/// Lines of a slot from that of what it computes to that where what it is shown of memory ends.
const LINES_OF_VIEWS: usize = (value_offset::<Job>() + std::mem::offset_of!(Job, views) + size_of::<Views>())
    .div_ceil(64)
    - (value_offset::<Job>() + std::mem::offset_of!(Job, computing)) / 64;

/// What only some instructions have.
#[derive(Default)]
pub(crate) struct More {
    /// Points that the thread context waits for.
    pub(crate) device_waits: SmallVec<[Point; 2]>,
    /// Points that the scheduler waits for.
    pub(crate) host_waits: SmallVec<[Point; 2]>,
    /// The device records behind it.
    pub(crate) record: bool,
    /// A device wait failed: what is left of them is waited for by number.
    pub(crate) by_number: bool,
    /// Points that were waited for, where somebody still asks: a device that may be lost, a monitor. Those that the
    /// device waits for by event come first.
    pub(crate) waited: SmallVec<[Point; 2]>,
    /// How many of them it waits for by event.
    pub(crate) by_event: usize,
    /// A name that is not a constant of the program.
    pub(crate) name: Option<Box<str>>,
    /// It runs also when what it reads has failed.
    pub(crate) clean_up: Option<CleanUp>,
    /// What counts its success.
    pub(crate) versions: SmallVec<[Version; 1]>,
    /// When it was submitted and begun, where somebody asks: only then looked at.
    stamp: Option<Stamp>,
}

/// What a clean-up makes of the failures of what it reads.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum CleanUp {
    /// All that it writes is whole again.
    Heals,
    /// It keeps a part of something, so all that it writes has failed still.
    PassesOn,
}

impl More {
    /// Has the success of the job counted in `version`, once.
    pub(crate) fn count(&mut self, version: &Version) {
        if !self.versions.iter().any(|other| other.is(version)) {
            self.versions.push(version.clone());
        }
    }

    /// Notes that all waits are met.
    pub(crate) fn all_waited(&mut self) {
        self.waited.extend(self.device_waits.drain(..));
        self.waited.extend(self.host_waits.drain(..));
    }
}

/// How many lines of its slot an instruction is expected to touch.
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

/// Uses of an instruction of which there is room for what wrote them in the lines that every job has, mostly: all but one, which
/// is written.
const READS_AT_HAND: u32 = 4;

/// Bits of a number that [`packed`] keeps.
const SEQ_BITS: u32 = 48;

/// A point in one word that is not 0, if it fits: any of the first 281,474,976,710,655 of a stream.
#[inline]
fn packed(point: Point) -> Option<u64> {
    // The topmost bit of a stream's number, which says that it is unordered, goes round to the lowest.
    let stream = u64::from(point.stream.0.rotate_left(1));
    (point.seq < 1 << SEQ_BITS && stream < 1 << (64 - SEQ_BITS)).then_some(stream << SEQ_BITS | point.seq)
}

/// The point in a word of [`packed`].
#[inline]
fn unpacked(word: u64) -> Point {
    Point::new(StreamId(((word >> SEQ_BITS) as u32).rotate_right(1)), word & ((1 << SEQ_BITS) - 1))
}

const NO_POINT: Point = Point { stream: StreamId(0), seq: 0 };

impl Job {
    /// A job that does nothing, to be filled.
    pub(crate) fn empty() -> Job {
        Job {
            point: NO_POINT,
            order: 0,
            site: Location::caller(),
            what: "",
            bytes: 0,
            first_read: 0,
            near_reads: [0; 2],
            has: 0,
            task: Task::Nothing,
            level: 0,
            function: InlineFn::default(),
            other_reads: SmallVec::new(),
            computing: Computing::default(),
            views: Views::default(),
            more: More::default(),
        }
    }

    /// What only some instructions have; from now on looked at.
    pub(crate) fn more(&mut self) -> &mut More {
        self.has |= MORE;
        &mut self.more
    }

    /// What only some instructions have, if this one does.
    pub(crate) fn has_more(&mut self) -> Option<&mut More> {
        (self.has & MORE != 0).then_some(&mut self.more)
    }

    /// What only some instructions have, if this one does, to look at.
    fn seen_more(&self) -> Option<&More> {
        (self.has & MORE != 0).then_some(&self.more)
    }

    /// What it is shown of memory; from now on looked at.
    pub(crate) fn views_mut(&mut self) -> &mut Views {
        self.has |= VIEWS;
        &mut self.views
    }

    /// Asks for the lines of what it computes and is shown of memory, if it is: they are not among those that are fetched with every
    /// slot. For who runs something else before. Measured on 2 cores, ns, medians of 31 runs in turns, without / with it: eager additions
    /// 401 / 366, a chain of functions in lists 72 / 71.
    #[inline]
    pub(crate) fn fetch_views(&self) {
        if self.has & VIEWS != 0 {
            fetch((&raw const self.computing).addr(), LINES_OF_VIEWS);
        }
    }

    /// What it is shown of memory, if it is.
    pub(crate) fn views(&self) -> Option<&Views> {
        (self.has & VIEWS != 0).then_some(&self.views)
    }

    /// Reads nothing, until [`Job::add_read`].
    #[inline]
    pub(crate) fn forget_reads(&mut self) {
        (self.first_read, self.near_reads) = (0, [0; 2]);
    }

    /// Notes a point that wrote something that it reads, once it has its own number. Each goes behind those before it: of several that
    /// failed, the first in the order of uses is the one that counts.
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

    /// The points that wrote what it reads, in the order in which they were noted.
    pub(crate) fn reads(&self) -> impl Iterator<Item = Point> + '_ {
        let others: &[Point] = if self.has & OTHER_READS != 0 { &self.other_reads } else { &[] };
        let first = (self.first_read != 0).then(|| unpacked(self.first_read));
        let near = self.near_reads.iter().take_while(|distance| **distance != 0);
        let near = near.map(|distance| Point::new(self.point.stream, self.point.seq - u64::from(*distance)));
        near.chain(first).chain(others.iter().copied())
    }

    /// Its number for people, from 1: on its stream, or on workers, which have no order, among all that was submitted.
    pub(crate) fn number(&self) -> u64 {
        if self.point.stream.is_unordered() { self.order } else { self.point.seq }
    }

    /// What runs.
    pub(crate) fn name(&self) -> &str {
        self.own_name().unwrap_or(self.what)
    }

    /// What runs, if that is no constant of the program.
    #[inline]
    pub(crate) fn own_name(&self) -> Option<&str> {
        self.seen_more().and_then(|more| more.name.as_deref())
    }

    /// The points that were waited for, where they are kept.
    pub(crate) fn waited(&self) -> &[Point] {
        self.seen_more().map_or(&[], |more| &more.waited)
    }

    /// The points among them that were seen to have passed.
    pub(crate) fn waited_by_number(&self) -> &[Point] {
        self.seen_more().map_or(&[], |more| &more.waited[more.by_event..])
    }

    /// Whether what is left of its device waits is waited for by number.
    pub(crate) fn waits_by_number(&self) -> bool {
        self.seen_more().is_some_and(|more| more.by_number)
    }

    /// Whether the device records behind it.
    pub(crate) fn records(&self) -> bool {
        self.seen_more().is_some_and(|more| more.record)
    }

    /// What it makes of failures of what it reads, if it runs all the same.
    pub(crate) fn clean_up(&self) -> Option<CleanUp> {
        self.seen_more().and_then(|more| more.clean_up)
    }

    /// What counts its success.
    pub(crate) fn versions(&self) -> &[Version] {
        self.seen_more().map_or(&[], |more| &more.versions)
    }

    /// Notes when it was submitted. In an engine that profiles: what is submitted without a stamp has none there.
    pub(crate) fn stamp(&mut self, submitted: Instant) {
        self.more().stamp = Some(Stamp { submitted, started: None });
    }

    /// Notes that its task begins, or begins again. In an engine that profiles.
    pub(crate) fn stamp_start(&mut self) {
        if let Some(stamp) = self.has_more().and_then(|more| more.stamp.as_mut()) {
            stamp.started.get_or_insert_with(Instant::now);
        }
    }

    /// When it was submitted and begun, told once. In an engine that profiles.
    pub(crate) fn take_stamp(&mut self) -> Option<Stamp> {
        self.has_more()?.stamp.take()
    }

    /// Has it answer what is known by now, when it runs once more: its function was called before.
    pub(crate) fn resume(&mut self, outcome: impl FnOnce() -> Result<(), FnError> + Send + 'static) {
        self.function = InlineFn::new(move |_: &mut FnContext<'_>| outcome());
        self.task = Task::Function;
    }

    /// Whether some host wait is open.
    pub(crate) fn has_host_waits(&self) -> bool {
        self.seen_more().is_some_and(|more| !more.host_waits.is_empty())
    }

    /// The point that the scheduler waits for next.
    pub(crate) fn next_host_wait(&self) -> Option<Point> {
        self.seen_more().and_then(|more| more.host_waits.last().copied())
    }

    /// The first point that the thread context still waits for.
    pub(crate) fn first_device_wait(&self) -> Option<Point> {
        self.seen_more().and_then(|more| more.device_waits.first().copied())
    }

    /// The points that whoever has the job still waits for, the next that the scheduler looks at first.
    pub(crate) fn open_waits(&self) -> impl Iterator<Item = Point> + '_ {
        let (device, host): (&[Point], &[Point]) =
            self.seen_more().map_or((&[], &[]), |more| (&more.device_waits, &more.host_waits));
        host.iter().rev().chain(device).copied()
    }

    /// Whether there is nothing for [`Job::clear`] to drop. A stream that called nothing may have left the function
    /// there without the task.
    #[inline]
    pub(crate) fn is_clear(&self) -> bool {
        self.has == 0 && self.task == Task::Nothing && !self.function.holds_something()
    }

    /// Drops what the job holds and keeps the capacity. User code (the captures' drops) may run, and panic.
    pub(crate) fn clear(&mut self) {
        let has = std::mem::take(&mut self.has);
        if has & MORE != 0 {
            let More { device_waits, host_waits, waited, versions, .. } = &mut self.more;
            versions.clear();
            waited.clear();
            device_waits.clear();
            host_waits.clear();
            let more = &mut self.more;
            (more.record, more.by_number, more.by_event, more.name, more.clean_up) = (false, false, 0, None, None);
        }
        if has & VIEWS != 0 {
            self.views.clear();
        }
        if has & OTHER_READS != 0 {
            self.other_reads.clear();
        }
        self.task = Task::Nothing;
        // Last: whatever a capture's drop does, the rest is clean.
        self.function.clear();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Near and far ones of its own stream, more of them than there is room for, those of other streams, ordered or not, and numbers that
    /// do not fit a word.
    #[test]
    fn what_wrote_the_things_that_it_reads_is_kept_in_their_order() {
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
        let mut job = Job::empty();
        job.point = at;
        for first in 0..points.len() {
            for count in 0..=points.len() {
                job.forget_reads();
                let added: Vec<Point> = points.iter().copied().cycle().skip(first).take(count).collect();
                added.iter().for_each(|point| job.add_read(*point));
                let found: Vec<Point> = job.reads().collect();
                assert_eq!(found, added);
                job.clear();
            }
        }
        for other in [Point::new(StreamId(0), 9), Point::new(StreamId::unordered(7), 5 << 22)] {
            let few = [own((1 << 20) - 5), own((1 << 20) - 6), other];
            job.forget_reads();
            few.iter().for_each(|point| job.add_read(*point));
            assert!(job.reads().eq(few));
            assert_eq!(job.has & OTHER_READS, 0, "they lie in the lines that every job has");
        }
    }

    /// Whatever a stream says of a call that it did not make: what it left is dropped before the number is published.
    #[test]
    fn a_function_that_was_not_called_is_something_to_drop() {
        let held = Arc::new(());
        let captured = held.clone();
        let mut job = Job::empty();
        assert!(job.is_clear());
        job.function = InlineFn::new(move |_: &mut FnContext<'_>| {
            let _captured = &captured;
            Ok(())
        });
        assert!(job.task == Task::Nothing && !job.is_clear());
        job.clear();
        assert!(job.is_clear());
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
