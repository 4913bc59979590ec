//! Reductions in two launches of one kernel, for few outputs with many elements each, where one launch would leave most of the device idle.
//!
//! ```text
//! fold   input ──> states   parts × outputs teams, each of which folds one part of the elements of one output
//! join   states ──> output  one team for each output, with a state for each lane
//! ```
//!
//! The states are in scratch memory, which the stream has. Parts, lanes and the order of joining follow from the shapes and strides alone, so a result has the same bits each time
//! and on each device. No two threads write one address, so nothing is atomic.

use streamvm_ep::MAX_RANK;

use crate::plan::abi::{Arguments, View};
use crate::plan::reduce::{DEVICE_THREADS, LARGEST_BLOCK, WARP, shared_state};
use crate::plan::reduction_state::ReductionState;
use crate::plan::{BLOCK, Launch, launch};

/// From this many elements for each thread on, a second launch pays. On an H200, one block of 1024 threads that loaded one element after the other summed
/// 67,108,864 f32 in 25.5 ms: 0.39 µs for each element of a thread, the latency of memory. A thread has up to four loads under way, so 64 elements take at
/// least 6 µs. A launch takes 4.4 µs there, and 1.3 µs in a graph. The bound itself has not been measured on a GPU.
const ELEMENTS_OF_A_THREAD: usize = 64;
/// The fewest elements for each thread of a fold: as many loads as the kernel's loop is unrolled to.
const ELEMENTS_OF_A_FOLDING_THREAD: usize = 4;

/// The bytes of scratch memory. At most 256 blocks of the largest size fold at once, each for at most the 32 outputs whose elements lie side by side, and the
/// largest state has 24 bytes.
pub const SCRATCH_BYTES: usize = DEVICE_THREADS / LARGEST_BLOCK * WARP * 24;

impl Launch {
    /// Into how many parts a reduction is divided: so many that all threads of a large device fold, and each of them at least four elements. 1 if it is launched as it
    /// is, as all other launches are.
    pub fn parts(&self) -> u32 {
        let Arguments { elements: outputs, inner_elements, lanes, .. } = self.arguments;
        let of_a_thread = inner_elements.checked_div(lanes.into()).unwrap_or(0) as usize;
        if of_a_thread < ELEMENTS_OF_A_THREAD {
            return 1;
        }
        let Some(state) = ReductionState::of(self.kernel) else { return 1 };
        let idle = DEVICE_THREADS.checked_div(self.grid[0] as usize * self.block[0] as usize).unwrap_or(0);
        let parts = idle.min(of_a_thread / ELEMENTS_OF_A_FOLDING_THREAD);
        // `Team` never leads to more parts than the two bounds below, which keep accesses to scratch memory within it all the same.
        let states = SCRATCH_BYTES / (outputs as usize).saturating_mul(state.bytes()).max(1);
        parts.min(LARGEST_BLOCK).min(states).max(1) as u32
    }

    /// The two launches in the place of this one, a reduction, which is divided into at most so many parts; at most 1024. `scratch` is memory of the device for
    /// their states: [`SCRATCH_BYTES`] are enough for [`parts`](Launch::parts), aligned to 8. Beside that memory they read and write what this launch does. The second one comes after the first one, and what else
    /// uses the scratch memory comes before the first one or after the second one.
    pub fn in_parts(&self, parts: u32, scratch: u64) -> [Launch; 2] {
        let Arguments { elements: outputs, inner_elements, .. } = self.arguments;
        let of_a_part = inner_elements.div_ceil(parts.max(1).into()).max(1);
        // Rounding up may leave fewer parts; none is empty.
        let parts = inner_elements.div_ceil(of_a_part).max(1);
        let (value, counter) = (of_a_part, parts);
        let states = View { base: scratch, strides: [0; MAX_RANK] };
        let mut fold = *self;
        fold.arguments = Arguments { before: Arguments::FOLD, value, counter, ..self.arguments };
        fold.arguments.views[1] = states;
        fold.grid[1] = parts as u32;
        let lanes = parts.next_power_of_two() as usize;
        let block = lanes.max(BLOCK as usize);
        let mut arguments = Arguments { before: Arguments::JOIN, lanes: lanes as u32, across: 0, ..fold.arguments };
        arguments.views = self.arguments.views;
        arguments.views[0] = states;
        let blocks = (outputs as usize).div_ceil(block / lanes);
        let join = launch(self.kernel, blocks, block as u32, (block * shared_state(self.kernel)) as u32, arguments);
        [fold, join]
    }
}

#[cfg(test)]
#[path = "parts_tests.rs"]
mod tests;
