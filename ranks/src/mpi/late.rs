//! Ranks that are late: whom a rank blames that has waited for the limit.
//!
//! MPI has no deadlines. A rank whose collective has not ended within the limit asks all other ranks of the group where they are. Ranks that wait in a collective answer,
//! and ask, too; those that have not answered after [`ANSWER`] are late. Ranks at different collectives learn both calls. The messages go over the communicator of the
//! job, because that of the group may be revoked meanwhile.

use std::ffi::{c_int, c_void};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::library::{Handle, STATUS_IGNORE};
use super::{Shared, tag};
use crate::transport::{RankError, Transfer, Verb, without_line};

/// How often a rank that waits looks for questions.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long ranks that wait may take to answer.
const ANSWER: Duration = Duration::from_secs(1);

/// The bytes of a call that a question or an answer has.
const TEXT: usize = 240;

const QUESTION: u64 = 0;
const ANSWERED: u64 = 1;

/// A question or an answer: where its sender waits.
#[repr(C)]
#[derive(Copy, Clone)]
struct Notice {
    /// That of the group.
    identity: u64,
    kind: u64,
    sender: u64,
    /// The number of the question.
    question: u64,
    /// The number of the collective in which the sender waits.
    call: u64,
    length: u64,
    text: [u8; TEXT],
}

impl Notice {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.text[..TEXT.min(self.length as usize)]).into_owned()
    }
}

/// What a rank asks the others of its group, and what they have answered.
#[derive(Default)]
pub(super) struct Inquiry {
    /// The number of questions asked so far.
    questions: u64,
    /// The collective that the last question was about, and when it was asked.
    asked: Option<(u64, Instant)>,
    /// The answers to it, by rank.
    answers: Vec<Option<Notice>>,
    /// Whether all had answered the question before it, which was about the same collective.
    all_were_there: bool,
    /// Messages that are being sent.
    sent: Vec<(Handle, Box<Notice>)>,
}

// SAFETY: the handles are values that MPI functions take, and those are called one at a time.
unsafe impl Send for Inquiry {}

impl Shared {
    /// Why a request that waits since `began` will not end; `None` if it may go on waiting.
    pub(super) fn late(&self, began: Instant, transfer: &Transfer, call: u64) -> Option<RankError> {
        let is_late = began.elapsed() > self.limit;
        if let Verb::Send(peer) | Verb::Receive(peer) = transfer.verb {
            return is_late.then(|| self.late_ranks(vec![peer]));
        }
        let text = transfer.call.as_str();
        let mut inquiry = self.inquiry.lock().unwrap_or_else(PoisonError::into_inner);
        let inquiry = &mut *inquiry;
        self.forget_sent(inquiry);
        let mut is_asked = false;
        for notice in self.others().filter_map(|rank| self.receive(rank)).filter(|it| it.identity == self.identity) {
            match notice.kind {
                QUESTION => {
                    // One that asked about an earlier collective has gone on since.
                    is_asked |= notice.call >= call;
                    self.tell(inquiry, notice.sender as usize, ANSWERED, notice.question, (call, text));
                }
                _ if notice.question == inquiry.questions => {
                    if let Some(place) = inquiry.answers.get_mut(notice.sender as usize) {
                        *place = Some(notice);
                    }
                }
                _ => {}
            }
        }
        match inquiry.asked {
            Some((about, since)) if about == call => {
                if since.elapsed() < ANSWER || inquiry.answers.is_empty() {
                    // All were there. They are asked once more after the limit.
                    if inquiry.answers.is_empty() && since.elapsed() > self.limit {
                        inquiry.all_were_there = true;
                        self.ask(inquiry, (call, text));
                    }
                    return None;
                }
                let verdict = self.verdict(inquiry, (call, text));
                inquiry.answers.clear();
                verdict
            }
            _ => {
                if is_late || is_asked {
                    inquiry.all_were_there = false;
                    self.ask(inquiry, (call, text));
                }
                None
            }
        }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.rank;
        (0..self.size).filter(move |&rank| rank != me)
    }

