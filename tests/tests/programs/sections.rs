//! Critical sections in programs: the steps of a section run without those of other holders in between, be these runs or lists.

use std::sync::{Arc, Mutex};

use streamvm::program::{CompileOptions, Mutant, Program, Recorder};
use streamvm::report::StalledInstruction;
use streamvm::{
    Critical, DType, DeviceId, Error, Executable, FnError, InstructionList, InstructionsBuilder, Lane, Mode,
    ProgramError, Tensor, Vm, Watch,
};
use streamvm_tests::compiled::{SharedSections, judge_shared_sections};
use streamvm_tests::{CPU, ClosedGate, Text, list, no_races, on_device, until, within};
use streamvm_verify::{Trace, verify};

const OTHER: DeviceId = DeviceId::cpu(1);
const SIM: DeviceId = DeviceId::sim(0);

/// The holder of each member of a section that ran, in the order in which they ran.
type Log = Arc<Mutex<Vec<usize>>>;

/// Notes that a member ran.
fn note(log: &Log, holder: usize) -> impl Fn() -> Result<(), FnError> + Send + Sync + use<> {
    let log = log.clone();
    move || {
        std::thread::yield_now();
        log.lock().map_err(|_| "a function panicked")?.push(holder);
        std::thread::yield_now();
        Ok(())
    }
}

/// How many functions a section has.
const MEMBERS: usize = 6;

/// A program with a section of functions on three devices that have nothing in common, and a kernel between them.
fn program(vm: &Vm, log: &Log, port: &Critical, holder: usize) -> Program {
    vm.record("holds", |r| {
        let x = r.feed("x", CPU, DType::F32, &[4])?;
        let before = (&x + 1.0)?;
        let section = r.begin_section(&[port], &[])?;
        for _ in 0..MEMBERS / 3 {
            [CPU, OTHER, SIM].into_iter().try_for_each(|device| r.host_fn("member", device, note(log, holder)))?;
        }
        let within = (&before * 2.0)?;
        r.end_section(section, &[])?;
        r.fetch("y", &(&within - 1.0)?)
    })
    .expect("it can be recorded")
}

fn compiled(vm: &Vm, program: &Program, options: &CompileOptions) -> Executable {
    vm.compile(program, &[], options).expect("it compiles")
}

/// A list with the same section.
fn section_of_a_list(log: &Log, port: &Critical, holder: usize) -> InstructionList {
    list(|b| {
        let section = b.begin_section(&[port], &[])?;
        for device in [CPU, OTHER, SIM] {
            for lane in 0..MEMBERS as u32 / 3 {
                b.on_lane(lane).host_fn("member", device, note(log, holder));
            }
        }
        b.end_section(section, &[]);
        Ok(())
    })
}

/// The first section whose members do not stand together.
fn interleaved(log: &Log) -> Option<Vec<usize>> {
    let log = log.lock().expect("no panic");
    log.chunks(MEMBERS).find(|members| members.iter().any(|holder| *holder != members[0])).map(<[usize]>::to_vec)
}

fn builder() -> streamvm::VmBuilder {
    Vm::builder().cpu_devices(2).sim_devices(1)
}

/// Some threads run a program, and others submit lists. The trace shows that the waits alone give the order, and the race detector that they were kept.
#[test]
fn sections_of_runs_and_lists_of_several_threads_never_interleave() {
    within("the sections", || {
        let trace = Text::default();
        let vm = builder().cpu_threads(3).detect_races(true).record(trace.clone()).build().expect("an engine");
        let (log, port) = (Log::default(), vm.critical("port"));
        let x = on_device(&vm, &[1.0, 2.0, 3.0, 4.0]);
        let (threads, rounds) = (4, 12);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (vm, log, port, x) = (&vm, &log, &port, &x);
                scope.spawn(move || {
                    let _lane = Lane(thread as u32).enter();
                    let lanes = 1 + thread as u32 / 2;
                    let options = CompileOptions { lanes, hand_over_ns: 0, ..CompileOptions::default() };
                    let executable = compiled(vm, &program(vm, log, port, thread), &options);
                    for _ in 0..rounds {
                        if thread % 2 == 0 {
                            let run = executable.run(&[("x", x)]).expect("it is taken");
                            assert_eq!(run["y"].to_vec::<f32>().expect("it runs"), [3.0, 5.0, 7.0, 9.0]);
                        } else {
                            vm.submit(section_of_a_list(log, port, thread)).map(drop).expect("it is taken");
                        }
                    }
                });
            }
        });
        vm.wait_all().expect("nothing fails");
        assert_eq!(interleaved(&log), None);
        assert_eq!(log.lock().expect("no panic").len(), threads * rounds * MEMBERS);
        no_races(&vm);
        drop(vm);
        let report = verify(&Trace::read(trace.written().as_bytes()).expect("a trace")).expect("small enough");
        assert!(report.is_ok(), "{report:?}");
    });
}

