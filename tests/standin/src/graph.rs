//! Graphs: commands that were captured, and launched any number of times.
//!
//! A node has the arguments of the call that captured it, by value: handles and addresses. They are looked up when the graph is launched,
//! so a graph does not keep memory or kernels alive, and a launch that would access memory freed since the capture is found.
//!
//! Several streams may have captured a graph together ([`capture`](crate::capture)). The nodes of the stream that began the capture run as ordinary
//! commands of the stream on which the graph is launched. Those of each other stream run on a stream of the graph's own, behind and before what the
//! captured waits say, and at any time that these allow. So nodes without order between them run side by side, and race if they must not.
//!
//! A conditional node is one command, which runs the commands of its body in the order of their capture, as often as its condition says. So those
//! do not race with each other; with other commands they do, whether the body runs or not.

use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use streamvm_cuda::abi::Arguments;
use streamvm_cuda::{ConditionArguments, FusedArguments};

use crate::api::copy::Side;
use crate::api::{copy, launch, set, stream};
use crate::code::{Code, Outcome};
use crate::command::{Command, Job, Pattern, Work};
use crate::context::Context;
use crate::driver::Driver;
use crate::event::Mark;
use crate::faults::KernelFate;
use crate::interpreter::Extent;
use crate::kernel::{Decoded, Kernel};
use crate::prepared::{Prepared, PreparedWork};
use crate::stream::Stream;

/// The parameter of one of streamvm's kernels.
#[derive(Clone, Debug)]
pub(crate) enum Parameter {
    Ours(Box<Arguments>),
    Fused(Box<FusedArguments>),
    Condition(Box<ConditionArguments>),
}

/// A conditional node: a graph that runs as often as a condition says.
#[derive(Clone, Debug)]
pub(crate) struct Conditional {
    /// The condition.
    pub(crate) handle: u64,
    /// Whether it runs again as long as the condition is not 0.
    pub(crate) repeats: bool,
    pub(crate) body: Arc<Graph>,
}

/// The value of a condition in one launch.
#[derive(Debug)]
pub(crate) struct ConditionValue(AtomicU64);

impl ConditionValue {
    /// Stands for a value that nothing has set.
    const UNDEFINED: u64 = u64::MAX;

    fn new(default: Option<u32>) -> ConditionValue {
        ConditionValue(AtomicU64::new(default.map_or(ConditionValue::UNDEFINED, u64::from)))
    }

    pub(crate) fn set(&self, is_true: bool) {
        self.0.store(is_true.into(), Ordering::Relaxed);
    }

    /// The value; `None` if the condition has no default, and no kernel of the launch has set it yet.
    pub(crate) fn get(&self) -> Option<u32> {
        u32::try_from(self.0.load(Ordering::Relaxed)).ok()
    }
}

/// The conditions of a launch.
#[derive(Debug, Default)]
pub(crate) struct Conditions(HashMap<u64, Arc<ConditionValue>>);

impl Conditions {
    /// The condition with this handle.
    pub(crate) fn get(&self, handle: u64) -> Option<Arc<ConditionValue>> {
        self.0.get(&handle).cloned()
    }

    /// Adds those of a graph and of the bodies in it, each with its value at the begin of a launch.
    fn add(&mut self, graph: &Graph) {
        for condition in lock(&graph.conditions).iter() {
            self.0.insert(condition.handle, Arc::new(ConditionValue::new(condition.default)));
        }
        self.add_bodies(&graph.captured());
    }

    fn add_bodies(&mut self, captured: &[Captured]) {
        for one in captured {
            if let Captured::Command { node: Node::Conditional(conditional), .. } = one {
                self.add(&conditional.body);
            }
        }
    }
}

