//! A compiled program of one engine, and its runs.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use streamvm_ep::{Layout, MemoryKind, Shape, Site};
use streamvm_instructions::{
    BuildError, Error, InstructionList, InstructionsBuilder, Issued, Kind, Lane, LaunchOptions, Place, Single, Tensor,
    WaitFor, copy_stream,
};
use streamvm_program::{
    BufferRole, Compiled, Located, Port, Program, Results, SegmentUse, StepFunction, Storage, Work,
};
use streamvm_stream::{StreamKey, StreamType, WaitKind};

use crate::engine::core::Engine;
use crate::engine::submission::Full;
use crate::program_cache::loaded::{LoadedProgram, with_access};
use crate::program_cache::only_kernel::OnlyKernel;
use crate::programs::apart::{RunBuffer, check_apart, check_feeds_apart, shared};
use crate::programs::fetches::Fetches;
use crate::submit::commit::Submitted;
use crate::vm::Vm;

/// A compiled program. `Send + Sync`, cheap to clone: several threads may run it at once. It does not keep its engine alive; after the
/// engine has ended, runs give [`Error::Shutdown`].
///
/// A run is one instruction for each segment of the program ([`Compiled::segments`](streamvm_program::Compiled::segments)), usually one. They
/// run on the streams of the segments, counted from the thread's current [`Lane`]. So runs on one lane follow each other, and runs on several
/// lanes overlap, unless one writes a parameter that the other uses.
///
/// If the whole program is one kernel call on a CPU that cannot fail, over feeds and parameters without gaps, a run submits that call as an eager
/// call does. Profiles, traces and refusals then name its op, and else the program.
#[derive(Clone)]
pub struct Executable {
    pub(super) engine: Weak<Engine>,
    /// Shared with runs, fetches and the cache.
    pub(super) inner: Arc<LoadedProgram>,
    /// The tensors of the parameters, in the order of the program.
    pub(super) parameters: Arc<[Tensor]>,
}

impl Executable {
    /// Binds the parameters of a program.
    pub(super) fn new(
        engine: &Arc<Engine>,
        inner: Arc<LoadedProgram>,
        parameters: &[(&str, &Tensor)],
        site: Site,
    ) -> Result<Executable, Error> {
        let program = inner.compiled.program();
        let given = program.given_parameters(parameters)?;
        check_own(engine, program, &program.parameters, &given, site)?;
        check_apart(&inner.compiled, &given)?;
        let parameters = given.into_iter().cloned().collect();
        Ok(Executable { engine: Arc::downgrade(engine), inner, parameters })
    }

    /// Submits one run, and returns its results at once; they are written when the run has passed. `feeds` are the inputs by name: tensors
    /// of the engine with the dtype and shape of the feed. A contiguous tensor in the feed's place (its device, or the host) is used directly;
    /// any other is copied first, by an instruction of its own.
    ///
    /// The run is ordered after everything that wrote the feeds and parameters, and everything submitted later that uses what it writes is
    /// ordered after the run. Segments that read what failed are skipped. If a step fails, the steps after it in its segment do not run. The
    /// failure poisons the outputs of this segment and of the segments that depend on it; in a program of one segment these are the fetches
    /// and all parameters that the program writes. The executable can be used again, and a later run that overwrites a parameter heals it.
    /// Blocks while the queue is full, as [`Vm::submit`](crate::Vm::submit) does. A run of a program with critical sections also blocks while another
    /// thread has a section over one of their resources open, as a list with such a section does.
    ///
    /// # Errors
    /// A feed is missing, unknown, named twice, or does not fit; it shares memory with a parameter that the program writes
    /// ([`ProgramError::Shared`](streamvm_instructions::ProgramError::Shared)); [`Error::Shutdown`] when the engine is gone; those of
    /// [`Vm::submit`](crate::Vm::submit), of a program with critical sections those of a list with sections among them ([`Error::NestedSection`],
    /// [`Error::SectionHeld`]). Nothing of the program runs then.
    #[track_caller]
    pub fn run(&self, feeds: &[(&str, &Tensor)]) -> Result<Fetches, Error> {
        let site = Site::caller();
        self.run_as(None, feeds, site).map_err(|error| self.refused(error, feeds, site))
    }

