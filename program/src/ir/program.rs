//! A program: values, the steps that read and write them, and the names of those that its user gives or gets.
//!
//! Invariants, which [`Program::check`] checks:
//! * Every operand lies within its value; a step reads a value only after a step that writes it, unless it is a feed or a parameter.
//! * A block of steps, which an `if`, an `else` or a `while` begins, has an end. A value that a step of a block writes first exists within
//!   that block only. A function in a block is on a CPU.
//! * No step writes a feed: it is the caller's tensor. Parameters may be written.
//! * The later steps of an order come after its earlier ones.
//! * A critical section that begins has an end, lies in no block and has no other section in it; blocks may lie in a section.
//! * Names of feeds, of parameters and of fetches are unique among each other, and a name is not empty.

use std::ops::Range;
use std::sync::Arc;

use streamvm_ep::{
    Access, DType, DeviceId, FnContext, FnError, Layout, MemoryKind, Op, Params, ProgramStep, Scalar, Shape, Site,
};
use streamvm_instructions::{Critical, Error, Place, ProgramError};

use crate::ir::dims::{BoundedDim, VaryingId};
use crate::ir::formula::VaryingLayout;
use crate::ir::function::{FunctionOrder, StepFunction};
use crate::ir::section::StepSection;

/// How deep blocks may nest. It bounds the work of passes that look at a step once for each block around it.
pub(crate) const MOST_NESTED: usize = 64;

/// Why a collective cannot lie in a block.
pub(crate) const COLLECTIVE_IN_BLOCK: &str = "in a block there are no collectives, because a thread runs the steps of a block without leaving it; run the block in \
     one program, the collective in the next, and repeat both";

/// Why a function of another device than a CPU cannot lie in a block.
pub(crate) const FUNCTION_IN_BLOCK: &str = "in a block, functions are called on CPUs alone, between the steps of the block; name a CPU, and copy what it uses \
                                            there, or call it before the block or after it";

/// Why a touch cannot lie in a block.
pub(crate) const TOUCH_IN_BLOCK: &str =
    "the steps of a block run in their order, which a touch cannot change; touch before the block or after it";

/// A value of a program, as an index into [`Program::values`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ValueId(pub usize);

/// Where the bytes of a value come from.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum ValueRole {
    /// The tensor that a run gets for this feed, an index into [`Program::feeds`].
    Feed(usize),
    /// The tensor that is bound to this parameter, an index into [`Program::parameters`].
    Parameter(usize),
    /// A step writes it; it exists within a run, or is fetched.
    Computed,
}

/// A storage: bytes that steps read and write through views.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Value {
    /// Where its bytes come from.
    pub role: ValueRole,
    /// Where its bytes live.
    pub place: Place,
    /// The kind of memory there.
    pub memory: MemoryKind,
    /// The dtype of its elements.
    pub dtype: DType,
    /// Its shape; the layout is row-major, without gaps.
    pub shape: Shape,
    /// The layout for smaller sizes, if it is another one.
    pub varying: Option<VaryingId>,
}

impl Value {
    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.shape.elements() * self.dtype.size()
    }
}

/// A view of a value that a step reads or writes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Operand {
    /// The value.
    pub value: ValueId,
    /// The layout of the view within the value. Operands with equal layouts share one.
    pub layout: Arc<Layout>,
    /// Whether the step reads or writes it.
    pub access: Access,
    /// The layout for smaller sizes, if it is another one.
    pub varying: Option<VaryingId>,
}

/// The work of a step.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Work {
    /// Runs a kernel: operands are its inputs, then its output.
    Call(Op, Params),
    /// Copies its first operand to its second.
    Copy,
    /// Sets every element of its only operand.
    Fill(Scalar),
    /// Calls a function of the caller, which reads and writes its operands. It is never removed. In a block it is on a CPU.
    Function(StepFunction),
    /// Orders the compute stream of this device, on the lane of the step, after the last writes of its operands, which it reads: it comes after all earlier
    /// steps on that stream, and before all later ones. Runs no code. It is never removed where all fetches are wanted, and lies in no block.
    Touch(DeviceId),
    /// Begins a block of steps that runs if its only operand, one bool, is true.
    If,
    /// Ends the block of an [`If`](Work::If), and begins one that runs if the operand was false.
    Else,
    /// Begins a block of steps that runs as long as its only operand, one bool, is true before a round.
    While,
    /// Ends the innermost block.
    End,
    /// Begins a critical section: the steps up to its end run without those of other sections over its resources in between. Its operands, which it
    /// reads, are the feeds of the section: it begins when they have been written. It is never removed, and lies in no block.
    SectionBegin(StepSection),
    /// Ends a critical section. Its operands are the results of the section: later steps use them after the end. It declares that it changes them, and
    /// leaves them as they are.
    SectionEnd(StepSection),
}

