//! Turns expressions into instructions.
//!
//! Layer: uses `base`, `syntax` and `files`; is used by `analysis`, `execute` and `command`.
//!
//! Main types: an [`Emitter`] adds the instructions of one statement after another to a list; a [`Loader`] gives it the tensors of
//! files; [`Devices`] holds the device that each name of a script stands for; a [`Defined`] is a program of the script.
//!
//! The checker, the planner and the executor walk a script with the same emitter, so the instructions that were checked are the
//! instructions that run. The three differ in the source of loaded tensors ([`Loader`]) and in the use of the list: the checker
//! drops it, the planner plans it, the executor submits it.
//!
//! A name stands for a tensor, which may be a view of another name's storage. Names have one scope for the whole script, and one for
//! each run of a program; a `let` of a known name binds it anew.

mod composed;
pub mod devices;
pub mod programs;
pub(crate) mod rounds;
mod value;
mod view;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use streamvm_files::{TensorFile, check_savable};
use streamvm_ranks::Group;

use crate::base::engine::{
    BuildError, DType, DeviceId, Error, Generator, InstructionList, InstructionsBuilder, MemoryKind, Place, Recorder,
    Shape, StepFunction, StreamKey, StreamType, Tensor,
};
use crate::base::spelling::did_you_mean;
use crate::emit::devices::Devices;
use crate::emit::programs::Defined;
use crate::files::place::resolve;
use crate::syntax::ast::{
    CollectiveCall, Expr, ExprKind, Feed, FeedAxis, Number, PlaceRef, Size, Statement, StatementKind, Target,
};
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::source::{Source, Span, Spanned};

pub(crate) use value::scalar;

/// The source of tensors that are loaded from files.
pub trait Loader {
    /// Loads a tensor of a file to the host.
    ///
    /// # Errors
    /// Why the tensor cannot be loaded; the text names the file.
    fn load(&mut self, path: &Path, name: Option<&str>) -> Result<Tensor, String>;

    /// Tells the loader that a statement will have written `tensor` to this file before a later statement loads it.
    fn will_be_saved(&mut self, path: &Path, tensor: &Tensor);
}

/// A check reads the elements of bool tensors until it has read this many bytes, which takes a few seconds; it finishes the
/// tensor that passes the bound. The elements of later tensors are checked when they are loaded.
const MOST_LOOKED_AT: usize = 4 << 30;

/// A loader that gives tensors without values, which is enough for a check and a plan.
#[derive(Debug, Default)]
pub struct HeadersOnly {
    /// The dtype and shape of the files that the script will have saved, by resolved path.
    saved: HashMap<PathBuf, (DType, Shape)>,
    /// The tensors whose elements were checked; `None` if elements need no check.
    looked_at: Option<HashSet<(PathBuf, Option<String>)>>,
    bytes_looked_at: usize,
}

impl HeadersOnly {
    /// A loader that also checks that the elements of each tensor can be loaded, once per tensor, until it has checked 4 GiB.
    #[must_use]
    pub fn with_elements() -> Self {
        Self { looked_at: Some(HashSet::new()), ..Self::default() }
    }
}

impl Loader for HeadersOnly {
    fn load(&mut self, path: &Path, name: Option<&str>) -> Result<Tensor, String> {
        let saved = if self.saved.is_empty() { None } else { self.saved.get(&resolve(path)) };
        let (dtype, shape) = match saved {
            Some(saved) if name.is_none() => *saved,
            _ => {
                let file = TensorFile::open(path, name).map_err(|error| error.to_string())?;
                if let Some(looked_at) = &mut self.looked_at
                    && self.bytes_looked_at < MOST_LOOKED_AT
                    && looked_at.insert((resolve(path), name.map(str::to_owned)))
                {
                    self.bytes_looked_at = self.bytes_looked_at.saturating_add(file.bytes_to_check());
                    file.check_elements().map_err(|error| error.to_string())?;
                }
                (file.dtype, file.shape)
            }
        };
        Ok(Tensor::unbound(Place::Host, MemoryKind::Pageable, dtype, shape))
    }

