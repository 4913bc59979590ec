//! One operation of one thread.

use crate::code::operation::{Action, Place, Source, Special, Target};
use crate::code::{CALLS, LOCAL, Module, PARAMETERS, SHARED, VARIABLES, WINDOW};
use crate::run::fault::{Attempt, FaultKind};
use crate::run::memory::{Block, Memory};
use crate::run::races::Actor;
use crate::run::thread::{State, Thread};
use crate::text::syntax::Space;

/// What all threads of a block share.
pub(super) struct World<'m> {
    pub(super) module: &'m Module,
    pub(super) memory: &'m mut Memory,
    pub(super) parameters: Block,
    pub(super) variables: Vec<Block>,
    pub(super) shared: Block,
    pub(super) grid: [u32; 3],
    pub(super) block_size: [u32; 3],
    pub(super) block: [u32; 3],
    /// The number of the block, and the barriers that it has passed.
    pub(super) block_number: u32,
    pub(super) interval: u32,
    pub(super) reached: Vec<bool>,
    pub(super) limit: u64,
}

/// Whether a thread may go on at once.
#[derive(PartialEq, Eq)]
pub(super) enum Next {
    Go,
    /// Others may come between: after atomic operations, fences and volatile accesses.
    Pause,
    /// It waits or has ended.
    Stop,
}

/// The axes of a number that counts along x first.
pub(super) fn axes(number: u32, size: [u32; 3]) -> [u32; 3] {
    [number % size[0], number / size[0] % size[1], number / size[0] / size[1]]
}

/// The value of an operand.
#[inline]
fn read(thread: &Thread, source: Source, module: &Module) -> Result<u64, FaultKind> {
    match source {
        Source::Constant(value) => Ok(value),
        Source::Register(register) if thread.known[register as usize] => Ok(thread.registers[register as usize]),
        Source::Register(register) => Err(unknown_register(thread, register, module)),
    }
}

#[cold]
fn unknown_register(thread: &Thread, register: u32, module: &Module) -> FaultKind {
    let function = module.function_of(thread.next - 1);
    let register = function.register_names[register as usize - function.registers.start].clone();
    FaultKind::UninitialisedRegister { register }
}

#[inline]
fn write(thread: &mut Thread, to: Target, value: u64) {
    thread.registers[to.register as usize] = value & to.mask;
    thread.known[to.register as usize] = true;
}

