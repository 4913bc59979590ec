use std::sync::Arc;

use streamvm_stream::{Point, StreamKey};

use super::*;
use crate::builder::VmBuilder;
use crate::engine::core::Engine;
use crate::mode::Mode;
use crate::progress::stream_state::StreamState;

const STREAMS: [&str; 3] = ["compute@cpu:0:0", "compute@cpu:0:1", "d2h@cpu:0:0"];

/// An engine without threads: the test itself steps the scheduler and passes points.
fn engine() -> Arc<Engine> {
    let vm = VmBuilder::new().mode(Mode::Inline).build_engine().expect("an engine");
    for stream in STREAMS {
        let key: StreamKey = stream.parse().expect("a stream");
        vm.open_stream(key).expect("it opens");
    }
    vm
}

fn entry(vm: &Engine, stream: u32) -> &Arc<StreamState> {
    vm.streams.get(StreamId(stream)).expect("a stream of the table")
}

fn chain(tasks: impl IntoIterator<Item = ((u32, u64), Option<(u32, u64)>)>) -> NodeList<Task> {
    let mut chain = NodeList::new();
    for ((stream, seq), wait) in tasks {
        let mut task = NodeBox::new(Task::empty());
        task.point = Point::new(StreamId(stream), seq);
        if let Some((source, seq)) = wait {
            task.cold_mut().host_waits.push(Point::new(StreamId(source), seq));
        }
        chain.push(task);
    }
    chain
}

/// The tasks that reached the thread context since the last call, in order.
fn dispatched(vm: &Engine) -> Vec<(u32, u64)> {
    let mut chain = entry(vm, 0).context.inbox.take();
    std::iter::from_fn(|| chain.pop()).map(|task| (task.point.stream.0, task.point.seq)).collect()
}

#[test]
fn a_successor_is_dispatched_once_its_predecessor_is_dispatched_not_passed() {
    let (vm, mut scheduler) = (engine(), Scheduler::new());
    assert!(scheduler.step(chain([((0, 1), None), ((0, 2), None), ((0, 3), None)]), &vm));
    assert_eq!(dispatched(&vm), [(0, 1), (0, 2), (0, 3)]);
    assert_eq!(entry(&vm, 0).passed(), 0);
    assert_eq!(entry(&vm, 0).dispatched(), 3);
}

#[test]
fn an_open_host_wait_holds_back_a_task_and_all_after_it_on_its_stream() {
    let (vm, mut scheduler) = (engine(), Scheduler::new());
    let tasks = [((0, 1), Some((1, 5))), ((0, 2), None), ((2, 1), None)];
    assert!(scheduler.step(chain(tasks), &vm));
    assert_eq!(dispatched(&vm), [(2, 1)], "another stream goes on");
    assert_eq!(scheduler.blocked().collect::<Vec<_>>(), [Point::new(StreamId(1), 5)]);
    entry(&vm, 1).pass(4);
    assert!(!scheduler.step(NodeList::new(), &vm));
    entry(&vm, 1).pass(5);
    assert!(scheduler.step(NodeList::new(), &vm));
    assert_eq!(dispatched(&vm), [(0, 1), (0, 2)]);
    assert_eq!(scheduler.blocked().count(), 0);
}

#[test]
fn the_right_to_dispatch_comes_back_only_when_all_that_was_sent_is_dispatched() {
    let (vm, mut scheduler) = (engine(), Scheduler::new());
    scheduler.step(chain([((0, 1), None), ((0, 2), Some((1, 1)))]), &vm);
    assert_eq!(entry(&vm, 0).dispatched(), 1, "2 were sent");
    entry(&vm, 1).pass(1);
    scheduler.step(NodeList::new(), &vm);
    assert_eq!(entry(&vm, 0).dispatched(), 2);
}
