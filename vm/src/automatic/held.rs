//! The tensors of the calls that a thread holds back, and the submission of these calls one by one.

use std::borrow::Borrow;
use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;
use streamvm_ep::{DeviceId, FnContext, InlineFn, Layout, Shape};
use streamvm_instructions::{Declared, Error, Instruction, InstructionList, Kind, Resource, Role, Tensor, Var};
use streamvm_program::{Operand, Step};
use streamvm_stream::{StreamKey, StreamType};

use crate::automatic::call::{self, Call, OwnOperand};
use crate::automatic::objects::{ObjectKind, Objects, Operand as Used};
use crate::automatic::sequence::Sequence;
use crate::engine::core::Engine;
use crate::engine::submission::Full;
use crate::execute::environment::Environment;
use crate::program_cache::loaded::with_access;
use crate::submit::commit::Submitted;

/// What the held-back calls use. Each object has a handle here, and is announced to other threads ([`Holds`](streamvm_instructions::Holds))
/// until the calls are submitted.
///
/// A call has the operands that its sequence expects if each is the tensor that is kept for the expected object, or one that no call before has
/// used. To see that takes no look-up: two resources that are alive are the same if they have the same address, and a resource that no group
/// of held-back calls uses is not used by this one. The other cases are located by [`Objects`], which get to know the tensors only then: parts
/// of storages, and what a group uses, which may be this one or that of another thread.
///
/// Each object counts as a user of its resource. So a storage of which parts are objects of their own has several users and is not written.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// For each object its tensor: the owner of the storage, or a view of the part.
    tensors: Vec<HeldTensor>,
    /// The first objects, by the addresses of their resources: as many as there were when one was located last.
    objects: Objects,
    /// The objects that a refused call would have written, and whose users nothing else tells of it; and why it was refused.
    refused: HashMap<usize, Error>,
}

#[derive(Debug)]
struct HeldTensor {
    /// Its layout is that of the object.
    tensor: Tensor,
    is_made: bool,
    is_part: bool,
    is_written: bool,
}

impl HeldTensor {
    fn kind(&self) -> ObjectKind {
        let HeldTensor { tensor, is_made, is_part, .. } = self;
        ObjectKind {
            is_made: *is_made,
            is_part: *is_part,
            place: tensor.place(),
            memory: tensor.memory(),
            dtype: tensor.dtype(),
            shape: *tensor.layout().shape(),
        }
    }

    /// Announces a use by one more of the calls to other threads. Returns false, and changes nothing, if a thread holds back calls that come before the use.
    fn announce_use(&mut self, writes: bool) -> bool {
        if writes && !self.is_written {
            self.is_written = self.tensor.resource().holds().add_writer(true);
        }
        !writes || self.is_written
    }

    fn end(self) {
        match self.is_written {
            true => self.tensor.resource().holds().remove_writer(),
            false => self.tensor.resource().holds().remove_reader(),
        }
    }
}

/// The key of a resource that is kept alive.
fn address(resource: &Resource) -> u64 {
    std::ptr::from_ref(resource) as u64
}

impl Held {
    /// Adds what `instruction` uses, if the instruction is the call `at` of the sequence, the calls before it being held back; returns whether it
    /// is. If not, or if a thread holds back calls that come before a use, nothing is added.
    pub(super) fn extend<T: Borrow<Tensor>, V: Borrow<Var>>(
        &mut self,
        (sequence, at): (&Sequence, usize),
        instruction: &Instruction,
        uses: &[Declared<T, V>],
        env: &Environment,
    ) -> bool {
        let Some(step) = sequence.steps.get(at) else { return false };
        if instruction.stream != sequence.stream
            || !call::same_line(instruction.location, step.location)
            || uses.len() != step.operands.len()
            || !call::does(instruction, &step.work)
        {
            return false;
        }
        let before = self.tensors.len();
        let fits = uses.iter().zip(&step.operands).all(|(u, expected)| self.fits(sequence, u, expected, env));
        if !fits {
            self.truncate(before);
        }
        fits
    }

    fn fits<T: Borrow<Tensor>, V: Borrow<Var>>(
        &mut self,
        sequence: &Sequence,
        u: &Declared<T, V>,
        expected: &Operand,
        env: &Environment,
    ) -> bool {
        let (access, object) = (u.access(), expected.value.0);
        let (kind, writes) = (&sequence.kinds[object], access.writes());
        let Some(tensor) = u.as_tensor() else { return false };
        if access != expected.access {
            return false;
        }
        if kind.is_part {
            return self.locate(sequence, u, expected, env);
        }
        if *tensor.layout() != expected.layout {
            return false;
        }
        match self.tensors.get_mut(object) {
            Some(held) => held.tensor.shares_storage(tensor) && held.announce_use(writes),
            None if tensor.resource().holds().any() => self.locate(sequence, u, expected, env),
            None => {
                object == self.tensors.len()
                    && call::is_new(tensor, access, env).is_some_and(|is_new| is_new == kind.is_made)
                    && kind.is_storage_of(tensor)
                    && self.add(tensor.owner().clone(), kind, writes, env)
            }
        }
    }

