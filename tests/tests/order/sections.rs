//! Critical sections: instructions of one holder run without those of others in between, whoever submits when.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use streamvm::program::CompileOptions;
use streamvm::report::StalledInstruction;
use streamvm::{
    BuildError, Critical, DType, Error, InstructionList, InstructionsBuilder, Lane, Mode, Op, Params, PlanOptions,
    TimeLimit, Var, Vm, plan,
};
use streamvm_tests::{CPU, ClosedGate, Random, engines, failure_of, list, no_races, on_device, until, within};
use streamvm_verify::{Trace, verify};

/// What ran, in the order in which it ran: (resource, holder).
type Log = Arc<Mutex<Vec<(usize, usize)>>>;

/// A function that notes that it runs.
fn note(log: &Log, resource: usize, holder: usize) -> impl FnOnce() -> Result<(), streamvm::FnError> + Send + use<> {
    let log = log.clone();
    move || {
        std::thread::yield_now();
        log.lock().expect("no panic").push((resource, holder));
        std::thread::yield_now();
        Ok(())
    }
}

/// A section of a list, whose instructions have nothing in common, on ordered streams of several lanes and on workers.
fn section_of_a_list(log: &Log, port: &Critical, resource: usize, holder: usize) -> InstructionList {
    list(|b| {
        let section = b.begin_section(&[port], &[])?;
        for lane in 0..3 {
            let mut b = b.on_lane(lane);
            let mut b = if lane == 2 { b.on_workers() } else { b.on_compute() };
            b.push("member", CPU, [], note(log, resource, holder));
            b.push("member", CPU, [], note(log, resource, holder));
        }
        b.end_section(section, &[]);
        Ok(())
    })
}

/// The same by calls of its own each, which other threads' calls come between.
fn section_of_calls(vm: &Vm, log: &Log, port: &Critical, resource: usize, holder: usize) -> Result<(), Error> {
    let section = vm.enter_section(&[port], &[])?;
    for lane in 0..2 {
        let _lane = Lane(lane).enter();
        let mut b = InstructionsBuilder::new();
        b.push("member", CPU, [], note(log, resource, holder));
        vm.submit(b.finish())?;
        vm.call_fn("member", CPU, [], {
            let note = note(log, resource, holder);
            move |_| note()
        })?;
        vm.push("member on workers", [], note(log, resource, holder))?;
    }
    section.end(&[])?;
    Ok(())
}

const MEMBERS: usize = 6;

/// In the log of each resource, the members of each holder stand together.
#[track_caller]
fn never_interleaved(log: &Log, sections: usize) {
    let log = log.lock().expect("no panic");
    for resource in 0..2 {
        let holders: Vec<usize> = log.iter().filter(|(of, _)| *of == resource).map(|(_, holder)| *holder).collect();
        let apart: Vec<&[usize]> = holders.chunks(MEMBERS).filter(|of| of.iter().any(|it| *it != of[0])).collect();
        assert!(apart.is_empty(), "resource {resource}: {apart:?} in {holders:?}");
    }
    assert_eq!(log.len(), sections * MEMBERS);
}

/// Several threads, each with sections over two resources in turn, as lists and as calls, beside work without sections. The trace shows
/// that the waits alone give the order, and the race detector that they were kept.
#[test]
fn sections_of_several_threads_never_interleave() {
    within("the sections", || {
        let trace = streamvm_tests::Text::default();
        let vm = Vm::builder()
            .cpu_threads(4)
            .workers(3)
            .detect_races(true)
            .record(trace.clone())
            .build()
            .expect("an engine");
        let (log, ports) = (Log::default(), [vm.critical("port"), vm.critical("port")]);
        let (threads, rounds) = (4, 12);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (vm, log, ports) = (&vm, &log, &ports);
                scope.spawn(move || {
                    for round in 0..rounds {
                        let (resource, holder) = ((thread + round) % 2, thread * rounds + round);
                        match round % 3 {
                            0 => {
                                let list = section_of_a_list(log, &ports[resource], resource, holder);
                                vm.submit(list).map(drop).expect("it is taken");
                            }
                            _ => section_of_calls(vm, log, &ports[resource], resource, holder).expect("it is taken"),
                        }
                        vm.push("apart", [], || Ok(())).map(drop).expect("it is taken");
                    }
                });
            }
        });
        vm.wait_all().expect("nothing fails");
        never_interleaved(&log, threads * rounds);
        no_races(&vm);
        drop(vm);
        let report = verify(&Trace::read(trace.written().as_bytes()).expect("a trace")).expect("small enough");
        assert!(report.is_ok(), "{report:?}");
    });
}

