//! Messages from one rank to another: a ring of bytes for each pair of ranks and direction.

use std::ptr::copy_nonoverlapping;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use streamvm::FnError;
use streamvm::ep::Operation;

use crate::local::{LOOK_EVERY, Shared};
use crate::transport::{RankError, Transfer, Verb};

/// The length of a message goes before it.
const HEAD: usize = 8;

/// A message under way: being written by its sender, or read by its receiver.
pub(super) struct Message {
    shared: Arc<Shared>,
    transfer: Transfer,
    /// The length, as the ring has it.
    head: [u8; HEAD],
    /// Bytes moved so far, those of the head first.
    moved: usize,
    began: Instant,
    looked: Instant,
}

impl Message {
    pub(super) fn new(shared: Arc<Shared>, transfer: Transfer) -> Message {
        let (head, now) = ((transfer.part_bytes() as u64).to_ne_bytes(), Instant::now());
        Message { shared, transfer, head, moved: 0, began: now, looked: now }
    }

    /// Moves what the ring allows now. Returns the number of bytes.
    fn advance(&mut self) -> usize {
        let Message { shared, transfer, head, moved, .. } = self;
        let (me, ring, total) = (shared.rank, shared.region.channel_bytes(), HEAD + transfer.part_bytes());
        let (sends, from, to) = match transfer.verb {
            Verb::Send(to) => (true, me, to),
            Verb::Receive(from) => (false, from, me),
            other => unreachable!("{other:?} is no message"),
        };
        let channel = shared.region.channel(from, to);
        let (written, read) = (channel.written.load(Ordering::Acquire), channel.read.load(Ordering::Acquire));
        let there = (written - read) as usize;
        let (at, possible) = if sends { (written, ring - there) } else { (read, there) };
        let at = (at % ring as u64) as usize;
        // Up to the end of the head, of the message and of the ring.
        let until = if *moved < HEAD { HEAD } else { total };
        let bytes = possible.min(until - *moved).min(ring - at);
        if bytes == 0 {
            return 0;
        }
        // SAFETY: within the ring.
        let place = unsafe { shared.region.channel_start(from, to).add(at) };
        let own: *mut u8 = match *moved {
            // SAFETY: within the head.
            moved if moved < HEAD => unsafe { head.as_mut_ptr().add(moved) },
            // SAFETY: within the message, whose bytes the caller of `start` promises; those of a send are only read.
            moved => unsafe { if sends { transfer.input.cast_mut() } else { transfer.output }.add(moved - HEAD) },
        };
        *moved += bytes;
        if sends {
            // SAFETY: the receiver reads these bytes of the ring only once `written` is past them.
            unsafe { copy_nonoverlapping(own, place, bytes) };
            channel.written.store(written + bytes as u64, Ordering::Release);
        } else {
            // SAFETY: the sender has written these bytes, and writes them anew only once `read` is past them.
            unsafe { copy_nonoverlapping(place, own, bytes) };
            channel.read.store(read + bytes as u64, Ordering::Release);
        }
        bytes
    }
}

impl Operation for Message {
    fn poll(&mut self) -> Result<bool, FnError> {
        self.shared.check()?;
        let expected = self.transfer.part_bytes();
        while self.advance() > 0 {
            self.began = Instant::now();
            let length = u64::from_ne_bytes(self.head) as usize;
            if self.moved == HEAD && length != expected {
                let what = format!("`{}` expects {expected} bytes, and {length} come", self.transfer.call);
                return Err(self.shared.fail(RankError::Argument(what)).into());
            }
        }
        if self.moved == HEAD + expected {
            return Ok(true);
        }
        let now = Instant::now();
        if now.duration_since(self.looked) > LOOK_EVERY {
            self.looked = now;
            let peer = match self.transfer.verb {
                Verb::Send(peer) | Verb::Receive(peer) => peer,
                other => unreachable!("{other:?} is no message"),
            };
            // Moved once more after the look: what the peer has written before it left counts.
            let lost = self.shared.lost(self.began, |rank| rank == peer);
            let moved = self.advance() > 0;
            if let (Some(error), false) = (lost, moved) {
                return Err(self.shared.note(error).into());
            }
        }
        Ok(self.moved == HEAD + expected)
    }
}
