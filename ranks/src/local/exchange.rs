//! Collectives over shared memory, round by round.

use std::ptr::copy_nonoverlapping;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use streamvm::FnError;
use streamvm::ep::Operation;

use crate::local::region::{CALL, CHUNK, Call};
use crate::local::{LOOK_EVERY, Shared, fingerprint};
use crate::transport::{Fold, RankError, Transfer, Verb, fold_into};

/// A collective under way on this rank.
pub(super) struct Exchange {
    shared: Arc<Shared>,
    transfer: Transfer,
    /// The number of the next round, of all rounds of the group.
    next: u64,
    /// The round after the last one.
    end: u64,
    /// Rounds of this collective that are over.
    over: usize,
    /// This rank has written its chunk of the next round.
    published: bool,
    began: Instant,
    looked: Instant,
}

impl Exchange {
    pub(super) fn new(shared: Arc<Shared>, transfer: Transfer) -> Exchange {
        let rounds = contributed(&transfer, shared.size).div_ceil(CHUNK).max(1) as u64;
        let next = shared.rounds.fetch_add(rounds, Ordering::Relaxed);
        let now = Instant::now();
        Exchange { shared, transfer, next, end: next + rounds, over: 0, published: false, began: now, looked: now }
    }

    /// Writes this rank's chunk of the next round, if all ranks have read the chunk that was there. Returns whether it is written.
    fn publish(&mut self) -> bool {
        let Exchange { shared, transfer, next, over, .. } = self;
        let region = &shared.region;
        // The chunk of two rounds ago was here; one round may still be read.
        let free = |rank| region.control(rank).consumed.load(Ordering::Acquire) + 2 > *next;
        if !(0..shared.size).all(free) {
            return false;
        }
        let turn = (*next % 2) as usize;
        if *over == 0 {
            let text = transfer.call.as_bytes();
            let length = text.len().min(CALL);
            let fingerprint = fingerprint_of(transfer);
            let call = region.call(shared.rank, turn);
            let mut new = Call { fingerprint, length: length as u32, text: [0; CALL] };
            new.text[..length].copy_from_slice(&text[..length]);
            // SAFETY: all ranks have read the call that was here, and read this one only once it is published.
            unsafe { call.write(new) };
        }
        let (offset, bytes) = self.part();
        let Exchange { shared, transfer, next, .. } = self;
        if contributes(transfer, shared.rank) && bytes > 0 {
            // SAFETY: the input has the bytes that the rank contributes, of which these are a part.
            let from = unsafe { transfer.input.add(offset) };
            // SAFETY: the chunk has room for as many bytes, and nobody reads it.
            unsafe { copy_nonoverlapping(from, shared.region.chunk(shared.rank, turn), bytes) };
        }
        shared.region.control(shared.rank).published.store(*next + 1, Ordering::Release);
        true
    }

    /// The part of what each rank contributes that this round moves: its offset and its length, in bytes.
    fn part(&self) -> (usize, usize) {
        let total = contributed(&self.transfer, self.shared.size);
        let offset = self.over * CHUNK;
        (offset, CHUNK.min(total.saturating_sub(offset)))
    }

    /// # Errors
    /// A rank calls another collective.
    fn check_order(&self) -> Result<(), RankError> {
        let (shared, turn, mine) = (&self.shared, (self.next % 2) as usize, fingerprint_of(&self.transfer));
        for other in (0..shared.size).filter(|&other| other != shared.rank) {
            // SAFETY: the call was published with the chunk, and is not written again before this rank has read the chunk.
            let call: &Call = unsafe { &*shared.region.call(other, turn) };
            if call.fingerprint != mine {
                let length = (call.length as usize).min(CALL);
                let theirs = String::from_utf8_lossy(&call.text[..length]).into_owned();
                let (me, mine) = (shared.rank, self.transfer.call.clone());
                return Err(shared.fail(RankError::Order { me, mine, other, theirs }));
            }
        }
        Ok(())
    }

