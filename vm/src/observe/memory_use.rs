//! How much memory of each pool is in use, and by which lines at its peak, from what submissions have noted.

use std::cmp::Reverse;
use std::ptr::NonNull;

use hashbrown::HashMap;
use smallvec::SmallVec;
use streamvm_ep::{MemoryKind, Site};
use streamvm_instructions::{Place, ResourceId};

use crate::tasks::timeline::{Event, Name, Took};

/// A peak names so many lines.
const OWNERS: usize = 32;

/// The memory of so many names and lines is told apart; that of further ones counts as of others, so that names which never come again do not fill the memory.
const LINES: usize = 1 << 12;

/// Of each such time, in nanoseconds, a trace has the most that was in use, and what was in use at its end.
const STEP: u64 = 200_000;

/// The use of all pools.
#[derive(Default)]
pub(crate) struct MemoryUse {
    pools: Vec<Pool>,
    taken: HashMap<ResourceId, Taken>,
}

/// Which pool.
pub(crate) type PoolName = (Place, MemoryKind);

/// What is new of a pool.
#[derive(Clone)]
pub(crate) struct PoolNews {
    pub(crate) pool: PoolName,
    /// Times, and the bytes in use from then on.
    pub(crate) samples: SmallVec<[(u64, u64); 2]>,
    /// What the pool has from its device.
    pub(crate) reserved: u64,
    /// The most that was ever in use, if that is new.
    pub(crate) peak: Option<Peak>,
}

/// The most that was in use.
#[derive(Clone, Default)]
pub(crate) struct Peak {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    /// Who had it: the lines with the most bytes, the greatest first.
    pub(crate) owners: Vec<Owner>,
}

/// The memory of a name and line.
#[derive(Clone)]
pub(crate) struct Owner {
    pub(crate) name: Name,
    pub(crate) site: Site,
    pub(crate) bytes: u64,
    pub(crate) tensors: u64,
}

struct Pool {
    name: PoolName,
    in_use: u64,
    reserved: u64,
    /// When that changed last.
    last: u64,
    /// The step that has begun, if anything has changed since the last news.
    step: Option<Step>,
    samples: SmallVec<[(u64, u64); 2]>,
    peak: Peak,
    /// The peak has no owners yet: those of now.
    at_peak: bool,
    has_new_peak: bool,
    places: HashMap<(Name, NonNull<()>), usize>,
    owners: Vec<Owner>,
}

/// A time of at most [`STEP`].
#[derive(Copy, Clone)]
struct Step {
    begin: u64,
    /// When the most was in use, and how much.
    most: (u64, u64),
}

/// The memory of a resource.
struct Taken {
    pool: usize,
    bytes: u64,
    /// The place among the owners of the pool.
    owner: Option<usize>,
}

impl MemoryUse {
    /// Takes what was noted, in its order.
    pub(crate) fn add(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Took(took) => self.took(took),
                Event::Gave { resource, at } => self.gave(resource, Some(at)),
                Event::Ran(_) | Event::Passed { .. } | Event::Blocked(_) => {}
            }
        }
    }

    fn took(&mut self, took: Took) {
        let Took { resource, place, kind, bytes, reserved, from, name, site, at } = took;
        // What it was given before has been lost, if events were too many.
        self.gave(resource, Some(at));
        // The memory passes from one to the other: there is no time between.
        if let Some(from) = from {
            self.gave(from, None);
        }
        let known = self.pools.iter().position(|pool| pool.name == (place, kind));
        let index = known.unwrap_or_else(|| {
            self.pools.push(Pool::new((place, kind)));
            self.pools.len() - 1
        });
        let pool = &mut self.pools[index];
        let owner = pool.owner(name, site);
        let bytes = bytes as u64;
        pool.reserved = reserved as u64;
        if let Some(owner) = owner {
            pool.owners[owner].bytes += bytes;
            pool.owners[owner].tensors += 1;
        }
        pool.changes(at, pool.in_use + bytes);
        self.taken.insert(resource, Taken { pool: index, bytes, owner });
    }

    /// Without a time the memory goes to another resource.
    fn gave(&mut self, resource: ResourceId, at: Option<u64>) {
        let Some(Taken { pool, bytes, owner }) = self.taken.remove(&resource) else { return };
        let pool = &mut self.pools[pool];
        pool.find_owners();
        if let Some(owner) = owner {
            pool.owners[owner].bytes -= bytes;
            pool.owners[owner].tensors -= 1;
        }
        match at {
            Some(at) => pool.changes(at, pool.in_use - bytes),
            None => pool.in_use -= bytes,
        }
    }

    /// What is new since the last call.
    pub(crate) fn news(&mut self) -> Vec<PoolNews> {
        let changed = self.pools.iter_mut().filter(|pool| pool.step.is_some());
        let news = changed.map(|pool| {
            pool.find_owners();
            pool.end_step();
            let samples = std::mem::take(&mut pool.samples);
            let peak = std::mem::take(&mut pool.has_new_peak).then(|| pool.peak.clone());
            PoolNews { pool: pool.name, samples, reserved: pool.reserved, peak }
        });
        news.collect()
    }

    /// What is in use now, and all peaks.
    pub(crate) fn all(&self) -> impl Iterator<Item = PoolNews> + '_ {
        self.pools.iter().map(|pool| {
            let samples = SmallVec::from_slice(&[(pool.last, pool.in_use)]);
            PoolNews { pool: pool.name, samples, reserved: pool.reserved, peak: Some(pool.peak.clone()) }
        })
    }
}