    /// [`run`](Executable::run) under a name of its own, which errors, profiles and traces have.
    ///
    /// # Errors
    /// Those of [`run`](Executable::run).
    #[track_caller]
    pub fn run_named(&self, name: &str, feeds: &[(&str, &Tensor)]) -> Result<Fetches, Error> {
        let site = Site::caller();
        self.run_as(Some(name), feeds, site).map_err(|error| self.refused(error, feeds, site))
    }

    /// The error of a run, which names the feed or the parameter that it is about.
    #[cold]
    pub(super) fn refused(&self, mut error: Error, feeds: &[(&str, &Tensor)], site: Site) -> Error {
        if matches!(error, Error::Build { error: BuildError::Overlap { .. }, .. }) {
            // The check of the instruction of a run in one segment has found it.
            let pairs = feeds.iter().flat_map(|fed| self.parameters().map(move |parameter| (fed, parameter)));
            let shares = |((_, fed), (_, parameter)): &(&(&str, &Tensor), (&str, &Tensor))| fed.overlaps(parameter);
            if let Some(((feed, _), (parameter, _))) = pairs.into_iter().find(shares) {
                error = shared(&self.inner.compiled, parameter, "feed", feed);
            }
        }
        if let Error::NeverWritten { what, operand, .. } | Error::Released { what, operand, .. } = &mut error {
            let program = self.inner.compiled.program();
            let given = feeds.iter().copied().chain(self.parameters());
            let is_it = |tensor: &Tensor| {
                let written = self.engine.upgrade().and_then(|engine| tensor.resource().written_in(engine.me));
                written.is_none() && tensor.described() == *operand
            };
            if let Some((name, tensor)) = given.into_iter().find(|(_, tensor)| is_it(tensor)) {
                (*what, *operand) = (program.name.clone(), as_port(name, tensor));
            }
        }
        error.called_from(site)
    }

    pub(super) fn run_as(&self, name: Option<&str>, feeds: &[(&str, &Tensor)], site: Site) -> Result<Fetches, Error> {
        if self.inner.has_bounded_sizes() {
            return self.at_sizes_of(feeds)?.run_as(name, feeds, site);
        }
        let Some(engine) = self.engine.upgrade() else { return Err(Error::shutdown()) };
        let compiled = &self.inner.compiled;
        let given = self.given(&engine, feeds, site)?;
        if let (None, Some(kernel)) = (&name, &self.inner.only_kernel)
            && let Some(inputs) = kernel.inputs(&given, &self.parameters)
        {
            return self.run_kernel(&engine, kernel, &inputs, site);
        }
        let run = self.begin_submitted(&engine, name, &given, site)?;
        let mut submitted = Submitted::default();
        match compiled.segments() {
            // It uses its buffers whole, as the compiler promises for the only segment of a program.
            [segment] if self.inner.segments[0].is_prepared() => {
                let stream = self.stream(0, run.lane);
                let role = self.inner.segments[0].role();
                let issued = Issued { stream, role, launch: LaunchOptions::default(), site };
                let name = self.name_of(&run);
                let uses = segment.uses.iter().map(|it| with_access(run.buffer(it.buffer), it.access));
                Single::submit_function(
                    issued,
                    name,
                    uses,
                    || self.inner.code(0, run.number),
                    |single| engine.submit_one(single, &mut submitted),
                )?;
            }
            _ => {
                let mut list = self.list_of(&run)?;
                engine.submit(&mut list, Full::Blocks, &mut submitted)?;
                self.note_issued();
            }
        }
        engine.failures.log_unseen();
        self.fetches(&run, submitted)
    }

