//! Blocks in a capture: each becomes a conditional node, whose body is captured on a stream of its own.
//!
//! ```text
//! the stream      copy in · … · condition · [node] ················ · … · copy out
//! a body stream                                 └ steps · condition ┘
//! ```
//!
//! A kernel sets the condition of the node, before the node and, in a loop, again at the end of the body ([`condition`](crate::ConditionArguments)).
//!
//! Of a graph with loops, the kernel keeps count of the rounds in a [`LoopRecord`] of the stream: the graph copies it to the device first and back at its end,
//! where the host reads how the loops have ended. So one launch with loops is in flight at a time. The caller ensures that: it waits for the launch before it
//! reads. If it has not read, the next launch waits for the last one itself. A graph without loops has no copies in and out, and its launches may follow each
//! other.
//!
//! Body streams are made outside of captures and used in captures alone, one for each level of nesting, so that nothing ever runs on them.

use streamvm_ep::{BlockStart, Error, LoopEnd, LoopsRun, Operand};

use crate::driver::conditional::{ConditionHandle, Repeats};
use crate::driver::{Driver, DriverFailure, StreamHandle};
use crate::instance::conditions::{ConditionKernel, LoopRecord, NoBlocks};
use crate::plan::condition::{ConditionArguments, LoopState};
use crate::stream::CudaStream;

/// What a stream has for the blocks of its graphs.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// On which bodies are captured: that of an outermost block first.
    streams: Vec<StreamHandle>,
    record: Option<LoopRecord>,
    /// Whether a launch with loops may be in flight, or its state was not read.
    is_launched: bool,
}

/// A capture with blocks.
#[derive(Debug)]
pub(super) struct BlockCapture {
    kernel: ConditionKernel,
    /// Of loops: what keeps count of their rounds.
    loops: Option<CapturedLoops>,
    /// The blocks whose bodies are captured now, the outermost first.
    open: Vec<OpenBlock>,
}

/// The loops of a capture.
#[derive(Copy, Clone, Debug)]
struct CapturedLoops {
    record: LoopRecord,
    /// The rounds that loops of the run have made before.
    rounds: u64,
}

/// A block whose body is captured.
#[derive(Copy, Clone, Debug)]
struct OpenBlock {
    /// Of a loop: sets its condition for the next round.
    again: Option<ConditionArguments>,
    /// Of an `if` with an `else`: the condition of the second body.
    otherwise: Option<ConditionHandle>,
}

impl Blocks {
    /// The body streams.
    pub(super) fn handles(&self) -> impl Iterator<Item = StreamHandle> + '_ {
        self.streams.iter().copied()
    }

    /// Destroys the body streams. The context is current.
    pub(super) fn destroy(&mut self, driver: Driver) {
        for stream in self.streams.drain(..) {
            // SAFETY: the stream was made by this stream, which does not use it any longer.
            let _ = unsafe { driver.destroy_stream(stream) };
        }
    }

    /// The stream on which the body of the block at this depth is captured.
    pub(super) fn body_stream(&self, capture: &BlockCapture) -> Option<StreamHandle> {
        self.streams.get(capture.open.len().checked_sub(1)?).copied()
    }
}

impl CudaStream {
    /// The kernel, the streams and the state of loops for a capture of blocks that are `depth` deep. Some are loops if there are `rounds`, which are those that loops have made before. Makes it at the
    /// first capture, outside of captures: that may wait for the device. If the device has no memory for it, memory whose free was deferred is freed first.
    /// The context is current.
    ///
    /// # Errors
    /// The reason why there is none. If the device is lost by it, the next check of the device says so.
    pub(super) fn prepare_blocks(&mut self, depth: usize, rounds: Option<u64>) -> Result<BlockCapture, NoBlocks> {
        match self.make_blocks(depth, rounds) {
            Err(NoBlocks::NoMemory) if self.frees_deferred() => self.make_blocks(depth, rounds),
            made => made,
        }
    }

    fn make_blocks(&mut self, depth: usize, rounds: Option<u64>) -> Result<BlockCapture, NoBlocks> {
        let device = &self.instance.devices[self.index];
        let driver = self.instance.driver;
        let kernel = device.conditions.kernel(device, driver)?;
        let refused = |failure: DriverFailure| {
            log::debug!("blocks are not captured: {}", device.fail(failure));
            NoBlocks::of(failure)
        };
        while self.blocks.streams.len() < depth {
            self.blocks.streams.push(driver.create_stream(self.priority).map_err(refused)?);
        }
        let mut capture = BlockCapture { kernel, loops: None, open: Vec::new() };
        if let Some(rounds) = rounds {
            let record = match self.blocks.record {
                Some(record) => record,
                None => device.conditions.add_record(driver).map_err(refused)?,
            };
            self.blocks.record = Some(record);
            capture.loops = Some(CapturedLoops { record, rounds });
        }
        Ok(capture)
    }

