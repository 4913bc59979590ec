//! What programs with blocks must do on every device and in every mode.

use std::time::Duration;

use streamvm::program::{CompileOptions, Program, Recorder};
use streamvm::{
    Cause, DType, DeviceId, Error, Executable, Failure, Generator, InstructionsBuilder, Lane, Tensor, Vm, Watch,
};

use crate::CPU;
use crate::compiled::blocks::{By, count_to};

/// A scenario, which panics if something is wrong.
pub type Scenario = fn(&Vm, DeviceId);

/// The scenarios, each with its name.
pub const SCENARIOS: [(&str, Scenario); 10] = [
    ("a loop counts to eleven", count_to_eleven),
    ("a loop fails after the most rounds", most_rounds),
    ("a loop fails after its time", most_loop_time),
    ("a step that fails ends its loop", a_failure_ends_the_loop),
    ("a failed input ends a loop", a_failed_input_ends_the_loop),
    ("random numbers are those of a CPU", random_numbers),
    ("each round of a loop draws other random numbers", random_numbers_of_rounds),
    ("several runs of several blocks are in flight", several_runs),
    ("a run with blocks is watched", watched),
    ("a block that does not run leaves a parameter as it is", left_out),
];

fn compile(vm: &Vm, program: Result<Program, Error>, parameters: &[(&str, &Tensor)]) -> Executable {
    let program = program.expect("it can be recorded");
    vm.compile(&program, parameters, &CompileOptions::default()).expect("it compiles")
}

fn failure_of(result: Result<(), Error>) -> std::sync::Arc<Failure> {
    match result {
        Err(Error::Failed(failure)) => failure,
        other => panic!("it should fail: {other:?}"),
    }
}

/// A loop whose condition is never false, and whose body is `body`, over a number on `device`.
///
/// # Errors
/// Those of the recording.
pub fn endless(r: &Recorder, device: DeviceId, body: impl Fn(&Tensor) -> Result<(), Error>) -> Result<(), Error> {
    let x = r.full(device, DType::I32, &[], 1)?;
    let goes_on = r.full(device, DType::Bool, &[], true)?;
    r.while_true(&goes_on, || {
        body(&x)?;
        goes_on.copy_from(&x.eq(&x)?)
    })?;
    r.fetch("x", &x)
}

fn count_to_eleven(vm: &Vm, device: DeviceId) {
    let start = vm.full(device, DType::I32, &[], 0).expect("a tensor");
    let program = vm.record("to eleven", |r| count_to(By::Recording(r), device, &r.parameter("x", &start)?, 11));
    let count = compile(vm, program, &[("x", &start)]);
    for from in [0, 10, 11, 40, -5] {
        start.fill(from).expect("it is submitted");
        count.run(&[]).expect("it is submitted");
        assert_eq!(start.to_scalar::<i32>().expect("it runs"), from.max(11));
    }
}

fn most_rounds(vm: &Vm, device: DeviceId) {
    let start = vm.full(device, DType::I32, &[], 0).expect("a tensor");
    let program = vm.record("to eleven", |r| count_to(By::Recording(r), device, &r.parameter("x", &start)?, 11));
    let program = program.expect("it can be recorded");
    let compile = |most_rounds| {
        let options = CompileOptions { most_rounds, ..CompileOptions::default() };
        vm.compile(&program, &[("x", &start)], &options).expect("it compiles")
    };
    let failed = compile(10).run(&[]).expect("it is submitted").wait().expect_err("it needs eleven rounds").to_string();
    for part in ["while", "after 10 rounds", "most_rounds", "blocks.rs:"] {
        assert!(failed.contains(part), "{part}: {failed}");
    }
    assert!(start.to_scalar::<i32>().is_err(), "what the run writes has failed");
    let mut builder = InstructionsBuilder::new();
    builder.fill(&start, 0).expect("it fits");
    vm.submit(builder.finish()).expect("it is submitted");
    compile(11).run(&[]).expect("it is submitted").wait().expect("eleven rounds are enough");
    assert_eq!(start.to_scalar::<i32>(), Ok(11));
}

fn most_loop_time(vm: &Vm, device: DeviceId) {
    let program = vm.record("endless", |r| endless(r, device, |x| x.copy_from(&(x + 1)?)));
    let options = CompileOptions {
        most_rounds: u64::MAX,
        most_loop_time: Some(Duration::from_millis(3)),
        ..CompileOptions::default()
    };
    let executable = vm.compile(program.expect("it can be recorded"), &[], &options).expect("it compiles");
    let failed = executable.run(&[]).expect("it is submitted").wait().expect_err("it never ends").to_string();
    for part in ["while", "after 3ms", "most_loop_time", "block_scenarios.rs:"] {
        assert!(failed.contains(part), "{part}: {failed}");
    }
}

