//! What is told of a compiled program: passes, places of values, dependences, graph.

use streamvm_ep::{DType, DeviceId, MemoryKind, Shape};
use streamvm_instructions::{Critical, Error, InstructionsBuilder, Tensor};

use crate::plan::compiled::Storage;
use crate::show::dependences::DependenceKind::{ReadAfterWrite, WriteAfterRead, WriteAfterWrite};
use crate::{CompileOptions, Compiled, Program, Recorder, compile, compile_reporting, record};

const CPU: DeviceId = DeviceId::cpu(0);

fn recorded(f: impl FnOnce(&Recorder) -> Result<(), Error>) -> Program {
    record("p", f).expect("it can be recorded")
}

fn compiled(f: impl FnOnce(&Recorder) -> Result<(), Error>) -> Compiled {
    compile(recorded(f), &CompileOptions::default()).expect("it compiles")
}

fn parameter(r: &Recorder) -> Result<Tensor, Error> {
    r.parameter("w", &Tensor::unbound(CPU.into(), MemoryKind::Device, DType::F32, Shape::new(&[4, 4])?))
}

/// The lines of a plan about graphs.
fn too_small(options: &CompileOptions, f: impl FnOnce(&Recorder) -> Result<(), Error>) -> Vec<String> {
    let plan = compile(recorded(f), options).expect("it compiles").to_string();
    plan.lines().filter(|line| line.contains("calls of the driver")).map(str::to_owned).collect()
}

#[test]
fn a_plan_says_which_steps_on_a_gpu_are_too_few_for_a_graph() {
    let gpu = DeviceId::cuda(0);
    let products = |count: usize, device: DeviceId| {
        move |r: &Recorder| {
            let x = r.feed("x", device, DType::F32, &[4, 4])?;
            let y = (0..count).try_fold(x.clone(), |y, _| y.matmul(&x))?;
            r.fetch("y", &y)
        }
    };
    let default = CompileOptions::default;
    let said = |last: usize, least: usize| {
        let calls = last + 1;
        format!("%0 to %{last} are {calls} calls of the driver, too few for a graph (smallest_graph is {least}):")
    };
    assert_eq!(too_small(&default(), products(3, gpu)), [said(2, 4)]);
    assert_eq!(too_small(&default(), products(4, gpu)), Vec::<String>::new());
    assert_eq!(too_small(&CompileOptions { smallest_graph: 6, ..default() }, products(5, gpu)), [said(4, 6)]);
    // One call is never a graph, and neither is one of a CPU. Without graphs, the plan does not speak of them.
    let none: [Vec<String>; 4] = [
        too_small(&default(), products(1, gpu)),
        too_small(&default(), products(3, CPU)),
        too_small(&CompileOptions { capture: false, ..default() }, products(3, gpu)),
        too_small(&CompileOptions { smallest_graph: 1, ..default() }, products(3, gpu)),
    ];
    assert!(none.iter().all(Vec::is_empty), "{none:?}");
    // Two products, a kernel that may fail, and two additions that are one kernel: the plan names the steps on both sides of the division that are several calls.
    let lines = too_small(&default(), |r| {
        let (x, n) = (r.feed("x", gpu, DType::F32, &[4, 4])?, r.feed("n", gpu, DType::I32, &[4, 4])?);
        let y = x.matmul(&x)?.matmul(&x)?;
        r.fetch("y", &y)?;
        let quotient = (&n / &n)?;
        r.fetch("z", &(&(&quotient + &n)? + &n)?)
    });
    assert_eq!(lines, [said(1, 4)]);
    // A product, and five steps that are one kernel.
    let with_fused = too_small(&default(), |r| {
        let x = r.feed("x", gpu, DType::F32, &[4, 4])?;
        let y = (0..5).try_fold(x.matmul(&x)?, |y, _| y.neg())?;
        r.fetch("y", &y)
    });
    let calls = "2 calls of the driver where they are fused, too few for a graph (smallest_graph is 4):";
    assert_eq!(with_fused, [format!("%0 to %5 are {calls}")]);
    // The device decides about a branch, so steps beside it are in its graph.
    let beside_a_branch = too_small(&default(), |r| {
        let (x, yes) = (r.feed("x", gpu, DType::F32, &[4, 4])?, r.feed("yes", gpu, DType::Bool, &[])?);
        let y = x.matmul(&x)?.matmul(&x)?;
        r.if_true(&yes, || y.copy_from(&x))?;
        r.fetch("y", &y)
    });
    assert_eq!(beside_a_branch, Vec::<String>::new());
}

