//! Graphs: commands that were captured, and launched any number of times.
//!
//! A node has the arguments of the call that captured it, by value: handles and addresses. They are looked up when the graph is launched,
//! so a graph does not keep memory or kernels alive, and a launch that would access memory freed since the capture is found.
//!
//! Several streams may have captured a graph together ([`capture`](crate::objects::capture)). The nodes of the stream that began the capture run as ordinary
//! commands of the stream on which the graph is launched. Those of each other stream run on a stream of the graph's own, after and before what the
//! captured waits say, and at any time that these allow. So nodes without order between them run side by side, and race if they must not.
//!
//! A conditional node is one command, which runs the commands of its body in the order of their capture, as often as its condition says. So those
//! do not race with each other; with other commands they do, whether the body runs or not.

use std::ffi::c_uint;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use streamvm_cuda::abi::Arguments;
use streamvm_cuda::{ConditionArguments, FusedArguments};

use crate::kernels::{ConditionValue, Conditions, Extent, Kernel, Product};
use crate::objects::command::Pattern;
use crate::objects::context::Context;
use crate::objects::event::Mark;
use crate::objects::stream::Stream;

/// The parameter of one of streamvm's kernels.
#[derive(Clone, Debug)]
pub(crate) enum Parameter {
    Ours(Box<Arguments>),
    Fused(Box<FusedArguments>),
    Condition(Box<ConditionArguments>),
    /// The bytes of the parameters of a caller's kernel.
    Own(Vec<u8>),
}

/// The types of parameters, which have only numbers, without gaps between them.
pub(crate) trait Numbers {
    /// The bytes of a parameter.
    fn to_bytes(&self) -> Vec<u8>
    where
        Self: Sized,
    {
        // SAFETY: a parameter has only numbers, without gaps between them, as tests of its layout show.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast::<u8>(), size_of::<Self>()) }.to_vec()
    }
}
impl Numbers for Arguments {}
impl Numbers for FusedArguments {}
impl Numbers for ConditionArguments {}

/// One side of a copy, as passed to the call.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Side {
    pub(crate) address: usize,
    /// Must it be device memory, or host memory? `None` allows both.
    pub(crate) device: Option<bool>,
    /// The device that must own the memory; `None` allows any.
    pub(crate) of: Option<usize>,
}

impl Side {
    pub(crate) fn device(address: u64) -> Side {
        Side { address: address as usize, device: Some(true), of: None }
    }

    pub(crate) fn host(address: usize) -> Side {
        Side { address, device: Some(false), of: None }
    }

    pub(crate) fn any(address: u64) -> Side {
        Side { address: address as usize, device: None, of: None }
    }
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

/// A command, as a call passed it.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    /// `cuLaunchKernel` of the function with this handle; a kernel without work has no parameter.
    Kernel { function: usize, kernel: Kernel, parameter: Option<Parameter>, extent: Extent },
    /// A product of cuBLAS, and the address of memory of the caller that it uses.
    Product { product: Product, workspace: Option<u64> },
    /// A copy.
    Copy { call: &'static str, target: Side, source: Side, bytes: usize },
    /// A fill of `count` elements.
    Fill { call: &'static str, target: usize, pattern: Pattern, count: usize },
    /// A node that was added to a graph.
    Conditional(Conditional),
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
    pub(crate) fn lane(&self) -> usize {
        match self {
            Captured::Command { lane, .. } | Captured::Record { lane } | Captured::Wait { lane, .. } => *lane,
        }
    }
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

    pub(crate) fn captured(&self) -> Arc<Vec<Captured>> {
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

    /// Adds its conditions and those of the bodies in it, each with its value at the begin of a launch.
    pub(crate) fn add_conditions(&self, to: &mut Conditions) {
        for condition in lock(&self.conditions).iter() {
            to.insert(condition.handle, Arc::new(ConditionValue::new(condition.default)));
        }
        for one in self.captured().iter() {
            if let Captured::Command { node: Node::Conditional(conditional), .. } = one {
                conditional.body.add_conditions(to);
            }
        }
    }

    /// Notes the end of a launch of it.
    pub(crate) fn set_last(&self, last: &Arc<Mark>) {
        if !lock(&self.conditions).is_empty() {
            *lock(&self.last) = Some(Arc::clone(last));
        }
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
    pub(crate) others: Vec<Arc<Stream>>,
    pub(crate) state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) captured: Arc<Vec<Captured>>,
    pub(crate) graph: Arc<Graph>,
    /// The end of its last launch.
    pub(crate) last: Option<Arc<Mark>>,
}

impl Exec {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        // What is queued on them still runs.
        self.others.iter().for_each(|stream| stream.close());
    }
}

/// Every change of the state is a single step, so it is consistent even after a panic.
fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
