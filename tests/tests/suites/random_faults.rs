//! Random programs on devices that fail: safety runs and liveness runs, apart.

use streamvm::Mode;
use streamvm_tests::program::{Script, Verdict, goes_on, safe};
use streamvm_tests::{cases, each_seed};

/// Runs `check` on the scripts of [`cases`]`(few)` seeds. In nearly every script something must have failed.
fn all(few: u64, check: impl Fn(&Script) -> Result<usize, Verdict> + Send + Sync + 'static) {
    let seeds = cases(few);
    let (mut met, mut spared) = (0, 0);
    let result = each_seed(
        0..seeds,
        move |seed| check(&Script::draw(seed)),
        |seed, result| {
            let faults = result.unwrap_or_else(|verdict| {
                panic!("seed {seed}: {:?}: {}\n{}", verdict.failing, verdict.text, Script::draw(seed))
            });
            met += faults;
            spared += u64::from(faults == 0);
            true
        },
    );
    assert_eq!(result, Ok(()), "hangs");
    assert!(met as u64 > 3 * seeds && spared < seeds / 10, "{met} faults, and none in {spared} of {seeds} scripts");
}

#[test]
fn nothing_wrong_is_read_as_right() {
    all(300, safe);
}

#[test]
fn once_faults_stop_a_simulated_engine_does_as_if_there_had_been_none() {
    all(100, |script| goes_on(script, Mode::Simulated { seed: script.seed }));
}

#[test]
fn once_faults_stop_an_engine_with_threads_does_as_if_there_had_been_none() {
    all(50, |script| goes_on(script, Mode::Threaded));
}
