//! Queues commands, by themselves or as the nodes of a graph that is launched, and changes the parameters of instantiated graphs.

use std::sync::{Arc, Mutex, OnceLock};

use crate::commands::prepared::{Prepared, PreparedWork};
use crate::commands::{copy, kernel};
use crate::driver::{Driver, run};
use crate::kernels::Conditions;
use crate::objects::command::{Command, Job, Work};
use crate::objects::context::Context;
use crate::objects::event::Mark;
use crate::objects::graph::{Captured, Conditional, Exec, Graph, Node, Side, State, UpdateRefusal};
use crate::objects::stream::Stream;
use crate::values::code::{Code, Outcome};
use crate::values::faults::KernelFate;

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
                kernel::prepare_kernel(driver, stream, launch, parameter.as_ref(), conditions)
            }
            Node::Product { product, workspace } => {
                if let Some(workspace) = workspace {
                    // A graph may outlive the memory.
                    driver.span("cublasGemmStridedBatchedEx", "the workspace", *workspace as usize, 1)?;
                }
                kernel::prepare_product(driver, stream, "cublasGemmStridedBatchedEx", product)
            }
            Node::Copy { call, target, source, bytes } => {
                copy::prepare_copy(driver, call, (*target, *source), *bytes, false).map(|(prepared, _)| prepared)
            }
            Node::Fill { call, target, pattern, count } => {
                copy::prepare_fill(driver, call, (*target, *count), *pattern)
            }
            Node::Conditional(Conditional { handle, repeats, body }) => {
                let condition = conditions.get(handle).cloned().ok_or(Code::INVALID_VALUE)?;
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

impl Captured {
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

impl Exec {
    pub(crate) fn new(driver: &Arc<Driver>, graph: &Arc<Graph>) -> Outcome<Exec> {
        let captured = graph.captured();
        let lanes = captured.iter().map(Captured::lane).max().unwrap_or(0);
        let others = (0..lanes).map(|_| start_stream(driver, &graph.context)).collect::<Outcome<_>>()?;
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

    /// Queues its commands, after its last launch.
    pub(crate) fn launch(&self, driver: &Driver, stream: &Arc<Stream>) {
        let mut state = self.lock();
        if let Some(last) = state.last.take().filter(|last| !Arc::ptr_eq(&last.stream, stream)) {
            wait(driver, stream, last);
        }
        let (mut records, mut conditions) = (Vec::new(), Conditions::default());
        state.graph.add_conditions(&mut conditions);
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
        state.graph.set_last(&last);
        state.last = Some(last);
    }
}

const CALL: &str = "cuGraphLaunch";

/// A command that was refused at the launch: the finding is told, and the device notices when it runs the command.
fn broken() -> Prepared {
    let work = Work::Kernel { job: Job::Broken(Code::ILLEGAL_ADDRESS), fate: KernelFate::default() };
    Prepared { call: CALL, what: CALL.to_owned(), touches: Vec::new(), work: PreparedWork::Work(work) }
}

/// The point of a stream after its commands so far.
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

/// A new stream of a context, with its thread, that has no handle yet.
pub(crate) fn start_stream(driver: &Arc<Driver>, context: &Arc<Context>) -> Outcome<Arc<Stream>> {
    let mut tables = driver.tables();
    tables.streams_ever += 1;
    let number = tables.streams_ever;
    drop(tables);
    let name = format!("stream {number} of cuda:{}", context.device);
    let actor = driver.order.stream(&name);
    let stream = Arc::new(Stream::new(Arc::clone(context), number, name, actor));
    let (worker, its_driver) = (Arc::clone(&stream), Arc::clone(driver));
    let thread = std::thread::Builder::new().name(format!("standin-{number}"));
    thread.spawn(move || run::work(&its_driver, &worker)).map_err(|_| Code::OPERATING_SYSTEM)?;
    context.add(&stream);
    Ok(stream)
}
