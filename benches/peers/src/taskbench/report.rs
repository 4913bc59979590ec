//! Reports: a table for people, pattern by engine, and JSON for programs.

use serde_json::{Value, json};
use streamvm_benches::harness::round_robin::Row;
use streamvm_benches::harness::table::aligned;

use super::engine::{Case, ENGINES, metric};
use super::pattern::Pattern;
use super::run::Outcome;

const COLUMNS: usize = ENGINES.len() + 1;

/// A table for each width: a line a pattern, a column an engine, medians in µs; then what did not run, and why.
pub fn table(outcome: &Outcome) -> String {
    let mut text = String::new();
    for width in &outcome.widths {
        let metric = metric(*width);
        let head = std::iter::once("pattern").chain(ENGINES.iter().map(|engine| engine.name));
        let mut lines = vec![cells(head.map(str::to_owned))];
        for pattern in Pattern::ALL {
            let figure = |engine: &'static super::engine::Engine| {
                let of = Case { pattern, engine };
                outcome.rows.iter().find(|row| row.case == of && row.metric == metric)
            };
            if ENGINES.iter().all(|engine| figure(engine).is_none()) {
                continue;
            }
            let figures = ENGINES.iter().map(|engine| figure(engine).map_or_else(|| "-".to_owned(), median));
            lines.push(cells(std::iter::once(pattern.name().to_owned()).chain(figures)));
        }
        let right: Vec<usize> = (1..COLUMNS).collect();
        text += &format!("METG(50 %) in µs, width {width}\n{}\n", aligned(&lines, &right));
    }
    for missing in &outcome.not_run {
        text += &format!("{}: not run: {}\n", missing.name, missing.why);
    }
    text
}

fn median(row: &Row<Case>) -> String {
    format!("{:.2}", row.summary.median)
}

fn cells(mut from: impl Iterator<Item = String>) -> [String; COLUMNS] {
    std::array::from_fn(|_| from.next().unwrap_or_default())
}

/// `{"measured": [{"pattern", "engine", "width", "value", "unit", "min", "max"}], "not_run": [{"name", "why"}]}`; the value is the
/// median.
pub fn json(outcome: &Outcome) -> Value {
    let width_of = |row: &Row<Case>| outcome.widths.iter().find(|width| metric(**width) == row.metric);
    let row = |row: &Row<Case>| {
        json!({
            "pattern": row.case.pattern.name(),
            "engine": row.case.engine.name,
            "width": width_of(row),
            "value": row.summary.median,
            "unit": row.unit,
            "min": row.summary.min,
            "max": row.summary.max,
        })
    };
    let missing = outcome.not_run.iter().map(|missing| json!({"name": missing.name, "why": missing.why}));
    json!({
        "measured": outcome.rows.iter().map(row).collect::<Vec<_>>(),
        "not_run": missing.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use streamvm_benches::harness::stats::Summary;

    use super::*;
    use crate::run::NotRun;

    fn row(name: &str, width: u32, median: f64) -> Row<Case> {
        let case = Case::all().find(|case| case.name() == name).unwrap();
        let summary = Summary { median, min: median / 2.0, max: median * 2.0 };
        Row { case, metric: metric(width), unit: "us".to_owned(), summary }
    }

    fn outcome() -> Outcome {
        Outcome {
            widths: vec![8, 2],
            rows: vec![
                row("trivial/streamvm workers", 8, 0.7),
                row("trivial/streamvm workers", 2, 0.5),
                row("trivial/openmp gcc", 8, 3.25),
                row("fft/openmp gcc", 8, 104.0),
            ],
            not_run: vec![NotRun { name: "mpi".to_owned(), why: "there is no apt-get".to_owned() }],
        }
    }

    #[test]
    fn the_table_has_a_part_for_each_width_and_says_what_is_missing() {
        assert_eq!(
            table(&outcome()),
            "\
METG(50 %) in µs, width 8
pattern  streamvm workers  streamvm streams  streamvm lists  streamvm program  streamvm graph  openmp gcc  openmp clang  starpu  mpi
trivial              0.70                 -               -                 -               -        3.25             -       -    -
fft                     -                 -               -                 -               -      104.00             -       -    -

METG(50 %) in µs, width 2
pattern  streamvm workers  streamvm streams  streamvm lists  streamvm program  streamvm graph  openmp gcc  openmp clang  starpu  mpi
trivial              0.50                 -               -                 -               -           -             -       -    -

mpi: not run: there is no apt-get
"
        );
    }

    #[test]
    fn the_json_has_what_the_table_has() {
        let json = json(&outcome());
        let expected = json!({
            "pattern": "fft", "engine": "openmp gcc", "width": 8, "value": 104.0, "unit": "us", "min": 52.0, "max": 208.0,
        });
        assert_eq!(json["measured"][3], expected);
        assert_eq!(json["measured"].as_array().map(Vec::len), Some(4));
        assert_eq!(json["not_run"], json!([{"name": "mpi", "why": "there is no apt-get"}]));
    }
}
