//! The forms in which `streamvm compile` prints a compiled program: passes, memory, and plan and memory as JSON. Plans, graphs and recorded
//! programs print themselves.

use std::time::Duration;

use serde_json::{Value, json};

use crate::base::engine::{
    BufferRole, Compiled, CompiledStep, Dependence, DeviceId, Edge, Executable, FusedBy, KeptBy, Located, PassReport,
    Program, SegmentBranch, StepTime, Storage, ValuePlace,
};
use crate::base::printable::json_without_controls;
use crate::command::report::table;

/// A form in which `streamvm compile` prints a program.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Show {
    /// The program as it was recorded, as text that `streamvm compile` reads again.
    Program,
    /// The passes of the compiler, each with its changes.
    Passes,
    /// Buffers and steps.
    Plan,
    /// The values with their lifetimes and places in memory.
    Memory,
    /// A picture of the arenas: who lies where, from which step to which.
    Picture,
    /// The dependences of the steps, without those that follow from others, and what keeps each.
    Edges,
    /// The steps and their edges, for Graphviz.
    Dot,
}

/// A compiled program, and what was reported on the way.
pub(crate) struct Shown {
    pub(crate) recorded: Program,
    pub(crate) compiled: Compiled,
    pub(crate) passes: Vec<PassReport>,
}

/// A line for each pass of the compiler, with its changes below.
pub(crate) fn passes(shown: &Shown) -> String {
    let mut text = format!("passes of program {}\n", shown.recorded.name);
    for pass in &shown.passes {
        text += &format!("{}: {}\n", pass.pass, pass.summary);
        for line in &pass.details {
            text += format!("  {line}").trim_end();
            text.push('\n');
        }
    }
    text
}

/// A line for each value, then one for each figure of the arena.
pub(crate) fn memory(compiled: &Compiled) -> String {
    let rows: Vec<Vec<String>> = compiled
        .places()
        .iter()
        .map(|place| {
            let offset = offset(compiled, place).map_or("-".to_owned(), |offset| offset.to_string());
            let numbers = [place.lower, place.upper, place.bytes].map(|number| number.to_string());
            let texts = [place.name.clone(), memory_name(compiled, place).to_owned()];
            texts.into_iter().chain(numbers).chain([offset]).collect()
        })
        .collect();
    let (bytes, bound) = (compiled.arena_bytes(), compiled.arena_lower_bound());
    format!("memory of program {}\n", compiled.program().name)
        + &table(&["value", "memory", "lower", "upper", "bytes", "offset"], &rows, 2)
        + &format!("\npeak         {bytes} bytes\nlower bound  {bound} bytes\nratio        {:.4}\n", ratio(compiled))
        + &format!("ended        {}\n", ended(compiled))
}

/// A line for each step that a CPU has run, those that took longest first: how often it ran, and how long that took in microseconds. Steps that run
/// together have one line.
pub(crate) fn times(executable: &Executable) -> String {
    let compiled = executable.compiled();
    let mut times = executable.step_times();
    times.sort_by_key(|time| std::cmp::Reverse(time.time));
    let all = times.iter().map(|time| time.time).sum::<Duration>().as_secs_f64();
    let line = |time: &StepTime| {
        let micros = time.time.as_secs_f64() * 1e6;
        let names: Vec<&str> = compiled.steps_of(time.steps.clone()).map(|step| step.work.name()).collect();
        vec![
            format!("%{}", time.steps.start),
            names.join(" "),
            time.runs.to_string(),
            format!("{micros:.1}"),
            format!("{:.1}", if time.runs == 0 { 0.0 } else { micros / time.runs as f64 }),
            format!("{:.1}", if all == 0.0 { 0.0 } else { time.time.as_secs_f64() / all * 100.0 }),
        ]
    };
    let rows: Vec<Vec<String>> = times.iter().map(line).collect();
    format!("steps of program {}\n", compiled.program().name)
        + &table(&["step", "work", "runs", "us", "us each", "%"], &rows, 2)
}

/// An array with an object for each program: its name, its devices, and `plan`, `memory` and `edges` if they are shown.
pub(crate) fn json(all: &[Shown], show: &[Show]) -> String {
    let objects = all.iter().map(|Shown { compiled, .. }| {
        let devices: Vec<String> = compiled.devices().iter().map(DeviceId::to_string).collect();
        let mut object = json!({ "program": compiled.program().name, "devices": devices });
        if show.contains(&Show::Plan) {
            object["plan"] = plan_json(compiled);
        }
        if show.contains(&Show::Memory) {
            object["memory"] = memory_json(compiled);
        }
        if show.contains(&Show::Edges) {
            object["edges"] = compiled.edges().iter().map(|edge| edge_json(compiled, edge)).collect();
        }
        object
    });
    json_without_controls(format!("{:#}\n", Value::Array(objects.collect())))
}

