//! Graphs: commands that were captured, and launched any number of times.
//!
//! A node has the arguments of the call that captured it, by value: handles and addresses. They are looked up when the graph is launched,
//! so a graph does not keep memory or kernels alive, and a launch that would access memory freed since the capture is found.
//!
//! Several streams may have captured a graph together ([`capture`](crate::capture)). The nodes of the stream that began the capture run as ordinary
//! commands of the stream on which the graph is launched. Those of each other stream run on a stream of the graph's own, behind and before what the
//! captured waits say, and at any time that these allow. So nodes without order between them run side by side, and race if they must not.

use std::ffi::c_uint;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use streamvm_ep::cuda::FusedArguments;
use streamvm_ep::cuda::abi::Arguments;

use crate::api::copy::Side;
use crate::api::{copy, launch, set, stream};
use crate::code::{Code, Outcome};
use crate::command::{Command, Job, Pattern, Work};
use crate::context::Context;
use crate::driver::Driver;
use crate::event::Mark;
use crate::faults::KernelFate;
use crate::kernel::{Decoded, Kernel};
use crate::stream::Stream;

/// The parameter of one of streamvm's kernels.
#[derive(Clone, Debug)]
pub(crate) enum Parameter {
    Ours(Box<Arguments>),
    Fused(Box<FusedArguments>),
}

/// A command, as a call passed it.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    /// `cuLaunchKernel` of the function with this handle; a kernel without work has no parameter.
    Kernel { function: usize, kernel: Kernel, parameter: Option<Parameter> },
    /// A product of cuBLAS.
    Product { decoded: Decoded },
    /// A copy.
    Copy { call: &'static str, target: Side, source: Side, bytes: usize },
    /// A fill of `count` elements.
    Fill { call: &'static str, target: usize, pattern: Pattern, count: usize },
}

impl Node {
    /// Queues the command.
    pub(crate) fn queue(&self, driver: &Driver, stream: &Arc<Stream>) -> Outcome {
        match self {
            Node::Kernel { function, kernel, parameter } => {
                launch::queue_kernel(driver, stream, *function, kernel, parameter.as_ref())
            }
            Node::Product { decoded } => {
                launch::queue_decoded(driver, stream, "cublasGemmStridedBatchedEx", decoded.clone());
                Ok(())
            }
            Node::Copy { call, target, source, bytes } => {
                copy::queue_copy(driver, stream, call, (*target, *source), *bytes)
            }
            Node::Fill { call, target, pattern, count } => {
                set::queue_fill(driver, stream, call, (*target, *count), *pattern)
            }
        }
    }

    /// Whether an instantiated graph with `self` in it may get the parameters of `other` instead.
    fn may_become(&self, other: &Node, driver: &Driver) -> Result<(), UpdateRefusal> {
        match (self, other) {
            (Node::Kernel { .. } | Node::Product { .. }, Node::Kernel { .. } | Node::Product { .. })
            | (Node::Fill { .. }, Node::Fill { .. }) => Ok(()),
            (Node::Copy { target, source, .. }, Node::Copy { target: new_target, source: new_source, .. }) => {
                let same = |one: &Side, other: &Side| one.home(driver) == other.home(driver);
                let fits = same(target, new_target) && same(source, new_source);
                if fits { Ok(()) } else { Err(UpdateRefusal::Parameters) }
            }
            _ => Err(UpdateRefusal::NodeType),
        }
    }
}

/// What a stream has captured.
#[derive(Clone, Debug)]
pub(crate) enum Captured {
    /// A command.
    Command { lane: usize, node: Node },
    /// A record of an event. Records have numbers from 0, in the order of the capture.
    Record { lane: usize },
    /// A wait for the record of this number.
    Wait { lane: usize, record: usize },
}

impl Captured {
    fn lane(&self) -> usize {
        match self {
            Captured::Command { lane, .. } | Captured::Record { lane } | Captured::Wait { lane, .. } => *lane,
        }
    }

    /// Whether an instantiated graph with `self` in it may get the parameters of `other` instead.
    fn may_become(&self, other: &Captured, driver: &Driver) -> Result<(), UpdateRefusal> {
        match (self, other) {
            (Captured::Command { lane, node }, Captured::Command { lane: other_lane, node: other })
                if lane == other_lane =>
            {
                node.may_become(other, driver)
            }
            (Captured::Record { lane }, Captured::Record { lane: other }) if lane == other => Ok(()),
            (Captured::Wait { lane, record }, Captured::Wait { lane: other_lane, record: other_record })
                if (lane, record) == (other_lane, other_record) =>
            {
                Ok(())
            }
            _ => Err(UpdateRefusal::Topology),
        }
    }
}

/// Queues a command, or adds it to the graph that its stream captures.
pub(crate) fn give(driver: &Driver, stream: &Arc<Stream>, node: Node) -> Outcome {
    if driver.captures.status(stream).is_none() {
        return node.queue(driver, stream);
    }
    if let Node::Copy { call, target, source, bytes } = &node {
        copy::check_captured(driver, stream, call, (*target, *source), *bytes)?;
    }
    driver.captures.add(stream, node)
}

/// A graph of captured commands.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) context: Arc<Context>,
    /// In the order of the calls.
    pub(crate) captured: Arc<Vec<Captured>>,
}