impl World<'_> {
    /// Runs the next operation of a thread. `thread.next` is the one after it, also if it fails.
    #[inline]
    pub(super) fn step(&mut self, thread: &mut Thread) -> Result<Next, FaultKind> {
        let module = self.module;
        let operation = &module.operations[thread.next];
        self.reached[thread.next] = true;
        thread.next += 1;
        thread.steps += 1;
        if thread.steps > self.limit {
            return Err(FaultKind::TooLong { limit: self.limit });
        }
        if let Some((predicate, value)) = operation.guard
            && (read(thread, Source::Register(predicate), module)? == 1) != value
        {
            return Ok(Next::Go);
        }
        match &operation.action {
            Action::Compute { function, to, from } => {
                let [a, b, c] =
                    [read(thread, from[0], module)?, read(thread, from[1], module)?, read(thread, from[2], module)?];
                write(thread, *to, function(a, b, c));
            }
            Action::Divide { function, to, from } => {
                let (a, b) = (read(thread, from[0], module)?, read(thread, from[1], module)?);
                if b == 0 {
                    return Err(FaultKind::DivisionByZero);
                }
                write(thread, *to, function(a, b, 0));
            }
            Action::Branch(target) => thread.next = *target as usize,
            Action::Load { to, place, is_signed } => {
                let first = self.address(thread, place, Attempt::Read)?;
                for (element, to) in to.iter().flatten().enumerate() {
                    let address = first + element as u64 * u64::from(place.bytes);
                    let mut value = self.load(thread, place, address)?;
                    if *is_signed {
                        let spare = 64 - 8 * place.bytes;
                        value = ((value << spare) as i64 >> spare) as u64;
                    }
                    write(thread, *to, value);
                }
                if place.is_volatile {
                    return Ok(Next::Pause);
                }
            }
            Action::Store { from, place } => {
                let first = self.address(thread, place, Attempt::Write)?;
                for (element, &from) in from[..place.elements as usize].iter().enumerate() {
                    let value = read(thread, from, module)?;
                    let address = first + element as u64 * u64::from(place.bytes);
                    self.store(thread, place, address, value)?;
                }
                if place.is_volatile {
                    return Ok(Next::Pause);
                }
            }
            Action::Special { to, which } => {
                let value = match *which {
                    Special::Thread(axis) => axes(thread.number, self.block_size)[axis],
                    Special::ThreadsOfBlock(axis) => self.block_size[axis],
                    Special::Block(axis) => self.block[axis],
                    Special::BlocksOfGrid(axis) => self.grid[axis],
                };
                write(thread, *to, value.into());
            }
            Action::WithCarry { function, to, from, reads, writes } => {
                let carry = match (reads, thread.carry) {
                    (false, _) => 0,
                    (true, Some(carry)) => u32::from(carry),
                    (true, None) => {
                        return Err(FaultKind::UninitialisedRegister { register: "of the carry".to_owned() });
                    }
                };
                let [a, b, c] =
                    [read(thread, from[0], module)?, read(thread, from[1], module)?, read(thread, from[2], module)?];
                let result = function(a as u32, b as u32, c as u32, carry);
                if *writes {
                    thread.carry = Some(result >> 32 != 0);
                }
                write(thread, *to, result);
            }
            Action::Insert { to, from } => {
                let (mut values, bits) = ([0; 4], u64::from(to.mask.count_ones()));
                for (value, &source) in values.iter_mut().zip(from) {
                    *value = read(thread, source, module)?;
                }
                let [inserted, base, start, count] = values;
                // The two counts are eight bits wide; what lies past the end is cut off.
                let (start, count) = (start & 255, (count & 255).min(bits));
                let ones = if count == 0 { 0 } else { u64::MAX >> (64 - count) };
                let shifted = |bits: u64| bits.checked_shl(start as u32).unwrap_or(0);
                write(thread, *to, base & !shifted(ones) | shifted(inserted & ones));
            }
            Action::Pack { to, from, bits } => {
                let mut packed = 0;
                for (place, &source) in from.iter().enumerate() {
                    packed |= read(thread, source, module)? << (place as u32 * bits);
                }
                write(thread, *to, packed);
            }
            Action::Unpack { to, from, bits } => {
                let packed = read(thread, *from, module)?;
                for (place, to) in to.iter().enumerate() {
                    if let Some(to) = to {
                        write(thread, *to, packed >> (place as u32 * bits));
                    }
                }
            }
            Action::Atomic { function, to, place, from } => {
                let address = self.address(thread, place, Attempt::Atomic)?;
                let before = self.load(thread, place, address)?;
                let (given, other) = (read(thread, from[0], module)?, read(thread, from[1], module)?);
                self.store(thread, place, address, function(before, given, other))?;
                if let Some(to) = to {
                    write(thread, *to, before);
                }
                return Ok(Next::Pause);
            }
            Action::Barrier => {
                thread.state = State::AtBarrier;
                return Ok(Next::Stop);
            }
            Action::Fence => return Ok(Next::Pause),
            Action::Call(call) => thread.enter(module, call)?,
            Action::Return => {
                thread.leave(module)?;
                if thread.state == State::Over {
                    return Ok(Next::Stop);
                }
            }
        }
        Ok(Next::Go)
    }

    /// The address of an access, which is aligned to all that it reaches.
    fn address(&self, thread: &Thread, place: &Place, attempt: Attempt) -> Result<u64, FaultKind> {
        let address = read(thread, place.base, self.module)?.wrapping_add(place.offset as u64);
        let bytes = (place.bytes * place.elements) as usize;
        if address % bytes as u64 != 0 {
            return Err(FaultKind::Misaligned { attempt, address, bytes });
        }
        Ok(address)
    }

    /// The memory that has the address.
    fn block<'b>(
        &'b mut self,
        thread: &'b mut Thread,
        attempt: Attempt,
        space: Space,
        address: u64,
        bytes: usize,
    ) -> Result<&'b mut Block, FaultKind> {
        let is_in = |window: u64| (window..window + WINDOW).contains(&address);
        let named = |wanted: Space| space == wanted || space == Space::Generic;
        if named(Space::Shared) && (is_in(SHARED) || space == Space::Shared) {
            Ok(&mut self.shared)
        } else if named(Space::Local) && (is_in(LOCAL) || space == Space::Local) {
            Ok(&mut thread.local)
        } else if space == Space::Param && is_in(CALLS) {
            Ok(&mut thread.calls)
        } else if space == Space::Param {
            Ok(&mut self.parameters)
        } else if is_in(VARIABLES) && space != Space::Shared {
            let found = self.variables.iter_mut().find(|block| block.contains(address, bytes));
            let near = "all variables of the module".to_owned();
            found.ok_or(FaultKind::OutOfBounds { attempt, address, bytes, near })
        } else if space == Space::Constant || [SHARED, LOCAL, PARAMETERS, CALLS].into_iter().any(is_in) {
            Err(FaultKind::OtherSpace { attempt, address })
        } else {
            self.memory.find(attempt, address, bytes)
        }
    }

    fn actor(&self, thread: &Thread) -> Actor {
        Actor::new(self.block_number, thread.number, self.interval)
    }

    fn load(&mut self, thread: &mut Thread, place: &Place, address: u64) -> Result<u64, FaultKind> {
        let actor = (!place.is_volatile).then(|| self.actor(thread));
        let bytes = place.bytes as usize;
        self.block(thread, Attempt::Read, place.space, address, bytes)?.read(address, bytes, actor)
    }

    fn store(&mut self, thread: &mut Thread, place: &Place, address: u64, value: u64) -> Result<(), FaultKind> {
        let actor = (!place.is_volatile).then(|| self.actor(thread));
        let bytes = place.bytes as usize;
        self.block(thread, Attempt::Write, place.space, address, bytes)?.write(address, bytes, value, actor)
    }
}
