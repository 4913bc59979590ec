//! What an engine takes: a list, or one instruction that borrows what it uses.

use std::borrow::{Borrow, Cow};
use std::iter::FusedIterator;
use std::panic::Location;
use std::slice;

use smallvec::SmallVec;
use streamvm_ep::{InlineFn, Kept, Op, Params};
use streamvm_stream::StreamKey;

use crate::check::check_function;
use crate::list::{BLANK, Instruction, InstructionList, Kind, Line, Manner, Role};
use crate::tensor::TensorInner;
use crate::{BuildError, Declared, HeldUse, Resource, Tensor, Use, Var};

/// Instructions in program order, with what they use. Engines rely on what was checked when they were made, so there are no others than
/// lists and [`Single`].
pub trait Batch: sealed::Sealed {
    /// Whether it is always one instruction: then nothing is a loop.
    const ONE: bool;
    /// How its uses hold a tensor.
    type Tensor: Borrow<Tensor>;
    /// How its uses hold a variable.
    type Var: Borrow<Var>;

    /// The instructions.
    fn instructions(&self) -> &[Instruction];

    /// What all instructions use; each knows its own part, see [`Instruction::use_range`].
    fn all_uses(&self) -> &[UseOf<Self>];

    /// All instructions and all their uses, for an engine that takes their code.
    fn lines(&mut self) -> (Lines<'_>, &[UseOf<Self>]);

    /// What an instruction of this batch uses: inputs, then outputs.
    #[inline]
    fn uses(&self, instruction: &Instruction) -> &[UseOf<Self>] {
        instruction.uses_of(self.all_uses())
    }
}

/// The instructions of a batch, for an engine that takes their code.
#[derive(Debug)]
pub struct Lines<'a>(slice::IterMut<'a, Instruction>);

impl Lines<'_> {
    /// Looks at the next instruction.
    #[inline]
    pub fn peek(&self) -> Option<&Instruction> {
        self.0.as_slice().first()
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    #[inline]
    fn next(&mut self) -> Option<Line<'a>> {
        self.0.next().map(Line)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Lines<'_> {}
impl FusedIterator for Lines<'_> {}

/// The uses of a batch.
pub type UseOf<B> = Declared<<B as Batch>::Tensor, <B as Batch>::Var>;

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::InstructionList {}
    impl Sealed for super::Single<'_> {}
}

impl Batch for InstructionList {
    const ONE: bool = false;
    type Tensor = Kept<TensorInner>;
    type Var = Kept<Resource>;

    #[inline]
    fn instructions(&self) -> &[Instruction] {
        InstructionList::instructions(self)
    }

    #[inline]
    fn all_uses(&self) -> &[HeldUse] {
        InstructionList::all_uses(self)
    }

    #[inline]
    fn lines(&mut self) -> (Lines<'_>, &[HeldUse]) {
        let (instructions, uses) = self.parts_mut();
        (Lines(instructions.iter_mut()), uses)
    }
}

/// Uses that a single instruction may have without an allocation.
const USES: usize = 16;

/// One instruction on its own, for the length of a call: it counts no reference, and up to 16 uses need no buffer.
#[derive(Debug)]
pub struct Single<'a> {
    instruction: Instruction,
    uses: SmallVec<[Use<'a>; USES]>,
}

/// What is said of a caller's function that is submitted alone, beside its name, its uses and its code.
#[derive(Copy, Clone, Debug)]
pub struct Issued {
    /// The stream.
    pub stream: StreamKey,
    /// What it is for.
    pub role: Role,
    /// How it is run.
    pub manner: Manner,
    /// Where the caller issued it.
    pub site: &'static Location<'static>,
}

impl<'a> Single<'a> {
    /// Makes the instruction of an op that is right, and hands it to `submit`. All of it is written where it lies.
    #[inline(always)]
    pub(crate) fn submit_op<R>(
        stream: StreamKey,
        (op, params): (Op, &Params),
        uses: impl IntoIterator<Item = Use<'a>>,
        site: &'static Location<'static>,
        submit: impl FnOnce(&mut Single<'a>) -> R,
    ) -> R {
        let blank = Kind::Call { op, params: Params::default() };
        let mut single = Single { instruction: Instruction::new(stream, blank, site), uses: SmallVec::new() };
        if let Kind::Call { params: own, .. } = &mut single.instruction.kind {
            *own = *params;
        }
        single.uses.extend(uses);
        single.instruction.set_uses(0..single.uses.len() as u32, single.uses.iter().any(Use::has_more));
        submit(&mut single)
    }

    /// Makes an instruction that runs a caller's function, and hands it to `submit`.
    ///
    /// # Errors
    /// As [`InstructionsBuilder::call_fn`](crate::InstructionsBuilder::call_fn), where `submit` is not called; what `submit` gives.
    #[inline(always)]
    pub fn submit_function<E: From<BuildError>>(
        issued: Issued,
        name: impl Into<Cow<'static, str>>,
        uses: impl IntoIterator<Item = Use<'a>>,
        code: impl FnOnce() -> InlineFn,
        submit: impl FnOnce(&mut Single<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Issued { stream, role, manner, site } = issued;
        let mut single = Single { instruction: Instruction::new(stream, BLANK, site), uses: SmallVec::new() };
        single.uses.extend(uses);
        single.instruction.set_uses(0..single.uses.len() as u32, single.uses.iter().any(Use::has_more));
        // Last, for the reason that `InstructionList::push_made` gives.
        single.instruction.make(|| Kind::Function { role, name: name.into(), body: Some(code()) });
        single.instruction.manner = manner;
        if single.instruction.has_more() {
            single.check()?;
        }
        submit(&mut single)
    }

    #[inline(never)]
    fn check(&self) -> Result<(), BuildError> {
        match &self.instruction.kind {
            Kind::Function { role, name, .. } => check_function(name, *role, self.instruction.stream, &self.uses),
            _ => Ok(()),
        }
    }
}

impl<'a> Batch for Single<'a> {
    const ONE: bool = true;
    type Tensor = &'a Tensor;
    type Var = &'a Var;

    #[inline]
    fn instructions(&self) -> &[Instruction] {
        slice::from_ref(&self.instruction)
    }

    #[inline]
    fn all_uses(&self) -> &[Use<'a>] {
        &self.uses
    }

    #[inline]
    fn lines(&mut self) -> (Lines<'_>, &[Use<'a>]) {
        (Lines(slice::from_mut(&mut self.instruction).iter_mut()), &self.uses)
    }
}
