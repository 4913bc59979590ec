//! The sequences of one thread.

use std::panic::Location;

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::automatic::sequence::Sequence;

/// The most sequences that a thread keeps; the one that was not followed for longest goes first. A training loop has a handful.
const MOST: usize = 64;

/// A sequence is no longer followed once its calls were submitted one by one this often, and more often than it was replayed.
const MOST_FALLBACKS: u64 = 16;

/// Sequences by their first calls. A sequence keeps its number as long as it is here.
#[derive(Debug, Default)]
pub(super) struct Sequences {
    slots: Vec<Option<Sequence>>,
    /// By the address of the first call's location: longer sequences first.
    by_location: HashMap<usize, SmallVec<[usize; 2]>>,
    clock: u64,
}

fn key(location: &'static Location<'static>) -> usize {
    std::ptr::from_ref(location) as usize
}

impl Sequences {
    pub(super) fn get(&self, number: usize) -> &Sequence {
        self.slots[number].as_ref().unwrap_or_else(|| unreachable!("a sequence that is followed is kept"))
    }

    pub(super) fn get_mut(&mut self, number: usize) -> &mut Sequence {
        self.slots[number].as_mut().unwrap_or_else(|| unreachable!("a sequence that is followed is kept"))
    }

    /// All sequences whose first call is at this place in the source, longer ones first.
    fn all_at(&self, location: &'static Location<'static>) -> &[usize] {
        self.by_location.get(&key(location)).map_or(&[], |numbers| numbers)
    }

    /// The sequences to follow whose first call is at this place in the source, longer ones first.
    pub(super) fn at(&self, location: &'static Location<'static>) -> impl Iterator<Item = usize> + '_ {
        self.all_at(location).iter().copied().filter(|number| !self.get(*number).is_retired)
    }

    /// The sequence that consists of the first `calls` calls of another one, which may be that one itself.
    pub(super) fn of_length(&self, number: usize, calls: usize) -> Option<usize> {
        let sequence = self.get(number);
        if sequence.steps.len() == calls {
            return Some(number);
        }
        let is_prefix = |other: &usize| {
            let other = self.get(*other);
            other.steps.len() == calls && other.begins_as(sequence, calls)
        };
        self.at(sequence.location()).find(is_prefix)
    }

    /// Notes that a sequence is followed.
    pub(super) fn touch(&mut self, number: usize) {
        self.clock += 1;
        let clock = self.clock;
        self.get_mut(number).used = clock;
    }

    /// Adds a sequence. Returns false if it is here already; one that is no longer followed gets another chance when it has come twice, four
    /// times, eight times and so on since it was retired. No sequence is followed now.
    pub(super) fn add(&mut self, mut sequence: Sequence) -> bool {
        let same = self.all_at(sequence.location()).iter().copied().find(|number| self.get(*number).is_same(&sequence));
        if let Some(number) = same {
            let same = self.get_mut(number);
            if same.is_retired {
                same.found += 1;
                same.is_retired = !same.found.is_power_of_two();
                same.fallbacks = 0;
            }
            return false;
        }
        self.clock += 1;
        sequence.used = self.clock;
        let number = match self.slots.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.slots.len() < MOST => {
                self.slots.push(None);
                self.slots.len() - 1
            }
            None => {
                let used = |number: &usize| self.get(*number).used;
                let oldest = (0..self.slots.len()).min_by_key(used).unwrap_or(0);
                self.remove(oldest);
                oldest
            }
        };
        let location = key(sequence.location());
        self.slots[number] = Some(sequence);
        let mut numbers = self.by_location.remove(&location).unwrap_or_default();
        numbers.push(number);
        numbers.sort_by_key(|number| std::cmp::Reverse(self.get(*number).steps.len()));
        self.by_location.insert(location, numbers);
        true
    }

    /// Counts that calls of a sequence were submitted one by one. If that happens too often, the sequence is no longer followed.
    pub(super) fn fell_back(&mut self, number: usize) {
        let sequence = self.get_mut(number);
        sequence.fallbacks += 1;
        sequence.is_retired = sequence.fallbacks > MOST_FALLBACKS && sequence.fallbacks > sequence.replays;
    }

    fn remove(&mut self, number: usize) {
        let Some(sequence) = self.slots[number].take() else { return };
        if let Some(numbers) = self.by_location.get_mut(&key(sequence.location())) {
            numbers.retain(|other| *other != number);
        }
    }
}
