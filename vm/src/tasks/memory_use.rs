//! How much memory of each pool is in use, and by which ops and lines at its peak, for a trace.
//!
//! Submissions tell of each resource that gets memory or gives it back, under the submission lock; the thread that writes the trace asks for the news.

use std::cmp::Reverse;

use hashbrown::HashMap;
use smallvec::SmallVec;
use streamvm_ep::{MemoryKind, Site};
use streamvm_instructions::{Place, ResourceId};

use crate::tasks::events::Name;

/// The most owners that are named of a peak.
const OWNERS: usize = 32;

/// The most pairs of a name and a line whose memory is told apart. That of further ones has no owner, so that names which never come again do not fill the memory.
const LINES: usize = if cfg!(miri) { 1 << 6 } else { 1 << 12 };

/// The length of a step in nanoseconds. A trace has two values of each: the most in use, and what was in use at its end.
const STEP: u64 = 200_000;

/// The most values of a pool that wait for the trace to be written, which may take long: then fewer are kept.
const SAMPLES: usize = 1 << 14;

/// The use of all pools.
#[derive(Default)]
pub(crate) struct MemoryUse {
    pools: Vec<Pool>,
    /// By the indices of resources.
    holders: Vec<Option<Holder>>,
}

/// Which pool.
pub(crate) type PoolName = (Place, MemoryKind);

/// A resource that gets memory.
pub(crate) struct Allocated {
    pub(crate) resource: ResourceId,
    pub(crate) pool: PoolName,
    /// With the rounding of the allocator.
    pub(crate) bytes: usize,
    /// The resource whose memory it was until now, if a list passes it on.
    pub(crate) from: Option<ResourceId>,
    pub(crate) name: Name,
    pub(crate) site: Site,
}

/// What is new of a pool.
pub(crate) struct PoolNews {
    pub(crate) pool: PoolName,
    /// Times, and the bytes in use from then on.
    pub(crate) samples: SmallVec<[(u64, u64); 2]>,
    /// The bytes that the pool has from its device.
    pub(crate) reserved: u64,
    /// The most that was ever in use, if that is new.
    pub(crate) peak: Option<Peak>,
}

/// The most that was in use.
pub(crate) struct Peak {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    /// Those with the most bytes then, the greatest first.
    pub(crate) owners: Vec<Owner>,
}

/// The memory of a name and line.
pub(crate) struct Owner {
    pub(crate) name: Name,
    pub(crate) site: Site,
    pub(crate) bytes: u64,
    pub(crate) tensors: u64,
}

struct Pool {
    name: PoolName,
    in_use: u64,
    /// When that changed last, and to what.
    last: (u64, u64),
    /// The step that has begun, if anything has changed since the last news.
    step: Option<Step>,
    samples: SmallVec<[(u64, u64); 2]>,
    /// When the most was in use, and how much.
    peak: (u64, u64),
    /// How many peaks there were so far.
    peaks: u64,
    /// How many of them the trace knows.
    told: u64,
    reserved: u64,
    places: HashMap<(Name, Site), usize>,
    lines: Vec<Line>,
}

/// A time of at most [`STEP`].
#[derive(Copy, Clone)]
struct Step {
    begin: u64,
    /// When the most was in use, and how much.
    most: (u64, u64),
}

/// The memory of a name and line, now and at the last peak.
struct Line {
    name: Name,
    site: Site,
    now: Share,
    /// What it had at the peak of this number. It had the same at a later one, if there was one, as it has now.
    before: (u64, Share),
}

#[derive(Copy, Clone, Default)]
struct Share {
    bytes: u64,
    tensors: u64,
}

/// A resource that has memory.
struct Holder {
    pool: usize,
    bytes: u64,
    /// The place among the lines of the pool.
    line: Option<usize>,
}

