//! Lines are exactly as `docs/trace.md` says, and reach the writer whole and in order, whether the writer fails, panics or submits.

use std::sync::{Arc, Mutex, Weak};

use streamvm_ep::DeviceId;
use streamvm_stream::StreamType;

use super::*;

fn point(stream: u32, seq: u64) -> Point {
    Point::new(StreamId(stream), seq)
}

/// `FILE:LINE:COLUMN` as JSON text.
fn text_of(site: Site) -> String {
    site.to_string().replace('\\', "\\\\")
}

#[test]
fn every_line_is_as_the_format_says() {
    let site = Site::caller();
    let mut recorder = Recorder::new();
    let key = StreamKey::new(DeviceId::cpu(0), StreamType::Compute, 1);
    recorder.stream(StreamId(0), key);
    recorder.stream(StreamId::unordered(1), key);
    recorder.life(7, &"cpu:0", &"device", 4096, 512);
    recorder.variable(8);
    recorder.host(
        "tensor",
        site,
        &[UseLine { life: 7, access: Access::Write, runs: std::slice::from_ref(&(4096..4608)) }],
    );
    recorder.record(3, point(1, 4));
    recorder.observed([point(0, 2), point(1, 9)]);
    recorder.observed([]);
    recorder.instruction(&InstructionLine {
        at: point(0, 1),
        op: "a \"b\"\\\n",
        site,
        uses: &[
            UseLine { life: 7, access: Access::Read, runs: &[4096..4100, 4104..4108] },
            UseLine { life: 8, access: Access::ReadWrite, runs: &[] },
        ],
        waits: &[
            WaitLine { point: point(1, 4), by: WaitKind::Device, event: Some(3) },
            WaitLine { point: point(2, 5), by: WaitKind::Host, event: None },
        ],
        order: OrderLine::After(point(1, 3)),
    });
    for (seq, order) in [(2, OrderLine::AfterAll), (3, OrderLine::Barrier), (4, OrderLine::Uses)] {
        recorder.instruction(&InstructionLine { at: point(0, seq), op: "sync", site, uses: &[], waits: &[], order });
    }
    recorder.ran(point(0, 1), 1500..2500);
    recorder.free(7);
    recorder.unmap(4096, 512);
    recorder.end();
    recorder.free(8);

    let expected = r#"{"streamvm_trace":1}
{"stream":{"id":0,"name":"compute@cpu:0:1"}}
{"stream":{"id":1,"name":"compute@cpu:0:1","ordered":false}}
{"life":{"id":7,"place":"cpu:0","kind":"device","base":4096,"bytes":512}}
{"life":{"id":8,"kind":"var"}}
{"host":{"op":"tensor","location":"SITE","uses":[{"life":7,"access":"write","runs":[[4096,4608]]}]}}
{"record":{"event":3,"point":[1,4]}}
{"observed":{"points":[[0,2],[1,9]]}}
{"instruction":{"at":[0,1],"op":"a \"b\"\\\u000a","location":"SITE","uses":[{"life":7,"access":"read","runs":[[4096,4100],[4104,4108]]},{"life":8,"access":"readwrite"}],"waits":[{"point":[1,4],"by":"device","event":3},{"point":[2,5],"by":"host"}],"order":{"after":[1,3]}}}
{"instruction":{"at":[0,2],"op":"sync","location":"SITE","order":"all"}}
{"instruction":{"at":[0,3],"op":"sync","location":"SITE","order":"barrier"}}
{"instruction":{"at":[0,4],"op":"sync","location":"SITE"}}
{"ran":{"at":[0,1],"start":1500,"end":2500}}
{"free":{"life":7}}
{"unmap":{"base":4096,"bytes":512}}
{"end":{"lines":15}}
"#;
    assert_eq!(recorder.take(), expected.replace("SITE", &text_of(site)));
    assert_eq!(recorder.take(), "");
}

#[test]
fn a_view_of_very_many_pieces_is_written_as_its_hull() {
    let written = |runs: &[Range<usize>]| {
        let mut recorder = Recorder::new();
        let uses = [UseLine { life: 1, access: Access::Read, runs }];
        recorder.host("read", Site::caller(), &uses);
        recorder.take()
    };
    let rows: Vec<Range<usize>> = (0..MOST_RUNS + 1).map(|row| row * 8..row * 8 + 4).collect();
    let end = MOST_RUNS * 8 + 4;
    assert!(written(&rows).contains(&format!("\"runs\":[[0,{end}]],\"hull\":true")));
    // Growing distances make one entry per run.
    let apart: Vec<Range<usize>> = (0..MOST_ENTRIES + 1).map(|row| row * row * 8..row * row * 8 + 4).collect();
    let end = MOST_ENTRIES * MOST_ENTRIES * 8 + 4;
    assert!(written(&apart).contains(&format!("\"runs\":[[0,{end}]],\"hull\":true")));
}