/// Runs and lists in turn, on lanes of their own, in an order that the seed draws. Returns the first section that is interleaved.
fn interleaved_by(seed: u64, mutant: Option<Mutant>) -> Option<Vec<usize>> {
    let vm = builder().mode(Mode::Simulated { seed }).build().expect("an engine");
    let (log, port) = (Log::default(), vm.critical("port"));
    let x = on_device(&vm, &[1.0; 4]);
    let options = CompileOptions { mutant, ..CompileOptions::default() };
    for holder in 0..6 {
        let _lane = Lane(holder as u32).enter();
        if holder % 2 == 0 {
            compiled(&vm, &program(&vm, &log, &port, holder), &options)
                .run(&[("x", &x)])
                .map(drop)
                .expect("it is taken");
        } else {
            vm.submit(section_of_a_list(&log, &port, holder)).map(drop).expect("it is taken");
        }
    }
    vm.wait_all().expect("nothing fails");
    assert_eq!(log.lock().expect("no panic").len(), 6 * MEMBERS);
    interleaved(&log)
}

#[test]
fn sections_of_runs_and_lists_never_interleave_in_any_drawn_order() {
    for seed in 0..40 {
        assert_eq!(interleaved_by(seed, None), None, "seed {seed}");
    }
    let broken = (0..40).find_map(|seed| interleaved_by(seed, Some(Mutant::SectionDropped)));
    assert!(broken.is_some(), "a program without its sections is not told from one with them");
}

type Member = Box<dyn Fn() -> Result<(), FnError> + Send + Sync>;

/// One holder stands at a gate within its section; no member of the other, submitted later by another thread, runs before the gate is open.
fn waits_for_the_other(run_first: bool) {
    let vm = builder().cpu_threads(3).build().expect("an engine");
    let (log, port, gate) = (Log::default(), vm.critical("port"), ClosedGate::new());
    let (stands, noted) = (gate.clone(), note(&log, 0));
    let at_the_gate = move || {
        stands.pass();
        noted()
    };
    let run = |first: Member, second: Member| {
        let program = vm.record("holds", |r| {
            let section = r.begin_section(&[&port], &[])?;
            r.host_fn("first member", CPU, first)?;
            r.host_fn("second member", OTHER, second)?;
            r.end_section(section, &[])
        });
        compiled(&vm, &program.expect("it can be recorded"), &CompileOptions::default()).run(&[]).expect("it is taken");
    };
    let submit = |first: Member, second: Member| {
        let list = list(|b| {
            let mut b = b.on_lane(1);
            let section = b.begin_section(&[&port], &[])?;
            b.host_fn("first member", CPU, first);
            b.host_fn("second member", OTHER, second);
            b.end_section(section, &[]);
            Ok(())
        });
        vm.submit(list).map(drop).expect("it is taken");
    };
    let (first, second): (Member, Member) = (Box::new(at_the_gate), Box::new(note(&log, 0)));
    let (third, fourth): (Member, Member) = (Box::new(note(&log, 1)), Box::new(note(&log, 1)));
    if run_first {
        run(first, second)
    } else {
        submit(first, second)
    }
    gate.wait_entered(1);
    std::thread::scope(|scope| {
        let later = scope.spawn(|| if run_first { submit(third, fourth) } else { run(third, fourth) });
        later.join().expect("no panic");
    });
    // The engine has nothing else to do until its streams wait for the section that is at the gate.
    until("the other section waits", || {
        let report = vm.stall_report();
        let critical = |of: &&StalledInstruction| of.stream.stream_type == streamvm::StreamType::Critical;
        report.streams.iter().filter(critical).count() == 2
    });
    assert!(log.lock().expect("no panic").iter().all(|holder| *holder == 0));
    gate.open();
    vm.wait_all().expect("nothing fails");
    assert_eq!(*log.lock().expect("no panic"), [0, 0, 1, 1]);
}

#[test]
fn a_list_waits_for_the_section_of_a_run() {
    waits_for_the_other(true);
}

