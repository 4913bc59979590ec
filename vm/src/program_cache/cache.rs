//! The cache of loaded programs. It is bounded in number and in bytes; the least recently used program is evicted first.
//!
//! * An entry is found by the hash of its key, and its key is then compared whole, so two programs with one hash are never mistaken for each
//!   other. The cache keeps one entry for a hash: of two keys with one hash, the later takes the place of the earlier.
//! * The lock is held for look-ups by hash. Hashing, comparing, compiling and dropping programs happens without it.
//! * The first caller that asks for a program makes it. Callers that ask for the same program meanwhile wait for the result; callers of other
//!   programs do not.
//! * A program that is evicted lives on in the executables that use it. A program that cannot be compiled is not kept.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::{Arc, OnceLock};

use hashbrown::DefaultHashBuilder;
use lru::LruCache;
use smallvec::SmallVec;
use streamvm_instructions::Error;

use crate::program_cache::key::{Key, Query};
use crate::program_cache::loaded::LoadedProgram;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, unpoisoned};

/// The bounds of a cache.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) programs: usize,
    pub(crate) bytes: u64,
}

/// The counters of an engine's cache of compiled programs; see [`Vm::compiled`](crate::Vm::compiled).
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ProgramCacheStats {
    /// How many programs the cache has.
    pub programs: usize,
    /// How many bytes they count: for each, the memory that one run has beside its feeds, parameters and fetches (arenas, and values with memory
    /// of their own), and about as much host memory as the program and its plan take.
    pub bytes: u64,
    /// How many requests found their program, or waited while another thread compiled it.
    pub hits: u64,
    /// How many requests did not find their program, and had it compiled.
    pub misses: u64,
    /// How many programs were removed to keep the bounds.
    pub evictions: u64,
}

/// A program that was asked for.
struct Entry {
    key: Key,
    /// Empty while the first caller compiles it.
    made: OnceLock<Result<Arc<LoadedProgram>, Error>>,
}

/// An entry in the cache, and the bytes that it counts: none while the program is compiled.
struct Kept {
    entry: Arc<Entry>,
    bytes: u64,
}

/// Entries that were removed under the lock. The caller drops them without it, as dropping a large program takes long.
type Removed = SmallVec<[Kept; 2]>;

/// A cache of loaded programs.
pub(crate) struct ProgramCache {
    bounds: Bounds,
    hasher: DefaultHashBuilder,
    hits: AtomicU64,
    misses: AtomicU64,
    closures: AtomicU64,
    state: Mutex<State>,
}

struct State {
    /// By the hash of the key.
    entries: LruCache<u64, Kept>,
    bytes: u64,
    evictions: u64,
}

impl fmt::Debug for ProgramCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

impl ProgramCache {
    pub(crate) fn new(bounds: Bounds) -> ProgramCache {
        ProgramCache {
            bounds,
            hasher: DefaultHashBuilder::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            closures: AtomicU64::new(0),
            state: Mutex::new(State { entries: LruCache::unbounded(), bytes: 0, evictions: 0 }),
        }
    }

    /// A cache for the parts of one program, whose functions and plans go with that program: of at most 16 parts, with the bytes that this cache may have.
    pub(crate) fn of_parts(&self) -> ProgramCache {
        ProgramCache::new(Bounds { programs: self.bounds.programs.min(16), bytes: self.bounds.bytes })
    }

    /// A number for a closure, which no other of this cache has.
    pub(crate) fn new_number(&self) -> u64 {
        self.closures.fetch_add(1, Ordering::Relaxed)
    }

    /// The program that `query` asks for, if it was made. Blocks for a short lock only.
    pub(crate) fn made(&self, query: Query<'_>) -> Option<Result<Arc<LoadedProgram>, Error>> {
        let entry = self.find(self.hasher.hash_one(query), query)?;
        let made = entry.made.get()?.clone();
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(made)
    }

    /// The program that `query` asks for; `load` makes it if the cache does not have it. Blocks while another thread makes it.
    ///
    /// # Errors
    /// Those of `load`, also for the callers that waited for it.
    pub(crate) fn get_or_load(
        &self,
        query: Query<'_>,
        load: impl FnOnce() -> Result<LoadedProgram, Error>,
    ) -> Result<Arc<LoadedProgram>, Error> {
        self.get_or_load_at(self.hasher.hash_one(query), query, load)
    }

