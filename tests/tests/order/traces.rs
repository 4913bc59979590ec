//! Traces with times: every wait of the plan is an arrow with the right ends, slices of a track nest, and what is pending comes down to nothing.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use streamvm::program::CompileOptions;
use streamvm::report::PoolStats;
use streamvm::{DType, DeviceId, Error, Lane, Mode, TraceConfig, Vm};
use streamvm_report::packets::{EventType, TracePacket};
use streamvm_report::{Packets, Recording, Report};
use streamvm_tests::{CPU, within};

const SIM: DeviceId = DeviceId::sim(0);

/// Bytes that are written to and looked at.
#[derive(Clone, Default)]
pub(super) struct Shared(pub(super) Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panics with it").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    pub(super) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().expect("nobody panics with it"))
    }
}

/// An instruction: the name of its stream, and its number.
type At = (String, u64);

/// A slice of a trace.
#[derive(Debug)]
pub(super) struct Shown {
    track: String,
    pub(super) name: String,
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) arguments: HashMap<String, String>,
    flows: Vec<u64>,
    ending_flows: Vec<u64>,
}

/// The slices of a trace, and the last value of each counter.
pub(super) fn read(bytes: &[u8]) -> (Vec<Shown>, HashMap<String, i64>) {
    let packets: Vec<TracePacket> = Packets::new(bytes).collect::<io::Result<_>>().expect("a trace");
    let (mut tracks, mut names, mut argument_names, mut texts) =
        (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
    let (mut open, mut slices, mut counters) = (HashMap::<u64, Vec<Shown>>::new(), Vec::new(), HashMap::new());
    let mut last: HashMap<u64, u64> = HashMap::new();
    for packet in &packets {
        if let Some(track) = &packet.track {
            let name = track.name.clone().or_else(|| track.process.as_ref()?.name.clone());
            tracks.insert(track.uuid.expect("a number"), name.expect("a name"));
        }
        for new in packet.interned.iter() {
            names.extend(new.names.iter().map(|it| (it.number, it.name.clone().expect("a name"))));
            argument_names.extend(new.argument_names.iter().map(|it| (it.number, it.name.clone().expect("a name"))));
            let text = |text: &Vec<u8>| String::from_utf8(text.clone()).expect("a text");
            texts.extend(new.texts.iter().map(|it| (it.number, text(it.text.as_ref().expect("a text")))));
        }
        let Some(event) = &packet.event else { continue };
        let (at, track) = (packet.timestamp.expect("a time"), event.track.expect("a track"));
        match EventType::try_from(event.kind.expect("a kind")).expect("a known kind") {
            kind @ (EventType::SliceBegin | EventType::Instant) => {
                let argument = |it: &streamvm_report::packets::DebugAnnotation| {
                    let value = it.number.map(|number| number.to_string());
                    (argument_names[&it.name].clone(), value.unwrap_or_else(|| texts[&it.interned_text].clone()))
                };
                let slice = Shown {
                    track: tracks[&track].clone(),
                    name: names[&event.name].clone(),
                    begin: at,
                    end: at,
                    arguments: event.arguments.iter().map(argument).collect(),
                    flows: event.flows.clone(),
                    ending_flows: event.ending_flows.clone(),
                };
                // An event at one time is a slice without a length.
                if kind == EventType::Instant { slices.push(slice) } else { open.entry(track).or_default().push(slice) }
            }
            EventType::SliceEnd => {
                let slice = open.get_mut(&track).and_then(Vec::pop).expect("it has begun");
                assert!(slice.begin <= at, "{slice:?} ends at {at}");
                slices.push(Shown { end: at, ..slice });
            }
            EventType::Counter => {
                let known = last.insert(track, at).unwrap_or(0);
                assert!(known <= at, "counters are written in the order of time");
                counters.insert(tracks[&track].clone(), event.value.expect("a value"));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "each slice ends");
    // In the order of their begins, the longest first, each slice of a track is within those that have begun and not ended.
    let mut of_tracks: HashMap<&str, Vec<(u64, std::cmp::Reverse<u64>)>> = HashMap::new();
    for slice in &slices {
        of_tracks.entry(&slice.track).or_default().push((slice.begin, std::cmp::Reverse(slice.end)));
    }
    for (track, mut times) in of_tracks {
        times.sort();
        let mut around: Vec<u64> = Vec::new();
        for (begin, std::cmp::Reverse(end)) in times {
            while around.last().is_some_and(|last| *last <= begin) {
                around.pop();
            }
            assert!(around.last().is_none_or(|last| end <= *last), "{track}: a slice ends within another one");
            around.push(end);
        }
    }
    (slices, counters)
}

/// The waits of the plan, each from what is waited for to what waits: from what the engine records for the verifier.
fn planned(record: &[u8]) -> BTreeSet<(At, At)> {
    let lines = std::str::from_utf8(record).expect("a text").lines();
    let lines: Vec<Value> = lines.map(|line| serde_json::from_str(line).expect("an object")).collect();
    let name = |line: &Value| Some((line["stream"]["id"].as_u64()?, line["stream"]["name"].as_str()?.to_owned()));
    let streams: HashMap<u64, String> = lines.iter().filter_map(name).collect();
    let point = |point: &Value| -> At {
        (streams[&point[0].as_u64().expect("a stream")].clone(), point[1].as_u64().expect("a number"))
    };
    let instructions = lines.iter().map(|line| &line["instruction"]).filter(|it| it.is_object());
    let waits = instructions.flat_map(|it| it["waits"].as_array().into_iter().flatten().map(move |wait| (wait, it)));
    waits.map(|(wait, it)| (point(&wait["point"]), point(&it["at"]))).collect()
}

/// Work on streams of two devices and on workers, with waits in all directions, a failure that passes on, and a program with a loop.
fn work(vm: &Vm) -> Result<(), Error> {
    let x = vm.from_slice(&[1i32, 2, 3, 4], &[4])?.to(CPU)?;
    let mut sums = Vec::new();
    for lane in 0..3 {
        let _lane = Lane(lane).enter();
        let there = x.to(SIM)?;
        let mut sum = (&there + &there)?;
        for _ in 0..5 {
            sum = (&sum + &(&there * 2)?)?;
        }
        sums.push(sum);
    }
    let total = (&(&sums[0] + &sums[1])? + &sums[2])?;
    let back = total.to(CPU)?;
    let counted = vm.full(CPU, DType::I32, &[4], 0)?;
    for _ in 0..4 {
        vm.push("looks", [back.read(), counted.update()], || Ok(()))?;
    }
    let doubled = (&counted * 2)?;
    let broken = (&x / &vm.full(CPU, DType::I32, &[4], 0)?)?;
    let skipped = (&broken + 1)?;
    let halves = vm.record("halves", |r| {
        let y = (r.feed("y", SIM, DType::I32, &[4])? * 1)?;
        let most = r.full(SIM, DType::I32, &[], 0)?;
        let goes_on = y.sum(&[])?.gt(&most)?;
        r.while_true(&goes_on, || {
            y.copy_from(&(&y - 100)?)?;
            goes_on.copy_from(&y.sum(&[])?.gt(&most)?)
        })?;
        r.fetch("y", &y)
    })?;
    let executable = vm.compile(halves, &[], &CompileOptions::default())?;
    let run = executable.run(&[("y", &total)])?;
    assert!(skipped.wait().is_err());
    assert_eq!(doubled.to_vec::<i32>()?.len(), 4);
    assert_eq!(run["y"].to_vec::<i32>()?.len(), 4);
    Ok(())
}

/// On a CPU: each round of a loop, and fused steps as one.
#[test]
fn steps_of_programs_are_within_their_instruction() -> Result<(), Error> {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 5 }] {
        let shared = Shared::default();
        let vm = Vm::builder().mode(mode).trace(TraceConfig::to_writer(shared.clone())).build()?;
        let x = vm.full(CPU, DType::F32, &[4, 4], 1.0)?;
        let program = vm.record("steps", |r| {
            let x = r.feed("x", CPU, DType::F32, &[4, 4])?;
            let y = x.matmul(&x)?.sort(1, false)?;
            let total = y.sum(&[])?;
            let goes_on = total.lt(200.0)?;
            r.while_true(&goes_on, || {
                total.copy_from(&(&total * 2.0)?)?;
                goes_on.copy_from(&total.lt(200.0)?)
            })?;
            r.fetch("total", &total)
        })?;
        let executable = vm.compile(program, &[], &CompileOptions::default())?;
        let runs = 3;
        for _ in 0..runs {
            assert_eq!(executable.run(&[("x", &x)])?["total"].to_vec::<f32>()?, [256.0]);
        }
        drop((executable, x));
        vm.shutdown(Duration::from_secs(60))?;
        let trace = shared.take();
        let (slices, _) = read(&trace);
        let steps: Vec<&Shown> = slices.iter().filter(|slice| slice.track == "compute@cpu:0:0 steps").collect();
        let names: Vec<&str> = steps.iter().map(|step| &*step.name).collect();
        assert_eq!(names.iter().filter(|name| **name == "matmul").count(), runs, "{mode:?}: {names:?}");
        // The total is 64 first, and doubled twice.
        assert_eq!(names.iter().filter(|name| **name == "mul").count(), 2 * runs, "{mode:?}: {names:?}");
        let programs: Vec<&Shown> = slices.iter().filter(|slice| slice.name == "steps").collect();
        assert_eq!(programs.len(), runs, "{mode:?}");
        for pair in steps.windows(2) {
            assert!(pair[0].end <= pair[1].begin, "{mode:?}: {pair:?}");
        }
        for step in &steps {
            let is_within = |it: &&Shown| it.begin <= step.begin && step.end <= it.end;
            assert!(programs.iter().any(is_within), "{mode:?}: {step:?}");
            assert!(step.arguments["line"].contains("traces.rs"), "{mode:?}: {step:?}");
        }
        let report = Report::of(&Recording::read(&trace[..]).expect("a trace"));
        assert!(report.streams.iter().all(|it| !it.stream.contains("steps")), "{mode:?}: {report}");
        let instructions: u64 = report.streams.iter().map(|it| it.instructions).sum();
        assert!(instructions < steps.len() as u64, "{mode:?}: steps are no instructions: {report}");
    }
    Ok(())
}

#[test]
fn every_wait_of_the_plan_is_an_arrow_with_its_ends() {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 5 }] {
        let (record, trace) = (Shared::default(), Shared::default());
        let (recorded, traced) = (record.clone(), trace.clone());
        let pools = Arc::new(Mutex::new(Vec::new()));
        let known = pools.clone();
        within(&format!("{mode:?}"), move || {
            let vm = Vm::builder().mode(mode).sim_devices(1).record(recorded).trace(TraceConfig::to_writer(traced));
            let vm = vm.build().expect("an engine");
            work(&vm).expect("it is submitted");
            known.lock().expect("nobody panics with it").extend(vm.stats().memory);
            let _ = vm.shutdown(Duration::from_secs(60));
        });
        let ((slices, counters), planned) = (read(&trace.take()), planned(&record.take()));
        let at = |slice: &Shown| -> At {
            let stream = slice.track.strip_suffix(" waits").unwrap_or(&slice.track);
            (
                stream.split(" on ").next().expect("a name").to_owned(),
                slice.arguments["number"].parse().expect("a number"),
            )
        };
        let sources: HashMap<u64, &Shown> =
            slices.iter().flat_map(|slice| slice.flows.iter().map(move |flow| (*flow, slice))).collect();
        let mut arrows = BTreeSet::new();
        let of_streams = || slices.iter().filter(|slice| slice.track.contains('@'));
        for slice in of_streams().filter(|slice| slice.name == "met") {
            for flow in &slice.ending_flows {
                let source = sources[flow];
                assert_eq!((source.name.as_str(), source.begin), ("record", source.end));
                // Perfetto draws no arrow back in time.
                assert!(source.begin <= slice.begin, "{mode:?}: {source:?}, {slice:?}");
                arrows.insert((at(source), at(slice)));
            }
        }
        // Where callers run everything at once, little is left to wait for.
        assert!(planned.len() > if mode == Mode::Inline { 0 } else { 10 }, "{mode:?}: {planned:?}");
        assert_eq!(arrows, planned, "{mode:?}");
        // A wait that took time ends where it was met.
        let met: BTreeSet<(At, u64)> =
            of_streams().filter(|slice| slice.name == "met").map(|slice| (at(slice), slice.begin)).collect();
        for wait in of_streams().filter(|slice| slice.name == "wait") {
            assert!(wait.begin < wait.end && met.contains(&(at(wait), wait.end)), "{mode:?}: {wait:?}");
        }
        // The caller waited for two results and one failure.
        let caller = slices.iter().filter(|slice| slice.name == "wait" && !slice.track.contains('@'));
        let lines: Vec<&String> = caller.map(|slice| &slice.arguments["line"]).collect();
        assert!(lines.len() >= 3 && lines.iter().all(|line| line.contains("traces.rs")), "{mode:?}: {lines:?}");
        // An instruction began after the end of each that it waited for.
        let is_run = |slice: &&Shown| slice.arguments.contains_key("order");
        let runs: HashMap<At, &Shown> = slices.iter().filter(is_run).map(|slice| (at(slice), slice)).collect();
        // The caller submitted each of them once, at a time of its `submit`.
        let number = |slice: &Shown, name: &str| -> u64 { slice.arguments[name].parse().expect("a number") };
        let mut submits: Vec<&Shown> = slices.iter().filter(|slice| slice.name == "submit").collect();
        submits.sort_by_key(|submit| number(submit, "first"));
        let mut orders: Vec<&Shown> = runs.values().copied().collect();
        orders.sort_by_key(|run| number(run, "order"));
        let mut orders = orders.into_iter().peekable();
        for submit in submits {
            let (first, count) = (number(submit, "first"), number(submit, "count"));
            assert!(submit.arguments["line"].contains(".rs"), "{mode:?}: {submit:?}");
            for order in first..first + count {
                let run = orders.next().expect("an instruction");
                let submitted = number(run, "submitted");
                assert_eq!(number(run, "order"), order, "{mode:?}: {submit:?}, {run:?}");
                assert!((submit.begin..=submit.end).contains(&submitted), "{mode:?}: {submit:?}, {run:?}");
            }
        }
        assert!(orders.peek().is_none(), "{mode:?}: nobody submitted {:?}", orders.peek());
        for (from, to) in &arrows {
            let (from, to) = (runs[from], runs[to]);
            assert!(from.end <= to.begin, "{mode:?}: {from:?}, {to:?}");
        }
        let skipped = runs.values().filter(|run| run.arguments.get("outcome").is_some_and(|it| it == "skipped"));
        let causes: Vec<&String> = skipped.map(|run| &run.arguments["cause"]).collect();
        let is_cause = |cause: &String| {
            cause.starts_with("div (tests/tests/order/traces.rs:") && cause.ends_with(") on compute@cpu:0:0")
        };
        assert!(!causes.is_empty() && causes.iter().all(|cause| is_cause(cause)), "{mode:?}: {causes:?}");
        assert!(
            runs.values().all(|run| run.arguments.contains_key("cause")
                == run.arguments.get("outcome").is_some_and(|it| it != "failed")),
            "{mode:?}"
        );
        assert!(runs.values().any(|run| run.arguments["line"].contains("traces.rs")), "{mode:?}");
        assert_eq!(counters["pending instructions"], 0, "{mode:?}");
        assert_eq!(counters["pending bytes"], 0, "{mode:?}");
        assert_eq!(counters.get("instructions in flight").copied().unwrap_or(0), 0, "{mode:?}");
        // The allocators count the same, and in the end all memory is free.
        let pools = pools.lock().expect("nobody panics with it");
        assert!(pools.len() >= 2, "{mode:?}: {pools:?}");
        for PoolStats { place, kind, allocator } in pools.iter() {
            let name = format!("{kind} memory on {place}");
            let peaks = slices.iter().filter(|it| it.name == "peak" && it.track == format!("{name}, peaks"));
            let peak: usize = peaks.map(|it| it.arguments["bytes"].parse().expect("a number")).max().unwrap_or(0);
            assert_eq!((peak, counters[&name]), (allocator.peak_in_use, 0), "{mode:?}: {name}");
            assert_eq!(counters[&format!("{name}, reserved")] as usize, allocator.reserved, "{mode:?}: {name}");
        }
    }
}

