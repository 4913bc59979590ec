//! Hand-made traces: each kind of missing order, each fault, and how they are told.

use streamvm_verify::{Dependence, FaultKind, Limits, Point, Reason, Report, Trace, verify};

/// A trace over streams 0 to 2 (`a`, `b`, and `u`, which is unordered) and lives 1 (64 bytes from 4096), 2 (a variable)
/// and 3 (64 bytes from 8192), whose memory the host has written.
fn trace(lines: &str) -> String {
    let mut text = String::from(
        r#"{"streamvm_trace":1}
{"stream":{"id":0,"name":"a"}}
{"stream":{"id":1,"name":"b"}}
{"stream":{"id":2,"name":"u","ordered":false}}
{"life":{"id":1,"place":"cpu:0","kind":"device","base":4096,"bytes":64}}
{"life":{"id":2,"kind":"var"}}
{"life":{"id":3,"place":"cpu:0","kind":"device","base":8192,"bytes":64}}
{"host":{"op":"tensor","location":"t.rs:1:1","uses":[{"life":1,"access":"write","runs":[[4096,4160]]},{"life":3,"access":"write","runs":[[8192,8256]]}]}}
"#,
    );
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        text.push_str(&expanded(line));
        text.push('\n');
    }
    text.push_str(&format!("{{\"end\":{{\"lines\":{}}}}}\n", text.lines().count()));
    text
}

/// `i STREAM SEQ [USES] [WAITS] [ORDER]` is an instruction; `LIFE:ACCESS:START-END` a use, `STREAM@SEQ` a wait, with
/// `!` after it a host wait, with `#EVENT` one by event. Any other line is itself.
fn expanded(line: &str) -> String {
    let Some(rest) = line.strip_prefix("i ") else { return line.to_owned() };
    let mut words = rest.split(' ');
    let (stream, seq) = (words.next().unwrap(), words.next().unwrap());
    let (mut uses, mut waits, mut order) = (Vec::new(), Vec::new(), String::new());
    for word in words {
        if let Some((point, by)) = word.split_once('@') {
            let (seq, event) =
                by.split_once('#').map_or((by, String::new()), |(seq, event)| (seq, format!(",\"event\":{event}")));
            let who = if seq.ends_with('!') { "host" } else { "device" };
            let seq = seq.trim_end_matches('!');
            waits.push(format!("{{\"point\":[{point},{seq}],\"by\":\"{who}\"{event}}}"));
        } else if let Some((life, rest)) = word.split_once(':') {
            let (access, run) = rest.split_once(':').unwrap_or((rest, ""));
            let access = match access {
                "r" => "read",
                "w" => "write",
                _ => "readwrite",
            };
            let run = run.split_once('-').map_or(String::new(), |(start, end)| format!(",\"runs\":[[{start},{end}]]"));
            uses.push(format!("{{\"life\":{life},\"access\":\"{access}\"{run}}}"));
        } else if let Some((stream, seq)) = word.strip_prefix("after=").and_then(|point| point.split_once(',')) {
            order = format!(",\"order\":{{\"after\":[{stream},{seq}]}}");
        } else {
            order = format!(",\"order\":\"{word}\"");
        }
    }
    format!(
        "{{\"instruction\":{{\"at\":[{stream},{seq}],\"op\":\"op{seq}\",\"location\":\"s.rs:{stream}{seq}:1\",\"uses\":[{}],\
         \"waits\":[{}]{order}}}}}",
        uses.join(","),
        waits.join(",")
    )
}

fn judge(lines: &str) -> Report {
    verify(&Trace::read(trace(lines).as_bytes()).unwrap()).unwrap()
}

fn point(stream: u64, seq: u64) -> Point {
    Point { stream, seq }
}

/// The only missing order: kind, points of the two.
fn only_missing(lines: &str) -> (Dependence, Option<Point>, Option<Point>) {
    let report = judge(lines);
    assert_eq!(report.missing.total, 1, "{report}");
    assert!(!report.is_ok());
    let missing = &report.missing.first[0];
    (missing.dependence, missing.first.point, missing.second.point)
}

fn only_fault(lines: &str) -> FaultKind {
    let report = judge(lines);
    assert_eq!(report.faults.total, 1, "{report}");
    assert!(!report.is_ok());
    report.faults.first[0].kind.clone()
}

#[test]
fn a_read_after_a_write_on_another_stream_needs_a_wait() {
    let (a, b) = (Some(point(0, 1)), Some(point(1, 1)));
    let found = only_missing("i 0 1 1:w:4096-4160\ni 1 1 1:r:4100-4104");
    assert_eq!(found, (Dependence::ReadAfterWrite, a, b));
    assert!(judge("i 0 1 1:w:4096-4160\ni 1 1 1:r:4100-4104 0@1").is_ok());
    assert!(judge("i 0 1 1:w:4096-4160\ni 1 1 1:r:4100-4104 0@1!").is_ok());
    assert!(judge("i 0 1 1:w:4096-4160\ni 0 2 1:r:4100-4104").is_ok(), "a stream is in order");
}

