//! Vector clocks: what each actor is known to come after.
//!
//! An actor is a stream or a host thread: something whose accesses are ordered among themselves; or it is one instruction of
//! an unordered stream, and [restarts](Clock::restart) as another when that is over. It counts *epochs*, and
//! an access is named by its actor and the epoch in which it was made. A clock holds, for each actor, the last epoch
//! whose accesses are known to come before. An actor's own epoch ends at each release, so that a moment never covers
//! what the actor does after it.
//!
//! The scheme is that of FastTrack (Flanagan and Freund, PLDI 2009), with 64-bit epochs, which never run out.

use std::sync::Arc;

use smallvec::SmallVec;

/// A stream or a host thread, as the detector knows it. Valid for the detector that gave it.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ActorId(pub(super) u32);

/// What an actor had done, and come after, when it released. Everything that acquires it comes after that.
///
/// The default moment is before everything.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    /// As in a clock; `None` is before everything. Many are kept and handed on, none is changed.
    epochs: Option<Arc<[u64]>>,
}

impl Moment {
    /// Comes after `other` as well.
    pub fn merge(&mut self, other: &Moment) {
        let mut clock = Clock::new(ActorId(0));
        clock.acquire(self);
        clock.acquire(other);
        self.epochs = Some(Arc::from(&clock.epochs[..]));
    }
}

/// For each actor the last epoch that comes before; missing entries are 0, and no access is made in epoch 0.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    actor: ActorId,
    epochs: SmallVec<[u64; 8]>,
    /// The epoch at hand, and the first that belongs to whoever the actor is now.
    now: u64,
    since: u64,
}

impl Clock {
    /// The clock of a new actor: its first epoch is 1.
    pub(super) fn new(actor: ActorId) -> Clock {
        Clock { actor, epochs: SmallVec::new(), now: 1, since: 1 }
    }

    /// The epoch at hand.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Whether what `actor` did in `epoch` comes before.
    pub(super) fn covers(&self, actor: ActorId, epoch: u64) -> bool {
        (actor == self.actor && epoch >= self.since)
            || self.epochs.get(actor.0 as usize).is_some_and(|known| *known >= epoch)
    }

    /// From now on it is somebody else, who comes after nothing.
    pub(super) fn restart(&mut self) {
        self.epochs.clear();
        self.now += 1;
        self.since = self.now;
    }

    /// The moment of now; the actor starts a new epoch.
    pub(super) fn release(&mut self) -> Moment {
        let index = self.actor.0 as usize;
        if self.epochs.len() <= index {
            self.epochs.resize(index + 1, 0);
        }
        self.epochs[index] = self.now;
        self.now += 1;
        Moment { epochs: Some(Arc::from(&self.epochs[..])) }
    }

    /// Comes after `moment` as well from now on.
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
