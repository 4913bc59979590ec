//! The last calls of a thread, and the search for a sequence that has just come for the second time in a row.
//!
//! A sequence of length `L` has come twice if the last `L` entries equal the `L` before them. The search looks at the lengths at which the
//! newest entry has come before, the shortest first, and compares by hashes of ranges, which differences of prefix hashes give (Karp and
//! Rabin, 1987). So an entry costs at most [`TRIED`] comparisons of two numbers, whatever the length. Only where the hashes agree are calls compared
//! as a whole, which is paid for by [`CREDIT`] a call: amortised constant time for each.
//!
//! The history also has entries for *boundaries* (a wait, a list, and so on) and for replays, which no sequence has in it. Where these recur
//! with the calls, as in a loop that reads a result in each round, the sequences are what lies between them.

use std::collections::VecDeque;
use std::ops::Range;

use hashbrown::{DefaultHashBuilder, HashMap};

use crate::automatic::call::Call;
use crate::automatic::sequence::Sequence;

/// How many entries are kept: sequences of up to half as many calls are found. About 3 MiB, if three operands a call are of rank 2 or less.
pub(super) const ENTRIES: usize = 4_096;

/// The shortest sequence. A run of a program costs about as much as four eager calls of small operations.
const SHORTEST: usize = 4;

/// How many earlier places of the newest entry are tried.
const TRIED: usize = 8;

/// How many calls may be compared as a whole for each call that comes.
const CREDIT: usize = 8;

/// The hash of a boundary.
const BOUNDARY: u64 = 0x9e37_79b9_7f4a_7c15;

/// The base of the hashes of ranges, modulo 2^64: any odd number with bits all over. The hashes of the entries are random numbers.
const BASE: u64 = 0xd134_2543_de82_ef95;

#[derive(Debug)]
struct Entry {
    hash: u64,
    /// The hash of all entries up to this one.
    prefix: u64,
    /// The number of the last entry before this one that has the same hash.
    before: Option<u64>,
    /// A call; else a boundary or a replay.
    is_call: bool,
    /// How many calls have come up to this entry.
    calls: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct History {
    entries: VecDeque<Entry>,
    /// The number of the next entry; the newest is `next - 1`.
    next: u64,
    /// The calls of the entries. Apart from these, because a call is large, and most entries of a loop that is replayed are replays.
    calls: VecDeque<Call>,
    /// How many calls have come.
    came: u64,
    /// By hash, the number of the last entry.
    last: HashMap<u64, u64>,
    /// The powers of the base, up to the longest range.
    powers: Vec<u64>,
    hasher: DefaultHashBuilder,
    credit: usize,
}

impl Default for History {
    fn default() -> History {
        let powers = std::iter::successors(Some(1u64), |power| Some(power.wrapping_mul(BASE)));
        History {
            entries: VecDeque::new(),
            next: 0,
            calls: VecDeque::new(),
            came: 0,
            last: HashMap::new(),
            powers: powers.take(ENTRIES + 1).collect(),
            hasher: DefaultHashBuilder::default(),
            credit: 0,
        }
    }
}

impl History {
    /// Adds a call.
    pub(super) fn push(&mut self, call: Call) {
        let hash = call.hash(&self.hasher);
        self.came += 1;
        self.calls.push_back(call);
        self.add(hash, true);
    }

    /// Adds a boundary. Returns false, and adds none, if the newest entry is one.
    pub(super) fn push_boundary(&mut self) -> bool {
        let is_other = self.entries.back().is_none_or(|newest| newest.hash != BOUNDARY);
        if is_other {
            self.add(BOUNDARY, false);
        }
        is_other
    }

    /// Adds a replay of the sequence of this number.
    pub(super) fn push_replay(&mut self, sequence: usize) {
        let hash = self.hasher_of(sequence);
        self.add(hash, false);
    }

    fn hasher_of(&self, sequence: usize) -> u64 {
        use std::hash::BuildHasher;
        self.hasher.hash_one(("replay", sequence))
    }

    fn add(&mut self, hash: u64, is_call: bool) {
        if self.entries.len() == ENTRIES {
            self.drop_oldest();
        }
        let prefix = self.entries.back().map_or(0, |entry| entry.prefix).wrapping_mul(BASE).wrapping_add(hash);
        let before = self.last.insert(hash, self.next);
        self.entries.push_back(Entry { hash, prefix, before, is_call, calls: self.came });
        self.next += 1;
        self.credit = (self.credit + CREDIT).min(2 * ENTRIES);
    }

