//! Scratch memory for reductions in two launches ([`Launch::in_parts`](crate::Launch::in_parts)).
//!
//! The stream has [`SCRATCH_BYTES`] of device memory for its own commands, and each of its side streams has as many. The first reduction there that needs it
//! allocates it; the stream frees it when it is dropped.
//!
//! Why no two reductions use the same bytes at a time:
//!
//! * Commands of one of the driver's streams run one after the other, whether they are queued one by one or launched as a graph.
//! * Branches of a graph are lanes, which are captured on the stream and on its side streams, so each has scratch memory of its own.
//! * Bodies of conditional nodes are captured on body streams, which run nothing and have none: they take that of the stream. A graph with such nodes has no lanes, so a
//!   body runs alone, after what comes before its node and before what comes after it.
//! * A graph is launched on the stream that has captured it, and no two streams share one. An update gives a graph the same scratch memory again.
//!
//! In a capture nothing may be allocated. A reduction that has no scratch memory there is left out; the memory is allocated after the capture, and a later
//! capture has it. So it is with kernels that are not loaded yet. `CommandSequence::on_lanes` refuses lanes in sequences with blocks.
//!
//! If the device lacks memory, memory whose free was deferred is freed first. If it still lacks memory, the reduction fails. One launch could compute it without
//! scratch memory, but adds in another order: a result would then depend on how full the device is. The bytes do not count for the memory limit, as those of cuBLAS
//! and of kernels do not.

use std::sync::Arc;

use streamvm_ep::{Error, MemoryKind};

use crate::driver::DriverFailure;
use crate::driver::error_codes::OUT_OF_MEMORY;
use crate::instance::Opened;
use crate::instance::loaded_kernels::LoadError;
use crate::plan::parts::SCRATCH_BYTES;
use crate::stream::CudaStream;

/// The address of scratch memory.
#[derive(Copy, Clone, Debug)]
pub(super) struct Scratch(u64);

/// The advice in the error for scratch memory that does not fit into the device.
const NO_ROOM: &str = "a reduction of many elements needs scratch memory of the device the first time that a stream runs one: set CudaConfig::memory_limit below what \
                       the device has, or run each program once before its data fills the device";

impl CudaStream {
    /// The scratch memory for the next command, which is allocated for the first one. `None`: a capture is under way, in which nothing may be allocated; it
    /// gives no graph, and its commands run one by one.
    #[inline]
    pub(super) fn scratch(&mut self) -> Result<Option<u64>, Error> {
        let lane = self.lanes.current();
        match self.lanes.scratch(lane, self.scratch) {
            Some(Scratch(address)) => Ok(Some(address)),
            None => self.first_scratch(lane),
        }
    }

    #[cold]
    fn first_scratch(&mut self, lane: usize) -> Result<Option<u64>, Error> {
        if let Some(capture) = &mut self.capture {
            capture.without_scratch.push(lane);
            return Ok(None);
        }
        let instance = Arc::clone(&self.instance);
        let (device, opened) = (&instance.devices[self.index], instance.opened(self.index)?);
        let _current = device.enter(opened)?;
        let Scratch(address) = self.make_scratch(opened, lane).map_err(|refused| device.refused(refused))?;
        Ok(Some(address))
    }

    /// Allocates the scratch memory of a lane, unless it has some. The context is current, and the stream captures nothing.
    #[cold]
    pub(super) fn make_scratch(&mut self, opened: &Opened, lane: usize) -> Result<Scratch, LoadError> {
        if let Some(known) = self.lanes.scratch(lane, self.scratch) {
            return Ok(known);
        }
        let allocate = || self.instance.driver.allocate(SCRATCH_BYTES);
        let allocated = allocate().or_else(|failure| match failure.code() {
            OUT_OF_MEMORY if self.device().free_deferred(opened) => allocate(),
            _ => Err(failure),
        });
        let refused = |failure: DriverFailure| {
            let text = if failure.code() == OUT_OF_MEMORY { NO_ROOM } else { "scratch memory of a reduction" };
            LoadError { failure, text: String::from(text) }
        };
        let made = Scratch(allocated.map_err(refused)?);
        let place = match lane.checked_sub(1) {
            None => Some(&mut self.scratch),
            Some(side) => self.lanes.scratch_of_sides().nth(side),
        };
        if let Some(place) = place {
            *place = Some(made);
        }
        Ok(made)
    }

    /// Gives back the scratch memory of the stream and of its side streams, once their commands have passed; a thread that does not launch frees it. The context is
    /// current, lanes are joined, and the stream captures nothing. If the device is lost or cannot tell what has passed, the memory stays until its context ends: a device
    /// is lost where lanes could not be joined.
    pub(super) fn free_scratch(&mut self) {
        let driver = self.instance.driver;
        let mut all: Vec<Scratch> = self.scratch.take().into_iter().collect();
        all.extend(self.lanes.scratch_of_sides().filter_map(Option::take));
        // SAFETY: the stream is alive.
        if all.is_empty() || self.device().is_lost() || unsafe { driver.synchronize_stream(self.handle) }.is_err() {
            return;
        }
        let Ok(opened) = self.instance.opened(self.index) else { return };
        for Scratch(address) in all {
            // The commands of the stream have passed, and so have those of side streams, which were joined. It counts for no limit.
            self.device().free_or_defer(opened, address as usize, None, MemoryKind::Device);
        }
    }
}
