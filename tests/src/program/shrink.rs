//! Shrinking: finds a smaller script that still fails in the same way.
//!
//! Greedy removal after delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002): first halves of
//! the turns, then quarters, down to single turns, until no turn can be left out; then fewer threads and an engine closer to the default.

use super::script::{Script, Setup};

/// Most runs of scripts.
const RUNS: usize = 2000;

/// A shrunk script, and its failure.
#[derive(Clone, Debug)]
pub struct Shrunk<F> {
    /// The smallest failing script that was found.
    pub script: Script,
    /// Its failure.
    pub failure: F,
    /// Number of runs that were needed.
    pub runs: usize,
}

/// Shrinks `script`, which failed with `failure`. `run` runs a script and returns its failure if it is of the same kind.
pub fn shrink<F>(script: Script, failure: F, run: impl Fn(&Script) -> Option<F>) -> Shrunk<F> {
    let mut search = Search { best: Shrunk { script, failure, runs: 0 }, run };
    while search.shorter() | search.plainer() {}
    search.best
}

struct Search<F, R> {
    best: Shrunk<F>,
    run: R,
}

impl<F, R: Fn(&Script) -> Option<F>> Search<F, R> {
    /// Leaves turns out while the script still fails; returns whether any was left out.
    fn shorter(&mut self) -> bool {
        let mut any = false;
        let mut size = self.best.script.turns.len().div_ceil(2);
        while size > 0 {
            let mut start = 0;
            while start < self.best.script.turns.len() {
                let mut script = self.best.script.clone();
                let end = (start + size).min(script.turns.len());
                script.turns.drain(start..end);
                // If the turns were left out, the next ones have moved up to `start`.
                match self.take(script) {
                    true => any = true,
                    false => start = end,
                }
            }
            size /= 2;
        }
        any
    }

    /// Merges two threads, and resets one option of the engine to its default, at a time.
    fn plainer(&mut self) -> bool {
        let mut any = false;
        let last = self.best.script.turns.iter().map(|turn| turn.thread).max().unwrap_or(0);
        for thread in (1..=last).rev() {
            let mut script = self.best.script.clone();
            script.turns.iter_mut().filter(|turn| turn.thread == thread).for_each(|turn| turn.thread = 0);
            any |= script != self.best.script && self.take(script);
        }
        let plain: [fn(&mut Setup); 8] = [
            |setup| setup.soft_sync = Setup::DEFAULT.soft_sync,
            |setup| setup.host_waits_only = false,
            |setup| setup.max_instructions = None,
            |setup| setup.memory = Setup::DEFAULT.memory,
            |setup| setup.pinned_only = Setup::DEFAULT.pinned_only,
            |setup| setup.staging_piece = Setup::DEFAULT.staging_piece,
            |setup| setup.shared_workers = Setup::DEFAULT.shared_workers,
            |setup| setup.workers = Setup::DEFAULT.workers,
        ];
        for change in plain {
            let mut script = self.best.script.clone();
            change(&mut script.setup);
            any |= script != self.best.script && self.take(script);
        }
        any
    }

    fn take(&mut self, script: Script) -> bool {
        if self.best.runs == RUNS {
            return false;
        }
        self.best.runs += 1;
        let failure = (self.run)(&script);
        let fails = failure.is_some();
        if let Some(failure) = failure {
            (self.best.script, self.best.failure) = (script, failure);
        }
        fails
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_matter_is_left_out() {
        let seed = (0..).find(|seed| Script::draw(*seed).turns.len() > 30).expect("some are long");
        let script = Script::draw(seed);
        let needed = [script.turns[3].step, script.turns[17].step];
        let shrunk = shrink(script, (), |script| {
            let steps: Vec<_> = script.turns.iter().map(|turn| turn.step).collect();
            needed.iter().all(|step| steps.contains(step)).then_some(())
        });
        let steps: Vec<_> = shrunk.script.turns.iter().map(|turn| turn.step).collect();
        assert_eq!(steps, needed);
        assert_eq!((shrunk.script.threads(), shrunk.script.setup), (1, Setup::DEFAULT));
    }

    #[test]
    fn what_does_not_fail_again_is_left_alone() {
        let script = Script::draw(1);
        let shrunk = shrink(script.clone(), "once", |_| None);
        assert_eq!((shrunk.script, shrunk.failure), (script, "once"));
    }
}