#[test]
fn a_run_waits_for_the_section_of_a_list() {
    waits_for_the_other(false);
}

/// The section does not begin before its feed is written, and what uses its result runs after its end.
#[test]
fn a_section_of_a_run_begins_after_its_feeds_and_its_results_are_used_after_its_end() {
    let vm = builder().cpu_threads(4).build().expect("an engine");
    let (port, gate, log) = (vm.critical("port"), ClosedGate::new(), Log::default());
    let (stands, member, late) = (gate.clone(), note(&log, 0), note(&log, 1));
    let program = vm.record("p", |r| {
        let (feed, result) = (r.full(OTHER, DType::F32, &[2], 1.0)?, r.full(CPU, DType::F32, &[2], 1.0)?);
        r.call_fn("slow feed", OTHER, [feed.update()], move |_| {
            stands.pass();
            Ok(())
        })?;
        let section = r.begin_section(&[&port], &[&feed])?;
        r.call_fn("member", CPU, [], move |_| member())?;
        r.end_section(section, &[&result])?;
        // On another device, so that no stream orders it after the member.
        let behind = result.to(SIM)?;
        r.call_fn("behind", SIM, [behind.update()], move |_| late())?;
        r.fetch("y", &behind)
    });
    let executable = compiled(&vm, &program.expect("it can be recorded"), &CompileOptions::default());
    let run = executable.run(&[]).expect("it is taken");
    let waits = |stream: &str, source: &str| {
        let (stream, source) = (stream.parse().expect("a stream"), source.parse().expect("a stream"));
        until(&format!("{stream} waits for {source}"), || {
            let report = vm.stall_report();
            let found = report.streams.iter().find(|of| of.stream == stream);
            found.is_some_and(|of: &StalledInstruction| of.waits_for.iter().any(|(of, _)| *of == source))
        });
    };
    waits("critical@cpu:0:0", "compute@cpu:1:0");
    waits("compute@cpu:0:0", "critical@cpu:0:0");
    waits("h2d@sim:0:0", "critical@cpu:0:0");
    assert!(log.lock().expect("no panic").is_empty());
    gate.open();
    assert_eq!(run["y"].to_vec::<f32>().expect("it runs"), [1.0; 2]);
    assert_eq!(*log.lock().expect("no panic"), [0, 1]);
}

/// A failed member fails what reads its output; the section ends, and the next run has its turn.
#[test]
fn a_section_with_a_failed_step_ends() {
    let vm = builder().build().expect("an engine");
    let port = vm.critical("port");
    let state = vm.full(CPU, DType::F32, &[2], 1.0).expect("a tensor");
    let program = vm.record("p", |r| {
        let (x, state) = (r.feed("x", CPU, DType::F32, &[2])?, r.parameter("state", &state)?);
        let section = r.begin_section(&[&port], &[&x])?;
        r.call_fn("asks", CPU, [x.read(), state.write()], |context| {
            let asked = context.reads.get::<f32>(0)?[0];
            if asked < 0.0 {
                return Err("on purpose".into());
            }
            context.writes.take::<f32>(0)?.fill(asked);
            Ok(())
        })?;
        r.end_section(section, &[&state])?;
        r.fetch("y", &(&state + 1.0)?)
    });
    let program = program.expect("it can be recorded");
    let executable = vm.compile(&program, &[("state", &state)], &CompileOptions::default()).expect("it compiles");
    let failed = executable.run(&[("x", &on_device(&vm, &[-1.0, 0.0]))]).expect("it is taken");
    let text = failed["y"].wait().expect_err("its function fails").to_string();
    assert!(text.contains("asks of p failed") && text.contains("on purpose"), "{text}");
    state.wait().expect_err("the function should have written it");
    let again = executable.run(&[("x", &on_device(&vm, &[4.0, 0.0]))]).expect("it is taken");
    assert_eq!(again["y"].to_vec::<f32>().expect("it runs"), [5.0; 2]);
    again.wait().expect("the section has healed its result");
}

