//! Futures of work that is pending: made and dropped, as in a loop of `select!`, and kept.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread::yield_now;
use std::time::Instant;

use streamvm::{InstructionsBuilder, Passed, Vm};

use crate::harness::case::Sample;
use crate::harness::error::Error;
use crate::workloads::DEVICE;
use crate::workloads::graph::{blocked, variables};

/// The time of each of `count` futures:
///
/// * made, polled and dropped one after the other, while the instruction that they wait for is pending;
/// * all of one function on workers, made, and then dropped in the same order;
/// * of one instruction each, made in the reverse order of the instructions, and ready at last.
///
/// # Errors
/// The engine failed, or a future was ready too early or failed.
pub fn futures(count: usize, ops: usize) -> Result<Vec<Sample>, Error> {
    let vm = Vm::builder().build()?;
    let [held, held_on_workers] = [vm.var(), vm.var()];
    let own = variables(&vm, count);
    let mut builder = InstructionsBuilder::new();
    let release = blocked(&mut builder, held.update())?;
    builder.on_workers().call_fn("after it", DEVICE, [held.read(), held_on_workers.write()], |_| Ok(()))?;
    for variable in &own {
        builder.call_fn("empty", DEVICE, [variable.write()], |_| Ok(()))?;
    }
    vm.submit(builder.finish())?;

    let rounds = ops.div_ceil(count);
    let start = Instant::now();
    for _ in 0..rounds * count {
        pending(held.ready()?)?;
    }
    let dropped = start.elapsed().as_nanos() as f64 / (rounds * count) as f64;

    let start = Instant::now();
    let of_workers = (0..count).map(|_| pending(held_on_workers.ready()?)).collect::<Result<Vec<Passed>, Error>>()?;
    of_workers.into_iter().for_each(drop);
    let on_workers = start.elapsed().as_nanos() as f64 / count as f64;

    let start = Instant::now();
    let kept = own.iter().rev().map(|variable| pending(variable.ready()?)).collect::<Result<Vec<Passed>, Error>>()?;
    drop(release);
    for mut future in kept {
        while poll(&mut future)?.is_pending() {
            yield_now();
        }
    }
    let kept = start.elapsed().as_nanos() as f64 / count as f64;
    vm.wait_all()?;
    Ok(vec![
        Sample::ns("made and dropped", dropped),
        Sample::ns("of one function on workers", on_workers),
        Sample::ns("kept, in reverse order", kept),
    ])
}

fn poll(future: &mut Passed) -> Result<Poll<()>, Error> {
    match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Pending => Ok(Poll::Pending),
        Poll::Ready(outcome) => Ok(Poll::Ready(outcome?)),
    }
}

/// A future that was polled and is pending.
fn pending(mut future: Passed) -> Result<Passed, Error> {
    match poll(&mut future)? {
        Poll::Pending => Ok(future),
        Poll::Ready(()) => {
            Err(Error::Wrong { workload: "futures", found: "a future was ready before its work had passed".to_owned() })
        }
    }
}