    /// Appends a run to the list that is being built, on the builder's lane, and returns its results by name: later instructions of the list may use them, and
    /// feeds may be tensors that earlier ones write. The run is submitted with the list, as a whole or not at all. A run that draws random numbers takes the
    /// next [number](Executable::next_run) when it is appended. Tensors that the run writes belong to the engine that has compiled the program, so another engine
    /// refuses the list.
    ///
    /// ```
    /// use streamvm::program::CompileOptions;
    /// use streamvm::{DType, DeviceId, InstructionsBuilder, Vm};
    ///
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let (vm, cpu) = (Vm::builder().build()?, DeviceId::cpu(0));
    /// let program = vm.record("square", |r| {
    ///     let x = r.feed("x", cpu, DType::F32, &[2])?;
    ///     r.fetch("y", &(&x * &x)?)
    /// })?;
    /// let square = vm.compile(program, &[], &CompileOptions::default())?;
    /// let mut b = InstructionsBuilder::new();
    /// let x = b.full(cpu, DType::F32, &[2], 3)?;
    /// let run = square.run_in(&mut b, &[("x", &x)])?;
    /// let y = b.neg(&run["y"])?;
    /// vm.submit(b.finish())?;
    /// assert_eq!(y.to_vec::<f32>()?, [-9.0; 2]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`run`](Executable::run) about feeds; the list is unchanged then. The submission refuses what has no value by then.
    #[track_caller]
    pub fn run_in(&self, builder: &mut InstructionsBuilder, feeds: &[(&str, &Tensor)]) -> Result<Results, Error> {
        self.append_run(builder, feeds, Site::caller())
    }

    fn append_run(
        &self,
        builder: &mut InstructionsBuilder,
        feeds: &[(&str, &Tensor)],
        site: Site,
    ) -> Result<Results, Error> {
        if self.inner.has_bounded_sizes() {
            let sized = self.at_sizes_of(feeds).map_err(|error| error.called_from(site))?;
            return sized.append_run(builder, feeds, site);
        }
        let append = || {
            let Some(engine) = self.engine.upgrade() else { return Err(Error::shutdown()) };
            let given = self.given(&engine, feeds, site)?;
            let mut copies = None;
            let run = builder.lane().run(|| self.begin(&engine, None, &given, &mut copies, site))?;
            let mut list = copies.unwrap_or_default();
            list.append(self.list_of(&run)?);
            let names = self.inner.compiled.program().fetches.iter().map(|fetch| fetch.name.clone());
            let results = names.zip(self.results(&run)?);
            Ok((list, Results::new(self.inner.compiled.program().name.clone(), results)))
        };
        let (list, results) = append().map_err(|error| self.refused(error, feeds, site))?;
        builder.append(list);
        self.note_issued();
        Ok(results)
    }

    /// Tells the functions of the program that a run has issued them.
    pub(super) fn note_issued(&self) {
        let compiled = &self.inner.compiled;
        let functions = compiled.segments().iter().filter_map(|segment| compiled.function_of(segment));
        functions.for_each(StepFunction::note_issued);
    }

    /// The instructions of a run, a segment after the other.
    fn list_of(&self, run: &Run<'_>) -> Result<InstructionList, Error> {
        let mut list = InstructionList::new();
        // The line of each segment in the list.
        let mut lines: SmallVec<[usize; 8]> = SmallVec::new();
        for (number, segment) in self.inner.compiled.segments().iter().enumerate() {
            for &earlier in &segment.waits {
                let [stream, source] = [number, earlier].map(|segment| self.stream(segment, run.lane));
                let target = WaitFor::Line(lines[earlier]);
                list.push(stream, Kind::Wait { source, target, kind: WaitKind::Device }, [], run.site)?;
            }
            self.push_segment(&mut list, number, run)?;
            // The begin and the end of a section have several lines.
            lines.push(list.len() - 1);
        }
        Ok(list)
    }

    /// A run of a program that is one kernel call, over these inputs.
    fn run_kernel(
        &self,
        engine: &Arc<Engine>,
        kernel: &OnlyKernel,
        inputs: &[&Tensor],
        site: Site,
    ) -> Result<Fetches, Error> {
        let output = self.inner.fresh(kernel.output(&self.inner.compiled), engine.me);
        let output = output.unwrap_or_else(|| unreachable!("each run has a new tensor for what is fetched"));
        let stream = self.stream(0, Lane::current().0);
        let uses = inputs.iter().map(|input| input.read()).chain([output.write()]);
        let mut submitted = Submitted::default();
        Single::submit_op(stream, (kernel.op, &kernel.params), uses, site, |single| {
            engine.submit_one(single, &mut submitted)
        })?;
        engine.failures.log_unseen();
        let (engine, of) = (self.engine.clone(), self.inner.clone());
        Ok(Fetches { engine, submitted, of, tensors: SmallVec::from_iter([output]) })
    }