/// What is wrong with the sections of a recording is told when it ends or at the call, with the names of the resources and the line.
#[test]
fn sections_that_do_not_begin_and_end_in_turn_are_refused() {
    let (vm, port, disk) = (Vm::builder().build().expect("an engine"), Critical::new("port"), Critical::new("disk"));
    let refused = |f: &dyn Fn(&Recorder) -> Result<(), Error>| vm.record("p", f).expect_err("it is refused");
    let line = line!() + 3;
    let never_ended = refused(&|r| {
        r.host_fn("before", CPU, || Ok(()))?;
        let _never_ended = r.begin_section(&[&port, &disk], &[])?;
        r.host_fn("member", CPU, || Ok(()))
    });
    let told = never_ended.to_string();
    assert!(matches!(never_ended, Error::NotEnded { line: 1, .. }), "{told}");
    assert!(told.contains("\"port\" and \"disk\"") && told.contains(&format!("sections.rs:{line}:")), "{told}");
    let nested = refused(&|r| {
        let first = r.begin_section(&[&port], &[])?;
        let second = r.begin_section(&[&disk], &[])?;
        r.end_section(second, &[])?;
        r.end_section(first, &[])
    });
    assert!(matches!(nested, Error::NestedSection { line: 1, .. }), "{nested}");
    let twice = refused(&|r| {
        let section = r.begin_section(&[&port], &[])?;
        r.end_section(section.clone(), &[])?;
        r.end_section(section, &[])
    });
    assert!(matches!(twice, Error::NoSection { line: 2, .. }), "{twice}");
    let in_block = refused(&|r| {
        let condition = r.feed("c", CPU, DType::Bool, &[])?;
        r.if_true(&condition, || r.begin_section(&[&port], &[]).map(drop))
    });
    let told = in_block.to_string();
    assert!(told.contains("cannot begin or end in a block") && told.contains("sections.rs"), "{told}");
    let of_feed = refused(&|r| {
        let x = r.feed("x", CPU, DType::F32, &[2])?;
        let section = r.begin_section(&[&port], &[&x])?;
        r.end_section(section, &[&x])
    });
    assert!(of_feed.to_string().contains("it writes a feed"), "{of_feed}");
    refused(&|r| r.begin_section(&[], &[]).map(drop));
}

/// Another thread that holds the resource keeps a run out, as it does a list; a run in a section of its own thread would nest.
#[test]
fn runs_wait_for_threads_that_hold_the_resource() {
    let vm = builder().build().expect("an engine");
    let (log, port) = (Log::default(), vm.critical("port"));
    let executable = compiled(&vm, &program(&vm, &log, &port, 1), &CompileOptions::default());
    let x = on_device(&vm, &[1.0; 4]);
    let section = vm.enter_section(&[&port], &[]).expect("it begins");
    let nested = executable.run(&[("x", &x)]).expect_err("it would nest");
    assert!(matches!(nested, Error::NestedSection { .. }), "{nested}");
    std::thread::scope(|scope| {
        let runs = scope.spawn(|| executable.run(&[("x", &x)]).map(drop));
        until("the run is kept out", || vm.stall_report().blocked_by_sections == 1);
        for _ in 0..MEMBERS {
            vm.push("member", [], note(&log, 0)).map(drop).expect("it is taken");
        }
        section.end(&[]).map(drop).expect("it ends");
        runs.join().expect("no panic").expect("it is taken");
    });
    vm.wait_all().expect("nothing fails");
    assert_eq!(*log.lock().expect("no panic"), [[0; MEMBERS], [1; MEMBERS]].concat());
}

/// Steps that are submitted one by one would let others in between.
#[test]
fn a_program_with_sections_cannot_be_watched() {
    let vm = builder().build().expect("an engine");
    let program = program(&vm, &Log::default(), &vm.critical("port"), 0);
    let options = CompileOptions { step_by_step: true, ..CompileOptions::default() };
    let x = on_device(&vm, &[1.0; 4]);
    let watched = compiled(&vm, &program, &options).run_watched(&[("x", &x)], Watch::All, &mut |_| Ok(()));
    let Err(Error::Program { error, .. }) = watched else { panic!("it is refused") };
    assert!(matches!(&*error, ProgramError::WatchedSection { section, .. } if section == "\"port\""), "{error}");
    assert!(error.to_string().contains("sections.rs"), "{error}");
}

