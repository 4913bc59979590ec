//! A device with one defect.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use streamvm_ep::{
    Accounts, Device, DeviceInfo, Error, EventId, EventPool, LateFailure, MemoryKind, MemoryStats, Region, Stream,
};

use super::Flaw;
use super::stream::BrokenStream;

/// A conforming device after one [`Flaw`].
#[derive(Debug)]
pub(super) struct BrokenDevice {
    inner: Arc<dyn Device>,
    flaw: Flaw,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Failures to report at the next call, because the flaw reports them twice or delays them.
    failures: Vec<LateFailure>,
    /// Regions that were freed, and that the flaw hands out again.
    kept: Vec<Region>,
    /// Base and size of a region in use, which the flaw hands out a second time.
    lent: Option<(usize, usize)>,
    allocations: u64,
}

impl BrokenDevice {
    pub(super) fn wrap(inner: Arc<dyn Device>, flaw: Flaw) -> Arc<dyn Device> {
        Arc::new(BrokenDevice { inner, flaw, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Turns an error that the flaw overlooks into the success `fine`.
    fn overlooked<T>(&self, found: Result<T, Error>, fine: T) -> Result<T, Error> {
        match (self.flaw, found) {
            (Flaw::TakesStaleEvents, Err(Error::StaleEvent { .. })) => Ok(fine),
            (Flaw::TakesUnrecordedEvents, Err(Error::EventNotRecorded { .. })) => Ok(fine),
            (_, found) => found,
        }
    }
}

// SAFETY: regions are those of the wrapped device. A flaw hands out one that is in use or has contents, or reports an event too early; the cases that
// find it use regions through streams alone, and give them back at their end.
unsafe impl Device for BrokenDevice {
    fn accounts(&self) -> &Accounts {
        self.inner.accounts()
    }

    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn memory(&self, kind: MemoryKind) -> MemoryStats {
        let stats = self.inner.memory(kind);
        match self.flaw {
            Flaw::CountsNothing => MemoryStats { limit: stats.limit, ..MemoryStats::default() },
            Flaw::ForgetsPeaks => MemoryStats { peak: stats.in_use, ..stats },
            _ => stats,
        }
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<Region, Error> {
        let mut state = self.state();
        state.allocations += 1;
        match self.flaw {
            Flaw::HandsOutDirtyMemory => {
                let region = self.inner.allocate(kind, bytes)?;
                // SAFETY: the region is fresh and has that many bytes; the flaw is only put on devices whose memory the host may write.
                unsafe { std::ptr::write_bytes(region.base(), 0xee, bytes) };
                Ok(region)
            }
            Flaw::ReusesMemoryAsItIs => {
                let fits = |region: &Region| region.kind() == kind && region.bytes() == bytes;
                match state.kept.iter().position(fits) {
                    Some(index) => Ok(state.kept.remove(index)),
                    None => self.inner.allocate(kind, bytes),
                }
            }
            Flaw::HandsOutMemoryInUse => match state.lent.take() {
                Some((base, room)) if bytes <= room && bytes > 0 => {
                    let base = std::ptr::with_exposed_provenance_mut(base);
                    Ok(Region::new(base, bytes, kind, self.id()))
                }
                _ => {
                    let region = self.inner.allocate(kind, bytes + 64)?;
                    state.lent = Some((region.base().expose_provenance(), bytes + 64));
                    Ok(Region::new(region.base(), bytes, kind, self.id()))
                }
            },
            Flaw::MisalignsRegions => {
                let region = self.inner.allocate(kind, bytes + 64)?;
                let aside = if state.allocations.is_multiple_of(3) { 16 } else { 0 };
                Ok(Region::new(region.base().wrapping_add(aside), bytes, kind, self.id()))
            }
            _ => self.inner.allocate(kind, bytes),
        }
    }

    unsafe fn free(&self, region: Region) {
        match self.flaw {
            // A region that was handed out twice, or at a wrong address, is leaked: freeing it would be another flaw.
            Flaw::HandsOutMemoryInUse | Flaw::MisalignsRegions => {}
            Flaw::ReusesMemoryAsItIs => self.state().kept.push(region),
            // SAFETY: this function has the same duties as `Device::free`, so its caller meets them.
            _ => unsafe { self.inner.free(region) },
        }
    }

    fn create_stream(&self) -> Result<Box<dyn Stream>, Error> {
        let aside = self.inner.create_stream()?;
        Ok(Box::new(BrokenStream::new(self.inner.create_stream()?, aside, Arc::clone(&self.inner), self.flaw)))
    }

    fn events(&self) -> &EventPool {
        self.inner.events()
    }

    fn query(&self, event: EventId) -> Result<bool, Error> {
        let passed = self.overlooked(self.inner.query(event), true)?;
        Ok(match self.flaw {
            Flaw::SaysAllHasPassed => true,
            Flaw::SaysNothingHasPassed => false,
            _ => passed,
        })
    }

    fn wait(&self, event: EventId, deadline: Option<Instant>) -> Result<bool, Error> {
        if self.flaw == Flaw::HostWaitsForNothing {
            return self.inner.query(event).map(|_| true);
        }
        self.overlooked(self.inner.wait(event, deadline), true)
    }

    fn take_failures(&self) -> Vec<LateFailure> {
        let found = self.inner.take_failures();
        match self.flaw {
            Flaw::LosesFailures => Vec::new(),
            Flaw::RepeatsFailures => {
                let mut told = std::mem::replace(&mut self.state().failures, found.clone());
                told.extend(found);
                told
            }
            Flaw::TellsFailuresLate => std::mem::replace(&mut self.state().failures, found),
            _ => found,
        }
    }
}
