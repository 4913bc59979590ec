//! Reports of measurements: tables and plots for people, JSON for programs, and the files of both.
//!
//! Layer: uses `harness` and `catalogue`; is used by the programs that measure.
//!
//! Main parts: [`table`] and [`json()`] make texts of [`Row`]s, each workload beside its floor; [`plot`] draws them and the curves;
//! [`write()`] makes the file.

pub mod plot;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::catalogue::cases::floor_of;
use crate::harness::error::Error;
use crate::harness::round_robin::Row;
use crate::harness::table::{aligned, figures, number};

/// The rows as an aligned table, with the ratio of each median to that of its floor.
pub fn table(rows: &[Row]) -> String {
    let head = ["workload", "metric", "median", "min", "max", "unit", "ratio"].map(str::to_owned);
    let line = |row: &Row| {
        let [median, min, max] = figures(row.summary);
        [row.case.name.to_owned(), row.metric.clone(), median, min, max, row.unit.clone(), ratio(row, rows)]
    };
    aligned(&[head].into_iter().chain(rows.iter().map(line)).collect::<Vec<_>>(), &[2, 3, 4])
}

fn ratio(row: &Row, rows: &[Row]) -> String {
    let text = |floor: &Row| format!("{} x {}", number(row.summary.median / floor.summary.median), floor.case.name);
    floor_row(row, rows).map_or_else(String::new, text)
}

/// The row of the floor of a row, if it has a floor and the floor was measured.
pub fn floor_row<'a>(row: &Row, rows: &'a [Row]) -> Option<&'a Row> {
    let (floor, metric) = floor_of(row.case.name, &row.metric)?;
    rows.iter().find(|other| other.case.name == floor && other.metric == metric)
}

/// The rows as a JSON list of `{"workload", "metric", "value", "unit", "min", "max"}`; the value is the median.
pub fn json(rows: &[Row]) -> Value {
    let row = |row: &Row| {
        json!({
            "workload": row.case.name,
            "metric": row.metric,
            "value": row.summary.median,
            "unit": row.unit,
            "min": row.summary.min,
            "max": row.summary.max,
        })
    };
    rows.iter().map(row).collect()
}

/// Writes `json` to `path`, and creates missing folders.
///
/// # Errors
/// The file or a folder cannot be written.
pub fn write(path: &Path, json: &Value) -> Result<(), Error> {
    write_text(path, &format!("{json:#}\n"))
}

/// Writes `text` to `path`, and creates missing folders.
///
/// # Errors
/// The file or a folder cannot be written.
pub fn write_text(path: &Path, text: &str) -> Result<(), Error> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::write(path, text).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::cases::find;
    use crate::harness::stats::Summary;

    fn row(case: &str, metric: &str, median: f64) -> Row {
        let case = find(case).unwrap();
        let summary = Summary { median, min: median / 2.0, max: median * 2.0 };
        Row { case, metric: metric.to_owned(), unit: "ns".to_owned(), summary }
    }

    #[test]
    fn the_table_is_aligned_and_tells_ratios() {
        let rows = [row("chain", "ns_per_op_single", 250.0), row("floor/chain", "ns_per_op", 12.5)];
        assert_eq!(
            table(&rows),
            "\
workload     metric            median  min   max  unit  ratio
chain        ns_per_op_single     250  125   500  ns    20.0 x floor/chain
floor/chain  ns_per_op           12.5  6.2  25.0  ns
"
        );
        assert!(!table(&rows[..1]).contains(" x "), "no ratio without its floor");
    }

    #[test]
    fn the_json_has_the_six_keys() {
        let expected = json!([
            {"workload": "fan", "metric": "m", "value": 4.0, "unit": "ns", "min": 2.0, "max": 8.0}
        ]);
        assert_eq!(json(&[row("fan", "m", 4.0)]), expected);
    }
}
