//! Commands that were checked and are not queued yet: those of a stream, and those in the body of a conditional node.

use std::sync::Arc;

use streamvm_sim::races::Touch;

use crate::driver::Driver;
use crate::kernels::ConditionValue;
use crate::memory::order::label;
use crate::objects::command::{Command, Work};
use crate::objects::stream::Stream;

/// A command that was checked.
pub(crate) struct Prepared {
    /// The driver call.
    pub(crate) call: &'static str,
    /// What the race detector calls it.
    pub(crate) what: String,
    /// The bytes that it accesses.
    pub(crate) touches: Vec<Touch>,
    pub(crate) work: PreparedWork,
}

/// What a prepared command does.
pub(crate) enum PreparedWork {
    Work(Work),
    /// Runs its body as often as a condition says.
    Conditional {
        condition: Arc<ConditionValue>,
        repeats: bool,
        body: Vec<Prepared>,
    },
}

impl Prepared {
    /// Queues it, and returns its number on the stream.
    pub(crate) fn queue(self, driver: &Driver, stream: &Stream) -> u64 {
        stream.give(|number| {
            driver.order.given_by_host(stream.actor);
            self.command(driver, stream, number)
        })
    }

    /// Tells the race detector what it accesses. Each body counts as run once: so what it would race with is found, whether it runs or not.
    fn command(self, driver: &Driver, stream: &Stream, number: u64) -> Command {
        let Prepared { call, what, touches, work } = self;
        driver.order.touch(&driver.findings, stream.actor, &label(stream.number, number, &what), &touches);
        Command::new(
            call,
            match work {
                PreparedWork::Work(work) => work,
                PreparedWork::Conditional { condition, repeats, body } => {
                    let body = body.into_iter().map(|one| one.command(driver, stream, number)).collect();
                    Work::Conditional { condition, repeats, body }
                }
            },
        )
    }
}
