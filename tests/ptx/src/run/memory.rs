//! Memory that a launch may reach.

use crate::code::END_OF_WINDOWS;
use crate::run::fault::{Attempt, FaultKind};
use crate::run::races::{Actor, Races};

/// What kernels may do with an allocation.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// It has values, and a kernel may read them.
    Read,
    /// It has values, and a kernel may read and write them.
    ReadWrite,
    /// A kernel may write it, and read what was written.
    WriteFirst,
}

/// Bytes with an address. Which of them have values is known byte by byte.
pub(super) struct Block {
    pub(super) name: String,
    pub(super) address: u64,
    pub(super) bytes: Vec<u8>,
    /// Empty if all have values.
    known: Vec<bool>,
    may_write: bool,
    /// Which bytes may be written; empty if all may that `may_write` allows.
    writable: Vec<bool>,
    written: Vec<bool>,
    /// `None` if it cannot race: it is only read, or of one thread.
    races: Option<Races>,
    /// Whether a write of the value that is there may race with reads.
    allows_same: bool,
}

impl Block {
    pub(super) fn new(name: &str, address: u64, bytes: Vec<u8>, access: Access) -> Block {
        let known = if access == Access::WriteFirst { vec![false; bytes.len()] } else { Vec::new() };
        let may_write = access != Access::Read;
        let written = if may_write { vec![false; bytes.len()] } else { Vec::new() };
        let name = name.to_owned();
        Block { name, address, bytes, known, may_write, writable: Vec::new(), written, races: None, allows_same: false }
    }

    /// Looks for races from now on.
    pub(super) fn watch(&mut self, allows_same: bool) {
        self.allows_same = allows_same;
        if self.may_write {
            self.races = Some(Races::new(self.address, self.bytes.len()));
        }
    }

    /// Bytes of a range have no value again.
    pub(super) fn forget(&mut self, range: std::ops::Range<usize>) {
        self.known[range].fill(false);
    }

    pub(super) fn contains(&self, address: u64, bytes: usize) -> bool {
        address >= self.address
            && address - self.address <= (self.bytes.len() as u64).saturating_sub(bytes as u64)
            && bytes <= self.bytes.len()
    }

    /// Where an access lies, if it may be made at all.
    fn start(&self, attempt: Attempt, address: u64, bytes: usize) -> Result<usize, FaultKind> {
        if !self.contains(address, bytes) {
            let near = format!("the {} bytes at {:#x} of {}", self.bytes.len(), self.address, self.name);
            return Err(FaultKind::OutOfBounds { attempt, address, bytes, near });
        }
        let start = (address - self.address) as usize;
        let may_write =
            self.may_write && self.writable.get(start..start + bytes).is_none_or(|each| !each.contains(&false));
        if attempt != Attempt::Read && !may_write {
            return Err(FaultKind::ReadOnly { attempt, address, bytes, memory: self.name.clone() });
        }
        Ok(start)
    }

    /// Reads up to 8 bytes. `actor` is `None` for an access that may race.
    pub(super) fn read(&mut self, address: u64, bytes: usize, actor: Option<Actor>) -> Result<u64, FaultKind> {
        let start = self.start(Attempt::Read, address, bytes)?;
        let range = start..start + bytes;
        if !self.known.is_empty()
            && let Some(place) = self.known[range.clone()].iter().position(|known| !known)
        {
            return Err(FaultKind::UninitialisedMemory { address: address + place as u64, memory: self.name.clone() });
        }
        if let (Some(races), Some(actor)) = (&mut self.races, actor) {
            races
                .read(&range, actor)
                .map_err(|conflict| self_race(&self.name, self.address, Attempt::Read, &conflict))?;
        }
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(&self.bytes[range]);
        Ok(u64::from_le_bytes(word))
    }

    /// Writes up to 8 bytes, the lowest of `value`.
    pub(super) fn write(
        &mut self,
        address: u64,
        bytes: usize,
        value: u64,
        actor: Option<Actor>,
    ) -> Result<(), FaultKind> {
        let attempt = if actor.is_some() { Attempt::Write } else { Attempt::Atomic };
        let start = self.start(attempt, address, bytes)?;
        let range = start..start + bytes;
        if let (Some(races), Some(actor)) = (&mut self.races, actor) {
            let new = value.to_le_bytes();
            let is_same = |some: std::ops::Range<usize>| {
                self.allows_same
                    && self.bytes[some.clone()] == new[some.start - start..some.end - start]
                    && self.known.get(some).is_none_or(|known| !known.contains(&false))
            };
            races
                .write(&range, actor, is_same)
                .map_err(|conflict| self_race(&self.name, self.address, attempt, &conflict))?;
        }
        self.bytes[range.clone()].copy_from_slice(&value.to_le_bytes()[..bytes]);
        self.written[range.clone()].fill(true);
        if !self.known.is_empty() {
            self.known[range].fill(true);
        }
        Ok(())
    }
}

