//! Refused calls name their line, and the scope of the caller, whatever the reason.

use std::time::Duration;

use streamvm::program::{CompileOptions, Program, compile, compile_reporting};
use streamvm::{
    Critical, DType, DeviceId, Fetches, Generator, InstructionList, InstructionsBuilder, Lane, Mode, Op, Params, Place,
    Shape, Site, Tensor, TimeLimit, Vm, scope,
};
use streamvm_tests::{CPU, ClosedGate};

fn vm() -> Vm {
    Vm::builder().build().expect("an engine")
}

/// Makes each call, which must be refused with an error that ends with the line of the call and the scope.
macro_rules! each_is_told_of_its_line {
    ($scope:expr, $($call:expr),* $(,)?) => {{
        let mut calls = 0;
        $(
            let refused = $call.map(drop);
            let Err(error) = refused else { panic!("{} is not refused", stringify!($call)) };
            let line = line_of(stringify!($call));
            let place = format!("texts/refused.rs:{line}:");
            let text = error.to_string();
            let (before, after) = text.split_once(&place).unwrap_or_else(|| panic!("{text} has no {place}"));
            assert!(after.contains(concat!(" in ", $scope)), "{before}{place}{after}");
            assert!(!text.contains("src/"), "{text} names a line of the engine");
            calls += 1;
        )*
        calls
    }};
}

/// The line of this file that holds `call` and nothing else but a comma.
fn line_of(call: &str) -> u32 {
    let plain = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    let wanted = plain(call);
    let mut lines = include_str!("refused.rs").lines().zip(1..);
    let found = lines.find(|(text, _)| plain(text).trim_end_matches(',') == wanted);
    found.unwrap_or_else(|| panic!("{call} has no line of its own")).1
}

fn doubled(vm: &Vm) -> Program {
    vm.record("doubled", |r| {
        let x = r.feed("x", CPU, DType::F32, &[2])?;
        r.fetch("y", &(&x + &x)?)
    })
    .expect("it can be recorded")
}

/// A program that fetches what nothing writes.
fn unwritten() -> Program {
    let mut program = Program::new("unwritten");
    let (place, memory) = (CPU.into(), streamvm::MemoryKind::Device);
    let role = streamvm::program::ValueRole::Computed;
    program.values.push(streamvm::program::Value {
        role,
        place,
        memory,
        dtype: DType::F32,
        shape: Shape::SCALAR,
        varying: None,
    });
    let (value, layout) = (streamvm::program::ValueId(0), streamvm::Layout::SCALAR);
    program.fetches.push(streamvm::program::Port {
        name: "y".to_owned(),
        value,
        layout,
        varying: None,
        site: Site::caller(),
    });
    program
}