    fn will_be_saved(&mut self, path: &Path, tensor: &Tensor) {
        self.saved.insert(resolve(path), (tensor.dtype(), tensor.shape()));
    }
}

/// What a name stands for.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The tensor.
    pub tensor: Tensor,
    /// The `let` that bound it, at the name.
    pub span: Span,
}

/// The names that a statement can use.
#[derive(Clone, Debug, Default)]
struct Scope {
    names: HashMap<String, Binding>,
    /// Names whose `let` was wrong: an error about such a name is marked as an echo.
    poisoned: HashSet<String>,
    /// The bounded sizes of the program whose statements these are.
    sizes: HashMap<String, usize>,
    /// The names that each open block of a `while` or an `if` has bound, the innermost last. They are known in the block only.
    blocks: Vec<HashSet<String>>,
    /// Names that such a block has bound that has ended, for the help of messages.
    ended: HashSet<String>,
}

impl Scope {
    /// A size as a number: that of the run, for a bounded size.
    fn number(&self, size: &Size, span: Span) -> Result<i64, Diagnostic> {
        match size {
            Size::Number(number) => Ok(*number),
            Size::Named(name) => {
                let found = self.sizes.get(name).and_then(|size| i64::try_from(*size).ok());
                found.ok_or_else(|| Diagnostic::new(span, format!("`{name}` is no size here")))
            }
        }
    }

    /// [`number`](Scope::number) of each.
    fn numbers(&self, sizes: &[Spanned<Size>]) -> Result<Vec<Spanned<i64>>, Diagnostic> {
        sizes.iter().map(|size| Ok(Spanned::new(self.number(&size.value, size.span)?, size.span))).collect()
    }

    /// Notes the bounded sizes of an input that the tensor has.
    fn note_sizes(&mut self, feed: &Feed, tensor: &Tensor) {
        for (axis, size) in feed.axes.iter().zip(tensor.shape().dims()) {
            if let FeedAxis::Bounded { name, .. } = &axis.value {
                self.sizes.insert(name.clone(), *size);
            }
        }
    }
}

/// The tensors whose values a statement needs; they are on the host and contiguous.
#[derive(Debug)]
pub enum Wanted {
    /// None: the statement only added instructions.
    Nothing,
    /// The values of `print` and `save`.
    One(Tensor),
    /// The values of `expect` and `print accuracy`.
    Two(Tensor, Tensor),
}

/// The stream on which the values of host tensors are read.
pub(crate) const READ_BACK: StreamKey =
    StreamKey { device: DeviceId::cpu(0), stream_type: StreamType::Compute, lane: 0 };

/// Emits the instructions of a script.
pub struct Emitter<'a> {
    source: &'a Source,
    devices: &'a Devices,
    loader: Box<dyn Loader + 'a>,
    builder: InstructionsBuilder,
    scope: Scope,
    /// While the statements of a program are emitted: the names and the lane around it, and around the `run` of each program around that.
    outer: Vec<(Scope, u32)>,
    /// While a program is recorded: storages of the script, each with the parameter that stands for it.
    recorded: Vec<(Tensor, Tensor)>,
    /// The program that is being recorded.
    recording: Option<String>,
    /// The lane of statements that name none: that of the `run`, within a program.
    lane: u32,
    /// The random generator of each seed; a generator goes on from call to call.
    generators: HashMap<u64, Generator>,
    programs: HashMap<String, Arc<Defined>>,
    /// The ranks of the job, once it runs. A check and a plan have none.
    world: Option<Group>,
    /// The steps of all programs so far, wrong ones among them.
    recorded_steps: usize,
    /// Programs whose block was wrong: an error about such a program is marked as an echo.
    poisoned_programs: HashSet<String>,
}

