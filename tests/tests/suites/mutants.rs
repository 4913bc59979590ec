//! Mutants: an engine in which one rule is broken is told from one that is right, for each rule and by name.
//!
//! Most are caught by random programs on simulated devices: by the race detector, the verifier or the oracle. Where a
//! mistake shows only to a thread that looks at the right moment, or makes a program wait for too much, the test says so.
#![allow(clippy::print_stdout, reason = "with --nocapture it tells what caught each")]

use std::sync::{Arc, Mutex};

use streamvm::ep::races::Finding;
use streamvm::ep::races::FindingKind;
use streamvm::instructions::{Dependence, DependenceUse, NothingObserved, Order, SoftSync, SoftSyncMode};
use streamvm::program::Mutant as CompilerMutant;
use streamvm::stream::Capabilities;
use streamvm::stream::mutant::{Mutant, Planted};
use streamvm::stream::{Point, StreamClass, StreamId};
use streamvm::{Access, FnError, Mode, Var, Vm, VmBuilder};
use streamvm_tests::compiled;
use streamvm_tests::program::{Failing, Script, Verdict, judge};
use streamvm_tests::{CPU, ClosedGate, Gate, each_seed, failure_of, on_device, submit};

/// Programs until a mutant must have been caught. The rarest takes a tenth of it.
const PROGRAMS: u64 = 5000;

/// Compiled programs until a mutant of the compiler must have been caught.
const COMPILED: u64 = 2000;

/// Runs programs on an engine with `mutant` until one fails, which must be in one of the ways given. Seeds run on several threads, so
/// any failing seed may be the first: `by` lists every way in which one fails.
fn catch(mutant: Mutant, by: &[Failing]) {
    let mut caught: Option<(u64, Verdict)> = None;
    let frees_too_early = matches!(mutant, Mutant::ReturnedEarly | Mutant::WrongSource);
    let script = move |seed| {
        let script = Script::draw(seed);
        if frees_too_early { script.keeping_memory() } else { script }
    };
    let result = each_seed(
        0..PROGRAMS,
        move |seed| judge(&script(seed), Some(mutant)).err(),
        |seed, verdict| {
            caught = verdict.map(|verdict| (seed, verdict));
            caught.is_none()
        },
    );
    assert_eq!(result, Ok(()), "{mutant:?} makes a program hang");
    let (seed, Verdict { failing, text }) = caught.unwrap_or_else(|| panic!("{mutant:?} is not caught"));
    println!("{mutant:?} is caught by seed {seed}: {failing:?}: {text}");
    assert!(by.contains(&failing), "{mutant:?} fails as {failing:?}: {text}");
}

#[test]
fn a_dropped_wait_is_caught() {
    catch(Mutant::WaitDropped, &[Failing::Race, Failing::Unordered, Failing::Differs]);
}

#[test]
fn a_wait_for_another_stream_is_caught() {
    catch(Mutant::WrongSource, &[Failing::Race, Failing::Unordered, Failing::Differs]);
}

#[test]
fn parts_that_are_taken_for_disjoint_are_caught() {
    catch(Mutant::PartsApart, &[Failing::Race, Failing::Unordered, Failing::Differs]);
}

#[test]
fn a_record_before_what_it_shows_is_caught() {
    catch(Mutant::RecordBefore, &[Failing::Race, Failing::Unordered, Failing::Differs]);
}

#[test]
fn reuse_without_a_wait_is_caught() {
    catch(Mutant::ReuseWithoutSync, &[Failing::Race, Failing::Unordered]);
}

#[test]
fn a_block_that_is_returned_early_is_caught() {
    catch(Mutant::ReturnedEarly, &[Failing::Race, Failing::Unordered]);
}

#[test]
fn a_read_that_is_not_noted_is_caught() {
    catch(Mutant::LastUseNotUpdated, &[Failing::Race, Failing::Unordered]);
}

#[test]
fn a_clock_that_claims_too_much_is_caught() {
    catch(Mutant::ClockTooFar, &[Failing::Race, Failing::Unordered, Failing::Differs]);
}

#[test]
fn a_host_wait_that_is_taken_as_met_is_caught() {
    catch(Mutant::HostWaitMet, &[Failing::Race, Failing::Differs]);
}

