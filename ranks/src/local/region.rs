//! The memory that the ranks of a group share: a file that each maps.
//!
//! ```text
//! header │ control of rank 0, 1, …  │ channels 0→0, 0→1, … │ two chunks of rank 0, two of rank 1, … │ bytes of channel 0→0, 0→1, …
//! ```
//!
//! A rank writes its own control and chunks, and those of the channels from it, up to the counters that it publishes; other ranks read what is published. The
//! counters are atomic numbers, written with release and read with acquire. All bytes are zero at first.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags};

use crate::transport::RankError;

/// Bytes of a chunk: two of them fit the second-level cache of most processors.
pub(super) const CHUNK: usize = 256 * 1024;

/// Room for the text of a call, in a control.
pub(super) const CALL: usize = 240;

/// The most ranks of a group on one machine: the channels between them grow by the square, and a word has a bit for each rank.
pub(super) const MOST: usize = 64;

#[repr(C, align(128))]
pub(super) struct Header {
    /// Version and number of ranks, by the first rank that came.
    pub(super) made_for: AtomicU64,
    /// When a group shrinks: the ranks that stay, a bit for each.
    pub(super) decided: AtomicU64,
}

/// The part of the memory by which one rank tells the others how far it is.
#[repr(C, align(128))]
pub(super) struct Control {
    /// The rank has joined.
    pub(super) joined: AtomicU32,
    /// The rank has left the group by itself.
    pub(super) left: AtomicU32,
    /// The rank has given the group up, for a reason that the others do not see.
    pub(super) failed: AtomicU32,
    /// The number of chunks that the rank has written.
    pub(super) published: AtomicU64,
    /// The number of rounds in which the rank has read all that it needs.
    pub(super) consumed: AtomicU64,
}

/// The collective that a rank calls, for each of its two chunks.
#[repr(C, align(128))]
pub(super) struct Call {
    /// A hash of the call without its line, which must be equal on all ranks.
    pub(super) fingerprint: u64,
    pub(super) length: u32,
    pub(super) text: [u8; CALL],
}

/// The counters of a channel from one rank to another.
#[repr(C, align(128))]
pub(super) struct Channel {
    /// Bytes written so far.
    pub(super) written: AtomicU64,
    /// Bytes read so far.
    pub(super) read: AtomicU64,
}

/// A mapped file.
pub(super) struct Region {
    base: *mut u8,
    bytes: usize,
    ranks: usize,
}

// SAFETY: the memory is mapped until the region is dropped; the protocol of the module orders all accesses, also those of other processes.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps the file of a group, which the first rank makes.
    ///
    /// # Errors
    /// The system refuses, or has too little shared memory.
    pub(super) fn open(path: &Path, ranks: usize) -> Result<Region, RankError> {
        let refused = |doing: &'static str| {
            let path = path.display().to_string();
            move |error: std::io::Error| RankError::Memory { doing, path, reason: error.to_string() }
        };
        let file: File = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(refused("open the shared memory"))?;
        let bytes = offsets(ranks).end;
        // Reserved now: memory that is missing later would end the process by a signal.
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64)
            .map_err(|error| refused("reserve the shared memory")(error.into()))?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the system chooses.
        let mapped = unsafe { rustix::mm::mmap(null_mut(), bytes, protection, flags, &file, 0) };
        let base = mapped.map_err(|error| refused("map the shared memory")(error.into()))?.cast();
        Ok(Region { base, bytes, ranks })
    }

    /// Bytes of a channel.
    pub(super) fn channel_bytes(&self) -> usize {
        channel_bytes(self.ranks)
    }

    fn at<T>(&self, offset: usize) -> *mut T {
        debug_assert!(offset + size_of::<T>() <= self.bytes, "within the mapping");
        // SAFETY: the offset is within the mapping: it comes from `offsets`, of the number of ranks that it was mapped for.
        unsafe { self.base.add(offset).cast() }
    }

    pub(super) fn header(&self) -> &Header {
        // SAFETY: a header of atomic numbers is at the start, aligned to a page.
        unsafe { &*self.at(0) }
    }

    pub(super) fn control(&self, rank: usize) -> &Control {
        debug_assert!(rank < self.ranks, "a rank of the group");
        // SAFETY: a control of atomic numbers is there for each rank.
        unsafe { &*self.at(offsets(self.ranks).controls + rank * size_of::<Control>()) }
    }

    /// The call of a rank for its chunk `turn`, 0 or 1. Who may read or write it is said by the counters.
    pub(super) fn call(&self, rank: usize, turn: usize) -> *mut Call {
        self.at(offsets(self.ranks).calls + (2 * rank + turn) * size_of::<Call>())
    }

    pub(super) fn channel(&self, from: usize, to: usize) -> &Channel {
        // SAFETY: a pair of atomic numbers is there for each pair of ranks.
        unsafe { &*self.at(offsets(self.ranks).channels + (from * self.ranks + to) * size_of::<Channel>()) }
    }

    /// The first byte of a rank's chunk `turn`, 0 or 1.
    pub(super) fn chunk(&self, rank: usize, turn: usize) -> *mut u8 {
        self.at(offsets(self.ranks).chunks + (2 * rank + turn) * CHUNK)
    }

    /// The first byte of a channel.
    pub(super) fn channel_start(&self, from: usize, to: usize) -> *mut u8 {
        self.at(offsets(self.ranks).bytes + (from * self.ranks + to) * self.channel_bytes())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping of `open`; operations keep the region, so nothing uses it any longer.
        let unmapped = unsafe { rustix::mm::munmap(self.base.cast(), self.bytes) };
        if let Err(error) = unmapped {
            log::warn!("shared memory was not unmapped: {error}");
        }
    }
}

fn channel_bytes(ranks: usize) -> usize {
    (512 * 1024 / ranks).clamp(4096, 64 * 1024) / 4096 * 4096
}

struct Offsets {
    controls: usize,
    calls: usize,
    channels: usize,
    chunks: usize,
    bytes: usize,
    end: usize,
}

fn offsets(ranks: usize) -> Offsets {
    let controls = size_of::<Header>();
    let calls = controls + ranks * size_of::<Control>();
    let channels = calls + 2 * ranks * size_of::<Call>();
    let chunks = (channels + ranks * ranks * size_of::<Channel>()).next_multiple_of(4096);
    let bytes = chunks + 2 * ranks * CHUNK;
    Offsets { controls, calls, channels, chunks, bytes, end: bytes + ranks * ranks * channel_bytes(ranks) }
}