#[test]
fn an_engine_without_the_trace_that_it_is_to_write_is_not_built() {
    let Err(refused) = Vm::builder().trace(TraceConfig::to_file("/nowhere/at/all")).build() else {
        panic!("there is no such folder")
    };
    let text = refused.to_string();
    assert!(matches!(refused, Error::NoTrace { .. }) && text.contains("/nowhere/at/all"), "{text}");
}

#[test]
fn threads_of_one_name_have_tracks_of_their_own() {
    let trace = Shared::default();
    let traced = trace.clone();
    within("two threads", move || {
        let vm = Vm::builder().trace(TraceConfig::to_writer(traced)).build().expect("an engine");
        let x = vm.full(CPU, DType::I32, &[4], 1).expect("a tensor");
        vm.push("slow", [x.update()], || {
            std::thread::sleep(Duration::from_millis(50));
            Ok(())
        })
        .expect("it is submitted");
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let named = std::thread::Builder::new().name("compute@me".into());
                let work = || {
                    x.wait().expect("it passes");
                    (0..3).for_each(|_| drop((&x + &x).expect("it is submitted")));
                };
                named.spawn_scoped(scope, work).expect("a thread");
            }
        });
        drop(x);
        vm.shutdown(Duration::from_secs(60)).expect("all passes");
    });
    // Reading checks that the slices of a track nest.
    let trace = trace.take();
    let (slices, _) = read(&trace);
    let report = Report::of(&Recording::read(&trace[..]).expect("a trace"));
    let submitted: Vec<u64> = report.hosts.iter().map(|host| host.submissions).collect();
    assert_eq!(submitted, [3, 3, 2], "{report}");
    assert!(
        report.hosts[..2].iter().all(|host| host.thread.starts_with("compute@me") && host.waiting_ns > 0),
        "{report}"
    );
    let waits = slices.iter().filter(|slice| slice.name == "wait" && slice.track.starts_with("compute@me"));
    let tracks: BTreeSet<&String> = waits.map(|slice| &slice.track).collect();
    assert_eq!(tracks.len(), 2, "{tracks:?}");
}
