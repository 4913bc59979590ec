//! Notes for stall reports: which instructions thread contexts run, and which they cannot run yet.
//!
//! Tasks belong to the thread that runs or holds them, so a report cannot read them. Instead:
//! * A thread context writes down the task that it is about to run ([`Running`]): relaxed stores to one cache line that no other
//!   thread writes, kept consistent by a version, as in a sequence lock.
//! * A thread context or the scheduler that parks writes down the tasks that it cannot run yet ([`Board`]). That is off the hot
//!   path: such a thread registers with the streams that it waits for anyway.
//! * A pool keeps the asynchronous functions whose handle is not used yet in a table ([`Incomplete`]).
//!
//! Notes of [`Running`] and [`Board`] are never erased. A report uses a note only while its point has not passed, and on an ordered
//! stream only for the oldest such point. So stale notes are ignored, and a report made while work goes on is at worst out of date.

use std::borrow::Cow;

use crossbeam_utils::CachePadded;
use hashbrown::HashMap;
use smallvec::SmallVec;
use streamvm_ep::Site;
use streamvm_stream::{Point, StreamId};

use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, fence, unpoisoned};
use crate::tasks::site::AtomicSite;
use crate::tasks::task::Task;

/// Open waits of an instruction that are written down, beginning with those that the scheduler checks next: there may be thousands.
const MOST_WAITS: usize = 8;

/// Words of 8 bytes of a name that are written down; a longer name is cut off.
const WORDS: usize = 3;

/// The task that a thread context runs, as reports see it. Only the holder of the context's run lock writes it.
#[derive(Debug, Default)]
pub(crate) struct Running(CachePadded<Note>);

#[derive(Debug, Default)]
struct Note {
    /// Odd while the other fields are being written.
    version: AtomicU64,
    seq: AtomicU64,
    /// The number that reports show: [`Task::number`]. Written on unordered streams only; on an ordered stream it equals `seq`.
    number: AtomicU64,
    /// The stream in the lower half, the length of the name in bytes in the upper.
    stream_and_length: AtomicU64,
    site: AtomicSite,
    name: [AtomicU64; WORDS],
    /// The address of the last name, if it is a constant of the program: the same name is then not copied again. Only the writer
    /// reads it.
    constant: AtomicUsize,
}

/// The asynchronous functions of a pool that were called and are not complete, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Incomplete(Mutex<HashMap<u64, Noted>>);

impl Incomplete {
    /// Adds `task`, which waits for its handle.
    pub(crate) fn begin(&self, task: &Task) {
        let noted = Noted::of(task);
        unpoisoned(self.0.lock()).insert(task.point.seq, noted);
    }

    /// Removes `task`, whose handle was used.
    pub(crate) fn end(&self, task: &Task) {
        unpoisoned(self.0.lock()).remove(&task.point.seq);
    }

    pub(crate) fn has(&self, noted: &Noted) -> bool {
        unpoisoned(self.0.lock()).contains_key(&noted.point.seq)
    }

    pub(crate) fn find(&self, point: Point) -> Option<Noted> {
        unpoisoned(self.0.lock()).get(&point.seq).filter(|noted| noted.point == point).cloned()
    }

    pub(crate) fn any(&self) -> Option<Noted> {
        unpoisoned(self.0.lock()).values().next().cloned()
    }
}

/// The name of a task, which is usually a constant of the program.
fn name_of(task: &Task) -> Cow<'static, str> {
    task.own_name().map_or(task.what.into(), |name| name.to_owned().into())
}

/// An instruction as a thread has written it down.
#[derive(Clone, Debug)]
pub(crate) struct Noted {
    pub(crate) point: Point,
    pub(crate) number: u64,
    pub(crate) what: Cow<'static, str>,
    pub(crate) site: Site,
}

impl Noted {
    pub(crate) fn of(task: &Task) -> Noted {
        Noted { point: task.point, number: task.number(), what: name_of(task), site: task.site.get() }
    }
}

impl Running {
    /// Writes down that `task` is about to run.
    pub(crate) fn begin(&self, task: &Task) {
        let note = &*self.0;
        let (name, constant) = match task.own_name() {
            None => (task.what, task.what.as_ptr().addr()),
            Some(name) => (name, 0),
        };
        let length = (name.len() as u64).min(u64::from(u32::MAX));
        let stream_and_length = u64::from(task.point.stream.0) | length << 32;
        let same_name = constant != 0
            && note.constant.load(Ordering::Relaxed) == constant
            && note.stream_and_length.load(Ordering::Relaxed) >> 32 == length;
        let version = note.version.load(Ordering::Relaxed);
        note.version.store(version + 1, Ordering::Relaxed);
        // Orders the odd version before the stores that follow: a reader that sees one of them sees the odd version.
        fence(Ordering::Release);
        note.seq.store(task.point.seq, Ordering::Relaxed);
        if task.point.stream.is_unordered() {
            note.number.store(task.number(), Ordering::Relaxed);
        }
        note.stream_and_length.store(stream_and_length, Ordering::Relaxed);
        note.site.store(task.site);
        if !same_name {
            let mut bytes = [0; WORDS * 8];
            let kept = name.len().min(bytes.len());
            bytes[..kept].copy_from_slice(&name.as_bytes()[..kept]);
            for (word, bytes) in note.name.iter().zip(bytes.as_chunks::<8>().0) {
                word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
            }
            note.constant.store(constant, Ordering::Relaxed);
        }
        note.version.store(version + 2, Ordering::Release);
    }

