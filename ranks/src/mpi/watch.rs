//! [`Job`]: finds the ranks for which a request waits longer than the limit.
//!
//! MPI has no deadlines. One thread of each process looks at the requests of all groups, once a second, or 20 times in the limit if that is shorter. If one has waited for the limit, it asks
//! the ranks that the request waits for, whose threads answer, also while their programs compute. A rank that has not started the collective, and does not wait for somebody else,
//! is late, and so is one that does not answer. All ranks of the group are told. Then what is under way fails where MPI is fault tolerant; any other MPI ends the job.
//!
//! The messages go over the communicator of the job, which no failure revokes.

use std::collections::HashMap;
use std::ffi::c_int;
use std::io::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::library::{Handle, Library};
use super::notice::{BYTES, Notice, Word};
use super::{GRACE, Shared};
use crate::transport::{RankError, Transfer, Verb, hash_of};

/// The tag of notices. Messages of the program have the tag 0, in other communicators; those that make groups less than this one.
pub(super) const TAG: c_int = 16_000;

/// So long a launcher has to read what a rank says last.
const TO_BE_READ: Duration = Duration::from_millis(200);

/// The longest limit, of some thousand years.
const LONGEST: Duration = Duration::from_secs(1 << 37);

/// The communicator of all ranks of the job, over which groups are made and watched.
pub(super) struct Job {
    pub(super) library: Arc<Library>,
    pub(super) communicator: Handle,
    /// The number of this rank in the job, and of all.
    rank: usize,
    size: usize,
    /// How long a rank waits for others.
    pub(super) limit: Duration,
    groups: Mutex<Vec<Known>>,
    /// Calls that wait for other ranks to make a group.
    making: AtomicUsize,
}

/// A group of this rank, also one that is gone here: others may ask about it.
#[derive(Clone)]
struct Known {
    identity: u64,
    /// Collectives that this rank has started.
    started: Arc<AtomicU64>,
    group: Weak<Shared>,
}

/// While this lives, a call of this rank waits for others.
pub(super) struct Waiting<'j>(&'j AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// SAFETY: the handle is a value that MPI functions take, and those are called one at a time.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

/// A request that is not over.
#[derive(Clone)]
pub(super) struct UnderWay {
    pub(super) id: u64,
    pub(super) began: Instant,
    pub(super) waits: Waits,
}

/// The ranks that a request waits for.
#[derive(Clone)]
pub(super) enum Waits {
    /// All ranks, in the collective of this number.
    ForAll {
        call: u64,
        text: String,
    },
    ForMessage {
        peer: usize,
    },
}

impl Waits {
    pub(super) fn of(transfer: &Transfer, call: impl FnOnce() -> u64) -> Waits {
        match transfer.verb {
            Verb::Send(peer) | Verb::Receive(peer) => Waits::ForMessage { peer },
            _ => Waits::ForAll { call: call(), text: transfer.call.clone() },
        }
    }
}

/// The questions of this rank to the others of a group, and their answers.
#[derive(Default)]
pub(super) struct Inquiry {
    /// The number of questions asked so far.
    questions: u64,
    open: Option<Question>,
    /// The request that the last question was about, and whether all ranks had begun it then.
    last: Option<(u64, bool)>,
    /// When the next one may be asked.
    next: Option<Instant>,
}

/// A question, and the answers so far.
struct Question {
    about: UnderWay,
    /// If it is asked for the second time: whether all ranks had begun the request the first time.
    again: Option<bool>,
    asked: Instant,
    answers: Vec<Notice>,
}

impl Job {
    /// `communicator` is of this alone.
    pub(super) fn begin(library: Arc<Library>, communicator: Handle, limit: Duration) -> Result<Arc<Job>, RankError> {
        let (rank, size) = library.rank_and_size(communicator)?;
        library.watched(communicator);
        // Longer ones cannot be added to a time.
        let limit = limit.min(LONGEST);
        let (groups, making) = (Mutex::default(), AtomicUsize::new(0));
        let job = Arc::new(Job { library, communicator, rank, size, limit, groups, making });
        let (watched, period) = (Arc::downgrade(&job), job.period());
        let watch = move || {
            while let Some(job) = watched.upgrade() {
                if !job.look() {
                    return;
                }
                drop(job);
                std::thread::sleep(period);
            }
        };
        let started = std::thread::Builder::new().name("mpi-watch".to_owned()).spawn(watch);
        started.map_err(|error| RankError::Environment {
            what: format!("the system refuses a thread: {error}"),
            help: "allow more threads (`ulimit -u`)",
        })?;
        Ok(job)
    }

    /// How often the thread looks.
    fn period(&self) -> Duration {
        (self.limit / 20).clamp(Duration::from_millis(20), Duration::from_secs(1))
    }

    /// How long ranks may take to answer.
    fn time_to_answer(&self) -> Duration {
        (self.limit / 10).clamp(Duration::from_secs(1), Duration::from_secs(10))
    }

