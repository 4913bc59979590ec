//! The textual form of instruction lists.
//!
//! One instruction a line: number, kind, stream, operands, and the type of its output. Tensors, variables, resources of critical sections and events are named in
//! order of first appearance (`t0`, `v0`, `e0`). What the line of an instruction cannot introduce by itself is declared on a line
//! of its own right before its first use:
//!
//! ```text
//! t1 = tensor cuda:0 f32[64,128]
//! t2 = view t1 f32[16,128] strides 128,1 offset 0
//! v0 = var
//! c0 = critical "port"
//! e0 = event
//! ```
//!
//! The launch options of a function follow its name, if they are not the default: `low` or `high`, `cleanup`, `direct` or `first`.
//!
//! An input of an elementwise op may be a number: `mul t0 0.5 -> t1`.
//!
//! An operand has its place as a prefix if that is not the stream's device (`host:t0`), or else the prefix `pinned:` or `upload:`
//! if it lives in that memory.

use std::fmt::{self, Write as _};
use std::ptr;

use hashbrown::HashMap;
use streamvm_ep::{Access, Convolution, Extra, Layout, MemoryKind, Numbers, Params, Pooling, Priority, Scalar};

use crate::engine::event::Event;
use crate::list::instruction::Instruction;
use crate::list::instruction_list::InstructionList;
use crate::list::kind::{Ahead, Kind, LaunchOptions, WaitFor};
use crate::place::Place;
use crate::tensor::critical::Critical;
use crate::tensor::handle::Tensor;
use crate::tensor::resource::Resource;
use crate::tensor::uses::{HeldUse, Target, Use};
use crate::tensor::var::Var;

impl fmt::Display for InstructionList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &mut Names::default())
    }
}

impl InstructionList {
    /// The list as text, and the names that `tensors` have in it. The text ends with declarations of those that no instruction uses.
    pub fn with_names(&self, tensors: &[Tensor]) -> (String, Vec<String>) {
        let (mut text, mut names) = (String::new(), Names::default());
        let _ = self.write(&mut text, &mut names);
        let found = tensors.iter().map(|tensor| names.tensor(named(tensor))).collect();
        text.push_str(&names.declarations);
        (text, found)
    }