impl<'a> Emitter<'a> {
    /// An emitter without names.
    pub fn new(source: &'a Source, devices: &'a Devices, loader: impl Loader + 'a) -> Self {
        Self {
            source,
            devices,
            loader: Box::new(loader),
            builder: InstructionsBuilder::new(),
            scope: Scope::default(),
            outer: Vec::new(),
            recorded: Vec::new(),
            recording: None,
            lane: 0,
            generators: HashMap::new(),
            programs: HashMap::new(),
            world: None,
            recorded_steps: 0,
            poisoned_programs: HashSet::new(),
        }
    }

    /// The emitter of a rank of a job: its collectives communicate.
    #[must_use]
    pub fn over(self, world: Option<Group>) -> Self {
        Self { world, ..self }
    }

    /// Emits a collective in place, to the list or to a program.
    fn collective(
        &mut self,
        recorder: Option<&Recorder>,
        call: &CollectiveCall,
        target: &Target,
    ) -> Result<(), Diagnostic> {
        let tensor = self.target(target)?;
        let span = target.name.span;
        let refused = |error: Error| Diagnostic::new(span, error.without_call());
        let Some(world) = &self.world else {
            // Without ranks, the instruction stands in the list under the name that it has in a run.
            return match call {
                CollectiveCall::AllReduce(by) => match by.refuses(tensor.dtype()) {
                    Some(why) => Err(Diagnostic::new(span, format!("all_reduce: {why}"))),
                    None => self.placeholder(recorder, format!("all_reduce {by}"), &tensor).map_err(refused),
                },
                CollectiveCall::Broadcast { from } => {
                    self.placeholder(recorder, format!("broadcast from {}", from.value), &tensor).map_err(refused)
                }
            };
        };
        match (call, recorder) {
            (CollectiveCall::AllReduce(by), None) => world.all_reduce_in_place(&mut self.builder, &[&tensor], *by),
            (CollectiveCall::AllReduce(by), Some(recorder)) => world.all_reduce_in_place(recorder, &[&tensor], *by),
            (CollectiveCall::Broadcast { from }, None) => {
                world.broadcast(&mut self.builder, &tensor, from.value as usize)
            }
            (CollectiveCall::Broadcast { from }, Some(recorder)) => {
                world.broadcast(recorder, &tensor, from.value as usize)
            }
        }
        .map_err(|error| match call {
            CollectiveCall::Broadcast { from } => Diagnostic::new(from.span, error.without_call()),
            CollectiveCall::AllReduce(_) => refused(error),
        })
    }

    fn placeholder(&mut self, recorder: Option<&Recorder>, name: String, tensor: &Tensor) -> Result<(), Error> {
        let (dtype, cpu) = (tensor.dtype(), DeviceId::cpu(0));
        let Some(recorder) = recorder else {
            let name = format!("{name} {dtype}{} over world", tensor.shape());
            return self.builder.on_collective().call_fn(name, cpu, [tensor.update()], |_| Ok(()));
        };
        let function = StepFunction::new(format!("{name} {dtype} over world"), cpu, None);
        recorder.call_on_collective(function, 0, [tensor.update()])
    }

    /// The instructions since the last [`Emitter::take_list`].
    #[must_use]
    pub fn list(&self) -> &InstructionList {
        self.builder.list()
    }

    /// Takes the instructions, and goes on with an empty list.
    pub fn take_list(&mut self) -> InstructionList {
        std::mem::take(&mut self.builder).finish()
    }

    /// What the names stand for.
    #[must_use]
    pub fn names(&self) -> &HashMap<String, Binding> {
        &self.scope.names
    }

    /// Notes that the `let` of a name was wrong; errors about uses of the name are echoes.
    pub fn poison(&mut self, name: &Spanned<String>) {
        self.scope.poisoned.insert(name.value.clone());
        self.note_in_block(name);
    }

    fn note_in_block(&mut self, name: &Spanned<String>) {
        if let Some(block) = self.scope.blocks.last_mut()
            && !self.scope.names.contains_key(&name.value)
        {
            block.insert(name.value.clone());
        }
    }

