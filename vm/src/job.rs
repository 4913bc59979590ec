//! Jobs: instructions as the engine runs them.
//!
//! A job lives in a slot. It is filled by the submitter and belongs from then on to whoever holds the slot. Operands are
//! raw views, waits are numbers, a caller's code is stored inline: nothing in a job is shared with another thread. The
//! vectors keep their capacity from life to life.

use std::panic::Location;
use std::time::Instant;

use smallvec::SmallVec;
use streamvm_ep::{self as ep, CallError, FnContext, InlineFn, Kernel, KernelCall, Operand, Params, RawCall, Scalar};
use streamvm_instructions::Version;
use streamvm_stream::{Point, StreamId, Work};

use crate::cells::Level;
use crate::slot::{LINES, LINES_WITH_MORE, value_offset};
use crate::tally::Stamp;

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
    /// The point that wrote the first thing that it reads, in two parts, for what fits between them; number 0 if it reads
    /// nothing that was written.
    first_read: StreamId,
    has_other_reads: bool,
    has_more: bool,
    pub(crate) task: Task,
    /// How urgent it is among what can run on an unordered stream.
    pub(crate) level: Level,
    first_read_seq: u64,
    /// A caller's code; without a job's task being that, it does nothing.
    pub(crate) function: InlineFn,
    /// The points that wrote the other things that it reads; looked at only if there are some.
    other_reads: SmallVec<[Point; 2]>,
    pub(crate) computing: Computing,
    more: More,
}

const _: () = assert!(
    value_offset::<Job>() + std::mem::offset_of!(Job, function) + 2 * size_of::<usize>() <= LINES * 64,
    "the links of a slot, the fields that every job has, and a function of one word fit the lines that are fetched"
);
const _: () = assert!(
    value_offset::<Job>() + std::mem::offset_of!(Job, more) + size_of::<Operands>() <= LINES_WITH_MORE * 64,
    "what a kernel needs lies in the lines that are fetched for it"
);

/// What only some instructions have; what most of those have comes first.
#[derive(Default)]
#[repr(C)]
pub(crate) struct More {
    pub(crate) operands: Operands,
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

/// Operands in places that stay from life to life: each is described in place, and only as far as it has axes.
#[derive(Default)]
pub(crate) struct Operands {
    places: Vec<Operand>,
    len: usize,
}

impl Operands {
    /// The place of one more.
    #[inline]
    pub(crate) fn more(&mut self) -> &mut Operand {
        if self.len == self.places.len() {
            self.places.push(Operand::blank());
        }
        self.len += 1;
        &mut self.places[self.len - 1]
    }

    fn as_mut_slice(&mut self) -> &mut [Operand] {
        &mut self.places[..self.len]
    }