    /// Frees memory of the device whose free was deferred; `false` if there was none.
    fn frees_deferred(&self) -> bool {
        self.instance.opened(self.index).is_ok_and(|opened| self.device().free_deferred(opened))
    }

    /// Captures the copy of the record to the device, which comes first in a graph with loops.
    pub(super) fn capture_record_in(&self) -> Result<(), Error> {
        self.capture_copy_of_record(|record| (record.on_device, record.host_address()))
    }

    /// Captures the copy of the record to the host, which comes last.
    pub(super) fn capture_record_out(&self) -> Result<(), Error> {
        self.capture_copy_of_record(|record| (record.host_address(), record.on_device))
    }

    fn capture_copy_of_record(&self, sides: impl Fn(&LoopRecord) -> (u64, u64)) -> Result<(), Error> {
        let blocks = self.capture.as_ref().and_then(|capture| capture.blocks.as_ref());
        let Some(CapturedLoops { record, .. }) = blocks.and_then(|blocks| blocks.loops) else { return Ok(()) };
        let (to, from) = sides(&record);
        // SAFETY: both live as long as the instance and have these bytes, and are used by one launch at a time. The stream is alive.
        self.submit("state of loops", |driver, _, stream| unsafe { driver.copy(to, from, LoopRecord::BYTES, stream) })
    }

    /// Prepares a launch of a graph with loops: they begin with these rounds. Waits for the last such launch if nobody has read how it ended.
    pub(super) fn begin_loops(&mut self, rounds: u64) -> Result<(), Error> {
        if std::mem::replace(&mut self.blocks.is_launched, true) {
            // SAFETY: the stream is alive.
            self.submit("synchronize", |driver, _, stream| unsafe { driver.synchronize_stream(stream) })?;
        }
        if let Some(record) = &self.blocks.record {
            record.begin(rounds);
        }
        Ok(())
    }

    /// [`Graphs::loops_run`](streamvm_ep::Graphs::loops_run).
    pub(super) fn read_loops(&mut self) -> LoopsRun {
        self.blocks.is_launched = false;
        let state = self.blocks.record.map_or_else(LoopState::default, |record| record.read());
        let end = match state.ended {
            LoopState::MOST_ROUNDS => Some(LoopEnd::MostRounds { step: state.step }),
            LoopState::STOPPED => Some(LoopEnd::Stopped { step: state.step }),
            _ => None,
        };
        LoopsRun { rounds: state.rounds, end }
    }

    /// [`Graphs::begin_block`](streamvm_ep::Graphs::begin_block).
    pub(super) fn open_block(&mut self, start: BlockStart, condition: &Operand) -> Result<(), Error> {
        if self.leaves_out(&[condition]) {
            return Ok(());
        }
        self.check_reach(condition)?;
        let Some((capture, body_stream)) = self.next_block() else { return Ok(()) };
        let (kernel, loops) = (capture.kernel, capture.loops);
        if loops.is_none() && matches!(start, BlockStart::While { .. }) {
            // No loop was announced, so nothing counts its rounds.
            self.fail_capture();
            return Ok(());
        }
        let (test, most_rounds, step, has_else) = match start {
            BlockStart::If { has_else } => (ConditionArguments::IF, 0, 0, has_else),
            BlockStart::While { most_rounds, step } => (ConditionArguments::WHILE, most_rounds, step, false),
        };
        let condition = self.instance.address_map.kernel_address(condition.ptr().addr()) as u64;
        let (state, stop) = (loops.map_or(0, |loops| loops.record.on_device), kernel.stop);
        let arguments = |handle: ConditionHandle, test: u32| {
            let handle = handle.number();
            ConditionArguments { handle, condition, state, stop, most_rounds, step, test }
        };
        let mut open = OpenBlock { again: None, otherwise: None };
        self.submit("condition of a block", |driver, opened, stream| {
            let context = opened.context.handle;
            // Both branches are decided before one of them runs, because it may change the condition.
            let set = |test| {
                // SAFETY: the stream captures in this context.
                let handle = unsafe { kernel.driver.create_handle(stream, context) }?;
                // SAFETY: the condition is an operand whose maker guarantees its memory, and the record lives as long as the instance. The handle was
                // made for the graph of this stream's capture.
                unsafe { kernel.launch(driver, stream, arguments(handle, test)) }.map(|()| handle)
            };
            let handle = set(test)?;
            let repeats = if test == ConditionArguments::WHILE { Repeats::WhileTrue } else { Repeats::Once };
            open.again = (repeats == Repeats::WhileTrue).then(|| arguments(handle, test));
            open.otherwise = if has_else { Some(set(ConditionArguments::ELSE)?) } else { None };
            // SAFETY: the stream captures in this context, and the handle was made for its graph just now.
            let body = unsafe { kernel.driver.add_conditional(stream, context, handle, repeats) }?;
            // SAFETY: the body stream is alive and captures nothing, and the body belongs to the graph that is captured.
            unsafe { kernel.driver.begin_capture_to(body_stream, body) }
        })?;
        self.push_block(open);
        Ok(())
    }