/// The fault of a race; the thread is by its number, which the launch makes three of.
fn self_race(name: &str, address: u64, attempt: Attempt, conflict: &super::races::Conflict) -> FaultKind {
    FaultKind::Race {
        attempt,
        address: address + conflict.at as u64,
        memory: name.to_owned(),
        other: [conflict.other.thread(), 0, 0],
        other_block: conflict.other.block().into(),
        other_attempt: if conflict.writes { Attempt::Write } else { Attempt::Read },
    }
}

/// The global memory that a launch is given: allocations with addresses of the caller's choice.
#[derive(Default)]
pub struct Memory {
    pub(super) blocks: Vec<Block>,
}

impl Memory {
    /// No allocation.
    pub fn new() -> Memory {
        Memory::default()
    }

    /// Adds an allocation of these bytes, and gives the number that [`Memory::bytes`] and [`Memory::written`] take. `name` appears in errors.
    ///
    /// # Panics
    ///
    /// If it overlaps another allocation, or lies below [`END_OF_WINDOWS`], where other state spaces have their addresses.
    pub fn add(&mut self, name: &str, address: u64, bytes: Vec<u8>, access: Access) -> usize {
        assert!(address >= END_OF_WINDOWS, "{name} lies at {address:#x}, below {END_OF_WINDOWS:#x}");
        let end = address.checked_add(bytes.len() as u64).expect("an allocation ends before addresses do");
        let overlapping =
            self.blocks.iter().find(|block| block.address < end && address < block.address + block.bytes.len() as u64);
        assert!(overlapping.is_none(), "{name} overlaps {}", overlapping.map_or("", |block| &block.name));
        self.blocks.push(Block::new(name, address, bytes, access));
        self.blocks.len() - 1
    }

    /// As [`Memory::add`], for an allocation of which a kernel may read and write some bytes alone. A byte that it may not read is one that has no value
    /// yet: the kernel may read it once it has written it.
    ///
    /// # Panics
    ///
    /// As [`Memory::add`]; and if `has_value` or `may_write` do not have one entry for each byte.
    pub fn add_bytes(
        &mut self,
        name: &str,
        address: u64,
        bytes: Vec<u8>,
        has_value: Vec<bool>,
        may_write: Vec<bool>,
    ) -> usize {
        assert!(has_value.len() == bytes.len() && may_write.len() == bytes.len(), "{name}: one entry for each byte");
        let access = if may_write.contains(&true) { Access::ReadWrite } else { Access::Read };
        let number = self.add(name, address, bytes, access);
        let block = &mut self.blocks[number];
        // No entries mean that all bytes have values, or may be written if any may.
        block.known = if has_value.contains(&false) { has_value } else { Vec::new() };
        block.writable = if may_write.contains(&false) { may_write } else { Vec::new() };
        number
    }

    /// The bytes of an allocation.
    pub fn bytes(&self, allocation: usize) -> &[u8] {
        &self.blocks[allocation].bytes
    }

    /// For each byte of an allocation, whether a kernel has written it; empty if kernels may not.
    pub fn written(&self, allocation: usize) -> &[bool] {
        &self.blocks[allocation].written
    }

    /// The allocation that has the address, or else an error that names the nearest one.
    pub(super) fn find(&mut self, attempt: Attempt, address: u64, bytes: usize) -> Result<&mut Block, FaultKind> {
        if let Some(found) = self.blocks.iter().position(|block| block.contains(address, bytes)) {
            return Ok(&mut self.blocks[found]);
        }
        let nearest = self.blocks.iter().min_by_key(|block| {
            let end = block.address + block.bytes.len() as u64;
            address.abs_diff(block.address).min(address.abs_diff(end))
        });
        let near = match nearest {
            None => "all allocations: the launch was given none".to_owned(),
            Some(block) => {
                format!(
                    "all allocations; the nearest is {}, {} bytes at {:#x}",
                    block.name,
                    block.bytes.len(),
                    block.address
                )
            }
        };
        Err(FaultKind::OutOfBounds { attempt, address, bytes, near })
    }
}