fn plan_json(compiled: &Compiled) -> Value {
    let buffers = compiled.buffers().iter().enumerate().map(|(index, buffer)| {
        json!({
            "name": compiled.buffer_name(index),
            "role": role(compiled, index),
            "access": format!("{:?}", buffer.access).to_lowercase(),
            "bytes": buffer.bytes,
        })
    });
    let steps = compiled.steps().map(|CompiledStep { work, operands, number, .. }| {
        json!({ "work": work.name(), "number": number, "operands": operands.iter().map(operand_json).collect::<Vec<_>>() })
    });
    let fused = compiled.fused().iter().map(|fused| match fused.by {
        FusedBy::Blocks(block) => json!({ "lower": fused.steps.start, "upper": fused.steps.end, "block": block }),
        FusedBy::Kernel { .. } => json!({ "lower": fused.steps.start, "upper": fused.steps.end, "kernel": true }),
    });
    let segments = compiled.segments().iter().map(|segment| {
        let branch = |branch: &SegmentBranch| {
            let SegmentBranch { steps, lane, after } = branch;
            json!({ "lane": lane, "lower": steps.start, "upper": steps.end, "after": after })
        };
        json!({
            "stream": segment.stream.to_string(),
            "lower": segment.steps.start,
            "upper": segment.steps.end,
            "after": segment.after,
            "branches": segment.branches.iter().map(branch).collect::<Vec<_>>(),
        })
    });
    json!({
        "buffers": buffers.collect::<Vec<_>>(),
        "steps": steps.collect::<Vec<_>>(),
        "together": fused.collect::<Vec<_>>(),
        "segments": segments.collect::<Vec<_>>(),
    })
}

fn operand_json(operand: &Located<'_>) -> Value {
    let (buffer, offset, scratch) = match operand.storage {
        Storage::Buffer { index, offset } => (Some(index), Some(offset), None),
        Storage::Scratch(piece) => (None, None, Some(piece)),
    };
    json!({
        "buffer": buffer,
        "offset": offset,
        "scratch": scratch,
        "access": format!("{:?}", operand.access).to_lowercase(),
        "dtype": operand.dtype.to_string(),
        "shape": operand.layout.shape().dims(),
        "strides": operand.layout.strides(),
        "first": operand.layout.offset(),
    })
}

fn memory_json(compiled: &Compiled) -> Value {
    let values = compiled.places().into_iter().map(|place| {
        let (memory, offset) = (memory_name(compiled, &place), offset(compiled, &place));
        let ValuePlace { name, lower, upper, bytes, .. } = place;
        json!({ "value": name, "memory": memory, "lower": lower, "upper": upper, "bytes": bytes, "offset": offset })
    });
    json!({
        "values": values.collect::<Vec<_>>(),
        "peak": compiled.arena_bytes(),
        "lower_bound": compiled.arena_lower_bound(),
        "ratio": ratio(compiled),
        "ended": ended(compiled),
    })
}

fn edge_json(compiled: &Compiled, edge: &Edge) -> Value {
    let uses = edge.dependences.iter().map(|Dependence { kind, buffer, .. }| {
        json!({ "kind": kind.to_string(), "buffer": (*buffer).map(|buffer| compiled.buffer_name(buffer)) })
    });
    let (kept_by, waits): (&str, &[(usize, usize)]) = match &edge.kept_by {
        KeptBy::SameThread => ("same thread", &[]),
        KeptBy::OtherThread(waits) => ("other thread", waits),
        KeptBy::Events(waits) => ("event", waits),
    };
    json!({ "from": edge.from, "to": edge.to, "uses": uses.collect::<Vec<_>>(), "kept_by": kept_by, "waits": waits })
}

/// Why the planner of memory stopped.
fn ended(compiled: &Compiled) -> &'static str {
    if compiled.arenas_are_optimal() { "proven best" } else { "budget used" }
}

fn role(compiled: &Compiled, buffer: usize) -> &'static str {
    match compiled.buffers()[buffer].role {
        BufferRole::Feed(_) => "feed",
        BufferRole::Parameter(_) => "param",
        BufferRole::Fetched(_) => "fetch",
        BufferRole::Own(_) => "value",
        BufferRole::Arena(_) => "arena",
        BufferRole::Flag(_) => "flag",
    }
}

fn memory_name(compiled: &Compiled, place: &ValuePlace) -> &'static str {
    match place.storage {
        Storage::Buffer { index, .. } => role(compiled, index),
        Storage::Scratch(_) => "scratch",
    }
}

/// The offset in the arena.
fn offset(compiled: &Compiled, place: &ValuePlace) -> Option<usize> {
    match place.storage {
        Storage::Buffer { index, offset } if matches!(compiled.buffers()[index].role, BufferRole::Arena(_)) => {
            Some(offset)
        }
        _ => None,
    }
}

/// How many times the lower bound the arena is.
fn ratio(compiled: &Compiled) -> f64 {
    match compiled.arena_lower_bound() {
        0 => 1.0,
        bound => compiled.arena_bytes() as f64 / bound as f64,
    }
}