/// The summaries of the passes, and the details of those that are not the program or the plan.
#[test]
fn each_pass_reports_what_it_did() {
    let program = recorded(|r| {
        let x = r.feed("x", CPU, DType::F32, &[16])?;
        x.exp()?;
        let y = x.neg()?.relu()?;
        r.fetch("y", &y.sum(&[])?)?;
        r.fetch("x", &x)
    });
    let mut told = String::new();
    let reported = compile_reporting(&program, &CompileOptions::default(), &mut |pass| {
        told += &format!("{}: {}\n", pass.pass, pass.summary);
        if !matches!(pass.pass, "check" | "emit") {
            pass.details.iter().for_each(|line| told += &format!("  {line}\n"));
        }
    });
    assert_eq!(reported, compile(&program, &CompileOptions::default()), "reports change nothing");
    assert_eq!(
        told,
        "\
check: 5 values, 4 steps, 1 feed, 0 parameters, 2 fetches
fetched_copies: adds 1 copy
  %4 copies x to the fetch x
unfetched: removes 1 of 5 steps
  %0 exp
streams: 4 units on 1 stream
  compute@cpu:0:0: 4 units
dependences: none are needed: one stream runs all units in their order
lanes: all units on one lane
segments: 1 segment
  segment 0 on compute@cpu:0:0: 4 steps
merge: no segments are merged
homes: 2 values in arenas, 0 in memory of their own
  %1 in arena 0
  %2 in arena 0
lifetimes: 5 values are used, each from its first step up to the one behind its last
  x 0..4
  %1 0..2
  %2 1..3
  y 2..3
  x 3..4
in_place: 1 value takes over memory
  %2 takes over the memory of %1
fuse: no steps run together
arena: 2 values in 64 bytes, lower bound 64 bytes
  %1 at 0
  %2 at 0
emit: 4 buffers, 4 steps
"
    );
}

/// Two chains on two lanes of a simulated device, a copy to a CPU, and a function that an explicit order puts after another one.
#[test]
fn passes_report_streams_dependences_lanes_and_homes() {
    let program = recorded(|r| {
        let sim = DeviceId::sim(0);
        let x = r.feed("x", sim, DType::F32, &[16, 16])?;
        let (a, b) = (x.matmul(&x)?, x.exp()?);
        let c = (&a.matmul(&a)? + &b.exp()?)?.to(CPU)?;
        r.host_fn("first", CPU, || Ok(()))?;
        r.host_fn("second", CPU, || Ok(()))?;
        r.fetch("y", &c.neg()?)
    });
    let mut told = String::new();
    let options = CompileOptions { lanes: 2, hand_over_ns: 0, ..CompileOptions::default() };
    let compiled = compile_reporting(&program, &options, &mut |pass| {
        if ["streams", "dependences", "lanes", "homes"].contains(&pass.pass) {
            told += &format!("{}: {}\n", pass.pass, pass.summary);
            pass.details.iter().for_each(|line| told += &format!("  {line}\n"));
        }
    });
    compiled.expect("it compiles");
    assert_eq!(
        told,
        "\
streams: 9 units on 3 streams
  compute@cpu:0:0: 3 units
  compute@sim:0:0: 5 units
  d2h@sim:0:0: 1 unit
dependences: 8 dependences, 2 of them explicit
  %2 after %0
  %3 after %1
  %4 after %2, %3
  %5 after %4
  %7 after %6 (explicit)
  %8 after %5, %7 (explicit)
lanes: 2 of 9 units on other lanes than the first
  %0 on lane 1
  %2 on lane 1
homes: 3 values in arenas, 3 in memory of their own
  %0 in arena 0
  %1 in arena 1
  %3 in arena 1
  %2 has memory of its own
  %4 has memory of its own
  %5 has memory of its own
"
    );
}

