//! The tensors of the calls that a thread holds back, and the submission of these calls one by one.

use std::borrow::Borrow;
use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;
use streamvm_ep::{DeviceId, FnContext, InlineFn, Layout, Shape};
use streamvm_instructions::{Declared, Error, Instruction, InstructionList, Kind, Role, Tensor, Var};
use streamvm_program::{Operand, Step};
use streamvm_stream::{StreamKey, StreamType};

use crate::automatic::call::{self, Call, OwnOperand, Serials};
use crate::automatic::objects::{Object, Objects, Operand as Used};
use crate::automatic::sequence::Sequence;
use crate::engine::core::Engine;
use crate::engine::submission::Full;
use crate::execute::environment::Environment;
use crate::program_cache::loaded::with_access;
use crate::submit::commit::Submitted;

/// What the held-back calls use. Each object has a handle here, and is announced to other threads ([`Holds`](streamvm_instructions::Holds))
/// until the calls are submitted.
#[derive(Debug, Default)]
pub(super) struct Held {
    objects: Objects,
    /// For each object its tensor: the owner of the storage, or a view of the part.
    tensors: Vec<HeldTensor>,
    /// The objects that a refused call would have written, and whose users nothing else tells of it; and why it was refused.
    refused: HashMap<usize, Error>,
}

#[derive(Debug)]
struct HeldTensor {
    tensor: Tensor,
    is_written: bool,
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
        serials: &Serials<'_>,
    ) -> bool {
        let Some(step) = sequence.steps.get(at) else { return false };
        if instruction.stream != sequence.stream
            || !call::same_line(instruction.location, step.location)
            || uses.len() != step.operands.len()
            || !call::does(instruction, &step.work)
        {
            return false;
        }
        let before = self.objects.len();
        let fits = uses.iter().zip(&step.operands).all(|(u, expected)| self.fits(sequence, u, expected, env, serials));
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
        serials: &Serials<'_>,
    ) -> bool {
        let Some(used) = call::operand(u, env, serials, |serial| self.objects.knows(serial)) else { return false };
        let Some(located) = self.objects.locate(&used) else { return false };
        if located.object != expected.value.0 || located.layout != expected.layout || used.access != expected.access {
            return false;
        }
        let writes = used.access.writes();
        if let Some(HeldTensor { tensor, is_written }) = self.tensors.get_mut(located.object) {
            if writes && !*is_written {
                *is_written = tensor.resource().holds().add_writer(true);
            }
            return !writes || *is_written;
        }
        let kind = &self.objects.get(located.object).kind;
        if *kind != sequence.kinds[located.object] {
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
        let holds = tensor.resource().holds();
        let is_ours = !kind.is_made || tensor.resource().claim(env.me).is_ok();
        let added = is_ours && if writes { holds.add_writer(false) } else { holds.add_reader() };
        if added {
            self.tensors.push(HeldTensor { tensor, is_written: writes });
        }
        added
    }

    /// Removes the objects from this number on.
    fn truncate(&mut self, len: usize) {
        self.objects.truncate(len);
        for HeldTensor { tensor, is_written } in self.tensors.drain(len.min(self.tensors.len())..) {
            match is_written {
                true => tensor.resource().holds().remove_writer(),
                false => tensor.resource().holds().remove_reader(),
            }
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

    /// For each object of the sequence, whether its calls make it and somebody can still use it.
    pub(super) fn results(&self, sequence: &Sequence) -> Vec<bool> {
        let is_result =
            |(object, held): (usize, &HeldTensor)| sequence.kinds[object].is_made && held.tensor.has_other_handles();
        self.tensors.iter().enumerate().map(is_result).collect()
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
        if !self.objects.get(object).kind.is_part {
            return *layout;
        }
        let offset = self.tensor(object).layout().offset();
        Layout::with_strides(*layout.shape(), layout.strides(), offset)
            .unwrap_or_else(|_| unreachable!("the call had this layout"))
    }

    /// Whether a held-back call uses the resource of this serial number.
    pub(super) fn uses(&self, serial: u64) -> bool {
        self.objects.knows(serial)
    }

    /// Tells those who use what refused calls would have written; returns the serial numbers and the errors.
    pub(super) fn refuse(&self) -> impl Iterator<Item = (u64, Error)> + '_ {
        self.refused.iter().map(|(object, error)| {
            self.tensor(*object).resource().holds().refuse();
            (self.objects.get(*object).serial, error.clone())
        })
    }

    /// The calls as the history keeps them.
    pub(super) fn calls(&self, stream: StreamKey, steps: &[Step]) -> Vec<Call> {
        let mut known = 0;
        let of_step = |step: &Step| {
            let of_operand = |Operand { value, layout, access }: &Operand| {
                let object = value.0;
                let Object { kind, serial, .. } = self.objects.get(object);
                let is_new = kind.is_made && object >= known;
                known = known.max(object + 1);
                let layout = self.in_storage(object, layout);
                OwnOperand::new(&Used {
                    serial: *serial,
                    is_new,
                    access: *access,
                    layout: &layout,
                    dtype: kind.dtype,
                    place: kind.place,
                    memory: kind.memory,
                    storage: self.tensor(object).owner().layout().shape(),
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
