//! Shrinking: the smallest script found that still fails in the same way.
//!
//! Greedy removal, in the manner of delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing
//! input", 2002): halves of the turns, then quarters, down to single ones, until nothing can be left out; then fewer
//! threads and a plainer engine.

use super::script::{Script, Setup};

/// How often a script is run anew at most.
const RUNS: usize = 2000;

/// A script that fails, and how.
#[derive(Clone, Debug)]
pub struct Shrunk<F> {
    /// The smallest that was found.
    pub script: Script,
    /// How it fails.
    pub failure: F,
    /// How often a script was run to find it.
    pub runs: usize,
}

/// Shrinks `script`, which failed with `failure`. `run` runs a script and gives its failure if it is of the same kind.
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
    /// Leaves turns out as long as it fails; returns whether any was.
    fn shorter(&mut self) -> bool {
        let mut any = false;
        let mut size = self.best.script.turns.len().div_ceil(2);
        while size > 0 {
            let mut start = 0;
            while start < self.best.script.turns.len() {
                let mut script = self.best.script.clone();
                let end = (start + size).min(script.turns.len());
                script.turns.drain(start..end);
                // What comes behind has moved up to `start` if it was left out.
                match self.take(script) {
                    true => any = true,
                    false => start = end,
                }
            }
            size /= 2;
        }
        any
    }

    /// Lets one thread do the work of two, and takes one oddity of the engine away at a time.
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
            |setup| setup.engine = Setup::DEFAULT.engine,
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