/// Bytes that a step between overwrites give no dependence, also where the views have other sizes; disjoint columns give none either.
#[test]
fn dependences_are_those_of_the_bytes() {
    let plan = compiled(|r| {
        let w = parameter(r)?;
        let mut builder = InstructionsBuilder::new();
        builder.fill(&w, 1.0)?; // 0
        builder.fill(&w.slice(1, 0..2)?, 2.0)?; // 1: left columns
        builder.fill(&w.slice(1, 2..4)?, 3.0)?; // 2: right columns
        let left = builder.copy(&w.slice(1, 0..2)?, CPU)?; // 3
        builder.fill(&w.slice(1, 0..2)?, 4.0)?; // 4
        builder.copy_into(&left, &w.slice(1, 2..4)?)?; // 5
        r.submit(builder.finish())
    });
    let found: Vec<_> = plan.dependences().iter().map(|found| (found.from, found.to, found.kind)).collect();
    assert_eq!(
        found,
        [
            (0, 1, WriteAfterWrite),
            (0, 2, WriteAfterWrite),
            (1, 3, ReadAfterWrite),
            (1, 4, WriteAfterWrite),
            (2, 5, WriteAfterWrite),
            (3, 4, WriteAfterRead),
            (3, 5, ReadAfterWrite),
        ]
    );
}

/// A value of 64 bytes ends, and a smaller one begins in its memory: what reads that one depends on its writer alone.
#[test]
fn memory_that_is_used_again_depends_on_its_last_writer() {
    let plan = compiled(|r| {
        let x = r.feed("x", CPU, DType::F32, &[16])?;
        let mut sum = x.exp()?.sum(&[])?; // 0, 1
        for _ in 0..2 {
            sum = (&r.full(CPU, DType::F32, &[], 1.0)? * &sum)?;
        }
        r.fetch("y", &sum)
    });
    for found in plan.dependences().iter().filter(|found| found.kind == ReadAfterWrite) {
        let (reader, writer) = (&plan.step(found.to), &plan.step(found.from));
        let written = writer.operands.last().expect("it writes").value;
        let reads = reader.operands.iter().any(|operand| operand.access.reads() && operand.value == written);
        assert!(reads, "{found:?} in\n{plan}");
    }
}

#[test]
fn places_have_life_times_and_offsets() {
    let plan = compiled(|r| {
        let x = r.feed("x", CPU, DType::F32, &[16])?;
        // The sum writes over no input, because the softmax is read again; the product writes over the sum.
        let soft = x.softmax(0)?;
        let sum = (&x + &soft)?;
        r.fetch("y", &(&sum * &soft)?.sum(&[])?)
    });
    let told: Vec<String> = plan
        .places()
        .iter()
        .map(|place| {
            let at = match place.storage {
                Storage::Buffer { offset, .. } => format!("+{offset}"),
                Storage::Scratch(piece) => format!(" in scratch{piece}"),
            };
            format!("{} {}..{} {}{at}", place.name, place.lower, place.upper, place.bytes)
        })
        .collect();
    assert_eq!(told, ["x 0..2 64+0", "%0 0..3 64+0", "%1 1..3 64+64", "%2 2..4 64+64", "y 3..4 4+0"]);
}

#[test]
fn the_graph_names_steps_and_dependences() {
    let plan = compiled(|r| {
        let w = parameter(r)?;
        let mut builder = InstructionsBuilder::new();
        let y = builder.copy(&w, CPU)?;
        builder.copy_into(&y, &w)?;
        r.submit(builder.finish())
    });
    let mut program = plan.program().clone();
    program.name = "a \"quoted\\\" name".to_owned();
    let named = compile(&program, &CompileOptions::default()).expect("it compiles");
    assert_eq!(
        named.dot(),
        r#"digraph "a \"quoted\\\" name" {
  node [shape=box];
  s0 [label="%0 copy\nf32[4,4]"];
  s1 [label="%1 copy\nf32[4,4]"];
  s0 -> s1 [label="read after write of arena\nwrite after read of w", style=solid, color=black];
}
"#
    );
}

/// Three steps run together on blocks of 8 elements; the sum reads what they write. Values that only the three use are in scratch memory.
#[test]
fn steps_that_run_together_are_told() {
    let program = recorded(|r| {
        let x = r.feed("x", CPU, DType::F32, &[16])?;
        let y = (&x.exp()?.neg()? + &x)?;
        r.fetch("y", &y.sum(&[])?)
    });
    let mut told = Vec::new();
    let options = CompileOptions { block: 8, ..CompileOptions::default() };
    let plan = compile_reporting(&program, &options, &mut |pass| {
        if pass.pass == "fuse" {
            told.push(pass.summary);
            told.extend(pass.details);
        }
    })
    .expect("it compiles");
    assert_eq!(told, ["1 group run together", "%0 %1 %2 run together", "%0 in scratch0", "%1 in scratch1"], "{plan}");
    let lives: Vec<_> = plan.places().iter().map(|place| (place.name.clone(), place.lower, place.upper)).collect();
    let lives: Vec<_> = lives.iter().map(|(name, lower, upper)| (name.as_str(), *lower, *upper)).collect();
    assert_eq!(lives, [("x", 0, 3), ("%0", 0, 2), ("%1", 1, 3), ("%2", 0, 4), ("y", 3, 4)]);
    let dot = plan.dot();
    for line in [
        "  subgraph cluster1 { label=\"run together\";",
        "  s0 -> s1 [label=\"read after write of scratch\", style=solid, color=black];",
        "  s2 -> s3 [label=\"read after write of arena\", style=solid, color=black];",
    ] {
        assert!(dot.lines().any(|found| found == line), "{line}\n{dot}");
    }
}

