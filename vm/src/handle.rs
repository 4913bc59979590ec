//! The engine as its tensors see it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use streamvm_instructions::{Callback, Engine, Error, InstructionList, ResourceId};
use streamvm_stream::Point;

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
        self.0.submit(me, list, Full::Blocks).map(drop)
    }

    fn wait(&self, id: ResourceId, deadline: Option<Instant>) -> Result<(), Error> {
        let Some(point) = self.last_write(id) else {
            return Ok(());
        };
        if !self.0.wait_for(point, deadline)? {
            return Err(Error::Timeout(Duration::ZERO));
        }
        self.0.outcome(point)
    }

    fn on_passed(&self, id: ResourceId, callback: Callback) {
        self.0.call_back(self.last_write(id).into_iter().collect(), callback);
    }

    fn release(&self, id: ResourceId) {
        self.0.releases.add(id);
    }
}