#[test]
fn runs_that_repeat_are_one_entry() {
    let rows = (0..1797).map(|row| 4096 + row * 40..4096 + row * 40 + 8);
    let mut runs: Vec<Range<usize>> = [0..8, 16..20].into_iter().chain(rows).collect();
    runs.push(90_000..90_001);
    let entries: Vec<_> = repeats(&runs).map(|(run, count, step)| (run.start, run.end, count, step)).collect();
    assert_eq!(entries[..3], [(0, 8, 1, 16), (16, 20, 1, 4080), (4096, 4104, 1797, 40)]);
    assert_eq!((entries.len(), entries[3].0), (4, 90_000));
    let mut recorder = Recorder::new();
    recorder.host("read", Site::caller(), &[UseLine { life: 1, access: Access::Read, runs: &runs }]);
    assert!(recorder.take().contains("\"runs\":[[0,8],[16,20],[4096,4104,1797,40],[90000,90001]]"));
}

/// A writer that fails at the n-th call.
struct Fails(usize, Arc<Mutex<Vec<u8>>>);

impl Write for Fails {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 -= 1;
        match self.0 {
            0 => Err(io::Error::other("disk full")),
            _ => {
                self.1.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn after_an_error_nothing_is_written_and_the_error_is_reported_once() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let writer = TraceWriter::new(Box::new(Fails(2, seen.clone())));
    for line in ["one\n", "two\n", "three\n"] {
        let mut left = Some(line.to_owned());
        writer.pass_on(|| left.take().unwrap_or_default());
    }
    assert_eq!(seen.lock().unwrap().as_slice(), b"one\n");
    assert!(writer.finish(String::new).unwrap_err().to_string().contains("disk full"));
    assert!(writer.finish(String::new).is_ok());
}

struct Panics;

impl Write for Panics {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        panic!("no writer today");
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_writer_that_panics_is_an_error() {
    let writer = TraceWriter::new(Box::new(Panics));
    let mut left = Some("one\n".to_owned());
    writer.pass_on(|| left.take().unwrap_or_default());
    let error = writer.finish(String::new).unwrap_err().to_string();
    assert!(error.contains("no writer today"), "{error}");
}

/// A writer that causes new lines while it writes, like a writer that submits.
struct Again(Weak<TraceWriterAndLines>);

#[derive(Default)]
struct TraceWriterAndLines {
    writer: std::sync::OnceLock<TraceWriter>,
    lines: Mutex<String>,
    seen: Mutex<String>,
}

impl Write for Again {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let all = self.0.upgrade().unwrap();
        all.seen.lock().unwrap().push_str(&text);
        if text == "one\n" {
            all.lines.lock().unwrap().push_str("two\n");
            all.pass_on();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TraceWriterAndLines {
    fn pass_on(&self) {
        self.writer.get().unwrap().pass_on(|| std::mem::take(&mut self.lines.lock().unwrap()));
    }
}

#[test]
fn lines_that_the_writer_itself_causes_come_after_the_others() {
    let all = Arc::new(TraceWriterAndLines::default());
    assert!(all.writer.set(TraceWriter::new(Box::new(Again(Arc::downgrade(&all))))).is_ok());
    all.lines.lock().unwrap().push_str("one\n");
    all.pass_on();
    assert_eq!(*all.seen.lock().unwrap(), "one\ntwo\n");
}

#[test]
fn lines_of_several_threads_stay_in_the_order_of_recording() {
    const LINES: u64 = 2000;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let recorder = Mutex::new(Recorder::new());
    let writer = TraceWriter::new(Box::new(Fails(usize::MAX, seen.clone())));
    let next = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    {
                        let mut next = next.lock().unwrap();
                        if *next == LINES {
                            return;
                        }
                        recorder.lock().unwrap().free(*next);
                        *next += 1;
                    }
                    writer.pass_on(|| recorder.lock().unwrap().take());
                }
            });
        }
    });
    writer.finish(|| recorder.lock().unwrap().take()).unwrap();
    let expected: String = std::iter::once("{\"streamvm_trace\":1}\n".to_owned())
        .chain((0..LINES).map(|life| format!("{{\"free\":{{\"life\":{life}}}}}\n")))
        .collect();
    assert_eq!(String::from_utf8(seen.lock().unwrap().clone()).unwrap(), expected);
}