#[test]
fn a_write_after_a_write_needs_a_wait() {
    let found = only_missing("i 0 1 1:w:4096-4160\ni 1 1 1:w:4096-4097");
    assert_eq!(found, (Dependence::WriteAfterWrite, Some(point(0, 1)), Some(point(1, 1))));
}

#[test]
fn a_write_after_a_read_needs_a_wait_for_each_reader() {
    let found = only_missing("i 0 1 1:r:4096-4160\ni 1 1 1:w:4096-4160");
    assert_eq!(found, (Dependence::WriteAfterRead, Some(point(0, 1)), Some(point(1, 1))));
    let report = judge("i 0 1 1:r:4096-4160\ni 2 1 1:r:4096-4160\ni 2 2 1:r:4096-4160\ni 1 1 1:w:4096-4160 2@1");
    assert_eq!(report.missing.total, 2, "{report}");
}

#[test]
fn reads_run_side_by_side_and_so_do_uses_of_other_bytes() {
    assert!(judge("i 0 1 1:r:4096-4160\ni 1 1 1:r:4096-4160").is_ok());
    assert!(judge("i 0 1 1:w:4096-4100\ni 1 1 1:w:4100-4104").is_ok());
}

#[test]
fn variables_are_ordered_as_a_whole() {
    let found = only_missing("i 0 1 2:w\ni 1 1 2:r");
    assert_eq!(found, (Dependence::ReadAfterWrite, Some(point(0, 1)), Some(point(1, 1))));
    assert!(judge("i 0 1 2:w\ni 1 1 2:r 0@1").is_ok());
    assert!(judge("i 0 1 2:r\ni 1 1 2:r").is_ok());
}

/// Hole 13.
#[test]
fn an_unordered_stream_orders_nothing_by_itself() {
    let found = only_missing("i 2 1 1:w:4096-4160\ni 2 2 1:r:4096-4160");
    assert_eq!(found, (Dependence::ReadAfterWrite, Some(point(2, 1)), Some(point(2, 2))));
    assert!(judge("i 2 1 1:w:4096-4160\ni 2 2 1:r:4096-4160 2@1").is_ok());
    // Number 2 may be over while number 1 still runs.
    let report = judge("i 2 1 1:w:4096-4160\ni 2 2\ni 0 1 1:r:4096-4160 2@2");
    assert_eq!(report.missing.total, 1, "{report}");
}

/// Hole 11: the source's later wait does not order what was before it.
#[test]
fn a_wait_carries_the_order_of_its_point_and_not_of_later_ones() {
    let lines = |seq| format!("i 2 1 1:w:4096-4160\ni 1 1\ni 1 2 2@1\ni 0 1 1:r:4096-4160 1@{seq}");
    assert!(judge(&lines(2)).is_ok());
    assert_eq!(judge(&lines(1)).missing.total, 1);
}

/// Hole 12.
#[test]
fn what_the_host_has_seen_orders_what_is_submitted_later() {
    let seen = r#"{"observed":{"points":[[0,1]]}}"#;
    assert!(judge(&format!("i 0 1 1:w:4096-4160\n{seen}\ni 1 1 1:r:4096-4160")).is_ok());
    assert_eq!(judge(&format!("i 0 1 1:w:4096-4160\ni 1 1 1:r:4096-4160\n{seen}")).missing.total, 1);
    assert_eq!(judge(&format!("i 0 1\n{seen}\ni 0 2 1:w:4096-4160\ni 1 1 1:r:4096-4160")).missing.total, 1);
}

#[test]
fn the_host_itself_must_have_seen_what_it_touches() {
    let host = |access: &str| {
        format!(
            r#"{{"host":{{"op":"read","location":"h.rs:1:1","uses":[{{"life":1,"access":"{access}","runs":[[4096,4160]]}}]}}}}"#
        )
    };
    let found = only_missing(&format!("i 0 1 1:w:4096-4160\n{}", host("read")));
    assert_eq!(found, (Dependence::ReadAfterWrite, Some(point(0, 1)), None));
    let found = only_missing(&format!("i 0 1 1:r:4096-4160\n{}", host("write")));
    assert_eq!(found, (Dependence::WriteAfterRead, Some(point(0, 1)), None));
    let seen = r#"{"observed":{"points":[[0,1]]}}"#;
    assert!(judge(&format!("i 0 1 1:w:4096-4160\n{seen}\n{}\ni 1 1 1:w:4096-4160", host("read"))).is_ok());
}