impl MemoryUse {
    /// A resource got memory.
    pub(crate) fn allocated(&mut self, allocated: Allocated, at: u64) {
        let Allocated { resource, pool: name, bytes, from, name: op, site } = allocated;
        // The memory passes from one to the other: there is no time between.
        if let Some(Holder { pool, bytes, line }) = from.and_then(|from| self.holder(from)) {
            self.pools[pool].give_back(bytes, line);
        }
        let known = self.pools.iter().position(|pool| pool.name == name);
        let index = known.unwrap_or_else(|| {
            self.pools.push(Pool::new(name));
            self.pools.len() - 1
        });
        let pool = &mut self.pools[index];
        let (line, bytes) = (pool.line(op, site), bytes as u64);
        pool.take(bytes, line);
        pool.note(at);
        if self.holders.len() <= resource.index() {
            self.holders.resize_with(resource.index() + 1, || None);
        }
        let before = self.holders[resource.index()].replace(Holder { pool: index, bytes, line });
        debug_assert!(before.is_none(), "{resource:?} has not given back what it got before");
    }

    /// The memory of a resource may be given to others.
    pub(crate) fn freed(&mut self, resource: ResourceId, at: u64) {
        if let Some(Holder { pool, bytes, line }) = self.holder(resource) {
            self.pools[pool].give_back(bytes, line);
            self.pools[pool].note(at);
        }
    }

    /// Takes out that a resource has memory, if it has.
    fn holder(&mut self, resource: ResourceId) -> Option<Holder> {
        self.holders.get_mut(resource.index())?.take()
    }

    /// What is new since the last call, at the time `now`. `reserved` has the bytes that each pool has from its device.
    pub(crate) fn news(&mut self, now: u64, reserved: impl Iterator<Item = (PoolName, usize)>) -> Vec<PoolNews> {
        for (name, reserved) in reserved {
            let Some(pool) = self.pools.iter_mut().find(|pool| pool.name == name) else { continue };
            if std::mem::replace(&mut pool.reserved, reserved as u64) != reserved as u64 {
                pool.note(now);
            }
        }
        self.pools.iter_mut().filter_map(Pool::news).collect()
    }

    /// What is in use now, and all peaks.
    pub(crate) fn all(&self) -> impl Iterator<Item = PoolNews> + '_ {
        self.pools.iter().map(|pool| {
            let samples = SmallVec::from_slice(&[pool.last]);
            PoolNews { pool: pool.name, samples, reserved: pool.reserved, peak: Some(pool.last_peak()) }
        })
    }
}

impl Pool {
    fn new(name: PoolName) -> Pool {
        Pool {
            name,
            in_use: 0,
            last: (0, 0),
            step: None,
            samples: SmallVec::new(),
            peak: (0, 0),
            peaks: 0,
            told: 0,
            reserved: 0,
            places: HashMap::new(),
            lines: Vec::new(),
        }
    }

    fn line(&mut self, name: Name, site: Site) -> Option<usize> {
        let key = (name, site);
        if let Some(known) = self.places.get(&key) {
            return Some(*known);
        }
        if self.lines.len() >= LINES {
            return None;
        }
        let (now, before) = (Share::default(), (self.peaks, Share::default()));
        self.lines.push(Line { name: key.0.clone(), site, now, before });
        self.places.insert(key, self.lines.len() - 1);
        Some(self.lines.len() - 1)
    }

    /// The share of a line, which is about to change: what it has at the last peak stays known.
    fn share(&mut self, line: Option<usize>) -> Option<&mut Share> {
        let line = &mut self.lines[line?];
        if line.before.0 != self.peaks {
            line.before = (self.peaks, line.now);
        }
        Some(&mut line.now)
    }

    fn take(&mut self, bytes: u64, line: Option<usize>) {
        self.in_use += bytes;
        if let Some(share) = self.share(line) {
            share.bytes += bytes;
            share.tensors += 1;
        }
    }

    fn give_back(&mut self, bytes: u64, line: Option<usize>) {
        self.in_use -= bytes;
        if let Some(share) = self.share(line) {
            share.bytes -= bytes;
            share.tensors -= 1;
        }
    }