    fn drop_oldest(&mut self) {
        let number = self.first();
        let Some(oldest) = self.entries.pop_front() else { return };
        if self.last.get(&oldest.hash) == Some(&number) {
            self.last.remove(&oldest.hash);
        }
        if oldest.is_call {
            self.calls.pop_front();
        }
    }

    /// The number of the oldest entry.
    fn first(&self) -> u64 {
        self.next - self.entries.len() as u64
    }

    fn entry(&self, number: u64) -> Option<&Entry> {
        self.entries.get(usize::try_from(number.checked_sub(self.first())?).ok()?)
    }

    /// The call of the entry of this number.
    fn call(&self, number: u64) -> Option<&Call> {
        let entry = self.entry(number).filter(|entry| entry.is_call)?;
        // The newest call is the last one.
        self.calls.get(self.calls.len().checked_sub((self.came - entry.calls) as usize + 1)?)
    }

    /// The hash of the `length` entries that end with the entry of this number; `None` if the oldest of them is not kept.
    fn hash_of(&self, last: u64, length: usize) -> Option<u64> {
        let before = (last + 1).checked_sub(length as u64)?;
        let prefix = match before.checked_sub(1) {
            Some(number) if number >= self.first() => self.entry(number)?.prefix,
            // The prefix hash of an entry that was dropped is not known.
            Some(_) => return None,
            None => 0,
        };
        Some(self.entry(last)?.prefix.wrapping_sub(prefix.wrapping_mul(self.powers[length])))
    }

    /// The sequences that have come twice in a row with the newest entry: one, or those between the boundaries of a round.
    pub(super) fn repeated(&mut self) -> Vec<Sequence> {
        let Some(newest) = self.next.checked_sub(1) else { return Vec::new() };
        let mut place = self.entry(newest).and_then(|entry| entry.before);
        for _ in 0..TRIED {
            let Some(earlier) = place.filter(|earlier| *earlier >= self.first()) else { break };
            let length = (newest - earlier) as usize;
            // A loop that is replayed has no calls between its boundaries, and no sequence to be found.
            let calls = self.came - self.entry(earlier).map_or(0, |entry| entry.calls);
            let hash = if calls >= SHORTEST as u64 { self.hash_of(newest, length) } else { None };
            if hash.is_some() && hash == self.hash_of(earlier, length) && self.credit >= 2 * length {
                self.credit -= 2 * length;
                let found = self.sequences(newest, length);
                if !found.is_empty() {
                    return found;
                }
            }
            place = self.entry(earlier).and_then(|entry| entry.before);
        }
        Vec::new()
    }

    /// The sequences in the last `length` entries, which equal those before them by their hashes.
    fn sequences(&self, newest: u64, length: usize) -> Vec<Sequence> {
        let begin = newest + 1 - 2 * length as u64;
        let is_boundary = |number: &u64| self.entry(*number).is_some_and(|entry| !entry.is_call);
        let Some(first) = (begin..begin + length as u64).find(is_boundary) else {
            return self.sequence(newest + 1 - length as u64..newest + 1, length, begin).into_iter().collect();
        };
        // A round, from behind one boundary to the same one in the next round.
        let (mut found, mut piece) = (Vec::new(), first + 1);
        for number in first + 1..first + 1 + length as u64 {
            if is_boundary(&number) {
                found.extend(self.sequence(piece..number, length, begin));
                piece = number + 1;
            }
        }
        found
    }