/// Holes 1 and 7: memory in its next life.
#[test]
fn a_race_across_reuse_is_a_race() {
    let lines = |wait: &str| {
        format!(
            r#"
            i 0 1 1:r:4096-4160
            {{"free":{{"life":1}}}}
            {{"life":{{"id":9,"place":"cpu:0","kind":"device","base":4128,"bytes":16}}}}
            i 1 1 9:w:4128-4144{wait}"#
        )
    };
    let report = judge(&lines(""));
    let missing = &report.missing.first[0];
    let bytes = missing.bytes.as_ref().unwrap();
    assert_eq!(missing.dependence, Dependence::WriteAfterRead);
    assert_eq!((bytes.total, bytes.address, bytes.life, bytes.reused), (16, 4128, Some(9), true));
    assert!(judge(&lines(" 0@1")).is_ok());
}

#[test]
fn memory_is_given_back_only_when_its_uses_are_seen_to_be_over() {
    let free = "{\"free\":{\"life\":1}}\n";
    let unmap = "{\"unmap\":{\"base\":4096,\"bytes\":64}}";
    let found = only_missing(&format!("i 0 1 1:r:4096-4160\n{free}{unmap}"));
    assert_eq!(found, (Dependence::GivenBack, Some(point(0, 1)), None));
    let seen = "{\"observed\":{\"points\":[[0,1]]}}\n";
    assert!(judge(&format!("i 0 1 1:r:4096-4160\n{free}{seen}{unmap}")).is_ok());
    let other_owner = r#"
        {"life":{"id":9,"place":"host","kind":"pageable","base":4096,"bytes":64}}
        i 1 1 9:w:4096-4160"#;
    assert!(judge(&format!("i 0 1 1:r:4096-4160\n{free}{seen}{unmap}{other_owner}")).is_ok());
    assert_eq!(only_fault(unmap), FaultKind::GivenBackAlive { life: 1 });
}

/// Hole 20.
#[test]
fn a_barrier_comes_after_all_and_before_all() {
    let found = only_missing("i 0 1\ni 1 1 barrier\ni 0 2 1@1");
    assert_eq!(found, (Dependence::Asked, Some(point(0, 1)), Some(point(1, 1))));
    let found = only_missing("i 0 1\ni 1 1 barrier 0@1\ni 0 2");
    assert_eq!(found, (Dependence::Asked, Some(point(1, 1)), Some(point(0, 2))));
    assert!(judge("i 0 1\ni 1 1 barrier 0@1\ni 0 2 1@1\ni 0 3").is_ok());
    let found = only_missing("i 0 1\ni 1 1 all");
    assert_eq!(found, (Dependence::Asked, Some(point(0, 1)), Some(point(1, 1))));
    assert!(judge("i 0 1\ni 1 1 all 0@1\ni 0 2").is_ok(), "a sync holds nothing back that comes later");
}

#[test]
fn an_explicit_wait_is_kept() {
    let found = only_missing("i 0 1\ni 1 1 after=0,1");
    assert_eq!(found, (Dependence::Asked, Some(point(0, 1)), Some(point(1, 1))));
    let report = judge("i 0 1\ni 1 1 after=0,1 0@1");
    assert!(report.is_ok() && report.excess.waits.is_empty(), "what was asked for is not excess: {report}");
}

/// Hole 2.
#[test]
fn a_wait_by_event_orders_what_the_event_shows() {
    let write_and_read =
        |record: &str, wait: &str| format!("i 0 1\ni 0 2 1:w:4096-4160\n{record}\ni 1 1 1:r:4096-4160 {wait}");
    let record = |event, seq| format!("{{\"record\":{{\"event\":{event},\"point\":[0,{seq}]}}}}");
    assert!(judge(&write_and_read(&record(5, 2), "0@2#5")).is_ok());

    let report = judge(&write_and_read("", "0@2#5"));
    assert_eq!(report.missing.total, 1);
    assert_eq!(report.faults.first[0].kind, FaultKind::NeverRecorded { event: 5, point: point(0, 2) });

    // It shows less: its place was recorded too early, or it is the record of its last use.
    let report = judge(&write_and_read(&record(5, 1), "0@2#5"));
    assert_eq!(report.missing.total, 1);
    assert_eq!(report.faults.first[0].kind, FaultKind::WrongEvent { event: 5, point: point(0, 2), shows: point(0, 1) });

    // A later record at or after the point is fine, and one that comes after the wait is none.
    assert!(judge(&format!("i 0 1 1:w:4096-4160\ni 0 2\n{}\ni 1 1 1:r:4096-4160 0@1#5", record(5, 2))).is_ok());
    let late = judge(&format!("{}\n{}", write_and_read("", "0@2#5"), record(5, 2)));
    assert!(matches!(late.faults.first[0].kind, FaultKind::NeverRecorded { .. }));
}

