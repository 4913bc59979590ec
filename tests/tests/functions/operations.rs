//! Functions that start an operation, which goes on after they have returned: on collective streams, and elsewhere.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use streamvm::ep::{Operation, Unfinished};
use streamvm::program::{CompileOptions, Recorder, StepFunction};
use streamvm::{Cause, DType, Error, FnContext, FnError, InstructionsBuilder, Lane, Mode, Tensor, TimeLimit, Vm};
use streamvm_tests::{CPU, Random, cases, engines, failure_of, no_races, threaded, within};
use streamvm_verify::{Trace, verify};

/// An operation that is over when its flag is set, or after a number of polls.
struct Waits {
    flag: Arc<AtomicBool>,
    polls: Option<u64>,
    then: fn() -> Result<bool, FnError>,
    /// Counts the operations that were dropped.
    dropped: Arc<AtomicU64>,
}

impl Operation for Waits {
    fn poll(&mut self) -> Result<bool, FnError> {
        self.polls = self.polls.map(|polls| polls.saturating_sub(1));
        if self.flag.load(Ordering::Acquire) || self.polls == Some(0) { (self.then)() } else { Ok(false) }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Release);
    }
}

#[derive(Clone, Default)]
struct Ends {
    flag: Arc<AtomicBool>,
    dropped: Arc<AtomicU64>,
}

impl Ends {
    fn waits(&self, polls: Option<u64>, then: fn() -> Result<bool, FnError>) -> Waits {
        Waits { flag: self.flag.clone(), polls, then, dropped: self.dropped.clone() }
    }
}

/// A function that writes a number, and starts an operation.
fn starts(
    operation: Waits,
    number: i32,
) -> impl for<'a, 'b> FnOnce(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + 'static {
    move |context| {
        context.writes.take::<i32>(0)?.fill(number);
        Err(Box::new(Unfinished(Box::new(operation))))
    }
}

fn tensor(vm: &Vm) -> Tensor {
    vm.full(CPU, DType::I32, &[4], 0).expect("a tensor")
}

/// Submits a function on a collective stream.
fn start(vm: &Vm, lane: u32, x: &Tensor, operation: Waits, number: i32) {
    let mut b = InstructionsBuilder::new();
    b.on_lane(lane).on_collective().call_fn("starts", CPU, [x.write()], starts(operation, number)).expect("a function");
    vm.submit(b.finish()).expect("a list");
}

#[test]
fn what_reads_the_result_comes_after_the_operation_in_every_mode() {
    for (name, vm) in engines() {
        let ends = Ends::default();
        let x = tensor(&vm);
        for number in 1..=20 {
            start(&vm, 0, &x, ends.waits(Some(5), || Ok(true)), number);
            let doubled = (&x + &x).expect("an op");
            let dropped = ends.dropped.clone();
            vm.call_fn("after", CPU, [doubled.read()], move |context| {
                let over = dropped.load(Ordering::Acquire);
                let sum: i32 = context.reads.get::<i32>(0)?.iter().sum();
                if over >= number as u64 && sum == 8 * number { Ok(()) } else { Err(format!("{over} {sum}").into()) }
            })
            .expect("a function");
        }
        assert_eq!(x.to_vec::<i32>().expect("it runs"), [20; 4], "{name}");
        vm.wait_all().expect("they run");
        no_races(&vm);
    }
}

/// Drawn kernels and operations over a few tensors on several lanes, in each mode: the values are those of the program order, the trace has every wait that they
/// need, and the race detector finds nothing.
#[test]
fn drawn_programs_of_kernels_and_operations_are_ordered_by_what_they_use() {
    for seed in 0..cases(8) {
        let modes = [Mode::Threaded, Mode::Inline, Mode::Simulated { seed }];
        for mode in modes {
            let trace = streamvm_tests::Text::default();
            let vm = Vm::builder().mode(mode).detect_races(true).record(trace.clone()).build().expect("an engine");
            let mut random = Random::new(seed, 0);
            let tensors: Vec<Tensor> = (0..4).map(|_| tensor(&vm)).collect();
            let mut expected = [0i32; 4];
            for number in 1..40 {
                let (at, from, lane) = (random.below(4), random.below(4), random.below(3) as u32);
                let _lane = Lane(lane).enter();
                if random.once_in(3) {
                    start(
                        &vm,
                        lane,
                        &tensors[at],
                        Ends::default().waits(Some(random.below(4) as u64), || Ok(true)),
                        number,
                    );
                    expected[at] = number;
                } else {
                    let sum = (&tensors[at] + &tensors[from]).expect("an op");
                    tensors[at].copy_from(&sum).expect("a copy");
                    expected[at] = expected[at].wrapping_add(expected[from]);
                }
            }
            for (tensor, expected) in tensors.iter().zip(expected) {
                assert_eq!(tensor.to_vec::<i32>().expect("it runs"), [expected; 4], "seed {seed}, {mode:?}");
            }
            no_races(&vm);
            drop((tensors, vm));
            let report = verify(&Trace::read(trace.written().as_bytes()).expect("a trace")).expect("small enough");
            assert!(report.is_ok(), "seed {seed}, {mode:?}: {report:?}");
        }
    }
}

