//! Hazards: valid programs with one defect planted, which the race detector must find every time.
//!
//! Layer: uses `support`; is used by the program `sim` and the suite `hazards`.
//!
//! Main types: a [`Kind`] is one kind of defect; [`hazard`] plants one and checks that the detector finds it; [`valid`] checks a program
//! without a defect.
//!
//! Programs are issued directly to simulated devices, without an engine, so that only the detector stands between a defect and its report.
//! The steps: a valid program is drawn at random (`draw`); one wait, record, access or declaration is broken (`breaks`, `special`); the
//! program is run (`play`). The detector does not judge itself: the closure of the crate `streamvm-verify` (`trace`), which must agree with
//! a plain model of the order (`order`), decides whether two accesses are really unordered.
//!
//! * A race counts as found only if the detector names two accesses that the closure leaves unordered, and no pair that the closure orders.
//! * In a valid program the detector must find nothing.

mod breaks;
mod draw;
mod kinds;
mod order;
mod play;
mod program;
mod special;
mod trace;

use streamvm::ep::races::{Finding, FindingKind};

use crate::support::random::Random;
use breaks::Broken;
pub use kinds::Kind;
use order::{Conflict, Follower, Relation};
use play::{Played, name, play};
use program::Program;
use special::Expected;

/// Most valid programs that are drawn for one hazard. Some kinds apply to few programs.
const DRAWS: u64 = 100_000;

/// Plants a hazard of `kind` from `seed`, and checks that the detector finds it.
///
/// # Errors
/// The detector missed it, or found a hazard that does not exist; a text, with the program.
///
/// # Panics If the hazard applies to no drawn program, or if the two models of order disagree, which is a defect of the suite and not of
/// the detector.
pub fn hazard(kind: &Kind, seed: u64) -> Result<(), String> {
    let expected = (0..DRAWS).find_map(|draw| {
        let mut random = Random::new(seed, draw);
        let program = draw::draw(&mut random);
        kind.plant(program, &mut random)
    });
    let expected = expected.unwrap_or_else(|| panic!("no program fits {:?}, seed {seed}", kind.name()));
    let program = expected.program();
    let played = play(program, seed, kind.is_strict());
    let result = match &expected {
        Expected::Race(broken) => {
            confirm(broken);
            race_found(broken, &played)
        }
        Expected::Finding(_, kinds, id) => {
            let id = id.map(name);
            let is_it = |found: &&Finding| {
                kinds.contains(&found.kind) && id.as_ref().is_none_or(|id| *id == *found.second.what)
            };
            found(played.findings.iter().any(|found| is_it(&found)))
        }
        Expected::Refusal(_, is_it) => found(played.errors.iter().any(is_it)),
    };
    result.map_err(|why| {
        let Played { findings, errors } = &played;
        let findings: Vec<String> = findings.iter().map(ToString::to_string).collect();
        format!(
            "{}, seed {seed}: {why}\nexpected: {expected:?}\nfindings:\n{}\nerrors: {errors:?}\n{}",
            kind.name(),
            findings.join("\n"),
            listed(program)
        )
    })
}

fn found(is_found: bool) -> Result<(), String> {
    if is_found { Ok(()) } else { Err("not found".to_owned()) }
}

/// The closure of the verifier must leave the same conflicts unordered as the plain model.
fn confirm(broken: &Broken) {
    let judged = trace::judge(&broken.program);
    for conflict in &broken.unordered {
        let ordered = judged.ordered(conflict.first, conflict.second);
        assert!(!ordered, "the verifier orders {conflict:?} of\n{}", listed(&broken.program));
    }
    let of_instructions = broken.unordered.iter().any(|conflict| !gives_back(&broken.program, conflict.second));
    assert!(!of_instructions || judged.missing > 0, "the verifier misses nothing in\n{}", listed(&broken.program));
}

fn gives_back(program: &Program, id: usize) -> bool {
    let gives =
        |command: &program::Command| matches!(command, program::Command::Free { id: other, .. } if *other == id);
    program.commands.iter().any(gives)
}

fn race_found(broken: &Broken, played: &Played) -> Result<(), String> {
    let follower = Follower::of(&broken.program);
    let mut any = false;
    for finding in &played.findings {
        let between = |conflict: &&Conflict| {
            let freed = gives_back(&broken.program, conflict.second);
            let second = if freed { "free".to_owned() } else { name(conflict.second) };
            let first = finding.first.as_ref().map(|first| first.what.to_string());
            *finding.second.what == second && first == Some(name(conflict.first))
        };
        let kinds = broken.unordered.iter().filter(between).map(|conflict| {
            match (conflict.relation, follower.access(conflict.second).stream) {
                (Relation::Reuse, _) if gives_back(&broken.program, conflict.second) => FindingKind::FreedInUse,
                (Relation::Reuse, _) => FindingKind::ReuseRace,
                (_, None) => FindingKind::HostTooEarly,
                (_, Some(_)) => FindingKind::Conflict,
            }
        });
        if !kinds.into_iter().any(|kind| kind == finding.kind) {
            // If a region is freed too early, the detector may report its users instead, because they access it too late.
            let used = |conflict: &Conflict| {
                gives_back(&broken.program, conflict.second) && *finding.second.what == name(conflict.first)
            };
            if finding.kind == FindingKind::AfterFree && broken.unordered.iter().any(used) {
                continue;
            }
            return Err(format!("a false finding: {finding}"));
        }
        any = true;
    }
    found(any)
}

/// Runs a valid program drawn from `seed`.
///
/// # Errors
/// The detector or the verifier found a defect in it.
pub fn valid(seed: u64) -> Result<(), String> {
    let program = draw::draw(&mut Random::new(seed, 0));
    let Played { findings, errors } = play(&program, seed, false);
    let missing = trace::judge(&program).missing;
    if findings.is_empty() && errors.is_empty() && missing == 0 {
        return Ok(());
    }
    let findings: Vec<String> = findings.iter().map(ToString::to_string).collect();
    let (findings, program) = (findings.join("\n"), listed(&program));
    Err(format!("valid program, seed {seed}: the verifier misses {missing}; {errors:?}\n{findings}\n{program}"))
}

fn listed(program: &Program) -> String {
    let commands: Vec<String> = program.commands.iter().map(|command| format!("  {command:?}")).collect();
    let (streams, regions, lives) = (&program.streams, &program.regions, &program.lives);
    format!("devices of streams: {streams:?}\n{regions:?}\n{lives:?}\n{}", commands.join("\n"))
}