#[test]
fn calls_that_do_not_fit_are_told_of_their_line() {
    let (vm, other) = (vm(), vm());
    let x = vm.ones(CPU, DType::F32, &[2, 5]).expect("a tensor");
    let whole = vm.ones(CPU, DType::I32, &[2]).expect("a tensor");
    let foreign = other.ones(CPU, DType::F32, &[2, 5]).expect("a tensor");
    let host = vm.from_slice(&[1.0f32; 10], &[2, 5]).expect("a tensor");
    let unknown = Tensor::unbound(CPU.into(), streamvm::MemoryKind::Device, DType::F32, x.shape());
    let (image, weight) = (x.unsqueeze(0).expect("a view"), x.unsqueeze(0).expect("a view"));
    let generator = Generator::new(1);
    let far = DeviceId::cpu(7);
    let mut b = InstructionsBuilder::new();
    let executable = vm.compile(doubled(&vm), &[], &CompileOptions::default()).expect("it compiles");
    let run = executable.run(&[("x", &vm.ones(CPU, DType::F32, &[2]).expect("a tensor"))]).expect("it runs");
    let _model = vm.scope("model");
    let _layer = scope("layer 3");
    let eager = each_is_told_of_its_line!(
        "model > layer 3",
        x.matmul(&x),
        x.add(&whole),
        &x + &whole,
        &x * &foreign,
        &whole * 0.5,
        &whole / &x,
        x.add(&host),
        host.relu(),
        x.exp().and_then(|y| y.sum(&[7])),
        x.op(Op::Add, &[], Params::default()),
        x.softmax(9),
        x.to(far),
        x.copy_from(&whole),
        whole.fill(0.5),
        whole.clamp(0.5, 1),
        x.cast(DType::I64).and_then(|y| y.exp()),
        x.reshape(&[3, 3]),
        Tensor::cat(&[&x, &whole], 0),
        Tensor::stack(&[&x, &whole], 0),
        Tensor::cat(&[], 0),
        Tensor::stack(&[&x, &x], 9),
        x.attention(&x, &x, Some(&host)),
        x.to_vec::<i64>(),
        x.to_scalar::<f32>(),
        unknown.wait(),
        unknown.to_vec::<f32>(),
        unknown.relu(),
        unknown.ready(),
        unknown.on_passed(drop),
        x.dropout(&generator, 2.0),
        x.group_norm(7, &x, &x, 1e-5),
        x.conv1d(&x, streamvm::Convolution::default()),
        image.conv1d(&weight.permute(&[0, 2, 1]).expect("a view"), streamvm::Convolution::default()),
        x.sort(5, false),
        x.topk(99, 0, true),
        x.repeat(&[1]),
        x.roll(1, 5),
        x.masked_fill(&x, 1.0),
    );
    let views = each_is_told_of_its_line!(
        "model > layer 3",
        x.permute(&[0, 0]),
        x.transpose(0, 7),
        x.squeeze(0),
        x.unsqueeze(9),
        x.slice(0, 1..7),
        x.split(&[1, 3], 1),
        x.chunk(0, 0),
        x.broadcast_to(&[3, 5]),
        x.try_reshape(&[7]),
        x.view(*vm.ones(CPU, DType::F32, &[99]).expect("a tensor").layout()),
    );
    let made = each_is_told_of_its_line!(
        "model > layer 3",
        vm.from_slice(&[1.0f32; 3], &[2, 2]),
        vm.from_slice_pinned(far, &[1.0f32; 4], &[2, 2]),
        vm.full(CPU, DType::U8, &[2], 300),
        vm.full(far, DType::U8, &[2], 3),
        vm.zeros(CPU, DType::U8, &[usize::MAX, 2]),
        vm.arange(CPU, DType::I32, 0, 4, 0),
        vm.linspace(CPU, DType::I32, 0.0, 1.0, 2),
        vm.rand(&generator, CPU, DType::I32, &[2]),
        vm.eye(CPU, DType::F32, usize::MAX, 2),
        vm.call_fn("f", CPU, [x.read(), x.write()], |_| Ok(())),
        vm.call_fn("f", far, [], |_| Ok(())),
        vm.call_fn_on_workers("f", CPU, [x.read(), x.write()], |_| Ok(())),
        vm.push("f", [foreign.read()], || Ok(())),
        vm.enter_section(&[], &[]),
        vm.enter_section(&[&Critical::new("port")], &[&foreign]),
    );
    let built = each_is_told_of_its_line!(
        "model > layer 3",
        b.matmul(&x, &x),
        b.copy_into(&x, &whole),
        b.fill(&whole, 0.5),
        b.full(CPU, DType::U8, &[2], 300),
        b.op_into(Op::Add, &[&x, &x], Params::default(), &whole),
        b.call_fn("f", CPU, [x.read(), x.write()], |_| Ok(())),
        b.begin_section(&[], &[]),
        b.topk(&x, 99, 0, true),
        b.arange(CPU, DType::I32, 0, 4, 0),
    );
    let programs = each_is_told_of_its_line!(
        "model > layer 3",
        vm.compile(doubled(&vm), &[("w", &x)], &CompileOptions::default()),
        vm.compiled(doubled(&vm), &[("w", &x)], &CompileOptions::default()),
        executable.run(&[]),
        executable.run(&[("x", &x)]),
        executable.run_named("mine", &[("z", &x)]),
        run.tensor("z"),
        vm.record(" spaces ", |_| Ok(())),
        vm.compile(unwritten(), &[], &CompileOptions::default()),
        unwritten().check(),
        compile(unwritten(), &CompileOptions::default()),
        compile_reporting(unwritten(), &CompileOptions::default(), &mut |_| {}),
        executable.check_owner("it", &foreign),
    );
    assert!(
        vm.record("wrong", |r| {
            let y = r.feed("y", CPU, DType::F32, &[2, 5])?;
            let recorded = each_is_told_of_its_line!(
                "model > layer 3",
                y.matmul(&y),
                y.to_vec::<f32>(),
                y.wait(),
                &y + &foreign,
                r.feed("z", CPU, DType::F32, &[usize::MAX, 2]),
                r.fetch("w", &x),
                r.call(executable.compiled().program(), &[("x", &y)], &[]),
            );
            assert_eq!(recorded, 7);
            Ok(())
        })
        .is_ok()
    );
    assert_eq!([eager, views, made, built, programs], [38, 10, 15, 9, 12]);
    let (line, twice) = (
        line!() + 3,
        vm.record("twice", |r| {
            r.feed("x", CPU, DType::F32, &[2])?;
            r.feed("x", CPU, DType::F32, &[3]).map(drop)
        }),
    );
    let twice = twice.expect_err("a name is given twice").to_string();
    for part in
        [format!("the feed that tests/tests/texts/refused.rs:{line}:15 in"), format!("refused.rs:{}:15 in", line - 1)]
    {
        assert!(twice.contains(&part), "{twice}");
    }
    assert!(twice.contains("is called \"x\", as is the one that"), "{twice}");
    // A formatter is called by the standard library, so it does not know the line of the caller.
    let shown = unknown.to_string();
    assert!(
        shown.starts_with("<no submission has used the tensor f32[2,5] on cpu:0 yet") && !shown.contains("called at"),
        "{shown}"
    );
}

