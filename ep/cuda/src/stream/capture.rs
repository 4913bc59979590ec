//! Captures of a stream, and launches of its graphs: the driver calls behind [`Graphs::begin_graph`](streamvm_ep::Graphs::begin_graph) and
//! [`Graphs::end_graph`](streamvm_ep::Graphs::end_graph). Which commands are captured is decided in `graphs.rs`; blocks in a capture are in `blocks.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use streamvm_ep::{Error, GraphBlocks, GraphKey, GraphOwner, GraphStart, Operand};

use crate::driver::error_codes::{OUT_OF_MEMORY, ends_device};
use crate::driver::nvtx;
use crate::driver::{Driver, DriverFailure, GraphHandle};
use crate::instance::conditions::NoBlocks;
use crate::instance::loaded_kernels::LoadError;
use crate::plan::kernel_name::KernelName;
use crate::stream::CudaStream;
use crate::stream::blocks::BlockCapture;
use crate::stream::graphs::{Buffer, CapturedProducts, Found, Graph, GraphHandles, RunBuffers};

/// A capture that goes on.
#[derive(Debug)]
pub(super) struct Capture {
    /// The owner of the graph that the capture makes, and the number of the first captured command.
    pub(super) owner: GraphOwner,
    pub(super) first: usize,
    /// The memory that captured commands may access.
    pub(super) buffers: RunBuffers,
    pub(super) products: CapturedProducts,
    /// The blocks of the commands, if they have some.
    pub(super) blocks: Option<BlockCapture>,
    /// Whether a command could not be captured.
    pub(super) failed: bool,
    /// Kernels that are not loaded yet, such as those of a branch that no run has taken. They are loaded after this capture, and a later one has them.
    pub(super) unloaded: Vec<KernelName>,
    /// Lanes of reductions that have no scratch memory yet. It is allocated after this capture, and a later one has it.
    pub(super) without_scratch: Vec<usize>,
}

impl Capture {
    /// Whether commands are missing that a later capture will have.
    pub(super) fn lacks_commands(&self) -> bool {
        !(self.unloaded.is_empty() && self.without_scratch.is_empty())
    }
}

impl CudaStream {
    /// [`Graphs::begin_graph`](streamvm_ep::Graphs::begin_graph), or, with `blocks`, [`Graphs::begin_block_graph`](streamvm_ep::Graphs::begin_block_graph). Captures nothing
    /// under `sync_each_op`, which waits for each command.
    pub(super) fn start_graph(
        &mut self,
        key: GraphKey<'_>,
        buffers: &[Operand],
        blocks: Option<GraphBlocks>,
    ) -> Result<GraphStart, Error> {
        self.device().check()?;
        self.leave_lanes_and_capture()?;
        // Kernels access write-combined memory at addresses of its own, by which a graph would not be found.
        let moved = |buffer: &Operand| {
            let address = buffer.ptr().addr();
            self.instance.address_map.kernel_address(address) != address
        };
        if self.instance.config.sync_each_op || buffers.iter().any(moved) {
            return Ok(GraphStart::Queue);
        }
        let buffers: RunBuffers = buffers.iter().map(Buffer::of).collect();
        match self.graphs.find(key, &buffers) {
            Found::Queue => Ok(GraphStart::Queue),
            Found::Graph(graph) => match self.launch_graph(graph, blocks.and_then(|blocks| blocks.rounds))? {
                Ok(()) => Ok(GraphStart::Launched),
                Err(failure) => self.refuse_graph(key, failure).map(|()| GraphStart::Queue),
            },
            Found::Capture => {
                let instance = Arc::clone(&self.instance);
                let _current = instance.devices[self.index].enter(instance.opened(self.index)?)?;
                let blocks = match blocks {
                    None => None,
                    Some(GraphBlocks { depth, rounds }) => match self.prepare_blocks(depth, rounds) {
                        Ok(made) => Some(made),
                        Err(why) => {
                            match why {
                                NoBlocks::NoMemory => self.graphs.put_off(key),
                                NoBlocks::Refused => self.graphs.refuse(key),
                            }
                            return self.device().check().map(|()| GraphStart::Queue);
                        }
                    },
                };
                let has_blocks = blocks.is_some();
                // SAFETY: the stream is alive.
                match unsafe { self.instance.driver.begin_capture(self.handle) } {
                    Ok(()) => {
                        let GraphKey { owner, first } = key;
                        self.capture = Some(Capture {
                            owner: owner.clone(),
                            first,
                            buffers,
                            products: CapturedProducts::default(),
                            blocks,
                            failed: false,
                            unloaded: Vec::new(),
                            without_scratch: Vec::new(),
                        });
                        if has_blocks && let Err(error) = self.capture_record_in() {
                            self.finish_graph(false)?;
                            log::debug!("blocks are not captured: {error}");
                            return Ok(GraphStart::Queue);
                        }
                        Ok(GraphStart::Capturing)
                    }
                    Err(failure) => self.refuse_graph(key, failure).map(|()| GraphStart::Queue),
                }
            }
        }
    }

