//! Batches, the units of submission: a list, or one instruction that borrows its operands.

use std::borrow::{Borrow, Cow};
use std::iter::FusedIterator;
use std::slice;

use smallvec::SmallVec;
use streamvm_ep::{InlineFn, Op, Params, PinnedRef, Site};
use streamvm_stream::StreamKey;

use crate::error::build_error::BuildError;
use crate::error::engine_error::Error;
use crate::list::check::check_function;
use crate::list::instruction::{Instruction, Line};
use crate::list::instruction_list::InstructionList;
use crate::list::kind::{BLANK, Kind, LaunchOptions, Role};
use crate::tensor::handle::{Tensor, TensorInner};
use crate::tensor::resource::Resource;
use crate::tensor::uses::{Declared, HeldUse, Use};
use crate::tensor::var::Var;

/// Instructions in program order, with their uses. The trait is sealed: an engine relies on the checks that the two implementors,
/// lists and [`Single`], or the callers of [`Single::submit_op`], make when they are built.
pub trait Batch: sealed::Sealed {
    /// The type by which its uses hold a tensor.
    type Tensor: Borrow<Tensor>;
    /// The type by which its uses hold a variable.
    type Var: Borrow<Var>;

    /// The instructions, in program order.
    fn instructions(&self) -> &[Instruction];

    /// The uses of all instructions; each instruction has a range of them, see [`Instruction::use_range`].
    fn all_uses(&self) -> &[UseOf<Self>];

    /// All instructions and all their uses, for an engine that moves the code out of the instructions.
    fn lines(&mut self) -> (Lines<'_>, &[UseOf<Self>]);

    /// The site of the first instruction, for an error of the batch as a whole; of a list without instructions, that of the caller.
    #[track_caller]
    fn site(&self) -> Site {
        match self.instructions() {
            [first, ..] => first.site,
            [] => Site::caller(),
        }
    }

    /// The uses of an instruction of this batch: inputs, then outputs.
    #[inline]
    fn uses(&self, instruction: &Instruction) -> &[UseOf<Self>] {
        instruction.uses_of(self.all_uses())
    }
}

/// An iterator over the instructions of a batch, for an engine that moves their code out.
#[derive(Debug)]
pub struct Lines<'a>(slice::IterMut<'a, Instruction>);

impl Lines<'_> {
    /// Returns the next instruction without advancing.
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

/// A use of a batch of type `B`.
pub type UseOf<B> = Declared<<B as Batch>::Tensor, <B as Batch>::Var>;

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::InstructionList {}
    impl Sealed for super::Single<'_> {}
}

impl Batch for InstructionList {
    type Tensor = PinnedRef<TensorInner>;
    type Var = PinnedRef<Resource>;

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

/// The most uses that a single instruction stores inline, without an allocation.
const USES: usize = 16;

/// One instruction that lives as long as one call. It borrows its operands, so no reference is counted, and up to 16 uses need no
/// allocation.
#[derive(Debug)]
pub struct Single<'a> {
    instruction: Instruction,
    uses: SmallVec<[Use<'a>; USES]>,
}

/// The parameters of a caller's function that is submitted alone, besides its name, its uses and its code.
#[derive(Copy, Clone, Debug)]
pub struct Issued {
    /// The stream.
    pub stream: StreamKey,
    /// The role of the function.
    pub role: Role,
    /// Its launch options.
    pub launch: LaunchOptions,
    /// The caller's source location.
    pub site: Site,
}

impl<'a> Single<'a> {
    /// Builds the instruction of an op, and calls `submit` with it. All fields are written in place, without a copy of the instruction.
    ///
    /// For engines. Nothing is checked here. The caller guarantees that the last operand is written, and has the dtype and shape that the op gives for
    /// the others, which are read, and that all are in memory which the stream's device reaches.
    #[doc(hidden)]
    #[inline(always)]
    pub fn submit_op<R>(
        stream: StreamKey,
        (op, params): (Op, &Params),
        uses: impl IntoIterator<Item = Use<'a>>,
        site: Site,
        submit: impl FnOnce(&mut Single<'a>) -> R,
    ) -> R {
        let blank = Kind::Call { op, params: Params::default() };
        let mut single = Single { instruction: Instruction::new(stream, blank, site), uses: SmallVec::new() };
        if let Kind::Call { params: own, .. } = &mut single.instruction.kind {
            *own = *params;
        }
        // `SmallVec::extend` would be a call that costs more instructions.
        uses.into_iter().for_each(|u| single.uses.push(u));
        single.instruction.set_uses(0..single.uses.len() as u32, single.uses.iter().any(Use::has_more));
        submit(&mut single)
    }

    /// Builds an instruction that runs a caller's function, and calls `submit` with it.
    ///
    /// # Errors
    /// As [`InstructionsBuilder::call_fn`](crate::InstructionsBuilder::call_fn), and then `submit` is not called; otherwise the
    /// errors of `submit`.
    #[inline(always)]
    pub fn submit_function(
        issued: Issued,
        name: impl Into<Cow<'static, str>>,
        uses: impl IntoIterator<Item = Use<'a>>,
        code: impl FnOnce() -> InlineFn,
        submit: impl FnOnce(&mut Single<'a>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Issued { stream, role, launch, site } = issued;
        let mut single = Single { instruction: Instruction::new(stream, BLANK, site), uses: SmallVec::new() };
        single.uses.extend(uses);
        single.instruction.set_uses(0..single.uses.len() as u32, single.uses.iter().any(Use::has_more));
        // Built last, for the reason that `InstructionList::push_made` gives.
        single.instruction.make(|| Kind::Function { role, name: name.into(), body: Some(code()) });
        single.instruction.launch = launch;
        if single.instruction.has_more() {
            single.check().map_err(|error| Error::Build { error, call: None, site })?;
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