    /// The tensors for the feeds, in the order of the program.
    ///
    /// # Errors
    /// Those of [`run`](Executable::run) about feeds.
    pub(super) fn given<'t>(
        &self,
        engine: &Engine,
        feeds: &[(&str, &'t Tensor)],
        site: Site,
    ) -> Result<SmallVec<[&'t Tensor; 4]>, Error> {
        let program = self.inner.compiled.program();
        let given = program.given_feeds(feeds)?;
        check_own(engine, program, &program.feeds, &given, site)?;
        Ok(given)
    }

    /// [`begin`](Executable::begin), and submits the copies.
    pub(super) fn begin_submitted<'r>(
        &'r self,
        engine: &Arc<Engine>,
        name: Option<&'r str>,
        given: &[&'r Tensor],
        site: Site,
    ) -> Result<Run<'r>, Error> {
        let mut copies = None;
        let run = self.begin(engine, name, given, &mut copies, site)?;
        if let Some(copies) = &mut copies {
            engine.submit(copies, Full::Blocks, &mut Submitted::default())?;
        }
        Ok(run)
    }

    /// Begins a run: adds copies of the feeds that have gaps or are in another place than the program needs to `copies`, and makes its new tensors.
    fn begin<'r>(
        &'r self,
        engine: &Engine,
        name: Option<&'r str>,
        given: &[&'r Tensor],
        copies: &mut Option<InstructionList>,
        site: Site,
    ) -> Result<Run<'r>, Error> {
        let compiled = &self.inner.compiled;
        let lane = Lane::current().0;
        let mut own: SmallVec<[Tensor; 4]> = SmallVec::new();
        let mut buffers: SmallVec<[RunBuffer<'r>; 8]> = SmallVec::new();
        for buffer in compiled.buffers() {
            let found = match buffer.role {
                BufferRole::Parameter(place) => RunBuffer::Given(&self.parameters[place]),
                BufferRole::Feed(place) => {
                    let (tensor, value) = (given[place], compiled.program().feeds[place].value);
                    let needed = compiled.program().value(value).place;
                    if tensor.layout().is_contiguous() && tensor.place() == needed {
                        RunBuffer::Given(tensor)
                    } else {
                        own.push(copied(copies.get_or_insert_default(), lane, tensor, needed, site)?);
                        RunBuffer::Own(own.len() - 1)
                    }
                }
                BufferRole::Fetched(_) | BufferRole::Own(_) | BufferRole::Arena(_) | BufferRole::Flag(_) => {
                    own.extend(self.inner.fresh(buffer, engine.me));
                    RunBuffer::Own(own.len() - 1)
                }
            };
            buffers.push(found);
        }
        if compiled.segments().len() > 1 {
            check_feeds_apart(compiled, &buffers)?;
        }
        let number = if self.inner.draws { self.inner.next_run.fetch_add(1, Ordering::Relaxed) } else { 0 };
        Ok(Run { name, number, lane, site, buffers, own })
    }

    /// The number of the next run, from 0, which decides about its random numbers: each run of a program that draws some goes on where the run
    /// before it ended. Clones of the executable count together, and so do executables of one program that [`Vm::compiled`](crate::Vm::compiled)
    /// has found again; a program that the cache has dropped, and that is compiled again, begins with run 0. A run that is refused may count.
    /// Runs of a program that draws none do not count.
    pub fn next_run(&self) -> u64 {
        self.inner.next_run.load(Ordering::Relaxed)
    }

    /// Sets the [number of the next run](Executable::next_run), to repeat random numbers or to go on with those of an earlier process.
    pub fn set_next_run(&self, number: u64) {
        self.inner.next_run.store(number, Ordering::Relaxed);
    }

    /// The stream of a segment in a run whose thread is on this lane.
    fn stream(&self, segment: usize, lane: u32) -> StreamKey {
        let stream = self.inner.compiled.segments()[segment].stream;
        // Groups of ranks have their lanes of collective streams for all engines and runs.
        let lane = if stream.stream_type == StreamType::Collective { 0 } else { lane };
        StreamKey { lane: lane.wrapping_add(stream.lane), ..stream }
    }

