//! The gate of critical sections: where a submitter waits while another thread has a section over the same resource open.
//!
//! The submission lock guards which sections are open between lists; the gate counts all of these that have ended. A submitter that finds its
//! resource held reads the count under the submission lock. A holder adds to the count after it has left the lock, so the submitter either finds
//! the section ended, or sees the count change: no wake-up is lost.

use streamvm_instructions::{Deadline, Error, OpenSection, Section};

use crate::execute::environment::Environment;
use crate::execute::stall::Watch;
use crate::observe::stall_report::HeldSection;
use crate::sync::{Condvar, Mutex, Ordering, unpoisoned};

/// See the module's documentation.
pub(crate) struct SectionGate {
    gate: Mutex<Gate>,
    changed: Condvar,
}

struct Gate {
    /// How many sections that were open between lists have ended.
    ended: u64,
    /// The open sections, for reports.
    open: Vec<OpenSection>,
    /// How many submitters wait.
    blocked: usize,
}

impl SectionGate {
    pub(crate) fn new() -> SectionGate {
        let gate = Gate { ended: 0, open: Vec::new(), blocked: 0 };
        SectionGate { gate: Mutex::new(gate), changed: Condvar::new() }
    }

    /// How many sections have ended.
    pub(crate) fn ended(&self) -> u64 {
        unpoisoned(self.gate.lock()).ended
    }

    /// Notes a section that its thread has begun, for reports.
    pub(crate) fn note_open(&self, open: OpenSection) {
        unpoisoned(self.gate.lock()).open.push(open);
    }

    /// Lets waiting submitters try again, because `section` has ended. The caller has left the submission lock.
    pub(crate) fn end(&self, section: &Section) {
        let mut gate = unpoisoned(self.gate.lock());
        gate.ended += 1;
        gate.open.retain(|open| !open.section.is(section));
        drop(gate);
        self.changed.notify_all();
    }

    /// Makes all waiting submitters check, because the engine is closed.
    pub(crate) fn notify(&self) {
        // Under the lock: a submitter that has read that the engine is open waits by now.
        let _gate = unpoisoned(self.gate.lock());
        self.changed.notify_all();
    }

    /// Blocks until the count of ended sections differs from `ended`, for a submitter whose resource `held` has.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline, [`Error::Shutdown`] when the engine is closed.
    pub(crate) fn wait(
        &self,
        env: &Environment,
        ended: u64,
        held: &OpenSection,
        deadline: Option<Deadline>,
    ) -> Result<(), Error> {
        let mut watch = Watch::new(env);
        let mut gate = unpoisoned(self.gate.lock());
        gate.blocked += 1;
        let outcome = loop {
            if gate.ended != ended {
                break Ok(());
            }
            if env.closed.load(Ordering::SeqCst) {
                break Err(Error::shutdown());
            }
            if let Some(over) = deadline.filter(Deadline::is_over) {
                let OpenSection { section, site, .. } = held;
                break Err(over.error(format!("the critical section over {section}, which begins at {site}, is open")));
            }
            gate = match watch.nap(deadline) {
                None => unpoisoned(self.changed.wait(gate)),
                Some(nap) => unpoisoned(self.changed.wait_timeout(gate, nap)).0,
            };
            if watch.is_due() {
                drop(gate);
                watch.look(env);
                gate = unpoisoned(self.gate.lock());
            }
        };
        gate.blocked -= 1;
        outcome
    }

    /// The open sections, and how many submitters wait for the end of one.
    pub(crate) fn report(&self) -> (Vec<HeldSection>, usize) {
        let gate = unpoisoned(self.gate.lock());
        let held = |open: &OpenSection| HeldSection { over: open.section.to_string(), site: open.site };
        (gate.open.iter().map(held).collect(), gate.blocked)
    }
}
