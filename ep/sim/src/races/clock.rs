//! Vector clocks: for each actor, the accesses of all actors that are ordered before it.
//!
//! An actor is a stream or a host thread, whose accesses are ordered among themselves. It can also stand for one instruction of an
//! unordered stream, and [restarts](Clock::restart) for the next one. An actor counts *epochs*; an access is named by its actor and the
//! epoch in which it was made. A clock holds, for each actor, the last epoch whose accesses are ordered before. An actor's epoch ends at
//! each release, so that a moment never covers what the actor does afterwards.
//!
//! The scheme is FastTrack (Flanagan and Freund, PLDI 2009), with 64-bit epochs, which never overflow in practice.

use std::sync::Arc;

use smallvec::SmallVec;
use streamvm_ep::ActorId;

/// A snapshot of an actor's clock at a release. Every actor that acquires it is ordered after all that it covers.
///
/// The default moment covers nothing.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    /// The entries of a clock; `None` covers nothing. Moments are shared and never changed.
    epochs: Option<Arc<[u64]>>,
}

impl Moment {
    /// Adds everything that `other` covers.
    pub fn merge(&mut self, other: &Moment) {
        let mut clock = Clock::new(ActorId(0));
        clock.acquire(self);
        clock.acquire(other);
        self.epochs = Some(Arc::from(&clock.epochs[..]));
    }
}

/// For each actor the last epoch that is ordered before; missing entries are 0, and no access is made in epoch 0.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    actor: ActorId,
    epochs: SmallVec<[u64; 8]>,
    /// The current epoch, and the first epoch of the party that the actor stands for now.
    now: u64,
    since: u64,
}

impl Clock {
    /// The clock of a new actor, in epoch 1.
    pub(super) fn new(actor: ActorId) -> Clock {
        Clock { actor, epochs: SmallVec::new(), now: 1, since: 1 }
    }

    /// The current epoch.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Whether the accesses of `actor` in `epoch` are ordered before.
    pub(super) fn covers(&self, actor: ActorId, epoch: u64) -> bool {
        (actor == self.actor && epoch >= self.since)
            || self.epochs.get(actor.0 as usize).is_some_and(|known| *known >= epoch)
    }

    /// Reuses the actor for another party, which is ordered after nothing.
    pub(super) fn restart(&mut self) {
        self.epochs.clear();
        self.now += 1;
        self.since = self.now;
    }

    /// A snapshot of the clock; the actor starts a new epoch.
    pub(super) fn release(&mut self) -> Moment {
        let index = self.actor.0 as usize;
        if self.epochs.len() <= index {
            self.epochs.resize(index + 1, 0);
        }
        self.epochs[index] = self.now;
        self.now += 1;
        Moment { epochs: Some(Arc::from(&self.epochs[..])) }
    }

    /// Orders the actor after everything that `moment` covers.
    pub(super) fn acquire(&mut self, moment: &Moment) {
        let other = moment.epochs.as_deref().unwrap_or_default();
        if self.epochs.len() < other.len() {
            self.epochs.resize(other.len(), 0);
        }
        for (own, &other) in self.epochs.iter_mut().zip(other) {
            *own = (*own).max(other);
        }
    }
}