/// The same in every mode, from one thread: sections follow each other as they were submitted.
#[test]
fn sections_run_one_after_the_other_in_every_mode() {
    for (name, vm) in engines() {
        let (log, ports) = (Log::default(), [vm.critical("a"), vm.critical("b")]);
        for holder in 0..8 {
            let resource = holder % 2;
            let port = &ports[resource];
            match holder % 4 < 2 {
                true => vm.submit(section_of_a_list(&log, port, resource, holder)).map(drop).expect("it is taken"),
                false => section_of_calls(&vm, &log, port, resource, holder).expect("it is taken"),
            }
        }
        assert_eq!(vm.wait_all(), Ok(()), "{name}");
        never_interleaved(&log, 8);
        for resource in 0..2 {
            let log = log.lock().expect("no panic");
            assert!(log.iter().filter(|(of, _)| *of == resource).map(|(_, holder)| *holder).is_sorted(), "{name}");
        }
    }
}

/// A read, a change and a write by eager calls and by runs of a program, from several threads: no update is lost.
#[test]
fn eager_calls_and_runs_of_programs_belong_to_the_section_of_their_thread() {
    let vm = Vm::builder().detect_races(true).build().expect("an engine");
    let (port, total) = (vm.critical("total"), vm.full(CPU, DType::I64, &[1], 0).expect("a fill"));
    let program = vm.record("more", |r| {
        let x = r.feed("x", CPU, DType::I64, &[1])?;
        r.fetch("y", &(&x + 1)?)
    });
    let more = vm.compile(program.expect("a program"), &[], &CompileOptions::default()).expect("it compiles");
    let (threads, rounds) = (4, 10);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (vm, port, total, more) = (&vm, &port, &total, &more);
            scope.spawn(move || {
                let _lane = Lane(thread).enter();
                for round in 0..rounds {
                    let section = vm.enter_section(&[port], &[total]).expect("it begins");
                    let next = match round % 2 {
                        0 => (total + 1).expect("an add"),
                        _ => more.run(&[("x", total)]).expect("a run")["y"].clone(),
                    };
                    std::thread::yield_now();
                    total.copy_from(&next).expect("a copy");
                    section.end(&[total]).map(drop).expect("it ends");
                }
            });
        }
    });
    assert_eq!(total.to_vec::<i64>(), Ok(vec![i64::from(threads) * rounds]));
    no_races(&vm);
}

/// Threads that name two resources in different orders take both at once.
#[test]
fn resources_named_in_different_orders_do_not_deadlock() {
    within("the sections", || {
        let vm = Vm::builder().build().expect("an engine");
        let (a, b, inside) = (vm.critical("a"), vm.critical("b"), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (vm, a, b, inside) = (&vm, &a, &b, &inside);
                scope.spawn(move || {
                    for _ in 0..50 {
                        let both = if thread % 2 == 0 { [a, b] } else { [b, a] };
                        let section = vm.enter_section(&both, &[]).expect("it begins");
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "one thread at a time");
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        section.end(&[]).map(drop).expect("it ends");
                    }
                });
            }
        });
    });
}

