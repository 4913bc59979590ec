//! A compiled program as a graph in the language of Graphviz.

use std::fmt::Write as _;

use crate::compile::compiled::Compiled;
use crate::compile::dependences::{Dependence, DependenceKind};

impl Compiled {
    /// The steps and their [dependences](Compiled::dependences): solid where a step reads what an earlier one writes, dashed where it writes
    /// what an earlier one reads, dotted where both write. A frame is around steps that run together. `dot -Tsvg` draws it.
    pub fn dot(&self) -> String {
        let mut text = format!("digraph \"{}\" {{\n  node [shape=box];\n", escaped(&self.program.name));
        for (position, step) in self.steps.iter().enumerate() {
            let output = step.operands.last().map_or_else(String::new, |output| {
                let dims: Vec<String> = output.layout.shape().dims().iter().map(usize::to_string).collect();
                format!("\\n{}[{}]", output.dtype, dims.join(","))
            });
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  s{position} [label=\"%{position} {}{output}\"];", step.work.name());
        }
        for (number, fused) in self.fused.iter().enumerate() {
            let steps: Vec<String> = fused.steps.clone().map(|step| format!("s{step};")).collect();
            let _ = writeln!(text, "  subgraph cluster{number} {{ label=\"run together\"; {} }}", steps.join(" "));
        }
        for Dependence { from, to, kind, buffer } in self.dependences() {
            let (kind, style) = match kind {
                DependenceKind::ReadAfterWrite => ("read after write", "solid"),
                DependenceKind::WriteAfterRead => ("write after read", "dashed"),
                DependenceKind::WriteAfterWrite => ("write after write", "dotted"),
            };
            let buffer = buffer.map_or_else(|| "scratch".to_owned(), |buffer| escaped(&self.buffer_name(buffer)));
            let _ = writeln!(text, "  s{from} -> s{to} [label=\"{kind}\\n{buffer}\", style={style}];");
        }
        text.push_str("}\n");
        text
    }
}

fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"")
}