    /// Enters a block of a `while` or an `if`: the names that it binds are known until [`Emitter::end_block`], and it binds no name anew that
    /// is known before.
    pub fn begin_block(&mut self) {
        self.scope.blocks.push(HashSet::new());
    }

    /// Leaves the innermost block of a `while` or an `if`.
    pub fn end_block(&mut self) {
        for name in self.scope.blocks.pop().unwrap_or_default() {
            self.scope.names.remove(&name);
            self.scope.poisoned.remove(&name);
            self.scope.ended.insert(name);
        }
    }

    /// The tensor of a condition.
    ///
    /// # Errors
    /// The name is not known; the tensor is not one bool.
    pub fn condition(&self, name: &Spanned<String>) -> Result<Tensor, Diagnostic> {
        let tensor = self.named(&name.value, name.span)?;
        if tensor.dtype() == DType::Bool && tensor.shape().elements() == 1 {
            return Ok(tensor);
        }
        let found = format!("`{}` is {}{}", name.value, tensor.dtype(), tensor.shape());
        Err(Diagnostic::new(name.span, format!("a condition is one bool, and {found}"))
            .with_help("compare numbers (`lt x 3`), and reduce or slice what has more elements"))
    }

    /// Emits the copy by which the script reads a condition.
    ///
    /// # Errors
    /// As [`Emitter::condition`]; the tensor cannot be copied to the host.
    pub fn read_condition(&mut self, name: &Spanned<String>) -> Result<Tensor, Diagnostic> {
        let tensor = self.condition(name)?;
        self.copied_to_host(tensor, self.lane, name.span)
    }

    /// Emits a statement that is not a block. The values of the returned tensors are on the host once the list has run.
    ///
    /// # Errors
    /// A diagnostic at the place of the wrong part of the statement. Instructions before the wrong part may have been added.
    pub fn statement(&mut self, statement: &Statement) -> Result<Wanted, Diagnostic> {
        match &statement.kind {
            // Devices were resolved before; the caller, which walks the script, handles text, blocks, programs and their runs.
            StatementKind::Device { .. }
            | StatementKind::PrintText(_)
            | StatementKind::Repeat { .. }
            | StatementKind::While { .. }
            | StatementKind::If { .. }
            | StatementKind::IfRank { .. }
            | StatementKind::Time { .. }
            | StatementKind::Scope { .. }
            | StatementKind::Program(_)
            | StatementKind::Run(_) => Ok(Wanted::Nothing),
            StatementKind::Let { name, value } => {
                self.check_bindable(name)?;
                let tensor = self.value(value, self.lane)?;
                self.bind(name, tensor);
                Ok(Wanted::Nothing)
            }
            StatementKind::Into { value, target } => self.into(value, target).map(|()| Wanted::Nothing),
            StatementKind::Refill { target, value, lane } => {
                let tensor = self.target(target)?;
                let value = Spanned::new(scalar(value, tensor.dtype())?, value.span);
                let lane = self.lane_of(lane.as_ref()).unwrap_or(self.lane);
                self.builder
                    .on_lane(lane)
                    .fill(&tensor, value.value)
                    .map_err(|error| Diagnostic::new(target.name.span, error.without_call()))?;
                Ok(Wanted::Nothing)
            }
            StatementKind::Collective { call, target } => self.collective(None, call, target).map(|()| Wanted::Nothing),
            StatementKind::Print(value) => Ok(Wanted::One(self.host_value(value)?)),
            StatementKind::Save { value, path } => {
                let tensor = self.host_value(value)?;
                check_savable(tensor.dtype()).map_err(|reason| Diagnostic::new(value.span, reason))?;
                self.loader.will_be_saved(&self.source.resolve(&path.value), &tensor);
                Ok(Wanted::One(tensor))
            }
            StatementKind::PrintAccuracy { scores, labels } => {
                let scores_tensor = self.value(scores, 0)?;
                let labels_tensor = self.value(labels, 0)?;
                if labels_tensor.dtype() != DType::I64 {
                    return Err(Diagnostic::new(
                        labels.span,
                        format!("the labels must be i64, found {}", labels_tensor.dtype()),
                    ));
                }
                let shape = scores_tensor.shape();
                let Some((_, rows)) = shape.dims().split_last() else {
                    return Err(Diagnostic::new(
                        scores.span,
                        "the scores must have an axis of classes, found a scalar",
                    ));
                };
                if labels_tensor.shape().dims() != rows {
                    return Err(Diagnostic::new(
                        labels.span,
                        format!(
                            "scores of shape {shape} need labels of shape {rows:?}, found {}",
                            labels_tensor.shape()
                        ),
                    ));
                }
                Ok(Wanted::Two(self.on_host(scores_tensor, scores)?, self.on_host(labels_tensor, labels)?))
            }
            StatementKind::Expect { found, expected, .. } => {
                let a = self.value(found, 0)?;
                let b = match expected.kind {
                    ExprKind::Number(number) => self.alike(&a, number, expected.span)?,
                    _ => self.value(expected, 0)?,
                };
                if a.dtype() != b.dtype() || a.shape() != b.shape() {
                    return Err(Diagnostic::new(
                        statement.span,
                        format!("cannot compare {}{} with {}{}", a.dtype(), a.shape(), b.dtype(), b.shape()),
                    )
                    .with_help("dtype and shape must be the same: use `cast` or `reshape`"));
                }
                Ok(Wanted::Two(self.on_host(a, found)?, self.on_host(b, expected)?))
            }
        }
    }

