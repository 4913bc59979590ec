//! Reports of drawn runs beside a scheduler of these tests: each stream's times add up, the critical path is as long as the run, and what an instruction would save is what it saves.

use std::collections::BTreeMap;
use std::io::{self, Read};

use flate2::Compression;
use flate2::bufread::ZlibDecoder;
use flate2::read::ZlibEncoder;
use proptest::prelude::*;
use prost::Message;
use prost::encoding::decode_varint;
use streamvm_report::packets::TracePacket;
use streamvm_report::{Cause, Packets, Recording, Report, write_page};
use streamvm_trace::{Argument, Slice, TraceWriter, Track};

/// An instruction of a drawn run. A thread of the host does `host` nanoseconds of its own work, waits for the result of `host_waits`, and submits it.
#[derive(Clone, Debug)]
struct Op {
    thread: usize,
    stream: usize,
    duration: u64,
    /// The time that passes until a thread runs it.
    late: u64,
    host: u64,
    host_waits: Option<usize>,
    waits: Vec<usize>,
}

/// When an instruction was submitted, began and ended.
#[derive(Copy, Clone, Debug)]
struct Times {
    submitted: u64,
    begin: u64,
    end: u64,
}

/// What the host needs to go on after a wait.
const WAKE: u64 = 3;

const STREAMS: usize = 4;

/// Threads of the host.
const THREADS: usize = 3;

/// When a thread of the host was blocked, and for which instruction.
#[derive(Copy, Clone, Debug)]
struct Blocked {
    thread: usize,
    begin: u64,
    end: u64,
    source: usize,
}

/// Runs the instructions by the rules of streams. Also returns when threads of the host were blocked.
fn run(ops: &[Op]) -> (Vec<Times>, Vec<Blocked>) {
    let (mut times, mut blocks): (Vec<Times>, Vec<_>) = (Vec::new(), Vec::new());
    let (mut free, mut clocks) = ([0; STREAMS], [0; THREADS]);
    for op in ops {
        let mut now = clocks[op.thread] + op.host;
        if let Some(source) = op.host_waits {
            let woken = times[source].end.max(now) + WAKE;
            blocks.push(Blocked { thread: op.thread, begin: now, end: woken, source });
            now = woken;
        }
        clocks[op.thread] = now;
        let met = op.waits.iter().map(|wait| times[*wait].end).max().unwrap_or(0);
        let begin = now.max(free[op.stream]).max(met) + op.late;
        let end = begin + op.duration;
        free[op.stream] = end;
        times.push(Times { submitted: now, begin, end });
    }
    (times, blocks)
}

/// The time of a run from its first submission on.
fn length(times: &[Times]) -> u64 {
    times.iter().map(|it| it.end).max().unwrap_or(0) - begin(times)
}

/// When the first instruction was submitted.
fn begin(times: &[Times]) -> u64 {
    times.iter().map(|it| it.submitted).min().unwrap_or(0)
}

fn name(stream: usize) -> String {
    // The last one is a stream of copies.
    if stream + 1 == STREAMS { "h2d@cuda:0:0".into() } else { format!("compute@cuda:0:{stream}") }
}

