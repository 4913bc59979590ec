//! The pass that finds the waits of instructions, over instructions with one read and one write.

use std::time::Instant;

use streamvm::instructions::SoftSyncMode;
use streamvm::instructions::{Dependence, DependenceUse, NothingObserved, Order, SoftSync};
use streamvm::stream::Capabilities;
use streamvm::stream::{StreamClass, StreamId};
use streamvm::{Access, StreamKey, StreamType};

use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;
use crate::workloads::DEVICE;
use crate::workloads::generate::{VARIABLES, random_ops};
use crate::workloads::graph::LIST;

/// Different operations; after the last the first comes again. Their uses fit the second-level cache beside the variables, as in an
/// engine, which has just written the uses that it passes on.
pub const OPS: usize = 4_096;

/// Time of the pass per instruction: all on one stream, where no instruction waits, and each on the next of four streams.
///
/// # Errors
/// Instructions were not numbered, or waits are missing or too many.
pub fn soft_sync(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    Ok(vec![
        Sample::ns("ns_per_op_one_stream", over_streams(1, sizes.warm_up().ops, sizes.ops)?),
        Sample::ns("ns_per_op_four_streams", over_streams(4, sizes.warm_up().ops, sizes.ops)?),
    ])
}

/// Time of the pass per instruction, with each on the next of `streams`, after `warm_up` of them.
///
/// # Errors
/// As [`soft_sync`].
pub fn over_streams(streams: u32, warm_up: usize, count: usize) -> Result<f64, Error> {
    let mut pass = SoftSync::new(SoftSyncMode::default(), Capabilities::standard());
    for lane in 0..streams {
        pass.add_stream(StreamClass::of(&StreamKey::new(DEVICE, StreamType::Compute, lane)));
    }
    let resources: Vec<_> = (0..VARIABLES).map(|_| pass.add_dependence(Dependence::default())).collect();
    let using = |variable: u32, access| DependenceUse::whole(resources[variable as usize], access);
    let uses: Vec<_> =
        random_ops(OPS).iter().map(|op| [using(op.reads()[0], Access::Read), using(op.write, Access::Write)]).collect();

    run(&mut pass, streams, &uses, warm_up);
    let start = Instant::now();
    let waits = run(&mut pass, streams, &uses, count);
    let ns = start.elapsed().as_nanos() as f64 / count as f64;

    let wrong = |found| Err(Error::Wrong { workload: "soft_sync", found });
    let (given, expected) =
        ((0..streams).map(|stream| pass.last_submitted(StreamId(stream))).sum::<u64>(), (warm_up + count) as u64);
    if given != expected {
        return wrong(format!("{given} numbers were given, not {expected}"));
    }
    // An instruction waits for at most one point of each other stream.
    let most = count * (streams as usize - 1);
    if (streams > 1 && waits == 0) || waits > most {
        return wrong(format!("{waits} waits on {streams} streams, which should be up to {most}, none on one alone"));
    }
    Ok(ns)
}

/// Processes `count` instructions in lists, and returns the number of their waits.
fn run(pass: &mut SoftSync, streams: u32, uses: &[[DependenceUse; 2]], count: usize) -> usize {
    let mut waits = 0;
    for first in (0..count).step_by(LIST) {
        pass.begin();
        for op in first..count.min(first + LIST) {
            let stream = StreamId(op as u32 % streams);
            let at = pass.number(stream);
            pass.instruction(at, &uses[op % OPS], Order::Uses, &mut NothingObserved);
        }
        let plan = pass.plan();
        waits += plan.instructions().iter().map(|planned| plan.waits(planned).len()).sum::<usize>();
    }
    waits
}