/// The first round divides by zero. The condition says nothing of that, so a loop that went on would never end.
fn a_failure_ends_the_loop(vm: &Vm, device: DeviceId) {
    let program = vm.record("divides", |r| {
        let zero = r.feed("zero", device, DType::I32, &[])?;
        endless(r, device, |x| x.copy_from(&(x / &zero)?))
    });
    let options = CompileOptions { most_rounds: u64::MAX, ..CompileOptions::default() };
    let executable = vm.compile(program.expect("it can be recorded"), &[], &options).expect("it compiles");
    let zero = vm.full(device, DType::I32, &[], 0).expect("a tensor");
    let failure = failure_of(executable.run(&[("zero", &zero)]).expect("it is submitted").wait());
    let Cause::Step { step, .. } = &failure.cause else { panic!("not at a step: {failure}") };
    assert_eq!(step.name, "div", "{failure}");
}

/// The feed fails on another stream, on a device after the first piece of the run may have been launched.
fn a_failed_input_ends_the_loop(vm: &Vm, device: DeviceId) {
    let program = vm.record("reads", |r| {
        let y = r.feed("y", device, DType::I32, &[])?;
        endless(r, device, |x| x.copy_from(&(x + &y)?))
    });
    let options = CompileOptions { most_rounds: u64::MAX, ..CompileOptions::default() };
    let executable = vm.compile(program.expect("it can be recorded"), &[], &options).expect("it compiles");
    let [one, zero] = [1, 0].map(|value| vm.full(device, DType::I32, &[], value).expect("a tensor"));
    let broken = {
        let _lane = Lane(1).enter();
        (&one / &zero).expect("it is submitted")
    };
    let failure = failure_of(executable.run(&[("y", &broken)]).expect("it is submitted").wait());
    assert_eq!(failure.what, "div", "{failure}");
}

/// Draws before a loop and after it; the loop adds up what was drawn.
fn random_numbers(vm: &Vm, device: DeviceId) {
    let run_on = |device: DeviceId| -> Vec<Vec<f32>> {
        let generator = Generator::new(7);
        let program = vm.record("draws", |r| {
            let draw = || {
                let mut builder = InstructionsBuilder::new();
                let drawn = builder.rand(&generator, device, DType::F32, &[5])?;
                r.submit(builder.finish()).map(|()| drawn)
            };
            let (noise, sum) = (draw()?, r.full(device, DType::F32, &[5], 0.0)?);
            let x = r.full(device, DType::I32, &[], 0)?;
            let most = r.full(device, DType::I32, &[], 3)?;
            let goes_on = x.lt(&most)?;
            r.while_true(&goes_on, || {
                sum.copy_from(&(&sum + &noise)?)?;
                x.copy_from(&(&x + 1)?)?;
                goes_on.copy_from(&x.lt(&most)?)
            })?;
            r.fetch("y", &(&sum - &draw()?)?)
        });
        let executable = compile(vm, program, &[]);
        let runs: Vec<_> = (0..3).map(|_| executable.run(&[]).expect("it is submitted")).collect();
        runs.iter().map(|run| run["y"].to_vec::<f32>().expect("it runs")).collect()
    };
    let (expected, found) = (run_on(CPU), run_on(device));
    assert_eq!(expected, found);
    assert!(expected[0] != expected[1], "each run draws other numbers: {expected:?}");
}

