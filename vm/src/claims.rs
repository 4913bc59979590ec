//! Claims: what those who may still ask are told of failures, however many others there were since.
//!
//! The table of failed points forgets old ones ([`failures`](crate::failures)). A claim keeps what its owner is to be told:
//! of a ticket the first failure, in program order, among the instructions of its submission; of somebody who waits for a
//! point, the failure of that. Failures are told to claims when they are entered, so the table owes their owners nothing.
//!
//! Claims are made only once something has failed in an engine. What was submitted before that is *early*: its failures
//! stay in the table for as long as the engine, and there are at most as many as instructions were pending then.
//!
//! A claim must be made under the submission lock: that of a ticket before its instructions are published, that of a point
//! while the point is the last write of a resource. So no failure is entered, or forgotten, before its claim is there.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use streamvm_instructions::Failure;
use streamvm_stream::Point;

use crate::sync::{Mutex, unpoisoned};

/// So many claims are kept at least before those whose owners are gone are looked for: a look goes through all of them.
const LOOK_AT: usize = 64;

/// What one owner is to be told. Locked for a moment, with the lock of the table or without.
#[derive(Default)]
pub(crate) struct Claim(Mutex<Option<(u64, Arc<Failure>)>>);

impl Claim {
    /// What its owner is to be told so far; all of it once everything that it is for has passed.
    pub(crate) fn told(&self) -> Option<Arc<Failure>> {
        unpoisoned(self.0.lock()).as_ref().map(|(_, failure)| failure.clone())
    }

    /// The first in program order counts. Of one instruction the last that is told: it may have failed by itself before it was
    /// known that it should not have run.
    fn tell(&self, order: u64, failure: &Arc<Failure>) {
        let mut told = unpoisoned(self.0.lock());
        if told.as_ref().is_none_or(|(first, _)| order <= *first) {
            *told = Some((order, failure.clone()));
        }
    }
}

/// The claims of one engine. A dropped claim stays for a while, without its contents.
#[derive(Default)]
pub(crate) struct Claims {
    /// Those of tickets: the first place in program order of a submission, with its last. Submissions do not overlap.
    tickets: BTreeMap<u64, (u64, Weak<Claim>)>,
    /// Those of who waits for a point.
    points: HashMap<Point, Weak<Claim>>,
    /// How many there may be before those whose owners are gone are removed.
    limit: usize,
}

impl Claims {
    /// The claim of a submission with these places in program order.
    pub(crate) fn of_ticket(&mut self, first: u64, last: u64) -> Arc<Claim> {
        self.make_room();
        let claim = Arc::new(Claim::default());
        self.tickets.insert(first, (last, Arc::downgrade(&claim)));
        claim
    }

    /// The claim on a point that has not failed so far.
    pub(crate) fn of_point(&mut self, point: Point) -> Arc<Claim> {
        if let Some(claim) = self.points.get(&point).and_then(Weak::upgrade) {
            return claim;
        }
        self.make_room();
        let claim = Arc::new(Claim::default());
        self.points.insert(point, Arc::downgrade(&claim));
        claim
    }

    /// The claim on a point whose failure is known.
    pub(crate) fn of_failed(order: u64, failure: Arc<Failure>) -> Arc<Claim> {
        Arc::new(Claim(Mutex::new(Some((order, failure)))))
    }

    /// Tells whoever has a claim on it that the instruction with this point, and this place in program order, has failed.
    pub(crate) fn tell(&self, point: Point, order: u64, failure: &Arc<Failure>) {
        let submission = self.tickets.range(..=order).next_back().filter(|(_, (last, _))| order <= *last);
        let ticket = submission.and_then(|(_, (_, claim))| claim.upgrade());
        let waiter = self.points.get(&point).and_then(Weak::upgrade);
        ticket.into_iter().chain(waiter).for_each(|claim| claim.tell(order, failure));
    }

    /// Removes those whose owners are gone, once there are twice as many as were left the last time.
    fn make_room(&mut self) {
        if self.tickets.len() + self.points.len() < self.limit.max(LOOK_AT) {
            return;
        }
        self.tickets.retain(|_, (_, claim)| claim.strong_count() > 0);
        self.points.retain(|_, claim| claim.strong_count() > 0);
        self.limit = 2 * (self.tickets.len() + self.points.len());
    }

    /// How many are kept.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn len(&self) -> usize {
        self.tickets.len() + self.points.len()
    }
}

/// A point that somebody waits for, with the claim on it, if one was needed.
pub(crate) struct Awaited {
    pub(crate) point: Point,
    pub(crate) claim: Option<Arc<Claim>>,
}