impl Work {
    /// The word for it in errors and printed plans: the name of the op, or `copy`, `fill`, `fn`, `touch`, `if`, `else`, `while`, `end`, `begin section` or
    /// `end section`.
    pub fn name(&self) -> &'static str {
        match self {
            Work::Call(op, _) => op.name(),
            Work::Copy => "copy",
            Work::Fill(_) => "fill",
            Work::Function(_) => "fn",
            Work::Touch(_) => "touch",
            Work::If => "if",
            Work::Else => "else",
            Work::While => "while",
            Work::End => "end",
            Work::SectionBegin(_) => "begin section",
            Work::SectionEnd(_) => "end section",
        }
    }

    /// Whether it begins or ends a block of steps, and computes nothing.
    pub fn is_mark(&self) -> bool {
        matches!(self, Work::If | Work::Else | Work::While | Work::End)
    }

    /// Whether a CUDA graph can have it: the same command in each run, which reports nothing that belongs to one launch. `dtype` is that of the operand by
    /// which the kernel of a [`Call`](Work::Call) is chosen ([`Op::key_input`]).
    pub(crate) fn is_captured(&self, dtype: Option<DType>) -> bool {
        match self {
            Work::Call(op, params) => {
                !op.is_random() && dtype.is_some_and(|dtype| !params.refuses_elements(*op, dtype))
            }
            Work::Copy | Work::Fill(_) => true,
            _ => false,
        }
    }

    /// The critical section that it begins or ends.
    pub fn section(&self) -> Option<&StepSection> {
        if let Work::SectionBegin(section) | Work::SectionEnd(section) = self { Some(section) } else { None }
    }
}

/// One step of a program.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Step {
    /// Its work.
    pub work: Work,
    /// What it reads, then what it writes; those of a function in the order in which it declares them.
    pub operands: Vec<Operand>,
    /// The lane that it was recorded on, which counts from the lane of a run and which the compiler keeps. On lane 0 the compiler may choose another one
    /// ([`CompileOptions::lanes`](crate::CompileOptions::lanes)). Steps of one block are on one lane; the steps that begin and end blocks and critical sections
    /// are on lane 0.
    pub lane: u32,
    /// The site of the call that recorded it, or that parsed the program.
    pub site: Site,
}

impl Step {
    /// The operand that a kernel, copy or fill writes.
    pub fn output(&self) -> Option<&Operand> {
        let last = self.operands.last().filter(|operand| operand.access.writes());
        last.filter(|_| self.function().is_none() && self.work.section().is_none())
    }

    /// The operands that it writes: several, if it is a function or the end of a critical section.
    pub fn outputs(&self) -> impl Iterator<Item = &Operand> {
        self.operands.iter().filter(|operand| operand.access.writes())
    }

    /// The function that it calls.
    pub fn function(&self) -> Option<&StepFunction> {
        if let Work::Function(function) = &self.work { Some(function) } else { None }
    }

    /// Whether it is a function on a collective stream, in which other ranks take part.
    pub fn is_collective(&self) -> bool {
        self.function().is_some_and(|function| function.order() == FunctionOrder::Collective)
    }

    /// Whether it is there for more than what it writes: a function, or a touch.
    pub(crate) fn has_effect(&self) -> bool {
        matches!(self.work, Work::Function(_) | Work::Touch(_))
    }

    /// The step in an error, as step `number`.
    pub(crate) fn named(&self, number: usize) -> ProgramStep {
        ProgramStep { number, name: self.work.name(), site: self.site }
    }

    /// The operands that it reads.
    pub fn inputs(&self) -> impl Iterator<Item = &Operand> {
        self.operands.iter().filter(|operand| operand.access.reads())
    }
}

/// A name, and the view of a value that it stands for. The views of feeds and parameters are whole values.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Port {
    /// The name.
    pub name: String,
    /// The value.
    pub value: ValueId,
    /// The layout of the view.
    pub layout: Layout,
    /// The layout for smaller sizes, if it is another one.
    pub varying: Option<VaryingId>,
    /// Where it was recorded.
    pub site: Site,
}

/// Steps that come before others, although no bytes tell so: all of `earlier` before all of `later`, as numbers of steps.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct StepOrder {
    /// The steps that come first.
    pub earlier: Range<usize>,
    /// The steps that come after them.
    pub later: Range<usize>,
}

