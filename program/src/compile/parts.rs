//! Pass: the parts of a program, which run as one instruction each.
//!
//! A part has units of one stream. A unit joins the last part of its stream, unless
//!
//! * it comes behind a part of another stream for which the last part does not wait: a part waits before its first step, and the steps that the
//!   last part has already must not wait longer than they need to;
//! * a part of another stream comes behind the last part: that other part would wait longer;
//! * it is a copy between two memories, which is an instruction of its own.
//!
//! So streams wait for each other where eager instructions would, and a program of one stream is one part.
//!
//! Parts are numbered in the order in which they begin; each comes behind parts with smaller numbers only, so running them one after the other
//! is an order of the program.

use std::ops::Range;

use hashbrown::HashMap;
use streamvm_stream::{StreamKey, StreamType};

/// Units that run as one instruction.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) stream: StreamKey,
    /// Its units, in the order in which they run.
    pub(super) units: Vec<usize>,
    /// The parts of other streams that it waits for. One that another part of the list waits for is left out, as is one that an earlier part of
    /// its own stream has waited for.
    pub(super) after: Vec<usize>,
}

/// For each stream the last part that has passed when a part runs, as far as its waits and the order of its stream tell.
type Clock = HashMap<StreamKey, usize>;

/// Divides the units, which are given in an order in which they can run, each with its stream, and the units that each comes behind.
pub(super) fn divide(order: &[usize], streams: &[StreamKey], dependences: &[Vec<usize>]) -> Vec<Draft> {
    let mut parts: Vec<Draft> = Vec::new();
    let mut clocks: Vec<Clock> = Vec::new();
    let mut part_of = vec![usize::MAX; streams.len()];
    // For each stream its last part, and whether units may still join it.
    let mut last: HashMap<StreamKey, (usize, bool)> = HashMap::new();
    for &unit in order {
        let stream = streams[unit];
        let own = last.get(&stream).copied();
        let none = Clock::new();
        let known = own.map_or(&none, |(part, _)| &clocks[part]);
        let others = dependences[unit].iter().map(|&earlier| part_of[earlier]);
        let is_open = |part: &usize| {
            let of = parts[*part].stream;
            of != stream && known.get(&of).is_none_or(|passed| passed < part)
        };
        let mut after: Vec<usize> = others.filter(is_open).collect();
        after.sort_unstable();
        after.dedup();
        for &part in &after {
            if let Some((last_part, joins)) = last.get_mut(&parts[part].stream)
                && *last_part == part
            {
                *joins = false;
            }
        }
        let transfer = stream.stream_type != StreamType::Compute;
        match own {
            Some((part, true)) if after.is_empty() && !transfer => {
                parts[part].units.push(unit);
                part_of[unit] = part;
            }
            _ => {
                let part = parts.len();
                let mut clock = known.clone();
                // The latest first: what it waited for needs no wait of its own.
                let mut needed = Vec::new();
                for &earlier in after.iter().rev() {
                    let of = parts[earlier].stream;
                    if clock.get(&of).is_none_or(|passed| *passed < earlier) {
                        needed.push(earlier);
                        clocks[earlier].iter().for_each(|(of, passed)| raise(&mut clock, *of, *passed));
                        raise(&mut clock, of, earlier);
                    }
                }
                needed.reverse();
                raise(&mut clock, stream, part);
                clocks.push(clock);
                parts.push(Draft { stream, units: vec![unit], after: needed });
                part_of[unit] = part;
                last.insert(stream, (part, !transfer));
            }
        }
    }
    parts
}

fn raise(clock: &mut Clock, stream: StreamKey, passed: usize) {
    let known = clock.entry(stream).or_insert(passed);
    *known = passed.max(*known);
}

/// The order of steps: their positions among the kept ones, part by part, and for each part its range in that order.
pub(super) fn order(parts: &[Draft], units: &[Range<usize>]) -> (Vec<usize>, Vec<Range<usize>>) {
    let (mut order, mut ranges) = (Vec::new(), Vec::with_capacity(parts.len()));
    for part in parts {
        let begin = order.len();
        order.extend(part.units.iter().flat_map(|&unit| units[unit].clone()));
        ranges.push(begin..order.len());
    }
    (order, ranges)
}