/// A command, as a call passed it.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    /// `cuLaunchKernel` of the function with this handle; a kernel without work has no parameter.
    Kernel { function: usize, kernel: Kernel, parameter: Option<Parameter>, extent: Extent },
    /// A product of cuBLAS, and the address of memory of the caller that it uses.
    Product { decoded: Decoded, workspace: Option<u64> },
    /// A copy.
    Copy { call: &'static str, target: Side, source: Side, bytes: usize },
    /// A fill of `count` elements.
    Fill { call: &'static str, target: usize, pattern: Pattern, count: usize },
    /// A node that was added to a graph.
    Conditional(Conditional),
}

impl Node {
    /// Queues the command, in a graph with these conditions.
    fn queue(&self, driver: &Driver, stream: &Arc<Stream>, conditions: &Conditions) -> Outcome {
        if let Node::Copy { call, target, source, bytes } = self {
            return copy::queue_copy(driver, stream, call, (*target, *source), *bytes);
        }
        self.prepare(driver, stream, conditions)?.queue(driver, stream);
        Ok(())
    }

    /// Checks the command. A copy may run several times.
    fn prepare(&self, driver: &Driver, stream: &Arc<Stream>, conditions: &Conditions) -> Outcome<Prepared> {
        match self {
            Node::Kernel { function, kernel, parameter, extent } => {
                let launch = (*function, kernel, *extent);
                launch::prepare_kernel(driver, stream, launch, parameter.as_ref(), conditions)
            }
            Node::Product { decoded, workspace } => {
                if let Some(workspace) = workspace {
                    // A graph may outlive the memory.
                    driver.span("cublasGemmStridedBatchedEx", "the workspace", *workspace as usize, 1)?;
                }
                Ok(launch::prepare_decoded(driver, stream, "cublasGemmStridedBatchedEx", decoded.clone()))
            }
            Node::Copy { call, target, source, bytes } => {
                copy::prepare_copy(driver, call, (*target, *source), *bytes, false).map(|(prepared, _)| prepared)
            }
            Node::Fill { call, target, pattern, count } => set::prepare_fill(driver, call, (*target, *count), *pattern),
            Node::Conditional(Conditional { handle, repeats, body }) => {
                let condition = conditions.get(*handle).ok_or(Code::INVALID_VALUE)?;
                let captured = body.captured();
                let nodes = captured.iter().filter_map(|one| match one {
                    Captured::Command { node, .. } => Some(node),
                    // They run in the order of their capture.
                    Captured::Record { .. } | Captured::Wait { .. } => None,
                });
                let body = nodes.map(|node| node.prepare(driver, stream, conditions).unwrap_or_else(|_| broken()));
                let body = body.collect();
                let work = PreparedWork::Conditional { condition, repeats: *repeats, body };
                Ok(Prepared { call: CALL, what: "a conditional node".to_owned(), touches: Vec::new(), work })
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
            (Node::Conditional(one), Node::Conditional(other)) if Arc::ptr_eq(&one.body, &other.body) => Ok(()),
            // Its kernels set conditions of the other graph. What the CUDA driver makes of that is not documented.
            (Node::Conditional(_), Node::Conditional(_)) => Err(UpdateRefusal::NotSupported),
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
        return node.queue(driver, stream, &Conditions::default());
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
    /// Whether it is the body of a conditional node, which owns it.
    pub(crate) is_body: bool,
    /// In the order of the calls; nothing before the capture has ended.
    captured: OnceLock<Arc<Vec<Captured>>>,
    /// The conditions that were made for it.
    conditions: Mutex<Vec<Condition>>,
    /// The handles of the bodies of its nodes.
    bodies: Mutex<Vec<usize>>,
    /// The end of its last launch, if it has conditions.
    last: Mutex<Option<Arc<Mark>>>,
}

/// A condition of a graph.
#[derive(Debug)]
struct Condition {
    handle: u64,
    /// Its value at the begin of each launch, if that was given.
    default: Option<u32>,
    has_node: bool,
}

/// Why a node cannot have a condition.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoCondition {
    /// The graph has no such condition.
    Unknown,
    /// It has a node.
    Used,
}

impl Graph {
    pub(crate) fn new(context: Arc<Context>, is_body: bool) -> Graph {
        let (captured, conditions, bodies) = (OnceLock::new(), Mutex::default(), Mutex::default());
        Graph { context, is_body, captured, conditions, bodies, last: Mutex::default() }
    }

    /// Sets what was captured.
    pub(crate) fn set_captured(&self, captured: Vec<Captured>) {
        let _ = self.captured.set(Arc::new(captured));
    }

    /// Whether a capture into it has ended.
    pub(crate) fn is_captured(&self) -> bool {
        self.captured.get().is_some()
    }

    fn captured(&self) -> Arc<Vec<Captured>> {
        self.captured.get().cloned().unwrap_or_default()
    }

    /// Adds a condition.
    pub(crate) fn add_condition(&self, handle: u64, default: Option<u32>) {
        lock(&self.conditions).push(Condition { handle, default, has_node: false });
    }

    /// Gives a condition to a node.
    pub(crate) fn use_condition(&self, handle: u64) -> Result<(), NoCondition> {
        let mut conditions = lock(&self.conditions);
        let found = conditions.iter_mut().find(|condition| condition.handle == handle).ok_or(NoCondition::Unknown)?;
        if std::mem::replace(&mut found.has_node, true) { Err(NoCondition::Used) } else { Ok(()) }
    }

    /// A condition without a node, in the graph or in a body.
    pub(crate) fn unused_condition(&self) -> Option<u64> {
        let here = lock(&self.conditions).iter().find(|condition| !condition.has_node).map(|one| one.handle);
        here.or_else(|| {
            self.captured().iter().find_map(|one| match one {
                Captured::Command { node: Node::Conditional(conditional), .. } => conditional.body.unused_condition(),
                _ => None,
            })
        })
    }

    /// Adds the body of a node.
    pub(crate) fn add_body(&self, handle: usize) {
        lock(&self.bodies).push(handle);
    }

    /// The handles of the bodies of its nodes.
    pub(crate) fn bodies(&self) -> Vec<usize> {
        lock(&self.bodies).clone()
    }

    /// Whether a launch of it may still set its conditions.
    pub(crate) fn sets_conditions(&self) -> bool {
        lock(&self.last).as_ref().is_some_and(|last| !last.has_passed())
    }
}

/// What differs, so that an instantiated graph does not get other parameters.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum UpdateRefusal {
    Topology,
    NodeType,
    Parameters,
    NotSupported,
}

impl UpdateRefusal {
    /// The driver's number (`CUgraphExecUpdateResult`).
    pub(crate) fn number(self) -> c_uint {
        match self {
            UpdateRefusal::Topology => 2,
            UpdateRefusal::NodeType => 3,
            UpdateRefusal::Parameters => 5,
            UpdateRefusal::NotSupported => 6,
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
    graph: Arc<Graph>,
    /// The end of its last launch.
    last: Option<Arc<Mark>>,
}

impl Exec {
    pub(crate) fn new(driver: &Arc<Driver>, graph: &Arc<Graph>) -> Outcome<Exec> {
        let captured = graph.captured();
        let lanes = captured.iter().map(Captured::lane).max().unwrap_or(0);
        let others = (0..lanes).map(|_| stream::start(driver, &graph.context)).collect::<Outcome<_>>()?;
        let state = State { captured, graph: Arc::clone(graph), last: None };
        Ok(Exec { context: Arc::clone(&graph.context), others, state: Mutex::new(state) })
    }

    /// Takes the parameters of a graph with the same commands. Commands of earlier launches have theirs already.
    pub(crate) fn update(&self, driver: &Driver, graph: &Arc<Graph>) -> Result<(), UpdateRefusal> {
        let mut state = self.lock();
        let captured = graph.captured();
        if state.captured.len() != captured.len() || self.context.handle != graph.context.handle {
            return Err(UpdateRefusal::Topology);
        }
        for (one, other) in state.captured.iter().zip(captured.iter()) {
            one.may_become(other, driver)?;
        }
        (state.captured, state.graph) = (captured, Arc::clone(graph));
        Ok(())
    }

    /// Queues its commands, behind its last launch.
    pub(crate) fn launch(&self, driver: &Driver, stream: &Arc<Stream>) {
        let mut state = self.lock();
        if let Some(last) = state.last.take().filter(|last| !Arc::ptr_eq(&last.stream, stream)) {
            wait(driver, stream, last);
        }
        let (mut records, mut conditions) = (Vec::new(), Conditions::default());
        conditions.add(&state.graph);
        for captured in state.captured.iter() {
            let on = captured.lane().checked_sub(1).map_or(stream, |other| &self.others[other]);
            match captured {
                Captured::Command { node, .. } => {
                    if node.queue(driver, on, &conditions).is_err() {
                        broken().queue(driver, on);
                    }
                }
                Captured::Record { .. } => records.push(end(driver, on)),
                Captured::Wait { record, .. } => wait(driver, on, Arc::clone(&records[*record])),
            }
        }
        let last = end(driver, stream);
        if !lock(&state.graph.conditions).is_empty() {
            *lock(&state.graph.last) = Some(Arc::clone(&last));
        }
        state.last = Some(last);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        // What is queued on them still runs.
        self.others.iter().for_each(|stream| stream.close());
    }
}

const CALL: &str = "cuGraphLaunch";

/// A command that was refused at the launch: the finding is told, and the device notices when it runs the command.
fn broken() -> Prepared {
    let work = Work::Kernel { job: Job::Broken(Code::ILLEGAL_ADDRESS), fate: KernelFate::default() };
    Prepared { call: CALL, what: CALL.to_owned(), touches: Vec::new(), work: PreparedWork::Work(work) }
}

/// Every change of the state is a single step, so it is consistent even after a panic.
fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

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