#[test]
fn calls_that_the_engine_refuses_are_told_of_their_line() {
    let vm = Vm::builder().max_instructions(4).build().expect("an engine");
    let x = vm.ones(CPU, DType::F32, &[2]).expect("a tensor");
    vm.wait_all().expect("it passes");
    let gate = ClosedGate::new();
    let held = vm.call_fn("held", CPU, [x.update()], gate.function()).expect("it is taken");
    let list = |lines: usize| {
        let mut b = InstructionsBuilder::new();
        (0..lines).for_each(|_| b.fill(&x, 1.0).expect("it is listed"));
        b.finish()
    };
    let _scope = vm.scope("full");
    let limit = TimeLimit(Duration::from_millis(20)).enter();
    let mut calls = each_is_told_of_its_line!(
        "full",
        x.wait(),
        held.wait(),
        vm.wait_all(),
        x.to_vec::<f32>(),
        vm.try_submit(list(4)),
        vm.submit(list(4)),
    );
    drop(limit);
    gate.open();
    vm.wait_all().expect("it passes");
    let mut bulk = vm.bulk(5);
    bulk.push("f", [], || Ok(())).expect("it is gathered");
    vm.close();
    calls += each_is_told_of_its_line!(
        "full",
        x.neg(),
        x.to(Place::Host),
        x.slice(0, 0..1).and_then(|x| x.exp()),
        vm.submit(list(1)),
        vm.submit(InstructionList::new()),
        vm.from_slice(&[1.0f32], &[1]),
        vm.push("f", [], || Ok(())),
        vm.call_fn("f", CPU, [], |_| Ok(())),
        vm.delete(&vm.var(), || ()),
        bulk.flush(),
        vm.enter_section(&[&Critical::new("port")], &[]),
    );
    assert_eq!(calls, 17);
}

/// Failures after the submission name the scope as well; so do plans of programs, profiles, traces and reports of pending work.
#[test]
fn failures_and_reports_name_the_scope() {
    let vm = Vm::builder().profile(true).build().expect("an engine");
    let failed = {
        let _layer = vm.scope("layer 7");
        vm.call_fn("breaks", CPU, [], |_| Err("it broke".into())).expect("it is taken").wait()
    };
    let text = failed.expect_err("it fails").to_string();
    assert!(text.contains(" in layer 7: it broke"), "{text}");
    let profile = vm.profile().expect("there is one");
    assert_eq!(profile.ops.iter().map(|op| op.scope.as_str()).collect::<Vec<_>>(), ["layer 7"], "{profile}");
    assert!(profile.to_string().contains("layer 7"), "{profile}");
    let gate = ClosedGate::new();
    {
        let _layer = vm.scope("layer 8");
        vm.call_fn("held", CPU, [], gate.function()).expect("it is taken");
    }
    gate.wait_entered(1);
    let report = vm.stall_report().to_string();
    assert!(report.contains(" in layer 8"), "{report}");
    gate.open();
    vm.wait_all().expect("it passes");
    let program = vm.record("divides", |r| {
        let x = r.feed("x", CPU, DType::I32, &[2])?;
        let _layer = scope("last layer");
        r.fetch("y", &x.div(&(&x - &x)?)?)
    });
    let executable = vm.compile(program.expect("recorded"), &[], &CompileOptions::default()).expect("it compiles");
    let run: Fetches = executable.run(&[("x", &vm.ones(CPU, DType::I32, &[2]).expect("a tensor"))]).expect("it runs");
    let text = run.wait().expect_err("it divides by zero").to_string();
    assert!(text.contains(" in last layer"), "{text}");
}

/// Calls on a lane and in inline mode keep their scope, and a thread does not see the scope of another.
#[test]
fn scopes_belong_to_their_thread() {
    let vm = Vm::builder().mode(Mode::Inline).build().expect("an engine");
    let x = vm.ones(CPU, DType::F32, &[2, 3]).expect("a tensor");
    let _scope = vm.scope("of the first thread");
    let _lane = Lane(1).enter();
    let text = |x: &Tensor| x.matmul(x).expect_err("the sizes differ").to_string();
    assert!(text(&x).ends_with(" in of the first thread)"), "{}", text(&x));
    let elsewhere = std::thread::scope(|threads| threads.spawn(|| text(&x)).join().expect("no panic"));
    assert!(!elsewhere.contains("first thread"), "{elsewhere}");
}