/// Sections over unrelated resources, on lanes of their own, overlap: the first waits for the second.
#[test]
fn sections_over_other_resources_overlap_on_other_lanes() {
    let vm = Vm::builder().cpu_threads(2).build().expect("an engine");
    let (a, b, gate) = (vm.critical("a"), vm.critical("b"), ClosedGate::new());
    let section = |port: &Critical, lane: u32, f: Box<dyn FnOnce() -> Result<(), streamvm::FnError> + Send>| {
        list(|builder| {
            let mut builder = builder.on_lane(lane);
            let section = builder.begin_section(&[port], &[])?;
            builder.push("member", CPU, [], f);
            builder.end_section(section, &[]);
            Ok(())
        })
    };
    let held = gate.clone();
    let hold = move || {
        held.pass();
        Ok(())
    };
    let first = section(&a, 0, Box::new(hold));
    let first = vm.submit(first).expect("it is taken");
    let second = vm.submit(section(&b, 1, Box::new(|| Ok(())))).expect("it is taken");
    assert_eq!(second.wait(), Ok(()));
    assert!(!first.is_passed());
    gate.open();
    assert_eq!(first.wait(), Ok(()));
}

/// The section does not begin before its feed is written, and keeps the resource from no one until then; what uses its result later runs
/// after its end.
#[test]
fn a_section_begins_after_its_feeds_and_its_results_are_used_after_its_end() {
    let vm = Vm::builder().cpu_threads(4).build().expect("an engine");
    let (port, feed, gate) = (vm.critical("port"), on_device(&vm, &[1.0]), ClosedGate::new());
    let slow = Lane(5).enter();
    vm.call_fn("slow feed", CPU, [feed.update()], gate.function()).map(drop).expect("it is taken");
    drop(slow);
    let (log, result) = (Log::default(), on_device(&vm, &[0.0]));
    let (member, late) = (note(&log, 0, 0), note(&log, 0, 1));
    let section = vm.enter_section(&[&port], &[&feed]).expect("it begins");
    let begun = vm.call_fn("member", CPU, [], move |_| member()).expect("it is taken");
    section.end(&[&result]).map(drop).expect("it ends");
    let _lane = Lane(6).enter();
    let behind = vm.call_fn("behind", CPU, [result.read()], move |_| late()).expect("it is taken");
    let waits = |stream: &str, for_stream: &str| {
        let (stream, source) = (stream.parse().expect("a stream"), for_stream.parse().expect("a stream"));
        until(&format!("{stream} waits for {source}"), || {
            let report = vm.stall_report();
            let found = report.streams.iter().find(|of| of.stream == stream);
            found.is_some_and(|of: &StalledInstruction| of.waits_for.iter().any(|(of, _)| *of == source))
        });
    };
    waits("critical@cpu:0:0", "compute@cpu:0:5");
    waits("compute@cpu:0:0", "critical@cpu:0:0");
    waits("compute@cpu:0:6", "critical@cpu:0:0");
    assert!(!begun.is_passed() && !behind.is_passed());
    gate.open();
    assert_eq!(behind.wait(), Ok(()));
    assert_eq!(*log.lock().expect("no panic"), [(0, 0), (0, 1)]);
}

#[test]
fn a_list_with_a_section_that_does_not_end_is_refused_by_its_name_and_line() {
    let vm = Vm::builder().build().expect("an engine");
    let (port, disk) = (vm.critical("port"), vm.critical("disk"));
    let line = line!() + 3;
    let open = list(|b| {
        b.push("before", CPU, [], || Ok(()));
        let _never_ended = b.begin_section(&[&port, &disk], &[])?;
        b.push("member", CPU, [], || Ok(()));
        Ok(())
    });
    let text = open.to_string();
    let error = vm.submit(open).expect_err("it is refused");
    let Error::NotEnded { line: 1, .. } = &error else { panic!("{error}") };
    let told = error.to_string();
    assert!(told.contains("\"port\" and \"disk\""), "{told}");
    assert!(told.contains(&format!("sections.rs:{line}:")), "{told}");
    let parsed: InstructionList = text.parse().expect("it parses");
    assert!(matches!(plan(parsed, &PlanOptions::default()), Err(Error::NotEnded { line: 1, .. })));
    // Nothing of it has run, and nothing is blocked.
    let free = vm.enter_section(&[&disk], &[]).expect("it is free");
    assert_eq!(free.end(&[]).expect("it ends").wait(), Ok(()));
    assert_eq!(vm.stats().streams.iter().map(|of| of.instructions).sum::<u64>(), 2);
}