    /// [`Graphs::end_graph`](streamvm_ep::Graphs::end_graph).
    pub(super) fn finish_graph(&mut self, whole: bool) -> Result<bool, Error> {
        self.join()?;
        if self.capture.is_none() {
            return Ok(false);
        }
        let instance = Arc::clone(&self.instance);
        let driver = instance.driver;
        let _current = instance.devices[self.index].enter(instance.opened(self.index)?)?;
        self.leave_blocks();
        let has_blocks = self.capture.as_ref().is_some_and(|capture| capture.blocks.is_some());
        let whole = whole && (!has_blocks || self.capture_record_out().is_ok());
        let Some(capture) = self.capture.take() else { return Ok(false) };
        let lacks_commands = capture.lacks_commands();
        let Capture { owner, first, products, blocks, failed, unloaded, without_scratch, .. } = capture;
        let key = GraphKey { owner: &owner, first };
        let ended = self.end_capture()?;
        if has_blocks {
            self.point_blas();
        }
        let graph = match ended {
            Ok(graph) => graph,
            Err(failure) => return self.refuse_graph(key, failure).map(|()| false),
        };
        let made = if whole && !failed && lacks_commands {
            match self.load_missing(&unloaded, &without_scratch)? {
                Ok(()) => {}
                Err(refused) if refused.failure.code() == OUT_OF_MEMORY => {
                    log::debug!("commands are captured later: {}", refused.text);
                    self.graphs.put_off(key);
                }
                Err(refused) => self.give_up_graph(key, &format!("the driver refuses a command: {}", refused.text)),
            }
            None
        } else if whole && !failed {
            let mut spare = self.graphs.take_spare(key);
            if has_blocks && let Some(spare) = spare.take() {
                // Its kernels would set conditions of the new graph, and nothing says what an update makes of that.
                self.graphs.discard(spare);
            }
            let source = has_blocks.then_some(graph);
            Some(self.instantiate(graph, spare).map(|handles| GraphHandles { source, ..handles }))
        } else {
            self.give_up_graph(key, "a command cannot be captured");
            None
        };
        let is_kept = matches!(&made, Some(Ok(handles)) if handles.source.is_some());
        if !is_kept {
            // SAFETY: the graph was made by this capture, and the instantiated graph does not need it.
            let _ = unsafe { driver.destroy_graph(graph) };
        }
        let launched = match made {
            None => Ok(false),
            Some(Ok(handle)) => {
                let graph = Graph { handle, products };
                self.graphs.keep(key, graph);
                match self.launch_graph(graph, blocks.as_ref().and_then(BlockCapture::rounds))? {
                    Ok(()) => Ok(true),
                    Err(failure) => self.refuse_graph(key, failure).map(|()| false),
                }
            }
            Some(Err(failure)) => self.refuse_graph(key, failure).map(|()| false),
        };
        self.destroy_unused_graphs();
        launched
    }