    /// A tensor of the dtype and shape of `tensor`, in memory of the host, whose elements are all the number.
    fn alike(&mut self, tensor: &Tensor, number: Number, span: Span) -> Result<Tensor, Diagnostic> {
        let dims = tensor.shape().dims().iter().map(|size| Spanned::new(Size::Number(*size as i64), span)).collect();
        let value = Some(Spanned::new(number, span));
        let kind = ExprKind::Fill { dtype: tensor.dtype(), dims, value, on: PlaceRef::Host };
        self.value(&Expr { span, kind, lane: None }, 0)
    }

    /// `copy h into y rows 0..4`, `matmul a b into y`
    fn into(&mut self, value: &Expr, target: &Target) -> Result<(), Diagnostic> {
        let at = |error: Error| match error {
            // The builder numbers the operands; the message names them as the script does.
            Error::Build { error: BuildError::Overlap { what, second, help, .. }, .. } => {
                let read = match &value.kind {
                    ExprKind::Copy { value: from, .. } => Some(&**from),
                    ExprKind::Call { inputs, .. } => inputs.get(second),
                    _ => None,
                };
                let read = read.map_or("an input", |read| self.source.snippet(read.span));
                let whole = target.slices.last().map_or(target.name.span, |last| target.name.span.to(last.span));
                let target = self.source.snippet(whole);
                let text =
                    format!("{what}: `{target}` is written and has elements in common with `{read}`, which is read");
                Diagnostic::new(value.span, text).with_help(help)
            }
            error => Diagnostic::new(value.span, error.without_call()),
        };
        let lane = self.lane_of(value.lane.as_ref()).unwrap_or(self.lane);
        match &value.kind {
            ExprKind::Copy { value: from, .. } => {
                let from = self.value(from, lane)?;
                let target = self.target(target)?;
                self.builder.on_lane(lane).copy_into(&from, &target).map_err(at)
            }
            ExprKind::Call { op, inputs, axes, keep, to, extra } => {
                let (inputs, numbers) = self.inputs(*op, inputs, lane)?;
                let params = value::params(*op, (&inputs, numbers), axes, *keep, *to, extra)?;
                let target = self.target(target)?;
                let inputs: Vec<&Tensor> = inputs.iter().collect();
                self.builder.on_lane(lane).op_into(*op, &inputs, params, &target).map_err(at)
            }
            _ => Err(Diagnostic::new(value.span, "only a copy or an op can be written into a tensor")
                .with_help("write `copy (...) into ...`")),
        }
    }

