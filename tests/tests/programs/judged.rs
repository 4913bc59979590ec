//! Drawn programs under every judge of eager work, and their waits beside those of eager calls.

#![allow(clippy::print_stdout, reason = "says how many waits there were, with --nocapture")]

use streamvm::program::CompileOptions;
use streamvm::{DType, DeviceId, Tensor, Vm};
use streamvm_tests::compiled::{Judged, Views, judge, waits_of};
use streamvm_tests::{CPU, ClosedGate, cases, each_seed, submit};

/// How many of 1,000 waits may be superfluous: none is in these programs, and none in 2,000 others, of 170,000 waits.
const MOST_EXCESS: u64 = 1;

#[test]
fn drawn_programs_are_equal_to_eager_calls_ordered_and_without_races() {
    let programs = cases(60);
    let (mut judged, mut failed) = (Judged::default(), None);
    let result = each_seed(
        1..1 + programs,
        |seed| judge(seed, None),
        |_, result| {
            failed = result.map(|more| judged.add(more)).err();
            failed.is_none()
        },
    );
    assert_eq!(result, Ok(()), "hangs");
    if let Some(verdict) = failed {
        panic!("{:?}: {}", verdict.failing, verdict.text);
    }
    let (waits, excess) = (judged.exact.waits, judged.exact.excess);
    let Views { fetched, empty } = judged.views;
    println!(
        "{} runs of {programs} programs: of {waits} waits of those without empty tensors {excess} are superfluous; {fetched} fetched views, {empty} empty operands",
        judged.runs
    );
    assert!(
        judged.runs > 4 * programs
            && waits > 10 * programs
            && fetched > programs
            && empty > programs
            && 4 * judged.bounded > programs,
        "the programs are drawn so that judges have work: {judged:?}"
    );
    assert!(excess * 1000 <= waits * MOST_EXCESS, "{excess} of {waits} waits are superfluous");
}

/// Where a stream records decides how much a wait covers. Of calls that are made one at a time a stream records later than of those that come at
/// once, so now and then a later wait can be saved. A compiled run comes at once.
#[test]
fn a_compiled_run_waits_no_more_than_the_same_calls_made_eagerly() {
    let drawn = cases(200);
    let (mut programs, mut more_than_eager, mut compiled, mut eager) = (0, 0, 0, 0);
    let mut failed = None;
    let result = each_seed(1..1 + drawn, waits_of, |seed, waits| {
        if let Some(waits) = waits {
            programs += 1;
            (compiled, eager) = (compiled + waits.compiled, eager + waits.eager);
            more_than_eager += u64::from(waits.compiled > waits.eager);
            failed = (waits.compiled > waits.at_once).then_some((seed, waits));
        }
        failed.is_none()
    });
    assert_eq!(result, Ok(()), "hangs");
    if let Some((seed, waits)) = failed {
        panic!("seed {seed}: {} waits, and {} of single steps\n{}", waits.compiled, waits.at_once, waits.plan);
    }
    println!("{programs} programs: {compiled} waits compiled, {eager} eagerly; {more_than_eager} programs have more");
    assert!(
        3 * programs > drawn && eager > 4 * programs,
        "the programs are drawn so that there are waits: {programs} {eager}"
    );
    assert!(compiled * 20 < eager * 13, "{compiled} waits compiled, {eager} eagerly");
    assert!(
        more_than_eager * 200 <= programs,
        "{more_than_eager} of {programs} programs wait more compiled than eagerly"
    );
}

/// Neither rows nor columns of one value depend on other ones: the bytes of views are compared exactly, as those of eager calls are.
#[test]
fn steps_of_two_streams_over_different_parts_wait_as_little_as_eager_calls() {
    let sim = DeviceId::sim(0);
    let waits_of = |axis: usize, compiled: bool| {
        let vm = Vm::builder().sim_devices(1).build().expect("an engine");
        let [w, x] = [CPU, sim].map(|device| vm.full(device, DType::I32, &[4, 4], 1).expect("a tensor"));
        vm.wait_all().expect("they are filled");
        let calls = |w: &Tensor, x: &Tensor| {
            w.slice(axis, 0..1)?.copy_from(&x.slice(axis, 0..1)?)?;
            w.slice(axis, 1..2)?.fill(3)
        };
        let program = vm.record("parts", |r| calls(&r.parameter("w", &w)?, &r.feed("x", sim, DType::I32, &[4, 4])?));
        let program = program.expect("it can be recorded");
        let executable = vm.compile(&program, &[("w", &w)], &CompileOptions::default()).expect("it compiles");
        let gate = ClosedGate::new();
        let stands = gate.clone();
        submit(&vm, |b| {
            b.call_fn("stands at the gate", CPU, [w.update()], move |_| {
                stands.pass();
                Ok(())
            })
        });
        let waits = || vm.stats().streams.iter().map(|stream| stream.device_waits + stream.host_waits).sum::<u64>();
        let before = waits();
        if compiled {
            executable.run(&[("x", &x)]).expect("it is submitted");
        } else {
            calls(&w, &x).expect("they are accepted");
        }
        let made = waits() - before;
        gate.open();
        vm.wait_all().expect("nothing fails");
        made
    };
    let [rows, columns] = [0, 1].map(|axis| [false, true].map(|compiled| waits_of(axis, compiled)));
    assert_eq!(rows, [1, 1], "eager, compiled");
    assert_eq!(columns, [1, 1], "eager, compiled");
}