    /// Whether a command over these operands must be left out, because commands are captured and this one cannot be: a graph may access
    /// the announced buffers only, and the capture then gives no graph.
    pub(super) fn leaves_out(&mut self, operands: &[&Operand]) -> bool {
        let Some(capture) = &mut self.capture else { return false };
        let covered = |operand: &&Operand| capture.buffers.iter().any(|buffer| buffer.covers(operand));
        capture.failed |= !operands.iter().all(covered);
        capture.failed
    }

    /// Launches a graph of this stream, as one command. `rounds`: the rounds that loops have made before, for a graph with loops.
    fn launch_graph(&mut self, graph: Graph, rounds: Option<u64>) -> Result<Result<(), DriverFailure>, Error> {
        if let Some(rounds) = rounds {
            self.begin_loops(rounds)?;
        }
        let device = self.device();
        let opened = self.instance.opened(self.index)?;
        let _current = device.enter(opened)?;
        let _range = nvtx::range("a graph of a program");
        let begun = self.begin_time();
        // SAFETY: the graph belongs to this stream, which one thread uses at a time, and was captured in this context. Its commands access
        // the buffers that it was captured over, in the way in which these were declared. They were announced again at the same
        // addresses, so their makers guarantee their memory. Kernels stay loaded as long as the instance.
        let launched = unsafe { self.instance.driver.launch_graph(graph.handle.exec, self.handle) };
        self.end_time(begun, launched.is_ok());
        if launched.is_ok() {
            device.products.cublas.fetch_add(graph.products.cublas, Ordering::Relaxed);
            device.products.own.fetch_add(graph.products.own, Ordering::Relaxed);
        }
        Ok(launched)
    }

    /// Ends the capture of the stream, whose context is current. The inner error says why there is no graph; the stream captures nothing
    /// any longer.
    ///
    /// # Errors
    /// The device is lost, because the stream still captures: commands would not run.
    fn end_capture(&self) -> Result<Result<GraphHandle, DriverFailure>, Error> {
        let driver = self.instance.driver;
        // SAFETY: the stream is alive; this thread has begun the capture, because `begin_graph` requires calls from one thread.
        let ended = unsafe { driver.end_capture(self.handle) };
        let Err(failure) = ended else { return Ok(ended) };
        if ends_device(failure.code()) {
            return Err(self.device().fail(failure));
        }
        // SAFETY: the stream, its side streams and its body streams are alive.
        let is_capturing = |stream| unsafe { driver.is_capturing(stream) } != Ok(false);
        if is_capturing(self.handle) {
            // SAFETY: as above.
            if let Ok(graph) = unsafe { driver.end_capture(self.handle) } {
                // SAFETY: the graph was made just now, and nothing uses it.
                let _ = unsafe { driver.destroy_graph(graph) };
            }
        }
        if is_capturing(self.handle) || self.lanes.handles().chain(self.blocks.handles()).any(is_capturing) {
            let text =
                format!("{} gave code {}, and a stream captures commands for ever", failure.call, failure.code());
            return Err(self.device().mark_lost(text));
        }
        Ok(Err(failure))
    }

    /// Loads kernels and allocates scratch memory that a capture has missed. The inner error is that of what the driver refuses, which the next command that
    /// needs it will report. The context is current.
    #[cold]
    fn load_missing(
        &mut self,
        kernels: &[KernelName],
        without_scratch: &[usize],
    ) -> Result<Result<(), LoadError>, Error> {
        let instance = Arc::clone(&self.instance);
        let opened = instance.opened(self.index)?;
        let loaded = kernels.iter().try_for_each(|kernel| self.load_now(opened, *kernel).map(drop));
        Ok(loaded.and_then(|()| without_scratch.iter().try_for_each(|lane| self.make_scratch(opened, *lane).map(drop))))
    }