    /// The slow way of [`fits`](Held::fits), which finds the object by a table.
    #[cold]
    #[inline(never)]
    fn locate<T: Borrow<Tensor>, V: Borrow<Var>>(
        &mut self,
        sequence: &Sequence,
        u: &Declared<T, V>,
        expected: &Operand,
        env: &Environment,
    ) -> bool {
        self.index();
        let Some(used) = call::operand(u, env, address, |resource| self.objects.knows(resource)) else { return false };
        let Some(located) = self.objects.locate(&used) else { return false };
        let is_expected =
            located.object == expected.value.0 && located.layout == expected.layout && used.access == expected.access;
        let writes = used.access.writes();
        let fits = match self.tensors.get_mut(located.object) {
            _ if !is_expected => false,
            Some(held) => held.announce_use(writes),
            None => self.add_located(sequence, u, located.object, env),
        };
        // What was located and is not held.
        self.objects.truncate(self.tensors.len());
        fits
    }

    /// Adds the object that was located last.
    fn add_located<T: Borrow<Tensor>, V: Borrow<Var>>(
        &mut self,
        sequence: &Sequence,
        u: &Declared<T, V>,
        object: usize,
        env: &Environment,
    ) -> bool {
        let kind = self.objects.kind(object);
        if *kind != sequence.kinds[object] {
            return false;
        }
        let Some(tensor) = u.as_tensor() else { return false };
        let tensor = match kind.is_part {
            true if tensor.layout().is_contiguous() => tensor.clone(),
            true => match range_of(tensor, kind.shape) {
                Ok(range) => range,
                Err(_) => return false,
            },
            false => tensor.owner().clone(),
        };
        self.add(tensor, &sequence.kinds[object], u.access().writes(), env)
    }

    fn add(&mut self, tensor: Tensor, kind: &ObjectKind, writes: bool, env: &Environment) -> bool {
        let (is_made, is_part) = (kind.is_made, kind.is_part);
        let holds = tensor.resource().holds();
        let is_ours = !is_made || tensor.resource().claim(env.me).is_ok();
        let added = is_ours && if writes { holds.add_writer(false) } else { holds.add_reader() };
        if added {
            self.tensors.push(HeldTensor { tensor, is_made, is_part, is_written: writes });
        }
        added
    }

    /// Makes the objects known that were added since one was located.
    fn index(&mut self) {
        for held in &self.tensors[self.objects.len()..] {
            self.objects.add(held.kind(), address(held.tensor.resource()), held.tensor.layout().offset());
        }
    }

    /// Removes the objects from this number on.
    fn truncate(&mut self, len: usize) {
        self.objects.truncate(len);
        for held in self.tensors.drain(len..) {
            held.end();
        }
    }

    /// Forgets the calls, which are submitted.
    pub(super) fn clear(&mut self) {
        self.truncate(0);
        self.refused.clear();
    }

    /// The tensor of an object.
    pub(super) fn tensor(&self, object: usize) -> &Tensor {
        &self.tensors[object].tensor
    }

    /// For each object, whether its calls make it and somebody can still use it.
    pub(super) fn results(&self) -> SmallVec<[bool; 64]> {
        self.tensors.iter().map(|held| held.is_made && held.tensor.has_other_handles()).collect()
    }

    /// Submits a call. A call that needs what a refused call would have made is refused with the same error.
    ///
    /// What a refused call would have changed has a value, which must not pass for the new one: a function is submitted in the place of the call,
    /// which fails with the error. What it would have made, and what that function cannot be submitted for, is noted as refused.
    ///
    /// # Errors
    /// Those of the submission. If `may_be_repeated` says so of the error, the call is still held back; else it is refused.
    pub(super) fn submit(
        &mut self,
        step: &Step,
        stream: StreamKey,
        (full, may_be_repeated): (Full, &dyn Fn(&Error) -> bool),
        engine: &Arc<Engine>,
    ) -> Result<(), Error> {
        let refused = step.operands.iter().find_map(|operand| self.refused.get(&operand.value.0).cloned());
        let Err(error) = refused.map_or_else(|| self.submit_alone(step, stream, full, engine), Err) else {
            return Ok(());
        };
        if may_be_repeated(&error) {
            return Err(error);
        }
        for operand in step.operands.iter().filter(|operand| operand.access.writes()) {
            let object = operand.value.0;
            let told = match self.tensor(object).resource().written_in(engine.me) {
                Some(_) => self.view(operand).and_then(|view| submit_failure(&view, step, &error, full, engine)),
                None => Err(error.clone()),
            };
            match told {
                Err(again) if may_be_repeated(&again) => return Err(again),
                Err(_) => drop(self.refused.insert(object, error.clone())),
                Ok(()) => {}
            }
        }
        Err(error)
    }

