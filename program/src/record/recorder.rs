//! Recording a program from a closure.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use streamvm_ep::{DType, DeviceId, FnContext, FnError, MemoryKind, Scalar, Shape, Site};
use streamvm_instructions::{
    Critical, EngineRef, Error, Generator, InstructionList, InstructionsBuilder, Place, ProgramError, Section, Tensor,
    Use,
};

use crate::ir::dims::{Dim, Sizes};
use crate::ir::function::{FunctionOrder, StepFunction};
use crate::ir::program::{Program, ValueRole, Work};
use crate::record::engine::{Open, with};
use crate::record::recording::Recording;
use crate::record::results::Results;
use crate::record::steps::Steps;

/// The argument of a recorded closure, by which it names feeds, parameters and fetches. It stays on its thread. Clones are the same recorder, which is refused once the
/// recording has ended.
#[derive(Clone)]
pub struct Recorder {
    recording: EngineRef,
    /// A recording belongs to one thread.
    thread: PhantomData<*const ()>,
}

/// Runs `f`, and returns the program of the calls that it makes on tensors of the recording. Nothing is computed. Calls on other tensors
/// run as always. Recordings may be nested; in the inner one, the recorder and the tensors of the outer one are refused.
///
/// ```
/// use streamvm_ep::{DType, DeviceId};
///
/// # fn main() -> Result<(), streamvm_instructions::Error> {
/// let program = streamvm_program::record("twice", |r| {
///     let x = r.feed("x", DeviceId::cpu(0), DType::F32, &[4])?;
///     r.fetch("y", &(&x + &x)?)
/// })?;
/// assert_eq!(program.steps.len(), 1);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of `f`. [`ProgramError::Name`]: a name of a feed, parameter or fetch is empty, has spaces or control characters, or was given twice.
/// [`ProgramError::Malformed`]: the program's own name has control characters, or spaces around it. [`Error::NotEnded`]: a critical section was begun and
/// not ended; [`Error::NestedSection`] and [`Error::NoSection`].
#[track_caller]
pub fn record(name: impl Into<String>, f: impl FnOnce(&Recorder) -> Result<(), Error>) -> Result<Program, Error> {
    let mut program = record_once(name.into(), None, f)?;
    let site = Site::caller();
    program.check().map_err(|error| error.called_from(site))?;
    // A compiled program shares it for as long as it lives.
    program.shrink_to_fit();
    Ok(program)
}

/// Runs `f`, and returns what it has recorded, unchecked. `sizes` are those of bounded feeds: an empty list stands for the bounds, and `None` refuses such feeds.
pub(super) fn record_once(
    name: String,
    sizes: Option<Sizes>,
    f: impl FnOnce(&Recorder) -> Result<(), Error>,
) -> Result<Program, Error> {
    let open = Open::begin(name, sizes);
    f(&Recorder { recording: open.recording(), thread: PhantomData })?;
    Ok(open.finish())
}

impl Recorder {
    /// Calls `f` with the recording, which must be the innermost of this thread.
    #[track_caller]
    fn with<R>(&self, f: impl FnOnce(&mut Recording) -> Result<R, Error>) -> Result<R, Error> {
        let site = Site::caller();
        let found = with(|recording| {
            if recording.engine.is(self.recording) { f(recording) } else { Err(ProgramError::NotInnermost.into()) }
        });
        found.map_err(|error| error.called_from(site))
    }

