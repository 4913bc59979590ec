//! The first pass of a submission: checks all that can be refused, and takes memory with an undo log.
//!
//! Whatever is in the way is told as an [`Obstacle`] (in a box, so that going on is one word), with everything undone: the
//! submitter leaves the lock, removes it, and starts again.

use std::borrow::Borrow;

use streamvm_ep::{Access, Op};
use streamvm_instructions::{
    Batch, Declared, Dependence, DependenceUse, EngineRef, Error, Instruction, Kind, Observed, PartId, Resource,
    ResourceId, ResourceKind, Tensor, Use, Var, WaitFor, wait_error,
};
use streamvm_stream::allocator::{AccessSet, Allocated, Block, Want};
use streamvm_stream::{Point, StreamId, StreamKey};

use crate::memory::{Memory, PoolId};
use crate::shared::Shared;
use crate::state::{Contents, Handed, Known, Prepared, Recorded, State, Undo, UsePlace};

/// A block of a page changes hands whatever is asked for: less is not worth a wait.
const SMALL_BLOCK: usize = 4096;

/// The longest list with an instruction on workers: a quarter of the cells that there may be.
pub(crate) const MOST_ON_WORKERS: usize = 1 << 20;

/// Why a submission cannot go on under the lock.
pub(crate) enum Obstacle {
    /// The list is refused.
    Refused(Error),
    /// A stream must be opened.
    Stream(StreamKey),
    /// Memory of a kind is needed for the first time.
    Pool(ResourceKind),
    /// A pool has no block of so many bytes.
    Memory(PoolId, usize),
    /// Every block of so many bytes that a pool may have needs a wait, and the device may have one that needs none.
    Fresh(PoolId, usize),
}

impl From<Error> for Box<Obstacle> {
    fn from(error: Error) -> Box<Obstacle> {
        Box::new(Obstacle::Refused(error))
    }
}

