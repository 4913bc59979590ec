//! Random traces, checked by the detector and by the definition: the transitive closure of the order, for every pair of accesses and
//! every byte.
//!
//! Broken variants of the detector that this test found: reads not kept; only the newest read kept; an epoch that does not end at a
//! release; a clock that is replaced, not joined; a moment that covers one epoch too many; reuse that checks only writes; a new
//! allocation that counts as written; a late access of an old allocation counted for the new one.

use std::collections::BTreeSet;

use proptest::prelude::*;
use streamvm_ep::{Access, Label, MemoryKind};

use super::*;

const ACTORS: usize = 4;
const BYTES: usize = 8;
const BASE: usize = 0x1000;

#[derive(Clone, Debug)]
enum Step {
    Access {
        actor: usize,
        bytes: std::ops::Range<usize>,
        access: Access,
        late: bool,
    },
    /// Stored under the number of the step.
    Release {
        actor: usize,
    },
    /// Acquires the release that is `back` release steps ago.
    Acquire {
        actor: usize,
        back: usize,
    },
    /// A new allocation of the bytes begins.
    Begin {
        bytes: std::ops::Range<usize>,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || (0..BYTES, 1..=3usize).prop_map(|(start, length)| start..(start + length).min(BYTES));
    let access = prop::sample::select(vec![Access::Read, Access::Read, Access::Write, Access::ReadWrite]);
    prop_oneof![
        5 => (0..ACTORS, bytes(), access, prop::bool::weighted(0.05))
            .prop_map(|(actor, bytes, access, late)| Step::Access { actor, bytes, access, late }),
        4 => (0..ACTORS).prop_map(|actor| Step::Release { actor }),
        6 => (0..ACTORS, 0usize..4).prop_map(|(actor, back)| Step::Acquire { actor, back }),
        1 => bytes().prop_map(|bytes| Step::Begin { bytes }),
    ]
}

/// The definition: for each access, by step, its faults with earlier accesses.
struct Model {
    /// `before[i]`: the steps that are ordered before step `i`, and `i` itself.
    before: Vec<BTreeSet<usize>>,
    last_of: [Option<usize>; ACTORS],
    releases: Vec<usize>,
    /// The accesses of each byte so far: (step, writes, allocation).
    accesses: Vec<Vec<(usize, bool, u64)>>,
    /// The allocations that began at each byte, the newest last.
    begun: Vec<Vec<u64>>,
    allocations: u64,
}

impl Model {
    fn enter(&mut self, actor: usize, also_after: Option<usize>) -> usize {
        let step = self.before.len();
        let mut before = BTreeSet::from([step]);
        for earlier in self.last_of[actor].into_iter().chain(also_after) {
            before.extend(&self.before[earlier]);
        }
        self.before.push(before);
        self.last_of[actor] = Some(step);
        step
    }
}

type Faults = BTreeSet<(FindingKind, Option<u64>, u64)>;

/// Runs the steps on a detector and on the model. Returns the findings of the detector and all faults of the model.
fn play(steps: &[Step]) -> (Vec<Finding>, Vec<Faults>) {
    let detector = Detector::new();
    detector.map(BASE..BASE + BYTES, "memory", MemoryKind::Device);
    let actors: Vec<ActorId> = (0..ACTORS).map(|actor| detector.actor(&format!("actor {actor}"))).collect();
    let mut moments: Vec<Moment> = Vec::new();
    let mut model = Model {
        before: Vec::new(),
        last_of: [None; ACTORS],
        releases: Vec::new(),
        accesses: vec![Vec::new(); BYTES],
        begun: vec![vec![0]; BYTES],
        allocations: 0,
    };
    let mut faults: Vec<Faults> = Vec::new();
    for step in steps {
        match step {
            Step::Release { actor } => {
                moments.push(detector.release(actors[*actor]));
                let entered = model.enter(*actor, None);
                model.releases.push(entered);
            }
            Step::Acquire { actor, back } => {
                let Some(index) = moments.len().checked_sub(back + 1) else { continue };
                detector.acquire(actors[*actor], &moments[index]);
                model.enter(*actor, Some(model.releases[index]));
            }
            Step::Begin { bytes } => {
                let range = BASE + bytes.start..BASE + bytes.end;
                let allocation = detector.begin_allocation(range, &Label::new(0, 0, "begin"));
                model.allocations += 1;
                assert_eq!(allocation, model.allocations);
                bytes.clone().for_each(|byte| model.begun[byte].push(allocation));
            }
            Step::Access { actor, bytes, access, late } => {
                let step = model.enter(*actor, None);
                // Each byte in its own allocation: the newest, or the previous one if the access is reported late.
                let mut touches = Vec::new();
                let mut found = Faults::new();
                for byte in bytes.clone() {
                    let begun = &model.begun[byte];
                    let allocation = begun[begun.len() - 1 - usize::from(*late && begun.len() > 1)];
                    let explicit = (allocation != 0).then_some(allocation);
                    touches.push(Touch::new(std::iter::once(BASE + byte..BASE + byte + 1), *access, explicit));
                    // Without a named allocation the newest is meant.
                    let allocation = if allocation == 0 { begun[begun.len() - 1] } else { allocation };
                    let earlier = &model.accesses[byte];
                    let newest = earlier.iter().map(|(_, _, allocation)| *allocation).max().unwrap_or(0);
                    let unordered = |conflicting: bool| {
                        let wanted = |&&(other, writes, _): &&(usize, bool, u64)| {
                            (!conflicting || writes || access.writes()) && !model.before[step].contains(&other)
                        };
                        earlier.iter().filter(wanted).copied().collect::<Vec<_>>()
                    };
                    let named = |kind, other: usize| (kind, Some(other as u64), step as u64);
                    if allocation < newest {
                        found.extend(unordered(false).iter().map(|race| named(FindingKind::ReuseRace, race.0)));
                        found.insert((FindingKind::AfterFree, None, step as u64));
                        continue;
                    }
                    let races = unordered(allocation == newest);
                    found.extend(races.iter().map(|race| {
                        let kind = if race.2 == allocation { FindingKind::Conflict } else { FindingKind::ReuseRace };
                        named(kind, race.0)
                    }));
                    let written = earlier.iter().any(|&(_, writes, of)| writes && of == allocation);
                    if access.reads() && !written {
                        found.insert((FindingKind::NeverWritten, None, step as u64));
                    }
                    model.accesses[byte].push((step, access.writes(), allocation));
                }
                detector.access(actors[*actor], &Label::new(0, step as u64, "access"), &touches);
                faults.push(found);
            }
        }
    }
    (detector.findings(), faults)
}

fn is_race(kind: FindingKind) -> bool {
    !matches!(kind, FindingKind::NeverWritten | FindingKind::AfterFree)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn the_detector_is_silent_exactly_where_everything_is_ordered(steps in prop::collection::vec(step(), 0..60)) {
        let (findings, faults) = play(&steps);
        // Up to the first access with a race, detector and model must agree.
        let first = faults.iter().find(|faults| faults.iter().any(|fault| is_race(fault.0)));
        let found = findings.iter().find(|finding| is_race(finding.kind));
        let at = |faults: &Faults| faults.first().map(|fault| fault.2);
        prop_assert_eq!(found.map(|finding| finding.second.seq), first.and_then(at));
        // Every later finding must also be a fault of the model, with the named access.
        let all: Faults = faults.iter().flatten().copied().collect();
        for finding in &findings {
            let named = finding.first.as_ref().filter(|_| is_race(finding.kind)).map(|label| label.seq);
            prop_assert!(all.contains(&(finding.kind, named, finding.second.seq)), "{} is none of {:?}", finding, all);
        }
        // Reads of unwritten bytes, until the first such read counts the bytes as written.
        let unwritten = |fault: &&(FindingKind, Option<u64>, u64)| fault.0 == FindingKind::NeverWritten;
        if let Some(expected) = all.iter().filter(unwritten).map(|fault| fault.2).min() {
            let judged_alone = !faults.iter().any(|faults| at(faults) == Some(expected) && faults.len() > 1);
            let told = |finding: &Finding| finding.kind == FindingKind::NeverWritten && finding.second.seq == expected;
            prop_assert!(!judged_alone || findings.iter().any(told), "{:?}", findings);
        }
    }
}
