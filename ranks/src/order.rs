//! Whether all ranks of a group call the same collectives in the same order.
//!
//! Two checks, for backends that do not check by themselves:
//!
//! * *Before each collective* ([`Asking`]), with `STREAMVM_CHECK_ORDER=1`: the ranks first exchange what they are about to call, and go on only if that is the
//!   same. It costs a small collective each time.
//! * *Where the program asks* ([`Log`], [`Comparing`]): each rank keeps a hash of what it has issued, and the ranks compare the hashes by a collective of a group
//!   of its own, so that the check comes to its end also where the collectives hang. If the hashes differ, the ranks compare those of their last calls, and exchange the
//!   first one that differs.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use streamvm::ep::Operation;
use streamvm::{DType, FnError};

use crate::transport::{Communicator, Fold, RankError, Transfer, Verb, hash_of, without_line};

/// Bytes of a call in an exchange: the hash of what must be the same, the length of the text, the text.
const RECORD: usize = 256;
const TEXT: usize = RECORD - 16;

/// Calls that a rank keeps to find the first one that differs.
const KEPT: usize = 64;

/// A call of one rank, made or about to be made.
#[derive(Clone)]
struct Record([u8; RECORD]);

impl Record {
    fn new(text: &str) -> Record {
        Record::with_hash(hash_of(text), text)
    }

    fn with_hash(hash: u64, text: &str) -> Record {
        let mut bytes = [0; RECORD];
        let length = text.len().min(TEXT);
        bytes[..8].copy_from_slice(&hash.to_le_bytes());
        bytes[8..16].copy_from_slice(&(length as u64).to_le_bytes());
        bytes[16..16 + length].copy_from_slice(&text.as_bytes()[..length]);
        Record(bytes)
    }

    fn hash(bytes: &[u8]) -> u64 {
        u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default())
    }

    fn text(bytes: &[u8]) -> String {
        let length = u64::from_le_bytes(bytes[8..16].try_into().unwrap_or_default()) as usize;
        String::from_utf8_lossy(&bytes[16..16 + length.min(TEXT)]).into_owned()
    }
}

/// An exchange of as many bytes by all ranks. The bytes belong to it until it is over.
struct Exchange {
    operation: Box<dyn Operation>,
    _mine: Vec<u8>,
    all: Vec<u8>,
}

impl Exchange {
    fn start(group: &dyn Communicator, mine: Vec<u8>) -> Result<Exchange, RankError> {
        let mut all = vec![0; mine.len() * group.size()];
        let (input, output, call) = (mine.as_ptr(), all.as_mut_ptr(), "check_order".to_owned());
        let transfer = Transfer { verb: Verb::AllGather, dtype: DType::U8, count: mine.len(), input, output, call };
        // SAFETY: the vectors have the bytes, and are not touched and not dropped before the operation is over, as engines poll an operation to its end.
        let operation = unsafe { group.start(transfer) }?;
        Ok(Exchange { operation, _mine: mine, all })
    }
}

/// The start of a collective whose ranks have agreed on it.
pub(crate) type Begin = Box<dyn FnOnce() -> Result<Box<dyn Operation>, RankError> + Send + Sync>;

/// A collective that begins once the ranks have exchanged what they call.
pub(crate) struct Asking {
    group: Arc<dyn Communicator>,
    asked: Option<(Exchange, Begin)>,
    begun: Option<Box<dyn Operation>>,
}

impl Asking {
    pub(crate) fn start(group: &Arc<dyn Communicator>, text: &str, begin: Begin) -> Result<Asking, RankError> {
        let mine = Record::new(text);
        let exchange = Exchange::start(&**group, mine.0.to_vec())?;
        Ok(Asking { group: group.clone(), asked: Some((exchange, begin)), begun: None })
    }
}

impl Operation for Asking {
    fn poll(&mut self) -> Result<bool, FnError> {
        if let Some(begun) = &mut self.begun {
            return begun.poll();
        }
        let Some((exchange, _)) = &mut self.asked else { return Ok(true) };
        if !exchange.operation.poll()? {
            return Ok(false);
        }
        let Some((exchange, begin)) = self.asked.take() else { return Ok(true) };
        if let Some(error) = differing(self.group.rank(), exchange.all.chunks(RECORD)) {
            // All ranks see it, and none has begun.
            self.group.give_up(&error);
            return Err(error.into());
        }
        self.begun = Some(begin()?);
        Ok(false)
    }

    fn look(&mut self, has_passed: bool) -> Result<(), FnError> {
        self.begun.as_mut().map_or(Ok(()), |begun| begun.look(has_passed))
    }
}

/// The first rank whose call differs from that of this rank.
fn differing<'r>(me: usize, records: impl Iterator<Item = &'r [u8]> + Clone) -> Option<RankError> {
    let mine = records.clone().nth(me)?;
    let (other, theirs) = records.enumerate().find(|(_, record)| Record::hash(record) != Record::hash(mine))?;
    Some(RankError::Order { me, mine: Record::text(mine), other, theirs: Record::text(theirs) })
}

/// The calls that a rank has issued on a group.
#[derive(Default)]
pub(crate) struct Log {
    /// The number of calls, and the hash of all of them.
    count: u64,
    hash: u64,
    /// The last calls, the newest last, each with the hash of all up to it.
    last: VecDeque<Record>,
}