    /// Takes from the chunks of all ranks what this rank needs.
    fn consume(&self) {
        let (offset, bytes) = self.part();
        let Transfer { verb, dtype, output, .. } = self.transfer;
        let (rank, size, turn) = (self.shared.rank, self.shared.size, (self.next % 2) as usize);
        let length = self.transfer.part_bytes();
        if output.is_null() || bytes == 0 {
            return;
        }
        let chunk = |other: usize| self.shared.region.chunk(other, turn).cast_const();
        // The bytes of this round that belong to this rank, if the ranks' inputs have a part for each rank.
        let (mine, mine_end) = ((rank * length).max(offset), ((rank + 1) * length).min(offset + bytes));
        let mine_bytes = mine_end.saturating_sub(mine);
        let ends = |other: usize, from: usize, to: usize| {
            // SAFETY: `from` is within the chunk.
            let from = unsafe { chunk(other).add(from) };
            // SAFETY: the caller of `start` promises the elements of the verb, among which `to` is.
            let to = unsafe { output.add(to) };
            (from, to)
        };
        let copy = |other: usize, from: usize, to: usize, bytes: usize| {
            let (from, to) = ends(other, from, to);
            // SAFETY: the chunk is published, and is not written before this rank has consumed it; it and the output have that many bytes from there on. The
            // output does not overlap the shared memory.
            unsafe { copy_nonoverlapping(from, to, bytes) };
        };
        let combine = |fold: Fold, from: usize, to: usize, bytes: usize| {
            copy(0, from, to, bytes);
            for other in 1..size {
                let (from, to) = ends(other, from, to);
                // SAFETY: as for `copy`; chunks and parts begin at multiples of the size of an element.
                unsafe { fold_into(fold, dtype, to, from, bytes / dtype.size()) };
            }
        };
        match verb {
            Verb::AllReduce(fold) | Verb::Reduce(fold, _) => combine(fold, 0, offset, bytes),
            Verb::ReduceScatter(fold) if mine_bytes > 0 => {
                combine(fold, mine - offset, mine - rank * length, mine_bytes)
            }
            Verb::Broadcast(root) => copy(root, 0, offset, bytes),
            Verb::AllGather | Verb::Gather(_) => {
                (0..size).for_each(|other| copy(other, 0, other * length + offset, bytes));
            }
            Verb::Scatter(root) if mine_bytes > 0 => copy(root, mine - offset, mine - rank * length, mine_bytes),
            Verb::AllToAll if mine_bytes > 0 => {
                let (from, at) = (mine - offset, mine - rank * length);
                (0..size).for_each(|other| copy(other, from, other * length + at, mine_bytes));
            }
            // Nothing of this round is for this rank; a barrier moves nothing.
            Verb::ReduceScatter(_) | Verb::Scatter(_) | Verb::AllToAll | Verb::Barrier => {}
            Verb::Send(_) | Verb::Receive(_) => unreachable!("messages are no exchanges"),
        }
    }
}

impl Operation for Exchange {
    fn poll(&mut self) -> Result<bool, FnError> {
        self.shared.check()?;
        loop {
            if self.next == self.end {
                return Ok(true);
            }
            self.published = self.published || self.publish();
            let (next, published) = (self.next, self.published);
            // A rank that has gone on to a later round has come, too.
            let is_missing = |shared: &Shared, rank: usize| {
                let control = shared.region.control(rank);
                match published {
                    true => control.published.load(Ordering::Acquire) <= next,
                    false => control.consumed.load(Ordering::Acquire) + 2 <= next,
                }
            };
            if !self.published || (0..self.shared.size).any(|rank| is_missing(&self.shared, rank)) {
                let now = Instant::now();
                if now.duration_since(self.looked) > LOOK_EVERY {
                    self.looked = now;
                    let shared = &self.shared;
                    if let Some(error) = shared.lost(self.began, |rank| is_missing(shared, rank)) {
                        return Err(shared.note(error).into());
                    }
                }
                return Ok(false);
            }
            if self.over == 0 {
                self.check_order()?;
            }
            self.consume();
            self.shared.region.control(self.shared.rank).consumed.store(next + 1, Ordering::Release);
            (self.next, self.over, self.published) = (next + 1, self.over + 1, false);
            self.began = Instant::now();
        }
    }
}

/// The bytes that a rank that contributes does contribute.
fn contributed(transfer: &Transfer, size: usize) -> usize {
    match transfer.verb {
        Verb::ReduceScatter(_) | Verb::Scatter(_) | Verb::AllToAll => transfer.part_bytes() * size,
        Verb::Barrier => 0,
        _ => transfer.part_bytes(),
    }
}

fn contributes(transfer: &Transfer, rank: usize) -> bool {
    match transfer.verb {
        Verb::Broadcast(root) | Verb::Scatter(root) => rank == root,
        _ => true,
    }
}

fn fingerprint_of(transfer: &Transfer) -> u64 {
    fingerprint(&transfer.what())
}
