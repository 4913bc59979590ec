//! Large traces: judged whole, with nothing left out.
#![allow(clippy::print_stdout, reason = "says how long it took, with --nocapture")]

use std::fmt::Write as _;
use std::time::Instant;

use streamvm_verify::{Report, Trace, verify};

/// A small generator (splitmix64), so that the trace is the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Waits {
    /// Those that no earlier wait of the stream for the same stream makes superfluous.
    Few,
    /// For everything that the bytes need.
    All,
    /// Also of reads for reads, so that many order what need not be.
    Reads,
}

/// How a trace is made.
struct Make {
    instructions: usize,
    streams: usize,
    tensors: usize,
    waits: Waits,
    /// Pieces of a view.
    runs: usize,
}

type Point = (usize, usize);

#[derive(Clone, Default)]
struct Tensor {
    write: Option<Point>,
    reads: Vec<Point>,
}

/// Random instructions over tensors, each with the waits that its bytes need.
fn make(make: &Make) -> String {
    let mut random = Random(7);
    let mut text = String::from("{\"streamvm_trace\":1}\n");
    (0..make.streams)
        .for_each(|id| writeln!(text, "{{\"stream\":{{\"id\":{id},\"name\":\"compute@cpu:0:{id}\"}}}}").unwrap());
    let bytes = make.runs * 16;
    for id in 0..make.tensors {
        let base = id * bytes;
        writeln!(
            text,
            "{{\"life\":{{\"id\":{id},\"place\":\"cpu:0\",\"kind\":\"device\",\"base\":{base},\"bytes\":{bytes}}}}}"
        )
        .unwrap();
        writeln!(text, "{{\"host\":{{\"op\":\"tensor\",\"location\":\"a.rs:1:1\",\"uses\":[{{\"life\":{id},\"access\":\"write\",\"runs\":[[{base},{}]]}}]}}}}", base + bytes).unwrap();
    }
    let mut tensors = vec![Tensor::default(); make.tensors];
    let mut last = vec![0; make.streams];
    // What each stream is known to come after: at most what is true.
    let mut known = vec![vec![0; make.streams]; make.streams];
    for number in 0..make.instructions {
        let stream = random.below(make.streams);
        last[stream] += 1;
        let at = (stream, last[stream]);
        let chosen: Vec<(usize, bool)> = (0..3).map(|index| (random.below(make.tensors), index == 2)).collect();
        let mut waits: Vec<Point> = Vec::new();
        for (tensor, writes) in &chosen {
            let tensor = &tensors[*tensor];
            let reads = tensor.reads.iter().filter(|_| *writes || make.waits == Waits::Reads);
            waits.extend(tensor.write.iter().chain(reads).filter(|point| point.0 != stream));
        }
        waits.sort_unstable();
        waits.dedup();
        if make.waits == Waits::Few {
            waits.retain(|point| known[stream][point.0] < point.1);
        }
        waits.iter().for_each(|point| known[stream][point.0] = known[stream][point.0].max(point.1));
        write!(
            text,
            "{{\"instruction\":{{\"at\":[{stream},{}],\"op\":\"add\",\"location\":\"a.rs:{number}:9\",\"uses\":[",
            at.1
        )
        .unwrap();
        for (index, (tensor, writes)) in chosen.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let access = if *writes { "write" } else { "read" };
            write!(text, "{comma}{{\"life\":{tensor},\"access\":\"{access}\",\"runs\":[").unwrap();
            for run in 0..make.runs {
                let start = tensor * bytes + run * 16;
                write!(text, "{}[{start},{}]", if run > 0 { "," } else { "" }, start + 12).unwrap();
            }
            text.push_str("]}");
        }
        text.push_str("],\"waits\":[");
        for (index, point) in waits.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(text, "{comma}{{\"point\":[{},{}],\"by\":\"device\"}}", point.0, point.1).unwrap();
        }
        text.push_str("]}}\n");
        for (tensor, writes) in chosen {
            let tensor = &mut tensors[tensor];
            if writes {
                *tensor = Tensor { write: Some(at), reads: Vec::new() };
            } else {
                tensor.reads.push(at);
            }
        }
    }
    writeln!(text, "{{\"end\":{{\"lines\":{}}}}}", text.lines().count()).unwrap();
    text
}

/// Judges a trace, and says how long it took, for people (`--nocapture`).
fn judge(what: &str, text: &str) -> Report {
    let start = Instant::now();
    let trace = Trace::read(text.as_bytes()).unwrap();
    let read = start.elapsed();
    let report = verify(&trace).unwrap();
    println!(
        "{what}: {} MB, read in {read:.2?}, judged in {:.2?}; {} dependences, {} waits, {} of them excess, {} not tried",
        text.len() >> 20,
        start.elapsed() - read,
        report.dependences,
        report.device_waits,
        report.excess.waits.total,
        report.excess.not_tried
    );
    report
}

#[test]
fn a_hundred_thousand_instructions_over_sixteen_streams_are_judged_whole() {
    for (what, waits, tensors) in [
        ("few waits", Waits::Few, 200),
        ("reads for reads", Waits::Reads, 2000),
        ("few tensors", Waits::All, 8),
        ("many tensors", Waits::Few, 20_000),
    ] {
        let text = make(&Make { instructions: 100_000, streams: 16, tensors, waits, runs: 1 });
        let report = judge(what, &text);
        assert!(report.is_ok(), "{report}");
        assert_eq!((report.instructions, report.excess.not_tried), (100_000, 0));
        assert!(!report.excess.waits.is_empty());
    }
}

#[test]
fn many_streams_and_views_of_many_pieces_are_judged_whole() {
    let text = make(&Make { instructions: 20_000, streams: 200, tensors: 500, waits: Waits::Few, runs: 1 });
    assert!(judge("200 streams", &text).is_ok());
    let text = make(&Make { instructions: 3000, streams: 16, tensors: 50, waits: Waits::Few, runs: 200 });
    assert!(judge("200 pieces", &text).is_ok());
}

#[test]
fn one_wait_that_is_left_out_of_many_is_found() {
    let text = make(&Make { instructions: 20_000, streams: 16, tensors: 200, waits: Waits::Few, runs: 1 });
    let (before, after) = text.split_at(text.len() / 2);
    let wait = before.len() + after.find("\"waits\":[{").unwrap();
    let end = wait + text[wait..].find("]}}").unwrap();
    let broken = format!("{}\"waits\":[{}", &text[..wait], &text[end..]);
    let report = judge("one left out", &broken);
    assert!(report.missing.total >= 1 && report.missing.total < 100, "{report}");
    let line = broken[..wait].lines().count() as u64;
    assert_eq!(report.missing.first[0].second.line, line);
}