impl Pool {
    fn new(name: PoolName) -> Pool {
        Pool {
            name,
            in_use: 0,
            reserved: 0,
            last: 0,
            step: None,
            samples: SmallVec::new(),
            peak: Peak::default(),
            at_peak: false,
            has_new_peak: false,
            places: HashMap::new(),
            owners: Vec::new(),
        }
    }

    fn owner(&mut self, name: Name, site: Site) -> Option<usize> {
        let key = (name, site.into_raw());
        if let Some(known) = self.places.get(&key) {
            return Some(*known);
        }
        if self.owners.len() >= LINES {
            return None;
        }
        self.owners.push(Owner { name: key.0.clone(), site, bytes: 0, tensors: 0 });
        self.places.insert(key, self.owners.len() - 1);
        Some(self.owners.len() - 1)
    }

    fn changes(&mut self, at: u64, in_use: u64) {
        if self.step.is_some_and(|step| at >= step.begin + STEP) {
            self.end_step();
        }
        (self.in_use, self.last) = (in_use, at);
        let step = self.step.get_or_insert(Step { begin: at, most: (at, in_use) });
        if in_use > step.most.1 {
            step.most = (at, in_use);
        }
        if in_use > self.peak.bytes {
            (self.peak.at, self.peak.bytes) = (at, in_use);
            (self.at_peak, self.has_new_peak) = (true, true);
        }
    }

    fn end_step(&mut self) {
        let last = (self.last, self.in_use);
        let most = self.step.take().map(|step| step.most).filter(|(at, most)| *at < last.0 && *most > last.1);
        self.samples.extend(most.into_iter().chain([last]));
    }

