//! A compiled program of one engine, and its runs.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use streamvm_ep::{
    Access, CpuSequence, DType, FnContext, FnError, InlineFn, MemoryKind, SequenceError, SequenceGroup, SequenceMemory,
    SequenceOperand, SequenceStep, SequenceWork, Shape,
};
use streamvm_instructions::{
    Cause, Error, InstructionList, Issued, Kind, Lane, LaunchOptions, Place, ProgramError, Role, Single, StepFailure,
    Tensor, Use,
};
use streamvm_program::{BufferRole, Compiled, CompiledBuffer, CompiledStep, Port, Program, Storage, Work};
use streamvm_stream::{StreamKey, StreamType};

use crate::dispatch::function_outcome::FunctionOutcome;
use crate::engine::core::Engine;
use crate::engine::submission::Full;
use crate::program_cache::loaded::LoadedProgram;
use crate::programs::fetches::Fetches;
use crate::submit::commit::Submitted;

/// A compiled program. `Send + Sync`, cheap to clone: several threads may run it at once. It does not keep its engine alive; after the
/// engine has ended, runs give [`Error::Shutdown`].
///
/// A run is one instruction on the compute stream of the program's device, on the thread's current [`Lane`]. So runs on one lane follow each
/// other, and runs on several lanes overlap, unless one writes a parameter that the other uses.
#[derive(Clone)]
pub struct Executable {
    engine: Weak<Engine>,
    /// Shared with runs, fetches and the cache.
    inner: Arc<LoadedProgram>,
    /// The tensors of the parameters, in the order of the program.
    parameters: Arc<[Tensor]>,
}

impl Executable {
    /// Binds the parameters of a program.
    pub(super) fn new(
        engine: &Arc<Engine>,
        inner: Arc<LoadedProgram>,
        parameters: &[(&str, &Tensor)],
    ) -> Result<Executable, Error> {
        let program = inner.compiled.program();
        let given = by_name(program, "parameter", &program.parameters, parameters)?;
        let fits = |(port, tensor): (&Port, &&Tensor)| check_fit(engine, program, "parameter", port, tensor, true);
        program.parameters.iter().zip(&given).try_for_each(fits)?;
        let parameters = given.into_iter().cloned().collect();
        Ok(Executable { engine: Arc::downgrade(engine), inner, parameters })
    }

    /// Submits one run, and returns its results at once; they are written when the run has passed. `feeds` are the inputs by name: tensors
    /// of the engine with the dtype, shape and place of the feed. A feed that has no gaps is used where it lies; another is first copied
    /// by an instruction of its own.
    ///
    /// The run is ordered after everything that wrote the feeds and parameters, and everything submitted later that uses what it writes is
    /// ordered after the run. If a feed or a parameter that it reads has failed, the run is skipped. If a step fails, the steps behind it do
    /// not run, and the fetches and all parameters that the program writes are poisoned; the executable can be used again, and a later run
    /// that overwrites a parameter heals it. Blocks while the queue is full, as [`Vm::submit`](crate::Vm::submit) does.
    ///
    /// # Errors
    /// A feed is missing, unknown, named twice, or does not fit; it shares memory with a parameter that the program writes, or two
    /// parameters do ([`BuildError::Overlap`](streamvm_instructions::BuildError::Overlap)); [`Error::Shutdown`] when the engine is gone; those of
    /// [`Vm::submit`](crate::Vm::submit). Nothing of the program runs then.
    #[track_caller]
    pub fn run(&self, feeds: &[(&str, &Tensor)]) -> Result<Fetches, Error> {
        self.run_as(self.inner.compiled.program().name.clone(), feeds, Location::caller())
    }

