//! Checks collectives of NCCL, and queues them.

use std::sync::Arc;

use streamvm_ep::Access;

use crate::commands::kernel::region;
use crate::commands::prepared::{Prepared, PreparedWork};
use crate::driver::Driver;
use crate::memory::Span;
use crate::objects::collective::{Call, Collective, Comm, State};
use crate::objects::command::Work;
use crate::values::code::{Code, Outcome};
use crate::values::findings::Kind;

/// Queues what the calls of a communicator have asked for, as one command for each group of calls.
pub(crate) fn queue(driver: &Driver, comm: &Arc<Comm>, state: &mut State) -> Outcome {
    for (handle, calls) in std::mem::take(&mut state.called) {
        let stream = driver.stream("ncclGroupEnd", handle)?;
        let mut touches = Vec::new();
        let mut parts = Vec::new();
        for call in calls {
            let (read, written) = comm.extent(&call);
            let mut found = |what: &str, address: usize, bytes: usize, access| -> Outcome<Option<Span>> {
                if bytes == 0 {
                    return Ok(None);
                }
                let region = region(driver, &stream.context, &call.name, what, address..address + bytes, 1, access)?;
                touches.push(region.touch);
                Ok(Some(region.span))
            };
            let input = found("what is sent", call.input, read, Access::Read)?;
            let output = found("what is received", call.output, written, Access::Write)?;
            parts.push(comm.part(state, call, input, output));
        }
        let name = parts.first().map_or("ncclGroupEnd", |part| part.call.name);
        let work = PreparedWork::Work(Work::Collective(Collective { comm: comm.clone(), parts }));
        Prepared { call: name, what: name.to_owned(), touches, work }.queue(driver, &stream);
    }
    Ok(())
}

/// The bytes of an element of NCCL's type.
pub(crate) fn element(call: &Call) -> Option<usize> {
    Some(match call.datatype {
        0 | 1 => 1,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        _ => return None,
    })
}

/// Checks that commands of the communicator may be queued on the stream of a handle.
pub(crate) fn check_stream(driver: &Driver, comm: &Comm, name: &str, handle: usize) -> Outcome {
    let stream = driver.stream(name, handle)?;
    if stream.context.handle != comm.context {
        let text = format!("{name} on {} by a communicator of another context", stream.name);
        return Err(driver.refuse(Kind::WrongContext, text, Code::INVALID_HANDLE));
    }
    Ok(())
}