    /// An instantiated graph of captured commands: `spare` with other parameters, if it has the same commands, or a new one. The context
    /// is current.
    fn instantiate(&mut self, graph: GraphHandle, spare: Option<GraphHandles>) -> Result<GraphHandles, DriverFailure> {
        let driver = self.instance.driver;
        if let Some(spare) = spare {
            // SAFETY: the stream, which one thread uses at a time, owns both. Launches before this one keep their parameters.
            match unsafe { driver.update(spare.exec, graph) } {
                Ok(()) => return Ok(spare),
                Err(failure) => {
                    log::debug!("a new graph is made: {} gave code {}", failure.call, failure.code());
                    self.graphs.discard(spare);
                }
            }
        }
        // SAFETY: this thread alone uses the graph.
        let exec = unsafe { driver.instantiate(graph) }?;
        Ok(GraphHandles { exec, source: None })
    }

    /// Ends lanes and a capture that their caller has left open, because it panicked: later commands must run, after those of the lanes.
    #[inline]
    pub(super) fn leave_lanes_and_capture(&mut self) -> Result<(), Error> {
        self.join()?;
        if self.capture.is_some() { self.finish_graph(false).map(drop) } else { Ok(()) }
    }

    /// Gives up graphs of these commands, because the driver has refused one.
    ///
    /// # Errors
    /// The device is lost.
    #[cold]
    fn refuse_graph(&mut self, key: GraphKey<'_>, failure: DriverFailure) -> Result<(), Error> {
        if ends_device(failure.code()) {
            return Err(self.device().fail(failure));
        }
        self.give_up_graph(key, &format!("{} gave code {}", failure.call, failure.code()));
        Ok(())
    }

    /// Queues these commands one by one from now on. The warning comes once for each device.
    #[cold]
    fn give_up_graph(&mut self, key: GraphKey<'_>, why: &str) {
        self.graphs.refuse(key);
        let device = self.device();
        let what = self.instruction("a graph");
        let level =
            if device.warned_of_graphs.swap(true, Ordering::Relaxed) { log::Level::Debug } else { log::Level::Warn };
        log::log!(level, "{} runs commands without a CUDA graph, one call each: {why} (in {what})", device.id);
    }

    /// Destroys the graphs that are not needed any longer. The context is current, and the stream captures nothing.
    pub(super) fn destroy_unused_graphs(&mut self) {
        let unused = self.graphs.take_unused();
        // SAFETY: the stream has owned the graphs and does not know them any longer.
        unsafe { self.destroy_each(unused) };
    }

    /// Destroys all graphs. The context is current, and the stream captures nothing.
    pub(super) fn destroy_graphs(&mut self) {
        let all = self.graphs.take_all();
        // SAFETY: as above.
        unsafe { self.destroy_each(all) };
    }

    /// Destroys graphs. Launches that are queued or running still complete; those of graphs with blocks are waited for first, because nothing says that a launch
    /// can set its conditions without the graph that they belong to. If that wait fails, these graphs stay.
    ///
    /// # Safety
    /// * The handles are alive, of this stream and not used any longer; their context is current, and the stream captures nothing.
    unsafe fn destroy_each(&self, graphs: Vec<GraphHandles>) {
        let driver = self.instance.driver;
        let has_blocks = graphs.iter().any(|graph| graph.source.is_some());
        // SAFETY: the stream is alive.
        let have_passed = !has_blocks || unsafe { driver.synchronize_stream(self.handle) }.is_ok();
        for graph in graphs.into_iter().filter(|graph| graph.source.is_none() || have_passed) {
            // SAFETY: as the caller promises.
            unsafe { destroy(driver, graph) };
        }
    }
}

/// Destroys a graph; launches that are queued or running still complete, if it has no blocks.
///
/// # Safety
/// * Its handles are alive and not used any longer, and their context is current. If it has blocks, its launches have passed.
unsafe fn destroy(driver: Driver, GraphHandles { exec, source }: GraphHandles) {
    // SAFETY: as the caller promises.
    let _ = unsafe { driver.destroy_exec(exec) };
    if let Some(source) = source {
        // SAFETY: as above.
        let _ = unsafe { driver.destroy_graph(source) };
    }
}