    /// [`run`](Executable::run) under a name of its own, which errors, profiles and traces have.
    pub(crate) fn run_as(
        &self,
        name: String,
        feeds: &[(&str, &Tensor)],
        location: &'static Location<'static>,
    ) -> Result<Fetches, Error> {
        let Some(engine) = self.engine.upgrade() else { return Err(Error::Shutdown) };
        let LoadedProgram { compiled, .. } = &*self.inner;
        let program = compiled.program();
        let given = by_name(program, "feed", &program.feeds, feeds)?;
        let mut copies: SmallVec<[Option<Tensor>; 4]> = SmallVec::new();
        let fits = |(port, tensor): (&Port, &&Tensor)| check_fit(&engine, program, "feed", port, tensor, false);
        program.feeds.iter().zip(&given).try_for_each(fits)?;
        let stream = StreamKey::new(compiled.device(), StreamType::Compute, Lane::current().0);
        for tensor in &given {
            let copy = |tensor| contiguous(&engine, stream, tensor, location);
            copies.push(if tensor.layout().is_contiguous() { None } else { Some(copy(tensor)?) });
        }
        let fresh: SmallVec<[Tensor; 4]> = compiled.buffers().iter().filter_map(|buffer| self.fresh(buffer)).collect();
        let mut next_fresh = fresh.iter();
        let uses = compiled.buffers().iter().map(|buffer| {
            let tensor = match buffer.role {
                BufferRole::Feed(place) => copies[place].as_ref().unwrap_or(given[place]),
                BufferRole::Parameter(place) => &self.parameters[place],
                BufferRole::Fetched(_) | BufferRole::Arena => {
                    next_fresh.next().unwrap_or_else(|| unreachable!("`fresh` has a tensor for each such buffer"))
                }
            };
            with_access(tensor, buffer.access)
        });
        let tensors = self.fetched(&fresh)?;
        let issued = Issued { stream, role: Role::Program, launch: LaunchOptions::default(), location };
        let inner = self.inner.clone();
        let code = || InlineFn::new(move |context: &mut FnContext<'_>| inner.call(context));
        let mut submitted = Submitted::default();
        Single::submit_function(issued, name, uses, code, |single| engine.submit_one(single, &mut submitted))?;
        engine.failures.log_unseen();
        Ok(Fetches { engine: self.engine.clone(), submitted, of: self.inner.clone(), tensors })
    }

    /// The compiled program: its buffers and steps, which print as text.
    pub fn compiled(&self) -> &Compiled {
        &self.inner.compiled
    }

    /// Whether it was compiled by this engine.
    pub(crate) fn is_of(&self, engine: &Arc<Engine>) -> bool {
        std::ptr::eq(self.engine.as_ptr(), Arc::as_ptr(engine))
    }

    /// The tensors that are bound to its parameters, by name.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let names = self.inner.compiled.program().parameters.iter().map(|parameter| parameter.name.as_str());
        names.zip(self.parameters.iter())
    }

    /// A new tensor for a buffer that each run has of its own.
    fn fresh(&self, buffer: &CompiledBuffer) -> Option<Tensor> {
        let compiled = &self.inner.compiled;
        match buffer.role {
            BufferRole::Feed(_) | BufferRole::Parameter(_) => None,
            BufferRole::Fetched(value) => {
                let value = compiled.program().value(value);
                Some(Tensor::unbound(value.place, value.memory, value.dtype, value.shape))
            }
            BufferRole::Arena => {
                let shape = Shape::new(&[buffer.bytes]);
                let shape = shape.unwrap_or_else(|_| unreachable!("the compiler has checked the size of the arena"));
                Some(Tensor::unbound(Place::Device(compiled.device()), MemoryKind::Device, DType::U8, shape))
            }
        }
    }

    /// The results, as views of the tensors that the run writes.
    fn fetched(&self, fresh: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let compiled = &self.inner.compiled;
        let written = compiled
            .buffers()
            .iter()
            .filter(|buffer| matches!(buffer.role, BufferRole::Fetched(_) | BufferRole::Arena));
        let by_role: SmallVec<[(BufferRole, &Tensor); 4]> = written.map(|buffer| buffer.role).zip(fresh).collect();
        let result = |fetch: &Port| {
            let role = BufferRole::Fetched(fetch.value);
            let (_, tensor) = by_role
                .iter()
                .find(|(found, _)| *found == role)
                .unwrap_or_else(|| unreachable!("the compiler gives each fetch a buffer"));
            if fetch.layout == *tensor.layout() { Ok((*tensor).clone()) } else { Ok(tensor.view(fetch.layout)?) }
        };
        compiled.program().fetches.iter().map(result).collect()
    }
}

impl LoadedProgram {
    /// Finds the kernels of a compiled program.
    ///
    /// # Errors
    /// The engine has no such device; an op has no kernel for a dtype.
    pub(super) fn new(engine: &Engine, compiled: Compiled) -> Result<LoadedProgram, Error> {
        engine.devices.get(compiled.device())?;
        let sizes: Vec<usize> = compiled.buffers().iter().map(|buffer| buffer.bytes).collect();
        let steps: Result<Vec<SequenceStep>, Error> =
            compiled.steps().iter().map(|step| sequence_step(engine, step, compiled.most_rounds())).collect();
        let groups = compiled.fused().iter().map(|it| SequenceGroup { steps: it.steps.clone(), block: it.block });
        let groups: Vec<SequenceGroup> = groups.collect();
        let sequence = CpuSequence::new(&sizes, steps?, &groups).map_err(|error| {
            let (program, what) = (compiled.program().name.clone(), error.to_string());
            ProgramError::NotCompiled { program, what }
        })?;
        let sequence = sequence.checking_finite(compiled.checks_finite());
        Ok(LoadedProgram { compiled, sequence })
    }

