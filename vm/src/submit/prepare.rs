//! The first pass of a submission: makes every check that can refuse a list, and allocates memory with an undo log.
//!
//! If the submission cannot continue under the lock, `prepare` undoes everything and returns an [`Obstacle`]. The submitter leaves the
//! lock, removes the obstacle, and starts again. The obstacle is boxed, so that the result of the common case is one word.

use std::borrow::Borrow;

use streamvm_ep::{Access, Op, Site};
use streamvm_instructions::{
    Batch, Declared, Dependence, DependenceUse, EngineRef, Error, Instruction, Kind, Observed, OpenSection, PartId,
    Resource, ResourceId, ResourceKind, Tensor, Use, Var, WaitFor, wait_error,
};
use streamvm_stream::allocator::{AccessSet, Allocated, Want};
use streamvm_stream::{Point, StreamId, StreamKey};

use crate::dispatch::dependence_node::MOST_ON_WORKERS;
use crate::execute::environment::Environment;
use crate::submit::state::{Prepared, Recorded, State, Undo, UsePlace};
use crate::tasks::events::{Name, Why};
use crate::tasks::memory::{Memory, PoolId};
use crate::tasks::resource::{Contents, Known};

/// Bytes. A released block of at most one page may serve any smaller request: saving less memory than a page is not worth a wait.
const SMALL_BLOCK: usize = 4096;

/// Stands for the stream of the first access where an allocation of its own takes the memory: that stream is not known yet, so only blocks
/// whose accesses have passed need no wait, as on any unordered stream.
const UNKNOWN_STREAM: StreamId = StreamId::unordered(0);

/// Why a submission cannot continue under the lock.
pub(crate) enum Obstacle {
    /// The list is refused.
    Refused(Error),
    /// A stream must be opened.
    Stream(StreamKey),
    /// The first memory of a kind is needed: its pool must be made.
    Pool(ResourceKind),
    /// A pool has no block of at least so many bytes.
    Memory(PoolId, usize),
    /// Every block that the pool could give for so many bytes needs a wait, but the device may have fresh memory, which needs none.
    Fresh(PoolId, usize),
    /// Another thread has this critical section over a resource of the list open; so many sections had ended by then.
    Held(u64, OpenSection),
}

impl Obstacle {
    /// Why removing it may block the submitter.
    pub(crate) fn blocks(&self) -> Option<Why> {
        match self {
            Obstacle::Memory(..) | Obstacle::Fresh(..) => Some(Why::Memory),
            Obstacle::Held(..) => Some(Why::Section),
            Obstacle::Refused(_) | Obstacle::Stream(_) | Obstacle::Pool(_) => None,
        }
    }
}

impl From<Error> for Box<Obstacle> {
    fn from(error: Error) -> Box<Obstacle> {
        Box::new(Obstacle::Refused(error))
    }
}

impl State {
    /// Checks `list` and allocates memory for the resources that it creates.
    ///
    /// On an obstacle, which comes with the index of its line, every tensor and every soft sync mark is as before.
    #[inline(never)]
    pub(crate) fn prepare<B: Batch>(&mut self, list: &B, env: &Environment) -> Result<(), (usize, Box<Obstacle>)> {
        self.scratch.clear();
        self.sync.forget_parts();
        self.snapshot.begin(env.observer.is_some());
        let (lines, uses) = (list.instructions(), list.all_uses());
        self.scratch.last_use = lines.last().and_then(|last| last.use_range().last());
        self.start_sections();
        for line in 0..lines.len() {
            if let Err(obstacle) = self.prepare_one(line, lines, uses, env) {
                self.undo(list, env.me);
                // The allocators drop accesses that they observed as passed, and the undo does not bring them back.
                if let Some(observer) = &env.observer {
                    observer.looked(self.snapshot.seen());
                }
                return Err((line, obstacle));
            }
        }
        self.check_sections().inspect_err(|_| self.undo(list, env.me))
    }

