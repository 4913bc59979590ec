//! A compiled program as a graph in the language of Graphviz.

use std::fmt::Write as _;

use crate::ir::program::Work;
use crate::plan::compiled::{Compiled, Located};
use crate::show::dependences::DependenceKind;
use crate::show::edges::{Edge, KeptBy};
use crate::show::orders::OrderedSteps;

impl Compiled {
    /// The steps and their [edges](Compiled::edges): solid where a step reads what an earlier one writes, else dashed where it writes what an earlier one
    /// reads, else dotted where both write, bold where the recording asks for the order alone; black where one thread runs both, blue where another lane
    /// of the segment waits, red where a stream waits for an event of another. A frame is around the steps of a block or of a critical section, and around
    /// steps that run together. `dot -Tsvg` draws it.
    pub fn dot(&self) -> String {
        let mut text = format!("digraph \"{}\" {{\n  node [shape=box];\n", escaped(&self.program.name));
        let mut frames = 0;
        let mut open = |text: &mut String, label: &str| {
            frames += 1;
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  subgraph cluster{frames} {{ label=\"{label}\";");
        };
        for (position, step) in self.steps().enumerate() {
            if matches!(step.work, Work::Else | Work::End) {
                text.push_str("  }\n");
            }
            if matches!(step.work, Work::If | Work::Else | Work::While) {
                open(&mut text, step.work.name());
            }
            if let Work::SectionBegin(section) = step.work {
                open(&mut text, &escaped(&format!("section over {section}")));
            }
            if self.fused.iter().any(|fused| fused.steps.start == position) {
                open(&mut text, "run together");
            }
            let mut output = match step.work {
                Work::Function(function) => format!(" {}", function.name().escape_default()),
                _ => String::new(),
            };
            let writes = |operand: &&Located<'_>| operand.access.writes() && step.work.section().is_none();
            for operand in step.operands.iter().filter(writes) {
                let dims: Vec<String> = operand.layout.shape().dims().iter().map(usize::to_string).collect();
                let _ = write!(output, "\\n{}[{}]", operand.dtype, dims.join(","));
            }
            let _ = writeln!(text, "  s{position} [label=\"%{position} {}{output}\"];", step.work.name());
            let ends_group = self.fused.iter().any(|fused| fused.steps.end == position + 1);
            if ends_group || matches!(step.work, Work::SectionEnd(_)) {
                text.push_str("  }\n");
            }
        }
        let dependences = self.dependences();
        let orders = self.ordered_steps(&dependences);
        for Edge { from, to, dependences, kept_by } in self.edges_of(&dependences, &orders) {
            let Some(kind) = dependences.iter().map(|it| it.kind).min() else { continue }; // below
            let style = match kind {
                DependenceKind::ReadAfterWrite => "solid",
                DependenceKind::WriteAfterRead => "dashed",
                DependenceKind::WriteAfterWrite => "dotted",
            };
            let color = match kept_by {
                KeptBy::SameThread => "black",
                KeptBy::OtherThread(_) => "blue",
                KeptBy::Events(_) => "red",
            };
            let uses = escaped(&self.uses_of(&dependences).join("\n")).replace('\n', "\\n");
            let _ = writeln!(text, "  s{from} -> s{to} [label=\"{uses}\", style={style}, color={color}];");
        }
        for (number, OrderedSteps { lasts, firsts }) in orders.into_iter().enumerate() {
            let mut edge = |from: &str, to: &str| {
                let _ = writeln!(text, "  {from} -> {to} [label=\"order\", style=bold];");
            };
            let nodes = |positions: &[usize]| -> Vec<String> { positions.iter().map(|it| format!("s{it}")).collect() };
            let (lasts, firsts) = (nodes(&lasts), nodes(&firsts));
            if lasts.len().min(firsts.len()) <= 1 {
                lasts.iter().for_each(|last| firsts.iter().for_each(|first| edge(last, first)));
                continue;
            }
            // A point in place of an edge for each pair.
            let point = format!("o{number}");
            lasts.iter().for_each(|last| edge(last, &point));
            firsts.iter().for_each(|first| edge(&point, first));
            let _ = writeln!(text, "  {point} [shape=point];");
        }
        text.push_str("}\n");
        text
    }
}

fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"")
}
