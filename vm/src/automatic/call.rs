//! Calls as a thread's history keeps them: what they do, and to which resources.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash, Hasher};
use std::panic::Location;

use hashbrown::DefaultHashBuilder;
use smallvec::SmallVec;
use streamvm_ep::{Access, DType, Layout, MemoryKind, Shape};
use streamvm_instructions::{Declared, Instruction, Kind, LaunchOptions, Place, Resource, Tensor, Var};
use streamvm_program::Work;
use streamvm_stream::{StreamKey, StreamType};

use crate::automatic::objects::Operand;
use crate::execute::environment::Environment;

/// Whether an instruction can be a call of a sequence.
///
/// Random numbers cannot: each call draws others.
pub(super) fn has_work(instruction: &Instruction) -> bool {
    let is_work = match &instruction.kind {
        Kind::Call { op, .. } => !op.is_random(),
        Kind::Copy | Kind::Fill(_) => true,
        _ => false,
    };
    is_work && instruction.stream.stream_type == StreamType::Compute && instruction.launch == LaunchOptions::default()
}

/// What an instruction does, if it [can be a call of a sequence](has_work).
pub(super) fn work_of(instruction: &Instruction) -> Option<Work> {
    match &instruction.kind {
        _ if !has_work(instruction) => None,
        Kind::Call { op, params } => Some(Work::Call(*op, *params)),
        Kind::Copy => Some(Work::Copy),
        Kind::Fill(value) => Some(Work::Fill(*value)),
        _ => None,
    }
}

/// The work as a kind of instruction.
pub(super) fn kind_of(work: &Work) -> Kind {
    match work {
        Work::Call(op, params) => Kind::Call { op: *op, params: *params },
        Work::Copy => Kind::Copy,
        Work::Fill(value) => Kind::Fill(*value),
        Work::Function(_)
        | Work::If
        | Work::Else
        | Work::While
        | Work::End
        | Work::SectionBegin(_)
        | Work::SectionEnd(_) => {
            unreachable!("a replayed call is a kernel, a copy or a fill")
        }
    }
}

/// Whether an instruction does this work.
pub(super) fn does(instruction: &Instruction, work: &Work) -> bool {
    match (&instruction.kind, work) {
        (Kind::Call { op, params }, Work::Call(other, others)) => op == other && params == others,
        (Kind::Copy, Work::Copy) => true,
        (Kind::Fill(value), Work::Fill(other)) => value == other,
        _ => false,
    }
}

/// Whether both are the same place in the source. Mostly they have the same address.
pub(super) fn same_line(one: &'static Location<'static>, other: &'static Location<'static>) -> bool {
    std::ptr::eq(one, other) || one == other
}

/// For a tensor that no earlier call of the group uses: `Some(true)` if this call makes it, `Some(false)` if it has a value. `None` if it is neither, belongs to another engine, or
/// another thread holds back calls that use it.
pub(super) fn is_new(tensor: &Tensor, access: Access, env: &Environment) -> Option<bool> {
    let resource = tensor.resource();
    if resource.written_in(env.me).is_some() {
        return Some(false);
    }
    let is_unused = resource.id_in(env.me) == Ok(None) && !resource.holds().any();
    (is_unused && access == Access::Write && !tensor.is_view()).then_some(true)
}

/// Looks at a use of a call. `None` if the call cannot be in a sequence: it uses a variable, or a tensor that has no value, belongs to another
/// engine or is held back by another thread. `key` gives the key of its resource, and `is_made` tells by keys those tensors that have no value
/// because the calls that make them, which come before, are not submitted yet.
pub(super) fn operand<'u, T: Borrow<Tensor>, V: Borrow<Var>>(
    u: &'u Declared<T, V>,
    env: &Environment,
    key: impl Fn(&Resource) -> u64,
    is_made: impl FnOnce(u64) -> bool,
) -> Option<Operand<'u>> {
    let tensor = u.as_tensor()?;
    let (resource, access) = (tensor.resource(), u.access());
    let has_no_value = resource.id_in(env.me) == Ok(None) && !resource.holds().is_refused();
    let is_new = match has_no_value && is_made(key(resource)) {
        true => false,
        false => is_new(tensor, access, env)?,
    };
    Some(Operand {
        resource: key(resource),
        is_new,
        access,
        layout: tensor.layout(),
        dtype: tensor.dtype(),
        place: tensor.place(),
        memory: tensor.memory(),
        storage: tensor.owner().layout().shape(),
    })
}

/// A call in the history: an instruction that was submitted.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) work: Work,
    pub(super) stream: StreamKey,
    pub(super) location: &'static Location<'static>,
    pub(super) operands: SmallVec<[OwnOperand; 3]>,
}

/// An [`Operand`] that owns its layout and its shape, and whose key is a serial number.
#[derive(Clone, Debug)]
pub(super) struct OwnOperand {
    serial: u64,
    is_new: bool,
    access: Access,
    layout: Layout,
    dtype: DType,
    place: Place,
    memory: MemoryKind,
    storage: Shape,
}

impl OwnOperand {
    pub(super) fn new(operand: &Operand<'_>) -> OwnOperand {
        let Operand { resource: serial, is_new, access, dtype, place, memory, .. } = *operand;
        let (layout, storage) = (*operand.layout, *operand.storage);
        OwnOperand { serial, is_new, access, layout, dtype, place, memory, storage }
    }

    /// The serial number of its resource, if it is made by its call.
    pub(super) fn made(&self) -> Option<u64> {
        self.is_new.then_some(self.serial)
    }

    pub(super) fn borrowed(&self) -> Operand<'_> {
        let OwnOperand { serial, is_new, access, dtype, place, memory, .. } = *self;
        let (layout, storage) = (&self.layout, &self.storage);
        Operand { resource: serial, is_new, access, layout, dtype, place, memory, storage }
    }
}

impl Call {
    /// A hash of all that two calls of a sequence have in common, but for what their operands have to do with those of other calls. Where a view
    /// begins does not count either: a sequence may work on another slice each time.
    pub(super) fn hash(&self, hasher: &DefaultHashBuilder) -> u64 {
        let mut state = hasher.build_hasher();
        self.work.hash(&mut state);
        self.stream.hash(&mut state);
        std::ptr::from_ref(self.location).hash(&mut state);
        for operand in &self.operands {
            operand.hash(&mut state);
        }
        state.finish()
    }
}

impl OwnOperand {
    fn hash(&self, state: &mut impl Hasher) {
        (self.is_new, self.access, self.dtype, self.place, self.memory).hash(state);
        (self.layout.shape(), self.layout.strides()).hash(state);
    }
}