#[test]
fn records_that_nobody_waits_for_are_told() {
    let record = |event, seq| format!("{{\"record\":{{\"event\":{event},\"point\":[0,{seq}]}}}}");
    let (first, second, third) = (record(5, 1), record(5, 2), record(6, 2));
    let report = judge(&format!("i 0 1\n{first}\ni 0 2\n{second}\n{third}\ni 1 1 after=0,2 0@2#6"));
    assert!(report.is_ok(), "it is not wrong");
    assert_eq!((report.records, report.unused_records.total), (3, 2));
    let unused = &report.unused_records.first;
    assert_eq!((unused[0].point, unused[1].point), (point(0, 1), point(0, 2)));
}

/// Hole 9.
#[test]
fn waits_in_a_circle_are_told_as_one() {
    let report = judge("i 0 1 1@2\ni 1 1\ni 1 2 0@1");
    assert_eq!(report.cycles.total, 1, "{report}");
    assert!(!report.is_ok());
    let points: Vec<_> = report.cycles.first[0].places.iter().map(|place| place.point.unwrap()).collect();
    assert_eq!(points, [point(0, 1), point(1, 2)]);
    assert_eq!(judge("i 0 1 0@1").cycles.total, 1, "a wait for itself");
    let report = judge("i 0 1 1@1\ni 1 1");
    assert!(report.is_ok(), "a wait for what comes later need not be a circle: {report}");
    let report = judge("i 0 1 1@2\ni 1 1 1:w:4096-4160\ni 1 2 0@1\ni 0 2 1:r:4096-4160 1@1");
    assert_eq!((report.cycles.total, report.missing.total), (1, 0), "the rest is judged: {report}");
}

#[test]
fn a_wait_for_what_never_comes_is_told() {
    assert_eq!(only_fault("i 0 1 1@7\ni 1 1"), FaultKind::WaitForNothing { point: point(1, 7) });
    let record = "{\"record\":{\"event\":5,\"point\":[1,7]}}";
    assert_eq!(only_fault(record), FaultKind::RecordOfNothing { event: 5, point: point(1, 7) });
}