/// What differs, so that an instantiated graph does not get other parameters.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum UpdateRefusal {
    Topology,
    NodeType,
    Parameters,
}

impl UpdateRefusal {
    /// The driver's number (`CUgraphExecUpdateResult`).
    pub(crate) fn number(self) -> c_uint {
        match self {
            UpdateRefusal::Topology => 2,
            UpdateRefusal::NodeType => 3,
            UpdateRefusal::Parameters => 5,
        }
    }
}

/// An instantiated graph.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) context: Arc<Context>,
    /// Run the commands of lanes other than the first.
    others: Vec<Arc<Stream>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    captured: Arc<Vec<Captured>>,
    /// The end of its last launch.
    last: Option<Arc<Mark>>,
}

impl Exec {
    pub(crate) fn new(driver: &Arc<Driver>, graph: &Graph) -> Outcome<Exec> {
        let lanes = graph.captured.iter().map(Captured::lane).max().unwrap_or(0);
        let others = (0..lanes).map(|_| stream::start(driver, &graph.context)).collect::<Outcome<_>>()?;
        let state = State { captured: Arc::clone(&graph.captured), last: None };
        Ok(Exec { context: Arc::clone(&graph.context), others, state: Mutex::new(state) })
    }

    /// Takes the parameters of a graph with the same commands. Commands of earlier launches have theirs already.
    pub(crate) fn update(&self, driver: &Driver, graph: &Graph) -> Result<(), UpdateRefusal> {
        let mut state = self.lock();
        if state.captured.len() != graph.captured.len() || self.context.handle != graph.context.handle {
            return Err(UpdateRefusal::Topology);
        }
        for (one, other) in state.captured.iter().zip(graph.captured.iter()) {
            one.may_become(other, driver)?;
        }
        state.captured = Arc::clone(&graph.captured);
        Ok(())
    }

    /// Queues its commands, behind its last launch.
    pub(crate) fn launch(&self, driver: &Driver, stream: &Arc<Stream>) {
        let mut state = self.lock();
        if let Some(last) = state.last.take().filter(|last| !Arc::ptr_eq(&last.stream, stream)) {
            wait(driver, stream, last);
        }
        let mut records = Vec::new();
        for captured in state.captured.iter() {
            let on = captured.lane().checked_sub(1).map_or(stream, |other| &self.others[other]);
            match captured {
                Captured::Command { node, .. } => {
                    if node.queue(driver, on).is_err() {
                        // The finding is told; the device notices when it runs the command.
                        let fate = KernelFate::default();
                        let job = Job::Broken(Code::ILLEGAL_ADDRESS);
                        on.give(|_| Command::new(CALL, Work::Kernel { job, fate }));
                    }
                }
                Captured::Record { .. } => records.push(end(driver, on)),
                Captured::Wait { record, .. } => wait(driver, on, Arc::clone(&records[*record])),
            }
        }
        state.last = Some(end(driver, stream));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        // What is queued on them still runs.
        self.others.iter().for_each(|stream| stream.close());
    }
}

const CALL: &str = "cuGraphLaunch";

/// The point of a stream behind its commands so far.
fn end(driver: &Driver, stream: &Arc<Stream>) -> Arc<Mark> {
    let (number, moment) = stream.end(|| driver.order.mark(stream.actor));
    Arc::new(Mark { stream: Arc::clone(stream), number, moment, passed_at: OnceLock::new() })
}

/// Lets a stream wait for a point of a stream.
fn wait(driver: &Driver, stream: &Stream, mark: Arc<Mark>) {
    stream.give(|_| {
        driver.order.given_by_host(stream.actor);
        driver.order.after(stream.actor, &mark.moment);
        Command::new(CALL, Work::Wait(mark))
    });
}