    fn get_or_load_at(
        &self,
        hash: u64,
        query: Query<'_>,
        load: impl FnOnce() -> Result<LoadedProgram, Error>,
    ) -> Result<Arc<LoadedProgram>, Error> {
        let entry = match self.find(hash, query) {
            Some(entry) => {
                self.hits.fetch_add(1, Ordering::Relaxed);
                entry
            }
            None => self.insert(hash, query.to_key()),
        };
        let mut made_here = false;
        let made = entry.made.get_or_init(|| {
            made_here = true;
            load().map(Arc::new)
        });
        if made_here {
            self.settle(hash, &entry, made);
        }
        made.clone()
    }

    /// The entry that `query` asks for, which is the most recently used one now.
    fn find(&self, hash: u64, query: Query<'_>) -> Option<Arc<Entry>> {
        let candidate = self.lock().entries.get(&hash)?.entry.clone();
        query.is(&candidate.key).then_some(candidate)
    }

    /// Adds an entry without a program; another thread may have added the same one meanwhile, which is returned then.
    fn insert(&self, hash: u64, key: Key) -> Arc<Entry> {
        let entry = Arc::new(Entry { key, made: OnceLock::new() });
        let mut state = self.lock();
        // Almost never is there an entry, so this comparison may hold the lock.
        if let Some(kept) = state.entries.get(&hash).filter(|kept| kept.entry.key == entry.key) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return kept.entry.clone();
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        let replaced = state.entries.put(hash, Kept { entry: entry.clone(), bytes: 0 });
        let mut removed: Removed = replaced.into_iter().collect();
        state.count_removed(&removed);
        state.evict(self.bounds, &mut removed);
        drop(state);
        drop(removed);
        entry
    }

    /// Counts the bytes of a program that was made. Removes its entry if it failed, or if it counts more than the bound by itself.
    fn settle(&self, hash: u64, entry: &Arc<Entry>, made: &Result<Arc<LoadedProgram>, Error>) {
        let counted = made.as_ref().map(|made| made.bytes() + entry.key.bytes(&made.compiled.share_program()));
        let mut removed = Removed::new();
        let mut state = self.lock();
        // It may have been evicted meanwhile.
        let Some(kept) = state.entries.peek_mut(&hash).filter(|kept| Arc::ptr_eq(&kept.entry, entry)) else { return };
        match counted {
            Ok(bytes) if bytes <= self.bounds.bytes => {
                kept.bytes = bytes;
                state.bytes += bytes;
                state.evict(self.bounds, &mut removed);
            }
            _ => {
                removed.extend(state.entries.pop(&hash));
                state.evictions += u64::from(made.is_ok());
            }
        }
        drop(state);
        if let (Ok(made), Ok(bytes)) = (made, counted)
            && bytes > self.bounds.bytes
        {
            log::warn!(
                "program {:?} counts {bytes} bytes, and compiled programs may count {} together, so it is compiled anew for each request; \
                 raise VmBuilder::max_cached_program_bytes",
                made.compiled.program().name,
                self.bounds.bytes
            );
        }
    }

    /// The counters.
    pub(crate) fn stats(&self) -> ProgramCacheStats {
        let state = self.lock();
        ProgramCacheStats {
            programs: state.entries.len(),
            bytes: state.bytes,
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            evictions: state.evictions,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.state.lock())
    }
}

impl State {
    /// Removes the least recently used entries until the others keep the bounds.
    fn evict(&mut self, bounds: Bounds, removed: &mut Removed) {
        while self.entries.len() > bounds.programs || self.bytes > bounds.bytes {
            let Some((_, kept)) = self.entries.pop_lru() else { break };
            self.count_removed(std::slice::from_ref(&kept));
            removed.push(kept);
        }
    }

    fn count_removed(&mut self, removed: &[Kept]) {
        self.evictions += removed.len() as u64;
        self.bytes -= removed.iter().map(|kept| kept.bytes).sum::<u64>();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "cache_tests.rs"]
mod tests;