#[test]
fn sections_do_not_nest_and_end_once() {
    let vm = Vm::builder().build().expect("an engine");
    let (a, b) = (vm.critical("a"), vm.critical("b"));
    let nested = list(|builder| {
        let first = builder.begin_section(&[&a], &[])?;
        let second = builder.begin_section(&[&b], &[])?;
        builder.end_section(second, &[]);
        builder.end_section(first, &[]);
        Ok(())
    });
    assert!(matches!(vm.submit(nested), Err(Error::NestedSection { line: 1, .. })));
    let twice = list(|builder| {
        let section = builder.begin_section(&[&a], &[])?;
        builder.end_section(section.clone(), &[]);
        builder.end_section(section, &[]);
        Ok(())
    });
    assert!(matches!(vm.submit(twice), Err(Error::NoSection { line: 2, .. })));
    assert!(matches!(
        InstructionsBuilder::new().begin_section(&[], &[]),
        Err(Error::Build { error: BuildError::NoResource, .. })
    ));

    let open = vm.enter_section(&[&a], &[]).expect("it begins");
    let error = vm.enter_section(&[&b], &[]).map(drop).expect_err("it nests");
    assert!(matches!(&error, Error::NestedSection { open, .. } if open == "\"a\""), "{error}");
    let inside = list(|builder| {
        let section = builder.begin_section(&[&b], &[])?;
        builder.end_section(section, &[]);
        Ok(())
    });
    assert!(matches!(vm.submit(inside), Err(Error::NestedSection { .. })));
    open.end(&[]).map(drop).expect("it ends");
    vm.enter_section(&[&b, &b], &[]).expect("it begins").end(&[]).map(drop).expect("a resource may be named twice");
}

/// A section that is dropped, by an early return or a panic, ends, and its failure names it and its line.
#[test]
fn a_dropped_section_ends_and_is_reported() {
    let vm = Vm::builder().build().expect("an engine");
    let port = vm.critical("port");
    let line = line!() + 1;
    let section = vm.enter_section(&[&port], &[]).expect("it begins");
    vm.push("member", [], || Ok(())).map(drop).expect("it is taken");
    drop(section);
    vm.enter_section(&[&port], &[])
        .expect("the resource is free")
        .end(&[])
        .expect("it ends")
        .wait()
        .expect("it passes");
    let failure = failure_of(vm.wait_all());
    let told = failure.to_string();
    assert!(told.contains("the critical section over \"port\"") && told.contains("without an end"), "{told}");
    assert!(told.contains(&format!("sections.rs:{line}:")), "{told}");
    assert_eq!(vm.wait_all(), Ok(()), "it is reported once");

    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _section = vm.enter_section(&[&port], &[]).expect("it begins");
        panic!("a holder panics");
    }));
    assert!(unwound.is_err());
    vm.enter_section(&[&port], &[]).expect("the resource is free").end(&[]).map(drop).expect("it ends");
    failure_of(vm.wait_all());
}

/// A failure in a section passes by data: to its result, and neither to other results, nor to the next section.
#[test]
fn a_failure_in_a_section_passes_by_data_alone() {
    for (name, vm) in engines() {
        let (port, bad, good) = (vm.critical("port"), on_device(&vm, &[1.0]), on_device(&vm, &[1.0]));
        let section = vm.enter_section(&[&port], &[&bad, &good]).expect("it begins");
        vm.call_fn("fails", CPU, [bad.update()], |_| Err("no paper".into())).map(drop).expect("it is taken");
        vm.push("alone", [], || Ok(())).map(drop).expect("it is taken");
        section.end(&[&bad, &good]).map(drop).expect("it ends");
        // The next one has a failed feed, and begins all the same.
        let section = vm.enter_section(&[&port], &[&bad]).expect("it begins");
        let member = vm.push("member", [], || Ok(())).expect("it is taken");
        section.end(&[&good]).map(drop).expect("it ends");
        assert_eq!(member.wait(), Ok(()), "{name}");
        assert_eq!(good.wait(), Ok(()), "{name}");
        assert_eq!(failure_of(bad.wait()).what, "fails", "{name}");
    }
}