    /// A tensor that stands for an input of each run.
    ///
    /// # Errors
    /// The shape is impossible; [`ProgramError::NotInnermost`] and [`ProgramError::RecordingOver`] if this is not the recording of the thread.
    #[track_caller]
    pub fn feed(
        &self,
        name: impl Into<String>,
        place: impl Into<Place>,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor, Error> {
        let (shape, site) = (Shape::new(shape)?, Site::caller());
        let (name, tensor) = (name.into(), Tensor::unbound(place.into(), MemoryKind::Device, dtype, shape));
        self.with(|recording| Ok(recording.add_given(name, tensor, ValueRole::Feed, site)))
    }

    /// A tensor that stands for an input of each run, of which some axes have any size up to a bound ([`record_bounded`](crate::record_bounded)). In the
    /// recording it has the sizes that the closure is called for.
    ///
    /// # Errors
    /// Those of [`feed`](Recorder::feed); [`ProgramError::NotRecordable`] for a bounded size outside of `record_bounded`, bounds of less than two sizes, two of one name, more
    /// than four sizes, or a name of other characters than letters, digits and `_`.
    #[track_caller]
    pub fn bounded_feed(
        &self,
        name: impl Into<String>,
        place: impl Into<Place>,
        dtype: DType,
        axes: &[Dim],
    ) -> Result<Tensor, Error> {
        let (name, site) = (name.into(), Site::caller());
        let shape = self.with(|recording| recording.bounded_shape(&name, axes, site))?;
        let tensor = Tensor::unbound(place.into(), MemoryKind::Device, dtype, shape);
        self.with(|recording| Ok(recording.add_given(name, tensor, ValueRole::Feed, site)))
    }

    /// A tensor that stands for a tensor which outlives the runs, and which they may write. It has the place, dtype and shape of `like`;
    /// the tensor itself is given when the program is compiled, and must be a whole storage then, no slice or transposed view.
    ///
    /// # Errors
    /// [`ProgramError::NotInnermost`] and [`ProgramError::RecordingOver`] if this is not the recording of the thread.
    #[track_caller]
    pub fn parameter(&self, name: impl Into<String>, like: &Tensor) -> Result<Tensor, Error> {
        let tensor = Tensor::unbound(like.place(), like.memory(), like.dtype(), like.shape());
        let (name, site) = (name.into(), Site::caller());
        self.with(|recording| Ok(recording.add_given(name, tensor, ValueRole::Parameter, site)))
    }

    /// Names `tensor` as a result of each run: its elements after the last step of the program, steps recorded after this call among
    /// them.
    ///
    /// # Errors
    /// [`ProgramError::NotRecordable`] if no step of this recording has written it; [`Error::Released`].
    #[track_caller]
    pub fn fetch(&self, name: impl Into<String>, tensor: &Tensor) -> Result<(), Error> {
        let (site, name) = (Site::caller(), name.into());
        self.with(|recording| recording.add_fetch(name, tensor, site))
    }

    /// Whether calls from here on, over operands on different devices or of different dtypes, record copies and casts of those that do not fit, as
    /// [`InstructionsBuilder::with_transfers`] does. They are steps like others, at the line of the call. Without it, such a call is refused.
    ///
    /// ```
    /// use streamvm_ep::{DType, DeviceId};
    ///
    /// # fn main() -> Result<(), streamvm_instructions::Error> {
    /// let cpu = DeviceId::cpu(0);
    /// let program = streamvm_program::record("scale", |r| {
    ///     r.insert_transfers(true)?;
    ///     let (pixels, scale) = (r.feed("pixels", cpu, DType::U8, &[4])?, r.feed("scale", cpu, DType::F32, &[])?);
    ///     r.fetch("scaled", &(&pixels * &scale)?)
    /// })?;
    /// let steps: Vec<&str> = program.steps.iter().map(|step| step.work.name()).collect();
    /// assert_eq!(steps, ["cast", "mul"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ProgramError::NotInnermost`] and [`ProgramError::RecordingOver`] if this is not the recording of the thread.
    #[track_caller]
    pub fn insert_transfers(&self, insert: bool) -> Result<(), Error> {
        self.with(|recording| {
            recording.inserts_transfers = insert;
            Ok(())
        })
    }

    /// Records a list. Its instructions keep their lanes ([`Step::lane`](crate::Step::lane)).
    ///
    /// # Errors
    /// An instruction of the list cannot be recorded, one on another lane than the block around it among them; then none is.
    #[track_caller]
    pub fn submit(&self, list: InstructionList) -> Result<(), Error> {
        self.with(|recording| recording.add(&list))
    }

    /// Records the steps of another program, and returns its results by name. Later steps may use and overwrite them.
    ///
    /// `feeds` and `parameters` are tensors of this recording, by the names that the program has for them. A feed may be a view. One with gaps, or in
    /// another place than the program needs, is copied first, by a step of its own. A parameter is bound to a tensor with all elements of its storage: a
    /// parameter of the recording, or another tensor, which the program may write. A result that is a feed or a parameter of the program is a copy of
    /// its elements at the end of the call.
    ///
    /// The steps keep the source lines that recorded them, and become part of the blocks around the call. Random numbers begin where the generator
    /// stood when the program was recorded; if steps of this recording have drawn numbers of the same seed from there on, they go on after these.
    /// Generators do not notice calls: draw what follows in the recording from one with another seed.
    ///
    /// ```
    /// use streamvm_ep::{DType, DeviceId};
    ///
    /// # fn main() -> Result<(), streamvm_instructions::Error> {
    /// let cpu = DeviceId::cpu(0);
    /// let twice = streamvm_program::record("twice", |r| {
    ///     let x = r.feed("x", cpu, DType::F32, &[4])?;
    ///     r.fetch("y", &(&x + &x)?)
    /// })?;
    /// let program = streamvm_program::record("four times", |r| {
    ///     let x = r.feed("x", cpu, DType::F32, &[4])?;
    ///     let two = r.call(&twice, &[("x", &x)], &[])?;
    ///     let four = r.call(&twice, &[("x", &two["y"])], &[])?;
    ///     r.fetch("y", &four["y"])
    /// })?;
    /// assert_eq!(program.steps.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Nothing is recorded then. A feed or parameter is missing, unknown or given twice ([`ProgramError::Unknown`]), or does not fit
    /// ([`ProgramError::Mismatch`], [`ProgramError::PartOfStorage`]); a parameter that the program writes is also a feed, or another parameter, of the call
    /// ([`BuildError::Overlap`](streamvm_instructions::BuildError::Overlap)). [`ProgramError::NotRecordable`]: a tensor is not of this recording, or
    /// was made in a block that has ended; the program writes a feed of this recording; it calls functions on another device than a CPU, and a block is
    /// open; more than 64 blocks would be nested. [`Error::NeverWritten`] and [`Error::Released`] of a tensor. [`ProgramError::Malformed`] and [`ProgramError::Name`] of the
    /// program.
    #[track_caller]
    pub fn call(
        &self,
        program: &Program,
        feeds: &[(&str, &Tensor)],
        parameters: &[(&str, &Tensor)],
    ) -> Result<Results, Error> {
        let site = Site::caller();
        // A check calls rules of registered ops, which are code of callers, so it comes before the recording is borrowed.
        let checked = program.check();
        self.with(|recording| {
            checked?;
            recording.add_program(program, feeds, parameters, site)
        })
    }

    /// Records a call of a function over declared reads and writes, on the compute stream of `device`, a CPU or a simulated device. It is
    /// [`InstructionsBuilder::call_fn`] for a function that is called once in each run, or each time that its step runs where it lies in a block: the function
    /// gets slices of the tensors that its uses stand for, the reads in the order declared, then the writes and updates in the order declared.
    ///
    /// Each run calls it once, or in a block each time that its step runs, also if nobody needs what it writes, unless its segment is skipped or ends because of a failure. It comes after the steps
    /// that its uses need, and after the functions of the same device that were recorded before. A function without uses is called after all steps that were recorded before it for compute streams of its
    /// device, and before all later ones. Runs that overlap call it from several threads at once. An error or a panic is the failure
    /// of this step, and fails all that its segment writes.
    ///
    /// In a block, `device` is a CPU. A failure ends the loops around it. The block is ordered after others, and others after the block, as its functions are. In a block that
    /// another device runs, the function is called between the commands of that device, by the thread that queues them: while it runs, nothing else is queued on any stream there, so it must not wait for anything that
    /// needs that device.
    ///
    /// If the whole program is one segment on a CPU, or the function lies in a block, it is called between the steps of its segment. Then it must not wait for anything that needs a
    /// result of this segment, nor for later steps of the same stream, nor may anything that writes a feed or parameter of the segment wait for it. It must never wait for another function of the same run that is
    /// not ordered before it: one thread may call both, one after the other.
    ///
    /// ```
    /// use streamvm_ep::{DType, DeviceId};
    ///
    /// # fn main() -> Result<(), streamvm_instructions::Error> {
    /// let cpu = DeviceId::cpu(0);
    /// let program = streamvm_program::record("sorts", |r| {
    ///     let x = r.feed("x", cpu, DType::F32, &[4])?;
    ///     let y = x.abs()?;
    ///     r.call_fn("sort", cpu, [y.update()], |context| {
    ///         context.writes.take::<f32>(0)?.sort_by(f32::total_cmp);
    ///         Ok(())
    ///     })?;
    ///     r.fetch("y", &y)
    /// })?;
    /// assert_eq!(program.functions(), ["sort"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Nothing is recorded then. Those of [`InstructionsBuilder::call_fn`]: the host cannot reach a tensor, or a written one shares elements with another.
    /// [`ProgramError::NotRecordable`]: it uses a variable, writes a feed, or lies in a block and `device` is no CPU; or a tensor is not of this recording.
    /// [`Error::NeverWritten`] and [`Error::Released`] of a tensor. A CUDA device is refused when the
    /// program is compiled.
    #[track_caller]
    pub fn call_fn<'u, F>(
        &self,
        name: impl Into<String>,
        device: DeviceId,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: F,
    ) -> Result<(), Error>
    where
        F: for<'a, 'b> Fn(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + Sync + 'static,
    {
        self.add_call(StepFunction::new(name.into(), device, Some(Arc::new(f))), None, uses)
    }

    /// Records a call of a function that its uses alone order, as [`InstructionsBuilder::on_workers`] does in a list: it comes after the steps that write what it
    /// uses, and before those that overwrite it or use what it writes. Other functions may be called before, after or beside it, so it must not wait for them. In a program that is compiled for
    /// several [lanes](crate::CompileOptions::lanes) of a CPU, several threads call such functions. In a block they are called in the order of the recording. Threads of the host call them, so `device` is a CPU. Else as [`call_fn`](Recorder::call_fn).
    ///
    /// ```
    /// use streamvm_ep::{DType, DeviceId};
    ///
    /// # fn main() -> Result<(), streamvm_instructions::Error> {
    /// let cpu = DeviceId::cpu(0);
    /// let program = streamvm_program::record("sorts", |r| {
    ///     for name in ["a", "b"] {
    ///         let x = r.feed(name, cpu, DType::F32, &[4])?.abs()?;
    ///         r.call_fn_on_workers("sort", cpu, [x.update()], |context| {
    ///             context.writes.take::<f32>(0)?.sort_by(f32::total_cmp);
    ///             Ok(())
    ///         })?;
    ///         r.fetch(format!("sorted_{name}"), &x)?;
    ///     }
    ///     Ok(())
    /// })?;
    /// assert!(program.to_string().contains("workers@cpu:0:0"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`call_fn`](Recorder::call_fn).
    #[track_caller]
    pub fn call_fn_on_workers<'u, F>(
        &self,
        name: impl Into<String>,
        device: DeviceId,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: F,
    ) -> Result<(), Error>
    where
        F: for<'a, 'b> Fn(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + Sync + 'static,
    {
        self.add_call(
            StepFunction::new(name.into(), device, Some(Arc::new(f))).ordered(FunctionOrder::Workers),
            None,
            uses,
        )
    }

    /// Records a call of a function on the collective stream of its device and `lane`, as [`InstructionsBuilder::on_collective`] does in a list: each run has it as an
    /// instruction there, after those recorded before it, where it may start an [`Operation`](streamvm_ep::Operation). The lane is the same for runs on any lane.
    /// The device is a CPU, or a CUDA device, where the function gets the driver's stream
    /// ([`InstructionsBuilder::call_raw`]).
    ///
    /// # Errors
    /// As [`call_fn`](Recorder::call_fn); within a block.
    #[track_caller]
    pub fn call_on_collective<'u>(
        &self,
        function: StepFunction,
        lane: u32,
        uses: impl IntoIterator<Item = Use<'u>>,
    ) -> Result<(), Error> {
        self.add_call(function.ordered(FunctionOrder::Collective), Some(lane), uses)
    }