    pub(super) fn add(&self, group: &Arc<Shared>) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let (identity, started, group) = (group.identity, group.calls.clone(), Arc::downgrade(group));
        groups.push(Known { identity, started, group });
    }

    /// Notes that a call waits for other ranks to make a group.
    pub(super) fn waiting(&self) -> Waiting<'_> {
        self.making.fetch_add(1, Ordering::Relaxed);
        Waiting(&self.making)
    }

    /// Looks at messages and requests. Returns whether MPI still runs.
    fn look(&self) -> bool {
        let all = self.groups.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let groups: Vec<Arc<Shared>> = all.iter().filter_map(|known| known.group.upgrade()).collect();
        let Some(came) = self.receive() else { return false };
        // A request that is younger than that does not count: it may be over at once.
        let old = 2 * self.period();
        let waits = self.making.load(Ordering::Relaxed) > 0
            || groups.iter().any(|group| group.oldest().is_some_and(|it| it.began.elapsed() > old));
        for notice in came {
            let group = groups.iter().find(|group| group.identity == notice.identity);
            match (notice.word, group) {
                (Word::Question, group) => {
                    let known = all.iter().find(|known| known.identity == notice.identity);
                    let started = known.map_or(0, |known| known.started.load(Ordering::Relaxed));
                    self.answer(&notice, group, (started, waits));
                }
                (Word::Answer, Some(group)) => group.inquiry().answered(notice),
                (_, Some(group)) => group.learn(&notice),
                (_, None) => {}
            }
        }
        groups.iter().for_each(|group| group.watch());
        self.library.forget_sent();
        true
    }

    /// The notices that have come; `None` if MPI has ended in this process.
    fn receive(&self) -> Option<Vec<Notice>> {
        let mut came = Vec::new();
        if self.library.faults.is_none() {
            self.library.receive_all(None, TAG, self.communicator, &mut came)?;
        } else {
            // Once a rank is lost, fault tolerant MPI refuses to receive from any.
            for rank in 0..self.size {
                self.library.receive_all(Some(rank as c_int), TAG, self.communicator, &mut came)?;
            }
        }
        Some(came.iter().filter_map(|bytes: &[u8; BYTES]| Notice::decode(bytes)).collect())
    }

    fn send(&self, notice: &Notice, to: c_int) {
        self.library.send(notice.encode(), to, TAG, self.communicator);
    }

    fn answer(&self, question: &Notice, group: Option<&Arc<Shared>>, (started, waits): (u64, bool)) {
        let mut answer = Notice::new(Word::Answer, question.identity, self.rank as u64);
        (answer.question, answer.started, answer.waits) = (question.question, started, waits);
        if let Some(group) = group {
            if let Some((hash, text)) = group.current() {
                (answer.hash, answer.texts[0]) = (hash, text);
            }
            // The rank that asks sends its verdict to all ranks of the group, so this one need not ask: not before that one asks for the second time, if it is about a
            // collective, which concerns all.
            let again = if question.hash == 0 { Duration::ZERO } else { self.limit + self.time_to_answer() };
            group.inquiry().wait_until(Instant::now() + again + self.time_to_answer() + 3 * self.period());
        }
        self.send(&answer, question.sender as c_int);
    }
}

impl Inquiry {
    fn answered(&mut self, answer: Notice) {
        if answer.question == self.questions
            && let Some(open) = &mut self.open
        {
            open.answers.push(answer);
        }
    }

    fn wait_until(&mut self, time: Instant) {
        self.next = Some(self.next.map_or(time, |next| next.max(time)));
    }
}

