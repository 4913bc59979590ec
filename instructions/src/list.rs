//! Instruction lists: what a builder emits and an engine takes.
//!
//! A list is plain data. It keeps what it uses alive, or borrows it; it prints, and can be inspected before it is submitted.
//! Instructions and uses lie in two vectors, which a thread keeps for its next list: building allocates nothing in
//! steady state.

use std::borrow::Cow;
use std::cell::Cell;
use std::ops::{Deref, Range};
use std::panic::Location;
use std::{fmt, mem};

use streamvm_ep::{DeviceId, DeviceKind, Hoard, InlineFn, Op, Params, Priority, Scalar};
use streamvm_stream::{Capabilities, StreamKey, StreamType, WaitKind};

use crate::check::check;
use crate::stage::{self, Staged};
use crate::uses::Uses;
use crate::{BuildError, Declared, Event, HeldUse, Use};

/// A caller's code inside an instruction; `None` once parsed from text or taken by an engine.
pub type Body = Option<InlineFn>;

/// What a caller's function is for; they run alike and print apart.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// Computes over declared reads and writes.
    Function,
    /// Touches nothing that streamvm knows.
    Host,
    /// Looks at, or changes, the bytes of one tensor.
    Access,
    /// Gives a GPU's own stream commands: kernels of the caller's, libraries.
    Cuda,
    /// Does anything, in the order that its uses ask for: it is shown none of them.
    Push,
}

/// How a function is run, beside what it uses.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Manner {
    /// Which of what can run on an unordered stream goes first.
    pub priority: Priority,
    /// It runs also when what it reads has failed.
    pub clean_up: bool,
    /// Whether it goes before all that is queued, whatever its priority.
    pub ahead: Ahead,
}

/// Whether a function on an unordered stream goes before what is queued at any priority.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Ahead {
    /// It does not: its priority says when.
    #[default]
    No,
    /// The worker that finds that it can run runs it next, and no other does.
    Direct,
    /// Whichever worker comes first runs it: for the end of what it uses.
    First,
}

/// What a `wait` instruction waits for.
#[derive(Clone, Debug)]
pub enum WaitFor {
    /// A recorded event.
    Event(Event),
    /// Another instruction of the same list, by line.
    Line(usize),
    /// An instruction submitted before the list, by its number on its stream.
    Number(u64),
}

/// What an instruction does. Its uses say over which tensors and variables.
#[derive(Debug)]
pub enum Kind {
    /// Runs a kernel: inputs are the first uses, the output is the last.
    Call {
        /// The op.
        op: Op,
        /// Its parameters.
        params: Params,
    },
    /// Copies the first use to the second.
    Copy,
    /// Sets every element of its use.
    Fill(Scalar),
    /// Gives its use memory.
    Allocate,
    /// Gives the memory of its use back, ahead of the last handle; a variable is at its end.
    Release,
    /// Orders its stream after its uses, reads or updates, and does nothing. An update fails if what it updates has failed.
    Touch,
    /// Runs a caller's code.
    Function {
        /// What it is for.
        role: Role,
        /// Its name in lists, errors and profiles.
        name: Cow<'static, str>,
        /// The code.
        body: Body,
    },
    /// Marks an event.
    Record(Event),
    /// Waits for a point of another stream.
    Wait {
        /// The stream waited for.
        source: StreamKey,
        /// The point on it.
        target: WaitFor,
        /// Who waits. [`WaitKind::Host`] in a printed plan shows that the scheduler does; an engine decides by its own
        /// capability table.
        kind: WaitKind,
    },
    /// Comes after everything before it, and before everything after it.
    Barrier {
        /// Its name in lists and errors.
        name: Cow<'static, str>,
        /// Code to run in between; `None` runs nothing.
        body: Body,
        /// Whether there is code, also when it is not at hand.
        calls: bool,
    },
    /// Comes after everything before it.
    GlobalSync,
}