    #[track_caller]
    fn add_call<'u>(
        &self,
        function: StepFunction,
        lane: Option<u32>,
        uses: impl IntoIterator<Item = Use<'u>>,
    ) -> Result<(), Error> {
        let mut builder = InstructionsBuilder::new();
        // The list only says what the function uses.
        let lane = lane.unwrap_or(builder.lane().0);
        function.append_to(&mut builder.on_lane(lane), uses)?;
        let list = builder.finish();
        self.with(|recording| recording.add_function(&list, &function))
    }

    /// Records a call of a function that uses no tensor, such as one that counts or logs. As [`call_fn`](Recorder::call_fn) without uses.
    ///
    /// # Errors
    /// As [`call_fn`](Recorder::call_fn).
    #[track_caller]
    pub fn host_fn<F>(&self, name: impl Into<String>, device: DeviceId, f: F) -> Result<(), Error>
    where
        F: Fn() -> Result<(), FnError> + Send + Sync + 'static,
    {
        self.call_fn(name, device, [], move |_| f())
    }

    /// Begins a critical section over `resources`: the steps that are recorded up to [`end_section`](Recorder::end_section) run, in each run and on all
    /// streams, without those of other sections over one of the resources in between, be these of runs, of lists or of threads that have entered
    /// one. It is [`InstructionsBuilder::begin_section`] for a program; lists that have sections can be recorded, too.
    ///
    /// In each run the section begins when `feeds`, the tensors that it needs, have been written. A failed feed fails what reads it, and not the section.
    ///
    /// ```
    /// use streamvm_ep::{DType, DeviceId};
    /// use streamvm_instructions::Critical;
    ///
    /// # fn main() -> Result<(), streamvm_instructions::Error> {
    /// let (cpu, port) = (DeviceId::cpu(0), Critical::new("port"));
    /// let program = streamvm_program::record("asks", |r| {
    ///     let x = r.feed("x", cpu, DType::F32, &[4])?;
    ///     let (question, answer) = (x.abs()?, r.full(cpu, DType::F32, &[4], 0.0)?);
    ///     let section = r.begin_section(&[&port], &[&question])?;
    ///     r.call_fn("send", cpu, [question.read()], |_| Ok(()))?;
    ///     r.call_fn("receive", cpu, [answer.update()], |_| Ok(()))?;
    ///     r.end_section(section, &[&answer])?;
    ///     r.fetch("y", &(&answer + 1.0)?)
    /// })?;
    /// assert_eq!(program.criticals(), ["port"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BuildError::NoResource`](streamvm_instructions::BuildError::NoResource) without resources. [`ProgramError::NotRecordable`]: it lies in a block, or a
    /// feed is not of this recording. [`Error::NeverWritten`] and [`Error::Released`] of a feed. A section that begins in another one, or is not ended, is an
    /// error of [`record`].
    #[track_caller]
    pub fn begin_section(&self, resources: &[&Critical], feeds: &[&Tensor]) -> Result<Section, Error> {
        let mut builder = InstructionsBuilder::new();
        let section = builder.begin_section(resources, feeds)?;
        self.submit(builder.finish())?;
        Ok(section)
    }

    /// Ends a critical section, after all its steps. `results` are tensors that it wrote: what uses them later runs after the end. A failed result stays
    /// failed; the section ends all the same. Steps that compute results are not removed.
    ///
    /// # Errors
    /// As [`begin_section`](Recorder::begin_section), for `results`.
    #[track_caller]
    pub fn end_section(&self, section: Section, results: &[&Tensor]) -> Result<(), Error> {
        let mut builder = InstructionsBuilder::new();
        builder.end_section(section, results);
        self.submit(builder.finish())
    }

    /// Records what `body` records, and orders these steps after all steps of `earlier`, although no tensor asks for that. Returns what `body`
    /// returns, and a handle by which later steps can be ordered after these; with no `earlier` steps it only makes that handle.
    ///
    /// The order holds within a run, whatever the streams. It is order alone: if an earlier step fails, the later ones run, unless both are in one segment,
    /// which ends with its first failure. Steps that the compiler removes, because nobody needs what they write, order nothing.
    ///
    /// ```
    /// use streamvm_ep::DeviceId;
    ///
    /// # fn main() -> Result<(), streamvm_instructions::Error> {
    /// let (cpu, sim) = (DeviceId::cpu(0), DeviceId::sim(0));
    /// streamvm_program::record("ordered", |r| {
    ///     let ((), opened) = r.after(&[], || r.host_fn("open", sim, || Ok(())))?;
    ///     r.after(&[&opened], || r.host_fn("send", cpu, || Ok(())))?;
    ///     Ok(())
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `body`: what it has recorded stays in the recording then, without this order. [`ProgramError::NotRecordable`]: `earlier` are steps of
    /// another recording.
    #[track_caller]
    pub fn after<T>(&self, earlier: &[&Steps], body: impl FnOnce() -> Result<T, Error>) -> Result<(T, Steps), Error> {
        let site = Site::caller();
        let begin = self.with(|recording| recording.begin_steps(earlier, site))?;
        let result = body()?;
        let steps = self.with(|recording| Ok(recording.end_steps(begin, earlier)))?;
        Ok((result, steps))
    }

    /// Records what `body` records as a block that runs as long as `condition`, one bool, is true: it is looked at before each round, so `body`
    /// must write it. `body` is called once. What its calls make exists in the block only: a value that the next round or a later step uses is
    /// made before the loop, and `body` copies into it. `body` may record functions on CPUs ([`call_fn`](Recorder::call_fn)), which each round calls.
    ///
    /// The block may use CPUs and devices of one other kind; compiling refuses others. Its steps run in their order: where one is on a CPU or on another device than the one before, the host
    /// waits for the device.
    ///
    /// ```
    /// use streamvm_ep::{DType, DeviceId};
    ///
    /// # fn main() -> Result<(), streamvm_instructions::Error> {
    /// let program = streamvm_program::record("to eleven", |r| {
    ///     let cpu = DeviceId::cpu(0);
    ///     let (x, eleven) = (r.full(cpu, DType::I32, &[], 0)?, r.full(cpu, DType::I32, &[], 11)?);
    ///     let goes_on = x.lt(&eleven)?;
    ///     r.while_true(&goes_on, || {
    ///         x.copy_from(&(&x + 1)?)?;
    ///         goes_on.copy_from(&x.lt(&eleven)?)
    ///     })?;
    ///     r.fetch("x", &x)
    /// })?;
    /// assert!(program.to_string().contains("while"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `body`: the block is ended then, and what `body` has recorded stays in the recording. [`ProgramError::NotRecordable`]: `condition`
    /// is no single bool, is not of this recording, or was made in a block that has ended, or 64 blocks are open. [`Error::NeverWritten`] and
    /// [`Error::Released`] of the condition.
    #[track_caller]
    pub fn while_true(&self, condition: &Tensor, body: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        self.block(Work::While, Some(condition), body, Site::caller())?;
        self.mark(Work::End, None, Site::caller())
    }

    /// Records what `then` records as a block that runs if `condition`, one bool, is true. What its calls make exists in the block only: see
    /// [`while_true`](Recorder::while_true).
    ///
    /// # Errors
    /// As [`while_true`](Recorder::while_true).
    #[track_caller]
    pub fn if_true(&self, condition: &Tensor, then: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        self.block(Work::If, Some(condition), then, Site::caller())?;
        self.mark(Work::End, None, Site::caller())
    }

    /// As [`if_true`](Recorder::if_true), with a second block that runs if `condition` is false.
    ///
    /// # Errors
    /// As [`while_true`](Recorder::while_true).
    #[track_caller]
    pub fn if_else(
        &self,
        condition: &Tensor,
        then: impl FnOnce() -> Result<(), Error>,
        otherwise: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let site = Site::caller();
        self.block(Work::If, Some(condition), then, site)?;
        self.block(Work::Else, None, otherwise, site)?;
        self.mark(Work::End, None, site)
    }

    /// Records the beginning of a block and what `body` records. If `body` fails, the block ends here.
    fn block(
        &self,
        begin: Work,
        condition: Option<&Tensor>,
        body: impl FnOnce() -> Result<(), Error>,
        site: Site,
    ) -> Result<(), Error> {
        self.mark(begin, condition, site)?;
        body().or_else(|error| {
            self.mark(Work::End, None, site)?;
            Err(error)
        })
    }

    fn mark(&self, work: Work, condition: Option<&Tensor>, site: Site) -> Result<(), Error> {
        self.with(|recording| recording.add_mark(work, condition, site))
    }

    /// Records what a builder makes.
    #[track_caller]
    fn made(&self, made: Result<Tensor, Error>, builder: InstructionsBuilder) -> Result<Tensor, Error> {
        let tensor = made?;
        self.submit(builder.finish())?;
        Ok(tensor)
    }

    /// Records a fill of a new tensor.
    ///
    /// # Errors
    /// The shape is impossible, or the dtype cannot hold the value.
    #[track_caller]
    pub fn full(
        &self,
        place: impl Into<Place>,
        dtype: DType,
        shape: &[usize],
        value: impl Into<Scalar>,
    ) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::new();
        self.made(builder.full(place, dtype, shape, value), builder)
    }

    /// [`full`](Recorder::full) of zeros, or `false`.
    ///
    /// # Errors
    /// The shape is impossible.
    #[track_caller]
    pub fn zeros(&self, place: impl Into<Place>, dtype: DType, shape: &[usize]) -> Result<Tensor, Error> {
        self.full(place, dtype, shape, Scalar::zero(dtype))
    }

    /// [`full`](Recorder::full) of ones, or `true`.
    ///
    /// # Errors
    /// The shape is impossible.
    #[track_caller]
    pub fn ones(&self, place: impl Into<Place>, dtype: DType, shape: &[usize]) -> Result<Tensor, Error> {
        self.full(place, dtype, shape, Scalar::one(dtype))
    }

    /// Records random numbers, uniformly distributed in `[0, 1)`: see [`InstructionsBuilder::rand`]. Each run of the program draws others.
    ///
    /// # Errors
    /// The shape is impossible, or the dtype is not a float.
    #[track_caller]
    pub fn rand(
        &self,
        generator: &Generator,
        device: DeviceId,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::new();
        self.made(builder.rand(generator, device, dtype, shape), builder)
    }

    /// Records random numbers of the normal distribution: see [`InstructionsBuilder::randn`]. Each run of the program draws others.
    ///
    /// # Errors
    /// As [`rand`](Recorder::rand).
    #[track_caller]
    pub fn randn(
        &self,
        generator: &Generator,
        device: DeviceId,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::new();
        self.made(builder.randn(generator, device, dtype, shape), builder)
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}