impl Shared {
    /// Looks at the requests of the group.
    fn watch(&self) {
        if let Some((error, since)) = self.broken() {
            if self.library.faults.is_none() && since.elapsed() > GRACE && self.oldest().is_some() {
                self.end_hanging(&error);
            }
            return;
        }
        let mut inquiry = self.inquiry();
        let Inquiry { questions, open, last, next } = &mut *inquiry;
        if let Some(question) = open.take_if(|question| question.asked.elapsed() >= self.job.time_to_answer()) {
            if !self.is_under_way(question.about.id) {
                return;
            }
            let (verdict, all_there) = self.verdict(&question);
            *last = Some((question.about.id, all_there));
            *next = Some(Instant::now() + self.job.limit);
            drop(inquiry);
            if let Some(error) = verdict {
                self.tell(&error, &Notice::of(&error, self.identity, self.job.rank as u64, self.rank));
                self.fail(error);
            }
            return;
        }
        let Some(about) = self.oldest().filter(|it| it.began.elapsed() > self.job.limit) else { return };
        if open.is_some() || next.is_some_and(|next| next > Instant::now()) {
            return;
        }
        *questions += 1;
        let mut asks = Notice::new(Word::Question, self.identity, self.job.rank as u64);
        asks.question = *questions;
        match &about.waits {
            Waits::ForAll { text, .. } => {
                asks.hash = hash_of(text);
                self.others().for_each(|rank| self.job.send(&asks, self.in_job[rank]));
            }
            Waits::ForMessage { peer } => self.job.send(&asks, self.in_job[*peer]),
        }
        let again = last.filter(|(id, _)| *id == about.id).map(|(_, all_there)| all_there);
        *open = Some(Question { about, again, asked: Instant::now(), answers: Vec::new() });
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> {
        (0..self.size).filter(|&rank| rank != self.rank)
    }

    /// The verdict on the answers: an error, if the request may not go on waiting; and whether all ranks have begun it.
    fn verdict(&self, question: &Question) -> (Option<RankError>, bool) {
        let Question { about, again, answers, .. } = question;
        // A rank that waits in turn is not the cause, if another one is.
        let (mut late, mut wait) = (Vec::new(), Vec::new());
        let mut blame = |rank: usize, answer: Option<&Notice>| {
            if answer.is_some_and(|answer| answer.waits) { wait.push(rank) } else { late.push(rank) }
        };
        let of: HashMap<u64, &Notice> = answers.iter().map(|answer| (answer.sender, answer)).collect();
        let answer = |rank: usize| of.get(&(self.in_job[rank] as u64)).copied();
        match &about.waits {
            Waits::ForMessage { peer } => blame(*peer, answer(*peer)),
            Waits::ForAll { call, text } => {
                let missing = self.others().filter(|&rank| answer(rank).is_none_or(|answer| answer.started <= *call));
                missing.for_each(|rank| blame(rank, answer(rank)));
                let mine = hash_of(text);
                let differs = |answer: &Notice| answer.started == call + 1 && answer.hash != 0 && answer.hash != mine;
                let other = self.others().find_map(|rank| answer(rank).filter(|it| differs(it)).map(|it| (rank, it)));
                if let (true, Some((other, theirs))) = (late.is_empty(), other) {
                    let (me, mine, theirs) = (self.rank, text.clone(), theirs.texts[0].clone());
                    return (Some(RankError::Order { me, mine, other, theirs }), false);
                }
            }
        }
        let (limit, all_there) = (self.job.limit, late.is_empty() && wait.is_empty());
        let ranks = if again.is_some() && late.is_empty() { wait } else { late };
        if !ranks.is_empty() {
            return (Some(RankError::Late { ranks, limit, me: self.rank }), false);
        }
        let hangs = all_there && *again == Some(true);
        let error = hangs.then(|| {
            let text = if let Waits::ForAll { text, .. } = &about.waits { text } else { "a message" };
            let seconds = limit.as_secs_f64();
            RankError::Broken(format!("`{text}` has not ended {seconds} s after all ranks had begun it"))
        });
        (error, all_there)
    }

    fn tell(&self, error: &RankError, notice: &Notice) {
        if self.broken().is_none() {
            self.others().for_each(|rank| self.job.send(notice, self.in_job[rank]));
        }
        self.note_lateness(error);
    }

    /// Tells the other ranks that this one gives the group up, unless they see why by themselves, and notes it.
    pub(super) fn tell_and_fail(&self, error: RankError) -> RankError {
        if !matches!(error, RankError::Order { .. } | RankError::Gone { .. }) {
            self.tell(&error, &Notice::given_up(&error, self.identity, self.job.rank as u64, self.rank));
        }
        self.fail(error)
    }

    /// Notes the verdict of another rank.
    fn learn(&self, notice: &Notice) {
        let (ranks, [mine, theirs]) = (notice.ranks.clone(), notice.texts.clone());
        let me = self.in_job.iter().position(|rank| *rank as u64 == notice.sender).unwrap_or(self.rank);
        let error = match (notice.word, &ranks[..]) {
            (Word::Late, _) => RankError::Late { ranks, limit: self.job.limit, me },
            (Word::Order, &[me, other, ..]) => RankError::Order { me, mine, other, theirs },
            (_, &[rank, ..]) => RankError::Broken(format!("rank {rank} has given the group up: {mine}")),
            _ => return,
        };
        self.note_lateness(&error);
        self.fail(error);
    }

    /// A rank that does not come to a collective does not come to the end of MPI either.
    fn note_lateness(&self, error: &RankError) {
        if matches!(error, RankError::Late { .. }) {
            self.library.note_loss();
        }
    }

    /// Ends the job, whose collectives would hang.
    fn end_hanging(&self, error: &RankError) {
        // Programs may have no logger, and this is the last that the process says: in one write, because another
        // rank that ends the job at the same time would cut a line of several.
        let line = format!("all ranks are ended, because collectives of rank {} hang: {error}\n", self.rank);
        let _cannot_be_said = std::io::stderr().write_all(line.as_bytes());
        // A launcher that is ending a job may not pass on what it has not read yet.
        std::thread::sleep(TO_BE_READ);
        self.library.abort();
    }
}
