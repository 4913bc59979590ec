//! The engine as its tensors see it.

use std::sync::Arc;

use streamvm_instructions::{Callback, Deadline, Engine, Error, InstructionList, ResourceId, Single};
use streamvm_stream::Point;

use crate::commit::Submitted;
use crate::shared::Shared;
use crate::submit::Full;
use crate::sync::unpoisoned;

/// What an `Arc<dyn Engine>` of this crate points to.
pub(crate) struct Handle(pub(crate) Arc<Shared>);

impl Handle {
    fn last_write(&self, id: ResourceId) -> Option<Point> {
        unpoisoned(self.0.state.lock()).sync.dependence(id).last_write()
    }
}

impl Engine for Handle {
    fn submit(&self, me: &Arc<dyn Engine>, list: &mut InstructionList) -> Result<(), Error> {
        self.0.submit(me, list, Full::Blocks, &mut Submitted::default())?;
        self.0.failures.log_unseen();
        Ok(())
    }

    fn submit_one(&self, me: &Arc<dyn Engine>, single: &mut Single<'_>) -> Result<(), Error> {
        self.0.submit_one(me, single, &mut Submitted::default())?;
        self.0.failures.log_unseen();
        Ok(())
    }

    fn wait(&self, id: ResourceId, deadline: Option<Deadline>) -> Result<(), Error> {
        // Before the lock, which a thread may hold that is not in this process.
        self.0.fork.check()?;
        let Some(point) = self.last_write(id) else {
            return Ok(());
        };
        self.0.wait_for(point, deadline)?;
        self.0.outcome(point)
    }

    fn may_wait(&self) -> Result<(), Error> {
        self.0.may_wait()
    }

    fn is_forked(&self) -> bool {
        self.0.fork.is_child()
    }

    fn on_passed(&self, id: ResourceId, callback: Callback) {
        let points = if self.is_forked() { Vec::new() } else { self.last_write(id).into_iter().collect() };
        self.0.call_back(points, callback);
    }

    fn release(&self, id: ResourceId) {
        if !self.is_forked() {
            self.0.releases.add(id);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.leak_in_child();
    }
}