    fn submit_alone(&self, step: &Step, stream: StreamKey, full: Full, engine: &Arc<Engine>) -> Result<(), Error> {
        let tensors: SmallVec<[Tensor; 3]> =
            step.operands.iter().map(|operand| self.view(operand)).collect::<Result<_, _>>()?;
        let uses = tensors.iter().zip(&step.operands).map(|(tensor, operand)| with_access(tensor, operand.access));
        let mut list = InstructionList::new();
        list.push(stream, call::kind_of(&step.work), uses, step.location)?;
        engine.submit_now(&mut list, full, &mut Submitted::default())
    }

    /// The tensor of an operand.
    fn view(&self, operand: &Operand) -> Result<Tensor, Error> {
        let object = operand.value.0;
        let tensor = self.tensor(object);
        let layout = self.in_storage(object, &operand.layout);
        if layout == *tensor.layout() { Ok(tensor.clone()) } else { Ok(tensor.view(layout)?) }
    }

    /// The layout in the storage, of a layout within an object.
    fn in_storage(&self, object: usize, layout: &Layout) -> Layout {
        if !self.tensors[object].is_part {
            return *layout;
        }
        let offset = self.tensor(object).layout().offset();
        Layout::with_strides(*layout.shape(), layout.strides(), offset)
            .unwrap_or_else(|_| unreachable!("the call had this layout"))
    }

    /// Whether a held-back call uses the resource.
    pub(super) fn uses(&mut self, resource: &Resource) -> bool {
        self.index();
        self.objects.knows(address(resource))
    }

    /// Tells those who use what refused calls would have written; returns the resources and the errors.
    pub(super) fn refuse(&self) -> impl Iterator<Item = (&Resource, Error)> + '_ {
        self.refused.iter().map(|(object, error)| {
            let resource = self.tensor(*object).resource();
            resource.holds().refuse();
            (resource, error.clone())
        })
    }

    /// The calls as the history keeps them.
    pub(super) fn calls(&self, stream: StreamKey, steps: &[Step], serial: impl Fn(&Resource) -> u64) -> Vec<Call> {
        let mut known = 0;
        let of_step = |step: &Step| {
            let of_operand = |Operand { value, layout, access }: &Operand| {
                let object = value.0;
                let HeldTensor { tensor, is_made, .. } = &self.tensors[object];
                let is_new = *is_made && object >= known;
                known = known.max(object + 1);
                let layout = self.in_storage(object, layout);
                OwnOperand::new(&Used {
                    resource: serial(tensor.resource()),
                    is_new,
                    access: *access,
                    layout: &layout,
                    dtype: tensor.dtype(),
                    place: tensor.place(),
                    memory: tensor.memory(),
                    storage: tensor.owner().layout().shape(),
                })
            };
            let operands = step.operands.iter().map(of_operand).collect();
            Call { work: step.work.clone(), stream, location: step.location, operands }
        };
        steps.iter().map(of_step).collect()
    }
}

/// The elements of the storage of `tensor` from its first element on, as many as `shape` has.
fn range_of(tensor: &Tensor, shape: Shape) -> Result<Tensor, Error> {
    Ok(tensor.view(Layout::with_strides(shape, &[1], tensor.layout().offset())?)?)
}

/// Submits a function in the place of a call that was refused, which fails with the error for which it was, so that the tensor has failed.
fn submit_failure(tensor: &Tensor, step: &Step, error: &Error, full: Full, engine: &Arc<Engine>) -> Result<(), Error> {
    let stream = StreamKey::new(DeviceId::cpu(0), StreamType::Workers, 0);
    let (name, error) = (call::kind_of(&step.work).name().to_owned().into(), error.clone());
    let body = InlineFn::new(move |_: &mut FnContext<'_>| Err(error.into()));
    let kind = Kind::Function { role: Role::Push, name, body: Some(body) };
    let mut list = InstructionList::new();
    list.push(stream, kind, [tensor.update().of_order()], step.location)?;
    engine.submit_now(&mut list, full, &mut Submitted::default())
}

/// Whether a submission found too little memory.
pub(super) fn is_out_of_memory(error: &Error) -> bool {
    matches!(error, Error::OutOfMemory { .. } | Error::Device(streamvm_ep::Error::OutOfMemory { .. }))
}

/// Whether a submission that failed with this error may succeed later, so that the call stays held back.
pub(super) fn may_be_repeated(error: &Error) -> bool {
    matches!(
        error,
        Error::WouldBlock { .. }
            | Error::WouldDeadlock
            | Error::Timeout(_)
            | Error::Stalled { .. }
            | Error::SectionHeld { .. }
    )
}