    fn write(&self, f: &mut dyn fmt::Write, names: &mut Names) -> fmt::Result {
        let width = self.len().saturating_sub(1).to_string().len();
        for (line, instruction) in self.instructions().iter().enumerate() {
            let (operands, result) = describe(instruction, self.uses(instruction), names);
            f.write_str(&std::mem::take(&mut names.declarations))?;
            let (word, stream) = (instruction.kind.word(), instruction.stream.to_string());
            let text = format!("%{line:<width$} {word:<8} {stream:<20}  {operands:<40}  {result}");
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// Writes the launch options that are not the default.
fn describe_launch(launch: LaunchOptions, text: &mut String) {
    let priority = match launch.priority {
        Priority::Low => " low",
        Priority::Normal => "",
        Priority::High => " high",
    };
    text.push_str(priority);
    text.push_str(if launch.clean_up { " cleanup" } else { "" });
    text.push_str(match launch.ahead {
        Ahead::No => "",
        Ahead::Direct => " direct",
        Ahead::First => " first",
    });
}

/// The texts of the operand column and of the result column of an instruction.
fn describe(instruction: &Instruction, uses: &[HeldUse], names: &mut Names) -> (String, String) {
    let home = Place::Device(instruction.stream.device);
    let mut text = String::new();
    let mut result = String::new();
    match &instruction.kind {
        Kind::Call { op, params } => {
            text.push_str(op.name());
            describe_params(params, &mut text);
            result = arrow(uses, &params.numbers(), home, names, &mut text);
        }
        Kind::Copy | Kind::Allocate => result = arrow(uses, &Numbers::NONE, home, names, &mut text),
        Kind::Fill(value) => {
            let _ = write!(text, "{value}");
            result = arrow(uses, &Numbers::NONE, home, names, &mut text);
        }
        Kind::Release | Kind::Touch => {
            for u in uses {
                // The access is written only where it is not the usual one: a release writes, and a touch reads.
                if u.access() == Access::ReadWrite {
                    let _ = write!(text, " {}", access_word(u.access()));
                }
                let _ = write!(text, " {}", names.of(u.seen(), home));
            }
        }
        Kind::Function { name, .. } => {
            let _ = write!(text, "{name:?}");
            describe_launch(instruction.launch, &mut text);
            for u in uses {
                let _ = write!(text, " {} {}", access_word(u.access()), names.of(u.seen(), home));
            }
        }
        Kind::Record(event) => text = names.record(event),
        Kind::Wait { source, target, .. } => {
            let _ = match target {
                WaitFor::Event(event) => write!(text, "{source} by {}", names.event(event)),
                WaitFor::Line(line) => write!(text, "{source} by %{line}"),
                WaitFor::Number(seq) => write!(text, "{source} by #{seq}"),
            };
        }
        Kind::Barrier { name, calls, .. } if *calls => {
            let _ = write!(text, "{name:?}");
        }
        Kind::Barrier { .. } | Kind::GlobalSync => {}
        Kind::SectionBegin(section) | Kind::SectionEnd(section) => {
            let resources: Vec<String> = section.resources().iter().map(|resource| names.critical(resource)).collect();
            text = resources.join(" ");
        }
    }
    (text.trim_start().to_owned(), result)
}

/// Writes the parameters that are not the default, each after a word.
fn describe_params(params: &Params, text: &mut String) {
    if !params.axes.is_empty() {
        let _ = write!(text, " axes {}", params.axes);
    }
    if params.keep_dims {
        text.push_str(" keep");
    }
    if let Some(dtype) = params.to {
        let _ = write!(text, " to {dtype}");
    }
    let _ = match params.extra {
        // Numbers stand among the inputs.
        Extra::None | Extra::Numbers(_) => Ok(()),
        Extra::Pad { before, after, value } => write!(text, " before {before} after {after} value {value}"),
        Extra::Classes(classes) => write!(text, " classes {classes}"),
        Extra::Diagonal(diagonal) => write!(text, " diagonal {diagonal}"),
        Extra::Order { descending: false } => write!(text, " ascending"),
        Extra::Order { descending: true } => write!(text, " descending"),
        Extra::Top { count, largest: true } => write!(text, " largest {count}"),
        Extra::Top { count, largest: false } => write!(text, " smallest {count}"),
        Extra::Epsilon(epsilon) => write!(text, " epsilon {epsilon}"),
        Extra::Integers { first, step } => write!(text, " from {first} by {step}"),
        Extra::Floats { first, step } => {
            let [first, step] = [first, step].map(|bits| Scalar::F64(f64::from_bits(bits)));
            write!(text, " from {first} by {step}")
        }
        Extra::Convolution(Convolution { stride, padding, dilation, groups }) => {
            let [stride, padding, dilation] = [stride, padding, dilation].map(pair);
            write!(text, " stride {stride} padding {padding} dilation {dilation} groups {groups}")
        }
        Extra::Pooling(Pooling { window, stride, padding }) => {
            let [window, stride, padding] = [window, stride, padding].map(pair);
            write!(text, " window {window} stride {stride} padding {padding}")
        }
        Extra::Random { seed, counter } => write!(text, " seed {seed} at {counter}"),
    };
}

/// Height and width.
fn pair([height, width]: [u16; 2]) -> String {
    format!("{height},{width}")
}

pub(crate) fn access_word(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::Write => "write",
        Access::ReadWrite => "update",
    }
}

/// Writes `inputs -> output`, numbers and tensors in the order of the inputs, and returns the text of the output's type.
fn arrow(uses: &[HeldUse], numbers: &Numbers, home: Place, names: &mut Names, text: &mut String) -> String {
    let Some((output, inputs)) = uses.split_last() else {
        return String::new();
    };
    let mut tensors = inputs.iter();
    for place in 0..inputs.len() + numbers.len() {
        let _ = match numbers.get(place) {
            Some(number) => write!(text, " {number}"),
            None => tensors.next().map_or(Ok(()), |input| write!(text, " {}", names.of(input.seen(), home))),
        };
    }
    let _ = write!(text, " -> {}", names.output(output.seen(), home));
    output.as_tensor().map(|tensor| format!("{}{}", tensor.dtype(), shape(tensor))).unwrap_or_default()
}

/// A shape as in lists: `[1797,64]`.
fn shape(tensor: &Tensor) -> String {
    let dims: Vec<String> = tensor.shape().dims().iter().map(usize::to_string).collect();
    format!("[{}]", dims.join(","))
}

/// The names that were given so far, and the declarations that must precede the current line.
#[derive(Default)]
struct Names {
    /// The number of tensors with names; `views` has the named views of each storage.
    tensors: usize,
    views: HashMap<*const Resource, Vec<(Layout, usize)>>,
    vars: HashMap<*const Resource, usize>,
    criticals: HashMap<*const Resource, usize>,
    /// By address, which stays unique because the list keeps the events alive.
    events: HashMap<usize, usize>,
    declarations: String,
}

impl Names {
    fn of(&mut self, u: Use<'_>, home: Place) -> String {
        match u.target() {
            Target::Tensor(tensor) => {
                let name = self.tensor(named(tensor));
                prefixed(tensor, home, &name)
            }
            Target::Var(var) => self.var(var),
        }
    }

    /// The name of an output. Its line may introduce it if it is new, owns its storage, and its prefix tells where it lives.
    fn output(&mut self, u: Use<'_>, home: Place) -> String {
        if let Some(tensor) = u.as_tensor().map(named)
            && self.find(tensor).is_none()
            && !tensor.is_view()
            && (!tensor.memory().is_page_locked() || tensor.place() == home)
        {
            let name = self.introduce(tensor);
            return prefixed(tensor, home, &name);
        }
        self.of(u, home)
    }

    fn find(&self, tensor: &Tensor) -> Option<usize> {
        let views = self.views.get(&ptr::from_ref(tensor.resource()))?;
        views.iter().find(|(layout, _)| layout == tensor.layout()).map(|(_, index)| *index)
    }

    fn introduce(&mut self, tensor: &Tensor) -> String {
        let index = self.tensors;
        self.tensors += 1;
        self.views.entry(ptr::from_ref(tensor.resource())).or_default().push((*tensor.layout(), index));
        format!("t{index}")
    }

    fn tensor(&mut self, tensor: &Tensor) -> String {
        if let Some(index) = self.find(tensor) {
            return format!("t{index}");
        }
        if tensor.is_view() {
            let owner = self.tensor(tensor.owner());
            let name = self.introduce(tensor);
            let strides: Vec<String> = tensor.layout().strides().iter().map(usize::to_string).collect();
            let (dtype, offset) = (tensor.dtype(), tensor.layout().offset());
            let strides = strides.join(",");
            let _ = writeln!(
                self.declarations,
                "{name} = view {owner} {dtype}{} strides {strides} offset {offset}",
                shape(tensor)
            );
            return name;
        }
        let name = self.introduce(tensor);
        let memory = tensor.memory();
        let memory = if memory.is_page_locked() { format!(" {memory}") } else { String::new() };
        let (place, dtype) = (tensor.place(), tensor.dtype());
        let _ = writeln!(self.declarations, "{name} = tensor {place}{memory} {dtype}{}", shape(tensor));
        name
    }

    fn var(&mut self, var: &Var) -> String {
        let next = self.vars.len();
        let index = *self.vars.entry(ptr::from_ref(var.resource())).or_insert(next);
        if index == next {
            let _ = writeln!(self.declarations, "v{index} = var");
        }
        format!("v{index}")
    }

    fn critical(&mut self, critical: &Critical) -> String {
        let next = self.criticals.len();
        let index = *self.criticals.entry(ptr::from_ref(critical.resource())).or_insert(next);
        if index == next {
            let _ = writeln!(self.declarations, "c{index} = critical {:?}", critical.name());
        }
        format!("c{index}")
    }

    fn find_event(&self, event: &Event) -> Option<String> {
        self.events.get(&event.address()).map(|index| format!("e{index}"))
    }

    fn record(&mut self, event: &Event) -> String {
        let next = self.events.len();
        format!("e{}", self.events.entry(event.address()).or_insert(next))
    }

    fn event(&mut self, event: &Event) -> String {
        self.find_event(event).unwrap_or_else(|| {
            let name = self.record(event);
            let _ = writeln!(self.declarations, "{name} = event");
            name
        })
    }
}

/// The tensor whose name is written: the owner of the storage for a view of all of it.
fn named(tensor: &Tensor) -> &Tensor {
    let owner = tensor.owner();
    if owner.layout() == tensor.layout() { owner } else { tensor }
}

/// The name of a tensor as an operand of an instruction that runs at `home`, with its prefix.
pub(crate) fn prefixed(tensor: &Tensor, home: Place, name: &str) -> String {
    if tensor.place() != home {
        return format!("{}:{name}", tensor.place());
    }
    match tensor.memory() {
        memory @ (MemoryKind::Pinned | MemoryKind::Upload) => format!("{memory}:{name}"),
        MemoryKind::Device | MemoryKind::Pageable => name.to_owned(),
    }
}
