//! Claims: the failure that a ticket or a waiter will be told, kept although the table forgets old failures.
//!
//! The table of failed points forgets old points ([`failures`](crate::progress::failures)). A claim keeps the failure for its
//! owner:
//! * for a ticket, the first failure in program order among the instructions of its submission;
//! * for a waiter, the failure of its point.
//!
//! A failure is reported to the claims when it is entered, so their owners do not need the table any more.
//!
//! Claims are made only once something has failed in an engine. Instructions submitted before that are *early*: their failures stay
//! in the table as long as the engine, and there are at most as many as instructions were pending then.
//!
//! A claim must be made under the submission lock: that of a ticket before its instructions are published, that of a point while
//! the point is the last write of a resource. So no failure is entered or forgotten before its claim exists.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use streamvm_instructions::Failure;
use streamvm_stream::Point;

use crate::sync::{Mutex, unpoisoned};

/// The least number of claims at which dropped ones are removed, which visits all claims.
const LOOK_AT: usize = 64;

/// The failure for one owner. Its lock is held for a moment, with or without the lock of the table.
#[derive(Default)]
pub(crate) struct Claim(Mutex<Option<(u64, Arc<Failure>)>>);

impl Claim {
    /// The failure so far. Final once all instructions that the claim covers have passed.
    pub(crate) fn told(&self) -> Option<Arc<Failure>> {
        unpoisoned(self.0.lock()).as_ref().map(|(_, failure)| failure.clone())
    }

    /// Reports a failure. The first in program order stays. For one instruction the last report wins: it may have failed by itself
    /// before it was known that it should have been skipped.
    fn tell(&self, order: u64, failure: &Arc<Failure>) {
        let mut told = unpoisoned(self.0.lock());
        if told.as_ref().is_none_or(|(first, _)| order <= *first) {
            *told = Some((order, failure.clone()));
        }
    }
}

/// The claims of one engine, by weak references. A dropped claim stays for a while, without its contents.
#[derive(Default)]
pub(crate) struct Claims {
    /// Claims of tickets: the first position in program order of a submission, with its last. Submissions do not overlap.
    tickets: BTreeMap<u64, (u64, Weak<Claim>)>,
    /// Claims of waiters, by the point that they wait for.
    points: HashMap<Point, Weak<Claim>>,
    /// The number of claims at which dropped ones are removed.
    limit: usize,
}

impl Claims {
    /// The claim of a submission with these positions in program order.
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

    /// Reports the failure of the instruction with this point and position in program order to the claims on it.
    pub(crate) fn tell(&self, point: Point, order: u64, failure: &Arc<Failure>) {
        let submission = self.tickets.range(..=order).next_back().filter(|(_, (last, _))| order <= *last);
        let ticket = submission.and_then(|(_, (_, claim))| claim.upgrade());
        let waiter = self.points.get(&point).and_then(Weak::upgrade);
        ticket.into_iter().chain(waiter).for_each(|claim| claim.tell(order, failure));
    }

    /// Removes dropped claims, once there are twice as many claims as were left the last time.
    fn make_room(&mut self) {
        if self.tickets.len() + self.points.len() < self.limit.max(LOOK_AT) {
            return;
        }
        self.tickets.retain(|_, (_, claim)| claim.strong_count() > 0);
        self.points.retain(|_, claim| claim.strong_count() > 0);
        self.limit = 2 * (self.tickets.len() + self.points.len());
    }

    /// The number of claims kept.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn len(&self) -> usize {
        self.tickets.len() + self.points.len()
    }
}

/// A point that a caller waits for, with the claim on it, if one was needed.
pub(crate) struct Awaited {
    pub(crate) point: Point,
    pub(crate) claim: Option<Arc<Claim>>,
}
