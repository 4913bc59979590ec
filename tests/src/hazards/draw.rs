//! Random valid programs for devices: every conflict is ordered, and every element is written before it is read.

use streamvm::Access;

use super::order::Follower;
use super::program::{ACCESSES, Command, DEVICES, ELEMENTS, Life, Program, Region, RegionKind, Use, View, Work};
use crate::support::random::Random;

/// Most draws of a program. Each adds at most one access; few, so that other waits do not make up for one missing wait.
const DRAWS: usize = 24;

/// A valid program.
pub(crate) fn draw(random: &mut Random) -> Program {
    let streams = (0..2 + random.below(4)).map(|index| index % DEVICES).collect();
    let mut regions = vec![Region { device: 0, kind: RegionKind::Device }];
    for _ in 0..1 + random.below(3) {
        let kind = if random.once_in(2) { RegionKind::Pinned } else { RegionKind::Device };
        regions.push(Region { device: random.below(DEVICES), kind });
    }
    let (lives, commands, names_lives) = (Vec::new(), Vec::new(), !random.once_in(4));
    let program = Program { streams, regions, lives, events: 0, accesses: 0, names_lives, commands };
    let follower = Follower::new(&program);
    let mut drawing = Drawing { random, program, follower, alive: Vec::new(), recorded: Vec::new() };
    for region in 0..drawing.program.regions.len() {
        drawing.begin(region);
    }
    for _ in 0..8 + drawing.random.below(DRAWS - 7) {
        drawing.step();
    }
    drawing.program
}

struct Drawing<'a> {
    random: &'a mut Random,
    program: Program,
    follower: Follower,
    /// Allocations that have begun and not ended, with the set of written elements of their region.
    alive: Vec<(usize, u32)>,
    /// (event, stream) of every record.
    recorded: Vec<(usize, usize)>,
}