    #[inline(always)]
    fn prepare_one<T, V>(
        &mut self,
        line: usize,
        lines: &[Instruction],
        uses: &[Declared<T, V>],
        env: &Environment,
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
        let (mut bytes, mut kernel, mut deferred_free, mut section) = (0, None, false, false);
        self.scratch.taken = 0;
        match &instruction.kind {
            Kind::Function { body: Some(body), .. } => bytes = body.heap_bytes() as u64,
            Kind::Call { op, .. } => {
                if let Some(key) = uses.get(op.key_input()).and_then(Declared::as_tensor) {
                    kernel = Some(self.scratch.kernels.len() as u32);
                    self.kernel(*op, instruction, key, env)?;
                }
            }
            Kind::Copy | Kind::Fill(_) => {}
            Kind::Barrier { body, .. } => {
                bytes = body.as_ref().map_or(0, |body| body.heap_bytes() as u64);
                self.check(line, instruction, env.me, lines)?;
            }
            Kind::Release => deferred_free = true,
            Kind::SectionBegin(_) | Kind::SectionEnd(_) => section = true,
            _ => self.check(line, instruction, env.me, lines)?,
        }
        debug_assert_eq!(self.scratch.uses.len(), instruction.use_range().start, "uses lie in order, without gaps");
        for (offset, u) in uses.iter().enumerate() {
            let resource = match u.resource().written_in(env.me) {
                Some(id) if !deferred_free => {
                    debug_assert!(self.known(id).is_some_and(|known| known.contents == Contents::Written));
                    id
                }
                _ => {
                    let place = instruction.use_range().start + offset;
                    self.change(line, instruction, (place, u.seen()), stream, env)?
                }
            };
            let (access, part) = if u.is_of_view() { self.use_of_view(u.seen()) } else { (u.access(), None) };
            self.scratch.uses.push(DependenceUse { resource, access, part });
        }
        if section {
            self.section_line(line, instruction, env)?;
        }
        bytes += self.scratch.taken;
        self.scratch.prepared.push(Prepared { stream, kernel, bytes, record: false });
        Ok(())
    }

    /// The access that soft sync must assume for a use of a view, and the part of the storage that it uses. `None` is the whole storage.
    #[inline(never)]
    fn use_of_view(&mut self, u: Use<'_>) -> (Access, Option<PartId>) {
        (u.ordering_access(), u.part().and_then(|part| self.sync.add_part(part)))
    }

    /// Finds the kernel of a call. The dtype of the op's key input selects it.
    #[inline(never)]
    fn kernel(
        &mut self,
        op: Op,
        instruction: &Instruction,
        key: &Tensor,
        env: &Environment,
    ) -> Result<(), Box<Obstacle>> {
        let (device, dtype) = (instruction.stream.device.kind, key.dtype());
        let found = env.kernels.find(op, device, dtype);
        let kernel = found.ok_or_else(|| Error::from(env.kernels.missing(op, device, dtype)))?;
        self.scratch.kernels.push(kernel);
        Ok(())
    }

