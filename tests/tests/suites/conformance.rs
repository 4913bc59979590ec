//! Every execution provider does what the conformance suite asks, and the suite rejects those that do not.

use std::collections::HashSet;
use std::sync::Arc;

use streamvm_ep::Error;
use streamvm_tests::cases as drawn;
use streamvm_tests::conformance::{Backend, Made, Report, Tag, Verdict, broken, cases, run, run_some};

#[track_caller]
fn conforms(backend: &Backend) -> Report {
    let report = run(backend);
    assert!(report.is_ok(), "{report}");
    let fit = cases().iter().filter(|case| case.needs.iter().all(|&tag| backend.has(tag))).count();
    assert_eq!(report.passed(), fit, "every case that applies has run:\n{report}");
    assert!(fit >= 200, "{fit} cases apply to {}", backend.name());
    report
}

#[test]
fn the_cpu_conforms() {
    conforms(&Backend::cpu());
}

#[test]
fn the_simulated_device_conforms_whatever_the_seed() {
    for seed in 0..drawn(1) {
        conforms(&Backend::sim(seed));
    }
}

#[test]
fn a_fault_plan_without_rules_changes_nothing() {
    conforms(&Backend::cpu().faultless());
    conforms(&Backend::sim(6).faultless());
}

#[test]
fn cases_have_names_of_their_own() {
    let names: HashSet<_> = cases().iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases().len());
    for name in names {
        let (area, what) = name.split_once('/').expect("area/what");
        let plain =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit());
        assert!(plain(area) && plain(what), "{name}");
    }
}

#[test]
fn a_wrapper_that_gets_nothing_wrong_conforms() {
    for base in [Backend::cpu(), Backend::sim(9)] {
        conforms(&broken::with(base, broken::Flaw::Nothing));
    }
}

#[test]
fn each_broken_backend_is_rejected_by_the_cases_named_for_it() {
    let mut accepted = Vec::new();
    for (backend, names) in broken::flaws() {
        let report = run_some(&backend, |name| names.contains(&name));
        assert_eq!(report.verdicts.len(), names.len(), "{}: a case that there is not: {names:?}", backend.name());
        for (name, verdict) in &report.verdicts {
            let rightly = match verdict {
                // A backend that breaks down is rejected for that, and not for what it gets wrong.
                Verdict::Failed(text) if backend.name().starts_with("Panics") => text.starts_with("panicked"),
                Verdict::Failed(text) if backend.name().starts_with("Hangs") => text.starts_with("not over after"),
                Verdict::Failed(text) => !text.starts_with("panicked") && !text.starts_with("not over after"),
                _ => false,
            };
            if !rightly {
                accepted.push(format!("{} by {name}: {verdict:?}", backend.name()));
            }
        }
    }
    assert!(accepted.is_empty(), "broken backends were accepted:\n{}", accepted.join("\n"));
}

#[test]
fn an_exemption_is_needed_or_an_objection() {
    let flaw = |name: &str| {
        let mut all = broken::flaws().into_iter();
        all.find(|(backend, _)| backend.name().starts_with(name)).expect("a broken backend of this name").0
    };
    let exempt = flaw("ForgetsPeaks").exempt("memory/peak_stays", "it counts no peaks");
    let wanted = |name: &str| name == "memory/peak_stays" || name == "memory/fresh_memory_is_zeroed";
    let report = run_some(&exempt, wanted);
    assert!(report.is_ok(), "{report}");
    assert_eq!(report.passed(), 1);
    assert!(report.verdicts.contains(&("memory/peak_stays", Verdict::Exempt("it counts no peaks".into()))));

    let needless = exempt.exempt("memory/fresh_memory_is_zeroed", "for no reason");
    let report = run_some(&needless, wanted);
    assert!(!report.is_ok());
    assert!(report.objections[0].contains("memory/fresh_memory_is_zeroed passes"), "{report}");

    let report = run_some(&Backend::cpu().exempt("memory/no_such_case", "for no reason"), |_| false);
    assert!(!report.is_ok());
    assert!(report.objections[0].contains("there is no case memory/no_such_case"), "{report}");

    let unfit = Backend::cpu().exempt("device/shared_events_are_one_pool", "it shares none");
    let report = run_some(&unfit, |name| name == "device/shared_events_are_one_pool");
    assert_eq!(report.verdicts, [("device/shared_events_are_one_pool", Verdict::Unfit(Tag::SharedEvents))]);
    assert!(report.objections[0].contains("does not apply"), "{report}");
}

#[test]
fn what_a_device_objects_to_fails_the_case() {
    let objects = Backend::cpu().remade("objects", |make, setup| {
        let made = make(setup)?;
        Ok(Made { audit: Arc::new(|| vec!["that was a race".to_owned()]), ..made })
    });
    let report = run_some(&objects, |name| name == "fill/writes_a_scalar");
    let (_, text) = report.failed().next().expect("the case fails");
    assert!(text.contains("that was a race"), "{text}");
}

/// A missing wait may do no harm by chance. The race detector of the simulated device judges the order that was asked
/// for, so with it each seed is enough.
#[test]
fn the_race_detector_rejects_what_comes_out_right_by_chance() {
    let rejected = |base: Backend| {
        let backend = broken::with(base, broken::Flaw::DropsWaits);
        run_some(&backend, |name| name == "failure/does_not_hold_up_events").failed().count() == 1
    };
    let by_values = (0..10).filter(|&seed| rejected(Backend::sim(seed).unaudited())).count();
    assert!(by_values < 10, "the case is of no use here: values alone reject it with every seed");
    for seed in 0..10 {
        assert!(rejected(Backend::sim(seed)), "accepted with seed {seed}");
    }
}

#[test]
fn a_backend_that_makes_no_device_fails_each_case() {
    let none = Backend::new("none", &[Tag::Immediate], |_| Err(Error::Injected("no driver".to_owned())));
    let report = run_some(&none, |name| name.starts_with("device/tells"));
    assert_eq!(report.failed().count(), 2);
    assert!(report.failed().all(|(_, text)| text.contains("no driver")), "{report}");
}

#[test]
fn a_report_prints_as_a_table_and_as_json() {
    let report = run_some(&Backend::cpu(), |name| name.starts_with("device/"));
    let text = report.to_string();
    let columns: HashSet<_> = text.lines().filter_map(|line| line.find("  passed").or(line.find("  unfit"))).collect();
    assert_eq!(columns.len(), 1, "the verdicts stand in one column:\n{text}");
    assert!(text.ends_with("cpu: 7 of 8 passed, 0 failed"), "{text}");
    let json = report.to_json();
    assert_eq!((&json["backend"], &json["ok"], &json["passed"]), (&"cpu".into(), &true.into(), &7.into()));
    let unfit = json["cases"].as_array().expect("a list").iter().find(|case| case["verdict"] == "unfit");
    assert_eq!(unfit.expect("one that does not apply")["detail"], "needs shared-events");
}