    /// Appends the instruction of a segment; several for the begin or the end of a critical section.
    pub(super) fn push_segment(&self, list: &mut InstructionList, number: usize, run: &Run<'_>) -> Result<(), Error> {
        let site = run.site;
        let compiled = &self.inner.compiled;
        let segment = &compiled.segments()[number];
        let stream = self.stream(number, run.lane);
        let function = compiled.function_of(segment);
        if function.is_some() || compiled.is_touch(segment) {
            let operands = compiled.step(segment.steps.start).operands;
            let tensors: SmallVec<[Tensor; 8]> =
                operands.iter().map(|operand| run.view(operand)).collect::<Result<_, _>>()?;
            let uses = tensors.iter().zip(&operands).map(|(tensor, operand)| with_access(tensor, operand.access));
            let Some(function) = function else { return list.push(stream, Kind::Touch, uses, site) };
            let (role, body) = (self.inner.segments[number].role(), Some(self.inner.code(number, run.number)));
            let name = format!("{} of {}", function.name(), self.name_of(run)).into();
            return list.push(stream, Kind::Function { role, name, body }, uses, site);
        }
        if segment.is_section_mark() {
            let step = compiled.step(segment.steps.start);
            let tensors = step.operands.iter().map(|operand| run.view(operand)).collect::<Result<Vec<Tensor>, _>>()?;
            let tensors: SmallVec<[&Tensor; 8]> = tensors.iter().collect();
            let mut builder = InstructionsBuilder::new();
            match step.work {
                Work::SectionBegin(section) => {
                    builder.on_lane(stream.lane).begin(section.section(), &tensors, site)?;
                }
                Work::SectionEnd(section) => builder.on_lane(stream.lane).end(section.section(), &tensors, site),
                _ => unreachable!("the stream of critical sections has no other steps"),
            }
            list.append(builder.finish());
            return Ok(());
        }
        if segment.is_transfer() {
            let step = compiled.step(segment.steps.start);
            let [source, target] = &step.operands[..] else { unreachable!("a copy has two operands") };
            let (source, target) = (run.view(source)?, run.view(target)?);
            // It is an instruction like others, whose failure names no step, so it has the site of the step itself.
            return list.push(stream, Kind::Copy, [source.read(), target.write()], step.site);
        }
        let used = |segment_use: &SegmentUse| -> Result<Tensor, Error> {
            let tensor = run.buffer(segment_use.buffer);
            if is_whole(compiled, segment_use) {
                return Ok(tensor.clone());
            }
            if let Some(view) = &segment_use.view {
                return within(tensor, view);
            }
            let size = tensor.dtype().size();
            let shape = Shape::new(&[segment_use.bytes.len() / size])?;
            within(tensor, &Layout::with_strides(shape, &[1], segment_use.bytes.start / size)?)
        };
        let tensors: SmallVec<[Tensor; 8]> = segment.uses.iter().map(used).collect::<Result<_, _>>()?;
        let uses =
            tensors.iter().zip(&segment.uses).map(|(tensor, segment_use)| with_access(tensor, segment_use.access));
        let (role, name, code) =
            (self.inner.segments[number].role(), self.name_of(run), self.inner.code(number, run.number));
        list.push_program(stream, (role, name), uses, code, site)
    }

    /// The compiled program: its buffers and steps, which print as text.
    pub fn compiled(&self) -> &Compiled {
        &self.inner.compiled
    }

    /// The name of the instructions of a run: its own, or that of the program.
    fn name_of(&self, run: &Run<'_>) -> String {
        run.name.unwrap_or(&self.inner.compiled.program().name).to_owned()
    }

    /// Whether it was compiled by this engine.
    pub fn is_of(&self, vm: &Vm) -> bool {
        std::ptr::eq(self.engine.as_ptr(), Arc::as_ptr(&vm.engine))
    }

    /// Checks that a tensor, which errors call `what`, is of the engine that has compiled this.
    ///
    /// # Errors
    /// [`Error::Foreign`]; [`Error::Shutdown`] when the engine is gone.
    #[track_caller]
    pub fn check_owner(&self, what: &str, tensor: &Tensor) -> Result<(), Error> {
        let site = Site::caller();
        let Some(engine) = self.engine.upgrade() else { return Err(Error::shutdown()) };
        let foreign = |_| tensor.resource().foreign(0, what.to_owned(), tensor.described(), site);
        tensor.resource().id_in(engine.me).map(drop).map_err(foreign)
    }