    /// Notes a change of what is in use or reserved.
    fn note(&mut self, at: u64) {
        if self.step.is_some_and(|step| at >= step.begin + STEP) {
            self.end_step();
        }
        self.last = (at, self.in_use);
        let step = self.step.get_or_insert(Step { begin: at, most: self.last });
        if self.in_use > step.most.1 {
            step.most = self.last;
        }
        if self.in_use > self.peak.1 {
            self.peak = self.last;
            self.peaks += 1;
        }
    }

    fn end_step(&mut self) {
        let last = self.last;
        let most = self.step.take().map(|step| step.most).filter(|(at, most)| *at < last.0 && *most > last.1);
        self.samples.extend(most.into_iter().chain([last]));
        if self.samples.len() >= SAMPLES {
            // The highest of each four.
            let parts = self.samples.chunks(4).filter_map(|part| part.iter().copied().max_by_key(|(_, bytes)| *bytes));
            self.samples = parts.chain((self.samples.last() != Some(&last)).then_some(last)).collect();
        }
    }

    fn news(&mut self) -> Option<PoolNews> {
        self.step?;
        self.end_step();
        let peak = (std::mem::replace(&mut self.told, self.peaks) != self.peaks).then(|| self.last_peak());
        let samples = std::mem::take(&mut self.samples);
        Some(PoolNews { pool: self.name, samples, reserved: self.reserved, peak })
    }

