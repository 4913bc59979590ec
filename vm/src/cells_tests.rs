use super::*;

const POOL: StreamId = StreamId(0);

/// Passes a number; the cells that need nothing more, in the order in which they were told.
fn pass(cells: &Cells, number: u64) -> Vec<CellId> {
    let mut ready = Vec::new();
    assert!(!cells.pass(number, |id, _, _| ready.push(id)), "nobody sleeps");
    ready
}

#[test]
fn a_cell_runs_once_all_it_needs_has_passed() {
    let cells = Cells::new();
    let [a, b, c] = std::array::from_fn(|_| cells.begin(cells.add(), POOL, 1));
    let id = cell_of(c.seq);
    cells.needs(id, &[a.seq, b.seq]);
    assert!(cells.needs_more(id));
    assert_eq!(cells.meet(id), None, "two are left");
    assert_eq!(pass(&cells, a.seq), []);
    assert!(!cells.has_passed(c.seq));
    assert_eq!(pass(&cells, b.seq), [id]);
    assert_eq!(pass(&cells, c.seq), []);
    assert!([a, b, c].iter().all(|point| cells.has_passed(point.seq)));
}

#[test]
fn what_has_passed_is_not_needed() {
    let cells = Cells::new();
    let [a, b] = std::array::from_fn(|_| cells.begin(cells.add(), POOL, 2));
    pass(&cells, a.seq);
    cells.needs(cell_of(b.seq), &[a.seq]);
    assert!(!cells.needs_more(cell_of(b.seq)));
    assert_eq!(cells.meet(cell_of(b.seq)), Some((POOL, 2)));
}

#[test]
fn of_many_needs_those_that_have_not_passed_are_counted() {
    let cells = Cells::new();
    let points: [Point; 5] = std::array::from_fn(|_| cells.begin(cells.add(), POOL, 1));
    let [gone, open, over, last, b] = points.map(|point| point.seq);
    [gone, over].iter().for_each(|number| assert_eq!(pass(&cells, *number), []));
    cells.needs(cell_of(b), &[gone, open, over, last]);
    assert_eq!(cells.meet(cell_of(b)), None, "two are left");
    assert_eq!(pass(&cells, open), []);
    assert_eq!(pass(&cells, last), [cell_of(b)]);
}

#[test]
fn many_may_need_one_and_each_is_told() {
    let cells = Cells::new();
    let source = cells.begin(cells.add(), POOL, 0);
    let successors: Vec<CellId> = (0..20).map(|_| cell_of(cells.begin(cells.add(), POOL, 0).seq)).collect();
    for (index, id) in successors.iter().enumerate() {
        // By one to all of its edges.
        cells.needs(*id, &[source.seq; EDGES][index % EDGES..]);
        assert!(cells.needs_more(*id));
        assert_eq!(cells.meet(*id), None);
    }
    let mut told = pass(&cells, source.seq);
    told.sort_unstable();
    assert_eq!(told, successors);
}

#[test]
fn who_asked_to_be_woken_is_though_others_are_linked_in_behind() {
    let cells = Cells::new();
    let [source, before, behind] = std::array::from_fn(|_| cells.begin(cells.add(), POOL, 1));
    cells.needs(cell_of(before.seq), &[source.seq]);
    assert!(!cells.want(source.seq));
    cells.needs(cell_of(behind.seq), &[source.seq, source.seq]);
    let mut met = 0;
    [before, behind].iter().for_each(|point| assert_eq!(cells.meet(cell_of(point.seq)), None));
    assert!(cells.pass(source.seq, |_, _, _| met += 1), "somebody asked");
    assert_eq!(met, 2);
}

#[test]
fn a_cell_goes_on_to_other_lives_and_old_numbers_stay_passed() {
    let cells = Cells::new();
    let id = cells.add();
    let first = cells.begin(id, POOL, 0);
    pass(&cells, first.seq);
    let second = cells.begin(id, StreamId(3), 0);
    assert_eq!(cells.pending().count(), 0, "nobody was told");
    cells.tell(second);
    assert_eq!((second.seq, cell_of(second.seq)), (first.seq + CAP, id));
    assert!(cells.has_passed(first.seq) && !cells.has_passed(second.seq));
    assert_eq!(cells.pending().collect::<Vec<_>>(), [second]);
    assert!(cells.want(first.seq), "it has passed");
    assert!(!cells.want(second.seq));
    assert!(cells.pass(second.seq, |_, _, _| panic!("nobody needs it")), "somebody asked");
    assert_eq!(cells.pending().count(), 0);
}