/// A step of a block might be skipped: steps after the block depend on the writer before it, too. The graph has a frame for each block.
#[test]
fn blocks_are_told() {
    let text = "\
program p
t0 = tensor cpu:0 bool[]
t1 = tensor cpu:0 f32[4]
%0 fill compute@cpu:0:0 1 -> t1 f32[4]
if t0
%1 fill compute@cpu:0:0 2 -> t1 f32[4]
else
%2 fill compute@cpu:0:0 3 -> t1 f32[4]
end
%3 call compute@cpu:0:0 neg t1 -> t2 f32[4]
feed c t0
param w t1
fetch y t2
";
    let program = Program::parse(text).expect("a program");
    let plan = compile(&program, &CompileOptions::default()).expect("it compiles");
    let read: Vec<usize> =
        plan.dependences().iter().filter(|found| found.kind == ReadAfterWrite).map(|found| found.from).collect();
    assert_eq!(read, [0, 2, 4], "{plan}");
    let dot = plan.dot();
    let frames: Vec<&str> = dot.lines().filter(|line| line.contains("subgraph") || *line == "  }").collect();
    assert_eq!(frames, ["  subgraph cluster1 { label=\"if\";", "  }", "  subgraph cluster2 { label=\"else\";", "  }"]);
}

/// One of the earlier steps depends on the other, so that alone is ordered; of two independent ones on both sides, both are, by way of a point. A removed
/// step orders nothing. A critical section has a frame.
#[test]
fn the_graph_has_orders_and_sections() {
    let port = Critical::new("a \"port\"");
    let plan = compiled(|r| {
        let x = r.feed("x", CPU, DType::F32, &[16])?;
        let (y, negated) = r.after(&[], || x.neg()?.exp())?;
        let ((), unneeded) = r.after(&[], || x.abs().map(drop))?;
        let ((), called) = r.after(&[&negated, &unneeded], || r.host_fn("open \"it\"", CPU, || Ok(())))?;
        let section = r.begin_section(&[&port], &[&y])?;
        let (z, both) = r.after(&[&called], || Ok((x.relu()?, x.tanh()?)))?;
        r.end_section(section, &[])?;
        let (w, _) = r.after(&[&both], || Ok((x.sqrt()?, x.log()?)))?;
        let all = [("y", y), ("z0", z.0), ("z1", z.1), ("w0", w.0), ("w1", w.1)];
        all.iter().try_for_each(|(name, tensor)| r.fetch(*name, tensor))
    });
    assert_eq!(
        plan.dot(),
        r#"digraph "p" {
  node [shape=box];
  s0 [label="%0 neg\nf32[16]"];
  s1 [label="%1 exp\nf32[16]"];
  s2 [label="%2 fn open \"it\""];
  subgraph cluster1 { label="section over \"a \\\"port\\\"\"";
  s3 [label="%3 begin section"];
  s4 [label="%4 relu\nf32[16]"];
  s5 [label="%5 tanh\nf32[16]"];
  s6 [label="%6 end section"];
  }
  s7 [label="%7 sqrt\nf32[16]"];
  s8 [label="%8 log\nf32[16]"];
  s0 -> s1 [label="read after write of arena", style=solid, color=black];
  s1 -> s3 [label="read after write of y", style=solid, color=red];
  s1 -> s2 [label="order", style=bold];
  s2 -> s4 [label="order", style=bold];
  s2 -> s5 [label="order", style=bold];
  s4 -> o3 [label="order", style=bold];
  s5 -> o3 [label="order", style=bold];
  o3 -> s7 [label="order", style=bold];
  o3 -> s8 [label="order", style=bold];
  o3 [shape=point];
}
"#
    );
}