    /// The checks that do not look at resources.
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
                Err(Error::Unordered { line, what, stream, site: instruction.site })
            }
            Kind::Function { name, body: None, .. } | Kind::Barrier { name, body: None, calls: true } => {
                Err(Error::Placeholder { line, name: name.to_string(), site: instruction.site })
            }
            Kind::Record(event) => {
                let again = {
                    let recorded = Recorded { stream: instruction.stream, point: None };
                    self.scratch.recorded.insert(event.address(), recorded).is_some()
                };
                if event.is_recorded() || again {
                    Err(Error::RecordedTwice { line, site: instruction.site })
                } else {
                    Ok(())
                }
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
                        // Numbers of an unordered stream do not count its instructions, so they cannot be checked against the last one
                        // submitted.
                        let id = self.names.find(source).filter(|id| !id.is_unordered());
                        id.filter(|id| (1..=self.sync.last_submitted(*id)).contains(seq)).map(|_| *source)
                    }
                };
                if found == Some(*source) { Ok(()) } else { Err(wait_error(line, source, target, instruction.site)) }
            }
            _ => Ok(()),
        }
    }

    /// Handles a use of a resource that is not known to be written, or that is released: tracks the contents state through the list.
    /// Returns the resource's id.
    #[inline(never)]
    fn change(
        &mut self,
        line: usize,
        instruction: &Instruction,
        (place, u): (UsePlace, Use<'_>),
        stream: StreamId,
        env: &Environment,
    ) -> Result<ResourceId, Box<Obstacle>> {
        let refused = |error| refused(line, instruction, u, error);
        let never_written = || refused(|line, what, operand, site| Error::NeverWritten { line, what, operand, site });
        let released = || refused(|line, what, operand, site| Error::Released { line, what, operand, site });
        let foreign = |_| -> Box<Obstacle> {
            let what = instruction.kind.name().to_owned();
            u.resource().foreign(line, what, u.described(), instruction.site).into()
        };
        let resource = u.resource();
        let known = resource.id_in(env.me).map_err(foreign)?;
        let known = known.or_else(|| self.scratch.unclaimed.get(&address(resource)).copied());
        let id = match known {
            Some(id) => id,
            None => {
                let reads = u.access().reads() && resource.kind() != ResourceKind::Var;
                if reads || matches!(instruction.kind, Kind::Release) {
                    return Err(never_written());
                }
                let id = self.create(resource, stream, matches!(instruction.kind, Kind::Allocate), env)?;
                if env.timeline.is_some() {
                    self.note_allocated(id, || (Name::of(&instruction.kind), instruction.site));
                }
                id
            }
        };
        let is_new = known.is_none();
        let Some(known) = self.resources.get_mut(id.index()).and_then(Option::as_mut) else {
            return Err(released());
        };
        match (&instruction.kind, known.contents) {
            (_, Contents::Released) => return Err(released()),
            (_, Contents::Lent) => use_of_lent(line, instruction, u)?,
            (Kind::Release, before) => {
                known.contents = Contents::Released;
                resource.note_written(env.me, false);
                self.scratch.undo.push(Undo::Contents(id, place, before));
                if let Some((pool, block)) = known.memory.block {
                    self.scratch.released_blocks.add(id, pool, block);
                }
            }
            (_, Contents::Written) | (Kind::Allocate, _) => {}
            (_, Contents::Fresh) if u.access().reads() => return Err(never_written()),
            (_, Contents::Fresh) => {
                known.contents = Contents::Written;
                // If this use created the resource, undoing the creation removes the contents state, too.
                if !is_new {
                    self.scratch.undo.push(Undo::Contents(id, place, Contents::Fresh));
                }
            }
        }
        if is_new {
            let written = known.contents == Contents::Written;
            self.note_created(id, resource, (place, written), env.me);
        }
        Ok(id)
    }

    /// Registers the resource of a use on `stream`, with memory if it has bytes. If the use only `allocates`, the first access may be on any stream. Returns
    /// its id.
    fn create(
        &mut self,
        resource: &Resource,
        stream: StreamId,
        allocates: bool,
        env: &Environment,
    ) -> Result<ResourceId, Box<Obstacle>> {
        let mut former_owner = None;
        let (memory, dependence, contents) = match resource.kind() {
            ResourceKind::Var => (Memory::none(), Dependence::default(), Contents::Written),
            ResourceKind::Storage { bytes: 0, .. } => (Memory::none(), Dependence::default(), Contents::Fresh),
            kind @ ResourceKind::Storage { place, memory, bytes } => {
                let pool = self.pools.find(place, memory).ok_or_else(|| Box::new(Obstacle::Pool(kind)))?;
                let cached = match allocates {
                    true => self.take_cached_passed(pool, bytes, stream, env),
                    false => self.take_cached(pool, bytes, stream),
                };
                if let Some(id) = cached {
                    self.scratch.taken += bytes as u64;
                    return Ok(id);
                }
                let first = if allocates { UNKNOWN_STREAM } else { stream };
                let (memory, accesses, former) = self.take(pool, bytes, first, env)?;
                former_owner = former;
                self.scratch.taken += bytes as u64;
                (memory, Dependence::after(&accesses), Contents::Fresh)
            }
        };
        let id = self.sync.add_dependence(dependence);
        if let Some(owner) = former_owner {
            self.scratch.released_blocks.pass_on(owner, id);
            self.scratch.former_owner = Some(owner);
        }
        self.add_resource(id, Known { memory, contents });
        Ok(id)
    }

    /// Gives the resource of a use its number. The number is a draft that can be undone, except for the last use of the list: after that
    /// nothing can be refused.
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

    /// Allocates a block. Tries in this order: a block without a wait; the same after the block cache was cleared; a block that the list
    /// itself releases; fresh memory (as an obstacle), while the pool may grow; a block with a wait; a much larger block that the list
    /// releases. If all fail, the OOM recovery continues outside the lock. Returns the memory, what its first access must wait for, and the
    /// owner in the list that releases it, if one does.
    fn take(
        &mut self,
        id: PoolId,
        bytes: usize,
        stream: StreamId,
        env: &Environment,
    ) -> Result<(Memory, AccessSet, Option<ResourceId>), Box<Obstacle>> {
        let mut own = self.alloc(id, bytes, Want::NoWait { stream }, env);
        if own.is_none() && self.clear_block_cache() {
            own = self.alloc(id, bytes, Want::NoWait { stream }, env);
        }
        if let Some(allocated) = own {
            return Ok((self.pools.memory(id, allocated.block, bytes), allocated.accesses, None));
        }
        // A released block is handed over whole, so a much larger one is the last choice. Its accesses are not known before the release has
        // its number: `commit` passes them on.
        let most = bytes.saturating_mul(2).max(SMALL_BLOCK);
        if let Some((owner, block)) = self.scratch.released_blocks.take(id, bytes, most) {
            return Ok((self.pools.memory(id, block, bytes), AccessSet::new(), Some(owner)));
        }
        let pool = self.pools.get(id);
        if pool.may_grow(bytes) {
            return Err(Box::new(Obstacle::Fresh(id, bytes)));
        }
        let any = self.alloc(id, bytes, Want::Any { stream }, env);
        if let Some(allocated) = any {
            return Ok((self.pools.memory(id, allocated.block, bytes), allocated.accesses, None));
        }
        match self.scratch.released_blocks.take(id, bytes, usize::MAX) {
            Some((owner, block)) => Ok((self.pools.memory(id, block, bytes), AccessSet::new(), Some(owner))),
            None => Err(Box::new(Obstacle::Memory(id, bytes))),
        }
    }

    /// Asks the pool's allocator, which may use what this submission observes as passed.
    #[inline]
    fn alloc(&mut self, id: PoolId, bytes: usize, want: Want, env: &Environment) -> Option<Allocated> {
        let snapshot = std::cell::RefCell::new(self.snapshot.of(env));
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
                    let inherited = self.scratch.released_blocks.is_heir(id);
                    if let Some((pool, block)) = known.and_then(|known| known.memory.block)
                        && !inherited
                        && let Err(error) = self.pools.get(pool).allocator.undo_alloc(block.id, accesses)
                    {
                        self.pools.lost.push(error);
                    }
                }
            }
        }
    }
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
    Error::no_stream(stream, reason).into()
}

/// Checks a use of memory that is lent.
///
/// # Errors
/// [`Error::Lent`] if it changes the memory, or gives it back.
#[cold]
#[inline(never)]
fn use_of_lent(line: usize, instruction: &Instruction, u: Use<'_>) -> Result<(), Box<Obstacle>> {
    let changes = match &instruction.kind {
        Kind::Release => true,
        // It writes for the order alone.
        Kind::Touch => false,
        _ => u.access().writes(),
    };
    let lent = |line, what, operand, site| Error::Lent { line, what, operand, site };
    if changes { Err(refused(line, instruction, u, lent)) } else { Ok(()) }
}

#[cold]
fn refused(
    line: usize,
    instruction: &Instruction,
    u: Use<'_>,
    error: fn(usize, String, String, Site) -> Error,
) -> Box<Obstacle> {
    error(line, instruction.kind.name().to_owned(), u.described(), instruction.site).into()
}