impl Kind {
    /// The word that starts the instruction's line in a list.
    pub fn word(&self) -> &'static str {
        match self {
            Kind::Call { .. } => "call",
            Kind::Copy => "copy",
            Kind::Fill(_) => "fill",
            Kind::Allocate => "alloc",
            Kind::Release => "release",
            Kind::Touch => "touch",
            Kind::Function { role: Role::Function, .. } => "fn",
            Kind::Function { role: Role::Host, .. } => "host",
            Kind::Function { role: Role::Access, .. } => "access",
            Kind::Function { role: Role::Cuda, .. } => "cuda",
            Kind::Function { role: Role::Push, .. } => "push",
            Kind::Record(_) => "record",
            Kind::Wait { kind: WaitKind::Device, .. } => "wait",
            Kind::Wait { kind: WaitKind::Host, .. } => "hostwait",
            Kind::Barrier { .. } => "barrier",
            Kind::GlobalSync => "sync",
        }
    }

    /// Whether it asks of order, or changes of memory, more than its uses say.
    #[inline]
    pub fn asks(&self) -> bool {
        match self {
            Kind::Call { .. } | Kind::Copy | Kind::Fill(_) | Kind::Touch | Kind::Function { .. } => false,
            Kind::Allocate | Kind::Release => true,
            Kind::Record(_) | Kind::Wait { .. } | Kind::Barrier { .. } | Kind::GlobalSync => true,
        }
    }

    /// Whether dropping it would do anything.
    #[inline]
    fn holds_something(&self) -> bool {
        match self {
            Kind::Function { name, body, .. } | Kind::Barrier { name, body, .. } => {
                body.is_some() || matches!(name, Cow::Owned(_))
            }
            Kind::Record(_) | Kind::Wait { .. } => true,
            Kind::Call { .. }
            | Kind::Copy
            | Kind::Fill(_)
            | Kind::Allocate
            | Kind::Release
            | Kind::Touch
            | Kind::GlobalSync => false,
        }
    }

    /// What ran, for errors: the op, the function's name, or the kind.
    pub fn name(&self) -> &str {
        match self {
            Kind::Call { op, .. } => op.name(),
            Kind::Function { name, .. } => name,
            other => other.word(),
        }
    }
}

/// One unit of work on one stream.
#[derive(Debug)]
pub struct Instruction {
    /// The stream.
    pub stream: StreamKey,
    /// What it does.
    pub kind: Kind,
    /// Where the caller issued it.
    pub site: &'static Location<'static>,
    /// How it is run.
    pub manner: Manner,
    pub(crate) uses: Range<u32>,
    has_more: bool,
}

/// The kind of a new or emptied place: it holds nothing. A place that held nothing to drop keeps its kind.
pub(crate) const BLANK: Kind = Kind::GlobalSync;

impl Instruction {
    /// One without uses.
    #[inline(always)]
    pub(crate) fn new(stream: StreamKey, kind: Kind, site: &'static Location<'static>) -> Instruction {
        Instruction { stream, kind, site, manner: Manner::default(), uses: 0..0, has_more: false }
    }

    fn blank() -> Instruction {
        Instruction::new(StreamKey::new(DeviceId::cpu(0), StreamType::Compute, 0), BLANK, Location::caller())
    }

    /// Makes it of the kind that `make` makes. What was there holds nothing.
    #[inline(always)]
    pub(crate) fn make(&mut self, make: impl FnOnce() -> Kind) {
        // Dropping what was there would do nothing.
        mem::forget(mem::replace(&mut self.kind, make()));
    }

    /// Says which of its list's uses are its own, and whether they are more than plain variables.
    #[inline(always)]
    pub(crate) fn set_uses(&mut self, uses: Range<u32>, has_more: bool) {
        self.uses = uses;
        self.has_more = has_more;
    }

    /// Which of its list's uses are its own. The uses of a list lie in the order of its instructions, without gaps.
    #[inline]
    pub fn use_range(&self) -> Range<usize> {
        self.uses.start as usize..self.uses.end as usize
    }

    /// How many uses it has.
    #[inline]
    pub fn use_count(&self) -> u32 {
        // No instruction has fewer than none.
        self.uses.end.wrapping_sub(self.uses.start)
    }

    /// Whether it uses more than plain variables: tensors, or variables that count their writes.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// What it uses, out of all uses of its list: inputs, then outputs.
    #[inline]
    pub fn uses_of<'a, T, V>(&self, uses: &'a [Declared<T, V>]) -> &'a [Declared<T, V>] {
        uses.get(self.use_range()).unwrap_or_default()
    }
}

#[derive(Default)]
struct Buffers {
    /// Places of instructions; those from `len` on hold nothing.
    places: Vec<Instruction>,
    len: usize,
    /// Where the uses of the instructions end. What lies behind was left by a caller's iterator that panicked.
    end_of_uses: u32,
    /// A device other than a CPU makes a copy.
    copies_by_devices: bool,
    /// Room for uses, while no list has these buffers.
    room: Hoard<Uses>,
}

impl Buffers {
    fn instructions(&self) -> &[Instruction] {
        &self.places[..self.len]
    }

    /// Where the next instruction's uses begin: behind those of the last one. What lies there goes.
    #[inline]
    fn cut(&self, uses: &mut Hoard<Uses>) -> u32 {
        let end = self.end_of_uses;
        if uses.as_slice().len() != end as usize {
            uses.truncate(end as usize);
        }
        end
    }

    /// The first place that is not taken.
    #[inline]
    fn blank(&mut self) -> &mut Instruction {
        if self.len == self.places.len() {
            self.grow();
        }
        &mut self.places[self.len]
    }