#[test]
fn a_stream_that_runs_out_of_order_is_caught() {
    // The detector sees operands that the instruction has not declared; where both have the same, the results differ.
    catch(Mutant::StreamReordered, &[Failing::Race, Failing::Differs]);
}

/// Judges drawn programs, compiled with `mutant`, until one fails, which must be in one of the ways given, with a text that has these words.
/// As with [`catch`], any failing seed may be the first: `by` lists every way.
fn catch_in_compiler(mutant: CompilerMutant, by: &[(Failing, &str)]) {
    let mut caught: Option<(u64, Verdict)> = None;
    let result = each_seed(
        1..COMPILED,
        move |seed| compiled::judge(seed, Some(mutant)).err(),
        |seed, verdict| {
            caught = verdict.map(|verdict| (seed, verdict));
            caught.is_none()
        },
    );
    assert_eq!(result, Ok(()), "{mutant:?} makes a program hang");
    let (seed, Verdict { failing, text }) = caught.unwrap_or_else(|| panic!("{mutant:?} is not caught"));
    println!("{mutant:?} is caught by seed {seed}: {failing:?}: {text}");
    let is_expected = by.iter().any(|(way, words)| *way == failing && text.contains(words));
    assert!(is_expected, "{mutant:?} fails as {failing:?}: {text}");
}

const DIFFERS: (Failing, &str) = (Failing::Differs, "expected");

/// What the engine says of a step that comes before the one that writes what it reads.
const NOT_WRITTEN: (Failing, &str) = (Failing::Refused, ", which nothing has written; write it first");

/// What the race detector says of a step that reads memory before another writes it.
const NEVER_WRITTEN: (Failing, &str) = (Failing::Race, "never written");

/// The verifier finds that a step reads memory before another step writes it.
const NOTHING_WRITTEN: (Failing, &str) = (Failing::Unordered, "that nothing has written");

/// Two values that are needed at the same time have a common byte in the plan.
const SHARE_MEMORY: (Failing, &str) = (Failing::Plan, "share memory");

/// The engine refuses to load a program of which a step writes over an input.
const OVER_AN_INPUT: (Failing, &str) = (Failing::Refused, "needs an output that shares no bytes with an input");

/// The engine refuses to load a program of which two branches need an order that they do not have.
const NOT_BESIDE_OTHERS: (Failing, &str) = (Failing::Refused, "cannot run beside others");

/// Two steps of two lanes need an order that they do not have in the plan.
const NO_ORDER: (Failing, &str) = (Failing::Plan, "on two lanes have no order");

/// The compiler asserts that segments and branches wait for earlier ones.
const WAITS_FOR_A_LATER_ONE: (Failing, &str) = (Failing::Refused, "a segment or branch waits only for earlier ones");

/// What the engine says when it loads a program whose fused group cannot run block by block.
const NO_GROUP: (Failing, &str) = (Failing::Refused, "cannot run block by block");

#[test]
fn a_needed_step_that_is_removed_is_caught() {
    catch_in_compiler(CompilerMutant::NeededStepRemoved, &[DIFFERS, NOT_WRITTEN, NEVER_WRITTEN, NOTHING_WRITTEN]);
}

#[test]
fn a_dropped_dependence_of_a_program_is_caught() {
    catch_in_compiler(
        CompilerMutant::DependenceDropped,
        &[DIFFERS, NOT_WRITTEN, NEVER_WRITTEN, NO_GROUP, NOT_BESIDE_OTHERS, NO_ORDER],
    );
}

/// Functions of drawn programs check in which order they are called.
#[test]
fn a_dropped_order_of_a_program_is_caught() {
    catch_in_compiler(
        CompilerMutant::OrderDropped,
        &[(Failing::Refused, "a later function is called before an earlier one")],
    );
}

/// Functions of drawn programs check that no two sections are open at one time.
#[test]
fn a_dropped_section_of_a_program_is_caught() {
    catch_in_compiler(CompilerMutant::SectionDropped, &[(Failing::Refused, "a section begins within another one")]);
}

