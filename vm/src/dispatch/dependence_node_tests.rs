use super::*;

const POOL: StreamId = StreamId(0);

/// Passes a number. Returns the nodes that became ready, in the order in which they were reported.
fn pass(nodes: &DependenceNodes, number: u64) -> Vec<NodeId> {
    let mut ready = Vec::new();
    assert!(!nodes.pass(number, |id, _, _| ready.push(id)), "no waiter asked");
    ready
}

#[test]
fn a_cell_runs_once_all_it_needs_has_passed() {
    let nodes = DependenceNodes::new();
    let [a, b, c] = std::array::from_fn(|_| nodes.begin(nodes.add(), POOL, 1));
    let id = node_of(c.seq);
    nodes.add_dependences(id, &[a.seq, b.seq]);
    assert!(nodes.has_open_dependences(id));
    assert_eq!(nodes.satisfy(id), None, "two are left");
    assert_eq!(pass(&nodes, a.seq), []);
    assert!(!nodes.has_passed(c.seq));
    assert_eq!(pass(&nodes, b.seq), [id]);
    assert_eq!(pass(&nodes, c.seq), []);
    assert!([a, b, c].iter().all(|point| nodes.has_passed(point.seq)));
}

#[test]
fn a_source_that_has_passed_adds_no_dependence() {
    let nodes = DependenceNodes::new();
    let [a, b] = std::array::from_fn(|_| nodes.begin(nodes.add(), POOL, 2));
    pass(&nodes, a.seq);
    nodes.add_dependences(node_of(b.seq), &[a.seq]);
    assert!(!nodes.has_open_dependences(node_of(b.seq)));
    assert_eq!(nodes.satisfy(node_of(b.seq)), Some((POOL, 2)));
}

#[test]
fn of_many_needs_those_that_have_not_passed_are_counted() {
    let nodes = DependenceNodes::new();
    let points: [Point; 5] = std::array::from_fn(|_| nodes.begin(nodes.add(), POOL, 1));
    let [gone, open, over, last, b] = points.map(|point| point.seq);
    [gone, over].iter().for_each(|number| assert_eq!(pass(&nodes, *number), []));
    nodes.add_dependences(node_of(b), &[gone, open, over, last]);
    assert_eq!(nodes.satisfy(node_of(b)), None, "two are left");
    assert_eq!(pass(&nodes, open), []);
    assert_eq!(pass(&nodes, last), [node_of(b)]);
}

#[test]
fn each_of_many_successors_of_one_source_is_made_ready() {
    let nodes = DependenceNodes::new();
    let source = nodes.begin(nodes.add(), POOL, 0);
    let successors: Vec<NodeId> = (0..20).map(|_| node_of(nodes.begin(nodes.add(), POOL, 0).seq)).collect();
    for (index, id) in successors.iter().enumerate() {
        // With one to all of its edges.
        nodes.add_dependences(*id, &[source.seq; EDGES][index % EDGES..]);
        assert!(nodes.has_open_dependences(*id));
        assert_eq!(nodes.satisfy(*id), None);
    }
    let mut told = pass(&nodes, source.seq);
    told.sort_unstable();
    assert_eq!(told, successors);
}

#[test]
fn a_waiter_is_woken_although_successors_are_linked_in_after_it() {
    let nodes = DependenceNodes::new();
    let [source, before, behind] = std::array::from_fn(|_| nodes.begin(nodes.add(), POOL, 1));
    nodes.add_dependences(node_of(before.seq), &[source.seq]);
    assert!(!nodes.want(source.seq));
    nodes.add_dependences(node_of(behind.seq), &[source.seq, source.seq]);
    let mut met = 0;
    [before, behind].iter().for_each(|point| assert_eq!(nodes.satisfy(node_of(point.seq)), None));
    assert!(nodes.pass(source.seq, |_, _, _| met += 1), "a waiter asked");
    assert_eq!(met, 2);
}

#[test]
fn a_cell_goes_on_to_other_lives_and_old_numbers_stay_passed() {
    let nodes = DependenceNodes::new();
    let id = nodes.add();
    let first = nodes.begin(id, POOL, 0);
    pass(&nodes, first.seq);
    let second = nodes.begin(id, StreamId(3), 0);
    assert_eq!(nodes.pending().count(), 0, "not published");
    nodes.publish(second);
    assert_eq!((second.seq, node_of(second.seq)), (first.seq + CAP, id));
    assert!(nodes.has_passed(first.seq) && !nodes.has_passed(second.seq));
    assert_eq!(nodes.pending().collect::<Vec<_>>(), [second]);
    assert!(nodes.want(first.seq), "it has passed");
    assert!(!nodes.want(second.seq));
    assert!(nodes.pass(second.seq, |_, _, _| panic!("no successor")), "a waiter asked");
    assert_eq!(nodes.pending().count(), 0);
}
