//! Graphs: commands that were captured, and launched any number of times.
//!
//! A node has the arguments of the call that captured it, by value: handles and addresses. They are looked up when the graph is launched,
//! so a graph does not keep memory or kernels alive, and a launch that would access memory freed since the capture is found. The nodes of a
//! graph run in the order of the capture, as ordinary commands of the stream on which the graph is launched.

use std::ffi::c_uint;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use streamvm_ep::cuda::FusedArguments;
use streamvm_ep::cuda::abi::Arguments;

use crate::api::copy::Side;
use crate::api::{copy, launch, set};
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
    pub(crate) nodes: Arc<Vec<Node>>,
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
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    nodes: Arc<Vec<Node>>,
    /// The end of its last launch.
    last: Option<Arc<Mark>>,
}

impl Exec {
    pub(crate) fn new(graph: &Graph) -> Exec {
        let state = State { nodes: Arc::clone(&graph.nodes), last: None };
        Exec { context: Arc::clone(&graph.context), state: Mutex::new(state) }
    }

    /// Takes the parameters of a graph with the same commands. Commands of earlier launches have theirs already.
    pub(crate) fn update(&self, driver: &Driver, graph: &Graph) -> Result<(), UpdateRefusal> {
        let mut state = self.lock();
        if state.nodes.len() != graph.nodes.len() || self.context.handle != graph.context.handle {
            return Err(UpdateRefusal::Topology);
        }
        for (node, other) in state.nodes.iter().zip(graph.nodes.iter()) {
            node.may_become(other, driver)?;
        }
        state.nodes = Arc::clone(&graph.nodes);
        Ok(())
    }

    /// Queues its commands, behind its last launch.
    pub(crate) fn launch(&self, driver: &Driver, stream: &Arc<Stream>) {
        const CALL: &str = "cuGraphLaunch";
        let mut state = self.lock();
        if let Some(last) = state.last.take().filter(|last| !Arc::ptr_eq(&last.stream, stream)) {
            stream.give(|_| {
                driver.order.given_by_host(stream.actor);
                driver.order.after(stream.actor, &last.moment);
                Command::new(CALL, Work::Wait(last))
            });
        }
        for node in state.nodes.iter() {
            if node.queue(driver, stream).is_err() {
                // The finding is told; the device notices when it runs the command.
                let fate = KernelFate::default();
                let job = Job::Broken(Code::ILLEGAL_ADDRESS);
                stream.give(|_| Command::new(CALL, Work::Kernel { job, fate }));
            }
        }
        let (number, moment) = stream.end(|| driver.order.mark(stream.actor));
        let (stream, passed_at) = (Arc::clone(stream), std::sync::OnceLock::new());
        state.last = Some(Arc::new(Mark { stream, number, moment, passed_at }));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