impl State {
    /// Checks `list` and takes memory for what it creates. On an obstacle, which comes with its line, no tensor and no
    /// mark has changed.
    #[inline(never)]
    pub(crate) fn prepare<B: Batch>(&mut self, list: &B, vm: &Shared) -> Result<(), (usize, Box<Obstacle>)> {
        self.scratch.clear();
        self.sync.forget_parts();
        self.snapshot.begin(vm.monitor.is_some());
        let (lines, uses) = (list.instructions(), list.all_uses());
        self.scratch.last_use = lines.last().and_then(|last| last.use_range().last());
        for line in 0..lines.len() {
            if let Err(obstacle) = self.prepare_one(line, lines, uses, vm) {
                self.undo(list, vm.me);
                // The allocators forget what they saw to have passed, undone or not.
                if let Some(monitor) = &vm.monitor {
                    monitor.looked(self.snapshot.seen());
                }
                return Err((line, obstacle));
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn prepare_one<T, V>(
        &mut self,
        line: usize,
        lines: &[Instruction],
        uses: &[Declared<T, V>],
        vm: &Shared,
    ) -> Result<(), Box<Obstacle>>
    where
        T: Borrow<Tensor>,
        V: Borrow<Var>,
    {
        let instruction = &lines[line];
        let stream = self.stream(&instruction.stream).ok_or_else(|| Box::new(Obstacle::Stream(instruction.stream)))?;
        if lines.len() > MOST_ON_WORKERS && stream.is_unordered() {
            return Err(too_long(lines.len(), instruction.stream));
        }
        let uses = instruction.uses_of(uses);
        let (mut bytes, mut kernel, mut releases) = (0, None, false);
        self.scratch.taken = 0;
        match &instruction.kind {
            Kind::Function { body: Some(body), .. } => bytes = body.heap_bytes() as u64,
            Kind::Call { op, .. } => {
                if let Some(key) = uses.get(op.key_input()).and_then(Declared::as_tensor) {
                    kernel = Some(self.scratch.kernels.len() as u32);
                    self.kernel(*op, instruction, key, vm)?;
                }
            }
            Kind::Copy | Kind::Fill(_) => {}
            Kind::Barrier { body, .. } => {
                bytes = body.as_ref().map_or(0, |body| body.heap_bytes() as u64);
                self.check(line, instruction, vm.me, lines)?;
            }
            Kind::Release => releases = true,
            _ => self.check(line, instruction, vm.me, lines)?,
        }
        debug_assert_eq!(self.scratch.uses.len(), instruction.use_range().start, "uses lie in order, without gaps");
        for (offset, u) in uses.iter().enumerate() {
            let resource = match u.resource().written_in(vm.me) {
                Some(id) if !releases => {
                    debug_assert!(self.known(id).is_some_and(|known| known.contents == Contents::Written));
                    id
                }
                _ => {
                    let place = instruction.use_range().start + offset;
                    self.change(line, instruction, (place, u.seen()), stream, vm)?
                }
            };
            let (access, part) = if u.is_of_view() { self.use_of_view(u.seen()) } else { (u.access(), None) };
            self.scratch.uses.push(DependenceUse { resource, access, part });
        }
        bytes += self.scratch.taken;
        self.scratch.prepared.push(Prepared { stream, kernel, bytes, record: false });
        Ok(())
    }

    /// How order must treat a use of a view, and the part of the storage that it uses; no part for all of the storage.
    #[inline(never)]
    fn use_of_view(&mut self, u: Use<'_>) -> (Access, Option<PartId>) {
        (u.ordering_access(), u.part().and_then(|part| self.sync.add_part(part)))
    }

    /// Notes the kernel of a call, which the input that is its key decides.
    #[inline(never)]
    fn kernel(&mut self, op: Op, instruction: &Instruction, key: &Tensor, vm: &Shared) -> Result<(), Box<Obstacle>> {
        let (device, dtype) = (instruction.stream.device.kind, key.dtype());
        let found = vm.kernels.find(op, device, dtype);
        let kernel = found.ok_or_else(|| Error::from(vm.kernels.missing(op, device, dtype)))?;
        self.scratch.kernels.push(*kernel);
        Ok(())
    }

    /// What can be refused without looking at resources.
    #[inline(never)]
    fn check(
        &mut self,
        line: usize,
        instruction: &Instruction,
        engine: EngineRef,
        lines: &[Instruction],
    ) -> Result<(), Error> {
        match &instruction.kind {
            kind @ (Kind::Record(_) | Kind::Wait { .. } | Kind::Barrier { .. } | Kind::GlobalSync)
                if instruction.stream.stream_type.is_unordered() =>
            {
                let (what, stream) = (kind.name().to_owned(), instruction.stream);
                Err(Error::Unordered { line, what, stream })
            }
            Kind::Function { name, body: None, .. } | Kind::Barrier { name, body: None, calls: true } => {
                Err(Error::Placeholder { line, name: name.to_string() })
            }
            Kind::Record(event) => {
                let again = {
                    let recorded = Recorded { stream: instruction.stream, point: None };
                    self.scratch.recorded.insert(event.address(), recorded).is_some()
                };
                if event.is_recorded() || again { Err(Error::RecordedTwice { line }) } else { Ok(()) }
            }
            Kind::Wait { source, target, .. } => {
                let found = match target {
                    WaitFor::Event(event) => match event.point_in(engine) {
                        Some(point) => Some(self.names.key(point.stream)),
                        None => self.scratch.recorded.get(&event.address()).map(|recorded| recorded.stream),
                    },
                    WaitFor::Line(earlier) => {
                        self.scratch.by_line = true;
                        lines[..line].get(*earlier).map(|other| other.stream)
                    }
                    WaitFor::Number(seq) => {
                        // Numbers of an unordered stream say nothing about what was submitted.
                        let id = self.names.find(source).filter(|id| !id.is_unordered());
                        id.filter(|id| (1..=self.sync.last_submitted(*id)).contains(seq)).map(|_| *source)
                    }
                };
                if found == Some(*source) { Ok(()) } else { Err(wait_error(line, source, target)) }
            }
            _ => Ok(()),
        }
    }

    /// A use of what was not written before, or is given back: follows through the list what is known of the contents.
    /// Returns its id.
    #[inline(never)]
    fn change(
        &mut self,
        line: usize,
        instruction: &Instruction,
        (place, u): (UsePlace, Use<'_>),
        stream: StreamId,
        vm: &Shared,
    ) -> Result<ResourceId, Box<Obstacle>> {
        let never_written = || refused(line, instruction, |line, what| Error::NeverWritten { line, what });
        let released = || refused(line, instruction, |line, what| Error::Released { line, what });
        let foreign = |_| refused(line, instruction, |line, what| Error::Foreign { line, what });
        let resource = u.resource();
        let known = resource.id_in(vm.me).map_err(foreign)?;
        let known = known.or_else(|| self.scratch.unclaimed.get(&address(resource)).copied());
        let id = match known {
            Some(id) => id,
            None => {
                let reads = u.access().reads() && resource.kind() != ResourceKind::Var;
                if reads || matches!(instruction.kind, Kind::Release) {
                    return Err(never_written());
                }
                self.create(resource, stream, vm)?
            }
        };
        let is_new = known.is_none();
        let Some(known) = self.resources.get_mut(id.index()).and_then(Option::as_mut) else {
            return Err(released());
        };
        match (&instruction.kind, known.contents) {
            (_, Contents::Released) => return Err(released()),
            (Kind::Release, before) => {
                known.contents = Contents::Released;
                resource.note_written(vm.me, false);
                self.scratch.undo.push(Undo::Contents(id, place, before));
                if let Some((pool, block)) = known.memory.block {
                    self.scratch.handed.push(Handed { owner: id, pool, block, heir: None });
                }
            }
            (_, Contents::Written) | (Kind::Allocate, _) => {}
            (_, Contents::Fresh) if u.access().reads() => return Err(never_written()),
            (_, Contents::Fresh) => {
                known.contents = Contents::Written;
                // What was created by this very use goes, contents and all.
                if !is_new {
                    self.scratch.undo.push(Undo::Contents(id, place, Contents::Fresh));
                }
            }
        }
        if is_new {
            let written = known.contents == Contents::Written;
            self.note_created(id, resource, (place, written), vm.me);
        }
        Ok(id)
    }

    /// Makes the resource of a use known, with memory if it has bytes. Returns its id.
    fn create(&mut self, resource: &Resource, stream: StreamId, vm: &Shared) -> Result<ResourceId, Box<Obstacle>> {
        let (memory, dependence, contents) = match resource.kind() {
            ResourceKind::Var => (Memory::none(), Dependence::default(), Contents::Written),
            ResourceKind::Storage { bytes: 0, .. } => (Memory::none(), Dependence::default(), Contents::Fresh),
            kind @ ResourceKind::Storage { place, memory, bytes } => {
                let pool = self.pools.find(place, memory).ok_or_else(|| Box::new(Obstacle::Pool(kind)))?;
                if let Some(id) = self.take_kept(pool, bytes, stream) {
                    self.scratch.taken += bytes as u64;
                    return Ok(id);
                }
                let (memory, accesses) = self.take(pool, bytes, stream, vm)?;
                self.scratch.taken += bytes as u64;
                (memory, Dependence::after(&accesses), Contents::Fresh)
            }
        };
        let id = self.sync.add_dependence(dependence);
        if let Some((pool, block)) = &memory.block {
            // The memory may be what an earlier instruction of this list releases. Block ids are a pool's own.
            let free =
                |handed: &&mut Handed| handed.pool == *pool && handed.block.id == block.id && handed.heir.is_none();
            let handed = self.scratch.handed.iter_mut().find(free);
            if let Some(handed) = handed {
                handed.heir = Some(id);
            }
        }
        self.add_resource(id, Known { memory, contents });
        Ok(id)
    }

    /// Gives the resource of a use its number: as a draft, unless it is the last thing that is looked at: then nothing is refused
    /// any more.
    #[inline]
    fn note_created(
        &mut self,
        id: ResourceId,
        resource: &Resource,
        (place, written): (UsePlace, bool),
        engine: EngineRef,
    ) {
        if self.scratch.last_use == Some(place) && resource.is_of(engine) {
            return resource.keep(engine, id, written);
        }
        self.scratch.undo.push(Undo::Created(id, place));
        if resource.is_of(engine) {
            resource.draft(engine, id);
        } else {
            self.scratch.unclaimed.insert(address(resource), id);
        }
    }

    /// The first rungs of the ladder: what needs no wait, what the list itself releases, a little fresh memory, what needs
    /// a wait.
    fn take(
        &mut self,
        id: PoolId,
        bytes: usize,
        stream: StreamId,
        vm: &Shared,
    ) -> Result<(Memory, AccessSet), Box<Obstacle>> {
        let mut own = self.alloc(id, bytes, Want::NoWait { stream }, vm);
        if own.is_none() && self.end_kept() {
            own = self.alloc(id, bytes, Want::NoWait { stream }, vm);
        }
        if let Some(allocated) = own {
            return Ok((self.pools.memory(id, allocated.block, bytes), allocated.accesses));
        }
        // A block changes hands whole, so a much larger one is the last choice. Its accesses are known once the release
        // has its number: `commit` hands them over.
        if let Some(block) = handed(&self.scratch.handed, id, bytes, bytes.saturating_mul(2)) {
            return Ok((self.pools.memory(id, block, bytes), AccessSet::new()));
        }
        let pool = self.pools.get(id);
        if pool.may_grow(bytes) {
            return Err(Box::new(Obstacle::Fresh(id, bytes)));
        }
        let any = self.alloc(id, bytes, Want::Any { stream }, vm);
        if let Some(allocated) = any {
            return Ok((self.pools.memory(id, allocated.block, bytes), allocated.accesses));
        }
        match handed(&self.scratch.handed, id, bytes, usize::MAX) {
            Some(block) => Ok((self.pools.memory(id, block, bytes), AccessSet::new())),
            None => Err(Box::new(Obstacle::Memory(id, bytes))),
        }
    }

    /// Asks an allocator, and tells it what this submission has seen to have passed.
    #[inline]
    fn alloc(&mut self, id: PoolId, bytes: usize, want: Want, vm: &Shared) -> Option<Allocated> {
        let snapshot = std::cell::RefCell::new(self.snapshot.of(vm));
        let passed = |point: Point| snapshot.borrow_mut().has_passed(point);
        self.pools.get(id).allocator.alloc(bytes, want, &passed)
    }

    #[cold]
    fn undo<B: Batch>(&mut self, list: &B, engine: EngineRef) {
        while let Some(undo) = self.scratch.undo.pop() {
            match undo {
                Undo::Contents(id, place, before) => {
                    if let Some(known) = self.known(id) {
                        known.contents = before;
                    }
                    list.all_uses()[place].resource().note_written(engine, before == Contents::Written);
                }
                Undo::Created(id, place) => {
                    let resource = list.all_uses()[place].resource();
                    if self.scratch.unclaimed.remove(&address(resource)).is_none() {
                        resource.forget(engine);
                    }
                    let accesses = self.sync.remove_dependence(id);
                    let known = self.resources[id.index()].take();
                    let inherited = self.scratch.handed.iter().any(|handed| handed.heir == Some(id));
                    if let Some((pool, block)) = known.and_then(|known| known.memory.block)
                        && !inherited
                        && let Err(error) = self.pools.get(pool).allocator.undo_alloc(block.id, accesses)
                    {
                        log::error!("a block was lost when its allocation was undone: {error}");
                    }
                }
            }
        }
    }
}

/// The smallest block of a pool, between two sizes in bytes, that the list itself releases and nobody got yet.
fn handed(handed: &[Handed], pool: PoolId, least: usize, most: usize) -> Option<Block> {
    let free = handed.iter().filter(|handed| handed.pool == pool && handed.heir.is_none());
    let sizes = least..=most.max(SMALL_BLOCK);
    free.map(|handed| handed.block).filter(|block| sizes.contains(&block.bytes)).min_by_key(|block| block.bytes)
}

/// The key of an unclaimed resource within one list.
fn address(resource: &Resource) -> usize {
    std::ptr::from_ref(resource).addr()
}

#[cold]
fn too_long(len: usize, stream: StreamKey) -> Box<Obstacle> {
    let reason = format!(
        "a list of {len} instructions is too long for workers; submit it in parts of at most {MOST_ON_WORKERS}"
    );
    Error::NoStream { stream, reason }.into()
}

#[cold]
fn refused(line: usize, instruction: &Instruction, error: fn(usize, String) -> Error) -> Box<Obstacle> {
    error(line, instruction.kind.name().to_owned()).into()
}