#[test]
fn operations_of_several_streams_go_on_side_by_side() {
    for (name, vm) in engines().into_iter().filter(|(name, _)| name != "inline") {
        let ([first, second], [x, y]) = ([Ends::default(), Ends::default()], [tensor(&vm), tensor(&vm)]);
        start(&vm, 0, &x, first.waits(None, || Ok(true)), 1);
        start(&vm, 1, &y, second.waits(None, || Ok(true)), 2);
        // The second is over first; the first would hold it back on one stream.
        second.flag.store(true, Ordering::Release);
        assert_eq!(y.to_vec::<i32>().expect("it runs"), [2; 4], "{name}");
        let limited = TimeLimit(Duration::from_millis(5)).enter();
        assert!(matches!(x.to_vec::<i32>(), Err(Error::Timeout { .. } | Error::Stalled { .. })), "{name}");
        drop(limited);
        first.flag.store(true, Ordering::Release);
        assert_eq!(x.to_vec::<i32>().expect("it runs"), [1; 4], "{name}");
    }
}

#[test]
fn an_operation_that_fails_or_panics_fails_its_instruction_and_no_other() {
    for (name, vm) in engines() {
        let ends = Ends::default();
        let [x, y] = [tensor(&vm), tensor(&vm)];
        start(&vm, 0, &x, ends.waits(Some(3), || Err("the line is dead".into())), 1);
        let reads = (&x + 1).expect("an op");
        start(&vm, 0, &y, ends.waits(Some(3), || panic!("a bug")), 2);
        let failure = failure_of(reads.to_vec::<i32>());
        assert_eq!(
            (failure.what.as_str(), &failure.cause),
            ("starts", &Cause::Function("the line is dead".into())),
            "{name}"
        );
        assert!(failure.stream.to_string().starts_with("collective@cpu:0:0"), "{name}: {failure}");
        let failure = failure_of(y.to_vec::<i32>());
        assert!(matches!(&failure.cause, Cause::Panic(text) if text.contains("a bug")), "{name}: {failure}");
        start(&vm, 0, &x, ends.waits(Some(3), || Ok(true)), 3);
        assert_eq!(x.to_vec::<i32>().expect("it is healed"), [3; 4], "{name}");
        assert_eq!(ends.dropped.load(Ordering::Acquire), 3, "{name}");
    }
}

#[test]
fn other_streams_of_the_host_wait_for_the_operation_in_place() {
    for (name, vm) in engines() {
        let ends = Ends::default();
        let x = tensor(&vm);
        vm.call_fn("on compute", CPU, [x.write()], starts(ends.waits(Some(50), || Ok(true)), 1)).expect("a function");
        assert_eq!(x.to_vec::<i32>().expect("it runs"), [1; 4], "{name}");
        vm.call_fn_on_workers("on workers", CPU, [x.write()], starts(ends.waits(Some(50), || Ok(true)), 2))
            .expect("a function");
        assert_eq!(x.to_vec::<i32>().expect("it runs"), [2; 4], "{name}");
    }
}

#[test]
fn the_end_of_an_engine_waits_for_operations() {
    for (name, builder) in threaded() {
        let vm = builder.build().expect("an engine");
        let ends = Ends::default();
        let x = tensor(&vm);
        start(&vm, 0, &x, ends.waits(None, || Ok(true)), 1);
        let flag = ends.flag.clone();
        let opens = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            flag.store(true, Ordering::Release);
        });
        within(&name, move || drop(vm));
        assert_eq!(ends.dropped.load(Ordering::Acquire), 1, "{name}");
        opens.join().expect("it ends");
    }
}

#[test]
fn a_step_of_a_program_may_start_an_operation_in_each_run() {
    let vm = Vm::builder().mode(Mode::Threaded).build().expect("an engine");
    let (ends, calls) = (Ends::default(), Arc::new(Mutex::new(Vec::new())));
    let record = |r: &Recorder| {
        let x = r.feed("x", CPU, DType::I32, &[4])?.abs()?;
        for (number, lane) in [(1, 0), (2, 7), (3, 7)] {
            let (ends, calls) = (ends.clone(), calls.clone());
            let starts = move |context: &mut FnContext<'_>| {
                calls.lock().unwrap().push(number);
                context.writes.take::<i32>(0)?.iter_mut().for_each(|x| *x = 10 * *x + number);
                let fails = || Err("the line is dead".into());
                let then: fn() -> Result<bool, FnError> =
                    if number == 3 && ends.flag.load(Ordering::Acquire) { fails } else { || Ok(true) };
                let operation = Ends { flag: Arc::default(), dropped: ends.dropped.clone() }.waits(Some(3), then);
                Err(FnError::from(Unfinished(Box::new(operation))))
            };
            r.call_on_collective(StepFunction::new("starts", CPU, Some(Arc::new(starts))), lane, [x.update()])?;
        }
        r.fetch("y", &(&x + 1)?)
    };
    let program = vm.record("starts", record).expect("it can be recorded");
    let executable = vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles");
    let x = vm.full(CPU, DType::I32, &[4], -5).expect("a tensor");
    for _ in 0..3 {
        let run = executable.run(&[("x", &x)]).expect("it is submitted");
        assert_eq!(run["y"].to_vec::<i32>().expect("it runs"), [5124; 4]);
    }
    assert_eq!(*calls.lock().unwrap(), [1, 2, 3].repeat(3));
    // A failure names the step and the line that recorded it.
    ends.flag.store(true, Ordering::Release);
    let run = executable.run(&[("x", &x)]).expect("it is submitted");
    let text = run["y"].to_vec::<i32>().expect_err("it fails").to_string();
    assert!(text.contains("the line is dead") && text.contains("starts") && text.contains("operations.rs"), "{text}");
}