    /// What the answers say.
    fn verdict(&self, inquiry: &Inquiry, (call, text): (u64, &str)) -> Option<RankError> {
        let silent: Vec<usize> = self.others().filter(|&rank| inquiry.answers[rank].is_none()).collect();
        if !silent.is_empty() {
            return Some(self.late_ranks(silent));
        }
        let answers = self.others().filter_map(|rank| Some((rank, inquiry.answers[rank].as_ref()?)));
        let known = |text: &str| without_line(text).bytes().take(TEXT).collect::<Vec<u8>>();
        // A text that is cut has no line.
        let differs = |answer: &Notice| answer.call == call && !known(text).starts_with(&known(&answer.text()));
        if let Some((other, answer)) = { answers }.find(|(_, answer)| differs(answer)) {
            return Some(RankError::Order { me: self.rank, mine: text.to_owned(), other, theirs: answer.text() });
        }
        inquiry.all_were_there.then(|| {
            let seconds = self.limit.as_secs_f64();
            RankError::Broken(format!("`{text}` has not ended {seconds} s after all ranks were there"))
        })
    }

    /// The error that names these ranks.
    fn late_ranks(&self, ranks: Vec<usize>) -> RankError {
        // A rank that does not come to a collective does not come to the end of MPI either.
        self.library.note_loss();
        RankError::Late { ranks, limit: self.limit, me: self.rank }
    }

    /// Asks all other ranks where they are.
    fn ask(&self, inquiry: &mut Inquiry, (call, text): (u64, &str)) {
        inquiry.questions += 1;
        inquiry.asked = Some((call, Instant::now()));
        inquiry.answers = vec![None; self.size];
        for rank in self.others() {
            self.tell(inquiry, rank, QUESTION, inquiry.questions, (call, text));
        }
    }

    /// Sends a notice. One that cannot be sent is not answered, which blames the rank that it was for.
    fn tell(&self, inquiry: &mut Inquiry, to: usize, kind: u64, question: u64, (call, text): (u64, &str)) {
        let (length, identity, sender) = (text.len().min(TEXT), self.identity, self.rank as u64);
        let head = Notice { identity, kind, sender, question, call, length: length as u64, text: [0; TEXT] };
        let mut notice = Box::new(head);
        notice.text[..length].copy_from_slice(&text.as_bytes()[..length]);
        let mut request = self.library.no_request();
        let (data, bytes) = ((&raw mut *notice).cast::<c_void>(), size_of::<Notice>() as c_int);
        let (byte, to, tag) = (self.library.byte(), self.in_job[to], self.notices());
        // SAFETY: the notice stays where it is until the request is over, or for ever.
        let code = unsafe { (self.library.lock().isend)(data, bytes, byte, to, tag, self.job, &raw mut request) };
        if code == 0 {
            inquiry.sent.push((request, notice));
        }
    }

    /// Lets go of the notices that have been sent.
    fn forget_sent(&self, inquiry: &mut Inquiry) {
        inquiry.sent.retain_mut(|(request, _)| {
            let mut over = 0;
            // SAFETY: a request that is not over, and a place for the answer.
            let code = unsafe { (self.library.lock().test)(request, &raw mut over, STATUS_IGNORE) };
            code == 0 && over == 0
        });
    }

    /// The notice that has come from a rank.
    fn receive(&self, rank: usize) -> Option<Notice> {
        let (from, tag, mut came) = (self.in_job[rank], self.notices(), 0);
        let mpi = self.library.lock();
        // SAFETY: a communicator of this library, and a place for the answer.
        let code = unsafe { (mpi.iprobe)(from, tag, self.job, &raw mut came, STATUS_IGNORE) };
        if code != 0 || came == 0 {
            return None;
        }
        let mut notice =
            Notice { identity: 0, kind: ANSWERED, sender: 0, question: 0, call: 0, length: 0, text: [0; TEXT] };
        let (data, bytes) = ((&raw mut notice).cast::<c_void>(), size_of::<Notice>() as c_int);
        // SAFETY: a message with that tag has come, and has those bytes; each value of them is valid. Nobody else receives it, because the lock is held.
        let code = unsafe { (mpi.recv)(data, bytes, self.library.byte(), from, tag, self.job, STATUS_IGNORE) };
        (code == 0).then_some(notice)
    }

    /// The tag of questions and answers. Groups may share one, and nothing else has it.
    fn notices(&self) -> c_int {
        16_000 + tag(self.identity)
    }
}

impl Drop for Inquiry {
    fn drop(&mut self) {
        // MPI may still read what has not been sent.
        self.sent.drain(..).for_each(|(_, notice)| std::mem::forget(notice));
    }
}
