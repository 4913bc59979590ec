//! Contenders for the same work, measured in turn.

pub mod error;
pub mod report;
pub mod torch;

use std::time::{Duration, Instant};

use streamvm_benches::harness::stats::Summary;

use crate::contest::error::Error;

/// Somebody who does the work of a bench.
pub struct Contender<'a> {
    /// Who.
    pub name: &'static str,
    /// Does the work once, from nothing under way to all of it over, and says what of it was measured.
    pub run: Box<dyn FnMut() -> Result<Duration, Error> + 'a>,
}

impl<'a> Contender<'a> {
    /// One whose whole call of `work` is measured.
    pub fn timed(name: &'static str, mut work: impl FnMut() -> Result<(), Error> + 'a) -> Contender<'a> {
        let run = move || {
            let start = Instant::now();
            work()?;
            Ok(start.elapsed())
        };
        Contender { name, run: Box::new(run) }
    }
}

/// What came out for one contender.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Who.
    pub name: String,
    /// In the unit of the bench.
    pub summary: Summary,
}

/// How two figures compare.
#[derive(Clone, Debug)]
pub struct Ratio {
    /// Of what.
    pub of: String,
    /// To what.
    pub to: String,
    /// The speed of `of` over that of `to`: above 1 it is faster.
    pub value: f64,
}

/// What came out of a bench.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Its name.
    pub bench: &'static str,
    /// What was done, with sizes.
    pub work: String,
    /// Of the figures; less is better.
    pub unit: &'static str,
    /// One a contender.
    pub figures: Vec<Figure>,
    /// Who gave no figure, and why.
    pub missing: Vec<(String, String)>,
    /// What is read from the figures.
    pub ratios: Vec<Ratio>,
    /// What else a reader must know.
    pub notes: Vec<String>,
}

impl Outcome {
    /// A bench without figures so far.
    pub fn new(bench: &'static str, unit: &'static str, work: String) -> Outcome {
        Outcome { bench, unit, work, ..Outcome::default() }
    }

    /// Lets each contender do the work once unmeasured, then all of them in turn, `runs` times; a figure is the time of a run
    /// in nanoseconds over `per`. Who fails once is out, and said so.
    pub fn contest(&mut self, runs: u32, per: f64, mut contenders: Vec<Contender<'_>>) {
        let mut values = vec![Vec::new(); contenders.len()];
        let mut out = vec![false; contenders.len()];
        for run in 0..=runs {
            for (index, contender) in contenders.iter_mut().enumerate() {
                if out[index] {
                    continue;
                }
                match (contender.run)() {
                    Ok(_) if run == 0 => {}
                    Ok(time) => values[index].push(time.as_nanos() as f64 / per),
                    Err(error) => {
                        out[index] = true;
                        self.missing.push((contender.name.to_owned(), error.to_string()));
                    }
                }
            }
        }
        for (index, contender) in contenders.iter().enumerate() {
            if let Some(summary) = Summary::of(&values[index]).filter(|_| !out[index]) {
                self.figures.push(Figure { name: contender.name.to_owned(), summary });
            }
        }
    }

    /// Adds a figure that is the same in each run.
    pub fn add(&mut self, name: &str, value: f64) {
        let summary = Summary { median: value, min: value, max: value };
        self.figures.push(Figure { name: name.to_owned(), summary });
    }

    /// Adds a contender that gives no figure.
    pub fn add_missing(&mut self, name: &str, why: impl ToString) {
        self.missing.push((name.to_owned(), why.to_string()));
    }

    /// The figure of a contender.
    pub fn median(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.summary.median)
    }

    /// Compares `of` with each of `to`, as far as there are figures.
    pub fn compare(&mut self, of: &str, to: &[&str]) {
        for &to in to {
            if let (Some(mine), Some(theirs)) = (self.median(of), self.median(to)) {
                // Nothing over nothing is no ratio.
                if mine > 0.0 {
                    self.ratios.push(Ratio { of: of.to_owned(), to: to.to_owned(), value: theirs / mine });
                }
            }
        }
    }

    /// Whether every contender of streamvm has a figure.
    pub fn is_ok(&self) -> bool {
        !self.missing.iter().any(|(name, _)| name.starts_with("streamvm"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_take_turns_and_who_fails_is_out() {
        let order = std::cell::RefCell::new(String::new());
        let note = |letter: char, result: Result<Duration, Error>| {
            order.borrow_mut().push(letter);
            result
        };
        let mut outcome = Outcome::new("test", "ns", String::new());
        let a = Contender { name: "a", run: Box::new(|| note('a', Ok(Duration::from_nanos(200)))) };
        let b = Contender { name: "b", run: Box::new(|| note('b', Err(Error::Missing("no b".to_owned())))) };
        let c = Contender { name: "c", run: Box::new(|| note('c', Ok(Duration::from_nanos(100)))) };
        outcome.contest(2, 2.0, vec![a, b, c]);
        outcome.compare("a", &["b", "c"]);
        assert_eq!(*order.borrow(), "abcacac");
        assert_eq!((outcome.median("a"), outcome.median("b"), outcome.median("c")), (Some(100.0), None, Some(50.0)));
        assert_eq!(outcome.missing, [("b".to_owned(), "no b".to_owned())]);
        assert_eq!(outcome.ratios.iter().map(|ratio| ratio.value).collect::<Vec<_>>(), [0.5]);
        assert!(outcome.is_ok());
        outcome.add_missing("streamvm, eager", "no memory");
        assert!(!outcome.is_ok());
    }
}