/// A parsed program has resources of its own, until they are bound to those of others.
#[test]
fn sections_print_parse_back_and_are_bound_by_name() {
    let vm = builder().build().expect("an engine");
    let (port, disk) = (vm.critical("port"), vm.critical("disk"));
    let program = vm.record("printed", |r| {
        let x = r.feed("x", CPU, DType::F32, &[2])?;
        let y = (&x + 1.0)?;
        let condition = r.full(CPU, DType::Bool, &[], true)?;
        let (section, begun) = r.after(&[], || r.begin_section(&[&port, &disk], &[&y, &x]))?;
        r.if_true(&condition, || y.copy_from(&(&y + 1.0)?))?;
        let ((), ended) = r.after(&[&begun], || r.end_section(section, &[&y]))?;
        let (z, _) = r.after(&[&ended], || y.neg())?;
        r.fetch("z", &z)
    });
    let program = program.expect("it can be recorded");
    let text = program.to_string();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("c0") || line.contains("touch")).collect();
    assert_eq!(
        lines,
        [
            "%2 touch    critical@cpu:0:0      t1 t0",
            "c0 = critical \"port\"",
            "%3 begin    critical@cpu:0:0      c0 c1",
            "%6 end      critical@cpu:0:0      c0 c1",
            "%7 touch    critical@cpu:0:0      update t1",
        ],
        "{text}"
    );
    assert!(text.contains("order %2 to %3 before %6 to %7\norder %6 to %7 before %8 to %8\n"), "{text}");
    let mut parsed = Program::parse(&text).expect("it parses");
    assert_eq!(parsed.to_string(), text);
    assert_eq!((parsed.steps.len(), parsed.orders.clone()), (program.steps.len(), program.orders.clone()));
    assert_eq!(parsed.criticals(), ["port", "disk"]);
    let sections = |program: &Program| -> Vec<_> {
        program.steps.iter().filter_map(|step| step.work.section().cloned()).collect()
    };
    assert_ne!(sections(&parsed), sections(&program), "resources are equal to themselves alone");
    let unknown = parsed.bind_critical("ports", &port).expect_err("there is no such resource").to_string();
    assert!(unknown.contains("\"ports\"; its critical resources are port, disk"), "{unknown}");
    parsed.bind_critical("port", &port).expect("there is one");
    parsed.bind_critical("disk", &disk).expect("there is one");
    assert_eq!(sections(&parsed), sections(&program));
    parsed.check().expect("its sections end");
    let x = on_device(&vm, &[1.0, 2.0]);
    let run = compiled(&vm, &parsed, &CompileOptions::default()).run(&[("x", &x)]).expect("it is taken");
    assert_eq!(run["z"].to_vec::<f32>().expect("it runs"), [-3.0, -4.0]);
}

/// A section that names a resource twice, or whose two names are bound to one resource, is a section over that resource: in lists, for threads and in programs.
#[test]
fn a_resource_that_a_section_names_twice_counts_once() {
    let vm = builder().build().expect("an engine");
    let (log, port) = (Log::default(), vm.critical("port"));
    let program = vm.record("twice", |r| {
        let section = r.begin_section(&[&Critical::new("a"), &Critical::new("b")], &[])?;
        for device in [CPU, OTHER].repeat(MEMBERS / 2) {
            r.host_fn("member", device, note(&log, 7))?;
        }
        r.end_section(section, &[])
    });
    let mut program = program.expect("it can be recorded");
    program.bind_critical("a", &port).expect("a section has it");
    program.bind_critical("b", &port).expect("a section has it");
    program.check().expect("its section ends");
    let run = compiled(&vm, &program, &CompileOptions::default());
    let of_threads = log.clone();
    within("the sections", move || {
        let log = of_threads;
        std::thread::scope(|scope| {
            for holder in 0..3 {
                let (vm, run, log, port) = (&vm, &run, &log, &port);
                scope.spawn(move || {
                    let _lane = Lane(holder as u32).enter();
                    for _ in 0..4 {
                        match holder {
                            0 => drop(run.run(&[]).expect("it is taken")),
                            1 => {
                                let twice = list(|b| {
                                    let section = b.begin_section(&[port, port], &[])?;
                                    for _ in 0..MEMBERS {
                                        b.host_fn("member", OTHER, note(log, 8));
                                    }
                                    b.end_section(section, &[]);
                                    Ok(())
                                });
                                drop(vm.submit(twice).expect("it is taken"));
                            }
                            _ => {
                                let section = vm.enter_section(&[port, port], &[]).expect("it begins");
                                for _ in 0..MEMBERS {
                                    let member = list(|b| {
                                        b.host_fn("member", CPU, note(log, 9));
                                        Ok(())
                                    });
                                    drop(vm.submit(member).expect("it is taken"));
                                }
                                drop(section.end(&[]).expect("it ends"));
                            }
                        }
                    }
                });
            }
        });
        vm.wait_all().expect("nothing fails");
    });
    assert_eq!(log.lock().expect("nothing panics").len(), 3 * 4 * MEMBERS);
    assert_eq!(interleaved(&log), None);
}