/// A result that nothing wrote is refused, and the section ends.
#[test]
fn an_end_that_is_refused_ends_the_section() {
    let vm = Vm::builder().build().expect("an engine");
    let (port, other) = (vm.critical("port"), Vm::builder().build().expect("an engine"));
    let foreign = on_device(&other, &[1.0]);
    let section = vm.enter_section(&[&port], &[]).expect("it begins");
    let refused = section.end(&[&foreign]).map(drop);
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
    assert!(vm.stall_report().sections.is_empty());
    vm.enter_section(&[&port], &[]).expect("it is free").end(&[]).map(drop).expect("it ends");
    assert_eq!(vm.wait_all(), Ok(()));
}

/// While a section is open: others block, may give up, and see who holds it.
#[test]
fn submitters_block_until_the_section_ends_or_say_that_it_is_held() {
    let vm = Vm::builder().max_instructions(8).build().expect("an engine");
    let (port, log) = (vm.critical("port"), Log::default());
    let section = vm.enter_section(&[&port], &[]).expect("it begins");
    std::thread::scope(|scope| {
        let blocked: Vec<_> = (0..2)
            .map(|holder| {
                let (vm, log, port) = (&vm, &log, &port);
                scope.spawn(move || match holder {
                    0 => vm.submit(section_of_a_list(log, port, 0, 1)).map(drop),
                    _ => section_of_calls(vm, log, port, 0, 2),
                })
            })
            .collect();
        until("both are blocked", || vm.stall_report().blocked_by_sections == 2);
        let report = vm.stall_report();
        assert_eq!((report.sections.len(), report.sections[0].over.as_str()), (1, "\"port\""));
        let told = report.to_string();
        assert!(
            told.contains("the critical section over \"port\" is open since") && told.contains("sections.rs:"),
            "{told}"
        );
        let others = scope.spawn(|| {
            let error = vm.try_submit(section_of_a_list(&log, &port, 0, 9)).map(drop).expect_err("it is held");
            assert!(matches!(&error, Error::SectionHeld { section, .. } if section == "\"port\""), "{error}");
            let limit = TimeLimit(Duration::from_millis(20));
            let late = limit.run(|| vm.enter_section(&[&port], &[]).map(drop));
            assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
        });
        others.join().expect("no panic");
        // Nobody who is blocked takes room in the queue: the holder submits more than may be pending.
        for _ in 0..5 * MEMBERS {
            vm.push("member", [], note(&log, 0, 0)).map(drop).expect("it is taken");
        }
        // Instructions of other threads that are in no section are not held up.
        let other = scope.spawn(|| vm.push("apart", [], || Ok(())).expect("it is taken").wait());
        assert_eq!(other.join().expect("no panic"), Ok(()));
        assert_eq!(vm.stall_report().blocked_by_sections, 2);
        section.end(&[]).map(drop).expect("it ends");
        blocked.into_iter().for_each(|thread| thread.join().expect("no panic").expect("it is taken"));
    });
    vm.wait_all().expect("nothing fails");
    never_interleaved(&log, 7);
}

