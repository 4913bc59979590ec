//! The planner: runs the soft-sync pass over a list, and writes the waits and records that the pass decides into the list.

use std::ptr;

use hashbrown::{HashMap, HashSet};
use streamvm_ep::Site;
use streamvm_stream::{MAX_STREAMS, Point, Shows, StreamClass, StreamKey, Streams, WaitKind};

use crate::engine::event::Event;
use crate::engine::interface::ResourceId;
use crate::error::engine_error::Error;
use crate::list::instruction::Instruction;
use crate::list::instruction_list::InstructionList;
use crate::list::kind::{Kind, Role, WaitFor};
use crate::list::sections::ListSections;
use crate::plan::planned_list::{PlanOptions, PlannedList, SyncCounts};
use crate::soft_sync::dependence::Dependence;
use crate::soft_sync::observed::NothingObserved;
use crate::soft_sync::pass::SoftSync;
use crate::soft_sync::plan::Wait;
use crate::soft_sync::record::RecordPlace;
use crate::soft_sync::request::{DependenceUse, Order};
use crate::tensor::resource::Resource;
use crate::tensor::uses::HeldUse;

/// The most waits of a plan: 2,097,152, each a line of some 200 bytes in memory. An instruction after everything (a barrier) waits
/// for each pending function on workers, so a few thousand of both would need more waits than fit in memory.
pub(super) const MAX_WAITS: usize = 1 << 21;

/// Plans `list` from an empty state.
///
/// # Errors
/// A wait names an event or line that does not come before it; an event is recorded twice; a released tensor is used; a critical
/// section is not ended, begins in another one, or is ended where it is not open; there are
/// more than [`MAX_STREAMS`] streams, or more than 2,097,152 waits.
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
        sections: ListSections::default(),
    };
    planner.sync.begin();
    for (line, instruction) in list.instructions().iter().enumerate() {
        planner.decide(line, instruction, &list)?;
    }
    planner.sections.end()?;
    planner.sync.end();
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
    /// The number of waits of all lines so far.
    waits: usize,
    /// The critical section at the current line.
    sections: ListSections,
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
                let (what, operand) = (instruction.kind.name().to_owned(), u.described());
                return Err(Error::Released { line, what, operand, site: instruction.site });
            }
            match instruction.kind {
                Kind::Release => {
                    self.released.insert(resource);
                }
                // An allocation needs no order: reused memory orders its first access after its former accesses.
                Kind::Allocate => {}
                _ => {
                    let part = u.part().and_then(|part| self.sync.add_part(part));
                    uses.push(DependenceUse { resource, access: u.ordering_access(), part });
                }
            }
        }
        let order = self.order(line, instruction)?;
        self.sections.line(line, &instruction.kind, instruction.site)?;
        if matches!(instruction.kind, Kind::SectionEnd(_)) {
            self.sync.set_section(None);
        }
        let at = self.sync.number(stream);
        self.sync.instruction(at, &uses, order, &mut NothingObserved);
        if matches!(instruction.kind, Kind::SectionBegin(_)) {
            self.sync.set_section(uses.first().map(|u| u.resource));
        }
        let plan = self.sync.plan();
        self.waits += plan.instructions().last().map_or(0, |planned| plan.waits(planned).len());
        if self.waits > MAX_WAITS {
            return Err(Error::TooManyWaits { line, most: MAX_WAITS });
        }
        if let Kind::Record(event) = &instruction.kind
            && self.recorded.insert(event.address(), (event.clone(), at)).is_some()
        {
            return Err(Error::RecordedTwice { line, site: instruction.site });
        }
        self.points.push(at);
        Ok(())
    }

    fn order(&self, line: usize, instruction: &Instruction) -> Result<Order, Error> {
        Ok(match &instruction.kind {
            Kind::Record(_) => Order::Record,
            Kind::Barrier { .. } => Order::Barrier,
            Kind::GlobalSync => Order::AfterAll,
            Kind::SectionBegin(_) | Kind::SectionEnd(_) => Order::Uses,
            Kind::Wait { source, target, .. } => {
                let point = match target {
                    WaitFor::Event(event) => self.recorded.get(&event.address()).map(|(_, point)| *point),
                    WaitFor::Line(line) => self.points.get(*line).copied(),
                    WaitFor::Number(_) => None,
                };
                let on_source = point.filter(|point| self.streams.find(source) == Some(point.stream));
                Order::After(on_source.ok_or_else(|| wait_error(line, source, target, instruction.site))?)
            }
            Kind::Call { .. } | Kind::Copy | Kind::Fill(_) | Kind::Allocate | Kind::Release | Kind::Touch => {
                Order::Uses
            }
            Kind::Function { role, .. } => {
                if *role == Role::Blocks {
                    Order::Pieces
                } else {
                    Order::Uses
                }
            }
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
            let (stream, site, launch) = (instruction.stream, instruction.site, instruction.launch);
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
                let reaches = |target: &WaitFor| match target {
                    WaitFor::Event(event) => {
                        self.recorded.get(&event.address()).is_none_or(|(_, at)| at.seq >= wait.point.seq)
                    }
                    WaitFor::Line(_) | WaitFor::Number(_) => true,
                };
                match &mut kind {
                    // The program asked for this wait by itself, so it is changed in place instead of adding a line, unless its event is
                    // before the point, which a critical section may ask for.
                    Kind::Wait { source, target, kind } if *source == key && reaches(target) => {
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
            out.set_launch_options(launch);
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

/// The target by which the list names the point of a wait.
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

/// The error of a wait that names no earlier point.
pub fn wait_error(line: usize, source: &StreamKey, target: &WaitFor, site: Site) -> Error {
    let what = match target {
        WaitFor::Event(_) => format!("an event on {source}"),
        WaitFor::Line(earlier) => format!("line {earlier} on {source}"),
        WaitFor::Number(seq) => format!("instruction {seq} of {source}"),
    };
    Error::WaitsForLater { line, target: what, site }
}

#[cfg(test)]
mod tests {
    use streamvm_ep::{Access, DType, DeviceId, MemoryKind, Shape};

    use crate::place::Place;
    use crate::tensor::handle::Tensor;

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