    /// The tensors that are bound to its parameters, by name.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let names = self.inner.compiled.program().parameters.iter().map(|parameter| parameter.name.as_str());
        names.zip(self.parameters.iter())
    }

    pub(super) fn fetches(&self, run: &Run<'_>, submitted: Submitted) -> Result<Fetches, Error> {
        let tensors = self.results(run)?;
        Ok(Fetches { engine: self.engine.clone(), submitted, of: self.inner.clone(), tensors })
    }

    /// The results, as views of the tensors that the run writes.
    fn results(&self, run: &Run<'_>) -> Result<SmallVec<[Tensor; 2]>, Error> {
        let LoadedProgram { compiled, fetches, .. } = &*self.inner;
        let mut tensors = SmallVec::with_capacity(fetches.len());
        for (fetch, buffer) in compiled.program().fetches.iter().zip(fetches) {
            let tensor = run.buffer(*buffer);
            let whole = fetch.layout == *tensor.layout();
            tensors.push(if whole { tensor.clone() } else { tensor.view(fetch.layout)? });
        }
        Ok(tensors)
    }
}

/// A run that has begun: its buffers.
pub(super) struct Run<'r> {
    /// The name of its instructions, if it is not that of the program.
    name: Option<&'r str>,
    /// Its number, which decides about its random numbers.
    number: u64,
    lane: u32,
    site: Site,
    /// For each buffer of the program its tensor.
    buffers: SmallVec<[RunBuffer<'r>; 8]>,
    own: SmallVec<[Tensor; 4]>,
}

impl Run<'_> {
    /// The tensor of a buffer.
    pub(super) fn buffer(&self, index: usize) -> &Tensor {
        match self.buffers[index] {
            RunBuffer::Given(tensor) => tensor,
            RunBuffer::Own(place) => &self.own[place],
        }
    }

    /// An operand of a step, which lies in a buffer of its value.
    pub(super) fn view(&self, operand: &Located<'_>) -> Result<Tensor, Error> {
        let Storage::Buffer { index, .. } = operand.storage else {
            unreachable!("what is viewed from outside of a segment is not in scratch memory")
        };
        within(self.buffer(index), operand.layout)
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executable").field("program", &self.inner.compiled.program().name).finish_non_exhaustive()
    }
}

/// A view of a part of the storage of `tensor`, which has no gaps; the layout counts from the first element of `tensor`.
fn within(tensor: &Tensor, layout: &Layout) -> Result<Tensor, Error> {
    let offset = tensor.layout().offset() + layout.offset();
    tensor.view(Layout::with_strides(*layout.shape(), layout.strides(), offset)?)
}

/// Whether a segment uses a buffer from its first to its last byte.
fn is_whole(compiled: &Compiled, segment_use: &SegmentUse) -> bool {
    segment_use.view.is_none() && segment_use.bytes.len() == compiled.buffers()[segment_use.buffer].bytes
}

/// A copy of `tensor` without gaps in another place, made by an instruction that is added to `list`.
fn copied(list: &mut InstructionList, lane: u32, tensor: &Tensor, place: Place, site: Site) -> Result<Tensor, Error> {
    let memory = if place == tensor.place() { tensor.memory() } else { MemoryKind::Device };
    let copy = Tensor::unbound(place, memory, tensor.dtype(), tensor.shape());
    let ends = [tensor, &copy].map(|end| (end.place(), end.memory()));
    let (device, stream_type) = copy_stream(ends[0], ends[1], StreamType::Compute);
    list.push(StreamKey::new(device, stream_type, lane), Kind::Copy, [tensor.read(), copy.write()], site)?;
    Ok(copy)
}

/// Checks that the tensors given for `ports` are of the engine.
///
/// # Errors
/// [`Error::Foreign`] for the first that is not.
fn check_own(engine: &Engine, program: &Program, ports: &[Port], tensors: &[&Tensor], site: Site) -> Result<(), Error> {
    match tensors.iter().position(|tensor| tensor.resource().id_in(engine.me).is_err()) {
        None => Ok(()),
        Some(place) => {
            let (what, operand) = (program.name.clone(), as_port(&ports[place].name, tensors[place]));
            Err(tensors[place].resource().foreign(0, what, operand, site))
        }
    }
}

/// A tensor that was given for a feed or a parameter, in words.
fn as_port(name: &str, tensor: &Tensor) -> String {
    format!("{} for {name:?}", tensor.described())
}
