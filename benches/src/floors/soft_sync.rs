//! The floor of the pass that finds waits: a plain table of the last write and the reads since of each variable. Unlike the pass, it does
//! not drop waits that other waits imply, and writes no plan.

use std::hint::black_box;
use std::time::Instant;

use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;
use crate::parts::soft_sync::OPS;
use crate::workloads::generate::{RandomOp, VARIABLES, random_ops};

/// Streams of the table.
const STREAMS: usize = 4;

/// The last uses of a variable: sequence numbers by stream, 0 for none.
#[derive(Clone, Default)]
struct Uses {
    write: [u64; STREAMS],
    reads: [u64; STREAMS],
}

/// Time to find the waits of an instruction with one read and one write, with each instruction on the next of four streams.
///
/// # Errors
/// No wait was found.
pub fn soft_sync(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let ops = random_ops(OPS);
    let mut variables = vec![Uses::default(); VARIABLES];
    run(&mut variables, &ops, 0, sizes.warm_up().ops);
    let start = Instant::now();
    let needs = run(&mut variables, &ops, sizes.warm_up().ops, sizes.ops);
    let ns = start.elapsed().as_nanos() as f64 / sizes.ops as f64;
    if needs == 0 {
        return Err(Error::Wrong { workload: "floor/soft_sync", found: "nothing was needed".to_owned() });
    }
    Ok(vec![Sample::ns("ns_per_op", ns)])
}

/// Processes `count` instructions, of which the first has number `first`; returns the number of points on other streams that they
/// must wait for.
fn run(variables: &mut [Uses], ops: &[RandomOp], first: usize, count: usize) -> usize {
    let mut found = 0;
    for number in first..first + count {
        let (op, stream, seq) = (&ops[number % OPS], number % STREAMS, (number / STREAMS) as u64 + 1);
        let (read, write) = (op.reads()[0] as usize, op.write as usize);
        let mut needs = variables[read].write;
        let written = &mut variables[write];
        // Readers are ordered after the writer before them, so waiting for them is enough; without readers all entries are 0.
        let before = if written.reads == [0; STREAMS] { written.write } else { written.reads };
        for (need, before) in needs.iter_mut().zip(before) {
            *need = (*need).max(before);
        }
        *written = Uses::default();
        written.write[stream] = seq;
        variables[read].reads[stream] = seq;
        needs[stream] = 0;
        found += black_box(needs).iter().filter(|need| **need > 0).count();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_need_is_of_another_stream() {
        let ops = random_ops(OPS);
        let mut variables = vec![Uses::default(); VARIABLES];
        assert_eq!(run(&mut variables, &ops, 0, 1), 0, "nothing was before the first");
        assert!(run(&mut variables, &ops, 1, 1_000) > 0);
    }
}