    fn target(&mut self, target: &Target) -> Result<Tensor, Diagnostic> {
        let tensor = self.named(&target.name.value, target.name.span)?;
        view::slice(&tensor, &target.slices, &self.scope)
    }

    /// Refuses to bind a tensor to the name of a device or a program.
    fn check_bindable(&self, name: &Spanned<String>) -> Result<(), Diagnostic> {
        if let Some(block) = self.scope.blocks.last()
            && self.scope.names.contains_key(&name.value)
            && !block.contains(&name.value)
        {
            let (name, span) = (&name.value, name.span);
            let message = format!("`{name}` is known outside of this block, which can write it and not bind it anew");
            return Err(
                Diagnostic::new(span, message).with_help(format!("write `... into {name}`, or use another name"))
            );
        }
        let what = match name.value.as_str() {
            name if self.devices.contains(name) => "a device",
            name if self.programs.contains_key(name) => "a program",
            _ => return Ok(()),
        };
        Err(Diagnostic::new(name.span, format!("`{}` is {what} already", name.value)))
    }

    fn bind(&mut self, name: &Spanned<String>, tensor: Tensor) {
        self.note_in_block(name);
        self.scope.poisoned.remove(&name.value);
        self.scope.ended.remove(&name.value);
        self.scope.names.insert(name.value.clone(), Binding { tensor, span: name.span });
    }

    fn named(&self, name: &str, span: Span) -> Result<Tensor, Diagnostic> {
        if self.scope.poisoned.contains(name) {
            let mut error = Diagnostic::new(span, format!("`{name}` is not known because of an earlier error"));
            error.echo = true;
            return Err(error);
        }
        if let Some(binding) = self.scope.names.get(name) {
            return Ok(binding.tensor.clone());
        }
        if self.devices.contains(name) {
            return Err(Diagnostic::new(span, format!("`{name}` is a device, expected a tensor")));
        }
        if self.programs.contains_key(name) {
            let help = format!("name its result: `let y = run {name} ...`");
            return Err(Diagnostic::new(span, format!("`{name}` is a program, expected a tensor")).with_help(help));
        }
        let scopes = std::iter::once(&self.scope).chain(self.outer.iter().map(|(scope, _)| scope));
        let mut known: Vec<&str> = scopes.flat_map(|scope| scope.names.keys().map(String::as_str)).collect();
        known.sort_unstable(); // the same guess in every run
        let help = did_you_mean(name, known);
        let help = match self.scope.ended.contains(name) {
            true => format!(
                "`{name}` was bound in a block of a `while` or an `if`, and is known in that block only: make a tensor before the block, and \
                 write `... into` it there"
            ),
            false => help.unwrap_or_else(|| format!("name a tensor before this line: `let {name} = ...`")),
        };
        Err(Diagnostic::new(span, format!("unknown name `{name}`")).with_help(help))
    }

    /// The value of an expression, copied to the host if it is elsewhere or has gaps.
    fn host_value(&mut self, expr: &Expr) -> Result<Tensor, Diagnostic> {
        let tensor = self.value(expr, 0)?;
        self.on_host(tensor, expr)
    }

    fn on_host(&mut self, tensor: Tensor, expr: &Expr) -> Result<Tensor, Diagnostic> {
        self.copied_to_host(tensor, self.lane_of(expr.lane.as_ref()).unwrap_or(0), expr.span)
    }

    /// The lane that a statement names: within a program it counts from the lane of the `run`.
    fn lane_of(&self, named: Option<&Spanned<u32>>) -> Option<u32> {
        named.map(|lane| self.lane.saturating_add(lane.value))
    }

    fn copied_to_host(&mut self, tensor: Tensor, lane: u32, span: Span) -> Result<Tensor, Diagnostic> {
        if tensor.place() == Place::Host && tensor.layout().is_contiguous() {
            return Ok(tensor);
        }
        self.builder
            .on_lane(lane)
            .copy(&tensor, Place::Host)
            .map_err(|error| Diagnostic::new(span, error.without_call()))
    }
}