    fn last_peak(&self) -> Peak {
        let share = |line: &Line| if line.before.0 == self.peaks { line.before.1 } else { line.now };
        let mut shares: Vec<(&Line, Share)> = self.lines.iter().map(|line| (line, share(line))).collect();
        shares.retain(|(_, share)| share.bytes > 0);
        shares.sort_by_key(|(_, share)| Reverse(share.bytes));
        let owner = |(line, Share { bytes, tensors }): (&Line, Share)| {
            let (name, site) = (line.name.clone(), line.site);
            Owner { name, site, bytes, tensors }
        };
        let owners = shares.into_iter().take(OWNERS).map(owner).collect();
        Peak { at: self.peak.0, bytes: self.peak.1, owners }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use streamvm_ep::DeviceId;

    use super::*;

    const CPU: PoolName = (Place::Device(DeviceId::cpu(0)), MemoryKind::Device);

    /// The use, by resources that are told by their numbers.
    #[derive(Default)]
    struct Told(MemoryUse);

    /// The time and the bytes of a peak, and its owners with their bytes and tensors.
    type ToldPeak = (u64, u64, Vec<(String, u64, u64)>);

    impl Told {
        fn took(&mut self, at: u64, resource: u32, bytes: usize, name: &'static str) {
            self.passed(at, (None, resource), bytes, Name::Constant(name));
        }

        fn passed(&mut self, at: u64, (from, resource): (Option<u32>, u32), bytes: usize, name: Name) {
            let (resource, from, site) = (ResourceId(resource), from.map(ResourceId), Site::caller());
            self.0.allocated(Allocated { resource, pool: CPU, bytes, from, name, site }, at);
        }

        fn gave(&mut self, at: u64, resource: u32) {
            self.0.freed(ResourceId(resource), at);
        }

        /// The samples, and the peak.
        fn news(&mut self) -> (Vec<(u64, u64)>, Option<ToldPeak>) {
            let news = self.0.news(0, [].into_iter());
            let [news] = &news[..] else { panic!("{} pools have news", news.len()) };
            let peak = news.peak.as_ref().map(|peak| {
                let owners = peak.owners.iter().map(|it| (it.name.text().to_owned(), it.bytes, it.tensors));
                (peak.at, peak.bytes, owners.collect())
            });
            (news.samples.to_vec(), peak)
        }
    }

    fn owners<const N: usize>(of: [(&str, u64, u64); N]) -> Vec<(String, u64, u64)> {
        of.map(|(name, bytes, tensors)| (name.to_owned(), bytes, tensors)).into()
    }

    #[test]
    fn the_peak_has_those_who_had_memory_then() {
        let mut memory = Told::default();
        memory.took(1, 1, 100, "a");
        memory.took(2, 2, 50, "b");
        memory.took(3, 3, 50, "b");
        memory.gave(4, 1);
        memory.took(5, 4, 30, "c");
        let peak = (3, 200, owners([("a", 100, 1), ("b", 100, 2)]));
        assert_eq!(memory.news(), (vec![(3, 200), (5, 130)], Some(peak)));
        assert!(memory.0.news(0, [].into_iter()).is_empty());
        // No new peak: the most of this look is shown even so.
        memory.took(6, 5, 20, "c");
        memory.gave(7, 5);
        assert_eq!(memory.news(), (vec![(6, 150), (7, 130)], None));
        // A new peak, which lasts until the news are asked for.
        memory.took(8, 6, 500, "d");
        let peak = (8, 630, owners([("d", 500, 1), ("b", 100, 2), ("c", 30, 1)]));
        assert_eq!(memory.news(), (vec![(8, 630)], Some(peak)));
        [2, 3, 4, 6].into_iter().for_each(|resource| memory.gave(9, resource));
        assert_eq!(memory.news(), (vec![(9, 0)], None));
        let all: Vec<PoolNews> = memory.0.all().collect();
        assert_eq!(all[0].peak.as_ref().map(|peak| (peak.bytes, peak.owners.len())), Some((630, 3)));
        // What was given back to the device is news, too.
        let news = memory.0.news(12, [(CPU, 1_000)].into_iter());
        assert_eq!((news[0].samples.to_vec(), news[0].reserved), (vec![(12, 0)], 1_000));
        assert!(memory.0.news(13, [(CPU, 1_000)].into_iter()).is_empty());
    }

    #[test]
    fn each_step_has_its_most_and_its_last() {
        let mut memory = Told::default();
        memory.took(10, 1, 100, "a");
        memory.took(20, 2, 50, "a");
        memory.gave(30, 2);
        memory.took(STEP + 10, 3, 1, "a");
        memory.gave(STEP + 20, 3);
        memory.took(9 * STEP, 4, 2, "a");
        memory.took(9 * STEP, 5, 2, "a");
        let samples = [(20, 150), (30, 100), (STEP + 10, 101), (STEP + 20, 100), (9 * STEP, 104)];
        assert_eq!(memory.news().0, samples);
    }

    #[test]
    fn values_that_nobody_takes_become_few_with_the_highest() {
        let mut memory = Told::default();
        memory.took(0, 1, 10, "a");
        for step in 1..10 * SAMPLES as u64 {
            let resource = 2 + (step == 12_345) as u32;
            memory.took(step * STEP, resource, 1 << resource, "a");
            memory.gave(step * STEP + 1, resource);
        }
        let (samples, _) = memory.news();
        assert!(samples.len() < SAMPLES + 2 && samples.is_sorted(), "{} values", samples.len());
        assert!(samples.contains(&(12_345 * STEP, 18)));
        assert_eq!(samples.last(), Some(&((10 * SAMPLES as u64 - 1) * STEP + 1, 10)));
    }

    #[test]
    fn memory_that_a_list_passes_on_counts_once() {
        let mut memory = Told::default();
        memory.took(1, 1, 100, "a");
        memory.passed(2, (Some(1), 2), 100, Name::Constant("b"));
        memory.gave(3, 1);
        assert_eq!(memory.news(), (vec![(2, 100)], Some((1, 100, owners([("a", 100, 1)])))));
        memory.gave(4, 2);
        assert_eq!(memory.news(), (vec![(4, 0)], None));
    }

    #[test]
    fn names_that_are_too_many_have_no_owner() {
        let mut memory = Told::default();
        for resource in 0..2 * LINES as u32 {
            memory.passed(1, (None, resource), 10, Name::Own(resource.to_string().into()));
        }
        let (samples, peak) = memory.news();
        let (_, bytes, owners) = peak.expect("a peak");
        assert_eq!((samples, bytes, owners.len()), (vec![(1, 20 * LINES as u64)], 20 * LINES as u64, OWNERS));
        assert_eq!(memory.0.pools[0].lines.len(), LINES);
        (0..2 * LINES as u32).for_each(|resource| memory.gave(2, resource));
        assert_eq!((memory.news().0, memory.0.holders.iter().flatten().count()), (vec![(2, 0)], 0));
    }
}