#[test]
fn an_order_after_what_comes_later_or_never_is_told() {
    let line = |seq: u64, after: &str| {
        format!(r#"{{"instruction":{{"at":[0,{seq}],"op":"wait","location":"a.rs:1:1","order":{{"after":{after}}}}}}}"#)
    };
    for after in ["[1,7]", "[0,2]", "[0,1]"] {
        let found = only_fault(&format!("{}\ni 0 2", line(1, after)));
        assert!(matches!(found, FaultKind::OrderedAfterNothing { .. }), "{after}: {found:?}");
    }
    assert!(judge(&format!("i 1 1\n{}", line(1, "[1,1]"))).missing.total == 1, "asked for, and nothing orders it");
}

#[test]
fn lives_are_kept_apart() {
    assert_eq!(only_fault("{\"free\":{\"life\":1}}\ni 0 1 1:w:4096-4160"), FaultKind::AfterFree { life: 1 });
    assert_eq!(only_fault("{\"free\":{\"life\":1}}\n{\"free\":{\"life\":1}}"), FaultKind::AfterFree { life: 1 });
    let outside = FaultKind::OutOfBounds { life: 1, start: 4100, end: 4161 };
    assert_eq!(only_fault("i 0 1 1:w:4100-4161"), outside);
    let two = r#"{"life":{"id":9,"place":"cpu:0","kind":"device","base":4159,"bytes":16}}"#;
    assert_eq!(only_fault(two), FaultKind::TwoOwners { life: 9, other: 1 });
    let before = r#"{"life":{"id":9,"place":"cpu:0","kind":"device","base":4095,"bytes":2}}"#;
    assert_eq!(only_fault(before), FaultKind::TwoOwners { life: 9, other: 1 });
}

#[test]
fn reads_of_what_nobody_has_written_in_this_life_are_told() {
    let fresh = r#"{"life":{"id":9,"place":"cpu:0","kind":"device","base":100,"bytes":16}}"#;
    let fault = FaultKind::NeverWritten { life: 9, address: 108, bytes: 8 };
    assert_eq!(only_fault(&format!("{fresh}\ni 0 1 9:w:100-108\ni 0 2 9:r:104-116")), fault);
    let reused = r#"{"free":{"life":1}}
        {"life":{"id":9,"place":"cpu:0","kind":"device","base":4096,"bytes":16}}"#;
    let fault = FaultKind::NeverWritten { life: 9, address: 4096, bytes: 16 };
    assert_eq!(only_fault(&format!("{reused}\ni 0 1 9:r:4096-4112")), fault);
    // Of a hull the two ends are read for certain.
    let hull =
        r#"{"host":{"op":"h","location":"h","uses":[{"life":9,"access":"read","runs":[[100,116]],"hull":true}]}}"#;
    let fault = FaultKind::NeverWritten { life: 9, address: 100, bytes: 2 };
    assert_eq!(only_fault(&format!("{fresh}\n{hull}")), fault);
    let ends = "i 0 1 9:w:100-101\ni 0 2 9:w:115-116\n{\"observed\":{\"points\":[[0,2]]}}";
    let report = judge(&format!("{fresh}\n{ends}\n{hull}"));
    assert!(report.is_ok() && report.hulls == 1, "{report}");
}

/// Two columns of a matrix of very many rows were told as a race, as each is recorded by its first and last byte alone.
#[test]
fn what_meets_between_the_ends_of_a_hull_alone_is_undecided() {
    let hull = |access: &str, (stream, seq): (u32, u32), (start, end): (u64, u64)| {
        format!(
            r#"{{"instruction":{{"at":[{stream},{seq}],"op":"o","location":"s","uses":[{{"life":1,"access":"{access}","runs":[[{start},{end}]],"hull":true}}]}}}}"#
        )
    };
    let counts = |lines: [&str; 2]| {
        let report = judge(&lines.join("\n"));
        assert_eq!(report.is_ok(), report.missing.is_empty());
        (report.missing.total, report.undecided.total)
    };
    let (first, second) = ((4096, 4152), (4104, 4160));
    let write = hull("write", (0, 1), first);
    assert_eq!(counts([&write, &hull("write", (1, 1), second)]), (0, 1), "two columns");
    assert_eq!(counts([&write, &hull("read", (1, 1), second)]), (0, 1));
    assert_eq!(counts([&write, "i 1 1 1:r:4112-4116"]), (0, 1), "a column and a part of a row");
    // Both ends are touched for certain.
    assert_eq!(counts([&write, &hull("read", (1, 1), first)]), (1, 0), "the same column");
    assert_eq!(counts([&write, "i 1 1 1:w:4096-4160"]), (1, 0), "a column and all of the matrix");
    assert_eq!(counts([&write, "i 1 1 1:r:4096-4097"]), (1, 0));
    assert_eq!(counts([&write, "i 1 1 1:r:4151-4153"]), (1, 0));
    // A hull stands for no other access: what was certain before it is still.
    let write_behind = hull("write", (0, 2), first);
    assert_eq!(counts(["i 0 1 1:w:4100-4104", &format!("{write_behind}\ni 1 1 1:r:4100-4104")]), (1, 1));
    let read_behind = hull("read", (0, 2), first);
    assert_eq!(counts(["i 0 1 1:r:4100-4104", &format!("{read_behind}\ni 1 1 1:w:4100-4104")]), (1, 1));
    let text = judge(&format!("{write}\n{}", hull("read", (1, 1), second))).to_string();
    assert!(text.contains("possible races that the trace cannot decide: 1"), "{text}");
    assert!(text.contains("up to 48 bytes") && text.ends_with("is ordered; 1 cannot be decided\n"), "{text}");
}

/// What is told of a pair is what is certain of it, whichever part was found first.
#[test]
fn a_pair_is_told_by_the_bytes_that_it_shares_for_certain() {
    let uses = |uses: &[(&str, u64, u64, bool)]| {
        let uses = uses.iter().map(|(access, start, end, hull)| {
            format!(r#"{{"life":1,"access":"{access}","runs":[[{start},{end}]],"hull":{hull}}}"#)
        });
        uses.collect::<Vec<_>>().join(",")
    };
    let line = |stream: u32, uses: String| {
        format!(r#"{{"instruction":{{"at":[{stream},1],"op":"o","location":"s","uses":[{uses}]}}}}"#)
    };
    let first = line(0, uses(&[("write", 4096, 4100, false), ("write", 4110, 4150, true)]));
    let second = line(1, uses(&[("read", 4120, 4130, false), ("write", 4096, 4100, false)]));
    let report = judge(&format!("{first}\n{second}"));
    assert_eq!((report.missing.total, report.undecided.total), (1, 0), "{report}");
    let missing = &report.missing.first[0];
    let bytes = missing.bytes.as_ref().expect("it is about bytes");
    assert_eq!((missing.dependence, bytes.address, bytes.total), (Dependence::WriteAfterWrite, 4096, 4));
}

#[test]
fn waits_that_could_go_are_told_with_the_reason() {
    // The second wait on the stream is implied by the first.
    let report = judge("i 0 1 1:w:4096-4160\ni 1 1 1:r:4096-4160 0@1\ni 1 2 1:r:4096-4160 0@1!");
    assert!(report.is_ok());
    assert_eq!(report.excess.waits.total, 1, "{report}");
    let wait = &report.excess.waits.first[0];
    assert_eq!((wait.at.point, wait.target.point), (Some(point(1, 2)), Some(point(0, 1))));
    assert_eq!((wait.reason, wait.by_host), (Reason::Implied, true));
    // A read after a read.
    let report = judge("i 0 1 1:r:4096-4160\ni 1 1 1:r:4096-4160 0@1");
    assert_eq!((report.excess.waits.total, report.excess.waits.first[0].reason), (1, Reason::NotNeeded));
    // Two writes of disjoint parts of one life: rows, and columns that lie between each other.
    let report = judge("i 0 1 1:w:4096-4128\ni 1 1 1:w:4128-4160 0@1");
    assert_eq!((report.excess.waits.total, report.excess.waits.first[0].reason), (1, Reason::NotNeeded));
    let columns = |stream: u32, start: u64, waits: &str| {
        let runs = format!("[[{start},{},8,8]]", start + 4);
        format!(
            "{{\"instruction\":{{\"at\":[{stream},1],\"op\":\"o\",\"location\":\"s\",\"waits\":[{waits}],\"uses\":\
             [{{\"life\":1,\"access\":\"write\",\"runs\":{runs}}}]}}}}"
        )
    };
    let wait = "{\"point\":[0,1],\"by\":\"device\"}";
    let report = judge(&format!("{}\n{}", columns(0, 4096, ""), columns(1, 4100, wait)));
    assert_eq!((report.is_ok(), report.excess.waits.total), (true, 1), "{report}");
    assert!(judge(&format!("{}\n{}", columns(0, 4096, ""), columns(1, 4100, ""))).is_ok());
    assert!(!judge(&format!("{}\n{}", columns(0, 4096, ""), columns(1, 4098, ""))).is_ok());
    // A wait that only a later instruction of the stream needs is needed.
    let report = judge("i 0 1 1:w:4096-4160\ni 1 1 0@1\ni 1 2 1:r:4096-4160");
    assert!(report.is_ok() && report.excess.waits.is_empty(), "{report}");
    // One of two that stand for each other could go, either.
    let report = judge("i 0 1 1:w:4096-4160\ni 1 1 1:r:4096-4160 0@1 0@1");
    assert_eq!(report.excess.waits.total, 2, "{report}");
}

#[test]
fn many_of_one_kind_are_counted_and_the_first_are_kept() {
    let mut lines = String::from("i 0 1 1:w:4096-4160\n");
    (1..=1500).for_each(|seq| lines.push_str(&format!("i 2 {seq} 1:r:4096-4160\n")));
    let report = judge(&lines);
    assert_eq!((report.missing.total, report.missing.first.len()), (1500, 1000));
    let text = report.to_string();
    assert!(text.contains("missing order: 1500 of") && text.contains("… and 1490 more"), "{text}");
    assert!(text.lines().count() < 40, "{text}");
}

#[test]
fn the_text_of_a_report_is_aligned_and_names_both_sides() {
    let report = judge(
        r#"{"record":{"event":7,"point":[0,1]}}
        i 0 1 1:w:4096-4160
        i 1 1 1:r:4100-4104
        i 1 2 3:r:8192-8200 0@1!"#,
    );
    let expected = "\
streams       3
instructions  3
dependences   3
waits         1 (0 device, 1 host)
records       1

missing order: 1 of 3 dependences
  line 11  op1  [1,1] on b  s.rs:11:1  reads
  line 10  op1  [0,1] on a  s.rs:01:1  what this writes: 4 bytes on cpu:0 from 0x1004 (life 1)

waits that could go: 1 of 1
  line 12  op2  [1,2] on b  s.rs:12:1  for op1 [0,1] on a  host  no dependence needs it

records that nobody waits for: 1 of 1
  line 9  event 7  [0,1] on a

not ok: there are races
";
    assert_eq!(report.to_string(), expected);
}

#[test]
fn a_report_never_sends_control_characters() {
    let mut text = trace("i 0 1 1:w:4096-4160\ni 1 1 1:r:4100-4104");
    text =
        text.replace("\"name\":\"a\"", "\"name\":\"\\u001b[31m\"").replace("\"op\":\"op1\"", "\"op\":\"\\u0007\\n\"");
    let report = verify(&Trace::read(text.as_bytes()).unwrap()).unwrap().to_string();
    assert!(report.chars().all(|c| c == '\n' || !c.is_control()), "{report:?}");
}

#[test]
fn a_trace_without_its_end_is_judged_and_said_to_be_cut() {
    let text = trace("i 0 1 1:w:4096-4160\ni 0 2");
    let cut = &text[..text.rfind("{\"end\"").unwrap()];
    let report = verify(&Trace::read(cut.as_bytes()).unwrap()).unwrap();
    assert!(report.is_in_order() && !report.complete && !report.is_ok());
    let told = report.to_string();
    assert!(told.contains("the trace has no \"end\" line: what was recorded later is missing"), "{told}");
    assert!(told.ends_with("\nnot ok: the trace is partial; what is there is in order\n"), "{told}");
    let report = judge("i 0 1");
    assert!(report.complete && report.is_ok() && !report.to_string().contains("\"end\""));
}

#[test]
fn a_trace_that_ends_within_a_line_is_judged_up_to_this_line() {
    let text = trace("i 0 1 1:w:4096-4160\ni 1 1 1:r:4100-4104");
    let lines = text.lines().count() as u64;
    let whole = verify(&Trace::read(text.as_bytes()).unwrap()).unwrap();
    assert_eq!((whole.instructions, whole.missing.total, whole.cut_line), (2, 1, None));
    // Without the end of the last line, and within the last instruction.
    let within = text.rfind("\"op\"").unwrap();
    for (end, line, instructions) in [(text.len() - 1, lines, 2), (text.len() - 3, lines, 2), (within, lines - 1, 1)] {
        let report = verify(&Trace::read(&text.as_bytes()[..end]).unwrap()).unwrap();
        assert_eq!((report.cut_line, report.complete), (Some(line), false));
        assert_eq!((report.instructions, report.missing.total), (instructions, instructions - 1));
        let told = report.to_string();
        assert!(told.contains(&format!("the trace ends in the middle of line {line}: ")) && !report.is_ok(), "{told}");
    }
}

#[test]
fn a_trace_that_holds_nothing_is_not_ok() {
    let header = "{\"streamvm_trace\":1}\n";
    let stream = "{\"stream\":{\"id\":0,\"name\":\"a\"}}\n";
    for (lines, whole) in [(1, false), (1, true), (2, true)] {
        let end = format!("{{\"end\":{{\"lines\":{lines}}}}}\n");
        let text = [header, if lines > 1 { stream } else { "" }, if whole { &end } else { "" }].concat();
        let report = verify(&Trace::read(text.as_bytes()).unwrap()).unwrap();
        let told = report.to_string();
        assert!(report.is_empty() && report.is_in_order() && !report.is_ok(), "{told}");
        assert!(told.contains("there is nothing to judge\nnot ok: the trace holds nothing\n"), "{told}");
    }
    let host =
        r#"{"host":{"op":"tensor","location":"h.rs:1:1","uses":[{"life":1,"access":"write","runs":[[4096,4160]]}]}}"#;
    assert!(!judge(host).is_empty() && judge(host).is_ok());
}

/// Reads a trace that is refused; gives line and text.
fn refused(text: &str) -> (u64, String) {
    let error = Trace::read(text.as_bytes()).expect_err("the trace is refused");
    assert!(error.to_string().starts_with(&format!("line {}: ", error.line)));
    (error.line, error.what)
}

#[test]
fn what_is_no_trace_is_refused_with_line_and_reason() {
    assert_eq!(refused("").0, 1);
    assert!(refused("").1.contains("the file is empty"));
    let (line, what) = refused("let x = load \"a\"\n");
    assert!(line == 1 && what.contains("a trace starts with {\"streamvm_trace\":1}"), "{what}");
    assert!(refused("{\"streamvm_trace\":2}\n").1.contains("version 2 of the format, and version 1 can be read"));
    assert!(refused("\u{0}\u{ff}\n").1.contains("column"));

    let last = trace("").lines().count() as u64;
    for (line, says) in [
        ("{\"instruction\":{\"at\":[0,2],\"op\":\"o\",\"location\":\"s\"}}", "is number 1, not 2"),
        (
            "{\"instruction\":{\"at\":[9,1],\"op\":\"o\",\"location\":\"s\"}}",
            "no line before this one introduces stream 9",
        ),
        ("{\"instruction\":{\"at\":[0,1],\"op\":\"o\"}}", "missing field `location`"),
        ("{\"instruction\":{\"at\":[0,1],\"op\":\"o\",\"location\":\"s\",\"more\":1}}", "unknown field `more`"),
        ("{\"instrction\":{}}", "unknown variant `instrction`, expected one of `stream`"),
        ("i 0 1 7:r:1-2", "no line before this one begins life 7"),
        ("i 0 1 1:r:2-2", "run [2,2] is empty"),
        ("i 0 1 2:r:2-3", "life 2 is a variable"),
        ("i 0 1 1@0", "[1,0] is no point"),
        ("i 0 1 1@99999999999", "[1,99999999999] is no point"),
        ("i 0 1 later", "unknown variant `later`, expected one of `after`, `all`, `barrier`"),
        ("{\"observed\":{\"points\":[[0,1]]}}", "only 0 instructions of the stream stand before this line"),
        ("{\"life\":{\"id\":1,\"kind\":\"device\",\"base\":1,\"bytes\":1}}", "life 1 has begun before"),
        ("{\"life\":{\"id\":4,\"kind\":\"device\"}}", "base or bytes is missing"),
        ("{\"life\":{\"id\":4,\"kind\":\"var\",\"bytes\":4}}", "neither base nor bytes"),
        ("{\"life\":{\"id\":4,\"kind\":\"device\",\"base\":9,\"bytes\":18446744073709551615}}", "past 64 bits"),
        ("{\"stream\":{\"id\":1,\"name\":\"x\"}}", "stream 1 is there already"),
        ("{\"end\":{\"lines\":3}}", "written with 3 lines, and 8 are here"),
        ("{\"end\":{\"lines\":8}}\n{\"free\":{\"life\":1}}", "stands behind the \"end\" line"),
        (
            "{\"ran\":{\"at\":[0,1],\"start\":1,\"end\":2}}",
            "but only 0 instructions of the stream stand before this line",
        ),
        ("i 0 1\n{\"ran\":{\"at\":[0,1],\"start\":2,\"end\":1}}", "end at 1, before it starts at 2"),
        ("i 0 1\n{\"ran\":{\"at\":[0,1],\"start\":2}}", "missing field `end`"),
        (
            "i 0 1\ni 0 2\n{\"ran\":{\"at\":[0,1],\"start\":2,\"end\":4}}\n{\"ran\":{\"at\":[0,2],\"start\":3,\"end\":5}}",
            "[0,2] is said to start at 3, behind [0,1], which ended at 4",
        ),
        (
            "i 0 1\n{\"ran\":{\"at\":[0,1],\"start\":2,\"end\":4}}\n{\"ran\":{\"at\":[0,1],\"start\":5,\"end\":6}}",
            "one instruction after the other",
        ),
        ("[[[[", "column"),
        ("nonsense", "column 1: expected value"),
    ] {
        let (at, what) = refused(&trace(line));
        assert!(what.contains(says), "{line}: {what}");
        assert!(at == last || line.contains("\n"), "{line} is refused in line {at}");
    }
    let (line, what) = refused("{\"streamvm_tr");
    assert!(line == 1 && what.contains("a trace starts with"), "{what}");
    let behind = format!("{}{{\"fr", trace("i 0 1"));
    assert!(refused(&behind).1.contains("stands behind the \"end\" line"));
}

#[test]
fn times_are_read_and_change_no_judgement() {
    let race = "i 0 1 1:w:4096-4160\ni 1 1 1:r:4096-4160\n";
    // On an unordered stream instructions may overlap; of an ordered one some may have no time.
    let times = "i 0 2\ni 0 3\ni 2 1\ni 2 2\n";
    let ran = |at: &str, start: u64, end: u64| format!("{{\"ran\":{{\"at\":{at},\"start\":{start},\"end\":{end}}}}}\n");
    let told =
        [ran("[0,1]", 0, 7), ran("[0,3]", 7, 7), ran("[1,1]", 9, 10), ran("[2,2]", 1, 9), ran("[2,1]", 2, 8)].concat();
    let judged = |text: &str| {
        let read = Trace::read(trace(text).as_bytes()).expect("a trace");
        let report = verify(&read).expect("small enough");
        (report.instructions, report.missing.total, report.is_ok(), report.complete)
    };
    assert_eq!(judged(&format!("{race}{times}{told}")), judged(&format!("{race}{times}")));
    assert_eq!(judged(&format!("{race}{times}{told}")), (6, 1, false, true));
}

#[test]
fn what_is_too_large_is_refused() {
    let limits = Limits { line_bytes: 200, lines: 12, streams: 2, entries: 4 };
    let read = |text: &str| Trace::read_within(text.as_bytes(), limits).map(drop).map_err(|error| error.what);
    let long = format!("{{\"streamvm_trace\":1}}\n{}", " ".repeat(300));
    assert!(read(&long).unwrap_err().contains("longer than 200 bytes"));
    let mut many = String::from("{\"streamvm_trace\":1}\n");
    (0..20).for_each(|id| many.push_str(&format!("{{\"life\":{{\"id\":{id},\"kind\":\"var\"}}}}\n")));
    assert!(read(&many).unwrap_err().contains("more than 12 lines"));
    let mut runs =
        String::from("{\"streamvm_trace\":1}\n{\"life\":{\"id\":1,\"kind\":\"d\",\"base\":0,\"bytes\":99}}\n");
    runs.push_str("{\"host\":{\"op\":\"o\",\"location\":\"s\",\"uses\":[{\"life\":1,\"access\":\"read\",\"runs\":[[1,2],[3,4],[5,6],[7,8],[9,10]]}]}}\n");
    assert!(read(&runs).unwrap_err().contains("more than 4 runs of bytes"));
    let repeated = runs.replace("[[1,2],[3,4],[5,6],[7,8],[9,10]]", "[[1,2,18446744073709551615,2]]");
    assert!(read(&repeated).unwrap_err().contains("more than 4 runs of bytes"));
    for wrong in ["[[1,2,0,2]]", "[[1,4,2,2]]", "[[1,2,2,18446744073709551615]]"] {
        let text = runs.replace("[[1,2],[3,4],[5,6],[7,8],[9,10]]", wrong);
        assert!(read(&text).unwrap_err().contains("overlaps itself"), "{wrong}");
    }
}