    #[cold]
    fn grow(&mut self) {
        self.places.resize_with((2 * self.len).max(4), Instruction::blank);
    }

    /// Has every place from `len` on hold nothing again, first to last.
    fn truncate(&mut self, len: usize) {
        // The length first: a capture's drop may panic, and what it leaves then belongs to no instruction.
        let before = mem::replace(&mut self.len, len);
        for place in &mut self.places[len..before] {
            if place.kind.holds_something() {
                place.kind = BLANK;
            }
        }
    }
}

/// An instruction of a list, of which only the code can be taken: the rest was checked, and engines rely on it.
#[derive(Debug)]
pub struct Line<'a>(pub(crate) &'a mut Instruction);

impl Line<'_> {
    fn body(&mut self) -> Option<&mut Body> {
        match &mut self.0.kind {
            Kind::Function { body, .. } | Kind::Barrier { body, .. } => Some(body),
            _ => None,
        }
    }

    /// Moves the code of a function or barrier into `function`, to run it. Returns false, and does nothing, where there is
    /// none, or no more.
    #[must_use = "without code there is nothing to run"]
    #[inline]
    pub fn take_body(&mut self, function: &mut InlineFn) -> bool {
        let Some(body) = self.body() else { return false };
        if let Some(code) = body {
            function.take_from(code);
            // It has no captures any more: nothing to drop, and no reason to touch more than its first word.
            mem::forget(body.take());
            return true;
        }
        false
    }
}

impl Deref for Line<'_> {
    type Target = Instruction;

    fn deref(&self) -> &Instruction {
        self.0
    }
}

/// The longest list, in instructions with four uses each, whose buffers a thread keeps (about 1 MB).
const KEPT: usize = 4096;

thread_local! {
    /// The emptied buffers of this thread's last list: capacity, and places that hold nothing of any engine.
    static SPARE: Cell<Option<Box<Buffers>>> = const { Cell::new(None) };
}

/// Instructions in program order.
///
/// A list holds all that it uses, so it may outlive the handles that it was shown.
#[derive(Default)]
pub struct InstructionList {
    /// `None` while nothing was pushed.
    buffers: Option<Box<Buffers>>,
    uses: Hoard<Uses>,
}

impl fmt::Debug for InstructionList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.instructions()).finish()
    }
}

impl InstructionList {
    /// An empty list.
    #[inline]
    pub fn new() -> InstructionList {
        InstructionList::default()
    }

    /// Moves the instructions of `other` behind those of this list.
    pub fn append(&mut self, mut other: InstructionList) {
        let (buffers, uses) = self.parts();
        let (others, others_uses) = other.parts();
        others.cut(others_uses);
        let offset = buffers.cut(uses);
        let lines = buffers.len;
        uses.append(others_uses);
        others_uses.truncate(0);
        buffers.end_of_uses = uses.as_slice().len() as u32;
        others.end_of_uses = 0;
        buffers.copies_by_devices |= others.copies_by_devices;
        for instruction in &mut others.places[..others.len] {
            let place = buffers.blank();
            mem::swap(place, instruction);
            place.uses = place.uses.start + offset..place.uses.end + offset;
            if let Kind::Wait { target: WaitFor::Line(line), .. } = &mut place.kind {
                *line += lines;
            }
            buffers.len += 1;
        }
    }

    /// What it holds; from the first call on, in the buffers of this thread's last list.
    #[inline(always)]
    fn parts(&mut self) -> (&mut Buffers, &mut Hoard<Uses>) {
        if self.buffers.is_none() {
            self.begin();
        }
        let buffers = self.buffers.as_deref_mut().unwrap_or_else(|| unreachable!("a list that has begun has buffers"));
        (buffers, &mut self.uses)
    }

    #[inline(never)]
    fn begin(&mut self) {
        let mut buffers = SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default();
        self.uses = mem::take(&mut buffers.room);
        self.buffers = Some(buffers);
    }

    /// The instructions.
    #[inline]
    pub fn instructions(&self) -> &[Instruction] {
        self.buffers.as_deref().map_or(&[], Buffers::instructions)
    }

    /// How many instructions there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.instructions().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What all instructions use; each knows its own part, see [`Instruction::use_range`].
    #[inline]
    pub fn all_uses(&self) -> &[HeldUse] {
        self.uses.as_slice()
    }

    /// All instructions and all their uses, for who takes the instructions out.
    #[inline]
    pub(crate) fn parts_mut(&mut self) -> (&mut [Instruction], &[HeldUse]) {
        let Some(buffers) = self.buffers.as_deref_mut() else { return (&mut [], &[]) };
        (&mut buffers.places[..buffers.len], self.uses.as_slice())
    }