impl Log {
    /// Notes a call.
    pub(crate) fn add(&mut self, text: &str) {
        let mut hasher = DefaultHasher::new();
        (self.hash, without_line(text)).hash(&mut hasher);
        (self.count, self.hash) = (self.count + 1, hasher.finish());
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(Record::with_hash(self.hash, text));
    }

    /// The calls so far, for a comparison.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot { count: self.count, hash: self.hash, last: self.last.iter().cloned().collect() }
    }
}

/// The calls that a rank has issued on a group up to a check.
#[derive(Clone)]
pub(crate) struct Snapshot {
    count: u64,
    hash: u64,
    last: Vec<Record>,
}

impl Snapshot {
    /// The call of this number; `None` if this rank has not made it, or keeps it no longer.
    fn call(&self, number: u64) -> Option<&Record> {
        let first = self.count - self.last.len() as u64;
        self.last.get(usize::try_from(number.checked_sub(first)?).ok()?)
    }

    /// The hash of all calls up to each of the last [`KEPT`] numbers before `most`; 0 for a call that this rank has not made.
    fn hashes(&self, most: u64) -> Vec<u64> {
        let hash = |number| self.call(number).map_or(0, |record| Record::hash(&record.0));
        (most.saturating_sub(KEPT as u64)..most).map(hash).collect()
    }
}

/// The largest of the numbers of all ranks, place by place, and the largest of their complements: a place in which the ranks have the same number has the same one in
/// both. The operation is dropped before the numbers that it writes.
struct Largest {
    operation: Box<dyn Operation>,
    numbers: Vec<u64>,
}

impl Largest {
    fn start(group: &dyn Communicator, mine: &[u64]) -> Result<Largest, RankError> {
        let mut numbers: Vec<u64> = mine.iter().copied().chain(mine.iter().map(|number| !number)).collect();
        let place: *mut u8 = numbers.as_mut_ptr().cast();
        let (verb, count, call) = (Verb::AllReduce(Fold::Max), numbers.len(), "check_order".to_owned());
        let transfer = Transfer { verb, dtype: DType::U64, count, input: place, output: place, call };
        // SAFETY: the vector has the numbers, and is not touched and not dropped before the operation is over, as engines poll an operation to its end.
        let operation = unsafe { group.start(transfer) }?;
        Ok(Largest { operation, numbers })
    }

    /// The first place in which not all ranks have the same number.
    fn first_difference(&self) -> Option<usize> {
        let (largest, complements) = self.numbers.split_at(self.numbers.len() / 2);
        largest.iter().zip(complements).position(|(largest, complement)| *largest != !complement)
    }
}

/// Whether all ranks pass the same number. Blocks until all call this.
///
/// # Errors
/// The group fails.
pub(crate) fn agree(group: &dyn Communicator, number: u64) -> Result<bool, RankError> {
    let mut largest = Largest::start(group, &[number])?;
    while !largest.operation.poll().map_err(RankError::of)? {
        std::thread::yield_now();
    }
    Ok(largest.first_difference().is_none())
}

/// A comparison of what the ranks have issued.
pub(crate) struct Comparing {
    /// A group of the same ranks for this alone.
    group: Arc<dyn Communicator>,
    /// The group whose calls are compared.
    of: Arc<dyn Communicator>,
    mine: Snapshot,
    stage: Stage,
}

/// The stages of a comparison.
enum Stage {
    /// The number of calls, and the hash of all.
    All(Largest),
    /// The hashes up to each of the last calls, to find the first one that differs.
    Each { first: u64, hashes: Largest },
    /// That call.
    Call(Exchange),
}

impl Comparing {
    pub(crate) fn start(
        group: &Arc<dyn Communicator>,
        of: &Arc<dyn Communicator>,
        mine: Snapshot,
    ) -> Result<Comparing, RankError> {
        let stage = Stage::All(Largest::start(&**group, &[mine.count, mine.hash])?);
        Ok(Comparing { group: group.clone(), of: of.clone(), mine, stage })
    }
}

impl Operation for Comparing {
    fn poll(&mut self) -> Result<bool, FnError> {
        let error = match &mut self.stage {
            Stage::All(all) => {
                if !all.operation.poll()? {
                    return Ok(false);
                }
                if all.first_difference().is_none() {
                    return Ok(true);
                }
                let most = all.numbers[0];
                let hashes = Largest::start(&*self.group, &self.mine.hashes(most))?;
                self.stage = Stage::Each { first: most.saturating_sub(KEPT as u64), hashes };
                return Ok(false);
            }
            Stage::Each { first, hashes } => {
                if !hashes.operation.poll()? {
                    return Ok(false);
                }
                match hashes.first_difference() {
                    Some(place) if place > 0 || *first == 0 => {
                        let nothing = Record::with_hash(0, "nothing more");
                        let call = self.mine.call(*first + place as u64).unwrap_or(&nothing);
                        self.stage = Stage::Call(Exchange::start(&*self.group, call.0.to_vec())?);
                        return Ok(false);
                    }
                    _ => RankError::Broken(format!(
                        "the ranks have called different collectives, the first of them {KEPT} calls ago or earlier; check more often"
                    )),
                }
            }
            Stage::Call(calls) => {
                if !calls.operation.poll()? {
                    return Ok(false);
                }
                // All ranks compare the same call, and not all of them have made the same one.
                let found = differing(self.group.rank(), calls.all.chunks(RECORD));
                found.unwrap_or_else(|| RankError::Broken("the ranks have called different collectives".to_owned()))
            }
        };
        self.of.give_up(&error);
        Err(error.into())
    }
}
