//! [`Notice`]: a message between the threads that watch the groups of a job ([`watch`](super::watch)).

use crate::transport::RankError;

/// The bytes of a text that a notice has.
const TEXT: usize = 240;

/// The ranks that a notice names at most.
const RANKS: usize = 16;

/// The numbers of a notice.
const NUMBERS: usize = 10 + RANKS;

/// The length of a notice.
pub(super) const BYTES: usize = 8 * NUMBERS + 2 * TEXT;

/// The kind of a notice.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// Where are you?
    Question,
    /// Where the sender is.
    Answer,
    /// The group cannot be used any longer: these ranks are late.
    Late,
    /// The same: two ranks call different collectives.
    Order,
    /// The same, for another reason.
    GivenUp,
}

const WORDS: [Word; 5] = [Word::Question, Word::Answer, Word::Late, Word::Order, Word::GivenUp];

/// A message about a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Notice {
    pub(super) word: Word,
    /// The identity of the group.
    pub(super) identity: u64,
    /// The number of the sender in the job.
    pub(super) sender: u64,
    /// The number that the one who asks has given the question.
    pub(super) question: u64,
    /// Collectives of the group that the sender has started.
    pub(super) started: u64,
    /// Whether the sender waits for somebody in any group.
    pub(super) waits: bool,
    /// If the sender is in a collective of the group: the hash of the call, else 0.
    pub(super) hash: u64,
    /// Ranks of the group: those that are late; the two that differ; the one that gives up.
    pub(super) ranks: Vec<usize>,
    /// The call of the sender, or the calls of the two, or the reason. Long ones are cut.
    pub(super) texts: [String; 2],
}

impl Notice {
    pub(super) fn new(word: Word, identity: u64, sender: u64) -> Notice {
        let (ranks, texts) = (Vec::new(), [String::new(), String::new()]);
        Notice { word, identity, sender, question: 0, started: 0, waits: false, hash: 0, ranks, texts }
    }

    pub(super) fn encode(&self) -> Box<[u8]> {
        let ranks = &self.ranks[..self.ranks.len().min(RANKS)];
        let texts = self.texts.each_ref().map(|text| &text.as_bytes()[..text.len().min(TEXT)]);
        let word = WORDS.iter().position(|word| *word == self.word).unwrap_or_default() as u64;
        let mut numbers = vec![word, self.identity, self.sender, self.question, self.started, u64::from(self.waits)];
        numbers.extend([self.hash, ranks.len() as u64, texts[0].len() as u64, texts[1].len() as u64]);
        numbers.extend(ranks.iter().map(|&rank| rank as u64));
        numbers.resize(NUMBERS, 0);
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        for text in texts {
            let end = bytes.len() + TEXT;
            bytes.extend_from_slice(text);
            bytes.resize(end, 0);
        }
        bytes.into_boxed_slice()
    }

    /// `None` if the bytes are no notice.
    pub(super) fn decode(bytes: &[u8; BYTES]) -> Option<Notice> {
        let (numbers, texts) = bytes.split_at(8 * NUMBERS);
        let number = |at: usize| numbers[8 * at..][..8].try_into().map_or(0, u64::from_le_bytes);
        let word = *WORDS.get(number(0) as usize)?;
        let count = (number(7) as usize).min(RANKS);
        let text = |at: usize| {
            let bytes = &texts[TEXT * at..][..(number(8 + at) as usize).min(TEXT)];
            String::from_utf8_lossy(bytes).into_owned()
        };
        let ranks = (0..count).map(|at| number(10 + at) as usize).collect();
        let (identity, sender, question, started) = (number(1), number(2), number(3), number(4));
        let (waits, hash, texts) = (number(5) != 0, number(6), [text(0), text(1)]);
        Some(Notice { word, identity, sender, question, started, waits, hash, ranks, texts })
    }

    /// A verdict of rank `me`, as the other ranks of the group are told it.
    pub(super) fn of(error: &RankError, identity: u64, sender: u64, me: usize) -> Notice {
        match error {
            RankError::Late { ranks, .. } => {
                Notice { ranks: ranks.clone(), ..Notice::new(Word::Late, identity, sender) }
            }
            RankError::Order { me, mine, other, theirs } => {
                let (ranks, texts) = (vec![*me, *other], [mine.clone(), theirs.clone()]);
                Notice { ranks, texts, ..Notice::new(Word::Order, identity, sender) }
            }
            _ => Notice::given_up(error, identity, sender, me),
        }
    }

    /// The message by which rank `me` tells the others that it gives the group up.
    pub(super) fn given_up(error: &RankError, identity: u64, sender: u64, me: usize) -> Notice {
        let why = if let RankError::Broken(why) = error { why.clone() } else { error.to_string() };
        Notice { ranks: vec![me], texts: [why, String::new()], ..Notice::new(Word::GivenUp, identity, sender) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_comes_back_from_its_bytes() {
        let notice = Notice {
            question: 7,
            started: 1 << 40,
            waits: true,
            hash: u64::MAX,
            ranks: (0..RANKS).collect(),
            texts: ["all_reduce sum f32[3] over world (a.rs:1)".to_owned(), "ä".repeat(120)],
            ..Notice::new(Word::Order, 3, 9_999)
        };
        let bytes: [u8; BYTES] = notice.encode()[..].try_into().expect("its length");
        assert_eq!(Notice::decode(&bytes), Some(notice.clone()));
        // Long lists and texts are cut, a text also within a letter.
        let long =
            Notice { ranks: (0..99).collect(), texts: ["ä".repeat(500), format!("a{}", "ä".repeat(500))], ..notice };
        let bytes: [u8; BYTES] = long.encode()[..].try_into().expect("its length");
        let cut = Notice::decode(&bytes).expect("a notice");
        assert_eq!((cut.ranks.len(), cut.texts[0].chars().count()), (RANKS, 120));
        assert!(cut.texts[1].starts_with("aää"));
        assert_eq!(Notice::decode(&[0xff; BYTES]), None);
    }
}
