//! The queue between connections and the engine.
//!
//! A connection reserves [`Room`] for the texts of a request, all or none, and pushes them; without room the request is refused. One thread runs
//! [`compute`]: it takes texts in the order of their arrival, several at a time, and sends each its embedding. Texts of different requests share
//! batches, and those of one request may be in several.
//!
//! Invariants:
//! * A text that was pushed is computed, or its receiver is told an error, or its receiver is gone.
//! * At most as many texts wait as the queue has room for. Those of the batch that is computed no longer count.
//! * [`compute`] returns once every [`Queue`] is dropped and all texts are answered.

use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::error::Error;
use crate::metrics::Metrics;

/// The embedding of a text, or why there is none.
pub type Embedded = Result<Vec<f32>, String>;

/// A text that waits.
struct Text {
    tokens: Vec<u32>,
    arrived: Instant,
    answer: oneshot::Sender<Embedded>,
    /// Its place in the queue, given back when a batch takes the text.
    place: OwnedSemaphorePermit,
}

/// The side of the queue that connections use. Several threads may use it at a time.
pub struct Queue {
    length: usize,
    room: Arc<Semaphore>,
    texts: mpsc::Sender<Text>,
    failed: Failed,
    unhealthy: Duration,
}

/// When the engine last failed to compute a batch; `None` once it has computed another one.
type Failed = Arc<Mutex<Option<Instant>>>;

/// The side of the queue that the engine uses.
pub struct Texts {
    texts: mpsc::Receiver<Text>,
    failed: Failed,
}

/// Room for the texts of one request; dropped, it is given back.
pub struct Room {
    places: OwnedSemaphorePermit,
}

/// A queue with room for `length` texts, which [is failing](Queue::is_failing) for the time `unhealthy` after a batch has failed.
pub fn queue(length: usize, unhealthy: Duration) -> (Queue, Texts) {
    let (sender, receiver) = mpsc::channel();
    let (room, failed) = (Arc::new(Semaphore::new(length)), Failed::default());
    (Queue { length, room, texts: sender, failed: failed.clone(), unhealthy }, Texts { texts: receiver, failed })
}

impl Queue {
    /// The most texts that can wait.
    pub fn length(&self) -> usize {
        self.length
    }

    /// How many texts wait, with those for which room is reserved.
    pub fn waiting(&self) -> usize {
        self.length - self.room.available_permits()
    }

    /// Whether the engine has lately failed to compute a batch, and has computed none since. Not for ever: who reads it may send no texts meanwhile, so
    /// that no batch would show that the engine is well again.
    pub fn is_failing(&self) -> bool {
        let failed = *self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.is_some_and(|failed| failed.elapsed() < self.unhealthy)
    }

    /// Room for this many texts; `None` if there is less. Does not block.
    pub fn reserve(&self, texts: usize) -> Option<Room> {
        let places = self.room.clone().try_acquire_many_owned(texts.try_into().ok()?).ok()?;
        Some(Room { places })
    }

    /// Queues texts, for which there is room, and returns where their embeddings arrive, in the same order. Does not block. A receiver is told
    /// that its sender is gone if the thread of the engine has ended.
    pub fn push(&self, mut room: Room, texts: Vec<Vec<u32>>) -> Vec<oneshot::Receiver<Embedded>> {
        let arrived = Instant::now();
        let mut receivers = Vec::with_capacity(texts.len());
        for tokens in texts {
            let place = room.places.split(1).expect("room for each text was reserved");
            let (answer, receiver) = oneshot::channel();
            // Without a thread that takes the text, the sender of its answer is dropped here.
            let _ = self.texts.send(Text { tokens, arrived, answer, place });
            receivers.push(receiver);
        }
        receivers
    }
}

impl Texts {
    /// The next batch: at most `most` texts. Blocks until there is a text, and then until there are `most`, or `wait` has passed since the first
    /// of them arrived. `None` once every [`Queue`] is dropped and no text is left.
    fn next(
        &self,
        most: usize,
        wait: Duration,
        metrics: &Metrics,
    ) -> Option<Vec<(Vec<u32>, oneshot::Sender<Embedded>)>> {
        let mut batch = Vec::new();
        let mut end = None;
        while batch.len() < most {
            let text = match end {
                None => self.texts.recv().ok(),
                Some(end) => self.before(end),
            };
            // Nothing has come in time, or nothing will come any more.
            let Some(Text { tokens, arrived, answer, place }) = text else { break };
            drop(place);
            if answer.is_closed() {
                metrics.abandoned();
                continue;
            }
            end.get_or_insert(arrived + wait);
            batch.push((tokens, answer));
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// A text that is there, or comes before `end`.
    fn before(&self, end: Instant) -> Option<Text> {
        match self.texts.try_recv() {
            Ok(text) => Some(text),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => self.texts.recv_timeout(end.saturating_duration_since(Instant::now())).ok(),
        }
    }
}

/// Computes what comes, in batches of at most `most` texts, until every [`Queue`] is dropped and all texts are answered. Waits at most `wait`
/// from the arrival of a text until the engine is given its batch, unless the engine is busy. `embed` gets the tokens of the texts of a batch
/// and returns their embeddings, one after the other. If it fails, all texts of the batch are told, and the next batch is computed.
pub fn compute(
    texts: &Texts,
    (most, wait): (usize, Duration),
    metrics: &Metrics,
    mut embed: impl FnMut(&[&[u32]]) -> Result<Vec<f32>, Error>,
) {
    while let Some(batch) = texts.next(most.max(1), wait, metrics) {
        let (tokens, answers): (Vec<Vec<u32>>, Vec<_>) = batch.into_iter().unzip();
        let result = embed(&tokens.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let whole = |rows: &Vec<f32>| !rows.is_empty() && rows.len().is_multiple_of(tokens.len());
        debug_assert!(result.as_ref().map_or(true, whole), "`embed` gives a row for each text");
        metrics.batch(tokens.len(), result.is_err());
        *texts.failed.lock().unwrap_or_else(PoisonError::into_inner) = result.is_err().then(Instant::now);
        // A client that is gone takes no answer.
        match result {
            Ok(rows) => {
                for (row, answer) in rows.chunks((rows.len() / answers.len()).max(1)).zip(answers) {
                    let _ = answer.send(Ok(row.to_vec()));
                }
            }
            Err(error) => {
                log::error!("a batch of {} texts has failed: {error}", answers.len());
                for answer in answers {
                    let _ = answer.send(Err(error.to_string()));
                }
            }
        }
    }
}
