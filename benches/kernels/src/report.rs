//! Reports: a table for people, JSON for programs.

use serde_json::{Value, json};
use streamvm_benches::floors::machine::Machine;
use streamvm_benches::harness::table::{aligned, number};

use crate::cases::NAMES;
use crate::entrant::Entrant;
use crate::fused::PAIRS;

/// The times of an entrant for a call of a case, one figure a run.
pub(crate) struct Figure {
    pub(crate) case: &'static str,
    pub(crate) entrant: Entrant,
    pub(crate) nanoseconds: Vec<f64>,
}

impl Figure {
    fn median(&self) -> f64 {
        let mut sorted = self.nanoseconds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }
}

/// How many times as long as the best other library with as many threads this takes; `None` for another library or where none is.
fn ratio(figure: &Figure, figures: &[Figure]) -> Option<f64> {
    let others = figures.iter().filter(|other| {
        let same = other.case == figure.case && other.entrant.threads == figure.entrant.threads;
        same && !other.entrant.is_streamvm()
    });
    let best = others.map(Figure::median).min_by(f64::total_cmp)?;
    figure.entrant.is_streamvm().then(|| figure.median() / best)
}

/// A line a case: the medians in microseconds, and those of streamvm over the best other's. An entrant without a figure has no column.
pub(crate) fn table(figures: &[Figure]) -> String {
    let mut entrants = Entrant::all(false);
    entrants.retain(|entrant| figures.iter().any(|figure| figure.entrant == *entrant));
    let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
    let line = |case: &'static str| {
        let of = |entrant: &Entrant| figures.iter().find(|figure| figure.case == case && figure.entrant == *entrant);
        let times = entrants.iter().map(|entrant| cell(of(entrant).map(|figure| figure.median() / 1000.0)));
        let ours = entrants.iter().filter(|entrant| entrant.is_streamvm());
        let ratios = ours.map(|entrant| cell(of(entrant).and_then(|figure| ratio(figure, figures))));
        cells([case.to_owned()].into_iter().chain(times).chain(ratios))
    };
    let names = entrants.iter().map(Entrant::name);
    let ours =
        entrants.iter().filter(|entrant| entrant.is_streamvm()).map(|entrant| format!("{} / best", entrant.threads));
    let head = cells(["µs".to_owned()].into_iter().chain(names).chain(ours));
    let measured = NAMES.into_iter().filter(|&case| figures.iter().any(|figure| figure.case == case));
    let lines: Vec<_> = [head].into_iter().chain(measured.map(line)).collect();
    aligned(&lines, &std::array::from_fn::<usize, COLUMNS, _>(|column| column)[1..])
}

/// A line for each kind of fused steps and number of threads: their time, as a part of that without fusion.
pub(crate) fn fusion(figures: &[Figure]) -> String {
    let median = |case: &str, entrant: &Entrant| {
        figures.iter().find(|figure| figure.case == case && figure.entrant == *entrant).map(Figure::median)
    };
    let line = |[fused, unfused]: [&str; 2], entrant: &Entrant| {
        let ratio = median(fused, entrant)? / median(unfused, entrant)?;
        Some(format!("{fused} / {unfused}, {}: {ratio:.2}\n", entrant.name()))
    };
    let entrants = Entrant::all(true);
    PAIRS.iter().flat_map(|&pair| entrants.iter().filter_map(move |entrant| line(pair, entrant))).collect()
}

/// The most columns: the name of a case, five libraries with one and two threads, and two ratios.
const COLUMNS: usize = 1 + 5 * 2 + 2;

fn cells(mut texts: impl Iterator<Item = String>) -> [String; COLUMNS] {
    std::array::from_fn(|_| texts.next().unwrap_or_default())
}

/// `{"machine", "vectors", "figures"}`, with a list of `{"case", "library", "threads", "nanoseconds", "min", "max", "ratio"}`: medians over the runs, and how many times as
/// long as the best other library streamvm takes.
pub(crate) fn json(machine: &Machine, figures: &[Figure]) -> Value {
    let of = |figure: &Figure| {
        json!({
            "case": figure.case,
            "library": figure.entrant.library(),
            "threads": figure.entrant.threads,
            "nanoseconds": figure.median(),
            "min": figure.nanoseconds.iter().copied().fold(f64::INFINITY, f64::min),
            "max": figure.nanoseconds.iter().copied().fold(0.0, f64::max),
            "ratio": ratio(figure, figures),
        })
    };
    let list: Value = figures.iter().map(of).collect();
    json!({ "machine": machine.json(), "vectors": streamvm_kernels::vectors(), "figures": list })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entrant::Library;

    fn figure(library: Library, threads: usize, nanoseconds: f64) -> Figure {
        let spread = vec![nanoseconds * 2.0, nanoseconds, nanoseconds / 2.0];
        Figure { case: "exp_1e5", entrant: Entrant { library, threads }, nanoseconds: spread }
    }

    #[test]
    fn the_table_and_the_json_compare_with_the_best_of_as_many_threads() {
        let figures = [
            figure(Library::Streamvm, 1, 30_000.0),
            figure(Library::Torch, 1, 20_000.0),
            figure(Library::Candle, 1, 40_000.0),
            figure(Library::Torch, 2, 10_000.0),
        ];
        let expected = "\
µs       streamvm 1  torch 1  torch 2  candle 1  1 / best
exp_1e5        30.0     20.0     10.0      40.0       1.5
";
        assert_eq!(table(&figures), expected);
        let json = &json(&Machine::here(), &figures)["figures"];
        assert_eq!((&json[0]["ratio"], &json[0]["min"]), (&json!(1.5), &json!(15_000.0)));
        assert_eq!(json[3]["ratio"], Value::Null);
    }
}