#[test]
fn lists_with_sections_can_be_recorded() {
    let vm = builder().build().expect("an engine");
    let port = vm.critical("port");
    let program = vm.record("list", |r| {
        let x = r.feed("x", CPU, DType::F32, &[2])?;
        let mut builder = InstructionsBuilder::new();
        let section = builder.begin_section(&[&port], &[&x])?;
        let y = builder.neg(&x)?;
        builder.end_section(section, &[&y]);
        r.submit(builder.finish())?;
        r.fetch("y", &y)
    });
    let program = program.expect("it can be recorded");
    let steps: Vec<_> = program.steps.iter().map(|step| (step.work.name(), step.operands.len())).collect();
    assert_eq!(steps, [("begin section", 1), ("neg", 2), ("end section", 1)]);
    let run = compiled(&vm, &program, &CompileOptions::default()).run(&[("x", &on_device(&vm, &[1.0, 2.0]))]);
    assert_eq!(run.expect("it is taken")["y"].to_vec::<f32>().expect("it runs"), [-1.0, -2.0]);
}

/// A called program brings its sections; in a section of the recording they would nest.
#[test]
fn called_programs_have_their_sections() {
    let vm = builder().build().expect("an engine");
    let (log, port) = (Log::default(), vm.critical("port"));
    let inner = program(&vm, &log, &port, 3);
    let call = |r: &Recorder, x: &Tensor| Ok::<Tensor, Error>(r.call(&inner, &[("x", x)], &[])?["y"].clone());
    let outer = vm.record("calls twice", |r| {
        let once = call(r, &r.feed("x", CPU, DType::F32, &[4])?)?;
        r.fetch("y", &call(r, &once)?)
    });
    let x = on_device(&vm, &[1.0; 4]);
    let run = compiled(&vm, &outer.expect("it can be recorded"), &CompileOptions::default()).run(&[("x", &x)]);
    let run = run.expect("it is taken");
    assert_eq!(run["y"].to_vec::<f32>().expect("it runs"), [7.0; 4]);
    run.wait().expect("nothing fails");
    assert_eq!(log.lock().expect("no panic").len(), 2 * MEMBERS);
    let nested = vm.record("nests", |r| {
        let section = r.begin_section(&[&port], &[])?;
        call(r, &r.feed("x", CPU, DType::F32, &[4])?)?;
        r.end_section(section, &[])
    });
    assert!(matches!(nested, Err(Error::NestedSection { .. })), "{nested:?}");
}

/// Programs with equal sections are found again by the cache.
#[test]
fn the_cache_compares_sections_by_their_resources() {
    let vm = builder().build().expect("an engine");
    let (port, other) = (vm.critical("port"), vm.critical("port"));
    let record = |port: &Critical| {
        vm.record("p", |r| {
            let x = r.feed("x", CPU, DType::F32, &[2])?;
            let section = r.begin_section(&[port], &[])?;
            let y = (&x + 1.0)?;
            r.end_section(section, &[])?;
            r.fetch("y", &y)
        })
        .expect("it can be recorded")
    };
    for port in [&port, &port, &other] {
        vm.compiled(record(port), &[], &CompileOptions::default()).expect("it compiles");
    }
    let counted = vm.stats().programs;
    assert_eq!((counted.hits, counted.misses), (1, 2));
}

/// Runs, eager calls and lists of two threads, with sections over one to three resources, some of them under two names.
#[test]
fn drawn_sections_over_several_resources_of_two_threads_never_overlap() {
    let mut all = SharedSections::default();
    for seed in 1..=20 {
        let judged = within("the sections", move || judge_shared_sections(seed, true));
        let SharedSections { over_several, under_two_names } = judged.unwrap_or_else(|found| panic!("{found:?}"));
        all.over_several += over_several;
        all.under_two_names += under_two_names;
    }
    assert!(all.over_several > 40 && all.under_two_names > 12, "{all:?}");
}

/// The same where the resources of the threads differ: the checks must find that.
#[test]
fn drawn_sections_that_are_not_over_the_same_resources_are_found_to_overlap() {
    let overlaps = |seed| match within("the sections", move || judge_shared_sections(seed, false)) {
        Ok(_) => false,
        Err(found) => {
            assert!(found.text.contains("within another one"), "{found:?}");
            true
        }
    };
    assert!((1..=40).any(overlaps), "no section began within another one");
}
