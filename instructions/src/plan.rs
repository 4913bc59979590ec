//! Planning: shows the waits and records of a list, without an engine or a device.
//!
//! [`plan`] runs the soft-sync pass over a list from an empty state and writes its decisions out as `wait`, `hostwait`
//! and `record` lines, each wait before the instruction that needs it and each record behind the one it shows. The
//! pass is the one that engines run.
//!
//! A list may come from anywhere. Of streams it may have as many as an engine ([`MAX_STREAMS`]), as each has a clock with a number
//! for each, and of waits it may come to [`MAX_WAITS`]. Planning takes memory in proportion to instructions, operands and waits, beside
//! 32 MiB at most for clocks.

use std::ptr;

use hashbrown::{HashMap, HashSet};
use streamvm_stream::{Capabilities, MAX_STREAMS, Point, Shows, StreamClass, StreamKey, Streams, WaitKind};

use crate::soft_sync::{DependenceUse, NothingObserved, Order, RecordPlace, SoftSync, SoftSyncMode, Wait};
use crate::{Dependence, Error, Event, HeldUse, Instruction, InstructionList, Kind, Resource, ResourceId, WaitFor};

/// The most waits of a plan: 2,097,152, each a line of some 200 bytes in memory. What comes after all waits for each function on
/// workers, so a few thousand of both come to more waits than fit memory.
const MAX_WAITS: usize = 1 << 21;

/// What a plan is made for.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// Which rule finds the waits.
    pub mode: SoftSyncMode,
    /// How streams wait for each other.
    pub capabilities: Capabilities,
}

/// How many instructions and syncs go to one stream.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SyncCounts {
    /// The stream.
    pub stream: StreamKey,
    /// Instructions of the program.
    pub instructions: u64,
    /// Waits that its device makes.
    pub device_waits: u64,
    /// Waits that hold its next instruction back.
    pub host_waits: u64,
    /// Events recorded on it for others, asked for by the program or not.
    pub records: u64,
}

impl SyncCounts {
    /// A stream on which nothing happened yet.
    pub fn none(stream: StreamKey) -> SyncCounts {
        SyncCounts { stream, instructions: 0, device_waits: 0, host_waits: 0, records: 0 }
    }
}

/// A list with its waits and records written out.
#[derive(Debug)]
pub struct PlannedList {
    /// The list.
    pub list: InstructionList,
    /// Counts per stream, in order of first use.
    pub counts: Vec<SyncCounts>,
}

/// Plans `list` from an empty state.
///
/// # Errors
/// A wait names an event or line that does not come before it; an event is recorded twice; a released tensor is used; there are
/// more than [`MAX_STREAMS`] streams, or than 2,097,152 waits.
pub fn plan(list: InstructionList, options: &PlanOptions) -> Result<PlannedList, Error> {
    let mut planner = Planner {
        sync: SoftSync::new(options.mode, options.capabilities.clone()),
        streams: Streams::new(),
        counts: Vec::new(),
        resources: HashMap::new(),
        released: HashSet::new(),
        recorded: HashMap::new(),
        points: Vec::new(),
        waits: 0,
    };
    planner.sync.begin();
    for (line, instruction) in list.instructions().iter().enumerate() {
        planner.decide(line, instruction, &list)?;
    }
    Ok(planner.write_out(list))
}

struct Planner {
    sync: SoftSync,
    streams: Streams,
    counts: Vec<SyncCounts>,
    resources: HashMap<*const Resource, ResourceId>,
    released: HashSet<ResourceId>,
    /// Events that the list itself records, by their address.
    recorded: HashMap<usize, (Event, Point)>,
    /// The point of each line.
    points: Vec<Point>,
    /// Waits of all lines so far.
    waits: usize,
}

impl Planner {
    fn decide(&mut self, line: usize, instruction: &Instruction, list: &InstructionList) -> Result<(), Error> {
        let stream = self.streams.intern(instruction.stream);
        if stream.index() == MAX_STREAMS {
            return Err(Error::TooManyStreams { line, stream: instruction.stream, most: MAX_STREAMS });
        }
        if stream.index() == self.counts.len() {
            self.sync.add_stream(StreamClass::of(&instruction.stream));
            self.counts.push(SyncCounts::none(instruction.stream));
        }
        let mut uses = Vec::new();
        for u in list.uses(instruction) {
            let sync = &mut self.sync;
            let fresh = || sync.add_dependence(Dependence::default());
            let resource = *self.resources.entry(ptr::from_ref(u.resource())).or_insert_with(fresh);
            if self.released.contains(&resource) {
                return Err(Error::Released { line, what: instruction.kind.name().to_owned() });
            }
            match instruction.kind {
                Kind::Release => {
                    self.released.insert(resource);
                }
                // Memory waits for its former lives at its first access.
                Kind::Allocate => {}
                _ => {
                    let part = u.part().and_then(|part| self.sync.add_part(part));
                    uses.push(DependenceUse { resource, access: u.ordering_access(), part });
                }
            }
        }
        let order = self.order(line, instruction)?;
        let at = self.sync.number(stream);
        self.sync.instruction(at, &uses, order, &mut NothingObserved);
        let plan = self.sync.plan();
        self.waits += plan.instructions().last().map_or(0, |planned| plan.waits(planned).len());
        if self.waits > MAX_WAITS {
            return Err(Error::TooManyWaits { line, most: MAX_WAITS });
        }
        if let Kind::Record(event) = &instruction.kind
            && self.recorded.insert(event.address(), (event.clone(), at)).is_some()
        {
            return Err(Error::RecordedTwice { line });
        }
        self.points.push(at);
        Ok(())
    }

