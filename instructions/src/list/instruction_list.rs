//! Instruction lists: the builder makes them, and an engine takes them.
//!
//! A list is plain data. It keeps the resources that it uses alive; it can be printed and inspected before it is submitted.
//! Instructions and uses are in two vectors, which a thread reuses for its next list, so that building a list allocates nothing in
//! steady state.

use std::borrow::Cow;
use std::cell::Cell;
use std::{fmt, mem};

use streamvm_ep::{InlineFn, PinnedRefs, Site};
use streamvm_stream::StreamKey;

use crate::error::engine_error::Error;
use crate::list::buffers::{Buffers, KEPT, SPARE};
use crate::list::check::{check, check_function};
use crate::list::instruction::{Instruction, Line};
use crate::list::kind::{Body, Kind, LaunchOptions, Role, WaitFor};
use crate::tensor::uses::{Declared, HeldUse, Use, Uses};

/// Instructions in program order.
///
/// A list keeps every resource that it uses alive, so it may outlive the handles that it was built from.
#[derive(Default)]
pub struct InstructionList {
    /// `None` before the first instruction is pushed.
    buffers: Option<Box<Buffers>>,
    uses: PinnedRefs<Uses>,
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

    /// Moves the instructions of `other` after those of this list.
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

    /// The buffers and the uses of the list. The first call takes the buffers of this thread's last list.
    #[inline(always)]
    fn parts(&mut self) -> (&mut Buffers, &mut PinnedRefs<Uses>) {
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

    /// The uses of all instructions; each instruction has a range of them, see [`Instruction::use_range`].
    #[inline]
    pub fn all_uses(&self) -> &[HeldUse] {
        self.uses.as_slice()
    }

    /// All instructions and all their uses, for a caller that moves the instructions out.
    #[inline]
    pub(crate) fn parts_mut(&mut self) -> (&mut [Instruction], &[HeldUse]) {
        let Some(buffers) = self.buffers.as_deref_mut() else { return (&mut [], &[]) };
        (&mut buffers.places[..buffers.len], self.uses.as_slice())
    }

    /// Moves the code out of the function or barrier at `line`, to run it. `None` if there is no code, or it was moved out before.
    pub fn take_body(&mut self, line: usize) -> Body {
        Line(self.parts_mut().0.get_mut(line)?).body()?.take()
    }

    /// Whether a device other than a CPU makes a copy of this list.
    #[inline]
    pub fn copies_by_devices(&self) -> bool {
        self.buffers.as_deref().is_some_and(|buffers| buffers.copies_by_devices)
    }

    /// Sets the launch options of the last instruction.
    pub(crate) fn set_launch_options(&mut self, launch: LaunchOptions) {
        let (buffers, _) = self.parts();
        if let Some(last) = buffers.places[..buffers.len].last_mut() {
            last.launch = launch;
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

    /// The uses of an instruction of this list: inputs, then outputs.
    #[inline]
    pub fn uses(&self, instruction: &Instruction) -> &[HeldUse] {
        instruction.uses_of(self.uses.as_slice())
    }

    /// Appends any instruction on any stream, after checking it. If it is refused, the list still keeps the resources that it used
    /// alive, until the list is dropped.
    ///
    /// # Errors
    /// The uses do not match the kind: their number, access, shapes, dtypes or places.
    pub fn push<'u>(
        &mut self,
        stream: StreamKey,
        kind: Kind,
        uses: impl IntoIterator<Item = Use<'u>>,
        site: Site,
    ) -> Result<(), Error> {
        self.push_unchecked(stream, kind, uses, site);
        let checked = self.instructions().last().map_or(Ok(()), |last| check(stream, &last.kind, self.uses(last)));
        if checked.is_err() {
            self.pop();
        }
        checked.map_err(|error| Error::Build { error, call: None, site })
    }

    /// Appends steps of a program: see [`Role::Program`], [`Role::ProgramWithCode`] and [`Role::Blocks`]. For engines. The code executes a prepared segment
    /// ([`FnContext::segment`](streamvm_ep::FnContext::segment)).
    ///
    /// # Errors
    /// As [`InstructionsBuilder::call_fn`](crate::InstructionsBuilder::call_fn); the memory of a use is not that of the device which runs the
    /// stream.
    pub fn push_program<'u>(
        &mut self,
        stream: StreamKey,
        (role, name): (Role, impl Into<Cow<'static, str>>),
        uses: impl IntoIterator<Item = Use<'u>>,
        code: InlineFn,
        site: Site,
    ) -> Result<(), Error> {
        debug_assert!(role.is_of_program(), "steps of a program");
        let name = name.into();
        self.push_unchecked(stream, Kind::Function { role, name, body: Some(code) }, uses, site);
        let checked = self
            .instructions()
            .last()
            .map_or(Ok(()), |last| check_function(last.kind.name(), role, stream, self.uses(last)));
        if checked.is_err() {
            self.pop();
        }
        checked.map_err(|error| Error::Build { error, call: None, site })
    }

    /// Appends an instruction without checks. Engines rely on its form, so the caller must have checked it, or built it so that it
    /// is correct.
    #[inline(always)]
    pub(crate) fn push_unchecked<'u>(
        &mut self,
        stream: StreamKey,
        kind: Kind,
        uses: impl IntoIterator<Item = Use<'u>>,
        site: Site,
    ) {
        if matches!(kind, Kind::Copy) && !stream.device.kind.is_run_by_host() {
            self.parts().0.copies_by_devices = true;
        }
        self.push_made(stream, || kind, uses, site, LaunchOptions::default());
    }

    /// [`InstructionList::push_unchecked`] of the kind that `make` returns, with these launch options. Returns whether the
    /// instruction uses more than plain variables.
    ///
    /// `make` is called last, and its result is written field by field into a blank instruction. A kind that is made earlier would
    /// have to outlive calls that may panic, so the compiler would put it on the stack and copy it from there with wide loads right
    /// after the narrow stores that wrote it. Such a load waits until all of these stores have reached the cache (store forwarding
    /// fails).
    #[inline(always)]
    pub(crate) fn push_made<'u>(
        &mut self,
        stream: StreamKey,
        make: impl FnOnce() -> Kind,
        uses: impl IntoIterator<Item = Use<'u>>,
        site: Site,
        launch: LaunchOptions,
    ) -> bool {
        let (buffers, all) = self.parts();
        let first = buffers.cut(all);
        // `has_more` is computed below, over the stored uses: in this loop, the compiler would build each use on the stack first.
        for u in uses {
            all.push(u.reference());
        }
        let all = all.as_slice();
        let has_more = all[first as usize..].iter().any(Declared::has_more);
        let end = all.len() as u32;
        let place = buffers.blank();
        place.make(make);
        place.set_uses(first..end, has_more);
        place.stream = stream;
        place.site = site;
        place.launch = launch;
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
        // Fails on a thread that is ending, which has no thread-local storage any more: then the buffers are dropped.
        let _ = SPARE.try_with(|spare| spare.set(Some(buffers)));
    }
}
