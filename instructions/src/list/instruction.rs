//! Instructions: one unit of work on one stream.

use std::borrow::Cow;
use std::mem;
use std::ops::{Deref, Range};

use streamvm_ep::{DeviceId, InlineFn, Site};
use streamvm_stream::{StreamKey, StreamType};

use crate::list::kind::{BLANK, Body, Kind, LaunchOptions};
use crate::tensor::uses::Declared;

/// One unit of work on one stream.
#[derive(Debug)]
pub struct Instruction {
    /// The stream.
    pub stream: StreamKey,
    /// The operation of the instruction.
    pub kind: Kind,
    /// The caller's source location.
    pub site: Site,
    /// The launch options.
    pub launch: LaunchOptions,
    pub(crate) uses: Range<u32>,
    has_more: bool,
}

impl Instruction {
    /// An instruction without uses.
    #[inline(always)]
    pub(crate) fn new(stream: StreamKey, kind: Kind, site: Site) -> Instruction {
        Instruction { stream, kind, site, launch: LaunchOptions::default(), uses: 0..0, has_more: false }
    }

    pub(super) fn blank() -> Instruction {
        Instruction::new(StreamKey::new(DeviceId::cpu(0), StreamType::Compute, 0), BLANK, Site::caller())
    }

    /// Sets the kind to the result of `make`. The old kind must be blank: it is not dropped.
    #[inline(always)]
    pub(crate) fn make(&mut self, make: impl FnOnce() -> Kind) {
        // The old kind is blank, so its drop would do nothing; forgetting it saves the check.
        mem::forget(mem::replace(&mut self.kind, make()));
    }

    /// Sets the range of the list's uses that belong to this instruction, and whether one of them is more than a plain variable.
    #[inline(always)]
    pub(crate) fn set_uses(&mut self, uses: Range<u32>, has_more: bool) {
        self.uses = uses;
        self.has_more = has_more;
    }

    /// The range of the list's uses that belong to this instruction. The ranges of a list are in the order of its instructions,
    /// without gaps.
    #[inline]
    pub fn use_range(&self) -> Range<usize> {
        self.uses.start as usize..self.uses.end as usize
    }

    /// The number of uses.
    #[inline]
    pub fn use_count(&self) -> u32 {
        // `end` is never below `start`, so the subtraction needs no overflow check.
        self.uses.end.wrapping_sub(self.uses.start)
    }

    /// Whether it uses a tensor, or writes a variable that counts its writes.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// The instruction's own uses, out of all uses of its list: inputs, then outputs.
    #[inline]
    pub fn uses_of<'a, T, V>(&self, uses: &'a [Declared<T, V>]) -> &'a [Declared<T, V>] {
        uses.get(self.use_range()).unwrap_or_default()
    }
}

/// An instruction of a list from which an engine may move the code out. The rest cannot be changed, as it was checked and engines
/// rely on it.
#[derive(Debug)]
pub struct Line<'a>(pub(crate) &'a mut Instruction);

impl Line<'_> {
    pub(super) fn body(&mut self) -> Option<&mut Body> {
        match &mut self.0.kind {
            Kind::Function { body, .. } | Kind::Barrier { body, .. } => Some(body),
            _ => None,
        }
    }

    /// Moves the name of a function or barrier out, if it is no constant of the program. It has an empty name then.
    #[inline]
    pub fn take_name(&mut self) -> Option<String> {
        match &mut self.0.kind {
            Kind::Function { name: Cow::Owned(name), .. } | Kind::Barrier { name: Cow::Owned(name), .. } => {
                Some(mem::take(name))
            }
            _ => None,
        }
    }

    /// Moves the code of a function or barrier into `function`, to run it. Returns false, and changes nothing, if there is no code,
    /// or it was moved out before.
    #[must_use = "without code there is nothing to run"]
    #[inline]
    pub fn take_body(&mut self, function: &mut InlineFn) -> bool {
        let Some(body) = self.body() else { return false };
        if let Some(code) = body {
            function.take_from(code);
            // `take_from` has moved the captures out, so there is nothing to drop, and only the first word of the code needs to be
            // written.
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