    /// [`Graphs::begin_else`](streamvm_ep::Graphs::begin_else).
    pub(super) fn open_else(&mut self) -> Result<(), Error> {
        let Some((open, kernel)) = self.pop_block()? else { return Ok(()) };
        let (Some(otherwise), Some((_, body_stream))) = (open.otherwise, self.next_block()) else {
            self.fail_capture();
            return Ok(());
        };
        self.submit("else of a block", |_, opened, stream| {
            // SAFETY: the stream captures in this context, and the handle was made for its graph where the block began.
            let body =
                unsafe { kernel.driver.add_conditional(stream, opened.context.handle, otherwise, Repeats::Once) }?;
            // SAFETY: as in `open_block`.
            unsafe { kernel.driver.begin_capture_to(body_stream, body) }
        })?;
        self.push_block(OpenBlock { again: None, otherwise: None });
        Ok(())
    }

    /// [`Graphs::end_block`](streamvm_ep::Graphs::end_block).
    pub(super) fn close_block(&mut self) -> Result<(), Error> {
        self.pop_block().map(drop)
    }

    /// Ends the captures of bodies that were left open: the capture gives no graph.
    pub(super) fn leave_blocks(&mut self) {
        let driver = self.instance.driver;
        while let Some(capture) = self.capture.as_mut().and_then(|capture| capture.blocks.as_mut())
            && let Some(stream) = self.blocks.body_stream(capture)
        {
            capture.open.pop();
            // SAFETY: the stream is alive; this thread has begun the capture. The body goes with its graph.
            let _ = unsafe { driver.end_capture(stream) };
            self.fail_capture();
        }
    }

    /// Lets cuBLAS queue products on the stream whose commands are captured now, or on this stream.
    pub(super) fn point_blas(&mut self) {
        let stream = self.current_handle();
        let Some(blas) = &mut self.blas else { return };
        // SAFETY: body streams live as long as this stream, whose cuBLAS is dropped before them.
        if let Err(why) = unsafe { blas.use_stream(stream) } {
            why.log();
            // A product on a wrong stream would be no part of the capture. Graphs have the address of the memory of cuBLAS, so it lives as long as they.
            if self.capture.is_some() { self.fail_capture() } else { self.retired_blas = self.blas.take() }
        }
    }

    /// The capture with blocks, and the stream for the body of the next block in it. Without them, the capture gives no graph.
    fn next_block(&mut self) -> Option<(&BlockCapture, StreamHandle)> {
        let capture = self.capture.as_mut()?;
        let of_blocks = capture.blocks.as_ref().filter(|_| !capture.failed);
        let stream = of_blocks.and_then(|of_blocks| self.blocks.streams.get(of_blocks.open.len()));
        let found = of_blocks.zip(stream.copied());
        if found.is_none() {
            capture.failed = true;
        }
        found
    }

    /// Begins a block whose body the next commands are.
    fn push_block(&mut self, open: OpenBlock) {
        if let Some(capture) = self.capture.as_mut().and_then(|capture| capture.blocks.as_mut()) {
            capture.open.push(open);
        }
        self.point_blas();
    }

    /// Ends the body of the innermost block. `None` if there is none, or if the capture gives no graph. A body in which nothing was captured, such as one
    /// whose commands have no elements, gives no graph: what a driver makes of an empty body is not documented.
    fn pop_block(&mut self) -> Result<Option<(OpenBlock, ConditionKernel)>, Error> {
        let Some(capture) = self.capture.as_ref().filter(|capture| !capture.failed) else { return Ok(None) };
        let Some(capture) = &capture.blocks else { return Ok(None) };
        let Some(&open) = capture.open.last() else { return Ok(None) };
        let (kernel, mut is_empty) = (capture.kernel, false);
        self.submit("end of a block", |driver, _, stream| {
            match open.again {
                // SAFETY: as in `open_block`: the body belongs to the graph that the handle was made for.
                Some(again) => unsafe { kernel.launch(driver, stream, again) }?,
                // SAFETY: the stream is alive and captures.
                None => is_empty = !unsafe { kernel.driver.has_captured(stream) }?,
            }
            // SAFETY: the stream is alive; this thread has begun the capture. The body goes with its graph.
            unsafe { driver.end_capture(stream) }.map(drop)
        })?;
        if let Some(capture) = &mut self.capture {
            // Kernels that are not loaded yet, or have no scratch memory, are left out; a later capture has them.
            capture.failed |= is_empty && !capture.lacks_commands();
            if let Some(blocks) = &mut capture.blocks {
                blocks.open.pop();
            }
        }
        self.point_blas();
        Ok(Some((open, kernel)))
    }

    /// Makes the capture give no graph.
    fn fail_capture(&mut self) {
        if let Some(capture) = &mut self.capture {
            capture.failed = true;
        }
    }
}

impl BlockCapture {
    /// The rounds that loops of the run have made before, if there are loops.
    pub(super) fn rounds(&self) -> Option<u64> {
        self.loops.map(|loops| loops.rounds)
    }
}
