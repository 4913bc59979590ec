//! The verdict: compares the dependences with the order.

use crate::checks::dependences::{Need, Needs};
use crate::checks::excess::{count_waits, excess};
use crate::graph::closure::{Closure, TooLarge};
use crate::graph::{Graph, NONE};
use crate::report::naming::Naming;
use crate::report::{Bytes, Dependence, Listed, Missing, Report};
use crate::trace::{Trace, What};

/// Verifies a trace: finds the dependences that are not ordered, the cycles of waits, the faults, and the waits that could be
/// removed.
///
/// Takes at most about two seconds for 100,000 instructions on 16 streams. Takes memory in proportion to instructions times streams
/// where every instruction waits.
///
/// # Errors
/// The trace would need too much memory or time: see [`TooLarge`].
pub fn verify(trace: &Trace) -> Result<Report, TooLarge> {
    let mut faults = Listed::default();
    let closure = Closure::over(Graph::new(trace, &mut faults), trace)?;
    let needs = Needs::of(trace, &closure, &mut faults)?;
    let (device_waits, host_waits) = count_waits(trace);
    let count = |is: fn(&What) -> bool| trace.actions.iter().filter(|action| is(&action.what)).count() as u64;
    let mut report = Report {
        streams: trace.streams.len() as u64,
        instructions: count(|what| matches!(what, What::Instruction(_))),
        host_accesses: count(|what| matches!(what, What::Host { .. })),
        device_waits,
        host_waits,
        records: closure.graph.records,
        dependences: needs.all().len() as u64,
        complete: trace.complete,
        cut_line: trace.cut_line,
        hulls: trace.hulls,
        excess: excess(trace, &closure, &needs),
        cycles: closure.graph.cycles.clone(),
        unused_records: closure.graph.unused.clone(),
        faults,
        ..Report::default()
    };
    report.faults.first.sort_by_key(|fault| fault.at.line);
    for need in needs.all().iter().filter(|need| !closure.before(need.from, need.to)) {
        let list = if need.certain { &mut report.missing } else { &mut report.undecided };
        list.add(|| told(trace, &closure.graph, need));
    }
    Ok(report)
}

fn told(trace: &Trace, graph: &Graph, need: &Need) -> Missing {
    let naming = Naming::of(trace);
    let life = (need.life != NONE).then(|| &trace.lives[need.life as usize]);
    let bytes = (need.kind != Dependence::Asked).then(|| Bytes {
        total: need.total,
        address: need.address,
        life: life.map(|life| life.id),
        place: life.map_or("memory", |life| &life.place).to_owned(),
        reused: need.reused,
    });
    Missing { dependence: need.kind, first: naming.node(graph, need.from), second: naming.node(graph, need.to), bytes }
}