#[test]
fn a_step_that_joins_a_segment_of_another_section_is_caught() {
    catch_in_compiler(CompilerMutant::SectionJoined, &[(Failing::Plan, "moved over an end of a critical section")]);
}

#[test]
fn a_step_that_joins_a_segment_too_far_back_is_caught() {
    catch_in_compiler(CompilerMutant::JoinedTooFar, &[DIFFERS, NOT_WRITTEN, NEVER_WRITTEN, WAITS_FOR_A_LATER_ONE]);
}

#[test]
fn a_last_use_that_is_too_early_is_caught() {
    catch_in_compiler(CompilerMutant::LastUseTooEarly, &[SHARE_MEMORY, NO_GROUP, OVER_AN_INPUT]);
}

#[test]
fn a_loop_edge_that_is_missing_is_caught() {
    catch_in_compiler(CompilerMutant::LoopEdgeMissing, &[SHARE_MEMORY]);
}

#[test]
fn a_step_in_place_of_an_input_that_is_read_later_is_caught() {
    catch_in_compiler(CompilerMutant::InPlaceThoughRead, &[SHARE_MEMORY, OVER_AN_INPUT]);
}

/// The engine checks groups again when it loads a program.
#[test]
fn fused_steps_over_different_views_are_caught() {
    catch_in_compiler(CompilerMutant::FusedOverViews, &[NO_GROUP]);
}

#[test]
fn values_that_overlap_by_one_byte_are_caught() {
    catch_in_compiler(CompilerMutant::OneByteShort, &[SHARE_MEMORY, NO_GROUP, OVER_AN_INPUT]);
}

/// The order in which the functions of one list ran on one stream.
fn order_on_one_stream(builder: VmBuilder) -> Vec<usize> {
    let vm = builder.build().expect("an engine");
    let ran = Arc::new(Mutex::new(Vec::new()));
    let ticket = submit(&vm, |b| {
        for number in 0..8 {
            let ran = ran.clone();
            b.host_fn("notes its number", CPU, move || {
                ran.lock().map_err(|_| "a function panicked")?.push(number);
                Ok(())
            });
        }
        Ok(())
    });
    ticket.wait().expect("nothing fails");
    let ran = ran.lock().expect("nothing panics");
    ran.clone()
}

#[test]
fn a_stream_that_runs_out_of_order_is_seen_by_its_functions() {
    let in_order: Vec<usize> = (0..8).collect();
    assert_eq!(order_on_one_stream(Vm::builder()), in_order);
    assert_ne!(
        order_on_one_stream(Vm::builder().mutant(Mutant::StreamReordered)),
        in_order,
        "the mutant is not caught"
    );
}

#[test]
fn poison_that_is_not_carried_is_caught() {
    // A function that was skipped leaves nothing to read back, which is refused and which the detector sees, or leaves old bytes.
    catch(Mutant::PoisonNotCarried, &[Failing::Differs, Failing::Refused, Failing::Race]);
}

/// Where a function over variables runs.
#[derive(Copy, Clone, Debug)]
enum By {
    /// Pushed to workers.
    Workers,
    /// In lists, on two lanes in turn.
    Lanes,
}

/// What the detector finds in a program that uses variables and no memory: each function updates one of two after the last
/// that did, two read what nothing has written, and one that has been used last is deleted.
fn found_on_variables(mode: Mode, by: By, mutant: Option<Mutant>) -> Vec<Finding> {
    let mut builder = Vm::builder().mode(mode).workers(3).detect_races(true);
    if let Some(mutant) = mutant {
        builder = builder.mutant(mutant);
    }
    let vm = builder.build().expect("an engine");
    let (vars, unwritten, gate) = ([vm.var(), vm.var()], vm.var(), ClosedGate::new());
    if mode != Mode::Threaded {
        // There nothing runs before it is waited for.
        gate.open();
    }
    let call = |number: usize, uses: [&Var; 2], f: Box<dyn FnOnce() -> Result<(), FnError> + Send>| {
        let [updated, read] = uses;
        let uses = [updated.update(), read.read()];
        match by {
            By::Workers => vm.push("update", uses, f).map(drop).expect("it is taken"),
            By::Lanes => {
                drop(submit(&vm, |b| b.on_lane(number as u32 / 2 % 2).call_fn("update", CPU, uses, move |_| f())))
            }
        }
    };
    // Until all is submitted nothing has passed, so no submission comes after anything.
    for (number, var) in vars.iter().enumerate() {
        let gate = gate.clone();
        let passes = move || {
            gate.pass();
            Ok(())
        };
        call(number, [var, &unwritten], Box::new(passes));
    }
    for number in 2..40 {
        call(number, [&vars[number % 2], &vars[number % 2]], Box::new(|| Ok(())));
    }
    vm.delete(&vars[0], || ()).expect("it is taken");
    gate.open();
    vm.wait_all().expect("nothing fails");
    vm.races()
}

