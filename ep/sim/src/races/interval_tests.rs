use proptest::prelude::*;

use super::*;

const SIZE: usize = 40;

#[derive(Clone, Debug)]
enum Step {
    Set(Range<usize>, u8),
    Remove(Range<usize>),
    /// Adds 1 modulo 3.
    Change(Range<usize>),
}

fn range() -> impl Strategy<Value = Range<usize>> {
    (0..=SIZE, 0..=SIZE).prop_map(|(a, b)| a.min(b)..a.max(b))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (range(), 0u8..3).prop_map(|(range, value)| Step::Set(range, value)),
        range().prop_map(Step::Remove),
        range().prop_map(Step::Change),
    ]
}

/// The whole map as one value per byte; checks the invariant on the way.
fn bytes(map: &IntervalMap<u8>) -> Vec<Option<u8>> {
    let mut all = vec![None; SIZE];
    let mut before: Option<(usize, u8)> = None;
    for (&start, run) in &map.runs {
        assert!(start < run.end, "an empty run at {start}");
        if let Some((end, value)) = before {
            assert!(end < start || (end == start && value != run.value), "runs at {start}: {:?}", map.runs);
        }
        before = Some((run.end, run.value));
        all[start..run.end].fill(Some(run.value));
    }
    all
}

proptest! {
    #[test]
    fn it_says_what_an_array_of_bytes_says(steps in prop::collection::vec(step(), 0..40), asked in range()) {
        let mut map = IntervalMap::default();
        let mut model: Vec<Option<u8>> = vec![None; SIZE];
        for step in steps {
            match step {
                Step::Set(range, value) => {
                    map.set(range.clone(), value);
                    model[range].fill(Some(value));
                }
                Step::Remove(range) => {
                    map.remove(range.clone());
                    model[range].fill(None);
                }
                Step::Change(range) => {
                    let mut seen: Vec<(usize, u8)> = Vec::new();
                    map.change(range.clone(), |run, value| {
                        seen.extend(run.map(|at| (at, *value)));
                        *value = (*value + 1) % 3;
                    });
                    let expected: Vec<_> = range.clone().filter_map(|at| Some((at, model[at]?))).collect();
                    prop_assert_eq!(seen, expected);
                    model[range].iter_mut().flatten().for_each(|value| *value = (*value + 1) % 3);
                }
            }
            prop_assert_eq!(&bytes(&map), &model);
        }
        for (at, byte) in model.iter().enumerate() {
            prop_assert_eq!(map.at(at).map(|(run, value)| (run.contains(&at), *value)), byte.map(|v| (true, v)));
        }
        let mut covered = Vec::new();
        let mut reached = asked.start;
        for (run, value) in map.cover(asked.clone()) {
            prop_assert_eq!(run.start, reached);
            reached = run.end;
            covered.extend(run.map(|_| value.copied()));
        }
        prop_assert_eq!(covered, model[asked].to_vec());
    }
}