    fn order(&self, line: usize, instruction: &Instruction) -> Result<Order, Error> {
        Ok(match &instruction.kind {
            Kind::Record(_) => Order::Record,
            Kind::Barrier { .. } => Order::Barrier,
            Kind::GlobalSync => Order::AfterAll,
            Kind::Wait { source, target, .. } => {
                let point = match target {
                    WaitFor::Event(event) => self.recorded.get(&event.address()).map(|(_, point)| *point),
                    WaitFor::Line(line) => self.points.get(*line).copied(),
                    WaitFor::Number(_) => None,
                };
                let on_source = point.filter(|point| self.streams.find(source) == Some(point.stream));
                Order::After(on_source.ok_or_else(|| wait_error(line, source, target))?)
            }
            _ => Order::Uses,
        })
    }

    fn write_out(mut self, mut list: InstructionList) -> PlannedList {
        let mut events: HashMap<Point, Event> =
            self.recorded.values().map(|(event, at)| (*at, event.clone())).collect();
        let lines: HashMap<Point, usize> = self.points.iter().enumerate().map(|(line, at)| (*at, line)).collect();
        let mut records: HashMap<usize, Vec<Point>> = HashMap::new();
        for record in self.sync.plan().records() {
            if let RecordPlace::Behind(line) = record.place {
                records.entry(line).or_default().push(record.point);
            }
        }
        let mut new_lines = Vec::with_capacity(list.len());
        let mut out = InstructionList::new();
        for line in 0..list.len() {
            let plan = self.sync.plan();
            let planned = &plan.instructions()[line];
            let counts = &mut self.counts[planned.point.stream.index()];
            counts.instructions += 1;
            let (instructions, uses) = list.parts_mut();
            let instruction = &mut instructions[line];
            let uses = instruction.uses_of(uses);
            let (stream, site, manner) = (instruction.stream, instruction.site, instruction.manner);
            let mut kind = std::mem::replace(&mut instruction.kind, Kind::GlobalSync);
            if let Kind::Wait { target: WaitFor::Line(line), .. } = &mut kind {
                *line = new_lines[*line];
            }
            for wait in plan.waits(planned) {
                match wait.kind {
                    WaitKind::Device => counts.device_waits += 1,
                    WaitKind::Host => counts.host_waits += 1,
                }
                let key = self.streams.key(wait.point.stream);
                match &mut kind {
                    // This is the wait that the instruction itself asks for: it says how.
                    Kind::Wait { source, target, kind } if *source == key => {
                        if matches!(target, WaitFor::Line(_)) {
                            *target = shown(wait, &events, &lines, &new_lines);
                        }
                        *kind = wait.kind;
                    }
                    _ => {
                        let target = shown(wait, &events, &lines, &new_lines);
                        out.push_unchecked(stream, Kind::Wait { source: key, target, kind: wait.kind }, [], site);
                    }
                }
            }
            new_lines.push(out.len());
            let records_itself = matches!(kind, Kind::Record(_));
            out.push_unchecked(stream, kind, uses.iter().map(HeldUse::seen), site);
            out.set_manner(manner);
            for point in records.remove(&line).unwrap_or_default() {
                self.counts[point.stream.index()].records += 1;
                if !records_itself {
                    let event = Event::new();
                    events.insert(point, event.clone());
                    out.push_unchecked(stream, Kind::Record(event), [], site);
                }
            }
        }
        PlannedList { list: out, counts: self.counts }
    }
}

/// How a wait's target is named in the list.
fn shown(wait: &Wait, events: &HashMap<Point, Event>, lines: &HashMap<Point, usize>, new_lines: &[usize]) -> WaitFor {
    let by_event = (wait.shows == Shows::Event).then(|| events.get(&wait.point)).flatten();
    match by_event {
        Some(event) => WaitFor::Event(event.clone()),
        None => match lines.get(&wait.point) {
            Some(line) => WaitFor::Line(new_lines[*line]),
            None => WaitFor::Number(wait.point.seq),
        },
    }
}

/// Says what a refused wait was waiting for.
pub fn wait_error(line: usize, source: &StreamKey, target: &WaitFor) -> Error {
    let what = match target {
        WaitFor::Event(_) => format!("an event on {source}"),
        WaitFor::Line(earlier) => format!("line {earlier} on {source}"),
        WaitFor::Number(seq) => format!("instruction {seq} of {source}"),
    };
    Error::WaitsForLater { line, target: what }
}

#[cfg(test)]
mod tests {
    use streamvm_ep::{Access, DType, DeviceId, MemoryKind, Shape};

    use crate::{Place, Tensor};

    #[test]
    fn a_partial_write_is_an_update() {
        let place = Place::Device(DeviceId::cpu(0));
        let shape = Shape::new(&[4, 2]).expect("a valid shape");
        let tensor = Tensor::unbound(place, MemoryKind::Device, DType::F32, shape);
        assert_eq!(tensor.write().ordering_access(), Access::Write);
        let rows = tensor.slice(0, 1..3).expect("a valid slice");
        assert_eq!(rows.write().ordering_access(), Access::ReadWrite);
        let flipped = tensor.permute(&[1, 0]).expect("a valid permutation");
        assert_eq!(flipped.write().ordering_access(), Access::ReadWrite);
    }
}
