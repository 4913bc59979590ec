use super::*;

fn command(work: Work) -> Command {
    let (by, runs) = (Arc::from("a test"), Vec::new());
    Command { label: Label::new(0, 0, "test"), by, work, blocks: SmallVec::new(), runs, already_freed: false }
}

fn operand() -> Operand<'static> {
    use streamvm_ep::{Access, DType, Layout, Shape};
    let layout = Layout::contiguous(Shape::new(&[0]).unwrap());
    // SAFETY: the operand has no elements.
    unsafe { Operand::new(std::ptr::null_mut(), DType::U8, layout, Access::ReadWrite) }
}

fn copy() -> Work {
    Work::Copy { source: operand(), target: operand() }
}

fn fill() -> Work {
    Work::Fill { target: operand(), value: Scalar::from(0u8) }
}

fn call() -> Work {
    Work::Call { function: InlineFn::new(|_| Ok(())), operands: Vec::new() }
}

/// Queues the works, one stream each.
fn queues<const N: usize>(seed: u64, works: [Vec<Work>; N]) -> (Queues, [u64; N]) {
    let mut queues = Queues::new(seed);
    let streams = works.map(|works| {
        let stream = queues.open(0);
        works.into_iter().for_each(|work| queues.push(stream, command(work)));
        stream
    });
    (queues, streams)
}

/// Runs everything; returns the streams in the order in which their commands ran.
fn run_all(queues: &mut Queues) -> Vec<u64> {
    let mut order = Vec::new();
    while let Some(taken) = queues.take(None) {
        order.push(taken.stream);
        queues.pass(taken.stream);
    }
    order
}

#[test]
fn a_place_passes_with_the_commands_before_it() {
    let (mut queues, [stream]) = queues(0, [vec![fill(), fill()]]);
    let end = queues.end(stream);
    assert_eq!((end.number, queues.pending()), (2, 2));
    assert!(queues.take(None).is_some());
    assert!(queues.take(None).is_none(), "the first is still running");
    assert_eq!((queues.end(stream), queues.pending()), (end, 2));
    queues.pass(stream);
    assert!(!queues.has_passed(end) && queues.has_passed(QueuePosition { stream, number: 1 }));
    run_all(&mut queues);
    assert!(queues.has_passed(end));
    assert_eq!(queues.pending(), 0);
}

#[test]
fn a_wait_is_not_taken_before_its_place_has_passed() {
    for seed in 0..50 {
        let (mut queues, [source, target]) = queues(seed, [vec![copy(), fill(), copy()], vec![]]);
        queues.push(target, command(Work::Wait(QueuePosition { stream: source, number: 2 })));
        queues.push(target, command(fill()));
        let order = run_all(&mut queues);
        assert_eq!(order.len(), 5);
        let waited = order.iter().position(|&stream| stream == target).unwrap();
        assert!(order[..waited].iter().filter(|&&stream| stream == source).count() >= 2, "seed {seed}: {order:?}");
    }
}

#[test]
fn copies_run_when_nothing_else_can_but_for_a_few() {
    let mut late = 0;
    for seed in 0..200 {
        let (mut queues, [_, other]) = queues(seed, [vec![copy()], vec![fill(), fill(), fill()]]);
        late += usize::from(run_all(&mut queues)[..3] == [other; 3]);
    }
    assert!((100..190).contains(&late), "{late} of 200 seeds ran the copy last");
}

#[test]
fn the_seed_decides() {
    let order = |seed| run_all(&mut queues(seed, std::array::from_fn::<_, 4, _>(|_| vec![fill(), copy(), fill()])).0);
    let all: std::collections::BTreeSet<_> = (0..50).map(order).collect();
    assert!(all.len() > 40, "{} orders of 50 seeds", all.len());
    assert_eq!(order(7), order(7));
}

#[test]
fn what_is_needed_follows_the_waits() {
    let (mut queues, [a, b, c, d]) =
        queues(0, [vec![fill(), fill(), fill()], vec![fill()], vec![fill()], vec![fill()]]);
    let wait = |queues: &mut Queues, on, stream, number| {
        queues.push(on, command(Work::Wait(QueuePosition { stream, number })));
        queues.push(on, command(fill()));
    };
    wait(&mut queues, b, a, 2);
    wait(&mut queues, c, b, 3);
    // After the place that is asked for, so not needed.
    wait(&mut queues, c, d, 1);
    assert_eq!(queues.needed(QueuePosition { stream: c, number: 3 }), Needed::from([(a, 2), (b, 3), (c, 3)]));
    assert_eq!(queues.needed(QueuePosition { stream: b, number: 1 }), Needed::from([(b, 1)]));
    // The same with one command running and one passed.
    let taken = queues.take(Some(&Needed::from([(a, 1)]))).unwrap();
    let first = taken.stream;
    assert_eq!(queues.needed(QueuePosition { stream: b, number: 3 }), Needed::from([(a, 2), (b, 3)]));
    queues.pass(first);
    assert_eq!(
        queues.needed(QueuePosition { stream: a, number: 1 }),
        if first == a { Needed::new() } else { Needed::from([(a, 1)]) }
    );
}

#[test]
fn only_what_is_needed_runs_but_for_a_few_and_never_a_call() {
    let (mut early, mut calls) = (0, 0);
    for seed in 0..200 {
        let (mut queues, [wanted, other, calling]) = queues(seed, [vec![fill(), copy()], vec![fill()], vec![call()]]);
        let place = QueuePosition { stream: wanted, number: 2 };
        let needed = queues.needed(place);
        while let Some(taken) = queues.take(Some(&needed)) {
            early += usize::from(taken.stream == other);
            calls += usize::from(taken.stream == calling);
            queues.pass(taken.stream);
        }
        assert!(queues.has_passed(place));
    }
    assert_eq!(calls, 0);
    assert!((20..180).contains(&early), "{early} of 200 seeds ran something else first");
}

#[test]
fn a_call_that_is_needed_runs() {
    let (mut queues, [stream]) = queues(0, [vec![call()]]);
    let needed = queues.needed(queues.end(stream));
    assert!(queues.take(Some(&needed)).is_some());
}

#[test]
fn a_closed_stream_leaves_when_it_is_over_and_counts_as_passed() {
    let (mut queues, [stream]) = queues(0, [vec![fill()]]);
    let end = queues.end(stream);
    queues.close(stream);
    assert!(!queues.has_passed(end));
    assert_eq!(run_all(&mut queues), [stream]);
    assert!(queues.all.is_empty() && queues.has_passed(end));
    assert_ne!(queues.open(0), stream);
}