/// The end is refused at a time limit, because the queue is full, and so is the plain end after it: the engine forgets the section, whose
/// instruction has yet to run. A section over its second resource still comes after that instruction.
#[test]
fn a_section_that_no_list_could_end_is_over_before_the_next_one_begins() {
    within("a section that no list could end", || {
        let vm = Vm::builder().max_instructions(8).cpu_threads(3).build().expect("an engine");
        let (first, second) = (vm.critical("first"), vm.critical("second"));
        let (member, filler, limit) = (ClosedGate::new(), ClosedGate::new(), TimeLimit(Duration::from_millis(20)));
        let on_lane = |lane, gate: &ClosedGate| {
            let mut b = InstructionsBuilder::new();
            b.on_lane(lane).call_fn("held", CPU, [], gate.function()).expect("it fits");
            vm.submit(b.finish()).map(drop)
        };
        let section = vm.enter_section(&[&first, &second], &[]).expect("nobody holds it");
        on_lane(1, &member).expect("there is room");
        std::thread::scope(|scope| {
            // Another thread, so that its instructions belong to no section.
            let fill = scope.spawn(|| {
                on_lane(2, &filler).expect("there is room");
                // A thread that gets no core for as long as the limit has not found the queue full.
                let full = TimeLimit(Duration::from_millis(200));
                while limit.run(|| on_lane(2, &filler)).is_ok() || full.run(|| on_lane(2, &filler)).is_ok() {}
            });
            fill.join().expect("no panic");
            let ended = limit.run(|| section.end(&[]).map(drop));
            assert!(matches!(ended, Err(Error::Timeout { .. })), "{ended:?}");
            filler.open();
            let ran = Arc::new(AtomicUsize::new(0));
            let noted = ran.clone();
            let (vm, second) = (&vm, &second);
            let next = scope.spawn(move || {
                let section = vm.enter_section(&[second], &[]).expect("it is not held any longer");
                vm.push("next", [], move || {
                    noted.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                })
                .expect("there is room");
                section.end(&[]).map(drop).expect("there is room");
            });
            next.join().expect("no panic");
            // If `next` did not wait, it would run meanwhile; a shorter time would make the test weaker, not fail.
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(ran.load(Ordering::SeqCst), 0, "the member has not run yet");
            member.open();
            vm.wait_all().expect("nothing fails");
            assert_eq!(ran.load(Ordering::SeqCst), 1);
        });
    });
}

/// A thread of the engine may not block.
#[test]
fn a_function_of_the_engine_is_told_that_the_section_is_held() {
    let vm = Arc::new(Vm::builder().build().expect("an engine"));
    let port = vm.critical("port");
    let section = vm.enter_section(&[&port], &[]).expect("it begins");
    let (inside, held) = (vm.clone(), port.clone());
    let tries = vm.push("tries", [], move || match inside.enter_section(&[&held], &[]) {
        Err(Error::SectionHeld { .. }) => Ok(()),
        other => Err(format!("{other:?}").into()),
    });
    assert_eq!(tries.expect("it is taken").wait(), Ok(()));
    section.end(&[]).map(drop).expect("it ends");
}

/// The engine is closed while a section is open and others wait for it.
#[test]
fn closing_the_engine_ends_every_wait_for_a_section() {
    within("the end of a blocked submitter", || {
        let vm = Vm::builder().build().expect("an engine");
        let (port, counted) = (vm.critical("port"), Var::counted());
        let section = vm.enter_section(&[&port], &[]).expect("it begins");
        vm.push("member", [counted.write()], || Ok(())).map(drop).expect("it is taken");
        std::thread::scope(|scope| {
            let blocked = scope.spawn(|| vm.enter_section(&[&port], &[]).map(drop));
            until("it is blocked", || vm.stall_report().blocked_by_sections == 1);
            vm.close();
            assert!(matches!(blocked.join().expect("no panic"), Err(Error::Shutdown { .. })));
        });
        assert!(matches!(section.end(&[]).map(drop), Err(Error::Shutdown { .. })));
        vm.shutdown(Duration::from_secs(15)).expect("what was submitted passes");
        assert_eq!(counted.version(), Some(1));
        let vm = Vm::builder().build().expect("an engine");
        let port = vm.critical("port");
        let section = vm.enter_section(&[&port], &[]).expect("it begins");
        vm.close();
        drop(section);
        assert!(vm.stall_report().sections.is_empty());
    });
}