#[test]
fn a_dropped_wait_for_a_variable_is_caught_by_the_detector() {
    for mode in [Mode::Threaded, Mode::Simulated { seed: 1 }, Mode::Simulated { seed: 2 }] {
        for by in [By::Workers, By::Lanes] {
            assert_eq!(found_on_variables(mode, by, None), [], "{mode:?}, {by:?}");
            let found = found_on_variables(mode, by, Some(Mutant::WaitDropped));
            let is_of_variables =
                |race: &Finding| race.kind == FindingKind::Conflict && race.memory.contains("variables");
            assert!(!found.is_empty() && found.iter().all(is_of_variables), "{mode:?}, {by:?}: {found:#?}");
        }
    }
}

/// Whether an instruction that is skipped counts as passed before what it holds is dropped, which its outcome comes
/// before.
fn is_passed_early(builder: VmBuilder) -> bool {
    /// Stands at a gate when it is dropped.
    struct Holds(Gate);
    impl Drop for Holds {
        fn drop(&mut self) {
            self.0.pass();
        }
    }
    let vm = builder.build().expect("an engine");
    let x = on_device(&vm, &[1.0]);
    let gate = ClosedGate::new();
    let holds = Holds(gate.clone());
    submit(&vm, |b| b.call_fn("fails", CPU, [x.update()], |_| Err("on purpose".into())));
    let skipped = submit(&vm, |b| {
        b.call_fn("skipped", CPU, [x.read()], move |_| {
            drop(holds);
            Ok(())
        })
    });
    gate.wait_entered(1);
    let early = skipped.is_passed();
    gate.open();
    assert_eq!(failure_of(skipped.wait()).what, "fails");
    early
}

#[test]
fn a_notification_before_the_outcome_is_published_is_caught() {
    assert!(!is_passed_early(Vm::builder()), "what is being dropped has not passed");
    assert!(is_passed_early(Vm::builder().mutant(Mutant::NotifiedBeforePublished)), "the mutant is not caught");
}

/// Which point a stream waits for that needs only what another did before it was held back: three lists on two device
/// streams and one of the host.
fn waited_for(planted: Planted) -> Point {
    let mut sync = SoftSync::new(SoftSyncMode::Minimal, Capabilities::standard());
    sync.plant(planted);
    let class = |key: &str| StreamClass::of(&key.parse().expect("a stream"));
    let [device, host, other] =
        ["compute@sim:0:0", "compute@cpu:0:0", "compute@sim:0:1"].map(|key| sync.add_stream(class(key)));
    let [x, y] = [0, 1].map(|_| sync.add_dependence(Dependence::default()));
    let lists: [&[(StreamId, _, Access)]; 3] = [
        &[(device, x, Access::Write), (host, y, Access::Write)],
        // Held back until the host is through with y.
        &[(device, y, Access::Read)],
        &[(other, x, Access::Read)],
    ];
    for list in lists {
        sync.begin();
        for (stream, resource, access) in list.iter().copied() {
            let at = sync.number(stream);
            sync.instruction(at, &[DependenceUse::whole(resource, access)], Order::Uses, &mut NothingObserved);
        }
    }
    let plan = sync.plan();
    plan.waits(&plan.instructions()[0])[0].point
}

#[test]
fn a_record_after_what_holds_its_stream_back_is_caught() {
    assert_eq!(waited_for(Planted::default()).seq, 1, "the reader does not wait for what is held back");
    assert_eq!(waited_for(Planted::new(Mutant::RecordBehindHeld)).seq, 2, "the mutant is not caught");
}