    /// Finds who has the memory of the peak, while it lasts: once for each peak that something follows.
    fn find_owners(&mut self) {
        if !std::mem::take(&mut self.at_peak) {
            return;
        }
        let mut owners: Vec<&Owner> = self.owners.iter().filter(|owner| owner.bytes > 0).collect();
        owners.sort_by_key(|owner| Reverse(owner.bytes));
        self.peak.owners = owners.into_iter().take(OWNERS).cloned().collect();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use streamvm_ep::DeviceId;

    use super::*;

    const CPU: PoolName = (Place::Device(DeviceId::cpu(0)), MemoryKind::Device);

    fn took(at: u64, resource: u32, bytes: usize, name: &'static str, from: Option<u32>) -> Event {
        let (name, site, (place, kind)) = (Name::Constant(name), Site::caller(), CPU);
        let from = from.map(ResourceId);
        Event::Took(Took { resource: ResourceId(resource), place, kind, bytes, reserved: 1_000, from, name, site, at })
    }

    fn gave(at: u64, resource: u32) -> Event {
        Event::Gave { resource: ResourceId(resource), at }
    }

    /// The time and the bytes of a peak, and its owners with their bytes and tensors.
    type Told<'n> = (u64, u64, Vec<(&'n str, u64, u64)>);

    /// The samples, and the peak.
    fn told(news: &[PoolNews]) -> (Vec<(u64, u64)>, Option<Told<'_>>) {
        let [news] = news else { panic!("{} pools have news", news.len()) };
        let peak = news.peak.as_ref().map(|peak| {
            let owners = peak.owners.iter().map(|it| (it.name.text(), it.bytes, it.tensors));
            (peak.at, peak.bytes, owners.collect())
        });
        (news.samples.to_vec(), peak)
    }

    #[test]
    fn the_peak_has_those_who_had_memory_then() {
        let mut memory = MemoryUse::default();
        memory.add(vec![took(1, 1, 100, "a", None), took(2, 2, 50, "b", None), took(3, 3, 50, "b", None)]);
        memory.add(vec![gave(4, 1), took(5, 4, 30, "c", None)]);
        let news = memory.news();
        assert_eq!(told(&news), (vec![(3, 200), (5, 130)], Some((3, 200, vec![("a", 100, 1), ("b", 100, 2)]))));
        assert!(memory.news().is_empty());
        // No new peak: the most of this look is shown even so.
        memory.add(vec![took(6, 5, 20, "c", None), gave(7, 5)]);
        assert_eq!(told(&memory.news()), (vec![(6, 150), (7, 130)], None));
        // A new peak, which lasts until the news are asked for.
        memory.add(vec![took(8, 6, 500, "d", None)]);
        let owners = vec![("d", 500, 1), ("b", 100, 2), ("c", 30, 1)];
        assert_eq!(told(&memory.news()), (vec![(8, 630)], Some((8, 630, owners))));
        [2, 3, 4, 6].into_iter().for_each(|resource| memory.add(vec![gave(9, resource)]));
        assert_eq!(told(&memory.news()), (vec![(9, 0)], None));
        let all: Vec<PoolNews> = memory.all().collect();
        assert_eq!((all[0].peak.as_ref().map(|peak| peak.bytes), all[0].reserved), (Some(630), 1_000));
    }

    #[test]
    fn each_step_has_its_most_and_its_last() {
        let mut memory = MemoryUse::default();
        memory.add(vec![took(10, 1, 100, "a", None), took(20, 2, 50, "a", None), gave(30, 2)]);
        memory.add(vec![took(STEP + 10, 3, 1, "a", None), gave(STEP + 20, 3)]);
        memory.add(vec![took(9 * STEP, 4, 2, "a", None), took(9 * STEP, 5, 2, "a", None)]);
        let samples = [(20, 150), (30, 100), (STEP + 10, 101), (STEP + 20, 100), (9 * STEP, 104)];
        assert_eq!(told(&memory.news()).0, samples);
    }

    #[test]
    fn memory_that_a_list_passes_on_counts_once() {
        let mut memory = MemoryUse::default();
        memory.add(vec![took(1, 1, 100, "a", None), took(2, 2, 100, "b", Some(1)), gave(3, 1)]);
        assert_eq!(told(&memory.news()), (vec![(2, 100)], Some((1, 100, vec![("a", 100, 1)]))));
    }

    #[test]
    fn events_that_were_left_out_do_no_harm() {
        let mut memory = MemoryUse::default();
        memory.add(vec![
            gave(1, 7),
            took(2, 1, 100, "a", None),
            took(3, 1, 60, "b", None),
            took(4, 2, 1, "c", Some(9)),
        ]);
        assert_eq!(told(&memory.news()).0, [(2, 100), (4, 61)]);
    }

    #[test]
    fn names_that_are_too_many_are_those_of_others() {
        let mut memory = MemoryUse::default();
        for resource in 0..2 * LINES as u32 {
            let Event::Took(took) = took(1, resource, 10, "", None) else { unreachable!("made above") };
            memory.add(vec![Event::Took(Took { name: Name::Own(resource.to_string().into()), ..took })]);
        }
        let news = memory.news();
        assert_eq!((news[0].samples[0].1, memory.pools[0].owners.len()), (20 * LINES as u64, LINES));
        (0..2 * LINES as u32).for_each(|resource| memory.add(vec![gave(2, resource)]));
        assert_eq!(memory.news()[0].samples.to_vec(), [(2, 0)]);
        assert_eq!((memory.pools[0].in_use, memory.taken.len()), (0, 0));
    }
}