/// What is printed and parsed back is the same section, and runs.
#[test]
fn a_section_is_printed_and_parsed_back() {
    let (port, disk) = (Critical::new("port"), Critical::new("a \"disk\""));
    let built = list(|b| {
        let x = b.full(CPU, DType::F32, &[2], 1.0)?;
        let section = b.begin_section(&[&port, &disk], &[&x])?;
        let y = b.neg(&x)?;
        let mut b = b.on_lane(1);
        b.end_section(section, &[&y]);
        let section = b.begin_section(&[&disk], &[])?;
        b.end_section(section, &[]);
        Ok(())
    });
    let text = built.to_string();
    let expected = "\
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 touch    critical@cpu:0:0      t0
c0 = critical \"port\"
c1 = critical \"a \\\"disk\\\"\"
%2 begin    critical@cpu:0:0      c0 c1
%3 call     compute@cpu:0:0       neg t0 -> t1                              f32[2]
%4 end      critical@cpu:0:1      c0 c1
%5 touch    critical@cpu:0:1      update t1
%6 begin    critical@cpu:0:1      c1
%7 end      critical@cpu:0:1      c1
";
    assert_eq!(text, expected);
    let parsed: InstructionList = text.parse().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(parsed.to_string(), text);
    let (planned, again) = (plan(built, &PlanOptions::default()), plan(parsed, &PlanOptions::default()));
    let (planned, again) = (planned.expect("a plan").list.to_string(), again.expect("a plan").list.to_string());
    assert_eq!(planned, again);
    assert!(
        planned.contains("wait     critical@cpu:0:1      compute@cpu:0:0 by"),
        "the end waits for the member: {planned}"
    );
    let vm = Vm::builder().build().expect("an engine");
    let parsed: InstructionList = text.parse().expect("it parses");
    assert_eq!(vm.submit(parsed).expect("it is taken").wait(), Ok(()));

    for (wrong, what) in [
        ("%0 begin critical@cpu:0:0 c0\n", "named before"),
        ("c0 = critical \"a\"\n%0 end critical@cpu:0:0 c0\n", "a line before begins"),
        ("c0 = critical \"a\"\n%0 begin compute@cpu:0:0 c0\n", "critical stream"),
        ("c0 = critical \"a\"\n%0 begin critical@cpu:0:0\n", "fits its operands"),
        ("c0 = critical \"a\"\n%0 begin critical@cpu:0:0 c0\n%1 end critical@cpu:0:0\n", "open section, c0"),
        ("c0 = critical \"a\"\n%0 push compute@cpu:0:0 \"f\" read c0\n", "a tensor named before"),
    ] {
        let error = wrong.parse::<InstructionList>().map(drop).expect_err(wrong).to_string();
        assert!(error.contains(what), "{wrong}: {error}");
    }
}

/// Random lists of sections from random threads, in simulated mode, by seed.
#[test]
fn sections_of_one_thread_keep_their_order_under_drawn_schedules() {
    for seed in 0..20 {
        let vm = Vm::builder().mode(Mode::Simulated { seed }).workers(2).detect_races(true).build().expect("an engine");
        let (log, ports) = (Log::default(), [vm.critical("a"), vm.critical("b")]);
        let mut random = Random::new(seed, 0);
        for holder in 0..12 {
            let resource = random.below(2);
            match random.below(2) {
                0 => vm
                    .submit(section_of_a_list(&log, &ports[resource], resource, holder))
                    .map(drop)
                    .expect("it is taken"),
                _ => section_of_calls(&vm, &log, &ports[resource], resource, holder).expect("it is taken"),
            }
        }
        assert_eq!(vm.wait_all(), Ok(()), "seed {seed}");
        never_interleaved(&log, 12);
        no_races(&vm);
    }
}

/// The last output of such a list is as if the list had never been submitted.
#[test]
fn the_last_output_of_a_list_that_does_not_end_its_section_is_not_written() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let (port, x) = (vm.critical("port"), vm.full(CPU, DType::F32, &[3], 2.0)?);
    let mut made = None;
    let open = list(|b| {
        let _never_ended = b.begin_section(&[&port], &[])?;
        made = Some(b.op(Op::Relu, &[&x], Params::default())?);
        Ok(())
    });
    let made = made.expect("it was made");
    assert!(matches!(vm.submit(open).map(drop), Err(Error::NotEnded { .. })));
    assert!(matches!(vm.lend(&made).map(drop), Err(Error::NeverWritten { .. })));
    let read = (&made + 1.0).map(drop);
    assert!(read.is_err(), "{read:?}");
    Ok(())
}
