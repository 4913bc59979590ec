//! Messages between two ranks: each pair and direction has a communicator of its own, so that a message waits neither for collectives nor for other messages. The first
//! message makes it: the sender names it by a message of the ranks on the host.

use std::sync::{Arc, Mutex, PoisonError};

use streamvm::ep::Operation;
use streamvm::{DType, FnError};

use crate::nccl::comm::{Comm, MAKE, name_of};
use crate::nccl::launched::{Launch, Launched, Watch};
use crate::nccl::library::UniqueId;
use crate::transport::{RankError, Transfer, Verb};

/// The communicators of messages, each with the other rank, and whether that gets them.
#[derive(Default)]
pub(super) struct Channels {
    made: Mutex<Vec<(usize, bool, Arc<Comm>)>>,
}

/// A message, from the call that starts it until its device has passed it.
pub(super) struct Message {
    channels: Arc<Channels>,
    launch: Launch,
    stage: Stage,
}

enum Stage {
    /// The ranks exchange the name of their communicator.
    Names { comm: Arc<Comm>, operation: Box<dyn Operation>, id: Box<UniqueId> },
    /// NCCL makes the communicator.
    Making { comm: Arc<Comm>, watch: Watch },
    /// NCCL queues the message, or has queued it.
    Launched(Launched),
}

impl Message {
    /// # Errors
    /// The message was not started.
    pub(super) fn start(group: &Arc<Comm>, channels: &Arc<Channels>, launch: Launch) -> Result<Message, RankError> {
        let (other, sends) = ends(launch.verb);
        let known =
            channels.lock().iter().find(|(rank, to, _)| (*rank, *to) == (other, sends)).map(|found| found.2.clone());
        let stage = match known {
            // SAFETY: the caller of `Nccl::start` promises the memory.
            Some(comm) => Stage::Launched(unsafe { Launched::start(comm, &launch) }?),
            None => {
                let place = (usize::from(!sends), 2);
                let comm = Comm::new(group.library, group.host.clone(), place, vec![other], group.device, group.limit);
                let mut id = Box::new(name_of(group.library, place.0)?);
                let verb = if sends { Verb::Send(other) } else { Verb::Receive(other) };
                let (count, at) = (id.0.len(), id.0.as_mut_ptr());
                let (input, output) =
                    if sends { (at.cast_const(), std::ptr::null_mut()) } else { (std::ptr::null(), at) };
                let call = "the communicator of messages".to_owned();
                // SAFETY: the name has these bytes, and is kept with the operation until that is over.
                let operation =
                    unsafe { group.host.start(Transfer { verb, dtype: DType::U8, count, input, output, call }) }?;
                Stage::Names { comm: Arc::new(comm), operation, id }
            }
        };
        Ok(Message { channels: channels.clone(), launch, stage })
    }
}

impl Operation for Message {
    fn poll(&mut self) -> Result<bool, FnError> {
        match &mut self.stage {
            Stage::Names { comm, operation, id } => {
                if operation.poll()? {
                    let comm = comm.clone();
                    comm.make(**id).map_err(|error| comm.abort(error, true))?;
                    self.stage = Stage::Making { comm, watch: Watch::new() };
                }
                Ok(false)
            }
            Stage::Making { comm, watch } => {
                let is_made = watch.check(comm).and_then(|()| comm.state(MAKE));
                if is_made.map_err(|error| comm.abort(error, true))? {
                    let (comm, (other, sends)) = (comm.clone(), ends(self.launch.verb));
                    self.channels.lock().push((other, sends, comm.clone()));
                    // SAFETY: the caller of `Nccl::start` promises the memory until this operation is over.
                    self.stage = Stage::Launched(unsafe { Launched::start(comm, &self.launch) }?);
                }
                Ok(false)
            }
            Stage::Launched(launched) => launched.poll(),
        }
    }

    fn look(&mut self, has_passed: bool) -> Result<(), FnError> {
        match &mut self.stage {
            Stage::Launched(launched) => launched.look(has_passed),
            Stage::Names { .. } | Stage::Making { .. } => Ok(()),
        }
    }
}

/// The other rank of a message, and whether that gets it.
fn ends(verb: Verb) -> (usize, bool) {
    match verb {
        Verb::Send(to) => (to, true),
        Verb::Receive(from) => (from, false),
        _ => unreachable!("collectives are no messages"),
    }
}

impl Channels {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(usize, bool, Arc<Comm>)>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