    /// Takes the code out of a function or barrier, to run it: `None` where there is none, or no more.
    pub fn take_body(&mut self, line: usize) -> Body {
        Line(self.parts_mut().0.get_mut(line)?).body()?.take()
    }

    /// Whether a device other than a CPU makes a copy of this list.
    #[inline]
    pub fn copies_by_devices(&self) -> bool {
        self.buffers.as_deref().is_some_and(|buffers| buffers.copies_by_devices)
    }

    /// Says how the last instruction is run.
    pub(crate) fn set_manner(&mut self, manner: Manner) {
        let (buffers, _) = self.parts();
        if let Some(last) = buffers.places[..buffers.len].last_mut() {
            last.manner = manner;
        }
    }

    /// Removes the last instruction.
    pub(crate) fn pop(&mut self) {
        let (buffers, uses) = self.parts();
        if let Some(last) = buffers.instructions().last() {
            buffers.end_of_uses = last.uses.start;
            buffers.cut(uses);
            buffers.truncate(buffers.len - 1);
        }
    }

    /// What an instruction of this list uses: inputs, then outputs.
    #[inline]
    pub fn uses(&self, instruction: &Instruction) -> &[HeldUse] {
        instruction.uses_of(self.uses.as_slice())
    }

    /// Appends an instruction that no builder call makes, on a stream of one's choice. The list holds what a refused one used too, until the list
    /// is dropped.
    ///
    /// # Errors
    /// Its uses are not what its kind needs: their number, access, shapes, dtypes or places.
    pub fn push<'u>(
        &mut self,
        stream: StreamKey,
        kind: Kind,
        uses: impl IntoIterator<Item = Use<'u>>,
        site: &'static Location<'static>,
    ) -> Result<(), BuildError> {
        self.push_unchecked(stream, kind, uses, site);
        let checked = self.instructions().last().map_or(Ok(()), |last| check(stream, &last.kind, self.uses(last)));
        if checked.is_err() {
            self.pop();
        }
        checked
    }

    /// Moves everything into a list in which each copy between pageable memory and a device that reaches none goes by way of
    /// pinned memory, in pieces of at most `piece` bytes. `None`, and nothing is moved, if there is no such copy.
    pub fn staged(&mut self, capabilities: &Capabilities, piece: usize) -> Option<Staged> {
        stage::stage(self, capabilities, piece)
    }

    /// Appends an instruction that was checked, or is right by the way it was made. Engines rely on it.
    #[inline(always)]
    pub(crate) fn push_unchecked<'u>(
        &mut self,
        stream: StreamKey,
        kind: Kind,
        uses: impl IntoIterator<Item = Use<'u>>,
        site: &'static Location<'static>,
    ) {
        if matches!(kind, Kind::Copy) && stream.device.kind != DeviceKind::Cpu {
            self.parts().0.copies_by_devices = true;
        }
        self.push_made(stream, || kind, uses, site, Manner::default());
    }

    /// [`InstructionList::push_unchecked`] of a kind that `make` makes, run in this manner. Returns whether it uses more than
    /// plain variables.
    ///
    /// It is made last, and written field by field into a place that holds nothing. Made before, it would have to outlive calls that
    /// may panic, so it would lie on the stack, and be copied from there by wide loads right behind the narrow stores that
    /// made it: such a load waits until those, and every store before them, have reached the cache.
    #[inline(always)]
    pub(crate) fn push_made<'u>(
        &mut self,
        stream: StreamKey,
        make: impl FnOnce() -> Kind,
        uses: impl IntoIterator<Item = Use<'u>>,
        site: &'static Location<'static>,
        manner: Manner,
    ) -> bool {
        let (buffers, all) = self.parts();
        let first = buffers.cut(all);
        // Looked at where they lie: looked at on the way, each would be put together on the stack first.
        for u in uses {
            all.push(u.shown());
        }
        let all = all.as_slice();
        let has_more = all[first as usize..].iter().any(Declared::has_more);
        let end = all.len() as u32;
        let place = buffers.blank();
        place.make(make);
        place.set_uses(first..end, has_more);
        place.stream = stream;
        place.site = site;
        place.manner = manner;
        buffers.len += 1;
        buffers.end_of_uses = end;
        has_more
    }
}

impl Drop for InstructionList {
    fn drop(&mut self) {
        let Some(mut buffers) = self.buffers.take() else { return };
        buffers.truncate(0);
        buffers.end_of_uses = 0;
        buffers.copies_by_devices = false;
        self.uses.clear();
        buffers.room = mem::take(&mut self.uses);
        if buffers.places.len() > KEPT || buffers.room.capacity() > KEPT * 4 {
            return;
        }
        // A thread that is ending has no place to keep them.
        let _ = SPARE.try_with(|spare| spare.set(Some(buffers)));
    }
}