    fn clear(&mut self) {
        self.len = 0;
    }
}

impl More {
    /// Notes that all waits are met.
    pub(crate) fn all_waited(&mut self) {
        self.waited.extend(self.device_waits.drain(..));
        self.waited.extend(self.host_waits.drain(..));
    }
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
            first_read: NO_POINT.stream,
            has_other_reads: false,
            has_more: false,
            task: Task::Nothing,
            level: 0,
            first_read_seq: NO_POINT.seq,
            function: InlineFn::default(),
            other_reads: SmallVec::new(),
            computing: Computing::default(),
            more: More::default(),
        }
    }

    /// What not every instruction has; from now on looked at.
    pub(crate) fn more(&mut self) -> &mut More {
        self.has_more = true;
        &mut self.more
    }

    /// What not every instruction has, if this one does.
    pub(crate) fn has_more(&mut self) -> Option<&mut More> {
        self.has_more.then_some(&mut self.more)
    }

    /// Whether it has nothing but what every instruction has, whatever its captures.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        !self.has_more && !self.has_other_reads && self.task != Task::Kernel
    }

    /// Reads nothing, until [`Job::add_read`].
    #[inline]
    pub(crate) fn forget_reads(&mut self) {
        self.first_read_seq = NO_POINT.seq;
    }

    /// Notes a point that wrote something that it reads.
    #[inline]
    pub(crate) fn add_read(&mut self, point: Point) {
        if self.first_read_seq == NO_POINT.seq {
            (self.first_read, self.first_read_seq) = (point.stream, point.seq);
        } else {
            self.has_other_reads = true;
            self.other_reads.push(point);
        }
    }

    /// The points that wrote what it reads.
    pub(crate) fn reads(&self) -> impl Iterator<Item = Point> + '_ {
        let others: &[Point] = if self.has_other_reads { &self.other_reads } else { &[] };
        let first = Point::new(self.first_read, self.first_read_seq);
        (first.seq > 0).then_some(first).into_iter().chain(others.iter().copied())
    }

    /// What runs.
    pub(crate) fn name(&self) -> &str {
        let name = if self.has_more { self.more.name.as_deref() } else { None };
        name.unwrap_or(self.what)
    }

    /// The points that were waited for, where they are kept.
    pub(crate) fn waited(&self) -> &[Point] {
        if self.has_more { &self.more.waited } else { &[] }
    }

    /// The points among them that were seen to have passed.
    pub(crate) fn waited_by_number(&self) -> &[Point] {
        if self.has_more { &self.more.waited[self.more.by_event..] } else { &[] }
    }

    /// Whether what is left of its device waits is waited for by number.
    pub(crate) fn waits_by_number(&self) -> bool {
        self.has_more && self.more.by_number
    }

    /// Whether the device records behind it.
    pub(crate) fn records(&self) -> bool {
        self.has_more && self.more.record
    }

    /// What it makes of failures of what it reads, if it runs all the same.
    pub(crate) fn clean_up(&self) -> Option<CleanUp> {
        if self.has_more { self.more.clean_up } else { None }
    }

    /// What counts its success.
    pub(crate) fn versions(&self) -> &[Version] {
        if self.has_more { &self.more.versions } else { &[] }
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
    pub(crate) fn resume(&mut self, outcome: impl FnOnce() -> Result<(), ep::FnError> + Send + 'static) {
        self.function = InlineFn::new(move |_: &mut FnContext<'_>| outcome());
        self.task = Task::Function;
    }

    /// Whether some host wait is open.
    pub(crate) fn has_host_waits(&self) -> bool {
        self.has_more && !self.more.host_waits.is_empty()
    }

    /// The point that the scheduler waits for next.
    pub(crate) fn next_host_wait(&self) -> Option<Point> {
        if self.has_more { self.more.host_waits.last().copied() } else { None }
    }

    /// The first point that the thread context still waits for.
    pub(crate) fn first_device_wait(&self) -> Option<Point> {
        if self.has_more { self.more.device_waits.first().copied() } else { None }
    }

    /// The points that whoever has the job still waits for, the next that the scheduler looks at first.
    pub(crate) fn open_waits(&self) -> impl Iterator<Item = Point> + '_ {
        let (device, host): (&[Point], &[Point]) =
            if self.has_more { (&self.more.device_waits, &self.more.host_waits) } else { (&[], &[]) };
        host.iter().rev().chain(device).copied()
    }

    /// Whether there is nothing for [`Job::clear`] to drop.
    #[inline]
    pub(crate) fn is_clear(&self) -> bool {
        !self.has_more && !self.has_other_reads && self.task == Task::Nothing
    }

    /// Drops what the job holds and keeps the capacity. User code (the captures' drops) may run, and panic.
    pub(crate) fn clear(&mut self) {
        if self.has_more {
            self.has_more = false;
            let More { device_waits, host_waits, waited, operands, versions, .. } = &mut self.more;
            versions.clear();
            waited.clear();
            device_waits.clear();
            host_waits.clear();
            operands.clear();
            let more = &mut self.more;
            (more.record, more.by_number, more.by_event, more.name, more.clean_up) = (false, false, 0, None, None);
        }
        if self.has_other_reads {
            self.has_other_reads = false;
            self.other_reads.clear();
        }
        self.task = Task::Nothing;
        // Last: whatever a capture's drop does, the rest is clean.
        self.function.clear();
    }
}

impl Work for Job {
    fn run(&mut self, stream: &mut dyn ep::Stream) -> Result<(), CallError> {
        let operands = if self.has_more { self.more.operands.as_mut_slice() } else { &mut [] };
        match (std::mem::replace(&mut self.task, Task::Nothing), operands) {
            (Task::Nothing | Task::Mark | Task::Join, _) => Ok(()),
            (Task::Function, operands) => stream.call(std::mem::take(&mut self.function), operands),
            (Task::Raw, operands) => {
                let mut function = std::mem::take(&mut self.function);
                let mut call = |raw: &RawCall<'_>| std::mem::take(&mut function).call(&mut FnContext::of_raw(raw));
                stream.call_raw(&mut call, operands)
            }
            (Task::Kernel, operands) => {
                let Computing { kernel: Some(kernel), params, .. } = &self.computing else {
                    unreachable!("a kernel's task is given with the kernel: see State::fill")
                };
                let inputs = operands.len().saturating_sub(1);
                Ok(stream.launch(&mut KernelCall { kernel: *kernel, operands, inputs, params })?)
            }
            (Task::Copy, [source, target]) => Ok(stream.copy(source, target)?),
            (Task::Fill, [target]) => {
                let Some(value) = self.computing.value else {
                    unreachable!("a fill's task is given with the value: see State::fill")
                };
                Ok(stream.fill(target, value)?)
            }
            (Task::Copy | Task::Fill, operands) => {
                unreachable!("lists are checked: no copy or fill has {} operands", operands.len())
            }
        }
    }
}