#[test]
fn the_time_of_a_step_is_that_of_its_operation_too() {
    let vm = Vm::builder().mode(Mode::Threaded).build().expect("an engine");
    let record = |r: &Recorder| {
        let x = r.feed("x", CPU, DType::I32, &[4])?.abs()?;
        let starts = |_: &mut FnContext<'_>| {
            let then: fn() -> Result<bool, FnError> = || {
                std::thread::sleep(Duration::from_millis(20));
                Ok(true)
            };
            let operation = Waits { flag: Arc::default(), polls: Some(3), then, dropped: Arc::default() };
            Err(FnError::from(Unfinished(Box::new(operation))))
        };
        r.call_on_collective(StepFunction::new("starts", CPU, Some(Arc::new(starts))), 0, [x.update()])?;
        r.call_on_collective(StepFunction::new("is over", CPU, Some(Arc::new(|_| Ok(())))), 0, [x.update()])?;
        r.fetch("y", &x)
    };
    let program = vm.record("timed", record).expect("it can be recorded");
    let options = CompileOptions { time_steps: true, ..CompileOptions::default() };
    let executable = vm.compile(&program, &[], &options).expect("it compiles");
    for _ in 0..2 {
        executable.run(&[("x", &tensor(&vm))]).expect("it is submitted")["y"].wait().expect("it runs");
    }
    let times = executable.step_times();
    let time = |step: usize| times.iter().find(|time| time.steps == (step..step + 1)).expect("it has a time");
    assert_eq!((time(1).runs, time(2).runs), (2, 2));
    assert!(time(1).time >= Duration::from_millis(40) && time(2).time < time(1).time, "{times:?}");
}

/// A collective is issued by every run, because other ranks have it, too: also where a run is for other fetches. Its lane is that of its group, whatever the
/// lane of the call, and it lies in no block.
#[test]
fn a_collective_step_is_in_every_run_on_its_own_lane_and_in_no_block() {
    let (vm, calls) = (Vm::builder().build().expect("an engine"), Arc::new(AtomicU64::new(0)));
    let issued = Arc::new(AtomicU64::new(0));
    let (counts, tells) = (calls.clone(), issued.clone());
    let record = move |r: &Recorder| {
        let x = r.feed("x", CPU, DType::I32, &[4])?;
        let (counts, tells) = (counts.clone(), tells.clone());
        let sends = move |_: &mut FnContext<'_>| {
            counts.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let tells = move || {
            tells.fetch_add(1, Ordering::Relaxed);
        };
        let function = StepFunction::new("sends", CPU, Some(Arc::new(sends))).when_issued(tells);
        r.call_on_collective(function, 5, [x.read()])?;
        r.fetch("y", &(&x + 1)?)?;
        r.fetch("z", &(&x + 2)?)
    };
    let inner = vm.record("inner", record).expect("it can be recorded");
    let outer = vm.record("outer", |r| {
        let x = r.feed("x", CPU, DType::I32, &[4])?;
        let _lane = Lane(3).enter();
        let results = r.call(&inner, &[("x", &x)], &[])?;
        r.fetch("y", &results["y"])?;
        r.fetch("z", &results["z"])
    });
    let outer = outer.expect("it can be recorded");
    assert!(outer.to_string().contains("collective@cpu:0:5"), "{outer}");
    let executable = vm.compile(&outer, &[], &CompileOptions::default()).expect("it compiles");
    let x = tensor(&vm);
    assert_eq!(issued.load(Ordering::Relaxed), 0);
    let run = executable.run_for(&[("x", &x)], &["y"]).expect("it is submitted");
    assert_eq!(issued.load(Ordering::Relaxed), 1, "the run tells of it before it returns");
    assert_eq!(run["y"].to_vec::<i32>().expect("it runs"), [1; 4]);
    vm.wait_all().expect("it runs");
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    let mut list = InstructionsBuilder::new();
    executable.run_in(&mut list, &[("x", &x)]).expect("it is appended");
    assert_eq!(issued.load(Ordering::Relaxed), 2);
    let in_block = vm.record("block", |r| {
        let (goes, x) = (r.feed("goes", CPU, DType::Bool, &[])?, r.feed("x", CPU, DType::I32, &[4])?);
        r.if_true(&goes, || r.call(&inner, &[("x", &x)], &[]).map(drop))
    });
    let refused = in_block.map(drop).expect_err("it lies in a block").to_string();
    assert!(refused.contains("in a block there are no collectives"), "{refused}");
}