    /// Runs the steps. An error names the step, and the source line that recorded it.
    fn call(&self, context: &mut FnContext<'_>) -> Result<(), FnError> {
        let at_step = |step: usize, error: String| {
            let CompiledStep { work, number, location, .. } = &self.compiled.steps()[step];
            let failed = StepFailure { step: *number, what: work.name(), location, error };
            FnError::from(FunctionOutcome::Failed(Cause::Step(Box::new(failed))))
        };
        self.sequence.run(context).map_err(|error| match error {
            SequenceError::Step { step, error } => at_step(step, error.to_string()),
            SequenceError::NotFinite { step, index, value } => {
                at_step(step, format!("element {index:?} of its output is {value}"))
            }
            SequenceError::Rounds { step, rounds } => at_step(
                step,
                format!(
                    "its condition is still true after {rounds} rounds of all loops, the most that a run may make; if it needs more, \
                     compile the program with more `most_rounds`"
                ),
            ),
            other => other.into(),
        })
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executable").field("program", &self.inner.compiled.program().name).finish_non_exhaustive()
    }
}

fn with_access(tensor: &Tensor, access: Access) -> Use<'_> {
    match access {
        Access::Read => tensor.read(),
        Access::Write => tensor.write(),
        Access::ReadWrite => tensor.update(),
    }
}

/// A step of the compiler with the kernel that runs it.
fn sequence_step(engine: &Engine, step: &CompiledStep, most_rounds: u64) -> Result<SequenceStep, Error> {
    let work = match &step.work {
        Work::Call(op, params) => {
            let dtype = step.operands[op.key_input()].dtype;
            SequenceWork::Kernel(engine.kernels.get(*op, streamvm_ep::DeviceKind::Cpu, dtype)?, *params)
        }
        Work::Copy => SequenceWork::Copy,
        Work::Fill(value) => SequenceWork::Fill(*value),
        Work::If => SequenceWork::If,
        Work::Else => SequenceWork::Else,
        Work::While => SequenceWork::While { most_rounds },
        Work::End => SequenceWork::End,
    };
    let operands = step.operands.iter().map(|operand| SequenceOperand {
        memory: match operand.storage {
            Storage::Buffer { index, offset } => SequenceMemory::Buffer { index, offset },
            Storage::Scratch(piece) => SequenceMemory::Scratch(piece),
        },
        dtype: operand.dtype,
        layout: operand.layout,
        access: operand.access,
    });
    Ok(SequenceStep { work, operands: operands.collect() })
}

/// The tensors in the order of the program's ports.
fn by_name<'t>(
    program: &Program,
    kind: &'static str,
    ports: &[Port],
    given: &[(&str, &'t Tensor)],
) -> Result<SmallVec<[&'t Tensor; 4]>, Error> {
    let refused = |what: String| {
        let known = ports.iter().map(|port| port.name.clone()).collect();
        Err(ProgramError::Unknown { program: program.name.clone(), kind, what, known }.into())
    };
    for (place, (name, _)) in given.iter().enumerate() {
        if !ports.iter().any(|port| port.name == *name) {
            return refused(format!("there is no {kind} {name:?}"));
        }
        if given[..place].iter().any(|(other, _)| other == name) {
            return refused(format!("{kind} {name:?} is given twice"));
        }
    }
    let mut found = SmallVec::new();
    for port in ports {
        match given.iter().find(|(name, _)| *name == port.name) {
            Some((_, tensor)) => found.push(*tensor),
            None => return refused(format!("{kind} {:?} is missing", port.name)),
        }
    }
    Ok(found)
}

/// A copy of `tensor` without gaps, made by an instruction of its own on `stream`.
fn contiguous(
    engine: &Arc<Engine>,
    stream: StreamKey,
    tensor: &Tensor,
    location: &'static Location<'static>,
) -> Result<Tensor, Error> {
    let copy = Tensor::unbound(tensor.place(), tensor.memory(), tensor.dtype(), tensor.shape());
    let mut list = InstructionList::new();
    list.push(stream, Kind::Copy, [tensor.read(), copy.write()], location)?;
    engine.submit(&mut list, Full::Blocks, &mut Submitted::default())?;
    Ok(copy)
}

/// Checks that a tensor is of the engine and fits a feed or a parameter. A parameter is a whole storage: a run may overwrite it.
fn check_fit(
    engine: &Engine,
    program: &Program,
    kind: &'static str,
    port: &Port,
    tensor: &Tensor,
    whole: bool,
) -> Result<(), Error> {
    let value = program.value(port.value);
    let fits =
        tensor.dtype() == value.dtype && *tensor.layout().shape() == value.shape && tensor.place() == value.place;
    if !fits {
        return Err(ProgramError::Mismatch {
            program: program.name.clone(),
            kind,
            name: port.name.clone(),
            dtype: value.dtype,
            expected: Box::new(value.shape),
            place: value.place,
            found_dtype: tensor.dtype(),
            found: Box::new(tensor.shape()),
            found_place: tensor.place(),
        }
        .into());
    }
    if whole && !tensor.covers_storage() {
        let (program, name) = (program.name.clone(), port.name.clone());
        return Err(ProgramError::PartOfStorage { program, name }.into());
    }
    let foreign = |_| Error::Foreign { line: 0, what: program.name.clone() };
    tensor.resource().id_in(engine.me).map(drop).map_err(foreign)
}
