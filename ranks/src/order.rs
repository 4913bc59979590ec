//! Whether all ranks of a group call the same collectives in the same order.
//!
//! Two checks, for backends that do not check by themselves:
//!
//! * *Before each collective* ([`Asking`]), with `STREAMVM_CHECK_ORDER=1`: the ranks first exchange what they are about to call, and go on only if that is the
//!   same. It costs a small collective each time.
//! * *Where the program asks* ([`Log`], [`Comparing`]): each rank keeps a hash of what it has issued, and the ranks compare the hashes by a collective of a group
//!   of its own, so that the check comes to its end also where the collectives hang. If the hashes differ, the ranks exchange their last calls, to find the first one that
//!   differs.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use streamvm::ep::Operation;
use streamvm::{DType, FnError};

use crate::transport::{Communicator, Fold, RankError, Transfer, Verb, without_line};

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
        let mut hasher = DefaultHasher::new();
        without_line(text).hash(&mut hasher);
        Record::with_hash(hasher.finish(), text)
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
    /// The last calls, by their numbers modulo [`KEPT`], so that the same call has the same place on all ranks.
    fn table(&self) -> Vec<u8> {
        let mut table = vec![0; (KEPT + 1) * RECORD];
        table[..8].copy_from_slice(&self.count.to_le_bytes());
        let first = self.count - self.last.len() as u64;
        for (number, record) in (first..).zip(&self.last) {
            let place = 1 + (number % KEPT as u64) as usize;
            table[place * RECORD..(place + 1) * RECORD].copy_from_slice(&record.0);
        }
        table
    }
}

/// A comparison of what the ranks have issued.
pub(crate) struct Comparing {
    /// A group of the same ranks for this alone.
    group: Arc<dyn Communicator>,
    /// The group whose calls are compared.
    of: Arc<dyn Communicator>,
    mine: Snapshot,
    /// Before the numbers that it writes: if the comparison is dropped, the reduction is first.
    hashes: Option<Box<dyn Operation>>,
    /// The number and the hash, with their complements: the largest of each on any rank are those of all only if all are equal.
    sums: Vec<u64>,
    tables: Option<Exchange>,
}

impl Comparing {
    pub(crate) fn start(
        group: &Arc<dyn Communicator>,
        of: &Arc<dyn Communicator>,
        mine: Snapshot,
    ) -> Result<Comparing, RankError> {
        let mut sums = vec![mine.count, !mine.count, mine.hash, !mine.hash];
        let numbers: *mut u8 = sums.as_mut_ptr().cast();
        let transfer = Transfer {
            verb: Verb::AllReduce(Fold::Max),
            dtype: DType::U64,
            count: sums.len(),
            input: numbers,
            output: numbers,
            call: "check_order".to_owned(),
        };
        // SAFETY: the vector has the numbers, and is not touched and not dropped before the operation is over, as engines poll an operation to its end.
        let hashes = unsafe { group.start(transfer) }?;
        Ok(Comparing { group: group.clone(), of: of.clone(), mine, sums, hashes: Some(hashes), tables: None })
    }

    /// The first call that differs between this rank and another one.
    fn find(&self, tables: &[u8]) -> RankError {
        let me = self.group.rank();
        let table = |rank: usize| &tables[rank * (KEPT + 1) * RECORD..(rank + 1) * (KEPT + 1) * RECORD];
        let count = |rank: usize| u64::from_le_bytes(table(rank)[..8].try_into().unwrap_or_default());
        let record = |rank: usize, number: u64| {
            let place = 1 + (number % KEPT as u64) as usize;
            &table(rank)[place * RECORD..(place + 1) * RECORD]
        };
        let most = (0..self.group.size()).map(count).max().unwrap_or_default();
        let first = most.saturating_sub(KEPT as u64);
        for number in first..most {
            for other in (0..self.group.size()).filter(|&other| other != me) {
                let text = |rank: usize| match number < count(rank) {
                    true => Record::text(record(rank, number)),
                    false => "nothing more".to_owned(),
                };
                let hash = |rank: usize| (number < count(rank)).then(|| Record::hash(record(rank, number)));
                if hash(me) != hash(other) && number == first && first > 0 {
                    let what = format!(
                        "the ranks have called different collectives, the first of them {KEPT} calls ago or earlier; check more often"
                    );
                    return RankError::Broken(what);
                }
                if hash(me) != hash(other) {
                    return RankError::Order { me, mine: text(me), other, theirs: text(other) };
                }
            }
        }
        // Unreachable: each hash is of all calls up to its own, so hashes that differ now have differed for the last call.
        RankError::Broken("the ranks have called different collectives".to_owned())
    }
}

impl Operation for Comparing {
    fn poll(&mut self) -> Result<bool, FnError> {
        if let Some(hashes) = &mut self.hashes {
            if !hashes.poll()? {
                return Ok(false);
            }
            self.hashes = None;
            if (self.sums[0], self.sums[2]) == (!self.sums[1], !self.sums[3]) {
                return Ok(true);
            }
            self.tables = Some(Exchange::start(&*self.group, self.mine.table())?);
        }
        let Some(tables) = &mut self.tables else { return Ok(true) };
        if !tables.operation.poll()? {
            return Ok(false);
        }
        let tables = std::mem::take(&mut tables.all);
        let error = self.find(&tables);
        self.of.give_up(&error);
        Err(error.into())
    }
}