impl Drawing<'_> {
    fn step(&mut self) {
        debug_assert!(self.program.accesses < ACCESSES);
        match self.random.below(16) {
            0 | 1 => self.sync_without_need(),
            2 => self.reuse(),
            3 | 4 => self.host(),
            _ => self.run(),
        }
    }

    fn push(&mut self, command: Command) {
        self.follower.follow(&self.program, &command);
        self.program.commands.push(command);
    }

    /// Begins the allocations of a region: one of the whole region, or two halves.
    fn begin(&mut self, region: usize) {
        let lives: &[(usize, usize)] = if self.random.once_in(2) { &[(0, ELEMENTS)] } else { &[(0, 16), (16, 16)] };
        for (start, elements) in lives.iter().copied() {
            let life = self.program.lives.len();
            self.program.lives.push(Life { region, start, elements });
            self.alive.push((life, 0));
            self.push(Command::Begin { life });
        }
    }

    /// Ends the allocations of a region and begins others there.
    fn reuse(&mut self) {
        let region = self.random.below(self.program.regions.len());
        let (ended, alive) = std::mem::take(&mut self.alive)
            .into_iter()
            .partition(|(life, _)| self.program.lives[*life].region == region);
        self.alive = alive;
        let ended: Vec<(usize, u32)> = ended;
        ended.into_iter().for_each(|(life, _)| self.push(Command::End { life }));
        self.begin(region);
    }

    /// Adds a wait that no access needs yet; later accesses may rely on its order.
    fn sync_without_need(&mut self) {
        let (source, target) = (self.stream(), self.stream());
        let event = self.record(source);
        self.push(Command::Wait { stream: target, event });
    }

    fn stream(&mut self) -> usize {
        self.random.below(self.program.streams.len())
    }

    fn record(&mut self, stream: usize) -> usize {
        let event = self.program.events;
        self.program.events += 1;
        self.push(Command::Record { stream, event });
        self.recorded.push((event, stream));
        event
    }

    /// Adds an instruction on a random stream.
    fn run(&mut self) {
        let stream = self.stream();
        let mut uses = Vec::new();
        let view = self.view();
        for _ in 0..self.random.below(3) {
            uses.extend(self.part(&view, true, &uses).map(|(life, view)| Use { life, view, access: Access::Read }));
        }
        let Some((life, view)) = self.part(&view, false, &uses) else { return };
        let update = self.is_written(life, view) && self.random.once_in(3);
        let access = if update { Access::ReadWrite } else { Access::Write };
        let work = match (uses.len(), update) {
            (_, true) => Work::Call,
            (0, _) => *self.random.pick(&[Work::Fill, Work::Call]),
            (1, _) => *self.random.pick(&[Work::Copy, Work::Kernel, Work::Call]),
            _ => *self.random.pick(&[Work::Kernel, Work::Call]),
        };
        uses.push(Use { life, view, access });
        let id = self.program.accesses;
        self.access(Some(stream), Command::Run { id, stream, work, uses });
        if self.random.once_in(4) {
            self.record(stream);
        }
    }

    /// Adds an access of the host to pinned memory.
    fn host(&mut self) {
        let pinned = |(life, written): &&(usize, u32), program: &Program| {
            let region = program.lives[*life].region;
            (program.regions[region].kind == RegionKind::Pinned).then_some((*life, *written))
        };
        let fits: Vec<(usize, u32)> = self.alive.iter().filter_map(|alive| pinned(&alive, &self.program)).collect();
        if fits.is_empty() {
            return;
        }
        let (life, _) = *self.random.pick(&fits);
        let view = View::all(self.program.lives[life].elements);
        let reads = self.is_written(life, view) && self.random.once_in(2);
        let access = if reads { Access::Read } else { Access::Write };
        let id = self.program.accesses;
        self.access(None, Command::Host { id, touched: Use { life, view, access } });
    }

    /// Issues an access after the waits that it needs.
    fn access(&mut self, stream: Option<usize>, command: Command) {
        loop {
            let mut trial = self.follower.clone();
            trial.follow(&self.program, &command);
            let Some(open) = trial.unordered_of_last().first().copied() else { break };
            self.order(stream, open.first);
        }
        let touched: Vec<Use> = match &command {
            Command::Run { uses, .. } => uses.clone(),
            Command::Host { touched, .. } => vec![*touched],
            _ => Vec::new(),
        };
        self.program.accesses += 1;
        self.push(command);
        for touched in touched.into_iter().filter(|touched| touched.access.writes()) {
            let (_, elements) = self.program.elements(touched);
            self.alive
                .iter_mut()
                .filter(|(life, _)| *life == touched.life)
                .for_each(|(_, written)| *written |= elements);
        }
    }

    /// Makes `target` wait for the access `first`, by an event that already marks it or by a new one.
    fn order(&mut self, target: Option<usize>, first: usize) {
        let source = self.follower.access(first).stream.expect("what the host did is ordered before what it issues");
        let marks = |(event, _): &&(usize, usize)| self.follower.marked(*event) & (1 << first) != 0;
        let marking: Vec<(usize, usize)> = self.recorded.iter().filter(marks).copied().collect();
        if target.is_none() && self.random.once_in(4) {
            return self.push(Command::Synchronize { stream: source });
        }
        let event = if !marking.is_empty() && !self.random.once_in(4) {
            self.random.pick(&marking).0
        } else {
            self.record(source)
        };
        match target {
            Some(stream) => self.push(Command::Wait { stream, event }),
            None => self.push(Command::HostWait { thread: 0, event }),
        }
    }

    /// Draws a shape.
    fn view(&mut self) -> View {
        let shapes = [(4, 4), (4, 4), (2, 4), (4, 2), (4, 1), (1, 4)];
        let (rows, columns) = *self.random.pick(&shapes);
        View { rows, columns, offset: 0 }
    }

    /// Draws an allocation and a view in it of this shape that does not overlap the operands so far, from first to last byte, as devices
    /// require. If `written` is set, all its elements are written.
    fn part(&mut self, shape: &View, written: bool, used: &[Use]) -> Option<(usize, View)> {
        let mut fits = Vec::new();
        for (life, _) in &self.alive {
            let rows = self.program.lives[*life].elements / 4;
            for row in 0..=rows - shape.rows {
                for column in 0..=4 - shape.columns {
                    let view = View { offset: row * 4 + column, ..*shape };
                    let (region, elements) = self.program.elements(Use { life: *life, view, access: Access::Read });
                    let apart = used.iter().all(|other| {
                        let (other_region, others) = self.program.elements(*other);
                        region != other_region || hull(elements) & hull(others) == 0
                    });
                    if apart && (!written || self.is_written(*life, view)) {
                        fits.push((*life, view));
                    }
                }
            }
        }
        (!fits.is_empty()).then(|| *self.random.pick(&fits))
    }

    fn is_written(&self, life: usize, view: View) -> bool {
        let (_, elements) = self.program.elements(Use { life, view, access: Access::Read });
        self.alive.iter().any(|(other, written)| *other == life && elements & !written == 0)
    }
}

/// All elements from the first to the last of a set.
fn hull(elements: u32) -> u32 {
    (u32::MAX << elements.trailing_zeros()) & (u32::MAX >> elements.leading_zeros())
}

#[cfg(test)]
mod tests {
    use super::super::order::Relation;
    use super::*;

    #[test]
    fn what_is_drawn_is_valid_and_of_every_kind() {
        let (mut commands, mut relations) = (Vec::new(), Vec::new());
        for seed in 0..500 {
            let program = draw(&mut Random::new(seed, 0));
            let follower = Follower::of(&program);
            assert!(follower.unordered().is_empty(), "{program:?}");
            assert_eq!(follower.reads_unwritten(), None, "{program:?}");
            for (index, command) in program.commands.iter().enumerate() {
                commands.push(std::mem::discriminant(command));
                let mut without = program.clone();
                if matches!(without.commands.remove(index), Command::Wait { .. }) {
                    relations.extend(Follower::of(&without).unordered().into_iter().map(|conflict| conflict.relation));
                }
            }
        }
        commands.sort_unstable_by_key(|kind| format!("{kind:?}"));
        commands.dedup();
        assert_eq!(commands.len(), 8, "all but giving back");
        for relation in [Relation::Raw, Relation::War, Relation::Waw, Relation::Reuse] {
            assert!(relations.contains(&relation), "{relation:?} is never the only reason of a wait");
        }
    }
}