/// A loop, a branch on what it left, and another loop; runs on three lanes at once.
/// Numbers that the rounds of a loop, a branch in it, a branch outside, and calls before and after it draw: no two are the same, in no run; a run that is repeated draws its
/// own again, and a CPU draws the same.
fn random_numbers_of_rounds(vm: &Vm, device: DeviceId) {
    const ROUNDS: i32 = 4;
    let record = |device: DeviceId| {
        let generator = Generator::new(9);
        vm.record("rounds", |r| {
            let draw = || r.rand(&generator, device, DType::F32, &[3]);
            let empty = || r.zeros(device, DType::F32, &[3]);
            // The draws of the rounds, the first of which is the oldest, and of the branch in the last round.
            let rounds = (0..ROUNDS).map(|_| empty()).collect::<Result<Vec<Tensor>, Error>>()?;
            let (in_branch, beside) = (empty()?, empty()?);
            r.fetch("before", &draw()?)?;
            let (round, most) = (r.full(device, DType::I32, &[], 0)?, r.full(device, DType::I32, &[], ROUNDS)?);
            let goes_on = round.lt(&most)?;
            r.while_true(&goes_on, || {
                for pair in rounds.windows(2) {
                    pair[0].copy_from(&pair[1])?;
                }
                rounds[rounds.len() - 1].copy_from(&draw()?)?;
                r.if_true(&goes_on, || in_branch.copy_from(&draw()?))?;
                round.copy_from(&(&round + 1)?)?;
                goes_on.copy_from(&round.lt(&most)?)
            })?;
            r.if_true(&round.eq(&most)?, || beside.copy_from(&draw()?))?;
            r.fetch("after", &draw()?)?;
            r.fetch("in_branch", &in_branch)?;
            r.fetch("beside", &beside)?;
            rounds.iter().enumerate().try_for_each(|(round, tensor)| r.fetch(format!("round{round}"), tensor))
        })
    };
    let numbers = |executable: &Executable| -> Vec<u32> {
        let results = executable.run(&[]).expect("it is submitted").take();
        results.iter().flat_map(|tensor| tensor.to_vec::<f32>().expect("it runs")).map(f32::to_bits).collect()
    };
    let drawing = compile(vm, record(device), &[]);
    let runs = [(); 3].map(|()| numbers(&drawing));
    let mut all = runs.concat();
    assert_eq!(all.len(), 3 * 3 * (ROUNDS as usize + 4));
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), runs.concat().len(), "some numbers come twice");
    drawing.set_next_run(1);
    assert_eq!(numbers(&drawing), runs[1]);
    let on_cpu = compile(vm, record(CPU), &[]);
    assert_eq!([(); 3].map(|()| numbers(&on_cpu)), runs);
}

fn several_runs(vm: &Vm, device: DeviceId) {
    let program = vm.record("several", |r| {
        let x = r.feed("x", device, DType::I32, &[])?;
        let y = (&x * 1)?;
        count_to(By::Recording(r), device, &y, 11)?;
        let twenty = r.full(device, DType::I32, &[], 20)?;
        r.if_else(&y.lt(&twenty)?, || y.copy_from(&(&y + 100)?), || y.copy_from(&(&y - 30)?))?;
        count_to(By::Recording(r), device, &y, 5)?;
        r.fetch("y", &y)
    });
    let executable = compile(vm, program, &[]);
    let mut runs = Vec::new();
    for number in 0..12i32 {
        let _lane = Lane(number as u32 % 3).enter();
        let from = number * 7 - 9;
        let x = vm.full(device, DType::I32, &[], from).expect("a tensor");
        runs.push((from, executable.run(&[("x", &x)]).expect("it is submitted")));
    }
    for (from, run) in runs {
        let counted = from.max(11);
        let expected = if counted < 20 { counted + 100 } else { counted - 30 }.max(5);
        assert_eq!(run["y"].to_scalar::<i32>(), Ok(expected), "from {from}");
    }
}

/// The hook is called before and after the block as a whole.
fn watched(vm: &Vm, device: DeviceId) {
    let x = vm.full(device, DType::I32, &[], 8).expect("a tensor");
    let program = vm.record("watched", |r| count_to(By::Recording(r), device, &r.parameter("x", &x)?, 11));
    let options = CompileOptions { step_by_step: true, ..CompileOptions::default() };
    let program = program.expect("it can be recorded");
    let executable = vm.compile(&program, &[("x", &x)], &options).expect("it compiles");
    let mut seen = Vec::new();
    let run = executable.run_watched(&[], Watch::All, &mut |step| {
        if step.name() == "while" {
            seen.push((step.steps.len(), step.took.is_some(), x.to_scalar::<i32>()?));
        }
        Ok(())
    });
    run.expect("it runs");
    let steps = seen.first().map_or(0, |(steps, ..)| *steps);
    assert!(steps > 3, "the block with its steps: {seen:?}");
    assert_eq!(seen, [(steps, false, 8), (steps, true, 11)]);
}

fn left_out(vm: &Vm, device: DeviceId) {
    let state = vm.full(device, DType::I32, &[3], 5).expect("a tensor");
    let program = vm.record("left out", |r| {
        let (yes, state) = (r.feed("yes", device, DType::Bool, &[1, 1])?, r.parameter("state", &state)?);
        r.if_true(&yes, || state.fill(7))
    });
    let executable = compile(vm, program, &[("state", &state)]);
    for (yes, expected) in [(false, 5), (true, 7)] {
        let yes = vm.full(device, DType::Bool, &[1, 1], yes).expect("a tensor");
        executable.run(&[("yes", &yes)]).expect("it is submitted");
        assert_eq!(state.to_vec::<i32>(), Ok(vec![expected; 3]));
    }
}
