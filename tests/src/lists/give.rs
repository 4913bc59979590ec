//! Adds a drawn instruction to a list: with `push` on its own stream, or with the builder call for its operation.

use std::hint::black_box;

use streamvm::ep::InlineFn;
use streamvm::instructions::{Kind, Role, WaitFor};
use streamvm::stream::WaitKind;
use streamvm::{
    Access, Critical, Error, Event, FnContext, FnError, InstructionList, InstructionsBuilder, Params, Scalar, Section,
    Site, StreamType, Tensor, Use,
};

use super::drawn::{Drawn, What};
use super::model::{function, sum};

/// What instructions of one list name beside tensors.
pub(super) struct Named {
    /// Events, by number.
    events: Vec<Event>,
    port: Critical,
    /// The section that the last accepted begin has begun.
    open: Option<Section>,
}

impl Named {
    /// The names of a list of these instructions.
    pub(super) fn new(instructions: &[Drawn]) -> Named {
        let events = instructions.iter().map(|_| Event::new()).collect();
        Named { events, port: Critical::new("port"), open: None }
    }

    /// Has a section begun that has not ended?
    pub(super) fn is_section_open(&self) -> bool {
        self.open.is_some()
    }

    fn section(&self) -> Section {
        InstructionsBuilder::new().begin_section(&[&self.port], &[]).expect("it has a resource")
    }
}

/// Pushes the instruction to the list, on the drawn stream. The steps of a program have no code here: a list takes that from its engine alone.
///
/// # Errors
/// The error with which the list refuses it.
pub(super) fn push(
    drawn: &Drawn,
    tensors: &[Tensor],
    named: &mut Named,
    list: &mut InstructionList,
) -> Result<(), Error> {
    let code = || Some(InlineFn::new(body(drawn)));
    let kind = match &drawn.what {
        What::Call(op) => Kind::Call { op: *op, params: Params::default() },
        What::Copy => Kind::Copy,
        What::Fill(value) => Kind::Fill(Scalar::from(*value)),
        What::Allocate => Kind::Allocate,
        What::Release => Kind::Release,
        What::Touch => Kind::Touch,
        What::Function(role) => {
            let body = if *role == Role::Program { None } else { code() };
            Kind::Function { role: *role, name: drawn.what.word().into(), body }
        }
        What::Barrier(calls) => {
            Kind::Barrier { name: "barrier".into(), body: calls.then(code).flatten(), calls: *calls }
        }
        What::Record(event) => Kind::Record(named.events[*event].clone()),
        What::Wait { event, source } => {
            Kind::Wait { source: *source, target: WaitFor::Event(named.events[*event].clone()), kind: WaitKind::Device }
        }
        What::Begin => return push_mark(drawn, named.section(), named, list),
        What::End => {
            let section = named.open.clone().unwrap_or_else(|| named.section());
            return push_mark(drawn, section, named, list);
        }
        What::GlobalSync => Kind::GlobalSync,
    };
    list.push(drawn.stream, kind, uses(drawn, tensors), Site::caller())
}

/// Pushes the begin or the end of a section.
fn push_mark(drawn: &Drawn, section: Section, named: &mut Named, list: &mut InstructionList) -> Result<(), Error> {
    let begins = drawn.what == What::Begin;
    let kind = if begins { Kind::SectionBegin(section.clone()) } else { Kind::SectionEnd(section.clone()) };
    list.push(drawn.stream, kind, section.uses().collect::<Vec<_>>(), Site::caller())?;
    named.open = begins.then_some(section);
    Ok(())
}

/// Adds the instruction with a call of the builder, which chooses the stream; the builder is told the lane of the drawn stream, and whether
/// it is a stream of workers or pinned. Returns `None`, and adds nothing, if the builder has no call for the operation.
pub(super) fn build(
    drawn: &Drawn,
    tensors: &[Tensor],
    named: &mut Named,
    builder: &mut InstructionsBuilder,
) -> Option<Result<(), Error>> {
    let Drawn { stream, what, .. } = drawn;
    let mut builder = builder.on_lane(stream.lane);
    let mut builder = match stream.stream_type {
        StreamType::PinnedCompute => builder.on_pinned(),
        StreamType::Workers => builder.on_workers(),
        _ => builder.on_compute(),
    };
    let used: Vec<&Tensor> = drawn.uses.iter().map(|(tensor, _)| &tensors[*tensor]).collect();
    let (name, uses) = (what.word(), uses(drawn, tensors));
    match what {
        What::Call(op) => {
            let (output, inputs) = used.split_last()?;
            return Some(builder.op_into(*op, inputs, Params::default(), output));
        }
        What::Copy => return Some(builder.copy_into(used[0], used[1])),
        What::Fill(value) => return Some(builder.fill(used[0], *value)),
        What::Function(Role::Function) => return Some(builder.call_fn(name, stream.device, uses, body(drawn))),
        What::Function(Role::Access) => return Some(builder.access(name, *uses.first()?, body(drawn))),
        What::Function(Role::Cuda) => return Some(builder.call_cuda(name, stream.device, uses, |_| Ok(()))),
        What::Function(Role::Push) => builder.push(name, stream.device, uses, || Ok(())),
        What::Release => builder.release(used[0]),
        What::Touch => builder.touch(stream.device, &used),
        What::Barrier(true) => builder.barrier_with(name, || Ok(())),
        What::Barrier(false) => builder.barrier(),
        What::GlobalSync => builder.global_sync(),
        What::Record(event) => named.events[*event] = builder.record(*stream),
        What::Wait { event, source } => builder.wait(*stream, *source, &named.events[*event]),
        What::Begin => named.open = Some(builder.begin_section(&[&named.port], &[]).expect("it has a resource")),
        What::End => builder.end_section(named.open.take()?, &[]),
        What::Allocate | What::Function(Role::Host | Role::Program | Role::ProgramWithCode | Role::Blocks) => {
            return None;
        }
    }
    Some(Ok(()))
}

fn uses<'t>(drawn: &Drawn, tensors: &'t [Tensor]) -> Vec<Use<'t>> {
    let declared = drawn.uses.iter().map(|(tensor, access)| match access {
        Access::Read => tensors[*tensor].read(),
        Access::Write => tensors[*tensor].write(),
        Access::ReadWrite => tensors[*tensor].update(),
    });
    declared.collect()
}

/// The function of a function or barrier instruction: it reads every element of its operands, and writes the values that the model
/// computes.
fn body(
    drawn: &Drawn,
) -> impl for<'a, 'b> FnOnce(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + use<> + 'static {
    let raw = drawn.what == What::Function(Role::Cuda);
    let updates: Vec<bool> = drawn
        .uses
        .iter()
        .filter(|(_, access)| *access != Access::Read)
        .map(|(_, access)| *access == Access::ReadWrite)
        .collect();
    move |context: &mut FnContext<'_>| {
        if raw {
            return context.raw.map(|_| ()).ok_or_else(|| "it runs on a driver's stream alone".into());
        }
        let mut read = Vec::new();
        for input in 0..context.reads.len() {
            read.extend_from_slice(context.reads.get::<f32>(input)?);
        }
        let sum = black_box(sum(read.iter()));
        for (output, updates) in updates.iter().enumerate() {
            for element in context.writes.take::<f32>(output)? {
                *element = function(sum, if *updates { *element } else { 0.0 });
            }
        }
        Ok(())
    }
}