    /// The task written down last; `None` if there is none, or if the context is writing at this moment.
    pub(crate) fn last(&self) -> Option<Noted> {
        let note = &*self.0;
        let version = note.version.load(Ordering::Acquire);
        let (seq, number) = (note.seq.load(Ordering::Relaxed), note.number.load(Ordering::Relaxed));
        let stream_and_length = note.stream_and_length.load(Ordering::Relaxed);
        let site = note.site.load();
        let mut bytes = [0; WORDS * 8];
        for (word, bytes) in note.name.iter().zip(bytes.as_chunks_mut::<8>().0) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        // Orders all loads above before the second load of the version.
        fence(Ordering::Acquire);
        if version % 2 == 1 || note.version.load(Ordering::Relaxed) != version {
            return None;
        }
        let length = (stream_and_length >> 32) as usize;
        let kept = &bytes[..length.min(bytes.len())];
        let mut what = String::from_utf8_lossy(kept).trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned();
        if length > kept.len() {
            what.push('…');
        }
        let stream = StreamId((stream_and_length & u64::from(u32::MAX)) as u32);
        let number = if stream.is_unordered() { number } else { seq };
        Some(Noted { point: Point::new(stream, seq), number, what: what.into(), site: site? })
    }
}

/// An instruction that its thread cannot run yet, with the points that it waits for.
struct Head {
    noted: Noted,
    waits: SmallVec<[Point; 2]>,
}

/// The instructions that one thread could not run when it parked.
#[derive(Default)]
pub(crate) struct Board {
    heads: Mutex<Vec<Head>>,
}

impl Board {
    /// Writes down the first instruction of each queue, replacing the former notes.
    pub(crate) fn write<'a>(&self, tasks: impl Iterator<Item = &'a Task>) {
        let mut heads = unpoisoned(self.heads.lock());
        heads.clear();
        heads.extend(
            tasks.map(|task| Head { noted: Noted::of(task), waits: task.open_waits().take(MOST_WAITS).collect() }),
        );
    }

    pub(crate) fn find(&self, point: Point) -> Option<(Noted, SmallVec<[Point; 2]>)> {
        let heads = unpoisoned(self.heads.lock());
        let head = heads.iter().find(|head| head.noted.point == point)?;
        Some((head.noted.clone(), head.waits.clone()))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[track_caller]
    fn task(stream: u32, seq: u64, what: &'static str, name: Option<&str>) -> Task {
        let mut task = Task::empty();
        (task.point, task.what, task.site) = (Point::new(StreamId(stream), seq), what, Site::caller().into());
        if let Some(name) = name {
            task.cold_mut().name = Some(name.into());
        }
        task
    }

    #[test]
    fn notes_of_running_tasks_are_read_back_as_written() {
        let running = Running::default();
        assert!(running.last().is_none(), "nothing was");
        let long = "a name that is longer than what is kept of it";
        let names = [("add", None), ("add", None), ("function", Some("mine")), ("function", Some("yours"))];
        for (seq, (what, name)) in names.into_iter().chain([("fn", Some(long)), ("add", None)]).enumerate() {
            running.begin(&task(7, seq as u64, what, name));
            let noted = running.last().expect("something was");
            let expected = if name == Some(long) { "a name that is longer th…" } else { name.unwrap_or(what) };
            assert_eq!((noted.point, noted.what.as_ref()), (Point::new(StreamId(7), seq as u64), expected));
            assert_eq!(noted.site.file(), file!());
        }
    }

    #[test]
    fn a_name_that_is_cut_within_a_character_loses_all_of_it() {
        let running = Running::default();
        running.begin(&task(0, 1, "", Some("twenty-three bytes long é and more")));
        assert_eq!(running.last().map(|noted| noted.what), Some("twenty-three bytes long …".into()));
        running.begin(&task(0, 1, "", Some("exactly 23 bytes long..é and more")));
        assert_eq!(running.last().map(|noted| noted.what), Some("exactly 23 bytes long..…".into()));
    }

    /// A reader never sees a mixture of two instructions.
    #[test]
    fn a_reader_beside_the_writer_sees_whole_notes() {
        let running = Running::default();
        let names = ["one", "three", "a much longer name..."];
        let seen = AtomicU64::new(0);
        let mut torn = None;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut round = 0;
                while seen.load(Ordering::Relaxed) < 200_000 {
                    let which = round % 3;
                    running.begin(&task(which as u32, which as u64, names[which], None));
                    round += 1;
                }
            });
            while seen.load(Ordering::Relaxed) < 200_000 {
                if let Some(noted) = running.last() {
                    seen.fetch_add(1, Ordering::Relaxed);
                    let which = noted.point.seq as usize;
                    if (noted.point.stream.0 as usize, noted.what.as_ref()) != (which, names[which]) {
                        torn = Some((noted.point, noted.what));
                    }
                }
            }
        });
        assert_eq!(torn, None, "a mixture of two instructions");
    }

    #[test]
    fn a_board_holds_what_was_written_last() {
        let board = Board::default();
        let (mut first, second) = (task(1, 5, "add", None), task(2, 9, "fn", Some("mine")));
        first.cold_mut().device_waits.push(Point::new(StreamId(2), 9));
        board.write([&first, &second].into_iter());
        let (noted, waits) = board.find(first.point).expect("it was written down");
        assert_eq!((noted.what.as_ref(), waits.as_slice()), ("add", &[Point::new(StreamId(2), 9)][..]));
        assert_eq!(board.find(second.point).map(|(noted, _)| noted.what), Some("mine".into()));
        board.write(std::iter::once(&second));
        assert!(board.find(first.point).is_none());
    }
}
