//! A sequence of calls that repeats, and the programs that were made of it.

use std::panic::Location;

use streamvm_ep::{Access, Layout};
use streamvm_program::{Operand, Port, Program, Step, Value, ValueId, ValueRole};
use streamvm_stream::StreamKey;

use crate::automatic::call::Call;
use crate::automatic::objects::{ObjectKind, Objects};

/// Calls of one stream; the objects that they use have the numbers of the values of their steps.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) stream: StreamKey,
    pub(super) steps: Vec<Step>,
    pub(super) kinds: Vec<ObjectKind>,
    /// The programs of it: for each set of results that somebody could still use when a run was submitted.
    pub(super) variants: Vec<Variant>,
    /// How often it was replayed, and how often its calls were submitted one by one after some were held back.
    pub(super) replays: u64,
    pub(super) fallbacks: u64,
    /// It is not followed, because its calls mostly had to be submitted one by one.
    pub(super) is_retired: bool,
    /// How often it was found since it was retired.
    pub(super) found: u64,
    /// When it was followed last, by the clock of its [`Sequences`](crate::automatic::sequences::Sequences).
    pub(super) used: u64,
}

/// A program of a sequence.
#[derive(Debug)]
pub(super) struct Variant {
    /// For each object, whether a run writes it: a result that somebody can use.
    pub(super) results: Vec<bool>,
    /// By which the cache of programs has it.
    pub(super) number: u64,
    /// How often it was compiled: again each time that the cache has dropped it.
    pub(super) compiled: u64,
    /// How often it ran.
    pub(super) ran: u64,
    /// It cannot be compiled, or does not run on one stream.
    pub(super) is_useless: bool,
}

impl Sequence {
    /// The sequence of these calls; `None` if they are on several streams, or cannot be numbered.
    pub(super) fn new<'c>(calls: impl IntoIterator<Item = &'c Call>) -> Option<Sequence> {
        let (mut objects, mut steps, mut stream) = (Objects::default(), Vec::new(), None);
        for call in calls {
            if *stream.get_or_insert(call.stream) != call.stream {
                return None;
            }
            let mut operands = Vec::with_capacity(call.operands.len());
            for own in &call.operands {
                let operand = own.borrowed();
                let located = objects.locate(&operand)?;
                operands.push(Operand {
                    value: ValueId(located.object),
                    layout: located.layout,
                    access: operand.access,
                });
            }
            steps.push(Step { work: call.work.clone(), operands, location: call.location });
        }
        let kinds = objects.kinds().cloned().collect();
        let (variants, replays, fallbacks, found, used) = Default::default();
        let (stream, is_retired) = (stream?, false);
        Some(Sequence { stream, steps, kinds, variants, replays, fallbacks, is_retired, found, used })
    }

    /// Whether both have the same calls.
    pub(super) fn is_same(&self, other: &Sequence) -> bool {
        self.stream == other.stream && self.steps == other.steps && self.kinds == other.kinds
    }

    /// Whether the first `len` calls are those of `other`.
    pub(super) fn begins_as(&self, other: &Sequence, len: usize) -> bool {
        let steps = (self.steps.get(..len), other.steps.get(..len));
        let (Some(own), Some(others)) = steps else { return false };
        let used = own.iter().flat_map(|step| &step.operands).map(|operand| operand.value.0 + 1).max().unwrap_or(0);
        self.stream == other.stream && own == others && self.kinds.get(..used) == other.kinds.get(..used)
    }

    /// The line of its first call.
    pub(super) fn location(&self) -> &'static Location<'static> {
        self.steps.first().map_or(Location::caller(), |step| step.location)
    }

    /// The program of the sequence, which fetches these objects.
    pub(super) fn program(&self, results: &[bool]) -> Program {
        let last = self.steps.last().map_or(self.location(), |step| step.location);
        let mut program = Program::new(format!("calls of {} to {}:{}", self.location(), last.line(), last.column()));
        let mut written = vec![false; self.kinds.len()];
        for operand in self.steps.iter().flat_map(|step| &step.operands) {
            written[operand.value.0] |= operand.access != Access::Read;
        }
        for (object, kind) in self.kinds.iter().enumerate() {
            let (ports, role, name): (_, fn(usize) -> ValueRole, _) = match (kind.is_made, written[object]) {
                (true, _) => (&mut program.fetches, |_| ValueRole::Computed, "result"),
                (false, true) => (&mut program.parameters, ValueRole::Parameter, "parameter"),
                (false, false) => (&mut program.feeds, ValueRole::Feed, "feed"),
            };
            let role = role(ports.len());
            if !kind.is_made || results[object] {
                let layout = Layout::contiguous(kind.shape);
                ports.push(Port { name: format!("{name}{object}"), value: ValueId(object), layout });
            }
            let ObjectKind { place, memory, dtype, shape, .. } = kind.clone();
            program.values.push(Value { role, place, memory, dtype, shape });
        }
        program.steps.clone_from(&self.steps);
        program
    }
}