fn slice(
    writer: &mut TraceWriter<&mut Vec<u8>>,
    track: Track,
    name: &str,
    (begin, end): (u64, u64),
    arguments: &[(&'static str, Argument)],
    leaves: Option<u64>,
    enters: &[u64],
) {
    writer.slice(&Slice { track, name, begin, end, arguments, leaves, enters }).unwrap();
}

/// How long a thread takes to submit an instruction: a part of its own work, or of the time in which it goes on after a wait.
fn submitting(op: &Op) -> u64 {
    if op.host_waits.is_some() { 2 } else { op.host.min(2) }
}

/// The trace of a run, as an engine writes it. Each instruction has a line of its own. The trace lacks the first submissions, so many.
fn trace(ops: &[Op], untold: usize) -> Vec<u8> {
    let (times, blocks) = run(ops);
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(&mut bytes, "drawn").unwrap();
    let device = writer.track("cuda:0", None).unwrap();
    let tracks: Vec<_> = (0..STREAMS)
        .map(|stream| {
            let runs = writer.track(&name(stream), Some(device)).unwrap();
            (runs, writer.track(&format!("{} waits", name(stream)), Some(device)).unwrap())
        })
        .collect();
    let mut numbers = Vec::new();
    let mut last = [0; STREAMS];
    for op in ops {
        last[op.stream] += 1;
        numbers.push(last[op.stream]);
    }
    let (mut arrows, mut free) = (0, [0; STREAMS]);
    for (place, (op, it)) in ops.iter().zip(&times).enumerate() {
        let (number, (runs, waits)) = (Argument::Number(numbers[place]), tracks[op.stream]);
        let line = format!("a.rs:{place}:1");
        let arguments = [
            ("number", number),
            ("order", Argument::Number(place as u64 + 1)),
            ("line", Argument::Text(writer.text(&line))),
            ("submitted", Argument::Number(it.submitted)),
        ];
        slice(&mut writer, runs, "op", (it.begin, it.end), &arguments, None, &[]);
        let mut enters = Vec::new();
        for source in &op.waits {
            arrows += 1;
            let end = times[*source].end;
            let number = [("number", Argument::Number(numbers[*source]))];
            slice(&mut writer, tracks[ops[*source].stream].1, "record", (end, end), &number, Some(arrows), &[]);
            enters.push(arrows);
        }
        if let Some(met) = op.waits.iter().map(|wait| times[*wait].end).max() {
            let could = it.submitted.max(free[op.stream]);
            let met = met.max(could);
            slice(&mut writer, waits, "wait", (could, met), &[("number", number)], None, &[]);
            slice(&mut writer, waits, "met", (met, met), &[("number", number)], None, &enters);
        }
        free[op.stream] = it.end;
    }
    // A thread may have any name.
    let names = ["compute@cuda:0:9", "main", "compute@cuda:0:9 waits"];
    let hosts = names.map(|name| writer.track(name, None).unwrap());
    for (place, (op, it)) in ops.iter().zip(&times).enumerate().skip(untold) {
        let arguments = [("first", Argument::Number(place as u64 + 1)), ("count", Argument::Number(1))];
        let times = (it.submitted - submitting(op), it.submitted);
        slice(&mut writer, hosts[op.thread], "submit", times, &arguments, None, &[]);
    }
    for Blocked { thread, begin, end, source } in blocks {
        let host = hosts[thread];
        arrows += 1;
        let number = [("number", Argument::Number(numbers[source]))];
        let source_end = times[source].end;
        slice(
            &mut writer,
            tracks[ops[source].stream].1,
            "record",
            (source_end, source_end),
            &number,
            Some(arrows),
            &[],
        );
        let line = [("line", Argument::Text(writer.text("host.rs:1:1")))];
        slice(&mut writer, host, "wait", (begin, end), &line, None, &[]);
        slice(&mut writer, host, "met", (end, end), &[], None, &[arrows]);
    }
    memory(&mut writer, ops, &times);
    writer.finish().unwrap();
    bytes
}

/// The bytes in use once an instruction has been submitted: each has as many as its duration, until three further ones have been submitted.
fn in_use(ops: &[Op], place: usize) -> Vec<(usize, u64)> {
    let mut owners: Vec<(usize, u64)> = (place.saturating_sub(2)..=place).map(|it| (it, ops[it].duration)).collect();
    owners.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    owners
}

fn total(owners: &[(usize, u64)]) -> u64 {
    owners.iter().map(|(_, bytes)| bytes).sum()
}

/// Tells of memory as an engine does: of more than one pool, and of peaks that are none any more.
fn memory(writer: &mut TraceWriter<&mut Vec<u8>>, ops: &[Op], times: &[Times]) {
    for pool in ["device memory on cuda:0", "pageable memory on host"] {
        let bytes = writer.counter(pool, "bytes", None).unwrap();
        let reserved = writer.counter(&format!("{pool}, reserved"), "bytes", None).unwrap();
        let peaks = writer.track(&format!("{pool}, peaks"), Some(bytes)).unwrap();
        let mut peak = 0;
        for (place, it) in times.iter().enumerate() {
            let owners = in_use(ops, place);
            let total = total(&owners);
            writer.count(bytes, it.submitted, total).unwrap();
            writer.count(reserved, it.submitted, 1_000).unwrap();
            if total <= peak {
                continue;
            }
            peak = total;
            let at = (it.submitted, it.submitted);
            slice(writer, peaks, "peak", at, &[("bytes", Argument::Number(total))], None, &[]);
            for (owner, bytes) in owners {
                let arguments = [
                    ("op", Argument::Text(writer.text("op"))),
                    ("line", Argument::Text(writer.text(&format!("a.rs:{owner}:1")))),
                    ("bytes", Argument::Number(bytes)),
                    ("tensors", Argument::Number(1)),
                ];
                slice(writer, peaks, "owner", at, &arguments, None, &[]);
            }
        }
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let drawn = (0..STREAMS, 1..50u64, 0..5u64, 0..20u64, any::<[prop::sample::Index; 4]>(), 0..8u8, 0..THREADS);
    (prop::collection::vec(drawn, 1..40), any::<bool>()).prop_map(|(drawn, is_one)| {
        let mut ops: Vec<Op> = Vec::new();
        for (place, (stream, duration, late, host, others, which, thread)) in drawn.into_iter().enumerate() {
            let thread = if is_one { 0 } else { thread };
            let earlier = |index: &prop::sample::Index| index.index(place);
            let others: Vec<usize> = if place == 0 { Vec::new() } else { others.iter().map(earlier).collect() };
            let on_others = others.iter().take(usize::from(which % 4)).filter(|other| ops[**other].stream != stream);
            let mut waits: Vec<usize> = on_others.copied().collect();
            waits.sort();
            waits.dedup();
            let host_waits = others.last().copied().filter(|_| which >= 6);
            ops.push(Op { thread, stream, duration, late, host, host_waits, waits });
        }
        ops
    })
}

/// How many waits could go: without the wait, the instruction would come after the other one even so.
fn superfluous(ops: &[Op]) -> u64 {
    let comes_after = |place: usize, source: usize, without: (usize, usize)| {
        let (mut seen, mut next) = (vec![false; ops.len()], vec![place]);
        while let Some(at) = next.pop() {
            let before = (0..at).rev().find(|before| ops[*before].stream == ops[at].stream);
            for other in ops[at].waits.iter().copied().filter(|other| (at, *other) != without).chain(before) {
                if !std::mem::replace(&mut seen[other], true) {
                    next.push(other);
                }
            }
        }
        seen[source]
    };
    let all = ops.iter().enumerate().flat_map(|(place, op)| op.waits.iter().map(move |source| (place, *source)));
    all.filter(|(place, source)| comes_after(*place, *source, (*place, *source))).count() as u64
}

fn report(bytes: &[u8]) -> Report {
    Report::of(&Recording::read(bytes).expect("a trace"))
}

proptest! {
    #[test]
    fn times_add_up_and_savings_are_those_of_a_run_without_the_instruction(ops in ops(), untold in 0..60usize) {
        let (times, blocks) = run(&ops);
        let length_of_run = length(&times);
        let is_one = ops.iter().all(|op| op.thread == 0);
        // Where a trace lacks submissions, they are those of the thread that it knows.
        let untold = if is_one { untold.saturating_sub(10).min(ops.len()) } else { 0 };
        let report = report(&trace(&ops, untold));
        prop_assert_eq!(report.total_ns, length_of_run);
        prop_assert_eq!(report.instructions, ops.len() as u64);
        let mut busy = BTreeMap::<String, u64>::new();
        ops.iter().for_each(|op| *busy.entry(name(op.stream)).or_default() += op.duration);
        prop_assert_eq!(busy.keys().collect::<Vec<_>>(), report.streams.iter().map(|it| &it.stream).collect::<Vec<_>>());
        for it in &report.streams {
            prop_assert_eq!(it.busy_ns, busy[&it.stream]);
            let idle = it.waiting_ns + it.not_submitted_ns + it.host_waits_ns + it.held_ns + it.late_ns;
            prop_assert_eq!(it.busy_ns + idle, length_of_run, "{:?}", it);
        }
        // The longest path through all that orders instructions is the run.
        let path = &report.critical_path;
        prop_assert_eq!(path.ran_ns + path.late_ns + path.host_ns, length_of_run, "{:?}", path);
        for group in &path.groups {
            let place: usize = group.of.line.split(':').nth(1).unwrap().parse().unwrap();
            prop_assert_eq!((group.ns, group.times), (ops[place].duration, 1));
            let mut without = ops.clone();
            without[place].duration = 0;
            let (times, _) = run(&without);
            prop_assert_eq!(group.would_save_ns, length_of_run - length(&times), "without {}", place);
        }
        let copying: u64 = ops.iter().filter(|op| op.stream + 1 == STREAMS).map(|op| op.duration).sum();
        prop_assert_eq!(report.copies.map_or(0, |it| it.copying_ns), copying);
        for host in report.hosts.iter().filter(|_| untold == 0) {
            let thread = ["compute@cuda:0:9", "main", "compute@cuda:0:9 waits"].iter().position(|name| *name == host.thread).unwrap();
            let own = || ops.iter().filter(|op| op.thread == thread);
            let count = own().count() as u64;
            prop_assert_eq!((host.submissions, host.instructions), (count, count));
            prop_assert_eq!(host.submitting_ns, own().map(submitting).sum::<u64>());
            let waited = blocks.iter().filter(|block| block.thread == thread);
            let begin = begin(&times);
            prop_assert_eq!(host.waiting_ns, waited.map(|it| it.end.saturating_sub(it.begin.max(begin))).sum::<u64>());
        }
        if untold == ops.len() {
            prop_assert!(report.hosts.is_empty(), "{:?}", report.hosts);
        }
        let waits = report.waits.as_ref().expect("few waits");
        prop_assert_eq!(waits.waits, ops.iter().map(|op| op.waits.len() as u64).sum::<u64>());
        prop_assert_eq!(waits.implied, superfluous(&ops));
        prop_assert_eq!(waits.groups.iter().map(|it| it.times).sum::<u64>(), waits.implied.min(20));
        // Of several threads, program order is not that of the times here.
        if !is_one {
            return Ok(());
        }
        // The first of the highest values, and whose it was.
        let highest = (0..ops.len()).max_by_key(|place| (total(&in_use(&ops, *place)), std::cmp::Reverse(*place))).unwrap();
        let [memory, other] = &report.memory[..] else { panic!("{report}") };
        prop_assert_eq!((memory.pool.as_str(), other.pool.as_str()), ("device memory on cuda:0", "pageable memory on host"));
        prop_assert_eq!((memory.peak_bytes, memory.reserved_bytes), (total(&in_use(&ops, highest)), 1_000));
        prop_assert_eq!(memory.peak_at_ns, Some(times[highest].submitted - times[0].submitted));
        let owners: Vec<(String, u64)> = memory.owners.iter().map(|it| (it.of.line.clone(), it.bytes)).collect();
        let expected: Vec<(String, u64)> = in_use(&ops, highest).into_iter().map(|(it, bytes)| (format!("a.rs:{it}:1"), bytes)).collect();
        prop_assert_eq!((owners, memory.others_bytes), (expected, 0));
        prop_assert_eq!(memory.over_time.last(), Some(&(times[ops.len() - 1].submitted - times[0].submitted, total(&in_use(&ops, ops.len() - 1)))));
    }

    /// A trace may be cut anywhere, and be damaged anywhere.
    #[test]
    fn damaged_traces_are_read_or_refused(ops in ops(), is_packed in any::<bool>(), cut in any::<prop::sample::Index>(), bytes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)) {
        let mut trace = if is_packed { packed(&unpacked(&trace(&ops, 0))) } else { trace(&ops, 0) };
        trace.truncate(cut.index(trace.len()) + 1);
        for (place, byte) in bytes {
            let place = place.index(trace.len());
            trace[place] = byte;
        }
        if let Ok(recording) = Recording::read(&trace[..]) {
            let report = Report::of(&recording);
            let text = report.to_string();
            prop_assert!(text.contains("the critical path"), "{}", text);
            let mut page = Vec::new();
            write_page(&recording, &report, ("damaged", None), &mut page).unwrap();
            prop_assert!(page.ends_with(b"</html>\n"));
        }
    }
}

/// The same trace with nothing compressed: damage to compressed packets is mostly seen at once, and a trace may have both.
fn unpacked(trace: &[u8]) -> Vec<u8> {
    let (mut left, mut plain) = (trace, Vec::new());
    while let [0x0a, fields @ ..] = left {
        let mut fields = fields;
        let length = decode_varint(&mut fields).unwrap() as usize;
        let packet = TracePacket::decode(&fields[..length]).unwrap();
        let rest = &fields[length..];
        match packet.compressed {
            Some(compressed) => drop(ZlibDecoder::new(&compressed[..]).read_to_end(&mut plain).unwrap()),
            None => plain.extend_from_slice(&left[..left.len() - rest.len()]),
        }
        left = rest;
    }
    plain
}

/// A trace of one packet, which has these bytes as compressed packets.
fn packed(packets: &[u8]) -> Vec<u8> {
    let mut compressed = Vec::new();
    ZlibEncoder::new(packets, Compression::fast()).read_to_end(&mut compressed).unwrap();
    let packet = TracePacket { compressed: Some(compressed), ..TracePacket::default() };
    let mut trace = vec![0x0a];
    packet.encode_length_delimited(&mut trace).unwrap();
    trace
}

#[test]
fn packets_are_the_same_compressed_or_not() {
    let ops: Vec<Op> = (0..1_000).map(|place| op(place % 2, 10, if place == 0 { &[] } else { &[0] })).collect();
    let whole = trace(&ops, 0);
    let plain = unpacked(&whole);
    assert!(2 * whole.len() < plain.len(), "{} bytes, {} compressed", plain.len(), whole.len());
    // A short trace is not compressed.
    let short = trace(&ops[..10], 0);
    assert_eq!(unpacked(&short), short);
    let packets = |bytes: &[u8]| Packets::new(bytes).collect::<io::Result<Vec<_>>>().expect("a trace");
    assert_eq!(packets(&plain), packets(&whole));
    let both = [&plain[..], &packed(&plain)].concat();
    assert_eq!(packets(&both).len(), 2 * packets(&whole).len());
}

/// Names that never come again do not fill the memory of who writes or reads.
#[test]
fn slices_with_too_many_names_share_one() {
    const NAMES: u64 = 1 << 16;
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(&mut bytes, "names").unwrap();
    let track = writer.track("track", None).unwrap();
    for at in 0..NAMES + 10 {
        slice(&mut writer, track, &format!("name {}", at.min(NAMES + 5)), (at, at), &[], None, &[]);
    }
    writer.finish().unwrap();
    let packets: Vec<TracePacket> = Packets::new(&bytes[..]).collect::<io::Result<_>>().unwrap();
    let names = packets.iter().filter_map(|packet| packet.interned.as_ref()).flat_map(|it| &it.names);
    let names: Vec<&str> = names.map(|it| it.name()).collect();
    assert_eq!((names.len() as u64, names.last()), (NAMES + 1, Some(&"(other names)")));
}

/// A report repeats texts, so one that is long would fill the memory.
#[test]
fn long_texts_are_cut() {
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(&mut bytes, "texts").unwrap();
    let device = writer.track("cuda:0", None).unwrap();
    let runs = writer.track("compute@cuda:0:0", Some(device)).unwrap();
    let waits = writer.track("compute@cuda:0:0 waits", Some(device)).unwrap();
    let long = Argument::Text(writer.text(&"ä".repeat(300_000)));
    slice(&mut writer, runs, "op", (1, 2), &[("line", long)], None, &[]);
    for at in 0..5_000 {
        slice(&mut writer, waits, "running", (at, at + 1), &[("op", long), ("line", long), ("for", long)], None, &[]);
    }
    writer.finish().unwrap();
    let report = report(&bytes);
    assert_eq!(report.pending.len(), 1024);
    assert!(report.pending.iter().all(|it| it.of.name.len() <= 4096 && it.of.line.len() <= 4096), "texts are cut");
}

#[test]
fn compressed_packets_that_are_damaged_are_refused() {
    let refused = |trace: &[u8]| Packets::new(trace).find_map(Result::err).expect("it is damaged").to_string();
    // Much longer than its bytes.
    let bomb = packed(&vec![0; 10 << 20]);
    assert!(bomb.len() < 100_000 && refused(&bomb).contains("a packet of 1048577 bytes"));
    // Many of them, each below the bound.
    let many = packed(&[0x0a, 0].repeat(1 << 18)).repeat(1000);
    assert!(refused(&many).contains("much longer"), "{} bytes", many.len());
    assert!(refused(&packed(b"{}")).contains("something else"));
    assert!(refused(&packed(&[0x0a, 0x7f])).contains("something else"));
    let mut cut = packed(&unpacked(&trace(&[op(0, 10, &[])], 0)));
    let packet = TracePacket::decode_length_delimited(&cut[1..]).unwrap();
    let compressed = packet.compressed.as_deref().map(|bytes| bytes[..bytes.len() - 10].to_vec());
    cut.truncate(1);
    TracePacket { compressed, ..packet }.encode_length_delimited(&mut cut).unwrap();
    assert!(refused(&cut).contains("too early"));
}

fn op(stream: usize, duration: u64, waits: &[usize]) -> Op {
    Op { thread: 0, stream, duration, late: 0, host: 1, host_waits: None, waits: waits.to_vec() }
}

#[test]
fn a_stream_that_waits_for_a_slow_copy_names_its_line() {
    let report = report(&trace(&[op(3, 1_000, &[]), op(0, 10, &[0]), op(0, 10, &[])], 0));
    let longest = &report.idle[0];
    let of = longest.of.as_ref().expect("what was waited for");
    assert_eq!((longest.stream.as_str(), longest.cause), ("compute@cuda:0:0", Cause::Waited), "{report}");
    assert_eq!((of.stream.as_deref(), of.line.as_str()), (Some("h2d@cuda:0:0"), "a.rs:0:1"), "{report}");
    let text = report.to_string();
    assert!(text.contains("waited for op (a.rs:0:1) on h2d@cuda:0:0"), "{text}");
    assert!(text.contains("copies took 1.0 µs, 0 % of them beside computations"), "{text}");
}

/// Only the thread that submits next could have submitted earlier.
#[test]
fn a_thread_that_waits_holds_up_what_it_submits_itself() {
    let last = |thread, host, host_waits| Op { thread, host, host_waits, ..op(0, 10, &[]) };
    let cause = |ops: &[Op], untold| {
        let report = report(&trace(ops, untold));
        let longest = report.idle.into_iter().find(|it| it.stream == "compute@cuda:0:0").expect("it is idle");
        (longest.cause, longest.at.expect("a line"))
    };
    let waits = last(1, 1, Some(0));
    assert_eq!(cause(&[op(1, 1_000, &[]), waits.clone()], 0), (Cause::HostWaited, "host.rs:1:1".to_owned()));
    let other = Op { stream: 2, ..waits };
    let ops = [op(1, 1_000, &[]), other, last(0, 1_500, None)];
    assert_eq!(cause(&ops, 0), (Cause::NotSubmitted, "a.rs:2:1".to_owned()));
    // Without submissions all threads are one.
    assert_eq!(cause(&ops, 3), (Cause::HostWaited, "host.rs:1:1".to_owned()));
}

#[test]
fn other_files_are_refused() {
    let refused = |bytes: &[u8]| Recording::read(bytes).expect_err("no trace").to_string();
    assert!(refused(b"{\"traceEvents\": []}").contains("no trace of Perfetto"));
    assert!(refused(b"").contains("no stream"));
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(&mut bytes, "another program").unwrap();
    let track = writer.track("main", None).unwrap();
    writer.slice(&Slice { track, name: "work", begin: 1, end: 2, arguments: &[], leaves: None, enters: &[] }).unwrap();
    writer.finish().unwrap();
    assert!(refused(&bytes).contains("no stream"));
    // A packet that claims to be longer than any.
    assert!(refused(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f]).contains("bytes"));
}

/// The trace of streams with one instruction each, from 0 to `end`.
fn streams(count: usize, end: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(&mut bytes, "streams").unwrap();
    let device = writer.track("cuda:0", None).unwrap();
    for place in 0..count {
        let track = writer.track(&format!("compute@cuda:0:{place}"), Some(device)).unwrap();
        slice(&mut writer, track, "op", (0, end), &[], None, &[]);
    }
    writer.finish().unwrap();
    bytes
}

#[test]
fn the_longest_times_and_too_many_streams_are_no_panic() {
    let report = report(&streams(2, u64::MAX));
    assert_eq!(report.total_ns, u64::MAX);
    assert!(report.to_string().contains("18446744073.71 s in 2 instructions on 2 streams"), "{report}");
    let refused = Recording::read(&streams(1025, 1)[..]).expect_err("too many streams");
    assert!(refused.to_string().contains("1025 streams"), "{refused}");
}

/// Counters that no report is made of, and what is below them, are no streams.
#[test]
fn pools_that_are_too_many_are_left_out() {
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(&mut bytes, "pools").unwrap();
    let device = writer.track("cuda:0", None).unwrap();
    let runs = writer.track("compute@cuda:0:0", Some(device)).unwrap();
    slice(&mut writer, runs, "op", (10, 20), &[("number", Argument::Number(1))], None, &[]);
    for pool in 0..100 {
        let counter = writer.counter(&format!("device memory on cuda:{pool}"), "bytes", None).unwrap();
        let peaks = writer.track("peaks", Some(counter)).unwrap();
        slice(&mut writer, peaks, "peak", (30, 30), &[("bytes", Argument::Number(pool))], None, &[]);
        // One value more than the peak, as in a trace that was cut.
        writer.count(counter, 40, pool + 1).unwrap();
    }
    writer.finish().unwrap();
    let report = report(&bytes);
    assert_eq!((report.streams.len(), report.instructions, report.total_ns), (1, 1, 10));
    assert_eq!(report.memory.len(), 64);
    let first = &report.memory[0];
    assert_eq!((first.pool.as_str(), first.peak_bytes, first.peak_at_ns), ("device memory on cuda:63", 64, Some(30)));
}

/// A flight recorder knows the peak of the whole run.
#[test]
fn a_peak_may_be_older_than_the_trace() {
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(&mut bytes, "a peak").unwrap();
    let device = writer.track("cuda:0", None).unwrap();
    let runs = writer.track("compute@cuda:0:0", Some(device)).unwrap();
    slice(&mut writer, runs, "op", (1_010, 1_020), &[("number", Argument::Number(1))], None, &[]);
    let counter = writer.counter("device memory on cuda:0", "bytes", None).unwrap();
    let peaks = writer.track("peaks", Some(counter)).unwrap();
    writer.count(counter, 1_000, 5).unwrap();
    let arguments = [("bytes", Argument::Number(70)), ("at", Argument::Number(10))];
    slice(&mut writer, peaks, "peak", (1_000, 1_000), &arguments, None, &[]);
    writer.finish().unwrap();
    let report = report(&bytes);
    let memory = &report.memory[0];
    assert_eq!((memory.peak_bytes, memory.peak_at_ns, &memory.over_time[..]), (70, None, &[(0, 5)][..]));
    assert!(report.to_string().contains("70 B in use at the peak (before the first submission)"), "{report}");
}
