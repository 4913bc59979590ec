//! `streamvm check --dot`: a planned list as a graph in the language of Graphviz.

use std::collections::HashMap;
use std::fmt::Write as _;

use streamvm::instructions::{Kind, WaitFor};

use crate::base::engine::{InstructionList, StreamKey};

/// No reader and no layout of Graphviz follows more.
const MOST_DRAWN: usize = 10_000;

/// The instructions of a list, each with its line of the script, in a frame for each stream. Gray arrows lead along a stream, and red ones from what another stream waits for to the first
/// instruction after the wait. `dot -Tsvg` draws it.
///
/// # Errors
/// A message if there are too many instructions.
pub(crate) fn dot(list: &InstructionList) -> Result<String, String> {
    let count = list.len();
    if count > MOST_DRAWN {
        return Err(format!("the list has {count} instructions, and a graph is drawn of at most {MOST_DRAWN}"));
    }
    let mut streams: Vec<(StreamKey, String)> = Vec::new();
    let mut places: HashMap<StreamKey, usize> = HashMap::new();
    let mut edges = String::new();
    // The last instruction of each stream, what each event comes after, and what each stream waits for since its last instruction.
    let mut last: HashMap<StreamKey, usize> = HashMap::new();
    let mut events: HashMap<usize, usize> = HashMap::new();
    let mut waits: HashMap<StreamKey, Vec<usize>> = HashMap::new();
    for (line, instruction) in list.instructions().iter().enumerate() {
        let stream = instruction.stream;
        match &instruction.kind {
            Kind::Record(event) => {
                last.get(&stream).map(|last| events.insert(event.address(), *last));
            }
            Kind::Wait { target, .. } => {
                let source = match target {
                    WaitFor::Line(line) => Some(*line),
                    WaitFor::Event(event) => events.get(&event.address()).copied(),
                    // Of an earlier list.
                    WaitFor::Number(_) => None,
                };
                waits.entry(stream).or_default().extend(source);
            }
            kind => {
                let place = *places.entry(stream).or_insert(streams.len());
                if place == streams.len() {
                    streams.push((stream, String::new()));
                }
                let (name, site) = (escaped(kind.name()), escaped(&instruction.site.to_string()));
                // Writing to a String cannot fail.
                let _ = writeln!(streams[place].1, "    i{line} [label=\"%{line} {name}\\n{site}\"];");
                if let Some(before) = last.insert(stream, line) {
                    let _ = writeln!(edges, "  i{before} -> i{line} [color=gray];");
                }
                for source in waits.remove(&stream).unwrap_or_default() {
                    let _ = writeln!(edges, "  i{source} -> i{line} [color=red];");
                }
            }
        }
    }
    let mut text = String::from("digraph \"the plan\" {\n  node [shape=box];\n");
    for (place, (stream, nodes)) in streams.iter().enumerate() {
        let _ = writeln!(text, "  subgraph cluster{place} {{\n    label=\"{stream}\";\n{nodes}  }}");
    }
    Ok(text + &edges + "}\n")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