    /// The sequence of these calls, if they are enough, and if the calls of the other round, where all of them are behind `begin`, are the same
    /// also in what their operands have to do with each other.
    fn sequence(&self, calls: Range<u64>, length: usize, begin: u64) -> Option<Sequence> {
        if calls.end - calls.start < SHORTEST as u64 {
            return None;
        }
        let of = |calls: Range<u64>| Sequence::new(calls.filter_map(|number| self.call(number)));
        let sequence = of(calls.clone())?;
        let length = length as u64;
        let other = match (calls.start.checked_sub(length), calls.end + length <= self.next) {
            (_, true) => calls.start + length..calls.end + length,
            (Some(start), _) if start >= begin => start..calls.end - length,
            _ => return Some(sequence),
        };
        of(other)?.is_same(&sequence).then_some(sequence)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use smallvec::SmallVec;
    use streamvm_ep::{Op, Params};
    use streamvm_program::Work;
    use streamvm_stream::{StreamKey, StreamType};

    use super::*;

    /// A call without operands, told apart from others by its axis.
    fn call(letter: u8) -> Call {
        let stream = StreamKey::new(streamvm_ep::DeviceId::cpu(0), StreamType::Compute, u32::from(letter == b'*'));
        let params = Params { extra: streamvm_ep::Extra::Classes(letter as usize), ..Params::default() };
        Call { work: Work::Call(Op::OneHot, params), stream, location: Location::caller(), operands: SmallVec::new() }
    }

    /// The sequences found behind each letter; `|` is a boundary. As text: those of one round are separated by commas.
    fn found(letters: &str) -> Vec<(usize, String)> {
        let mut history = History::default();
        let mut all = Vec::new();
        for (place, letter) in letters.bytes().enumerate() {
            match letter {
                b'|' => _ = history.push_boundary(),
                _ => history.push(call(letter)),
            }
            let text = |sequence: &Sequence| -> String {
                let letter = |step: &streamvm_program::Step| match &step.work {
                    Work::Call(_, Params { extra: streamvm_ep::Extra::Classes(letter), .. }) => *letter as u8 as char,
                    _ => '?',
                };
                sequence.steps.iter().map(letter).collect()
            };
            let found: Vec<String> = history.repeated().iter().map(text).collect();
            if !found.is_empty() {
                all.push((place, found.join(",")));
            }
        }
        all
    }

    fn first(letters: &str) -> Option<(usize, String)> {
        found(letters).into_iter().next()
    }

    #[test]
    fn a_sequence_is_found_when_it_has_come_twice() {
        assert_eq!(first("xyabcdeabcd"), None);
        assert_eq!(first("xyabcdeabcdeabcde"), Some((11, "abcde".to_owned())));
        assert_eq!(first("abcdabcd"), Some((7, "abcd".to_owned())));
        assert_eq!(first("abcabc"), None, "too short");
        assert_eq!(first("abacadabacad"), Some((11, "abacad".to_owned())), "its last call recurs within it");
        assert_eq!(first("abcdabcX"), None);
        assert_eq!(first("abc*dabc*d"), None, "one call is on another stream");
    }

    #[test]
    fn boundaries_cut_sequences() {
        assert_eq!(first("abcd|abcd"), None, "the boundary may not recur");
        assert_eq!(first("abcd|abcd|"), Some((9, "abcd".to_owned())));
        assert_eq!(
            first("x|abcd|abcd|"),
            Some((10, "abcd".to_owned())),
            "with the boundary before it, it has come twice"
        );
        assert_eq!(first("abcd||abcd||"), Some((10, "abcd".to_owned())), "waits one behind the other are one boundary");
        assert_eq!(
            first("abcd|ef|ghij|abcd|ef|ghij|"),
            Some((25, "ghij,abcd".to_owned())),
            "from behind the first boundary on"
        );
        // The round is found while it is not over: in the order of the calls.
        assert_eq!(first("cd|abcdefcd|abcdef"), Some((17, "abcdefcd".to_owned())));
    }

    #[test]
    fn old_entries_are_forgotten() {
        let mut history = History::default();
        for _ in 0..3 {
            for number in 0..ENTRIES * 2 / 3 {
                history.push(call((number % 251) as u8));
                history.repeated();
            }
        }
        assert_eq!((history.entries.len(), history.calls.len()), (ENTRIES, ENTRIES));
        assert!(history.last.len() <= ENTRIES);
        let kept = history.first();
        assert!(history.last.values().all(|number| *number >= kept));
    }

    /// Each call is found by the number of its entry, however many entries between are none.
    #[test]
    fn calls_are_found_by_the_numbers_of_their_entries() {
        let mut history = History::default();
        for number in 0..3 * ENTRIES {
            match number % 7 {
                0 => _ = history.push_boundary(),
                3 | 4 => history.push_replay(1),
                letter => history.push(call(letter as u8)),
            }
        }
        for number in history.first()..history.next {
            let letter = (number % 7) as u8;
            let found = history.call(number).map(|call| call.work.clone());
            assert_eq!(found, (![0, 3, 4].contains(&letter)).then(|| call(letter).work), "entry {number}");
        }
        assert!(history.call(history.first() - 1).is_none() && history.call(history.next).is_none());
    }
}