/// Instructions over named feeds, fetches and parameters. Plain data: `Send`, `Sync`, and tied to no engine.
///
/// Two programs are equal if all of their content is: names, values, steps with their parameters, and the sites that recorded them.
/// Functions are equal if they are the same object, and critical sections if they are over the same resources.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Program {
    /// Its name, in errors and reports.
    pub name: String,
    /// The storages that its steps use.
    pub values: Vec<Value>,
    /// Its steps, in program order.
    pub steps: Vec<Step>,
    /// Which steps come before others, beside what their operands tell.
    pub orders: Vec<StepOrder>,
    /// The inputs that each run gets.
    pub feeds: Vec<Port>,
    /// The tensors that outlive a run, which it reads or writes.
    pub parameters: Vec<Port>,
    /// The results of a run.
    pub fetches: Vec<Port>,
    /// The sizes that each run gives by its feeds. All layouts are those for the largest sizes.
    pub dims: Vec<BoundedDim>,
    /// The layouts that follow from these sizes.
    pub varying: Vec<VaryingLayout>,
}

/// A copy, for a compiler that keeps it. Who has no other use for the program gives it, or an [`Arc`] of it, away instead.
impl From<&Program> for Arc<Program> {
    fn from(program: &Program) -> Arc<Program> {
        Arc::new(program.clone())
    }
}

impl Program {
    /// A program without steps.
    pub fn new(name: impl Into<String>) -> Program {
        let (values, steps, orders, feeds, parameters, fetches) = Default::default();
        let (dims, varying) = Default::default();
        Program { name: name.into(), values, steps, orders, feeds, parameters, fetches, dims, varying }
    }

    /// The names of the functions that it calls, each once, in the order of their first calls.
    pub fn functions(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for function in self.steps.iter().filter_map(Step::function) {
            if !names.contains(&function.name()) {
                names.push(function.name());
            }
        }
        names
    }

    /// Gives every function with this name its code, which replaces what it had: for a program that was parsed from text.
    ///
    /// # Errors
    /// [`ProgramError::Unknown`], which lists the program's functions, if none has this name.
    #[track_caller]
    pub fn bind_function<F>(&mut self, name: &str, f: F) -> Result<(), Error>
    where
        F: for<'a, 'b> Fn(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + Sync + 'static,
    {
        let code = Arc::new(f);
        let mut found = false;
        for step in &mut self.steps {
            if let Work::Function(function) = &mut step.work
                && function.name() == name
            {
                function.bind(code.clone());
                found = true;
            }
        }
        if found {
            return Ok(());
        }
        let known = self.functions().into_iter().map(str::to_owned).collect();
        let (program, what) = (self.name.clone(), format!("there is no function {name:?}"));
        Err(ProgramError::Unknown { program, kind: "function", what, known }.into())
    }

    /// The names of the resources of its critical sections, each once, in the order of their first sections.
    pub fn criticals(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        let sections = self.steps.iter().filter_map(|step| step.work.section());
        for resource in sections.flat_map(|section| section.section().resources()) {
            if !names.contains(&resource.name()) {
                names.push(resource.name());
            }
        }
        names
    }

    /// Puts `critical` in the place of every resource with this name in the program's critical sections: for a program that was parsed from text, whose
    /// resources are new ones.
    ///
    /// # Errors
    /// [`ProgramError::Unknown`], which lists the resources of the program's sections, if none has this name.
    #[track_caller]
    pub fn bind_critical(&mut self, name: &str, critical: &Critical) -> Result<(), Error> {
        if !self.criticals().contains(&name) {
            let known = self.criticals().into_iter().map(str::to_owned).collect();
            let (program, what) = (self.name.clone(), format!("there is no critical resource {name:?}"));
            return Err(ProgramError::Unknown { program, kind: "critical resource", what, known }.into());
        }
        let mut begun = None;
        for step in &mut self.steps {
            match &mut step.work {
                Work::SectionBegin(section) => {
                    let bound = section.bound(name, critical);
                    begun = Some((std::mem::replace(section, bound.clone()), bound));
                }
                // An end of another section than the one that has begun is left as it is: `check` refuses the program.
                Work::SectionEnd(section) => {
                    if let Some((_, bound)) = begun.take_if(|(begun, _)| begun.section().is(section.section())) {
                        *section = bound;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Gives back memory beyond its content.
    pub(crate) fn shrink_to_fit(&mut self) {
        self.values.shrink_to_fit();
        self.steps.shrink_to_fit();
        self.orders.shrink_to_fit();
        self.varying.shrink_to_fit();
        for ports in [&mut self.feeds, &mut self.parameters, &mut self.fetches] {
            ports.shrink_to_fit();
        }
        self.steps.iter_mut().for_each(|step| step.operands.shrink_to_fit());
    }

    /// The value with this number.
    ///
    /// # Panics
    /// If there is none.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0]
    }

    /// Whether a view covers all bytes of its value.
    pub(crate) fn is_whole_view(&self, value: ValueId, layout: &Layout) -> bool {
        layout.offset() == 0 && layout.is_contiguous() && layout.elements() == self.value(value).shape.elements()
    }
}
